//! Converts Megatron's arguments (`args` of a checkpoint) to settings of a manifest, by the table of
//! `manifest::dialects`.

mod length;
mod model;
mod run;

use super::super::torch::{Node, Value};
use super::Choices;
use super::settings::{Settings, number, quoted};
use base::Problems;
use manifest::dialects::{self, Conversion, Dialect, Meaning, ROWS};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Settings that an import takes from elsewhere: their arguments are not listed as ignored.
const FROM_ELSEWHERE: &[&str] = &[
    "checkpoint.in_flight",
    "data.cache",
    "data.tokenizer",
    "data.valid",
    "log.folder",
    "model.kv_heads",
    "model.vocab_multiple",
    "name",
    "precision",
    "topology.data",
    "topology.layer_split",
    "topology.overlap_p2p",
    "topology.chunks",
    "topology.zero",
    "train.steps",
];

/// Remedy where gptrain would compute something else.
pub const ELSEWHERE: &str = "train it there";

/// Megatron's arguments. Records which are read.
///
/// Methods take a setting, written as in a manifest (`model.layers`, `precision: bf16`), or the name of
/// an argument that has no setting.
pub struct Arguments<'t> {
    args: Value<'t>,
    read: RefCell<BTreeSet<String>>,
    /// Whether refusals are recorded, for a dry import, in place of errors.
    dry: bool,
    refusals: RefCell<Problems>,
    /// The file, in messages.
    place: String,
    /// Value of `data.rule`: the order of samples.
    rule: &'static str,
}

