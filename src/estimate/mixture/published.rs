//! Published mixtures of experts. Sources: the config.json of each.

use super::{Attention, Grouped, Latent, Mixture, Norm};
use manifest::{Family, Model, Sizes};

/// A published mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    pub name: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    /// Heads of keys and values, and columns of a head, of grouped attention.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Longest text that the model reads.
    pub seq_len: usize,
    pub mixture: Mixture,
}

impl Published {
    /// Dense model beside the mixture, with samples of `seq_len` tokens.
    pub fn model(&self, seq_len: usize) -> Model {
        let Published { layers, hidden, heads, kv_heads, head_dim, vocab, .. } = *self;
        let sizes = Sizes { layers, hidden, heads, vocab, seq_len };
        skeleton(sizes, kv_heads, head_dim, false, &self.mixture)
    }
}

/// Dense model beside a mixture: its feed-forward layers have the products of a token's experts.
pub fn skeleton(
    sizes: Sizes,
    kv_heads: usize,
    head_dim: usize,
    tied_head: bool,
    mixture: &Mixture,
) -> Model {
    let (kv_heads, head_dim) = match mixture.attention {
        Attention::Grouped(_) => (kv_heads, head_dim),
        Attention::Latent(latent) => (sizes.heads, latent.head_dim()),
    };
    Model {
        kv_heads: Some(kv_heads).filter(|kv| *kv != sizes.heads),
        head_dim: Some(head_dim).filter(|dim| dim * sizes.heads != sizes.hidden),
        ffn_hidden: mixture.active_width(),
        tied_head,
        ..Model::with_defaults(Family::Llama, sizes, 1)
    }
}

/// Mixture of equal layers with grouped attention.
const fn plain(experts: usize, chosen: usize, width: usize, attention: Grouped) -> Mixture {
    Mixture {
        experts,
        chosen,
        width,
        shared: 0,
        dense_layers: 0,
        dense_width: 0,
        biases: false,
        attention: Attention::Grouped(attention),
    }
}

const NO_NORM: Grouped = Grouped { norm: Norm::None, biases: false, sinks: false };
const HEAD_NORM: Grouped = Grouped { norm: Norm::Head, ..NO_NORM };
const WHOLE_NORM: Grouped = Grouped { norm: Norm::Whole, ..NO_NORM };
const SINKS: Grouped = Grouped { biases: true, sinks: true, ..NO_NORM };
const LATENT: Latent = Latent { query_rank: None, rank: 512, plain: 128, rotary: 64, value: 128 };

macro_rules! published {
    ($($name:literal: $layers:literal, $hidden:literal, $heads:literal, $kv_heads:literal,
       $head_dim:literal, $vocab:literal, $seq_len:literal, $mixture:expr;)*) => {
        /// Mixtures that `--list-shapes` prints, and that a measured row may name.
        pub const PUBLISHED: &[Published] = &[$(Published {
            name: $name,
            layers: $layers,
            hidden: $hidden,
            heads: $heads,
            kv_heads: $kv_heads,
            head_dim: $head_dim,
            vocab: $vocab,
            seq_len: $seq_len,
            mixture: $mixture,
        },)*];
    };
}

published! {
    "OLMoE-1B-7B": 16, 2048, 16, 16, 128, 50_304, 4096, plain(64, 8, 1024, WHOLE_NORM);
    "DeepSeek-V2-Lite": 27, 2048, 16, 16, 160, 102_400, 163_840, Mixture {
        shared: 2816, dense_layers: 1, dense_width: 10_944, attention: Attention::Latent(LATENT),
        ..plain(64, 6, 1408, NO_NORM)
    };
    "gpt-oss-20b": 24, 2880, 64, 8, 64, 201_088, 131_072, Mixture {
        biases: true, ..plain(32, 4, 2880, SINKS)
    };
    "Qwen3-30B-A3B": 48, 2048, 32, 4, 128, 151_936, 40_960, plain(128, 8, 768, HEAD_NORM);
    "Mixtral-8x7B": 32, 4096, 32, 8, 128, 32_000, 32_768, plain(8, 2, 14_336, NO_NORM);
    "gpt-oss-120b": 36, 2880, 64, 8, 64, 201_088, 131_072, Mixture {
        biases: true, ..plain(128, 4, 2880, SINKS)
    };
    "Mixtral-8x22B": 56, 6144, 48, 8, 128, 32_768, 65_536, plain(8, 2, 16_384, NO_NORM);
    "Qwen3-235B-A22B": 94, 4096, 64, 4, 128, 151_936, 40_960, plain(128, 8, 1536, HEAD_NORM);
    "DeepSeek-V3": 61, 7168, 128, 128, 160, 129_280, 163_840, Mixture {
        shared: 2048, dense_layers: 3, dense_width: 18_432,
        attention: Attention::Latent(Latent { query_rank: Some(1536), ..LATENT }),
        ..plain(256, 8, 2048, NO_NORM)
    };
}

/// The row of that name, whatever the case of its letters.
pub fn find(name: &str) -> Result<&'static Published, String> {
    let found = PUBLISHED
        .iter()
        .find(|row| row.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let names: Vec<&str> = PUBLISHED.iter().map(|row| row.name).collect();
        format!("unknown mixture of experts `{name}`: {} are known", names.join(", "))
    })
}
