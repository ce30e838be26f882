//! Detects which trainer wrote a folder, by the names of its files.

use anyhow::Context;
use base::{Problems, WrongInput, input};
use std::fs;
use std::path::{Path, PathBuf};

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

/// Finds out what a folder is; the error lists what was looked for.
pub fn detect(from: &Path) -> anyhow::Result<Format> {
    let names = list_names(from)?;
    let has = |name: &str| names.iter().any(|found| found == name);
    let any = |test: &dyn Fn(&str) -> bool| names.iter().any(|name| test(name));
    // OLMo-core keeps the checkpoint in a subfolder, and its config.json beside that.
    if has(OLMO_MODEL) {
        return Ok(Format::PytorchDcp);
    }
    if has("config.json") {
        let states = has("optimizer.pt") && has("trainer_state.json");
        return Ok(if states { Format::HfTrainer } else { Format::HuggingFace });
    }
    if has(".metadata") || has("metadata.json") {
        let megatron = has("metadata.json") || has("common.pt");
        return Ok(if megatron { Format::MegatronDist } else { Format::PytorchDcp });
    }
    if has("zero") && any(&|name| name.starts_with("mp_rank_")) {
        return Ok(Format::DeepSpeedUniversal);
    }
    if any(&|name| name.starts_with("zero_pp_rank_") && name.ends_with("_model_states.pt")) {
        return Ok(Format::DeepSpeedZero3);
    }
    if any(&|name: &str| name.ends_with("_optim_states.pt"))
        || any(&|name| name.starts_with("layer_") && name.ends_with("-model_states.pt"))
    {
        return Ok(Format::MegatronDeepSpeed);
    }
    if any(&|name: &str| name.starts_with("mp_rank_") && from.join(name).is_dir()) {
        return Ok(Format::MegatronLegacy);
    }
    if let Some(step) = newest(from, &names)? {
        return detect(&step);
    }
    Err(Problems::one(
        from.display().to_string(),
        "is not a checkpoint that is known: no config.json, global_stepN, mp_rank_NN, \
         .metadata, step-N, latest or latest_checkpointed_iteration.txt",
        "give the folder of a checkpoint, or the one that --save named",
    )
    .into())
}

/// The folder of the newest step, where `from` is the one that a run saved into; itself, else.
pub fn step_folder(from: &Path) -> anyhow::Result<PathBuf> {
    Ok(newest(from, &list_names(from)?)?.unwrap_or_else(|| from.to_path_buf()))
}

/// The step that `latest` or `latest_checkpointed_iteration.txt` names.
fn newest(from: &Path, names: &[String]) -> anyhow::Result<Option<PathBuf>> {
    let files = ["latest", "latest_checkpointed_iteration.txt", "latest_universal"];
    let Some(file) = files
        .into_iter()
        .find(|file| names.iter().any(|name| name == file))
    else {
        // torchtitan: step-N for each step, and no file that names the newest; OLMo-core: stepN; the
        // Trainer: checkpoint-N.
        let step = |name: &String| {
            let number = name
                .strip_prefix("step")
                .or(name.strip_prefix("checkpoint"))?;
            number
                .strip_prefix('-')
                .unwrap_or(number)
                .parse::<u64>()
                .ok()
        };
        let steps = names
            .iter()
            .filter(|name| {
                let step = from.join(name);
                step.join(".metadata").exists()
                    || step.join(OLMO_MODEL).join(".metadata").exists()
                    || step.join("trainer_state.json").exists()
            })
            .filter_map(|name| Some((step(name)?, name)));
        return Ok(steps.max().map(|(_, name)| from.join(name)));
    };
    let path = from.join(file);
    let place = path.display().to_string();
    let bytes = input::read(&path, input::SMALL).with_context(|| format!("cannot read {place}"))?;
    let text = String::from_utf8_lossy(&bytes).trim().to_string();
    let folder = match text.parse::<u64>() {
        Ok(step) => format!("iter_{step:07}"),
        Err(_) => text.clone(),
    };
    let plain = !folder.is_empty() && !folder.contains(['/', '\\', '\0']) && folder != "..";
    if !plain || !from.join(&folder).is_dir() {
        let text: String = text.chars().take(100).collect();
        return Err(Problems::one(
            place,
            format!("names {text:?}, and there is no such folder"),
            "copy that folder too, or give the folder of a step",
        )
        .into());
    }
    Ok(Some(from.join(folder)))
}

/// Names of the files and folders in a folder.
pub fn list_names(from: &Path) -> anyhow::Result<Vec<String>> {
    let failed = || format!("cannot list {}", from.display());
    let entries = fs::read_dir(from).map_err(|error| WrongInput::reading(error, failed()))?;
    input::names(entries).with_context(failed)
}
