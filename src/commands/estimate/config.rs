//! `gptrain estimate config.json`: the run of a model that a file of Hugging Face describes, with the
//! settings that the file does not have.

use super::Estimate;
use base::{Count, Problems, input};
use estimate::mixture::config::Described;
use estimate::mixture::{self, Mixture};
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

/// Model of a config.json. That of a mixture of experts is its dense part.
pub struct ModelFile {
    pub config: HfConfig,
    pub mixture: Option<Mixture>,
    pub place: PathBuf,
}

/// Run to plan: its manifest, and the config.json that it is made from.
pub struct Planned {
    pub loaded: Loaded,
    pub file: Option<ModelFile>,
}

impl From<Loaded> for Planned {
    fn from(loaded: Loaded) -> Planned {
        Planned { loaded, file: None }
    }
}

impl Planned {
    /// Mixture of experts of which the manifest has the dense part.
    pub fn mixture(&self) -> Option<Mixture> {
        self.file.as_ref()?.mixture
    }
}

/// Model of the config.json that a path names, the file or that in a folder. None for another file.
pub fn read(path: &Path) -> anyhow::Result<Option<ModelFile>> {
    let place = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let is_json = place.extension().is_some_and(|end| end == "json");
    let text = is_json.then(|| input::read_named(&place, LARGEST).ok());
    let Some(text) = text.flatten().filter(|text| hf::is_config(text)) else { return Ok(None) };
    let name = place.display().to_string();
    let Some(Described { model, mixture }) = mixture::config::parse(&text, &name)? else {
        let config = hf::parse_config(&text, name)?;
        return Ok(Some(ModelFile { config, mixture: None, place }));
    };
    let positions = model.seq_len;
    let config = HfConfig { family: model.family, model, positions, unknown: Vec::new() };
    Ok(Some(ModelFile { config, mixture: Some(mixture), place }))
}

/// Run of a model in a config.json. The manifest of a mixture of experts has its dense part.
pub fn planned_run(file: ModelFile, sets: &[String]) -> anyhow::Result<Planned> {
    refuse_shape(&file, sets)?;
    let model = for_training(&file.config);
    let tokens = file.tokens();
    let text = format!(
        "{}\nprecision: bf16\ndata: {{train: corpus}}\nbatch: {{micro: 1, global: {BATCH}}}\n\
         lr: {{peak: 3e-4}}\ntopology: {{data: {REPLICAS}, zero: 1}}\ntrain: {{tokens: {tokens}}}\n\
         plan: {{hardware: {HARDWARE}}}\n",
        model_section(&model)
    );
    let place = file.place.display().to_string();
    let (_, loaded) = source::new_manifest(&text, &place, Path::new("imported"), sets)?;
    Ok(Planned { loaded, file: Some(file) })
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

/// Refuses settings of the shape of a mixture of experts: only its dense part is in the manifest.
fn refuse_shape(file: &ModelFile, sets: &[String]) -> Result<(), Problems> {
    let is_shape = |set: &&String| {
        let key = set.split('=').next().unwrap_or_default().trim();
        key.starts_with("model") && key != "model.seq_len"
    };
    match sets
        .iter()
        .find(is_shape)
        .filter(|_| file.mixture.is_some())
    {
        None => Ok(()),
        Some(set) => Err(Problems::one(
            format!("--set {set}"),
            "has no effect here: the shape of a mixture of experts is that of its file",
            format!("change it in {}; only model.seq_len is a setting", file.place.display()),
        )),
    }
}

impl ModelFile {
    /// Length of the run. With experts it counts the parameters that a token uses.
    fn tokens(&self) -> u64 {
        let model = &self.config.model;
        let active = self.mixture.map(|mixture| mixture.active(model) as u64);
        TOKENS_PER_PARAMETER * active.unwrap_or_else(|| model::parameters(model))
    }
}

impl Estimate {
    /// Says with which settings the model of a config.json is planned, of those that the user has not set.
    pub fn say_defaults(&self, file: &ModelFile) {
        let ModelFile { config, mixture, place } = file;
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
            let size = words::size(file.tokens() as f64);
            let active = if mixture.is_some() { "active " } else { "" };
            all.push(format!(
                "{TOKENS_PER_PARAMETER} tokens per {active}parameter, {size} (--tokens)"
            ));
        }
        if self.search.gpus.is_none() && !is_set("topology") {
            all.push(format!("{REPLICAS} replicas with ZeRO-1 (--gpus searches)"));
        }
        if self.hardware.is_none() && !is_set("plan.hardware") {
            all.push(format!("{HARDWARE} (--hardware)"));
        }
        if mixture.is_some() && self.program.is_none() {
            let usual = mixture::USUAL;
            all.push(format!(
                "{usual} (--as): gptrain itself does not train mixtures of experts yet"
            ));
        }
        if !all.is_empty() {
            base::warn!("{}: planned with {}", place.display(), all.join(", "));
        }
    }
}
