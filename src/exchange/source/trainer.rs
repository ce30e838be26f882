//! Reads a checkpoint of Hugging Face's Trainer, `checkpoint-N`: weights of a Hugging Face folder, and
//! AdamW's states in `optimizer.pt`, of PyTorch or of bitsandbytes in 8 bits.
//!
//! ```text
//! config.json, model.safetensors    the model
//! optimizer.pt                      states by number: decaying parameters first, each group in the model's order
//! trainer_state.json                the step
//! training_args.bin                 the settings, a pickled object
//! rng_state_R.pth                   one per process; rng_state.pth of a single one
//! ```

use super::foreign::{check_optimizer, give_examples, write_manifest};
use super::new_run::ensure_same_model;
use super::{HfFacts, ParamReader, ParamSource};
use crate::foreign::{
    AdamState, Choices, Format, RunDescription, list_names, number, step_folder, wanted,
};
use crate::hf::{self, HfConfig, HfTensor, Weights, read_config, tensors_of};
use crate::tokenizer::OwnTokenizer;
use crate::torch::{TorchFile, Value};
use anyhow::Context;
use base::{Problems, input};
use engine::saved_shape;
use manifest::dialects::Dialect;
use manifest::{Family, Loaded, Model};
use model::{Layout, ModelShard, Param};
use std::collections::BTreeMap;
use std::path::Path;

/// File of the states.
pub const OPTIMIZER: &str = "optimizer.pt";
/// File of the progress.
pub const STATE: &str = "trainer_state.json";
const ARGUMENTS: &str = "training_args.bin";
/// Micro-batches of a step.
const ACCUMULATED: &str = "gradient_accumulation_steps";
/// Object around a state of bitsandbytes in newer versions.
const WRAPPED: &str = "__bnb_optimizer_quant_state__";
/// Numbers that have one maximum: those of newer versions of bitsandbytes, and of older ones.
const BLOCKS: [usize; 2] = [256, 2048];

/// Modules of a block in the order in which transformers' families have them.
const BLOCK: [&str; 21] = [
    "ln_1",
    "attn.c_attn",
    "attn.c_proj",
    "ln_2",
    "mlp.c_fc",
    "mlp.c_proj",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    // BLOOM's norm is before its attention, Llama's are behind its feed-forward layer.
    "input_layernorm",
    "self_attention.query_key_value",
    "self_attention.dense",
    "post_attention_layernorm",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
];
/// Modules before the blocks, and behind them.
const OUTSIDE: [[&str; 5]; 2] = [
    ["embed_tokens", "wte", "wpe", "word_embeddings", "word_embeddings_layernorm"],
    ["norm", "ln_f", "lm_head", "", ""],
];

/// Whether the Trainer decays a tensor, and whether it decays norms.
type DecayRule = (fn(&HfTensor) -> bool, bool);

/// Since 2025 norms do not decay; before, those of some families did. Last, one group of all.
const DECAY_RULES: [DecayRule; 3] = [
    (|tensor| tensor.shape.len() > 1, false),
    (|tensor| !tensor.name.ends_with(".bias"), true),
    (|_| true, true),
];

/// A checkpoint of the Trainer, opened.
pub struct TrainerRun {
    pub found: RunDescription,
    config: HfConfig,
    facts: BTreeMap<String, usize>,
    tensor_types: BTreeMap<String, String>,
    reader: TrainerReader,
}

struct TrainerReader {
    family: Family,
    weights: Weights,
    file: TorchFile,
    /// Number of each tensor's states; empty if they are not read.
    numbers: BTreeMap<String, i64>,
}

