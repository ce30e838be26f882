//! Megatron-LM's names, before and since Megatron-Core, and the order of the parameters in a file.

use super::super::super::torch::{Node, Value};
use super::super::AdamState;
use crate::tensor_part::ParamKey;
use model::{Param, Weight};

/// Names of a block's parameters without `layers.N.`, in the order of core's modules: those before core, of core, and of core where
/// Transformer Engine joins a norm with the product after it.
#[rustfmt::skip]
const BLOCK: &[(Weight, &[&str])] = {
    use Weight::*;
    &[
        (ProjW, &["self_attention.dense.weight", "self_attention.linear_proj.weight"]),
        (ProjB, &["self_attention.dense.bias", "self_attention.linear_proj.bias"]),
        (Ln1Scale, &["input_layernorm.weight", "input_norm.weight",
            "self_attention.linear_qkv.layer_norm_weight"]),
        (Ln1Shift, &["input_layernorm.bias", "input_norm.bias",
            "self_attention.linear_qkv.layer_norm_bias"]),
        (QkvW, &["self_attention.query_key_value.weight", "self_attention.linear_qkv.weight"]),
        (QkvB, &["self_attention.query_key_value.bias", "self_attention.linear_qkv.bias"]),
        (QNorm, &["self_attention.q_layernorm.weight"]),
        (KNorm, &["self_attention.k_layernorm.weight"]),
        (Ln2Scale, &["post_attention_layernorm.weight", "post_attention_norm.weight",
            "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"]),
        (Ln2Shift, &["post_attention_layernorm.bias", "post_attention_norm.bias",
            "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"]),
        (Fc1W, &["mlp.dense_h_to_4h.weight", "mlp.linear_fc1.weight"]),
        (Fc1B, &["mlp.dense_h_to_4h.bias", "mlp.linear_fc1.bias"]),
        (Fc2W, &["mlp.dense_4h_to_h.weight", "mlp.linear_fc2.weight"]),
        (Fc2B, &["mlp.dense_4h_to_h.bias", "mlp.linear_fc2.bias"]),
    ]
};

/// Names of the parameters outside of the blocks.
#[rustfmt::skip]
const OUTSIDE: &[(Weight, &[&str])] = {
    use Weight::*;
    &[
        (TokenEmbed, &["embedding.word_embeddings.weight"]),
        (EmbedLnScale, &["embedding.word_embeddings.norm.weight"]),
        (EmbedLnShift, &["embedding.word_embeddings.norm.bias"]),
        (PosEmbed, &["embedding.position_embeddings.weight"]),
        (LnfScale, &["encoder.final_layernorm.weight", "encoder.final_norm.weight"]),
        (LnfShift, &["encoder.final_layernorm.bias", "encoder.final_norm.bias"]),
        (HeadW, &["output_layer.weight", "word_embeddings_for_head.weight"]),
    ]
};

/// Place in the order of Megatron-Core's modules where Transformer Engine joins norms with products.
pub fn module_order(weight: Weight) -> Option<usize> {
    BLOCK
        .iter()
        .chain(OUTSIDE)
        .position(|(row, _)| *row == weight)
}

/// Megatron-Core's name of a parameter, the last one of each row; None if it has none.
pub fn core_name(weight: Weight, layer: Option<usize>) -> Option<String> {
    if let Some(layer) = layer {
        let (_, names) = BLOCK.iter().find(|(row, _)| *row == weight)?;
        return Some(format!("decoder.layers.{layer}.{}", names.last()?));
    }
    let (_, names) = OUTSIDE.iter().find(|(row, _)| *row == weight)?;
    Some(names.first()?.replace("encoder.", "decoder."))
}

/// The first of a parameter's names: that before core, without `layers.N.`; None if it has none.
pub fn first_name(weight: Weight, in_block: bool) -> Option<&'static str> {
    let rows = if in_block { BLOCK } else { OUTSIDE };
    rows.iter()
        .find(|(row, _)| *row == weight)?
        .1
        .first()
        .copied()
}

/// The parameter of which a name is the first.
pub fn weight_of_first(name: &str, in_block: bool) -> Option<Weight> {
    let rows = if in_block { BLOCK } else { OUTSIDE };
    rows.iter()
        .find(|(_, names)| names.first() == Some(&name))
        .map(|(weight, _)| *weight)
}

/// A parameter of a file's model.
#[derive(Clone)]
pub struct Entry<'t> {
    /// With dots between the levels.
    pub name: String,
    /// The weight, and the block's number in its chunk.
    pub key: ParamKey,
    pub value: Value<'t>,
}

/// The parameters of a chunk in the order of the file, which is that of the model's modules and
/// of the optimizer; the name of the first that is not known, else.
pub fn entries<'t>(model: &Value<'t>) -> anyhow::Result<Result<Vec<Entry<'t>>, String>> {
    let mut flat = Vec::new();
    flatten(model, "", &mut flat)?;
    let mut entries = Vec::new();
    for (name, value) in flat {
        let buffer = name.ends_with("_extra_state") || name.ends_with("inv_freq");
        if buffer || value.tensor().is_err() {
            continue;
        }
        match known(&name) {
            Some(key) => entries.push(Entry { name, key, value }),
            None => return Ok(Err(name)),
        }
    }
    Ok(Ok(entries))
}

