//! THE parameter table. Layout, initial weights, optimizer groups, gradient sync, checkpoints and
//! the estimator read these rows.

use base::{Fused, div_exact};
use manifest::{Bias, Ffn, Model, NormKind, Position, Recompute};

#[rustfmt::skip]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    TokenEmbed, PosEmbed, EmbedLnScale, EmbedLnShift,
    Ln1Scale, Ln1Shift, QkvW, QkvB, QNorm, KNorm, ProjW, ProjB,
    Ln2Scale, Ln2Shift, Fc1W, Fc1B, Fc2W, Fc2B,
    LnfScale, LnfShift, HeadW,
}

impl Weight {
    pub const COUNT: usize = Weight::HeadW as usize + 1;

    /// Whether one matrix product of a block writes its gradient whole, once per micro-batch: as
    /// its result, or as the column sums of its epilogue.
    pub fn is_of_product(self) -> bool {
        use Weight::*;
        matches!(self, QkvW | QkvB | ProjW | Fc1W | Fc1B | Fc2W)
    }

    /// Tensor-parallel split of a matrix that a block multiplies by.
    pub fn block_split(self) -> TpSplit {
        use Weight::*;
        match self {
            QkvW | Fc1W => TpSplit::Rows,
            ProjW | Fc2W => TpSplit::Cols,
            other => panic!("no block multiplies by {other:?}"),
        }
    }
}

/// Part of the network that a weight belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    Embed,
    /// Repeated in every block.
    Block,
    Head,
    /// The last stage's copy of the embedding for a tied head; never in the table.
    TiedCopy,
}

/// Tensor-parallel split of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TpSplit {
    Rows,
    Cols,
    Whole,
}

/// Initial value of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    Zero,
    One,
    /// N(0, init.std²), narrower under µP (`mup`).
    Normal,
    /// Like `Normal`, divided by √(2·layers) under init.scale_residual.
    Residual,
}

/// Row of the table: a matrix [rows, cols], stored as [out, in] if it multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParamSpec {
    pub weight: Weight,
    pub name: &'static str,
    pub module: Module,
    pub rows: usize,
    pub cols: usize,
    pub split: TpSplit,
    pub init: Init,
    /// Whether weight decay applies; false for norms and biases.
    pub decay: bool,
    /// Whether rows are vocabulary entries. Rows from `Model::vocab` on are padding and never
    /// saved.
    pub vocab: bool,
    /// Whether the head also multiplies by it. Under a pipeline the last stage has a copy.
    pub tied: bool,
}

impl ParamSpec {
    /// Whether it is a matrix that a block multiplies by, of attention or the feed-forward layer.
    pub fn is_block_matrix(&self) -> bool {
        self.module == Module::Block && self.rows > 1
    }

    /// Rows and columns on one of `ranks` tensor-parallel ranks.
    pub fn share(&self, ranks: usize) -> [usize; 2] {
        match self.split {
            TpSplit::Rows => [div_exact(self.rows, ranks), self.cols],
            TpSplit::Cols => [self.rows, div_exact(self.cols, ranks)],
            TpSplit::Whole => [self.rows, self.cols],
        }
    }

    /// Matrices (or vectors) that are fused in it.
    pub fn fused(&self, m: &Model) -> Fused {
        match self.weight {
            Weight::QkvW | Weight::QkvB => m.heads().fused(),
            // Rows of gate and value alternate.
            Weight::Fc1W | Weight::Fc1B if m.ffn == Ffn::Swiglu => Fused::new([1, 1, 0]),
            _ => Fused::ONE,
        }
    }

    /// Whether a tensor-parallel rank's gradient of it is a partial sum. This applies to unsplit
    /// weights only: to norms of heads always, because each rank has its own heads, and to others
    /// under sequence parallelism.
    pub fn partial_grad(&self, sequence: bool) -> bool {
        let of_heads = matches!(self.weight, Weight::QNorm | Weight::KNorm);
        self.split == TpSplit::Whole && (sequence || of_heads)
    }
}

