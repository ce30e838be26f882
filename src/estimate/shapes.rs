//! Shapes of published models, by their nominal sizes.

use super::mixture::published::PUBLISHED;
use super::words;
use base::table::{Cell, Printout, Rows, Table};
use manifest::{Family, Model, Sizes};
use model::parameters;
use serde_json::Value;

/// A published model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Nominal size, such as "7B".
    pub name: &'static str,
    pub series: &'static str,
    pub family: Family,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    /// Settings of Llama; GPT has 4 × hidden, and as many key heads as query heads.
    pub kv_heads: Option<usize>,
    pub ffn_hidden: Option<usize>,
    pub vocab: usize,
    pub seq_len: usize,
    /// Base of rotary positions, where it is not the default.
    pub theta: Option<u32>,
}

/// Defines a table. A row is `"name" "series" Family:` and layers, hidden, heads, kv_heads,
/// ffn_hidden, vocab, seq_len, theta.
macro_rules! shapes {
    ($(#[$about:meta])* $table:ident $($name:literal $series:literal $family:ident:
       $layers:literal, $hidden:literal, $heads:literal, $kv_heads:expr, $ffn_hidden:expr,
       $vocab:literal, $seq_len:literal, $theta:expr;)*) => {
        $(#[$about])*
        const $table: &[Shape] = &[$(Shape {
            name: $name,
            series: $series,
            family: Family::$family,
            layers: $layers,
            hidden: $hidden,
            heads: $heads,
            kv_heads: $kv_heads,
            ffn_hidden: $ffn_hidden,
            vocab: $vocab,
            seq_len: $seq_len,
            theta: $theta,
        },)*];
    };
}

// The paper's GPT-3 of 1.3B has 24 heads of 128 columns; the width holds 16.
shapes! {
    /// Models that a size means. The first of equally near ones is taken.
    SHAPES
    "1.1B" "TinyLlama" Llama: 22, 2048, 32, Some(4), Some(5632), 32_000, 2048, None;
    "7B" "Llama 2" Llama: 32, 4096, 32, None, Some(11_008), 32_000, 4096, None;
    "8B" "Llama 3" Llama: 32, 4096, 32, Some(8), Some(14_336), 128_256, 8192, Some(500_000);
    "13B" "Llama 2" Llama: 40, 5120, 40, None, Some(13_824), 32_000, 4096, None;
    "33B" "Llama" Llama: 60, 6656, 52, None, Some(17_920), 32_000, 2048, None;
    "65B" "Llama" Llama: 80, 8192, 64, None, Some(22_016), 32_000, 2048, None;
    "70B" "Llama 3" Llama: 80, 8192, 64, Some(8), Some(28_672), 128_256, 8192, Some(500_000);
    "405B" "Llama 3" Llama: 126, 16_384, 128, Some(8), Some(53_248), 128_256, 8192, Some(500_000);
    "124M" "GPT-2" Gpt2: 12, 768, 12, None, None, 50_257, 1024, None;
    "355M" "GPT-2" Gpt2: 24, 1024, 16, None, None, 50_257, 1024, None;
    "774M" "GPT-2" Gpt2: 36, 1280, 20, None, None, 50_257, 1024, None;
    "1.3B" "GPT-3" Gpt2: 24, 2048, 16, None, None, 50_257, 2048, None;
    "1.5B" "GPT-2" Gpt2: 48, 1600, 25, None, None, 50_257, 1024, None;
    "2.7B" "GPT-3" Gpt2: 32, 2560, 32, None, None, 50_257, 2048, None;
    "6.7B" "GPT-3" Gpt2: 32, 4096, 32, None, None, 50_257, 2048, None;
    "13B" "GPT-3" Gpt2: 40, 5120, 40, None, None, 50_257, 2048, None;
    "175B" "GPT-3" Gpt2: 96, 12_288, 96, None, None, 50_257, 2048, None;
}

shapes! {
    /// Further models, which are only listed. Sources: Shoeybi et al. 2019; Microsoft's announcement of
    /// Turing-NLG, 2020; Lieber et al. 2021; Smith et al. 2022; BLOOM's model cards.
    LISTED
    "8.3B" "Megatron-LM" Gpt2: 72, 3072, 32, None, None, 50_257, 1024, None;
    "17B" "Turing-NLG" Gpt2: 78, 4256, 28, None, None, 50_257, 1024, None;
    "178B" "Jurassic-1" Gpt2: 76, 13_824, 96, None, None, 256_000, 2048, None;
    "530B" "MT-NLG" Gpt2: 105, 20_480, 128, None, None, 50_257, 2048, None;
    "560M" "BLOOM" Bloom: 24, 1024, 16, None, None, 250_880, 2048, None;
    "1.1B" "BLOOM" Bloom: 24, 1536, 16, None, None, 250_880, 2048, None;
    "1.7B" "BLOOM" Bloom: 24, 2048, 16, None, None, 250_880, 2048, None;
    "3B" "BLOOM" Bloom: 30, 2560, 32, None, None, 250_880, 2048, None;
    "7.1B" "BLOOM" Bloom: 30, 4096, 32, None, None, 250_880, 2048, None;
    "176B" "BLOOM" Bloom: 70, 14_336, 112, None, None, 250_880, 2048, None;
}

/// Published models by size, with their hidden width per layer.
pub fn list() -> Printout {
    let mut rows: Vec<Shape> = SHAPES.iter().chain(LISTED).copied().collect();
    rows.sort_by(|a, b| a.size().total_cmp(&b.size()));
    let table = Rows::new(&rows)
        .column("model", "series", |s| s.series)
        .column("size", "name", |s| s.name)
        .column("layers", "layers", |s| s.layers)
        .column("hidden", "hidden", |s| s.hidden)
        .column("h/L", "width_per_layer", |s| Cell::fixed(s.hidden as f64 / s.layers as f64, 0))
        .column("heads", "heads", |s| s.heads)
        .column("KV heads", "kv_heads", |s| s.kv_heads.unwrap_or(s.heads))
        .column("feed-forward", "ffn_hidden", |s| s.ffn_hidden.unwrap_or(4 * s.hidden))
        .column("vocabulary", "vocab", |s| s.vocab)
        .column("parameters", "parameters", |s| {
            let parameters = parameters(&s.own_model());
            Cell::new(parameters, words::size(parameters as f64))
        })
        .json("seq_len", |s| s.seq_len);
    let mixtures = mixtures();
    let mut out = Printout::from_table(table.table());
    if let (Value::Array(all), Value::Array(more)) = (&mut out.json, mixtures.json()) {
        all.extend(more);
    }
    out.table(mixtures.titled("Mixtures of experts, which gptrain itself does not train yet:"));
    out
}

/// Published mixtures of experts, by all their parameters and by those that a token uses.
fn mixtures() -> Table {
    let count = |parameters: f64| Cell::new(parameters as u64, words::size(parameters));
    Rows::new(PUBLISHED)
        .column("model", "series", |p| p.name)
        .column("layers", "layers", |p| p.layers)
        .column("hidden", "hidden", |p| p.hidden)
        .column("heads", "heads", |p| p.heads)
        .column("experts", "experts", |p| p.mixture.experts)
        .column("per token", "experts_per_token", |p| p.mixture.chosen)
        .column("inner width", "expert_hidden", |p| p.mixture.width)
        .json("vocab", |p| p.vocab)
        .column("parameters", "parameters", |p| {
            count(p.mixture.parameters(&p.model(p.seq_len)) as f64)
        })
        .column("active", "active_parameters", |p| count(p.mixture.active(&p.model(p.seq_len))))
        .json("seq_len", |p| p.seq_len)
        .table()
}

/// Factor within which a size means a published one.
const NEAR: f64 = 1.06;

/// Published model of about this size, of a family or of any.
pub fn published(parameters: f64, family: Option<Family>) -> Option<&'static Shape> {
    let off = |shape: &&Shape| (shape.size() / parameters).ln().abs();
    let ours = SHAPES
        .iter()
        .filter(|shape| family.is_none_or(|family| shape.family == family));
    ours.min_by(|a, b| off(a).total_cmp(&off(b)))
        .filter(|shape| off(shape) <= NEAR.ln())
}

