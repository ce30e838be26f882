//! Table of the formats, and a step's format by the names in its folder.

use anyhow::Context;
use base::{WrongInput, input};
use std::fs;
use std::path::Path;

/// Folder in an OLMo-core step that has the model and the optimizer.
pub const OLMO_MODEL: &str = "model_and_optim";

/// A trainer's layout of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Gptrain,
    HuggingFace,
    HfTrainer,
    MegatronDeepSpeed,
    DeepSpeedZero3,
    DeepSpeedUniversal,
    MegatronLegacy,
    MegatronDist,
    PytorchDcp,
}

impl Format {
    /// Every format with its name on the command line and its name in messages.
    pub const ALL: [(Format, &'static str, &'static str); 9] = [
        (Format::Gptrain, "gptrain", "gptrain"),
        (Format::HuggingFace, "hf", "Hugging Face"),
        (Format::HfTrainer, "hf-trainer", "Hugging Face's Trainer"),
        (Format::MegatronDeepSpeed, "megatron-deepspeed", "Megatron-DeepSpeed"),
        (Format::DeepSpeedZero3, "deepspeed-zero3", "DeepSpeed ZeRO-3"),
        (Format::DeepSpeedUniversal, "deepspeed-universal", "DeepSpeed universal"),
        (Format::MegatronLegacy, "megatron", "Megatron-LM (legacy)"),
        (Format::MegatronDist, "megatron-dist", "Megatron-Core torch_dist"),
        (Format::PytorchDcp, "dcp", "PyTorch distributed checkpoint"),
    ];

    fn row(self) -> (Format, &'static str, &'static str) {
        let row = Format::ALL.into_iter().find(|(format, ..)| *format == self);
        row.expect("every format has a row")
    }

    /// The word of `--format`.
    pub fn word(self) -> &'static str {
        self.row().1
    }

    pub fn name(self) -> &'static str {
        self.row().2
    }
}

/// Format of a step's folder by the names in it; None if they are of none, or of several steps.
pub fn by_names(from: &Path, names: &[String]) -> Option<Format> {
    let has = |name: &str| names.iter().any(|found| found == name);
    let any = |test: &dyn Fn(&str) -> bool| names.iter().any(|name| test(name));
    // OLMo-core keeps the checkpoint in a subfolder, and its config.json beside that.
    if has(OLMO_MODEL) {
        return Some(Format::PytorchDcp);
    }
    if has("config.json") {
        let states = has("optimizer.pt") && has("trainer_state.json");
        return Some(if states { Format::HfTrainer } else { Format::HuggingFace });
    }
    if has(".metadata") || has("metadata.json") {
        let megatron = has("metadata.json") || has("common.pt");
        return Some(if megatron { Format::MegatronDist } else { Format::PytorchDcp });
    }
    if has("zero") && any(&|name| name.starts_with("mp_rank_")) {
        return Some(Format::DeepSpeedUniversal);
    }
    if any(&|name| name.starts_with("zero_pp_rank_") && name.ends_with("_model_states.pt")) {
        return Some(Format::DeepSpeedZero3);
    }
    if any(&|name: &str| name.ends_with("_optim_states.pt"))
        || any(&|name| name.starts_with("layer_") && name.ends_with("-model_states.pt"))
    {
        return Some(Format::MegatronDeepSpeed);
    }
    if any(&|name: &str| name.starts_with("mp_rank_") && from.join(name).is_dir()) {
        return Some(Format::MegatronLegacy);
    }
    None
}

/// Names of the files and folders in a folder.
pub fn list_names(from: &Path) -> anyhow::Result<Vec<String>> {
    let failed = || format!("cannot list {}", from.display());
    let entries = fs::read_dir(from).map_err(|error| WrongInput::reading(error, failed()))?;
    input::names(entries).with_context(failed)
}