impl TrainerRun {
    pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<TrainerRun> {
        let config = read_config(from)?;
        let family = config.family;
        let model = config.model.clone();
        let weights = Weights::open(from, family)?;
        let layout = Layout::new(&model, ModelShard::whole(&model));
        let params = layout.params();
        let needed: Vec<HfTensor> = params
            .flat_map(|param| tensors(family, &model, param))
            .collect();
        let types = weights.check(&needed, model.tied_head)?;
        let tensor_types = weights.types(&needed);
        let file = TorchFile::open(&from.join(OPTIMIZER))?;
        let trainer = format!("Hugging Face's Trainer ({})", family.name());
        let mut found = RunDescription::new(Format::HfTrainer, trainer, from);
        describe(&mut found, from, &config, &types)?;
        let numbers = find_states(&mut found, &file, needed)?;
        found.wanted = wanted("the Trainer", Dialect::HuggingFace, &found.settings, &choices.sets);
        // A part of model.position, which config.json has.
        found
            .wanted
            .retain(|row| row.key != "model.position.rope.theta");
        set_progress(&mut found, choices);
        let reader = TrainerReader { family, weights, file, numbers };
        Ok(TrainerRun { found, config, facts: types, tensor_types, reader })
    }

    /// Manifest of the run that would continue this one, if every setting is known.
    pub fn plan(&self, choices: &Choices) -> anyhow::Result<(String, Loaded)> {
        let mut facts = self.found.clone();
        give_examples(&mut facts, choices)?;
        let (text, loaded) = write_manifest(&facts, choices)?;
        check_optimizer(&loaded.manifest)?;
        ensure_same_model(&self.config.model, &loaded.manifest.model, &self.found.folder)?;
        Ok((text, loaded))
    }

    pub fn source(self, from: &Path, choices: &Choices) -> anyhow::Result<ParamSource> {
        let (text, loaded) = self.plan(choices)?;
        let mut facts = self.found;
        facts.wanted.clear();
        let came = |path| OwnTokenizer { path, kept: true, came_with_weights: true };
        Ok(ParamSource {
            facts,
            loaded,
            text,
            hugging_face: Some(HfFacts { config: self.config, types: self.facts }),
            tensor_types: self.tensor_types,
            carried: Some(from.to_path_buf()),
            tokenizer: hf::tokenizer_in(from).map(came),
            reader: Box::new(self.reader),
            progress: None,
        })
    }
}

/// Sets batch, rates, length and intervals of `TrainingArguments`, whose attributes `root` has.
pub fn training_arguments(
    root: Value,
    found: &mut RunDescription,
    max_steps: Option<u64>,
) -> anyhow::Result<()> {
    Arguments(root).settings(found, max_steps)
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ParamSource> {
    let from = step_folder(from)?;
    TrainerRun::open(&from, choices)?.source(&from, choices)
}

/// Reads the step and the settings.
fn describe(
    found: &mut RunDescription,
    from: &Path,
    config: &HfConfig,
    types: &BTreeMap<String, usize>,
) -> anyhow::Result<()> {
    let place = from.join(STATE).display().to_string();
    let failed = || format!("cannot read {place}");
    let bytes = input::read(&from.join(STATE), input::SMALL).with_context(failed)?;
    let state: serde_json::Value = base::json::from_python(&bytes).with_context(failed)?;
    let Some(step) = state["global_step"].as_u64() else {
        let what = "has no global_step";
        return Err(Problems::one(place, what, "copy the folder of the checkpoint whole").into());
    };
    found.step = step;
    let ranks = list_names(from)?
        .iter()
        .filter(|name| name.starts_with("rng_state_"))
        .count();
    found.grid[2] = ranks.max(1);
    let model = &config.model;
    for (key, value) in manifest::model_settings(model) {
        if key != "seq_len" {
            found.settings.set(&format!("model.{key}"), value, "");
        }
    }
    let arguments = from.join(ARGUMENTS);
    let arguments = arguments
        .exists()
        .then(|| TorchFile::open(&arguments))
        .transpose()?;
    let root = arguments.as_ref().map(|file| Arguments(file.root()));
    let most = types.iter().max_by_key(|(_, count)| **count);
    let stored = match most.map(|(name, _)| name.as_str()) {
        Some("BF16") => "bf16",
        Some("F16") => "fp16",
        _ => "f32",
    };
    let precision = match &root {
        Some(root) if root.is_set("precision: bf16") => "bf16",
        Some(root) if root.is_set("precision: fp16") => "fp16",
        _ => stored,
    };
    found
        .settings
        .set("precision", precision, "bf16, fp16, or the type of the weights");
    found
        .settings
        .set("topology.data", found.grid[2], "files of the random states");
    if let Some(root) = &root {
        root.settings(found, state["max_steps"].as_u64())?;
    }
    found
        .settings
        .set("lr.counted", "before", "the schedule advances after the update");
    let note = "the place of the Trainer's data loader is not carried: samples follow data.rule, of \
                which the steps' number is taken as seen";
    found.notes.push(note.to_string());
    Ok(())
}

/// Samples and tokens that were seen, if the batch and the length are known.
fn set_progress(found: &mut RunDescription, choices: &Choices) {
    let known = |key: &str| {
        let text = crate::foreign::asked(&choices.sets, key).or_else(|| found.settings.get(key))?;
        text.parse::<u64>().ok()
    };
    if let (Some(global), Some(length)) = (known("batch.global"), known("model.seq_len")) {
        found.samples = found.step.saturating_mul(global);
        found.tokens = found.samples.saturating_mul(length);
    }
}

/// The object of `TrainingArguments`.
struct Arguments<'t>(Value<'t>);

