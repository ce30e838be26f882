//! OLMo-core's folders: the settings are in `config.json`, if its callback wrote one; the step and the
//! tokens in `train/rank0.pt`.

use super::super::super::torch::TorchFile;
use super::super::Choices;
use super::super::settings::{Settings, asked, number};
use super::DcpFolder;
use crate::tensor_part::Pairs;
use anyhow::Context;
use base::{Problems, input};
use manifest::dialects::{Conversion, Dialect};
use serde_json::Value as Json;
use std::path::Path;

/// Names of the part of a block that mixes positions: the current one, the former one.
const MIXER: [&str; 2] = ["sequence_mixer", "attention"];

const ROTATION: &str = "model.block.*.rope.name";
const SCHEDULER_CLASS: &str = "train_module.scheduler._CLASS_";
const SCHEDULER_UNITS: &str = "train_module.scheduler.units";

/// The trainer's own configuration.
struct Config {
    json: Json,
    place: String,
}

impl Config {
    /// An empty one if there is none.
    fn read(step: &Path) -> anyhow::Result<Config> {
        let path = step.join("config.json");
        let place = path.display().to_string();
        if !path.exists() {
            return Ok(Config { json: Json::Null, place });
        }
        let failed = || format!("cannot read {place}");
        let bytes = input::read(&path, input::SMALL).with_context(failed)?;
        let json = base::json::from_python(&bytes).with_context(failed)?;
        Ok(Config { json, place })
    }

    /// Value of a setting, or at a path that has no setting; None if it is null.
    fn get(&self, setting: &str) -> Option<&Json> {
        let mut paths = Dialect::OlmoCore.names(setting);
        if paths.is_empty() {
            paths.push(setting);
        }
        paths.into_iter().find_map(|path| self.at(path))
    }

    /// Value at a path, in which `*` is each of `MIXER`; None if it is null.
    fn at(&self, path: &str) -> Option<&Json> {
        let pointer = format!("/{}", path.replace('.', "/"));
        MIXER
            .iter()
            .find_map(|name| self.json.pointer(&pointer.replace('*', name)))
            .filter(|value| !value.is_null())
    }

    fn count(&self, setting: &str) -> Option<u64> {
        self.get(setting)?.as_u64().filter(|count| *count > 0)
    }

    fn float(&self, setting: &str) -> Option<f64> {
        self.get(setting)?.as_f64()
    }

    fn str(&self, setting: &str) -> Option<&str> {
        self.get(setting)?.as_str()
    }

    /// An error about options that change the model.
    fn refuse(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let unread = [
            ("model.pattern", "blocks that differ are not read here"),
            ("model.window", "sliding windows: set model.window instead"),
            ("model.position.rope.scaling", "of OLMo-core's RoPE, scaling is not read"),
        ];
        let unread = unread.map(|(key, why)| (Dialect::OlmoCore.name(key), "null", why));
        for (path, only, why) in Dialect::OlmoCore.fixed().chain(unread) {
            let Some(value) = self.at(path) else { continue };
            if value.as_str() == Some(only) || value.as_f64() == Some(0.0) {
                continue;
            }
            let name = path.replace('*', MIXER[0]);
            let value: String = value.to_string().chars().take(60).collect();
            problems.add(
                self.place.clone(),
                format!("{name} is {value}: {why}"),
                "export the weights to Hugging Face's format and import those",
            );
        }
        problems.or(())
    }
}

/// OLMo-core's name of a setting as the new manifest cites it, without the sections that all have.
fn short_name(setting: &str) -> &'static str {
    let name = Dialect::OlmoCore.name(setting);
    ["model.block.*.", "model.block.", "train_module."]
        .iter()
        .find_map(|section| name.strip_prefix(section))
        .unwrap_or(name)
}

fn last_word(setting: &str) -> &'static str {
    let name = Dialect::OlmoCore.name(setting);
    name.rsplit('.').next().unwrap_or(name)
}

/// Step, settings and notes.
pub fn describe(folder: &mut DcpFolder, step: &Path, choices: &Choices) -> anyhow::Result<()> {
    let config = Config::read(step)?;
    match config.refuse() {
        Err(problems) if choices.dry => folder.found.refusals = problems,
        refused => refused?,
    }
    let train = TorchFile::open(&step.join("train/rank0.pt"))?;
    let root = train.root();
    let found = &mut folder.found;
    found.step = train.count(&root.need("global_step")?)?;
    found.tokens = train.count(&root.need("global_train_tokens_seen")?)?;
    if config.str(ROTATION) == Some("complex") {
        folder.pairs = Pairs::Neighbours;
    }
    let asked_heads = asked(&choices.sets, "model.heads").and_then(|text| text.parse().ok());
    let heads = config.count("model.heads").map(|heads| heads as usize);
    if let Some(heads) = heads {
        let from = short_name("model.heads");
        folder.found.settings.set("model.heads", heads, from);
    }
    folder.model(asked_heads.or(heads))?;
    let max_steps = root
        .some("max_steps")
        .and_then(|steps| train.count(&steps).ok());
    let decayed_norms = folder.optimizer()?;
    // See the note below.
    let uncounted = folder.found.updates == 0 && folder.found.step > 0;
    if uncounted {
        folder.found.updates = folder.found.step;
    }
    let settings = &mut folder.found.settings;
    let peak = settings.get("lr.peak").and_then(|peak| peak.parse().ok());
    training(&config, settings, max_steps, peak);
    let asked = |key: &str| asked(&choices.sets, key).and_then(|text| text.parse::<u64>().ok());
    let known = |key: &str| asked(key).or_else(|| settings.get(key)?.parse::<u64>().ok());
    if let Some(length) = known("model.seq_len").filter(|length| *length > 0) {
        folder.found.samples = folder.found.tokens / length;
    }
    if decayed_norms > 0 {
        folder.found.notes.push(format!(
            "OLMo-core decayed {decayed_norms} norms too; gptrain decays matrices alone"
        ));
    }
    if uncounted {
        folder.found.notes.push(
            "the optimizer's step count is 0: older versions of OLMo-core did not count, which left the \
             bias corrections at step 1. The run's step count is used"
                .into(),
        );
    }
    Ok(())
}