fn flatten<'t>(
    value: &Value<'t>,
    before: &str,
    flat: &mut Vec<(String, Value<'t>)>,
) -> anyhow::Result<()> {
    for (name, child) in value.named()? {
        let full = if before.is_empty() { name.to_string() } else { format!("{before}.{name}") };
        match child.node() {
            Node::Dict(_) if full.split('.').count() < 64 => flatten(&child, &full, flat)?,
            _ => flat.push((full, child)),
        }
    }
    Ok(())
}

/// The parameter of a name, and its block's number in the chunk.
pub fn known(name: &str) -> Option<ParamKey> {
    let name = name.trim_start_matches("module.");
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    // "transformer" until 2022, "decoder" of core.
    let inner = ["encoder.", "transformer.", "decoder."];
    let inner = inner
        .into_iter()
        .find_map(|before| name.strip_prefix(before));
    if let Some((number, rest)) =
        inner.and_then(|rest| rest.strip_prefix("layers.")?.split_once('.'))
    {
        let rest = match rest.strip_prefix("attention.") {
            Some(rest) => format!("self_attention.{rest}"),
            None => rest.to_string(),
        };
        let row = BLOCK
            .iter()
            .find(|(_, names)| names.contains(&rest.as_str()))?;
        return Some((row.0, Some(number.parse().ok()?)));
    }
    let name = inner.map_or(name.to_string(), |rest| format!("encoder.{rest}"));
    let row = OUTSIDE
        .iter()
        .find(|(_, names)| names.contains(&name.as_str()))?;
    Some((row.0, None))
}

/// Layers that a tensor of a distributed checkpoint is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// None: it is outside of the blocks.
    Outside,
    /// All, on a leading axis.
    All,
    One(usize),
}

/// The parameter of a name in a distributed checkpoint, whose numbers are those of the whole model. The
/// number is that of a half of SwiGLU's first matrix, if the halves are two tensors: gates 0, values 1.
pub fn dist_name(name: &str) -> Option<(Weight, Layers, Option<usize>)> {
    let half = [("_w", 0), ("_v", 1)].into_iter();
    let half = half
        .filter_map(|(end, half)| Some((name.strip_suffix(end)?, half)))
        .next();
    let (name, half) = half.map_or((name, None), |(name, half)| (name, Some(half)));
    let Some(rest) = name.strip_prefix("decoder.layers.") else {
        let (weight, _) = known(name)?;
        return Some((weight, Layers::Outside, half));
    };
    let one = rest
        .split_once('.')
        .and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
    let (layers, rest) = one.map_or((Layers::All, rest), |(n, rest)| (Layers::One(n), rest));
    let row = BLOCK.iter().find(|(_, names)| names.contains(&rest))?;
    Some((row.0, layers, half))
}

/// Restores the scale of a norm, which `apply_layernorm_1p` stores less one.
pub fn add_one(param: &Param, state: AdamState, values: &mut [f32]) {
    use Weight::*;
    let is_scale = matches!(param.spec.weight, Ln1Scale | Ln2Scale | LnfScale | QNorm | KNorm);
    if is_scale && state == AdamState::Master {
        values.iter_mut().for_each(|value| *value += 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_age_are_known() {
        for (name, weight, layer) in [
            ("language_model.transformer.layers.3.attention.dense.bias", Weight::ProjB, Some(3)),
            ("language_model.encoder.layers.0.input_norm.weight", Weight::Ln1Scale, Some(0)),
            ("decoder.layers.11.mlp.linear_fc1.layer_norm_weight", Weight::Ln2Scale, Some(11)),
            ("decoder.final_layernorm.weight", Weight::LnfScale, None),
            ("language_model.output_layer.weight", Weight::HeadW, None),
            ("word_embeddings_for_head.weight", Weight::HeadW, None),
        ] {
            assert_eq!(known(name), Some((weight, layer)), "{name}");
        }
        for (number, (weight, _)) in BLOCK.iter().chain(OUTSIDE).enumerate() {
            let layer = (number < BLOCK.len()).then_some(5);
            assert_eq!(known(&core_name(*weight, layer).unwrap()), Some((*weight, layer)));
        }
        for (name, found) in [
            ("decoder.layers.mlp.linear_fc1.weight", (Weight::Fc1W, Layers::All, None)),
            ("decoder.layers.7.mlp.linear_fc1.weight_v", (Weight::Fc1W, Layers::One(7), Some(1))),
            (
                "decoder.layers.7.self_attention.linear_qkv.weight",
                (Weight::QkvW, Layers::One(7), None),
            ),
            ("output_layer.weight", (Weight::HeadW, Layers::Outside, None)),
        ] {
            assert_eq!(dist_name(name), Some(found), "{name}");
        }
        assert_eq!(dist_name("decoder.layers.7.mlp.router.weight"), None);
        assert_eq!(known("decoder.layers.0.mlp.router.weight"), None);
        assert_eq!(known("language_model.pooler.dense.weight"), None);
    }
}
