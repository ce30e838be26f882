//! OLMo-core's folders: the settings are in `config.json`, if its callback wrote one; the step and the
//! tokens in `train/rank0.pt`.

use super::super::super::torch::TorchFile;
use super::super::Choices;
use super::super::settings::{Settings, Wanted, asked, number};
use super::DcpFolder;
use crate::tensor_part::Pairs;
use anyhow::Context;
use base::{Problems, input};
use serde_json::Value as Json;
use std::path::Path;

/// Settings that `config.json` may lack, OLMo-core's names of them, and examples.
pub const WANTED: &[Wanted] = &[
    Wanted { key: "model.heads", why: "attention heads, n_heads", example: "16" },
    Wanted { key: "model.seq_len", why: "train_module.max_sequence_length", example: "4096" },
    Wanted { key: "model.position.rope.theta", why: "rope.theta", example: "500000" },
    Wanted { key: "batch.global", why: "global_batch_size / sequence length", example: "512" },
    Wanted { key: "lr.warmup_samples", why: "scheduler.warmup × batch.global", example: "102400" },
    Wanted { key: "lr.decay", why: "train_module.scheduler", example: "cosine" },
    Wanted { key: "train.steps", why: "trainer.max_duration", example: "10000" },
    Wanted { key: "data.train", why: "the datasets: see docs/data.md", example: "corpus" },
];

/// Names of the part of a block that mixes positions: the current one, the former one.
const MIXER: [&str; 2] = ["sequence_mixer", "attention"];

/// Options of a model that gptrain would compute otherwise: place in `config.json`, the only value that
/// is read besides null and 0, and the reason.
const REFUSED: &[(&str, &str, &str)] = &[
    ("/model/name", "default", "only the default transformer is read"),
    ("/model/block/name", "default", "gptrain's norms come before attention and feed-forward"),
    ("/model/block_pattern", "", "blocks that differ are not read here"),
    ("/model/block_overrides", "", "blocks that differ are not read here"),
    ("/model/embedding_norm", "", "gptrain's Llama has no norm of the embedding"),
    ("/model/embed_scale", "", "gptrain's Llama does not scale the embedding"),
    ("/model/block/feed_forward_moe", "", "gptrain has no mixture of experts"),
    ("/model/block/dropout", "", "gptrain's dropout is elsewhere in the block"),
    ("/model/block/attention_residual_alpha", "", "gptrain does not scale residuals"),
    ("/model/block/feed_forward_residual_alpha", "", "gptrain does not scale residuals"),
    ("/model/block/MIXER/clip_qkv", "", "gptrain does not clip queries, keys and values"),
    ("/model/block/MIXER/gate", "", "gptrain's attention has no gate"),
    ("/model/block/MIXER/sliding_window", "", "gptrain's windows are model.window"),
    ("/model/block/MIXER/rope/scaling", "", "of OLMo-core's RoPE, scaling is not read"),
];

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

    /// Value at a path; None if it is null. MIXER means each of `MIXER`.
    fn get(&self, path: &str) -> Option<&Json> {
        let names = MIXER.iter().map(|name| path.replace("MIXER", name));
        let found = names.filter_map(|path| self.json.pointer(&path)).next();
        found.filter(|value| !value.is_null())
    }

    fn count(&self, path: &str) -> Option<u64> {
        self.get(path)?.as_u64().filter(|count| *count > 0)
    }

    fn float(&self, path: &str) -> Option<f64> {
        self.get(path)?.as_f64()
    }

    fn str(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }

    /// An error about options that change the model.
    fn refuse(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let remedy = "export the weights to Hugging Face's format and import those";
        for (path, read, why) in REFUSED {
            let Some(value) = self.get(path) else { continue };
            if value.as_str() == Some(read) || value.as_f64() == Some(0.0) {
                continue;
            }
            let name = path[1..].replace('/', ".").replace("MIXER", MIXER[0]);
            let value: String = value.to_string().chars().take(60).collect();
            problems.add(self.place.clone(), format!("{name} is {value}: {why}"), remedy);
        }
        problems.or(())
    }
}

/// Step, settings and notes.
pub fn describe(folder: &mut DcpFolder, step: &Path, choices: &Choices) -> anyhow::Result<()> {
    let config = Config::read(step)?;
    config.refuse()?;
    let train = TorchFile::open(&step.join("train/rank0.pt"))?;
    let root = train.root();
    let found = &mut folder.found;
    found.step = train.count(&root.need("global_step")?)?;
    found.tokens = train.count(&root.need("global_train_tokens_seen")?)?;
    if config.str("/model/block/MIXER/rope/name") == Some("complex") {
        folder.pairs = Pairs::Neighbours;
    }
    let asked_heads = asked(&choices.sets, "model.heads").and_then(|text| text.parse().ok());
    let heads = config
        .count("/model/block/MIXER/n_heads")
        .map(|heads| heads as usize);
    if let Some(heads) = heads {
        folder.found.settings.set("model.heads", heads, "n_heads");
    }
    folder.model(asked_heads.or(heads), "OLMo-core's n_heads")?;
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
            "Adam has counted no update: OLMo-core's optimizers once did not, and their bias corrections \
             remained those of the first update; here the count is that of the steps"
                .into(),
        );
    }
    Ok(())
}

