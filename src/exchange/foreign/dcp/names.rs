//! Trainers' names of a Llama's tensors, and the rows of ours that each holds.

use super::super::run::Piece;
use super::super::{AdamState, Choices};
use super::{DcpFolder, olmo, titan};
use crate::tensor_part::{Pairs, ParamKey};
use manifest::dialects::Dialect;
use model::Weight;
use std::collections::BTreeSet;
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
    pub describe: fn(&mut DcpFolder, &Path, &Choices) -> anyhow::Result<()>,
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
            (QNorm, &[&["attention.q_norm"]]),
            (KNorm, &[&["attention.k_norm"]]),
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

/// torchtitan's backend of transformers' models: Llama, Mistral, Qwen3.
#[rustfmt::skip]
pub static TRANSFORMERS: Names = {
    use Weight::*;
    Names {
        trainer: "torchtitan with transformers' models",
        prefixes: &["model.", ""],
        blocks: "model.layers.",
        rows: &[
            (TokenEmbed, &[&["model.embed_tokens"]]),
            (Ln1Scale, &[&["input_layernorm"]]),
            (QkvW, &[&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]]),
            (QNorm, &[&["self_attn.q_norm"]]),
            (KNorm, &[&["self_attn.k_norm"]]),
            (ProjW, &[&["self_attn.o_proj"]]),
            (Ln2Scale, &[&["post_attention_layernorm"]]),
            (Fc1W, &[&["mlp.gate_proj", "mlp.up_proj"]]),
            (Fc2W, &[&["mlp.down_proj"]]),
            (LnfScale, &[&["model.norm"]]),
            (HeadW, &[&["lm_head"]]),
        ],
        pairs: Pairs::Halves,
        ..TITAN
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

    /// Parameters of a model with these blocks.
    pub fn params(&self, layers: &BTreeSet<usize>) -> Vec<ParamKey> {
        let mut params = Vec::new();
        for (weight, _) in self.rows {
            if is_outside(*weight) {
                params.push((*weight, None));
            } else {
                params.extend(layers.iter().map(|layer| (*weight, Some(*layer))));
            }
        }
        params
    }

    /// Names of a parameter's tensors without prefix, in the layout of which the folder has the first one,
    /// and the piece that each holds. Empty if there is no such layout.
    pub fn tensors(
        &self,
        (weight, layer): ParamKey,
        has: impl Fn(&str) -> bool,
    ) -> Vec<(String, Piece)> {
        let before = layer.map_or(String::new(), |layer| format!("{}{layer}.", self.blocks));
        let full = |name: &str| format!("{before}{name}.weight");
        let layouts = self
            .row(weight)
            .into_iter()
            .flat_map(|(_, layouts)| *layouts);
        let Some(names) = layouts.into_iter().find(|names| has(&full(names[0]))) else {
            return Vec::new();
        };
        let mut tensors = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let piece = match (weight, names.len()) {
                (Weight::QkvW, 3) => Piece::Kind(number),
                (Weight::Fc1W, 2) => Piece::Half(number),
                _ => Piece::All,
            };
            tensors.push((full(name), piece));
        }
        tensors
    }

    /// Name of a state of the model's tensor `name`, which has the prefix.
    pub fn key(&self, prefix: &str, name: &str, state: AdamState) -> String {
        if state == AdamState::Master {
            return name.to_string();
        }
        let own = if self.prefixed { name } else { &name[prefix.len()..] };
        format!("{}state.{own}.{}", self.optimizer, state.key(""))
    }

    /// Number of the block that a tensor without prefix belongs to.
    pub fn layer(&self, name: &str) -> Option<usize> {
        name.strip_prefix(self.blocks)?
            .split('.')
            .next()?
            .parse()
            .ok()
    }

    /// Possible names of tensor `part` of a parameter, in the first block if it belongs to a block.
    pub fn all(&self, weight: Weight, part: usize) -> Vec<String> {
        let before = if is_outside(weight) { String::new() } else { format!("{}0.", self.blocks) };
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

/// Whether a Llama has a weight outside of its blocks.
fn is_outside(weight: Weight) -> bool {
    matches!(weight, Weight::TokenEmbed | Weight::LnfScale | Weight::HeadW)
}
