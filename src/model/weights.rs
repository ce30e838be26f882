//! THE parameter table. Layout, init, optimizer groups, gradient sync, checkpoints and the
//! estimator are all read off these rows.

use crate::manifest::{Model, Position};

#[rustfmt::skip]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    TokenEmbed, PosEmbed, EmbedLnScale, EmbedLnShift,
    Ln1Scale, Ln1Shift, QkvW, QkvB, ProjW, ProjB,
    Ln2Scale, Ln2Shift, Fc1W, Fc1B, Fc2W, Fc2B,
    LnfScale, LnfShift, HeadW,
}

impl Weight {
    pub const COUNT: usize = Weight::HeadW as usize + 1;
}

/// Where in the network a weight stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Embed,
    /// Once in every block.
    Block,
    Head,
}

/// How tensor parallelism cuts a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Rows,
    Cols,
    Whole,
}

/// What a weight starts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    Zero,
    One,
    /// N(0, init_std²).
    Normal,
    /// N(0, init_std²), divided by √(2·layers) under init_scale_residual.
    Residual,
}

/// A row of the table: a matrix [rows, cols], as [out, in] where it multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    pub weight: Weight,
    pub name: &'static str,
    pub place: Place,
    pub rows: usize,
    pub cols: usize,
    pub split: Split,
    pub init: Init,
    /// Whether weight decay applies: not to norms and biases.
    pub decay: bool,
}

/// Every parameter of the model, once; a tied head has no row of its own.
#[rustfmt::skip]
pub fn table(m: &Model) -> Vec<Spec> {
    use {Init::*, Place::*, Split::*, Weight::*};
    let (h, f, v, t) = (m.hidden, m.ffn_hidden, m.vocab_padded, m.seq_len);
    let learned = m.position == Position::Learned;
    let (norm, untied) = (m.embedding_layernorm, !m.tied_head);
    let rows = [
        //present  weight        name                 place  rows   cols split  init      decay
        (learned,  PosEmbed,     "embed.position",    Embed, t,     h,   Whole, Normal,   true),
        (true,     TokenEmbed,   "embed.token",       Embed, v,     h,   Rows,  Normal,   true),
        (norm,     EmbedLnScale, "embed.ln.scale",    Embed, 1,     h,   Whole, One,      false),
        (norm,     EmbedLnShift, "embed.ln.shift",    Embed, 1,     h,   Whole, Zero,     false),
        (true,     Ln1Scale,     "ln1.scale",         Block, 1,     h,   Whole, One,      false),
        (true,     Ln1Shift,     "ln1.shift",         Block, 1,     h,   Whole, Zero,     false),
        (true,     QkvW,         "attn.qkv.weight",   Block, 3 * h, h,   Rows,  Normal,   true),
        (true,     QkvB,         "attn.qkv.bias",     Block, 1, 3 * h,   Cols,  Zero,     false),
        (true,     ProjW,        "attn.proj.weight",  Block, h,     h,   Cols,  Residual, true),
        (true,     ProjB,        "attn.proj.bias",    Block, 1,     h,   Whole, Zero,     false),
        (true,     Ln2Scale,     "ln2.scale",         Block, 1,     h,   Whole, One,      false),
        (true,     Ln2Shift,     "ln2.shift",         Block, 1,     h,   Whole, Zero,     false),
        (true,     Fc1W,         "mlp.fc1.weight",    Block, f,     h,   Rows,  Normal,   true),
        (true,     Fc1B,         "mlp.fc1.bias",      Block, 1,     f,   Cols,  Zero,     false),
        (true,     Fc2W,         "mlp.fc2.weight",    Block, h,     f,   Cols,  Residual, true),
        (true,     Fc2B,         "mlp.fc2.bias",      Block, 1,     h,   Whole, Zero,     false),
        (true,     LnfScale,     "lnf.scale",         Head,  1,     h,   Whole, One,      false),
        (true,     LnfShift,     "lnf.shift",         Head,  1,     h,   Whole, Zero,     false),
        (untied,   HeadW,        "head.weight",       Head,  v,     h,   Rows,  Normal,   true),
    ];
    rows.into_iter()
        .filter(|row| row.0)
        .map(|(_, weight, name, place, rows, cols, split, init, decay)| {
            Spec { weight, name, place, rows, cols, split, init, decay }
        })
        .collect()
}

/// Number of parameters, with the padding of the vocabulary (`vocab_padded`) or without (`vocab`).
pub fn parameters(m: &Model) -> u64 {
    let times = |place| if place == Place::Block { m.layers as u64 } else { 1 };
    table(m).iter().map(|s| times(s.place) * s.rows as u64 * s.cols as u64).sum()
}
