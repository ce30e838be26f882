//! Section `model`: the network's shape.

use super::choices::{Bias, Ffn, LayerAttention, NormKind};
use super::define::{Written, checked, forms, read, sections, settings, written};
use super::family::Family;
use super::layers::{self, LayerForm, LayerKind};
use super::rope::{Position, PositionForm, Rope};
use base::{Gelu, Heads};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
/// Architecture: a decoder whose blocks normalise before attention and before the feed-forward layer.
/// All parts can be combined.
Model(raw, tensor: usize) {
    /// Model family: it sets the defaults of the other settings, and the names of the weights in
    /// Hugging Face folders. Default: bloom if position is alibi, else gpt2.
    family: Family = Family::for_position(raw.position.as_ref());
    /// Transformer blocks (Megatron's --num-layers).
    layers: usize, required in 1..=10_000;
    /// Width of the residual stream (--hidden-size); a multiple of `heads` without `head_dim`.
    hidden: usize, required in 1..=1_048_576;
    /// Attention heads (--num-attention-heads).
    heads: usize, required in 1..=65_536;
    /// Heads of keys and values. `heads` must be divisible by it; each serves heads / kv_heads query
    /// heads (--num-query-groups). Default: heads.
    kv_heads: usize, in 1..=65_536;
    /// Columns of a head (--kv-channels). Default: hidden / heads.
    head_dim: usize, in 1..=256;
    /// Feed-forward layer: gelu or swiglu. Default: gelu; swiglu for the Llama families.
    ffn: Ffn = family.defaults().ffn;
    /// Inner width of the feed-forward layer (--ffn-hidden-size). Default: 4 × hidden; for swiglu
    /// 8/3 × hidden, rounded up to a multiple of 256.
    ffn_hidden: usize = ffn.hidden(hidden), in 1..=8_388_608;
    /// Size of the tokenizer's vocabulary: every token id is below it.
    vocab: usize, required in 2..=2_147_483_647;
    /// The embedding's rows are rounded up to a multiple of this × topology.tensor
    /// (--make-vocab-size-divisible-by). Default: 128.
    vocab_multiple: usize = 128, in 1..=1_048_576;
    /// Tokens per sample (--seq-length).
    seq_len: usize, required in 1..=16_777_216;
    /// Position encoding: learned, alibi, rope, or rope with settings. Default: learned; alibi for
    /// family bloom; rope for the Llama families.
    position: PositionForm => Position
        = Position::read(raw.position, family.defaults().position);
    /// Rows of the table of learned positions (--max-position-embeddings). Default: seq_len.
    positions: usize, in 1..=16_777_216;
    /// Sliding window: most keys that a query attends to, including its own. Default: all.
    window: usize, in 1..=16_777_216;
    /// Kinds of layers, which repeat from the first layer to the last: full, window, or settings, as in
    /// [window, window, full]. Default: all layers alike.
    pattern: Vec<LayerForm> => Vec<LayerKind> = layers::pattern(raw.pattern),
        written layers::written(pattern);
    /// Whether each head's queries and keys are normalised by their root mean square. Default: false;
    /// true for family qwen3.
    qk_norm: bool = family.defaults().qk_norm;
    /// Matrix products of a block that add a bias: none, qkv, attention, all. Default: all; qkv for
    /// family qwen2; none for the other Llama families.
    bias: Bias = family.defaults().bias;
    /// Normalisation: layer or rms. Default: layer; rms for the Llama families.
    norm: NormKind = family.defaults().norm;
    /// Whether a norm follows the embedding (--embed-layernorm). Default: false; true if family is set
    /// to bloom.
    embedding_layernorm: bool = raw.family.is_some() && family.defaults().embedding_layernorm;
    /// Whether the output layer shares the embedding's weights. False is Megatron's
    /// --untie-embeddings-and-output-weights. Default: true; false for the Llama families.
    tied_head: bool = family.defaults().tied_head;
    /// Soft cap c of logits: each logit x becomes c·tanh(x/c), in training and sampling (Gemma 2: 30).
    /// Default: none.
    logit_softcap: f32, in 1e-3..=1e6;
    /// Formula of GELU, for ffn: gelu. Default: tanh, as in GPT-2, Megatron and BLOOM.
    gelu: Gelu = Gelu::Tanh;
    /// Added to the variance in every norm (--layernorm-epsilon). Default: 1e-5; 1e-6 for families
    /// qwen2 and qwen3.
    layernorm_eps: f32 = family.defaults().layernorm_eps, in 1e-12..=1.0;
    /// Dropout rates: one number for all places, or one each. Default: 0 (Megatron's default is 0.1).
    dropout: DropoutForm => Dropout = dropout(raw.dropout);
    /// Initial weights.
    init: Init => Init = Init::read(raw.init.unwrap_or_default());
    /// Scaling by µP, with which a learning rate found for a narrow model is valid for this one.
    /// Default: none.
    mup: Mup => Option<Mup> = raw.mup.map(Mup::read);
} (
    /// Rows of the embedding: `vocab`, rounded up to be divisible among tensor-parallel ranks and tiles.
    vocab_padded: usize = vocab.next_multiple_of(vocab_multiple * tensor);
)

#[derive(Copy)]
/// Dropout rates at three places; each defaults to 0.
Dropout(raw) {
    /// After the embedding.
    embedding: f32 = 0.0, in 0.0..=0.999;
    /// On attention weights (--attention-dropout).
    attention: f32 = 0.0, in 0.0..=0.999;
    /// On the output of each branch before it is added to the residual stream (--hidden-dropout).
    residual: f32 = 0.0, in 0.0..=0.999;
}