impl<'t> Arguments<'t> {
    fn get(&self, setting: &str) -> Option<(&'static str, Value<'t>)> {
        let names = Dialect::HuggingFace.names(setting);
        names
            .into_iter()
            .find_map(|name| Some((name, self.0.some(name)?)))
    }

    fn is_set(&self, setting: &str) -> bool {
        self.get(setting).is_some_and(|(_, value)| value.is_true())
    }

    /// Name and value of the warm-up: the first that is not 0.
    fn warmup(&self) -> Option<(&'static str, f64)> {
        for name in Dialect::HuggingFace.names("lr.warmup_samples") {
            let steps = self.0.some(name).and_then(|value| value.float().ok());
            if let Some(steps) = steps.filter(|steps| *steps > 0.0) {
                return Some((name, steps));
            }
        }
        None
    }

    fn count(&self, setting: &str) -> Option<u64> {
        self.get(setting)?.1.count().ok()
    }

    /// Batch, rates, length and intervals.
    fn settings(&self, found: &mut RunDescription, max_steps: Option<u64>) -> anyhow::Result<()> {
        let replicas = found.grid[2] as u64;
        let settings = &mut found.settings;
        let micro = self.count("batch.micro").unwrap_or(1).max(1);
        let accumulated = self
            .0
            .some(ACCUMULATED)
            .and_then(|count| count.count().ok());
        let accumulated = accumulated.unwrap_or(1).max(1);
        let global = micro.saturating_mul(accumulated).saturating_mul(replicas);
        let name = |key: &str| Dialect::HuggingFace.name(key);
        settings.set("batch.micro", micro, name("batch.micro"));
        let from = format!("{} × {ACCUMULATED} × processes", name("batch.micro"));
        settings.set("batch.global", global, &from);
        if let Some((name, peak)) = self.get("lr.peak") {
            settings.set("lr.peak", number(peak.float()?), name);
        }
        let steps = max_steps.filter(|steps| *steps > 0);
        if let Some(steps) = steps {
            settings.set("train.steps", steps, name("train.steps"));
        }
        if let Some((name, warmup)) = self.warmup() {
            // A number below 1 is a part of the run.
            let part = warmup > 0.0 && warmup < 1.0;
            let steps = if part { (warmup * steps.unwrap_or(0) as f64).ceil() } else { warmup };
            let from = format!("{name} × batch.global");
            settings.set("lr.warmup_samples", steps as u64 * global, &from);
        }
        if let Some((name, kind)) = self.get("lr.decay") {
            let word = enum_word(&kind);
            let decay = match (word.as_deref(), steps) {
                (Some("linear" | "cosine"), Some(steps)) => {
                    let kind = word.unwrap_or_default();
                    Some(format!("{{{kind}: {{samples: {}}}}}", steps.saturating_mul(global)))
                }
                (Some("constant" | "constant_with_warmup"), _) => Some("constant".to_string()),
                _ => None,
            };
            if let Some(decay) = decay {
                settings.set("lr.decay", decay, name);
            }
        }
        if let Some((name, clip)) = self.get("optimizer.adamw.clip") {
            settings.set("optimizer.adamw.clip", number(clip.float()?), name);
        }
        for key in ["train.seed", "checkpoint.interval", "log.interval"] {
            if let Some((name, count)) = self.get(key)
                && let Ok(count) = count.count()
                && (count > 0 || key == "train.seed")
            {
                settings.set(key, count, name);
            }
        }
        Ok(())
    }
}

