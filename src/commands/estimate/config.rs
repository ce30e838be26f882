//! `gptrain estimate config.json`: the run of a model that a file of Hugging Face describes, with the
//! settings that the file does not have.

use super::Estimate;
use base::{Count, input};
use estimate::words;
use exchange::hf::{self, HfConfig};
use exchange::source;
use manifest::{Loaded, Model, Position, model_section};
use std::path::{Path, PathBuf};

/// Tokens of a sample in training, if the model can read more: most models are made with this length, and
/// prepared for longer texts in a last, short stage.
const LENGTH: usize = 4096;

/// Samples of a step.
const BATCH: usize = 512;

/// Length of the run (Hoffmann et al. 2022).
const TOKENS_PER_PARAMETER: u64 = 20;

/// One node.
const REPLICAS: usize = 8;
const HARDWARE: &str = "h100-80g";

/// Size of a file above which it is not a config.json.
const LARGEST: u64 = 1 << 20;

/// Model of the config.json that a path names, the file or that in a folder, and its place. None for
/// another file.
pub fn read(path: &Path) -> anyhow::Result<Option<(HfConfig, PathBuf)>> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let is_json = file.extension().is_some_and(|end| end == "json");
    let text = is_json.then(|| input::read_named(&file, LARGEST).ok());
    match text.flatten() {
        Some(text) if hf::is_config(&text) => {
            Ok(Some((hf::parse_config(&text, file.display().to_string())?, file)))
        }
        _ => Ok(None),
    }
}

/// Manifest of the run of a model in a config.json, whose place is `from`.
pub fn planned_run(config: &HfConfig, from: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    let model = for_training(config);
    let tokens = tokens(&model);
    let text = format!(
        "{}\nprecision: bf16\ndata: {{train: corpus}}\nbatch: {{micro: 1, global: {BATCH}}}\n\
         lr: {{peak: 3e-4}}\ntopology: {{data: {REPLICAS}, zero: 1}}\ntrain: {{tokens: {tokens}}}\n\
         plan: {{hardware: {HARDWARE}}}\n",
        model_section(&model)
    );
    let place = from.display().to_string();
    Ok(source::new_manifest(&text, &place, Path::new("imported"), sets)?.1)
}

/// The model with samples of the usual length. A table of learned positions keeps its rows.
fn for_training(config: &HfConfig) -> Model {
    let model = &config.model;
    let learned = model.position == Position::Learned;
    let positions = if learned { Some(model.context()) } else { model.positions };
    match model.seq_len {
        ..=LENGTH => model.clone(),
        _ => Model { seq_len: LENGTH, positions, ..model.clone() },
    }
}

fn tokens(model: &Model) -> u64 {
    TOKENS_PER_PARAMETER * model::parameters(model)
}

impl Estimate {
    /// Says with which settings the model of a config.json is planned, of those that the user has not set.
    pub fn say_defaults(&self, config: &HfConfig, place: &Path) {
        let model = for_training(config);
        let is_set = |key: &str| self.set.iter().any(|set| set.trim_start().starts_with(key));
        let mut all = Vec::new();
        if model.seq_len < config.model.seq_len && !is_set("model.seq_len") {
            all.push(format!(
                "{} tokens per sample, of {} that the model can read (model.seq_len)",
                Count(model.seq_len as u64),
                Count(config.model.seq_len as u64)
            ));
        }
        if !is_set("batch.global") {
            all.push(format!("{BATCH} samples per step (batch.global)"));
        }
        if self.tokens.is_none() && self.campaign.sizes.is_empty() && !is_set("train.") {
            let size = words::size(tokens(&model) as f64);
            all.push(format!("{TOKENS_PER_PARAMETER} tokens per parameter, {size} (--tokens)"));
        }
        if self.search.gpus.is_none() && !is_set("topology") {
            all.push(format!("{REPLICAS} replicas with ZeRO-1 (--gpus searches)"));
        }
        if self.hardware.is_none() && !is_set("plan.hardware") {
            all.push(format!("{HARDWARE} (--hardware)"));
        }
        if !all.is_empty() {
            base::warn!("{}: planned with {}", place.display(), all.join(", "));
        }
    }
}
