//! Names and layouts of the weights in each family's files.

use crate::base::{Heads, Qkv};
use crate::manifest::Family;
use crate::model::{Param, Weight};

/// A weight as a family stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfTensor {
    /// Without the leading `transformer.`; `lm_head.weight` has none.
    pub name: String,
    /// Stored [in, out].
    transposed: bool,
    /// Of the fused rows of attention, where the family stores all queries, all keys, all values:
    /// the family's row of each of ours.
    rows: Option<Vec<usize>>,
    /// Of our matrix [outs, ins]; a bias is [outs, 1], laid out like the rows of its weight.
    outs: usize,
    ins: usize,
}

/// The family's tensor of a weight of ours; None if it has no such weight. `shape` is that of a
/// checkpoint: without the rows that pad the vocabulary.
pub fn tensor_of(family: Family, param: &Param, shape: &[usize], heads: Heads) -> Option<HfTensor> {
    use Weight::*;
    #[rustfmt::skip]
    let (gpt2, bloom) = match param.spec.weight {
        PosEmbed     => ("wpe.weight",          ""),
        TokenEmbed   => ("wte.weight",          "word_embeddings.weight"),
        EmbedLnScale => ("",                    "word_embeddings_layernorm.weight"),
        EmbedLnShift => ("",                    "word_embeddings_layernorm.bias"),
        Ln1Scale     => ("ln_1.weight",         "input_layernorm.weight"),
        Ln1Shift     => ("ln_1.bias",           "input_layernorm.bias"),
        QkvW         => ("attn.c_attn.weight",  "self_attention.query_key_value.weight"),
        QkvB         => ("attn.c_attn.bias",    "self_attention.query_key_value.bias"),
        QNorm | KNorm => ("",                   ""),
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
    let conv = family == Family::Gpt2;
    let theirs = if conv { gpt2 } else { bloom };
    let layer = param.name.strip_prefix("block.").and_then(|rest| rest.split_once('.'));
    let name = match layer {
        Some((layer, _)) => format!("h.{layer}.{theirs}"),
        None => theirs.to_string(),
    };
    let (outs, ins) = match *shape {
        [outs] => (outs, 1),
        _ => (shape[0], shape[1]),
    };
    let qkv = conv && matches!(param.spec.weight, QkvW | QkvB);
    let transposed = conv && matches!(param.spec.weight, QkvW | ProjW | Fc1W | Fc2W);
    let rows = qkv.then(|| apart(heads));
    (!theirs.is_empty()).then_some(HfTensor { name, transposed, rows, outs, ins })
}

impl HfTensor {
    /// Shape of the family's tensor, from our shape.
    pub fn shape(&self, ours: &[usize]) -> Vec<usize> {
        if self.transposed { vec![self.ins, self.outs] } else { ours.to_vec() }
    }

    /// The family's values in our order.
    pub fn ours(&self, theirs: &[f32]) -> Vec<f32> {
        (0..theirs.len()).map(|i| theirs[self.index(i)]).collect()
    }

    /// Our values in the family's order.
    pub fn theirs(&self, ours: &[f32]) -> Vec<f32> {
        let mut theirs = vec![0.0; ours.len()];
        ours.iter().enumerate().for_each(|(i, value)| theirs[self.index(i)] = *value);
        theirs
    }

    /// Index in the family's tensor of our value `i`.
    fn index(&self, i: usize) -> usize {
        let (out, input) = (i / self.ins, i % self.ins);
        let out = self.rows.as_ref().map_or(out, |rows| rows[out]);
        if self.transposed { input * self.outs + out } else { out * self.ins + input }
    }
}

/// For each of our fused rows, its number among all queries, then all keys, then all values.
fn apart(heads: Heads) -> Vec<usize> {
    let serves = heads.query / heads.kv;
    let starts = [(Qkv::Query, 1), (Qkv::Key, serves), (Qkv::Value, serves)]
        .into_iter()
        .flat_map(|(which, step)| (0..heads.query).step_by(step).map(move |head| (head, which)))
        .map(|(head, which)| heads.column(head, which));
    let mut rows = vec![0; heads.qkv_width()];
    for (theirs, ours) in starts.flat_map(|start| start..start + heads.dim).enumerate() {
        rows[ours] = theirs;
    }
    rows
}
