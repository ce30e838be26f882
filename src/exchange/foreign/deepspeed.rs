//! Folders of DeepSpeed: `zero1`, the partitions of Megatron-DeepSpeed with ZeRO-1 (BLOOM's), `zero3`, and
//! `universal`, which its converter writes.

mod files;
pub mod layers;
mod optimizer;
pub mod universal;
pub mod zero1;
pub mod zero3;

use super::super::torch::Value;
use super::arguments::Arguments;
use std::ops::Range;

/// The order of samples.
const RULE: &str = "megatron-deepspeed";

/// Names and shapes of a group's parameters, in their order.
type FlatGroup = Vec<(String, Vec<usize>)>;

/// An error about options that this trainer's folders are not read with.
fn refuse(args: &Arguments) -> anyhow::Result<()> {
    args.refuse(&[
        ("swiglu", "SwiGLU in this folder is not read yet"),
        ("add_position_embedding_type", "this position embedding is not one of gptrain's"),
        ("use_rotary_position_embeddings", "rotary positions in this folder are not read yet"),
    ])
}

/// Version of DeepSpeed that wrote the folder.
fn deepspeed_version<'a>(root: &Value<'a>) -> &'a str {
    let version = root
        .some("ds_version")
        .and_then(|version| version.str().ok());
    version.unwrap_or("of an unknown version")
}

fn version_of(root: &Value) -> f64 {
    root.some("checkpoint_version")
        .and_then(|version| version.float().ok())
        .unwrap_or(3.0)
}

/// Names and shapes of the groups that a file's rank has, in their order.
fn groups(root: &Value) -> anyhow::Result<Vec<FlatGroup>> {
    let mut groups = Vec::new();
    for group in root.need("param_shapes")?.items()? {
        let mut params = FlatGroup::new();
        for (name, sizes) in group.named()? {
            let mut shape = Vec::new();
            for size in sizes.items()? {
                shape.push(size.count()? as usize);
            }
            params.push((name.to_string(), shape));
        }
        groups.push(params);
    }
    Ok(groups)
}

/// Group of a parameter, and its range in the flat group; `len` gives the elements of each parameter there.
fn find_in(
    groups: &[FlatGroup],
    name: &str,
    len: impl Fn(&[usize]) -> usize,
) -> Option<(usize, Range<usize>)> {
    for (group, params) in groups.iter().enumerate() {
        let mut first = 0;
        for (found, shape) in params {
            let end = first + len(shape);
            if found == name {
                return Some((group, first..end));
            }
            first = end;
        }
    }
    None
}