/// Every parameter of the model, once. A tied head has no row of its own.
#[rustfmt::skip]
pub fn table(m: &Model) -> Vec<ParamSpec> {
    use {Init::*, Module::*, TpSplit::*, Weight::*};
    let h = m.hidden;
    let f = m.ffn_hidden;
    let v = m.vocab_padded;
    let t = m.context();
    let q = m.heads().query_width();
    let qkv = m.heads().qkv_width();
    let d = m.heads().dim;
    let pos = m.position == Position::Learned;
    let norm = m.embedding_layernorm;
    let f1 = m.ffn_rows();
    let tied = m.tied_head;
    let own = !m.tied_head;
    let yes = true;
    let no = false;
    let shift = m.norm == NormKind::Layer;
    let qk = m.qk_norm;
    let (bias, qkvb) = (m.bias == Bias::All, m.bias != Bias::None);
    let projb = bias || m.bias == Bias::Attention;
    let both = norm && shift;
    let rows = [
        //if     weight        name                 module rows cols split  init      decay vocab tied
        (pos,    PosEmbed,     "embed.position",    Embed, t,   h,   Whole, Normal,   yes,  no,   no),
        (yes,    TokenEmbed,   "embed.token",       Embed, v,   h,   Rows,  Normal,   yes,  yes,  tied),
        (norm,   EmbedLnScale, "embed.ln.scale",    Embed, 1,   h,   Whole, One,      no,   no,   no),
        (both,   EmbedLnShift, "embed.ln.shift",    Embed, 1,   h,   Whole, Zero,     no,   no,   no),
        (yes,    Ln1Scale,     "ln1.scale",         Block, 1,   h,   Whole, One,      no,   no,   no),
        (shift,  Ln1Shift,     "ln1.shift",         Block, 1,   h,   Whole, Zero,     no,   no,   no),
        (yes,    QkvW,         "attn.qkv.weight",   Block, qkv, h,   Rows,  Normal,   yes,  no,   no),
        (qkvb,   QkvB,         "attn.qkv.bias",     Block, 1,   qkv, Cols,  Zero,     no,   no,   no),
        (qk,     QNorm,        "attn.q_norm.scale", Block, 1,   d,   Whole, One,      no,   no,   no),
        (qk,     KNorm,        "attn.k_norm.scale", Block, 1,   d,   Whole, One,      no,   no,   no),
        (yes,    ProjW,        "attn.proj.weight",  Block, h,   q,   Cols,  Residual, yes,  no,   no),
        (projb,  ProjB,        "attn.proj.bias",    Block, 1,   h,   Whole, Zero,     no,   no,   no),
        (yes,    Ln2Scale,     "ln2.scale",         Block, 1,   h,   Whole, One,      no,   no,   no),
        (shift,  Ln2Shift,     "ln2.shift",         Block, 1,   h,   Whole, Zero,     no,   no,   no),
        (yes,    Fc1W,         "mlp.fc1.weight",    Block, f1,  h,   Rows,  Normal,   yes,  no,   no),
        (bias,   Fc1B,         "mlp.fc1.bias",      Block, 1,   f1,  Cols,  Zero,     no,   no,   no),
        (yes,    Fc2W,         "mlp.fc2.weight",    Block, h,   f,   Cols,  Residual, yes,  no,   no),
        (bias,   Fc2B,         "mlp.fc2.bias",      Block, 1,   h,   Whole, Zero,     no,   no,   no),
        (yes,    LnfScale,     "lnf.scale",         Head,  1,   h,   Whole, One,      no,   no,   no),
        (shift,  LnfShift,     "lnf.shift",         Head,  1,   h,   Whole, Zero,     no,   no,   no),
        (own,    HeadW,        "head.weight",       Head,  v,   h,   Rows,  Normal,   yes,  yes,  no),
    ];
    rows.into_iter()
        .filter(|row| row.0)
        .map(|(_, weight, name, module, rows, cols, split, init, decay, vocab, tied)| {
            ParamSpec { weight, name, module, rows, cols, split, init, decay, vocab, tied }
        })
        .collect()
}

/// Number of parameters, including the padding of the vocabulary (`vocab_padded`) or not (`vocab`).
pub fn parameters(m: &Model) -> u64 {
    let times = |module| if module == Module::Block { m.layers as u64 } else { 1 };
    table(m)
        .iter()
        .map(|s| times(s.module) * s.rows as u64 * s.cols as u64)
        .sum()
}

/// FLOPs of training on one token, forward and backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopsPerToken {
    /// FLOPs of the model's definition.
    pub model: f64,
    /// FLOPs of a second forward of all blocks.
    blocks_forward: f64,
}

impl FlopsPerToken {
    /// FLOPs including recompute, as in published figures: full recompute runs every block's
    /// forward twice. This implementation skips the block's last product, which backward does not
    /// need.
    pub fn hardware(&self, recompute: Recompute) -> f64 {
        match recompute {
            Recompute::Full => self.model + self.blocks_forward,
            Recompute::None | Recompute::Selective => self.model,
        }
    }
}