/// The word of an enum: its argument, or text.
fn enum_word(value: &Value) -> Option<String> {
    let word = match value.object() {
        Some((_, arguments)) => arguments?.items().ok()?.first()?.str().ok()?,
        None => value.str().ok()?,
    };
    Some(word.to_string())
}

/// Numbers of the tensors' states, and AdamW's numbers; or notes why the optimizer restarts.
fn find_states(
    found: &mut RunDescription,
    file: &TorchFile,
    tensors: Vec<HfTensor>,
) -> anyhow::Result<BTreeMap<String, i64>> {
    let root = file.root();
    let groups = root.need("param_groups")?.items()?;
    let mut order = Vec::new();
    for tensor in tensors {
        let place = place(&tensor.name).with_context(|| format!("no place for {}", tensor.name))?;
        order.push((place, tensor));
    }
    order.sort_by_key(|(place, _)| *place);
    let ordered: Vec<&HfTensor> = order.iter().map(|(_, tensor)| tensor).collect();
    let state = root.need("state")?;
    let mut counts = Vec::new();
    for group in &groups {
        counts.push(group.need("params")?.items()?.len());
    }
    let Some((numbers, norms)) = assign(&ordered, &counts, &state)? else {
        found.restart_optimizer(format!(
            "{}: groups of {counts:?} parameters are not those of the Trainer for this model, so that \
             numbers have no names",
            file.place()
        ));
        return Ok(BTreeMap::new());
    };
    let first = groups.first().context("param_groups is empty")?;
    let betas = first.need("betas")?.items()?;
    let [beta1, beta2] = betas.as_slice() else {
        return Err(first.problem("betas is not two numbers".into()));
    };
    for (key, value) in [
        ("beta1", file.number(beta1)?),
        ("beta2", file.number(beta2)?),
        ("eps", file.number(&first.need("eps")?)?),
        ("weight_decay", file.number(&first.need("weight_decay")?)?),
    ] {
        found
            .settings
            .set(&format!("optimizer.adamw.{key}"), number(value), "param_groups");
    }
    if norms && file.number(&first.need("weight_decay")?)? > 0.0 {
        found
            .notes
            .push("this Trainer decayed norms too; gptrain decays matrices alone".into());
    }
    found.lr = file.number(&first.need("lr")?)?;
    let mut updates = None;
    for number in numbers.values() {
        let entry = state.at(*number).context("compared above")?;
        let count = file.count(&entry.need("step")?)?;
        if *updates.get_or_insert(count) != count {
            return Err(entry.problem(format!("parameter {number} has another step than others")));
        }
    }
    found.updates = updates.unwrap_or(0);
    found.note_updates();
    Ok(numbers)
}

/// Number of each tensor: decaying parameters come first. Also whether norms decay. None if the numbers
/// or the shapes of the states are of other groups.
fn assign(
    tensors: &[&HfTensor],
    counts: &[usize],
    state: &Value,
) -> anyhow::Result<Option<(BTreeMap<String, i64>, bool)>> {
    for (decays, norms) in DECAY_RULES {
        let mut groups = [Vec::new(), Vec::new()];
        for tensor in tensors {
            groups[usize::from(!decays(tensor))].push(*tensor);
        }
        let sizes = groups.each_ref().map(Vec::len);
        if counts != sizes && !(counts == &sizes[..1] && sizes[1] == 0) {
            continue;
        }
        let mut numbers = BTreeMap::new();
        let mut fits = true;
        for (number, tensor) in groups.iter().flatten().enumerate() {
            let entry = state.at(number as i64);
            fits &= match &entry {
                Some(entry) => first_moment_shape(entry)? == Some(tensor.shape.clone()),
                None => false,
            };
            numbers.insert(tensor.name.clone(), number as i64);
        }
        if fits {
            return Ok(Some((numbers, norms)));
        }
    }
    Ok(None)
}

