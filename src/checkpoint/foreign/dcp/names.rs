//! torchtitan's names of a Llama's tensors, and the rows of ours that each holds.

use super::super::cut::{Cut, Pairs, gates_values, queries_keys_values};
use super::super::layer_of;
use base::Heads;
use model::{Param, Weight};

/// Names, without `layers.N.` and `.weight`: those of 2024 on, then those that replaced them.
#[rustfmt::skip]
const NAMES: &[(Weight, &[&str], &[&str])] = {
    use Weight::*;
    &[
        (TokenEmbed, &["tok_embeddings"], &[]),
        (Ln1Scale, &["attention_norm"], &[]),
        (QkvW, &["attention.wq", "attention.wk", "attention.wv"],
            &["attention.qkv_linear.wq", "attention.qkv_linear.wk", "attention.qkv_linear.wv"]),
        (ProjW, &["attention.wo"], &[]),
        (Ln2Scale, &["ffn_norm"], &[]),
        (Fc1W, &["feed_forward.w1", "feed_forward.w3"], &[]),
        (Fc2W, &["feed_forward.w2"], &[]),
        (LnfScale, &["norm"], &[]),
        (HeadW, &["output"], &["lm_head"]),
    ]
};

/// Tensors that a parameter is made of, under the names that `has` finds; none if a Llama of
/// torchtitan has no such parameter.
pub fn tensors_of(
    param: &Param,
    shape: &[usize],
    heads: Heads,
    has: &dyn Fn(&str) -> bool,
) -> Vec<(String, Cut)> {
    let (rows, cols) = (shape[0], shape.get(1).copied().unwrap_or(1));
    let parts = match param.spec.weight {
        Weight::QkvW => queries_keys_values(heads, Pairs::Neighbours).to_vec(),
        Weight::Fc1W => gates_values(0..rows).to_vec(),
        _ => vec![(0..rows).collect()],
    };
    let before = layer_of(param).map_or(String::new(), |layer| format!("layers.{layer}."));
    let full = |name: &&str| format!("{before}{name}.weight");
    let row = NAMES.iter().find(|(weight, ..)| *weight == param.spec.weight);
    let Some((_, first, later)) = row else { return Vec::new() };
    let newer = later.first().is_some_and(|name| has(&full(name)));
    let names = if newer { later } else { first };
    names.iter().map(full).zip(parts.into_iter().map(|rows| Cut::of_rows(rows, cols))).collect()
}

/// Number of layers by the names.
pub fn layers<'n>(names: impl Iterator<Item = &'n str>) -> usize {
    let number = |name: &str| name.strip_prefix("layers.")?.split('.').next()?.parse().ok();
    names.filter_map(number).max().map_or(0, |last: usize| last.saturating_add(1))
}

/// The first of these tensors of a layer that is there.
pub fn of_layer(weight: Weight, part: usize, layer: usize) -> Vec<String> {
    let row = NAMES.iter().find(|(row, ..)| *row == weight);
    let lists = row.into_iter().flat_map(|(_, first, later)| [*first, *later]);
    let names = lists.filter_map(|names| names.get(part));
    names.map(|name| format!("layers.{layer}.{name}.weight")).collect()
}
