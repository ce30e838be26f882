//! Detects which trainer wrote a folder, by the names of its files.

pub use super::format::{Format, OLMO_MODEL, list_names};

use super::format::by_names;
use super::resemblance::resemblance;
use anyhow::Context;
use base::{Problems, input};
use std::path::{Path, PathBuf};

/// Finds out what a folder is; the error says which formats it resembles, and what they need beside.
pub fn detect(from: &Path) -> anyhow::Result<Format> {
    let names = list_names(from)?;
    if let Some(format) = by_names(from, &names) {
        return Ok(format);
    }
    if let Some(step) = newest(from, &names)? {
        return detect(&step);
    }
    Err(resemblance(from)?
        .unwrap_or_else(|| {
            Problems::one(
                from.display().to_string(),
                "is not a checkpoint that is known: no config.json, global_stepN, mp_rank_NN, \
                 .metadata, step-N, latest or latest_checkpointed_iteration.txt",
                "give the folder of a checkpoint, or the one that --save named",
            )
        })
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