/// Values of a parameter's states: those of PyTorch, or of bitsandbytes.
fn states<'t>(entry: &Value<'t>) -> Value<'t> {
    entry.some(WRAPPED).unwrap_or_else(|| entry.clone())
}

fn first_moment_shape(entry: &Value) -> anyhow::Result<Option<Vec<usize>>> {
    let states = states(entry);
    let moment = states.some("exp_avg").or_else(|| states.some("state1"));
    moment
        .map(|moment| moment.tensor().map(|tensor| tensor.shape.clone()))
        .transpose()
}

/// Place of a tensor among the model's parameters: before the blocks, in a block or behind them; the block;
/// the module; the weight before the bias. None if the name is not of a family.
fn place(name: &str) -> Option<[usize; 4]> {
    let (stem, kind) = name.rsplit_once('.')?;
    let bias = usize::from(kind == "bias");
    let layer = stem.split('.').find_map(|part| part.parse::<usize>().ok());
    let ends = |module: &&str| {
        !module.is_empty()
            && stem
                .strip_suffix(*module)
                .is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    if let Some(layer) = layer {
        let module = BLOCK.iter().position(ends)?;
        return Some([1, layer, module, bias]);
    }
    for (section, modules) in [0, 2].into_iter().zip(OUTSIDE) {
        if let Some(module) = modules.iter().position(ends) {
            return Some([section, 0, module, bias]);
        }
    }
    None
}

impl ParamReader for TrainerReader {
    fn read(&mut self, model: &Model, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>> {
        let shape = saved_shape(param, model.vocab);
        let mut values = vec![0.0; shape.iter().product()];
        for tensor in tensors(self.family, model, param) {
            match (state, self.numbers.get(&tensor.name)) {
                (AdamState::Master, _) => self.weights.read(&tensor, &mut values)?,
                (_, None) => {}
                (_, Some(number)) => {
                    let entry = self.file.root().need("state")?.at(*number);
                    let entry = entry.with_context(|| format!("no state {number}"))?;
                    tensor.put(&moment(&self.file, &entry, state)?, &mut values);
                }
            }
        }
        Ok(values)
    }
}

/// A moment of a parameter in f32.
fn moment(file: &TorchFile, entry: &Value, state: AdamState) -> anyhow::Result<Vec<f32>> {
    let (torch, number) = match state {
        AdamState::SecondMoment => ("exp_avg_sq", 2),
        _ => ("exp_avg", 1),
    };
    let states = states(entry);
    let all = |value: &Value| {
        let tensor = value.tensor()?;
        file.floats(tensor, 0..tensor.numel())
    };
    if let Some(moment) = states.some(torch) {
        return all(&moment);
    }
    let codes = states.need(&format!("state{number}"))?;
    let Some(maxima) = states.some(&format!("absmax{number}")) else {
        if states.some(&format!("max{number}")).is_some() {
            let what =
                "8-bit states with one maximum a tensor, as bitsandbytes had them before blocks";
            return Err(entry.problem(what.into()));
        }
        return all(&codes);
    };
    let maxima = all(&maxima)?;
    let map = all(&states.need(&format!("qmap{number}"))?)?;
    let numel = codes.tensor()?.numel();
    let block = BLOCKS
        .into_iter()
        .find(|block| numel.div_ceil(*block) == maxima.len());
    let (Some(block), 256) = (block, map.len()) else {
        return Err(entry.problem(format!(
            "state{number} has {numel} codes, {} maxima and a map of {}: not in blocks of 256 or 2048",
            maxima.len(),
            map.len()
        )));
    };
    let mut values = all(&codes)?;
    for (block, most) in values.chunks_mut(block).zip(&maxima) {
        for value in block {
            *value = map[(*value as usize).min(255)] * most;
        }
    }
    Ok(values)
}

fn tensors(family: Family, model: &Model, param: &Param) -> Vec<HfTensor> {
    tensors_of(family, param, &saved_shape(param, model.vocab), model.heads())
}
