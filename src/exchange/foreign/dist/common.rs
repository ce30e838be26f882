//! The part of the checkpoint that all ranks share: arguments, iteration, the optimizer's groups.

use super::super::super::torch::{TorchFile, Value};
use super::super::dcp::metadata::Metadata;
use super::super::incomplete;
use std::path::Path;

/// Objects of the common state since Megatron-Core 0.19, and of the first rank's optimizer if its states
/// are in buffers.
const COMMON: &str = "common_state/shard_0_1";

/// Opens `common.pt`, or the object of newer versions.
pub fn open_common(dir: &Path, meta: &Metadata) -> anyhow::Result<TorchFile> {
    let path = dir.join("common.pt");
    if path.exists() {
        return TorchFile::open(&path);
    }
    meta.object(COMMON)?.ok_or_else(|| {
        incomplete(dir, format!("has neither common.pt nor, in .metadata, {COMMON}"))
    })
}

/// The state: the outermost value, or the only item of a list.
pub fn common_root(file: &TorchFile) -> anyhow::Result<Value<'_>> {
    let root = file.root();
    match root.items() {
        Err(_) => Ok(root),
        Ok(list) => match list.as_slice() {
            [one] => Ok(one.clone()),
            list => Err(root.problem(format!("{COMMON} is a list of {}", list.len()))),
        },
    }
}