/// Settings of the model, the batch, the rates and the length, as far as the configuration has them.
fn training(config: &Config, settings: &mut Settings, max_steps: Option<u64>, peak: Option<f64>) {
    let length = config.count("model.seq_len");
    if let Some(length) = length {
        settings.set("model.seq_len", length, short_name("model.seq_len"));
    }
    set_number(config, settings, "model.position.rope.theta");
    if config.get("model.qk_norm").is_some() {
        settings.set("model.qk_norm", true, "qk_norm, use_head_qk_norm");
    }
    let eps = config.float("model.layernorm_eps").unwrap_or(1e-5);
    settings.set("model.layernorm_eps", number(eps), short_name("model.layernorm_eps"));
    settings.set("precision", precision(config), short_name("precision"));
    // Batches are counted in tokens.
    let sequences = |key: &str| Some(config.count(key)? / length?).filter(|count| *count > 0);
    for (key, default) in [("batch.micro", Some(1)), ("batch.global", None)] {
        if let Some(samples) = sequences(key).or(default) {
            let from = format!("{} / {}", last_word(key), last_word("model.seq_len"));
            settings.set(key, samples, &from);
        }
    }
    let global = sequences("batch.global");
    set_number(config, settings, "optimizer.adamw.clip");
    if config.float("train.z_loss").is_some_and(|z| z > 0.0) {
        set_number(config, settings, "train.z_loss");
    }
    settings.set("lr.counted", "after", "OLMo-core counts the step before its update");
    for key in ["train.seed", "data.seed"] {
        if let Some(seed) = config.get(key).and_then(Json::as_u64) {
            settings.set(key, seed, short_name(key));
        }
    }
    let steps = max_steps.or_else(|| {
        let duration = config.get("train.steps")?;
        let steps = duration["value"].as_u64().filter(|count| *count > 0);
        steps.filter(|_| duration["unit"] == "steps")
    });
    if let Some(steps) = steps {
        settings.set("train.steps", steps, "max_steps");
    }
    rates(config, settings, &Counts { global, length, steps }, peak);
}

fn set_number(config: &Config, settings: &mut Settings, key: &str) {
    if let Some(value) = config.float(key) {
        settings.set(key, number(value), short_name(key));
    }
}

/// Precision of the matrix products: bf16 unless the configuration has another one.
fn precision(config: &Config) -> &'static str {
    let row = Dialect::OlmoCore.row("precision").map(|row| row.conversion);
    let Some(Conversion::Choice(words)) = row else { return "bf16" };
    let dtype = config.str("precision");
    words
        .iter()
        .find(|(theirs, _)| dtype == Some(*theirs))
        .map_or("bf16", |(_, ours)| ours)
}

/// Sizes that the schedule depends on, as far as they are known.
struct Counts {
    /// Samples of a step.
    global: Option<u64>,
    /// Tokens of a sample.
    length: Option<u64>,
    /// Steps of the run.
    steps: Option<u64>,
}

/// The schedule, if it is one of gptrain's.
fn rates(config: &Config, settings: &mut Settings, counts: &Counts, peak: Option<f64>) {
    let Counts { global, length, steps } = *counts;
    let tokens = config.str(SCHEDULER_UNITS) == Some("tokens");
    // A length in steps, or in tokens.
    let samples = |count: u64| if tokens { Some(count / length?) } else { Some(count * global?) };
    if let Some(warmup) = config.count("lr.warmup_samples").and_then(samples) {
        settings.set("lr.warmup_samples", warmup, short_name("lr.warmup_samples"));
    }
    let end = config
        .count("lr.decay.cosine.samples")
        .and_then(samples)
        .or_else(|| Some(steps? * global?));
    let class = config
        .str(SCHEDULER_CLASS)
        .and_then(|class| class.rsplit('.').next());
    let decay = match (class, end) {
        (Some("ConstantScheduler" | "ConstantWithWarmup"), _) => "constant".to_string(),
        (Some("CosWithWarmup"), Some(end)) => format!("{{cosine: {{samples: {end}}}}}"),
        (Some("LinearWithWarmup"), Some(end)) => format!("{{linear: {{samples: {end}}}}}"),
        _ => return,
    };
    let end = last_word("lr.decay.cosine.samples");
    settings.set("lr.decay", &decay, &format!("{}, {end}", short_name("lr.decay")));
    if decay != "constant"
        && let Some(peak) = peak
    {
        let factor = config.float("lr.min").unwrap_or(0.1);
        settings.set("lr.min", number(peak * factor), &format!("lr × {}", last_word("lr.min")));
    }
}