/// Settings of the model, the batch, the rates and the length, as far as the configuration has them.
fn training(config: &Config, settings: &mut Settings, max_steps: Option<u64>, peak: Option<f64>) {
    let length = config
        .count("/train_module/max_sequence_length")
        .or_else(|| config.count("/dataset/sequence_length"));
    if let Some(length) = length {
        settings.set("model.seq_len", length, "max_sequence_length");
    }
    if let Some(theta) = config.float("/model/block/MIXER/rope/theta") {
        settings.set("model.position.rope.theta", number(theta), "rope.theta");
    }
    if config.get("/model/block/MIXER/qk_norm").is_some() {
        settings.set("model.qk_norm", true, "qk_norm, use_head_qk_norm");
    }
    let eps = config.float("/model/block/layer_norm/eps").unwrap_or(1e-5);
    settings.set("model.layernorm_eps", number(eps), "layer_norm.eps");
    let dtype = config
        .str("/train_module/dp_config/param_dtype")
        .or_else(|| config.str("/train_module/autocast_precision"));
    let precision = match dtype {
        Some("float32") => "f32",
        Some("float16") => "fp16",
        _ => "bf16",
    };
    settings.set("precision", precision, "dp_config.param_dtype");
    let sequences = |path: &str| Some(config.count(path)? / length?).filter(|count| *count > 0);
    let global = sequences("/data_loader/global_batch_size");
    let micro = sequences("/train_module/rank_microbatch_size").unwrap_or(1);
    settings.set("batch.micro", micro, "rank_microbatch_size / max_sequence_length");
    if let Some(global) = global {
        settings.set("batch.global", global, "global_batch_size / max_sequence_length");
    }
    if let Some(clip) = config.float("/train_module/max_grad_norm") {
        settings.set("optimizer.adamw.clip", number(clip), "max_grad_norm");
    }
    if let Some(weight) = config
        .float("/train_module/z_loss_multiplier")
        .filter(|z| *z > 0.0)
    {
        settings.set("train.z_loss", number(weight), "z_loss_multiplier");
    }
    settings.set("lr.counted", "after", "OLMo-core counts the step before its update");
    for (key, path) in [("train.seed", "/init_seed"), ("data.seed", "/data_loader/seed")] {
        if let Some(seed) = config.get(path).and_then(Json::as_u64) {
            settings.set(key, seed, &path[1..].replace('/', "."));
        }
    }
    let steps = max_steps.or_else(|| {
        let unit = config.str("/trainer/max_duration/unit")?;
        config
            .count("/trainer/max_duration/value")
            .filter(|_| unit == "steps")
    });
    if let Some(steps) = steps {
        settings.set("train.steps", steps, "max_steps");
    }
    rates(config, settings, &Counts { global, length, steps }, peak);
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
    let scheduler = |name: &str| format!("/train_module/scheduler/{name}");
    let class = config
        .str(&scheduler("_CLASS_"))
        .and_then(|class| class.rsplit('.').next());
    let tokens = config.str(&scheduler("units")) == Some("tokens");
    // Samples of so many steps, or so many tokens.
    let samples = |count: u64| if tokens { Some(count / length?) } else { Some(count * global?) };
    let warmup = ["warmup", "warmup_steps"]
        .into_iter()
        .filter_map(|name| config.count(&scheduler(name)))
        .next();
    if let Some(warmup) = warmup.and_then(samples) {
        settings.set("lr.warmup_samples", warmup, "scheduler.warmup");
    }
    let end = config
        .count(&scheduler("t_max"))
        .and_then(samples)
        .or_else(|| Some(steps? * global?));
    let decay = match (class, end) {
        (Some("ConstantScheduler" | "ConstantWithWarmup"), _) => Some("constant".to_string()),
        (Some("CosWithWarmup"), Some(end)) => Some(format!("{{cosine: {{samples: {end}}}}}")),
        (Some("LinearWithWarmup"), Some(end)) => Some(format!("{{linear: {{samples: {end}}}}}")),
        _ => None,
    };
    let Some(decay) = decay else { return };
    settings.set("lr.decay", &decay, "scheduler, t_max");
    if decay != "constant"
        && let Some(peak) = peak
    {
        let factor = config.float(&scheduler("alpha_f")).unwrap_or(0.1);
        settings.set("lr.min", number(peak * factor), "lr × alpha_f");
    }
}
