//! Converts Megatron's arguments (`args` of a checkpoint) to settings of a manifest.

mod model;

use super::super::torch::{Node, Value};
use super::settings::{Settings, number, quoted};
use base::Problems;
use manifest::other_trainers::{self, Trainer};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Arguments that are not listed as ignored: those of the old run's machine and files, and those whose
/// values come from elsewhere.
#[rustfmt::skip]
const UNLISTED: &[&str] = &[
    "rank", "world_size", "local_rank", "save", "load", "log_path", "tensorboard_dir",
    "exit_interval", "exit_duration_in_mins", "kill_switch_path", "codecarbon_dir", "deepspeed",
    "deepspeed_config", "deepscale", "deepscale_config", "distributed_backend", "num_workers",
    "valid_num_workers", "iteration", "lr", "min_lr", "lr_decay_style", "curr_iteration",
    "consumed_train_tokens", "consumed_valid_samples", "params_dtype", "data_parallel_size",
    "lr_warmup_samples", "lr_warmup_iters", "lr_decay_samples", "lr_decay_iters",
    "encoder_seq_length", "padded_vocab_size", "use_checkpoint_lr_scheduler",
    "override_lr_scheduler", "tokenizer_type", "tokenizer_name_or_path", "vocab_file",
    "merge_file", "make_vocab_size_divisible_by", "pad_vocab_size_to", "train_iters",
    "log_level", "log_level_replica",
];

/// Reason to refuse `window_size`, which a manifest has in another form.
const WINDOW: (&str, &str) =
    ("window_size", "gptrain's windows are model.window: import the weights alone");

/// Remedy where gptrain would compute something else.
pub const ELSEWHERE: &str = "train it there";

/// Megatron's arguments. Records which are read.
pub struct Arguments<'t> {
    args: Value<'t>,
    asked: RefCell<BTreeSet<String>>,
    /// The file, in messages.
    place: String,
    /// Value of `data.rule`: the order of samples.
    rule: &'static str,
}

