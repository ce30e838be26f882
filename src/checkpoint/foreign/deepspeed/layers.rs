//! Names of parameters in Megatron-DeepSpeed's pipeline, whose layers are numbered: blocks after the
//! embedding, and the final norm by itself at the end.

use super::super::layer_of;
use model::{Param, Weight};

/// The name of the tied embedding in the optimizer's maps.
pub const EMBEDDING: &str = "tied_modules.embed.word_embeddings.weight";

/// The first block's number in BLOOM's pipeline: a cast, the embedding and a transposition come before it.
const FIRST_BLOCK: usize = 3;

/// The smallest layer that has an input norm: the first block's number.
pub fn first_block<'n>(names: impl Iterator<Item = &'n str>) -> Option<usize> {
    let block = |name: &str| name.strip_suffix(".input_layernorm.weight")?.parse().ok();
    names.filter_map(block).min()
}

/// The name of a parameter of a model of so many layers, as BLOOM's pipeline numbers them.
pub fn pipe_name(param: &Param, layers: usize) -> Option<String> {
    let last = ["weight", "bias"].map(|kind| format!("{}.{kind}", layers + FIRST_BLOCK + 1));
    name_of(param, FIRST_BLOCK, last.iter().map(String::as_str))
}

/// The name of a parameter, among those that are there.
pub fn name_of<'n>(
    param: &Param,
    first_block: usize,
    mut names: impl Iterator<Item = &'n str>,
) -> Option<String> {
    use Weight::*;
    let of_block = |name: &str| Some(format!("{}.{name}", layer_of(param)? + first_block));
    let mut last = |kind: &str| {
        // The final norm: the one layer whose parameters have no other name.
        let is_norm = |name: &&str| {
            name.strip_suffix(kind).is_some_and(|layer| layer.parse::<usize>().is_ok())
        };
        names.find(is_norm).map(str::to_string)
    };
    match param.spec.weight {
        TokenEmbed => Some(EMBEDDING.to_string()),
        PosEmbed => Some("tied_modules.embed.position_embeddings.weight".to_string()),
        EmbedLnScale => Some("tied_modules.embed.word_embeddings.norm.weight".to_string()),
        EmbedLnShift => Some("tied_modules.embed.word_embeddings.norm.bias".to_string()),
        Ln1Scale => of_block("input_layernorm.weight"),
        Ln1Shift => of_block("input_layernorm.bias"),
        QkvW => of_block("self_attention.query_key_value.weight"),
        QkvB => of_block("self_attention.query_key_value.bias"),
        ProjW => of_block("self_attention.dense.weight"),
        ProjB => of_block("self_attention.dense.bias"),
        Ln2Scale => of_block("post_attention_layernorm.weight"),
        Ln2Shift => of_block("post_attention_layernorm.bias"),
        Fc1W => of_block("mlp.dense_h_to_4h.weight"),
        Fc1B => of_block("mlp.dense_h_to_4h.bias"),
        Fc2W => of_block("mlp.dense_4h_to_h.weight"),
        Fc2B => of_block("mlp.dense_4h_to_h.bias"),
        LnfScale => last(".weight"),
        LnfShift => last(".bias"),
        HeadW | QNorm | KNorm => None,
    }
}