/// Initial weights. Biases start at 0 and norms at 1.
Init(raw) {
    /// Standard deviation of the normal distribution (--init-method-std). Default: 0.02.
    std: f32 = 0.02, in 0.0..=10.0;
    /// Whether initial projections into the residual stream are scaled by 1/sqrt(2·layers). Default:
    /// true.
    scale_residual: bool = true;
}

#[derive(Copy)]
/// Maximal update parametrisation (µP; Yang et al. 2022, Tensor Programs V) of a model that is r =
/// hidden / base_hidden times as wide as the base model, for which lr.peak and init.std were found.
/// Initial block matrices are divided by √r, and AdamW's and Adafactor's steps of them by r.
Mup(raw) {
    /// model.hidden of the base model (--mup-base-hidden-size).
    base_hidden: usize, required in 1..=1_048_576;
    /// Columns of a head in the base model (--mup-base-head-dim): scores are multiplied by
    /// √base_head_dim / head_dim. Default: head_dim, which gives 1/√head_dim.
    base_head_dim: usize, in 1..=256;
    /// Factor of the embedding (--mup-embedding-mult). Default: 1.
    embedding_multiplier: f32 = 1.0, in 1e-6..=1e6;
    /// Factor of logits, in addition to 1/r (--mup-output-mult). Default: 1.
    output_multiplier: f32 = 1.0, in 1e-6..=1e6;
}
}

forms! {
    /// Dropout: one rate for all three places, or one each.
    DropoutForm {
        /// One rate for all.
        Same(Rate),
        /// One each.
        Each(raw::Dropout),
    }
}

/// Dropout rate.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Rate(#[schemars(range(min = 0.0, max = 0.999))] pub f32);

fn dropout(form: Option<DropoutForm>) -> Dropout {
    Dropout::read(match form {
        None => raw::Dropout::default(),
        Some(DropoutForm::Each(each)) => each,
        Some(DropoutForm::Same(Rate(rate))) => {
            raw::Dropout { embedding: Some(rate), attention: Some(rate), residual: Some(rate) }
        }
    })
}

impl Ffn {
    /// Default inner width: 4 × hidden, or with gates two thirds of that, rounded as in Llama.
    fn hidden(self, hidden: usize) -> usize {
        match self {
            Ffn::Gelu => 4 * hidden,
            Ffn::Swiglu => (8 * hidden / 3).next_multiple_of(256),
        }
    }
}

impl Model {
    /// Attention heads: by default as many key/value heads, each of hidden / heads columns.
    pub fn heads(&self) -> Heads {
        let kv = self.kv_heads.unwrap_or(self.heads);
        let dim = self.head_dim.unwrap_or(self.hidden / self.heads);
        Heads { query: self.heads, kv, dim }
    }

    /// Tokens of the longest text that the model can read: rows of the table of learned positions,
    /// else `seq_len`.
    pub fn context(&self) -> usize {
        self.positions.unwrap_or(self.seq_len)
    }

    /// Rows of the feed-forward layer's first matrix. Under SwiGLU gate and value rows of the
    /// second matrix's columns alternate, so that any share of them is a rectangle.
    pub fn ffn_rows(&self) -> usize {
        match self.ffn {
            Ffn::Gelu => self.ffn_hidden,
            Ffn::Swiglu => 2 * self.ffn_hidden,
        }
    }
}

impl Model {
    /// Kind of a layer; None if all layers are alike.
    pub fn kind(&self, layer: usize) -> Option<&LayerKind> {
        self.pattern.get(layer % self.pattern.len().max(1))
    }

    /// Window of a layer; None if its queries attend to all keys.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| {
            !self
                .kind(layer)
                .is_some_and(|kind| kind.attention == LayerAttention::Full)
        })
    }

    /// Rotary embedding of a layer.
    pub fn rope_of(&self, layer: usize) -> Option<Rope> {
        let Position::Rope(rope) = self.position else { return None };
        Some(self.kind(layer).and_then(|kind| kind.rope).unwrap_or(rope))
    }

    /// Different rotary embeddings of the layers, in the order of their first layers.
    pub fn ropes(&self) -> Vec<Rope> {
        let mut ropes = Vec::new();
        for layer in 0..self.layers.min(self.pattern.len().max(1)) {
            let new = self.rope_of(layer).filter(|rope| !ropes.contains(rope));
            ropes.extend(new);
        }
        ropes
    }

    /// The same model with the cheapest of its kinds of layers in all layers.
    pub fn lightest(&self) -> Model {
        let windowed = (0..self.layers).any(|layer| self.window_of(layer).is_some());
        let window = self.window.filter(|_| windowed);
        Model { window, pattern: Vec::new(), ..self.clone() }
    }
}

/// Sizes of a model without defaults.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub vocab: usize,
    pub seq_len: usize,
}

impl Model {
    /// Model of a family with these sizes over `tensor` ranks, with defaults otherwise.
    pub fn with_defaults(family: Family, sizes: Sizes, tensor: usize) -> Model {
        let Sizes { layers, hidden, heads, vocab, seq_len } = sizes;
        let written = raw::Model {
            family: Some(family),
            layers: Some(layers),
            hidden: Some(hidden),
            heads: Some(heads),
            vocab: Some(vocab),
            seq_len: Some(seq_len),
            ..raw::Model::default()
        };
        Model::read(written, tensor)
    }
}