impl<'t> Arguments<'t> {
    pub fn new(args: Value<'t>, place: String, rule: &'static str) -> Arguments<'t> {
        Arguments { args, asked: RefCell::default(), place, rule }
    }

    /// Value of an argument; None if it is missing or Python's None.
    pub fn get(&self, name: &str) -> Option<Value<'t>> {
        self.asked.borrow_mut().insert(name.to_string());
        self.args.some(name)
    }

    pub fn count(&self, name: &str) -> anyhow::Result<u64> {
        self.get(name)
            .ok_or_else(|| self.problem(format!("args has no {name}")))?
            .count()
    }

    pub fn optional_count(&self, name: &str) -> anyhow::Result<Option<u64>> {
        self.get(name).map(|value| value.count()).transpose()
    }

    pub fn float(&self, name: &str) -> anyhow::Result<Option<f64>> {
        self.get(name).map(|value| value.float()).transpose()
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.is_true())
    }

    /// Names and values of the arguments that were not read and are neither None nor False.
    pub fn ignored(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        let named = self.args.named().unwrap_or_default();
        let left = named.into_iter().filter(|(name, value)| {
            let empty = matches!(value.node(), Node::None | Node::Bool(false));
            !empty && !asked.contains(*name) && !UNLISTED.contains(name)
        });
        left.map(|(name, value)| format!("{name} {value}"))
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
    pub fn refuse(&self, more: &[(&str, &str)]) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let mut refuse = |name: &str, why: &str| {
            problems.add(self.place.clone(), format!("args.{name} is set: {why}"), ELSEWHERE);
        };
        let is_given = |name: &str| {
            self.get(name)
                .is_some_and(|value| !matches!(value.node(), Node::Bool(false)))
        };
        let models = other_trainers::other_models(Trainer::Megatron).chain([WINDOW]);
        models
            .filter(|(name, _)| is_given(name))
            .for_each(|(name, why)| refuse(name, why));
        more.iter()
            .filter(|(name, _)| is_given(name))
            .for_each(|(name, why)| refuse(name, why));
        if let Some(rule) = self
            .get("optimizer")
            .filter(|rule| rule.str().is_ok_and(|r| r != "adam"))
        {
            refuse("optimizer", &format!("{rule}; only adam's states are read"));
        }
        if self.get("num_experts").is_some_and(|n| experts(&n)) {
            refuse("num_experts", "gptrain has no mixture of experts");
        }
        problems.or(())
    }

    /// Settings of the model and of the run, and notes about them. `scheduler` is the state of the
    /// learning rate's schedule.
    pub fn settings(&self, scheduler: Option<Value>) -> anyhow::Result<(Settings, Vec<String>)> {
        let mut settings = Settings::default();
        let mut notes = Vec::new();
        self.model(&mut settings, &mut notes)?;
        self.training(&mut settings, &mut notes)?;
        self.rates(scheduler.as_ref(), &mut settings)?;
        Ok((settings, notes))
    }

    /// Precision, batch, optimizer, data and length.
    fn training(&self, settings: &mut Settings, notes: &mut Vec<String>) -> anyhow::Result<()> {
        let precision = match (self.is_set("bf16"), self.is_set("fp16")) {
            (true, _) => "bf16",
            (_, true) => "fp16",
            _ => "f32",
        };
        settings.set("precision", precision, "bf16, fp16");
        self.loss_scale(precision, settings)?;
        self.data(settings, notes)?;
        let global = self.count("global_batch_size")?;
        settings.set("batch.micro", self.count("micro_batch_size")?, "micro_batch_size");
        settings.set("batch.global", global, "global_batch_size");
        if let Some(ramp) = self.get("rampup_batch_size") {
            let numbers = ramp
                .items()?
                .iter()
                .map(whole)
                .collect::<anyhow::Result<Vec<_>>>()?;
            let [start, increment, samples] = numbers[..] else {
                return Err(self.problem("args.rampup_batch_size is not three numbers".into()));
            };
            let ramp = format!("{start} {increment} {samples}");
            settings.set("batch.ramp_up", ramp, "rampup_batch_size");
        }
        self.set_numbers(
            settings,
            &[
                ("optimizer.adamw.beta1", "adam_beta1"),
                ("optimizer.adamw.beta2", "adam_beta2"),
                ("optimizer.adamw.eps", "adam_eps"),
                ("optimizer.adamw.weight_decay", "weight_decay"),
                ("optimizer.adamw.clip", "clip_grad"),
            ],
        )?;
        if let Some(interval) = self.optional_count("save_interval")? {
            settings.set("checkpoint.interval", interval.max(1), "save_interval");
        }
        let samples = self.optional_count("train_samples")?;
        match samples {
            Some(samples) => settings.set("train.samples", samples, "train_samples"),
            None => {
                let steps = self.count("train_iters")?;
                settings.set("train.samples", steps * global, "train_iters × global_batch_size");
            }
        }
        settings.set("train.seed", self.count("seed")?, "seed");
        let second = settings
            .get("data.split")
            .and_then(|split| split.split(',').nth(1));
        let share = second.and_then(|share| share.trim().trim_end_matches('"').parse::<f64>().ok());
        let named = settings
            .0
            .iter()
            .any(|row| row.key.starts_with("data.valid."));
        let evaluated = named || share.is_some_and(|share| share > 0.0);
        if evaluated {
            self.set_counts(settings, &[("train.eval_interval", "eval_interval")])?;
        }
        Ok(())
    }

    fn loss_scale(&self, precision: &str, settings: &mut Settings) -> anyhow::Result<()> {
        if precision != "fp16" {
            return Ok(());
        }
        if self.get("loss_scale").is_some() {
            return self.set_numbers(settings, &[("loss_scale", "loss_scale")]);
        }
        let numbers =
            [("loss_scale.initial", "initial_loss_scale"), ("loss_scale.min", "min_loss_scale")];
        self.set_numbers(settings, &numbers)?;
        let counts =
            [("loss_scale.window", "loss_scale_window"), ("loss_scale.hysteresis", "hysteresis")];
        self.set_counts(settings, &counts)
    }

    /// Sets each key to the number of an argument, if there is one.
    fn set_numbers(&self, settings: &mut Settings, rows: &[(&str, &str)]) -> anyhow::Result<()> {
        for (key, name) in rows {
            if let Some(value) = self.float(name)? {
                settings.set(key, number(value), name);
            }
        }
        Ok(())
    }

    /// The same for whole numbers.
    fn set_counts(&self, settings: &mut Settings, rows: &[(&str, &str)]) -> anyhow::Result<()> {
        for (key, name) in rows {
            if let Some(count) = self.optional_count(name)? {
                settings.set(key, count, name);
            }
        }
        Ok(())
    }

    fn data(&self, settings: &mut Settings, notes: &mut Vec<String>) -> anyhow::Result<()> {
        settings.set("data.rule", self.rule, "the order of samples");
        settings.set("data.seed", self.count("seed")?, "seed");
        let weighted = self.weighted("train")?.into_iter().next();
        if let Some((_, blend)) = weighted {
            settings.set("data.train", blend, "train_weighted_split_paths");
            for (name, blend) in self.weighted("valid")? {
                let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
                let name: String = name.chars().filter(|c| plain(*c)).collect();
                settings.set(&format!("data.valid.{name}"), blend, "valid_weighted_split_paths");
            }
        } else if let Some(paths) = self.get("data_path") {
            let words = match paths.str() {
                Ok(one) => one.split_whitespace().map(str::to_string).collect(),
                Err(_) => texts(&paths)?,
            };
            let train = match words.as_slice() {
                [one] => quoted(one),
                _ => words
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|[weight, path]| format!("{{prefix: {}, weight: {weight}}}", quoted(path)))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            let train = if words.len() > 1 { format!("[{train}]") } else { train };
            settings.set("data.train", train, "data_path");
            if let Some(split) = self.get("split") {
                settings.set("data.split", quoted(split.str()?), "split");
            }
        } else {
            settings.set("data.train", "corpus", "args has no data_path: name the datasets here");
        }
        for name in ["reset_position_ids", "reset_attention_mask", "eod_mask_loss"] {
            if self.is_set(name) {
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

    /// The learning rate, by the scheduler's own state where there is one. Its steps are samples.
    fn rates(&self, scheduler: Option<&Value>, settings: &mut Settings) -> anyhow::Result<()> {
        let of_state = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| scheduler.and_then(|state| state.some(name)))
        };
        let arg = |name: &str| self.get(name);
        let peak = of_state(&["max_lr", "start_lr"])
            .or_else(|| arg("lr"))
            .ok_or_else(|| self.problem("args has no lr".into()))?;
        settings.set("lr.peak", number(peak.float()?), "lr");
        let min = of_state(&["min_lr"]).or_else(|| arg("min_lr"));
        settings.set("lr.min", number(min.map_or(Ok(0.0), |min| min.float())?), "min_lr");
        let global = self.count("global_batch_size")?;
        let samples = |names: &[&str], samples: &str, steps: &str| -> anyhow::Result<Option<u64>> {
            if let Some(state) = of_state(names) {
                return Ok(Some(state.float()? as u64));
            }
            match (arg(samples), arg(steps)) {
                (Some(samples), _) => Ok(Some(samples.count()?)),
                (None, Some(steps)) => Ok(Some(steps.count()? * global)),
                (None, None) => Ok(None),
            }
        };
        let names = ["warmup_steps", "lr_warmup_steps", "warmup_iter"];
        let warmup = samples(&names, "lr_warmup_samples", "lr_warmup_iters")?.unwrap_or(0);
        settings.set("lr.warmup_samples", warmup, "lr_warmup_samples");
        let names = ["decay_steps", "lr_decay_steps", "end_iter"];
        let mut until = samples(&names, "lr_decay_samples", "lr_decay_iters")?;
        let mut from = "lr_decay_style, lr_decay_samples";
        if let Some(tokens) = self.optional_count("lr_decay_tokens")? {
            until = Some(tokens / self.count("seq_length")?.max(1));
            from = "lr_decay_style, lr_decay_tokens / seq_length";
        }
        let style = of_state(&["decay_style", "lr_decay_style"]).or_else(|| arg("lr_decay_style"));
        let style = style.map_or(Ok("linear"), |style| style.str())?.to_string();
        let decay = match (style.as_str(), until) {
            ("constant", _) => "constant".to_string(),
            ("linear" | "cosine", Some(until)) => format!("{{{style}: {{samples: {until}}}}}"),
            ("linear" | "cosine", None) => style,
            _ => {
                return Err(self
                    .unsupported(format!("args.lr_decay_style is {style}: not one of gptrain's")));
            }
        };
        settings.set("lr.decay", decay, from);
        settings.set("lr.counted", "before", "Megatron updates, then steps its schedule");
        Ok(())
    }
}

/// More than one expert: Megatron-DeepSpeed has a list.
fn experts(value: &Value) -> bool {
    let list = value.items().unwrap_or_else(|_| vec![value.clone()]);
    list.iter().any(|n| n.int().is_ok_and(|n| n > 1))
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
