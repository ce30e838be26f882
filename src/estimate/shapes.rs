//! Shapes of published models, by their nominal sizes.

use super::words;
use manifest::Family;

/// A published model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Nominal size, such as "7B".
    pub name: &'static str,
    pub of: &'static str,
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

const fn gpt(name: &'static str, [layers, hidden, heads]: [usize; 3], seq_len: usize) -> Shape {
    let of = if seq_len == 1024 { "GPT-2" } else { "GPT-3" };
    let (family, vocab) = (Family::Gpt2, 50_257);
    let (kv_heads, ffn_hidden, theta) = (None, None, None);
    Shape { name, of, family, layers, hidden, heads, kv_heads, ffn_hidden, vocab, seq_len, theta }
}

const fn llama(
    name: &'static str,
    of: &'static str,
    [layers, hidden, heads, kv, ffn]: [usize; 5],
    [vocab, seq_len]: [usize; 2],
    theta: Option<u32>,
) -> Shape {
    let (family, ffn_hidden) = (Family::Llama, Some(ffn));
    let kv_heads = if kv == heads { None } else { Some(kv) };
    Shape { name, of, family, layers, hidden, heads, kv_heads, ffn_hidden, vocab, seq_len, theta }
}

/// The first of equally near ones is taken.
const SHAPES: [Shape; 17] = [
    llama("1.1B", "TinyLlama", [22, 2048, 32, 4, 5632], [32_000, 2048], None),
    llama("7B", "Llama 2", [32, 4096, 32, 32, 11_008], [32_000, 4096], None),
    llama("8B", "Llama 3", [32, 4096, 32, 8, 14_336], [128_256, 8192], Some(500_000)),
    llama("13B", "Llama 2", [40, 5120, 40, 40, 13_824], [32_000, 4096], None),
    llama("33B", "Llama", [60, 6656, 52, 52, 17_920], [32_000, 2048], None),
    llama("65B", "Llama", [80, 8192, 64, 64, 22_016], [32_000, 2048], None),
    llama("70B", "Llama 3", [80, 8192, 64, 8, 28_672], [128_256, 8192], Some(500_000)),
    llama("405B", "Llama 3", [126, 16_384, 128, 8, 53_248], [128_256, 8192], Some(500_000)),
    gpt("124M", [12, 768, 12], 1024),
    gpt("355M", [24, 1024, 16], 1024),
    gpt("774M", [36, 1280, 20], 1024),
    // The paper has 24 heads of 128 columns; the width holds 16.
    gpt("1.3B", [24, 2048, 16], 2048),
    gpt("1.5B", [48, 1600, 25], 1024),
    gpt("2.7B", [32, 2560, 32], 2048),
    gpt("6.7B", [32, 4096, 32], 2048),
    gpt("13B", [40, 5120, 40], 2048),
    gpt("175B", [96, 12_288, 96], 2048),
];

/// Factor within which a size means a published one.
const NEAR: f64 = 1.06;

/// Published model of about this size, of a family or of any.
pub fn published(parameters: f64, family: Option<Family>) -> Option<&'static Shape> {
    let off = |shape: &&Shape| (shape.size() / parameters).ln().abs();
    let ours = SHAPES.iter().filter(|shape| family.is_none_or(|family| shape.family == family));
    ours.min_by(|a, b| off(a).total_cmp(&off(b))).filter(|shape| off(shape) <= NEAR.ln())
}

impl Shape {
    /// The parameters that its name says.
    fn size(&self) -> f64 {
        words::tokens(self.name).expect("a size")
    }
}

/// No name is off by more than a rounding, but for models whose name leaves out the embedding.
#[test]
fn published_shapes_have_the_size_of_their_name() {
    use manifest::{Model, Sizes};
    for shape in &SHAPES {
        let Shape { layers, hidden, heads, vocab, seq_len, .. } = *shape;
        let sizes = Sizes { layers, hidden, heads, vocab, seq_len };
        let model = Model::with_defaults(shape.family, sizes, 1);
        let kv_heads = shape.kv_heads.or(model.kv_heads);
        let ffn_hidden = shape.ffn_hidden.unwrap_or(model.ffn_hidden);
        let size = model::parameters(&Model { kv_heads, ffn_hidden, ..model }) as f64;
        assert!((0.93..1.07).contains(&(size / shape.size())), "{}: {size}", shape.name);
    }
    let name = |size, family| published(size, family).map(|shape| (shape.of, shape.name));
    assert_eq!(name(7e9, None), Some(("Llama 2", "7B")));
    assert_eq!(name(6.7e9, None), Some(("GPT-3", "6.7B")));
    assert_eq!(name(125e6, None), Some(("GPT-2", "124M")));
    assert_eq!(name(13e9, None), Some(("Llama 2", "13B")));
    assert_eq!(name(13e9, Some(Family::Gpt2)), Some(("GPT-3", "13B")));
    assert_eq!(name(10e6, None), None);
    assert_eq!(name(124e6, Some(Family::Llama)), None);
}