impl Shape {
    /// The published model itself.
    fn own_model(&self) -> Model {
        let Shape { layers, hidden, heads, vocab, seq_len, .. } = *self;
        let sizes = Sizes { layers, hidden, heads, vocab, seq_len };
        self.model(&Model::with_defaults(self.family, sizes, 1))
    }

    /// Model of this shape, with the other settings of `like`.
    pub fn model(&self, like: &Model) -> Model {
        let Shape { layers, hidden, heads, .. } = *self;
        let sizes = Sizes { layers, hidden, heads, vocab: like.vocab, seq_len: like.seq_len };
        let own = Model::with_defaults(self.family, sizes, 1);
        let ffn_hidden = self.ffn_hidden.unwrap_or(own.ffn_hidden);
        let kv_heads = self.kv_heads.or(own.kv_heads);
        Model { layers, hidden, heads, kv_heads, head_dim: None, ffn_hidden, ..like.clone() }
    }

    /// The parameters that its name says.
    fn size(&self) -> f64 {
        words::tokens(self.name).expect("a size")
    }
}

/// No name is off by more than a rounding, but for models whose name leaves out the embedding.
#[test]
fn published_shapes_have_the_size_of_their_name() {
    for shape in SHAPES.iter().chain(LISTED) {
        let size = parameters(&shape.own_model()) as f64;
        assert!((0.93..1.07).contains(&(size / shape.size())), "{}: {size}", shape.name);
    }
    let name = |size, family| published(size, family).map(|shape| (shape.series, shape.name));
    assert_eq!(name(7e9, None), Some(("Llama 2", "7B")));
    assert_eq!(name(6.7e9, None), Some(("GPT-3", "6.7B")));
    assert_eq!(name(125e6, None), Some(("GPT-2", "124M")));
    assert_eq!(name(13e9, None), Some(("Llama 2", "13B")));
    assert_eq!(name(13e9, Some(Family::Gpt2)), Some(("GPT-3", "13B")));
    assert_eq!(name(10e6, None), None);
    assert_eq!(name(124e6, Some(Family::Llama)), None);
}
