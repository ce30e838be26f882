//! Trainers' names of a Llama's tensors, and the rows of ours that each holds.

use super::super::Choices;
use super::{DcpRun, olmo, titan};
use crate::tensor_part::{Fused, Pairs, TensorPart, gates_values, layer_of, queries_keys_values};
use base::Heads;
use manifest::dialects::Dialect;
use model::{Param, Weight};
use std::path::Path;

/// A parameter, and the names of its tensors without block number and `.weight`: one list for each layout
/// that the trainer has had. Weights and moments of one checkpoint may have different layouts.
type Row = (Weight, &'static [&'static [&'static str]]);

/// A trainer's names.
pub struct Names {
    pub trainer: &'static str,
    /// Before all names of the model: one of these.
    pub prefixes: &'static [&'static str],
    /// Before a block's number.
    pub blocks: &'static str,
    rows: &'static [Row],
    /// Before the optimizer's names.
    pub optimizer: &'static str,
    /// Whether the optimizer's names have the prefix of the model's.
    pub prefixed: bool,
    /// Parts of the checkpoint that are not the model.
    pub others: &'static [&'static str],
    /// Order of the columns of a head.
    pub pairs: Pairs,
    /// Reads step, settings and notes, in the folder of a step.
    pub describe: fn(&mut DcpRun, &Path, &Choices) -> anyhow::Result<()>,
    /// Names of settings.
    pub dialect: Dialect,
}

#[rustfmt::skip]
pub static TITAN: Names = {
    use Weight::*;
    Names {
        trainer: "torchtitan",
        prefixes: &["", "model."],
        blocks: "layers.",
        rows: &[
            (TokenEmbed, &[&["tok_embeddings"]]),
            (Ln1Scale, &[&["attention_norm"]]),
            // Since 2026-06 the moments are those of one matrix, and the weights are saved as three.
            (QkvW, &[&["attention.wq", "attention.wk", "attention.wv"],
                &["attention.qkv_linear.wq", "attention.qkv_linear.wk", "attention.qkv_linear.wv"],
                &["attention.qkv_linear.wqkv"]]),
            (ProjW, &[&["attention.wo"]]),
            (Ln2Scale, &[&["ffn_norm"]]),
            (Fc1W, &[&["feed_forward.w1", "feed_forward.w3"]]),
            (Fc2W, &[&["feed_forward.w2"]]),
            (LnfScale, &[&["norm"]]),
            (HeadW, &[&["output"], &["lm_head"]]),
        ],
        optimizer: "optimizer.",
        prefixed: true,
        others: &["optimizer.", "lr_scheduler.", "train_state.", "dataloader."],
        pairs: Pairs::Neighbours,
        describe: titan::describe,
        dialect: Dialect::Torchtitan,
    }
};

#[rustfmt::skip]
pub static OLMO: Names = {
    use Weight::*;
    Names {
        trainer: "OLMo-core",
        prefixes: &["model."],
        blocks: "blocks.",
        rows: &[
            (TokenEmbed, &[&["embeddings"]]),
            (Ln1Scale, &[&["attention_norm"]]),
            (QkvW, &[&["attention.w_q", "attention.w_k", "attention.w_v"]]),
            (QNorm, &[&["attention.q_norm"]]),
            (KNorm, &[&["attention.k_norm"]]),
            (ProjW, &[&["attention.w_out"]]),
            (Ln2Scale, &[&["feed_forward_norm"]]),
            (Fc1W, &[&["feed_forward.w1", "feed_forward.w3"]]),
            (Fc2W, &[&["feed_forward.w2"]]),
            (LnfScale, &[&["lm_head.norm"]]),
            (HeadW, &[&["lm_head.w_out"]]),
        ],
        optimizer: "optim.",
        prefixed: false,
        others: &["optim."],
        pairs: Pairs::Halves,
        describe: olmo::describe,
        dialect: Dialect::OlmoCore,
    }
};

impl Names {
    fn row(&self, weight: Weight) -> Option<&Row> {
        self.rows.iter().find(|(row, ..)| *row == weight)
    }

    /// Tensors that make up a parameter, under the names that `has` finds; none if the trainer's Llama
    /// has no such parameter.
    pub fn tensors_of(
        &self,
        param: &Param,
        shape: &[usize],
        (heads, pairs): (Heads, Pairs),
        has: &dyn Fn(&str) -> bool,
    ) -> Vec<(String, TensorPart)> {
        let rows = shape[0];
        let cols = shape.get(1).copied().unwrap_or(1);
        let layer = layer_of(param);
        let before = layer.map_or(String::new(), |layer| format!("{}{layer}.", self.blocks));
        let full = |name: &&str| format!("{before}{name}.weight");
        let Some((_, layouts)) = self.row(param.spec.weight) else { return Vec::new() };
        let names = layouts
            .iter()
            .find(|names| has(&full(&names[0])))
            .unwrap_or(&layouts[0]);
        let from_rows = |rows| TensorPart::from_rows(rows, cols);
        let cuts: Vec<TensorPart> = match (param.spec.weight, names.len()) {
            (Weight::QkvW, 1) => {
                vec![TensorPart::for_fused(heads, cols, [0, 1], Fused::Heads(pairs))]
            }
            (Weight::QkvW, _) => queries_keys_values(heads, pairs).map(from_rows).to_vec(),
            (Weight::Fc1W, _) => gates_values(0..rows).map(from_rows).to_vec(),
            _ => vec![from_rows((0..rows).collect())],
        };
        names.iter().map(full).zip(cuts).collect()
    }

    /// Number of layers by the names.
    pub fn layers<'n>(&self, names: impl Iterator<Item = &'n str>) -> usize {
        names
            .filter_map(|name: &str| {
                name.strip_prefix(self.blocks)?
                    .split('.')
                    .next()?
                    .parse()
                    .ok()
            })
            .max()
            .map_or(0, |last: usize| last.saturating_add(1))
    }

    /// Possible names of tensor `part` of a parameter, in the first block if it belongs to a block.
    pub fn all(&self, weight: Weight, part: usize) -> Vec<String> {
        use Weight::{HeadW, LnfScale, TokenEmbed};
        let outside = matches!(weight, TokenEmbed | LnfScale | HeadW);
        let before = if outside { String::new() } else { format!("{}0.", self.blocks) };
        let layouts = self
            .row(weight)
            .into_iter()
            .flat_map(|(_, layouts)| *layouts);
        let names = layouts
            .filter(|names| names.len() > part)
            .map(|names| names[part]);
        names.map(|name| format!("{before}{name}.weight")).collect()
    }
}