impl<'t> Arguments<'t> {
    pub fn new(
        args: Value<'t>,
        place: String,
        rule: &'static str,
        choices: &Choices,
    ) -> Arguments<'t> {
        let dry = choices.dry;
        Arguments { args, read: RefCell::default(), dry, refusals: RefCell::default(), place, rule }
    }

    /// Names of the arguments that set this, which count as read.
    fn names<'n>(&self, setting: &'n str) -> Vec<&'n str> {
        let mut names = Dialect::Megatron.names(setting);
        if names.is_empty() {
            names.push(setting);
        }
        self.read
            .borrow_mut()
            .extend(names.iter().map(|name| name.to_string()));
        names
    }

    /// Name and value of the first argument that sets this and is neither missing nor Python's None.
    fn find<'n>(&self, setting: &'n str) -> Option<(&'n str, Value<'t>)> {
        self.names(setting)
            .into_iter()
            .find_map(|name| Some((name, self.args.some(name)?)))
    }

    /// Megatron's first name of a setting.
    pub fn name(&self, setting: &str) -> &'static str {
        Dialect::Megatron.name(setting)
    }

    pub fn get(&self, setting: &str) -> Option<Value<'t>> {
        self.find(setting).map(|(_, value)| value)
    }

    pub fn count(&self, setting: &str) -> anyhow::Result<u64> {
        self.need(setting)?.count()
    }

    pub fn optional_count(&self, setting: &str) -> anyhow::Result<Option<u64>> {
        self.get(setting).map(|value| value.count()).transpose()
    }

    pub fn float(&self, setting: &str) -> anyhow::Result<Option<f64>> {
        self.get(setting).map(|value| value.float()).transpose()
    }

    /// Whether a flag is set; of several that mean the setting, one of them.
    pub fn is_set(&self, setting: &str) -> bool {
        self.names(setting)
            .into_iter()
            .filter_map(|name| self.args.some(name))
            .any(|value| value.is_true())
    }

    /// Name and value of the first argument that sets this and is neither None nor False.
    pub fn given<'n>(&self, setting: &'n str) -> Option<(&'n str, Value<'t>)> {
        self.names(setting).into_iter().find_map(|name| {
            let value = self.args.some(name)?;
            (!equals(&value, "false")).then_some((name, value))
        })
    }

    fn need(&self, setting: &str) -> anyhow::Result<Value<'t>> {
        self.get(setting)
            .ok_or_else(|| self.problem(format!("args has no {}", self.names(setting)[0])))
    }

    /// Sets each key that an argument gives, by the conversion of its row.
    fn set(&self, settings: &mut Settings, keys: &[&str]) -> anyhow::Result<()> {
        for key in keys {
            if let Some((name, value)) = self.find(key) {
                settings.set(key, self.converted(key, name, &value)?, name);
            }
        }
        Ok(())
    }

    /// Sets each key; an error if no argument gives it.
    fn set_needed(&self, settings: &mut Settings, keys: &[&str]) -> anyhow::Result<()> {
        for key in keys {
            self.need(key)?;
        }
        self.set(settings, keys)
    }

    /// A setting's value, of an argument's.
    fn converted(&self, key: &str, name: &str, value: &Value) -> anyhow::Result<String> {
        let conversion = Dialect::Megatron.row(key).map(|row| row.conversion);
        Ok(match conversion {
            Some(Conversion::Count) => value.count()?.to_string(),
            Some(Conversion::Number) => number(value.float()?),
            Some(Conversion::Flag) => value.is_true().to_string(),
            Some(Conversion::Opposite) => (!value.is_true()).to_string(),
            Some(Conversion::Choice(words)) => {
                let word = value.str()?;
                let known = words.iter().find(|(theirs, _)| *theirs == word);
                if known.is_none() {
                    self.refuse_option(format!("args.{name} is {word}: not one of gptrain's"))?;
                }
                known.unwrap_or(&words[0]).1.to_string()
            }
            Some(Conversion::Custom) | None => panic!("{key} has no conversion"),
        })
    }

    /// Whether an argument was read.
    pub fn has_read(&self, name: &str) -> bool {
        self.read.borrow().contains(name)
    }

    /// Names and values of the arguments that were not read, are neither None nor False, and are not in
    /// the table of `manifest::dialects`.
    pub fn ignored(&self) -> Vec<String> {
        let read = self.read.borrow();
        let is_unneeded = |name: &str| {
            ROWS.iter()
                .filter(|row| match row.meaning {
                    Meaning::Unneeded(_) | Meaning::Lacking(_) => true,
                    Meaning::Setting { key, .. } => FROM_ELSEWHERE.contains(&key),
                    Meaning::Only { .. } | Meaning::Noted { .. } => false,
                })
                .any(|row| row.has(Dialect::Megatron, &dialects::plain(name)))
        };
        self.args
            .named()
            .unwrap_or_default()
            .into_iter()
            .filter(|(_, value)| !matches!(value.node(), Node::None | Node::Bool(false)))
            .filter(|(name, _)| !read.contains(*name) && !is_unneeded(name))
            .map(|(name, value)| format!("{name} {value}"))
            .collect()
    }

    pub fn problem(&self, what: String) -> anyhow::Error {
        Problems::one(self.place.clone(), what, "is this a checkpoint of Megatron, copied whole?")
            .into()
    }

    /// An error about a model or a schedule that gptrain does not compute so.
    pub fn unsupported(&self, what: String) -> anyhow::Error {
        Problems::one(self.place.clone(), what, ELSEWHERE).into()
    }

    /// Fails if an option of a model that gptrain does not have is set, or one of `more`, which this
    /// format's reader does not know: name and reason.
    pub fn refuse(&self, more: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut problems = Problems::default();
        let mut refuse = |name: &str, why: &str| {
            problems.add(self.place.clone(), format!("args.{name} is set: {why}"), ELSEWHERE);
        };
        for (name, only, why) in Dialect::Megatron.fixed() {
            if self.get(name).is_some_and(|value| !equals(&value, only)) {
                refuse(name, why);
            }
        }
        if let Some((name, _)) = self.find("model.window") {
            refuse(name, "gptrain's windows are model.window: import the weights alone");
        }
        for (name, why) in more {
            if self.get(name).is_some_and(|value| !equals(&value, "false")) {
                refuse(name, why);
            }
        }
        if let Some(rule) = self.get("optimizer").and_then(|rule| rule.str().ok())
            && rule != "adam"
        {
            refuse("optimizer", &format!("{rule}; only adam's states are read"));
        }
        self.refuse_all(problems)
    }

    /// Refuses an option of a model or a schedule that gptrain does not compute so.
    fn refuse_option(&self, what: String) -> anyhow::Result<()> {
        self.refuse_all(Problems::one(self.place.clone(), what, ELSEWHERE))
    }

    /// Fails with problems, or records them in a dry import.
    fn refuse_all(&self, problems: Problems) -> anyhow::Result<()> {
        if !self.dry {
            return Ok(problems.or(())?);
        }
        self.refusals.borrow_mut().list.extend(problems.list);
        Ok(())
    }

    /// Refusals that a dry import has recorded.
    pub fn refusals(&self) -> Problems {
        self.refusals.borrow().clone()
    }

    /// Settings of the model and of the run, and notes about them. `scheduler` is the state of the
    /// learning rate's schedule.
    pub fn settings(&self, scheduler: Option<Value>) -> anyhow::Result<(Settings, Vec<String>)> {
        let mut settings = Settings::default();
        let mut notes = Vec::new();
        self.model(&mut settings, &mut notes)?;
        self.training(&mut settings, &mut notes)?;
        self.rates(scheduler.as_ref(), &mut settings)?;
        self.run(&mut settings)?;
        self.note_options(&mut notes);
        Ok((settings, notes))
    }

    /// Precision, batch, optimizer, data and length.
    fn training(&self, settings: &mut Settings, notes: &mut Vec<String>) -> anyhow::Result<()> {
        let precision = match (self.is_set("precision: bf16"), self.is_set("precision: fp16")) {
            (true, _) => "bf16",
            (_, true) => "fp16",
            _ => "f32",
        };
        settings.set("precision", precision, "bf16, fp16");
        if precision == "fp16" {
            self.loss_scale(settings)?;
        }
        self.data(settings, notes)?;
        self.set_needed(settings, &["batch.micro", "batch.global"])?;
        if let Some((name, ramp)) = self.find("batch.ramp_up") {
            let numbers = ramp
                .items()?
                .iter()
                .map(whole)
                .collect::<anyhow::Result<Vec<_>>>()?;
            let [start, increment, samples] = numbers[..] else {
                return Err(self.problem(format!("args.{name} is not three numbers")));
            };
            settings.set("batch.ramp_up", format!("{start} {increment} {samples}"), name);
        }
        let adamw = [
            "optimizer.adamw.beta1",
            "optimizer.adamw.beta2",
            "optimizer.adamw.eps",
            "optimizer.adamw.weight_decay",
            "optimizer.adamw.clip",
        ];
        self.set(settings, &adamw)?;
        Ok(())
    }

    fn loss_scale(&self, settings: &mut Settings) -> anyhow::Result<()> {
        if self.get("loss_scale").is_some() {
            return self.set(settings, &["loss_scale"]);
        }
        let dynamic =
            ["loss_scale.initial", "loss_scale.min", "loss_scale.window", "loss_scale.hysteresis"];
        self.set(settings, &dynamic)
    }

    fn data(&self, settings: &mut Settings, notes: &mut Vec<String>) -> anyhow::Result<()> {
        settings.set("data.rule", self.rule, "the order of samples");
        settings.set("data.seed", self.count("train.seed")?, self.name("train.seed"));
        let weighted = self.weighted("train")?.into_iter().next();
        if let Some((_, blend)) = weighted {
            settings.set("data.train", blend, "train_weighted_split_paths");
            for (name, blend) in self.weighted("valid")? {
                let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
                let name: String = name.chars().filter(|c| plain(*c)).collect();
                settings.set(&format!("data.valid.{name}"), blend, "valid_weighted_split_paths");
            }
        } else if let Some((name, paths)) = self.find("data.train") {
            settings.set("data.train", blend(&paths)?, name);
            let valid = self.find("data.valid");
            if let Some((name, split)) = self.find("data.split").filter(|_| valid.is_none()) {
                settings.set("data.split", quoted(split.str()?), name);
            }
            if let Some((name, paths)) = valid {
                settings.set("data.valid.valid", blend(&paths)?, name);
            }
        } else {
            let name = self.name("data.train");
            let from = format!("args has no {name}: name the datasets here");
            settings.set("data.train", "corpus", &from);
        }
        let masking = "data.inter_document_masking";
        if self.is_set(masking) {
            settings.set(masking, true, self.name(masking));
        }
        for key in ["data.eod.reset_positions", "data.eod.reset_attention", "data.eod.mask_loss"] {
            if self.is_set(key) {
                let name = self.name(key);
                notes.push(format!(
                    "{name} was set: name the token of data.eod, and what it changes"
                ));
            }
        }
        Ok(())
    }

    /// Groups of datasets of `--{which}-weighted-split-paths`: name, and a list for the manifest.
    fn weighted(&self, which: &str) -> anyhow::Result<Vec<(String, String)>> {
        let part = |what: &str| self.get(&format!("{which}_weighted_split_{what}"));
        let parts = [part("paths"), part("weights"), part("splits"), part("names")];
        let [Some(paths), Some(weights), Some(splits), names] = parts else {
            return Ok(Vec::new());
        };
        let names = names.map_or(Ok(Vec::new()), |names| texts(&names))?;
        let mut groups = Vec::new();
        let paths = paths.items()?;
        let weights = weights.items()?;
        let splits = splits.items()?;
        for (i, ((paths, weights), splits)) in paths.iter().zip(&weights).zip(&splits).enumerate() {
            let paths = texts(paths)?;
            let weights = texts(weights)?;
            let splits = texts(splits)?;
            let datasets =
                paths
                    .iter()
                    .zip(&weights)
                    .zip(&splits)
                    .map(|((path, weight), split)| {
                        let range = split.replace(':', "..");
                        format!("{{prefix: {}, weight: {weight}, range: {range}}}", quoted(path))
                    });
            let list = datasets.collect::<Vec<_>>().join(", ");
            let name = names
                .get(i)
                .cloned()
                .unwrap_or_else(|| format!("{which}{i}"));
            groups.push((name, format!("[{list}]")));
        }
        Ok(groups)
    }

    /// The learning rate, by the scheduler's state if there is one. Its steps are samples.
    fn rates(&self, scheduler: Option<&Value>, settings: &mut Settings) -> anyhow::Result<()> {
        let value = |key: &str| {
            Dialect::Schedule
                .names(key)
                .into_iter()
                .find_map(|name| scheduler?.some(name))
        };
        let argument = self.get("lr.peak");
        let peak = match value("lr.peak").or(argument) {
            Some(peak) => peak,
            None => self.need("lr.peak")?,
        };
        settings.set("lr.peak", number(peak.float()?), self.name("lr.peak"));
        let argument = self.get("lr.min");
        let min = value("lr.min")
            .or(argument)
            .map_or(Ok(0.0), |min| min.float())?;
        settings.set("lr.min", number(min), self.name("lr.min"));
        let global = self.count("batch.global")?;
        let samples = |key: &str| -> anyhow::Result<Option<u64>> {
            let samples = self.get(key);
            let steps = self.get(Dialect::Megatron.steps(key));
            if let Some(state) = value(key) {
                return Ok(Some(state.float()? as u64));
            }
            match (samples, steps) {
                (Some(samples), _) => Ok(Some(samples.count()?)),
                (None, Some(steps)) => Ok(Some(steps.count()?.saturating_mul(global))),
                (None, None) => Ok(None),
            }
        };
        let warmup = samples("lr.warmup_samples")?.unwrap_or(0);
        settings.set("lr.warmup_samples", warmup, self.name("lr.warmup_samples"));
        if let Some((name, tokens)) = self.find("lr.warmup_tokens") {
            let samples = tokens.count()? / self.count("model.seq_len")?.max(1);
            let from = format!("{name} / {}", self.name("model.seq_len"));
            settings.set("lr.warmup_samples", samples, &from);
        }
        let end = "lr.decay.cosine.samples";
        let mut until = samples(end)?;
        let mut from = format!("{}, {}", self.name("lr.decay"), self.name(end));
        if let Some((tokens, count)) = self.find("lr.decay.cosine.tokens") {
            until = Some(count.count()? / self.count("model.seq_len")?.max(1));
            from = format!("{}, {tokens} / {}", self.name("lr.decay"), self.name("model.seq_len"));
        }
        let argument = self.get("lr.decay");
        let style = value("lr.decay").or(argument);
        let style = style.map_or(Ok("linear"), |style| style.str())?.to_string();
        let decay = match (style.as_str(), until) {
            ("constant", _) => "constant".to_string(),
            ("WSD", until) => self.stable_then_decay(until, global)?,
            ("linear" | "cosine", Some(until)) => format!("{{{style}: {{samples: {until}}}}}"),
            ("linear" | "cosine", None) => style,
            _ => {
                let name = self.name("lr.decay");
                self.refuse_option(format!("args.{name} is {style}: not one of gptrain's"))?;
                "constant".to_string()
            }
        };
        settings.set("lr.decay", decay, &from);
        settings.set("lr.counted", "before", "Megatron updates, then steps its schedule");
        Ok(())
    }

    /// Decay of a flat schedule, whose end is at sample `until`.
    fn stable_then_decay(&self, until: Option<u64>, global: u64) -> anyhow::Result<String> {
        let style = "lr.decay.wsd";
        if let Some((name, word)) = self.find(style)
            && word.str()? != "linear"
        {
            self.refuse_option(format!(
                "args.{name} is {word}: gptrain's decay at the end is a straight line"
            ))?;
        }
        let key = "lr.decay.wsd.decay_samples";
        let length = match (self.get(key), self.get(Dialect::Megatron.steps(key))) {
            (Some(samples), _) => Some(samples.count()?),
            (None, Some(steps)) => Some(steps.count()?.saturating_mul(global)),
            (None, None) => None,
        };
        let lengths = [("decay_samples", length), ("samples", until)];
        let lengths: Vec<String> = lengths
            .iter()
            .filter_map(|(key, length)| Some(format!("{key}: {}", (*length)?)))
            .collect();
        Ok(format!("{{wsd: {{{}}}}}", lengths.join(", ")))
    }
}

