//! Table of the names and layouts of weights in each family's files, used in both directions.
//!
//! A weight of ours corresponds to one or several tensors of a family: the rows of a fused matrix are
//! separated (queries, keys and values of each key/value head; a gate and a value in turn). GPT-2 also
//! stores its matrices as [in, out].

use super::family::{self, Names};
use crate::tensor_part::{Pairs, TensorPart, gates_values, layer_of, queries_keys_values};
use base::Heads;
use manifest::Family;
use model::{Param, Weight};
use std::borrow::Cow;

/// Tensor of a family, made of rows of one weight of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfTensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// Our row of each of its rows. A bias is a column, as its matrix is rows.
    part: TensorPart,
    /// Whether it is stored as [in, out].
    transposed: bool,
}

/// Tensors of the family that together contain all rows of our weight; empty if the family has no such
/// weight. `shape` is the shape in a checkpoint, without the rows that pad the vocabulary.
pub fn tensors_of(family: Family, param: &Param, shape: &[usize], heads: Heads) -> Vec<HfTensor> {
    use Weight::*;
    let weight = param.spec.weight;
    let conv = family::row(family).names == Names::Gpt2;
    let names = names(family, param);
    let rows = shape[0];
    let cols = shape.get(1).copied().unwrap_or(1);
    let parts = match (weight, names.len()) {
        (QkvW | QkvB, 3) => queries_keys_values(heads, Pairs::Halves).to_vec(),
        (QkvW | QkvB, 1) if conv => vec![queries_keys_values(heads, Pairs::Halves).concat()],
        (_, 2) => gates_values(0..rows).to_vec(),
        _ => vec![(0..rows).collect()],
    };
    let transposed = conv && matches!(weight, QkvW | ProjW | Fc1W | Fc2W);
    names
        .into_iter()
        .zip(parts)
        .map(|(name, rows)| {
            let shape = match (shape.len(), transposed) {
                (1, _) => vec![rows.len()],
                (_, true) => vec![cols, rows.len()],
                (_, false) => vec![rows.len(), cols],
            };
            HfTensor { name, shape, part: TensorPart::from_rows(rows, cols), transposed }
        })
        .collect()
}

/// Names of a weight's tensors in GPT-2, BLOOM and Llama, without prefix, layer and end. The rows of
/// three tensors are queries, keys and values; the rows of two tensors are gates and values.
#[rustfmt::skip]
fn stems(weight: Weight) -> [&'static [&'static str]; 3] {
    use Weight::*;
    match weight {
        PosEmbed                    => [&["wpe"], &[], &[]],
        TokenEmbed                  => [&["wte"], &["word_embeddings"], &["embed_tokens"]],
        EmbedLnScale | EmbedLnShift => [&[], &["word_embeddings_layernorm"], &[]],
        Ln1Scale | Ln1Shift         => [&["ln_1"], &["input_layernorm"], &["input_layernorm"]],
        QkvW | QkvB                 => [&["attn.c_attn"], &["self_attention.query_key_value"],
            &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]],
        QNorm                       => [&[], &[], &["self_attn.q_norm"]],
        KNorm                       => [&[], &[], &["self_attn.k_norm"]],
        ProjW | ProjB =>
            [&["attn.c_proj"], &["self_attention.dense"], &["self_attn.o_proj"]],
        Ln2Scale | Ln2Shift =>
            [&["ln_2"], &["post_attention_layernorm"], &["post_attention_layernorm"]],
        Fc1W | Fc1B =>
            [&["mlp.c_fc"], &["mlp.dense_h_to_4h"], &["mlp.gate_proj", "mlp.up_proj"]],
        Fc2W | Fc2B                 => [&["mlp.c_proj"], &["mlp.dense_4h_to_h"], &["mlp.down_proj"]],
        LnfScale | LnfShift         => [&["ln_f"], &["ln_f"], &["norm"]],
        HeadW                       => [&["lm_head"], &["lm_head"], &["lm_head"]],
    }
}

/// Full names of a weight's tensors; empty if the family has no such weight.
fn names(family: Family, param: &Param) -> Vec<String> {
    use Weight::*;
    let weight = param.spec.weight;
    let bias = [EmbedLnShift, Ln1Shift, QkvB, ProjB, Ln2Shift, Fc1B, Fc2B, LnfShift];
    let kind = if bias.contains(&weight) { "bias" } else { "weight" };
    let hf = family::row(family);
    let before = match (layer_of(param), weight) {
        (_, HeadW) => String::new(),
        (Some(layer), _) => format!("{}{}.{layer}.", hf.prefix, hf.layers),
        (None, _) => hf.prefix.to_string(),
    };
    let stems = stems(weight)[hf.names as usize];
    stems
        .iter()
        .map(|stem| format!("{before}{stem}.{kind}"))
        .collect()
}

impl HfTensor {
    pub fn numel(&self) -> usize {
        self.part.shape().iter().product()
    }

    /// Copies the family's values to their places in our weight.
    pub fn put(&self, theirs: &[f32], ours: &mut [f32]) {
        let [rows, cols] = self.part.shape();
        let theirs: Cow<[f32]> =
            if self.transposed { transposed(theirs, cols, rows).into() } else { theirs.into() };
        self.part.put(([0, 0], [rows, cols]), &theirs, ours, cols);
    }

    /// Copies the rows from row `first` on, of a tensor that is not transposed.
    pub fn put_rows(&self, first: usize, theirs: &[f32], ours: &mut [f32]) {
        let [_, cols] = self.part.shape();
        let rows = theirs.len() / cols.max(1);
        self.part
            .put(([first, 0], [rows, cols]), theirs, ours, cols);
    }

    /// Values of a row; None of a transposed tensor, whose rows are not ours.
    pub fn row_len(&self) -> Option<usize> {
        (!self.transposed).then_some(self.part.shape()[1])
    }

    /// Passes the family's values to `each`, some MiB at a time, of a transposed tensor all.
    pub fn each_block<E>(
        &self,
        ours: &[f32],
        each: &mut dyn FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let [rows, cols] = self.part.shape();
        if self.transposed {
            return each(&transposed(&self.part.take(ours, cols), rows, cols));
        }
        self.part.each_block(ours, cols, each)
    }
}

/// The transpose [cols, rows] of a matrix [rows, cols].
fn transposed(matrix: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    let mut turned = vec![0.0; matrix.len()];
    for (row, values) in matrix.chunks_exact(cols).enumerate() {
        turned[row..]
            .iter_mut()
            .step_by(rows)
            .zip(values)
            .for_each(|(to, value)| *to = *value);
    }
    turned
}
