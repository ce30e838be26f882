//! The names, and where each value goes.

use super::Family;
use crate::model::{Slot, Weight};

/// A weight as a family stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Without the leading `transformer.`; `lm_head.weight` has none.
    pub name: String,
    /// Stored [in, out].
    transposed: bool,
    /// Of the attention's q, k and v: how many heads to deal them out to.
    heads: Option<usize>,
    /// Of ours, as it multiplies; a bias is cut like the rows of its weight.
    outs: usize,
    ins: usize,
}

impl Family {
    /// Where a weight of ours is in this family; none if it has no such weight. `shape` is that of
    /// a checkpoint: without the rows that pad the vocabulary.
    pub fn place(self, slot: &Slot, shape: &[usize], heads: usize) -> Option<Place> {
        use Weight::*;
        #[rustfmt::skip]
        let (gpt2, bloom) = match slot.spec.weight {
            PosEmbed     => ("wpe.weight",          ""),
            TokenEmbed   => ("wte.weight",          "word_embeddings.weight"),
            EmbedLnScale => ("",                    "word_embeddings_layernorm.weight"),
            EmbedLnShift => ("",                    "word_embeddings_layernorm.bias"),
            Ln1Scale     => ("ln_1.weight",         "input_layernorm.weight"),
            Ln1Shift     => ("ln_1.bias",           "input_layernorm.bias"),
            QkvW         => ("attn.c_attn.weight",  "self_attention.query_key_value.weight"),
            QkvB         => ("attn.c_attn.bias",    "self_attention.query_key_value.bias"),
            ProjW        => ("attn.c_proj.weight",  "self_attention.dense.weight"),
            ProjB        => ("attn.c_proj.bias",    "self_attention.dense.bias"),
            Ln2Scale     => ("ln_2.weight",         "post_attention_layernorm.weight"),
            Ln2Shift     => ("ln_2.bias",           "post_attention_layernorm.bias"),
            Fc1W         => ("mlp.c_fc.weight",     "mlp.dense_h_to_4h.weight"),
            Fc1B         => ("mlp.c_fc.bias",       "mlp.dense_h_to_4h.bias"),
            Fc2W         => ("mlp.c_proj.weight",   "mlp.dense_4h_to_h.weight"),
            Fc2B         => ("mlp.c_proj.bias",     "mlp.dense_4h_to_h.bias"),
            LnfScale     => ("ln_f.weight",         "ln_f.weight"),
            LnfShift     => ("ln_f.bias",           "ln_f.bias"),
            HeadW        => ("lm_head.weight",      "lm_head.weight"),
        };
        let conv = self == Family::Gpt2;
        let theirs = if conv { gpt2 } else { bloom };
        let layer = slot.name.strip_prefix("block.").and_then(|rest| rest.split_once('.'));
        let name = match layer {
            Some((layer, _)) => format!("h.{layer}.{theirs}"),
            None => theirs.to_string(),
        };
        let (outs, ins) = match *shape {
            [outs] => (outs, 1),
            _ => (shape[0], shape[1]),
        };
        let qkv = conv && matches!(slot.spec.weight, QkvW | QkvB);
        let transposed = conv && matches!(slot.spec.weight, QkvW | ProjW | Fc1W | Fc2W);
        let heads = qkv.then_some(heads);
        (!theirs.is_empty()).then_some(Place { name, transposed, heads, outs, ins })
    }
}

impl Place {
    /// The shape of theirs, from ours.
    pub fn shape(&self, ours: &[usize]) -> Vec<usize> {
        if self.transposed { vec![self.ins, self.outs] } else { ours.to_vec() }
    }

    /// Theirs as ours.
    pub fn ours(&self, theirs: &[f32]) -> Vec<f32> {
        (0..theirs.len()).map(|i| theirs[self.index(i)]).collect()
    }

    /// Ours as theirs.
    pub fn theirs(&self, ours: &[f32]) -> Vec<f32> {
        let mut theirs = vec![0.0; ours.len()];
        ours.iter().enumerate().for_each(|(i, value)| theirs[self.index(i)] = *value);
        theirs
    }

    /// Where value `i` of ours is in theirs.
    fn index(&self, i: usize) -> usize {
        let (out, input) = (i / self.ins, i % self.ins);
        let out = match self.heads {
            None => out,
            Some(heads) => {
                let dim = self.outs / 3 / heads;
                out / dim % 3 * (self.outs / 3) + out / (3 * dim) * dim + out % dim
            }
        };
        if self.transposed { input * self.outs + out } else { out * self.ins + input }
    }
}
