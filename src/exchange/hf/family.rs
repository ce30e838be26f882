//! Table of the families in transformers: classes, names of tensors, and what config.json can express.

use manifest::{Bias, Family};

/// Properties of a family in transformers (5.23).
#[derive(Clone, Copy, Debug)]
pub struct Hf {
    /// Class of the language model.
    pub class: &'static str,
    /// Prefix of all tensors except the head.
    pub prefix: &'static str,
    /// Name of the list of layers, after the prefix.
    pub layers: &'static str,
    /// End of the token embedding's name.
    pub embedding: &'static str,
    pub names: Names,
    /// Constants that old files contain, by the end of their name: masks, and frequencies of RoPE.
    pub buffers: &'static [&'static str],
    /// Values of `model.bias` that config.json can express.
    pub biases: &'static [Bias],
    pub window: Window,
    /// Default of num_key_value_heads; None for the number of heads.
    pub kv_heads: Option<usize>,
    /// Default of head_dim; None for hidden / heads.
    pub head_dim: Option<usize>,
    /// Default of max_position_embeddings.
    pub positions: usize,
    pub spellings: &'static [Spelling],
}

/// A key of config.json that transformers reads under other names too (`attribute_map`):
/// `tests/fixtures/transformers/spellings.py` lists them.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// The name that transformers writes.
    pub key: &'static str,
    /// Each of them wins over `key`.
    pub others: &'static [&'static str],
}

/// Spellings of GPT-2 and BLOOM.
const HEADS: Spelling = Spelling { key: "n_head", others: &["num_attention_heads"] };
const LAYERS: Spelling = Spelling { key: "n_layer", others: &["num_hidden_layers"] };

/// Column of the table of tensor names (`names`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Also stores its matrices as [in, out].
    Gpt2,
    Bloom,
    Llama,
}

/// Form of a sliding window in config.json.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// No layer has one.
    Never,
    /// sliding_window; 4096 if it is missing.
    Width,
    /// use_sliding_window and layer_types select the layers.
    Layers,
}

const GPT2: Hf = Hf {
    class: "GPT2LMHeadModel",
    prefix: "transformer.",
    layers: "h",
    embedding: "wte.weight",
    names: Names::Gpt2,
    buffers: &["attn.bias", "attn.masked_bias"],
    biases: &[Bias::All],
    window: Window::Never,
    kv_heads: None,
    head_dim: None,
    positions: 1024,
    spellings: &[
        HEADS,
        LAYERS,
        Spelling { key: "n_embd", others: &["hidden_size"] },
        Spelling { key: "n_positions", others: &["max_position_embeddings"] },
    ],
};

const LLAMA: Hf = Hf {
    class: "LlamaForCausalLM",
    prefix: "model.",
    layers: "layers",
    embedding: "embed_tokens.weight",
    names: Names::Llama,
    buffers: &["rotary_emb.inv_freq"],
    biases: &[Bias::None, Bias::Attention, Bias::All],
    window: Window::Never,
    kv_heads: None,
    head_dim: None,
    positions: 2048,
    spellings: &[],
};

/// Row of a family.
pub const fn row(family: Family) -> Hf {
    match family {
        Family::Gpt2 => GPT2,
        Family::Bloom => Hf {
            class: "BloomForCausalLM",
            embedding: ".word_embeddings.weight",
            names: Names::Bloom,
            buffers: &[],
            positions: 2048,
            spellings: &[HEADS, LAYERS, Spelling { key: "hidden_size", others: &["n_embed"] }],
            ..GPT2
        },
        Family::Llama => LLAMA,
        Family::Mistral => Hf {
            class: "MistralForCausalLM",
            biases: &[Bias::None],
            window: Window::Width,
            kv_heads: Some(8),
            positions: 131_072,
            ..LLAMA
        },
        Family::Qwen2 => Hf {
            class: "Qwen2ForCausalLM",
            biases: &[Bias::Qkv],
            window: Window::Layers,
            kv_heads: Some(32),
            positions: 32_768,
            ..LLAMA
        },
        Family::Qwen3 => Hf {
            class: "Qwen3ForCausalLM",
            biases: &[Bias::None, Bias::Attention],
            window: Window::Layers,
            kv_heads: Some(32),
            head_dim: Some(128),
            positions: 32_768,
            ..LLAMA
        },
    }
}
