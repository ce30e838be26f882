//! Names of parameters in Megatron-DeepSpeed's pipeline, whose layers are numbered: blocks after the
//! embedding, and the final norm by itself at the end.

use super::super::megatron::names::{first_name, weight_of_first};
use super::super::run::{ParamTable, Source, Stored};
use crate::tensor_part::{ParamKey, layer_of};
use model::{Param, Weight};

/// The name of the tied embedding in the optimizer's maps.
pub const EMBEDDING: &str = "tied_modules.embed.word_embeddings.weight";

/// The module of the embedding in Megatron-LM's names, and in those of the pipeline.
const EMBED: [&str; 2] = ["embedding.", "tied_modules.embed."];

/// The first block's number in BLOOM's pipeline: a cast, the embedding and a transposition come before it.
const FIRST_BLOCK: usize = 3;

/// The smallest layer that has an input norm: the first block's number.
pub fn first_block<'n>(names: impl Iterator<Item = &'n str>) -> Option<usize> {
    names
        .filter_map(|name| name.strip_suffix(".input_layernorm.weight")?.parse().ok())
        .min()
}

/// The name of a parameter of a model of so many layers, as BLOOM's pipeline numbers them.
pub fn pipe_name(param: &Param, layers: usize) -> Option<String> {
    let norm = layers + FIRST_BLOCK + 1;
    match param.spec.weight {
        Weight::LnfScale => Some(format!("{norm}.weight")),
        Weight::LnfShift => Some(format!("{norm}.bias")),
        _ => name_of(param, FIRST_BLOCK),
    }
}

/// The name of a parameter; None of the final norm, whose number is not that of a block.
pub fn name_of(param: &Param, first_block: usize) -> Option<String> {
    use Weight::*;
    if matches!(param.spec.weight, LnfScale | LnfShift | HeadW | QNorm | KNorm) {
        return None;
    }
    let layer = layer_of(param);
    let name = first_name(param.spec.weight, layer.is_some())?;
    Some(match layer {
        Some(layer) => format!("{}.{name}", layer + first_block),
        None => name.replacen(EMBED[0], EMBED[1], 1),
    })
}

/// Parameter with this name.
fn known(name: &str, first_block: usize) -> Option<ParamKey> {
    if let Some(rest) = name.strip_prefix(EMBED[1]) {
        return Some((weight_of_first(&format!("{}{rest}", EMBED[0]), false)?, None));
    }
    let (number, rest) = name.split_once('.')?;
    let number: usize = number.parse().ok()?;
    // The final norm: the one layer whose parameters have no other name.
    match rest {
        "weight" => Some((Weight::LnfScale, None)),
        "bias" => Some((Weight::LnfShift, None)),
        _ => Some((weight_of_first(rest, true)?, Some(number.checked_sub(first_block)?))),
    }
}

/// Table of the parameters of all stages, by their names in the pipeline. A copy of the embedding in a later
/// stage becomes the head.
pub fn table<'n>(
    params: impl IntoIterator<Item = (usize, &'n str, &'n [usize])>,
    first_block: usize,
) -> ParamTable {
    let mut table = ParamTable::default();
    for (stage, name, shape) in params {
        let Some(key) = known(name, first_block) else {
            table.unknown.push(name.to_string());
            continue;
        };
        let shape = shape.to_vec();
        let source = Source { name: name.to_string(), shape, stage, ..Source::default() };
        match table.stored.get(&key) {
            None => drop(table.stored.insert(key, vec![Stored::whole(source)])),
            Some(first) if first[0].source.name != source.name => table.unknown.push(source.name),
            Some(_) if source.name == EMBEDDING => {
                table
                    .stored
                    .insert((Weight::HeadW, None), vec![Stored::whole(source)]);
            }
            Some(_) => {}
        }
    }
    table
}
