//! Table of the families in transformers: classes, names of tensors, and what config.json can express.

use manifest::dialects::Dialect;
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
    /// Default number of key-value heads; None for the number of heads.
    pub kv_heads: Option<usize>,
    /// Default width of a head; None for hidden / heads.
    pub head_dim: Option<usize>,
    /// Default length of a sample.
    pub positions: usize,
}

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
    /// The width alone; 4096 if it is missing.
    Width,
    /// A flag, and a kind for each layer.
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
};

/// Names of the settings in a family's config.json.
pub fn dialect(family: Family) -> Dialect {
    match family {
        Family::Gpt2 => Dialect::Gpt2,
        Family::Bloom => Dialect::Bloom,
        _ => Dialect::Llama,
    }
}

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