/// 6 per weight of a matrix product, and 12·T·q per layer for attention with q query columns, as in
/// Narayanan et al. 2021 (eq. 3), which does not subtract the causal mask. A window counts the same
/// way, as twice its keys.
pub fn flops_per_token(m: &Model) -> FlopsPerToken {
    let weights = block_weights(m);
    let blocks_forward = (0..m.layers)
        .map(|layer| block_flops(m, weights, layer))
        .sum::<f64>();
    FlopsPerToken { model: 3.0 * (blocks_forward + head_flops(m)), blocks_forward }
}

/// Costs of the layers for a pipeline stage: FLOPs per token, and parameters.
#[derive(Clone, Debug)]
pub struct LayerCosts {
    /// The embedding is a lookup and costs no FLOPs.
    pub embed: (f64, f64),
    pub layers: Vec<(f64, f64)>,
    pub head: (f64, f64),
}

/// Costs of a model's layers and of its ends.
pub fn costs(m: &Model, recompute: Recompute) -> LayerCosts {
    let table = table(m);
    let sum = |counts: &dyn Fn(&ParamSpec) -> bool| {
        let rows = table.iter().filter(|s| counts(s));
        rows.map(|s| s.rows as f64 * s.cols as f64).sum::<f64>()
    };
    let parameters = |module| sum(&|s| s.module == module);
    let weights = block_weights(m);
    LayerCosts {
        embed: (0.0, parameters(Module::Embed)),
        layers: (0..m.layers)
            .map(|layer| {
                let forward = block_flops(m, weights, layer);
                let again = match recompute {
                    Recompute::Full => forward - 2.0 * sum(&|s| s.weight == Weight::Fc2W),
                    Recompute::None | Recompute::Selective => 0.0,
                };
                (3.0 * forward + again, parameters(Module::Block))
            })
            .collect(),
        head: (3.0 * head_flops(m), parameters(Module::Head) + sum(&|s| s.tied)),
    }
}

/// Weights of the matrices of a block.
fn block_weights(m: &Model) -> f64 {
    let rows = table(m).into_iter().filter(ParamSpec::is_block_matrix);
    rows.map(|s| s.rows as f64 * s.cols as f64).sum()
}

/// Forward FLOPs of one token through the block of a layer, whose matrices have `weights` weights.
fn block_flops(m: &Model, weights: f64, layer: usize) -> f64 {
    let keys = m
        .window_of(layer)
        .map_or(m.seq_len, |window| m.seq_len.min(2 * window));
    2.0 * weights + 4.0 * keys as f64 * m.heads().query_width() as f64
}

/// Forward FLOPs of one token through the head.
fn head_flops(m: &Model) -> f64 {
    2.0 * m.vocab_padded as f64 * m.hidden as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use manifest::{Family, Sizes};

    fn gpt2() -> Model {
        let sizes = Sizes { layers: 12, hidden: 768, heads: 12, vocab: 50257, seq_len: 1024 };
        let model = Model::with_defaults(Family::Gpt2, sizes, 1);
        Model { vocab_padded: 50257, ..model }
    }

    #[test]
    fn parameters_of_gpt2_and_bloom_are_the_published_ones() {
        assert_eq!(parameters(&gpt2()), 124_439_808);
        let sizes = Sizes { layers: 70, hidden: 14336, heads: 112, vocab: 250880, seq_len: 2048 };
        let bloom = Model::with_defaults(Family::Bloom, sizes, 1);
        assert_eq!(parameters(&bloom), 176_247_271_424);
    }

    /// Narayanan et al. 2021, eq. 3, per token: 72·L·h²·(1 + s/6h) + 6·h·v without recompute,
    /// 96·L·h²·(1 + s/6h) + 6·h·v with.
    #[test]
    fn flops_follow_the_published_formula() {
        let m = gpt2();
        let l = 12.0;
        let h = 768.0;
        let s = 1024.0;
        let v = 50257.0;
        let flops = flops_per_token(&m);
        let expected = |c: f64| c * l * h * h * (1.0 + s / (6.0 * h)) + 6.0 * h * v;
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
        assert!(close(flops.model, expected(72.0)));
        assert!(close(flops.hardware(Recompute::Full), expected(96.0)));
    }

    #[test]
    fn only_matrices_and_embeddings_decay() {
        for spec in table(&gpt2()) {
            assert_eq!(spec.decay, spec.rows > 1, "{}", spec.name);
        }
    }
}
