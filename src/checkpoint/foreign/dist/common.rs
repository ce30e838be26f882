//! The part of the checkpoint that all ranks share: arguments, iteration, the optimizer's groups.

use super::super::super::torch::{TorchFile, Value};
use super::super::LossScale;
use super::super::dcp::metadata::Metadata;
use super::super::megatron::states::{groups, loss_scale, rate, updates_of};
use base::Problems;
use std::path::Path;

/// Objects of the common state since Megatron-Core 0.19, and of the first rank's optimizer if its states
/// are in buffers.
const COMMON: &str = "common_state/shard_0_1";

pub struct Common {
    file: TorchFile,
}

impl Common {
    /// `common.pt`, or the object of newer versions.
    pub fn read(dir: &Path, meta: &Metadata) -> anyhow::Result<Common> {
        let path = dir.join("common.pt");
        if path.exists() {
            return Ok(Common { file: TorchFile::open(&path)? });
        }
        match meta.object(COMMON)? {
            Some(file) => Ok(Common { file }),
            None => {
                let what = format!("has neither common.pt nor, in .metadata, {COMMON}");
                let place = dir.display().to_string();
                Err(Problems::one(place, what, "copy the folder of the step whole").into())
            }
        }
    }

    /// The state: the outermost value, or the only item of a list.
    pub fn root(&self) -> anyhow::Result<Value<'_>> {
        let root = self.file.root();
        match root.items() {
            Err(_) => Ok(root),
            Ok(list) => match list.as_slice() {
                [one] => Ok(one.clone()),
                list => Err(root.problem(format!("{COMMON} is a list of {}", list.len()))),
            },
        }
    }

    /// The file's name in messages.
    pub fn place(&self) -> String {
        self.file.place().to_string()
    }

    fn outer(&self) -> anyhow::Result<Option<Value<'_>>> {
        Ok(self.root()?.some("optimizer"))
    }

    /// PyTorch's part of the optimizer: inside of Megatron's, or by itself.
    fn inner(&self) -> anyhow::Result<Option<Value<'_>>> {
        Ok(self.outer()?.map(|outer| outer.some("optimizer").unwrap_or(outer)))
    }

    /// Layout of the distributed optimizer's states, by its own name.
    pub fn sharding(&self) -> Option<&str> {
        self.outer().ok()??.some("param_state_sharding_type")?.str().ok()
    }

    /// Adam's count: in the groups, or one for all parameters.
    pub fn updates(&self) -> anyhow::Result<Option<u64>> {
        let root = self.root()?;
        let state = self.inner()?.and_then(|inner| inner.some("state"));
        updates_of(&self.file, &groups(&root)?, state.as_ref())
    }

    /// The rate of the last update.
    pub fn rate(&self) -> anyhow::Result<Option<f64>> {
        Ok(rate(&groups(&self.root()?)?))
    }

    pub fn loss_scale(&self) -> anyhow::Result<Option<LossScale>> {
        loss_scale(&self.file, &self.root()?)
    }
}