/// Names and weights of datasets as a list for the manifest; of one dataset, its name.
fn blend(paths: &Value) -> anyhow::Result<String> {
    let words = match paths.str() {
        Ok(one) => one.split_whitespace().map(str::to_string).collect(),
        Err(_) => texts(paths)?,
    };
    if let [one] = words.as_slice() {
        return Ok(quoted(one));
    }
    let pairs = words.as_chunks::<2>().0;
    let datasets: Vec<String> = pairs
        .iter()
        .map(|[weight, path]| format!("{{prefix: {}, weight: {weight}}}", quoted(path)))
        .collect();
    Ok(format!("[{}]", datasets.join(", ")))
}

/// Whether a value is this one, written as in JSON or as bare text; of a list, every item.
fn equals(value: &Value, only: &str) -> bool {
    match value.node() {
        Node::Str(text) => &**text == only,
        Node::Bool(flag) => flag.to_string() == only,
        Node::Int(_) | Node::Float(_) => only.parse().ok() == value.float().ok(),
        _ => value
            .items()
            .is_ok_and(|items| items.iter().all(|item| equals(item, only))),
    }
}

/// A whole number, or text of one.
fn whole(value: &Value) -> anyhow::Result<u64> {
    match value.str() {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|_| value.problem(format!("{text:?} is not a number"))),
        Err(_) => value.count(),
    }
}

fn texts(value: &Value) -> anyhow::Result<Vec<String>> {
    value
        .items()?
        .iter()
        .map(|item| match item.node() {
            Node::Int(_) | Node::Float(_) => Ok(item.to_string()),
            _ => Ok(item.str()?.to_string()),
        })
        .collect()
}

/// Arguments as a pickled dict, of `name=value` separated by spaces: numbers up to 255, True, text.
#[cfg(test)]
pub fn pickled_arguments(text: &str) -> super::super::torch::Tree {
    let mut pickle = b"\x80\x02}(".to_vec();
    let pairs = text
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='));
    for (name, value) in pairs {
        pickle.extend([b"X", &(name.len() as u32).to_le_bytes()[..], name.as_bytes()].concat());
        match value.parse::<u8>() {
            Ok(number) => pickle.extend([b'K', number]),
            Err(_) if value == "True" => pickle.push(0x88),
            Err(_) => {
                let len = (value.len() as u32).to_le_bytes();
                pickle.extend([b"X", &len[..], value.as_bytes()].concat());
            }
        }
    }
    pickle.extend(b"u.");
    super::super::torch::pickled(&pickle, "x").unwrap()
}
