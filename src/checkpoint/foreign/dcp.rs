//! Distributed checkpoints of PyTorch as torchtitan writes them: `.metadata` and `__R_N.distcp`.
//!
//! The shape of the heads, the rotation, the batch and the rates are not in the files: the import
//! asks for them. Queries and keys turn neighbouring columns there, halves of a head here.

pub mod metadata;
mod names;

use super::super::torch::{TorchFile, Value};
use super::compare::{Comparison, like};
use super::cut::Cut;
use super::detect::{Format, step_folder};
use super::settings::{Wanted, asked, number};
use super::{Choices, ForeignRun, Found, Kept};
use anyhow::Context;
use base::{Heads, Problems};
use manifest::Model;
use metadata::Metadata;
use model::{Param, Weight};
use names::{layers, of_layer, tensors_of};
use std::path::{Path, PathBuf};

/// Settings that the files do not have, torchtitan's names of them, and examples.
const WANTED: &[Wanted] = &[
    Wanted { key: "model.heads", why: "attention heads, torchtitan's n_heads", example: "32" },
    Wanted { key: "model.seq_len", why: "training.seq_len", example: "8192" },
    Wanted {
        key: "model.position.rope.theta",
        why: "torchtitan's rope_theta; its rope_scaling, if any, is model.position.rope.scaling",
        example: "500000",
    },
    Wanted { key: "batch.global", why: "training.global_batch_size", example: "512" },
    Wanted { key: "lr.warmup_samples", why: "warmup_steps × batch.global", example: "102400" },
    Wanted { key: "lr.decay", why: "lr_scheduler.decay_type", example: "cosine" },
    Wanted { key: "train.steps", why: "training.steps", example: "10000" },
    Wanted { key: "data.train", why: "the datasets: see docs/data.md", example: "corpus" },
];

/// Parts of the checkpoint that are not the model.
const NOT_MODEL: &[&str] = &["optimizer.", "lr_scheduler.", "train_state.", "dataloader."];

struct Folder {
    dir: PathBuf,
    found: Found,
    meta: Metadata,
    /// Before the model's names: nothing, or `model.`.
    prefix: &'static str,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    let meta = Metadata::read(&dir)?;
    let prefix = ["", "model."]
        .into_iter()
        .find(|prefix| meta.tensors.contains_key(&format!("{prefix}tok_embeddings.weight")));
    let Some(prefix) = prefix else {
        let first = meta.tensors.keys().next().map_or("no tensor", String::as_str);
        let what = format!("has no tok_embeddings.weight, but {first}: torchtitan's Llama is read");
        let remedy = "export the weights to Hugging Face's format and import those";
        let place = dir.join(".metadata").display().to_string();
        return Err(Problems::one(place, what, remedy).into());
    };
    let step = meta.number("train_state.step")?;
    let step = step.ok_or_else(|| meta.problem("has no train_state.step".into()))? as u64;
    let (settings, notes) = Default::default();
    let grid = [1, 1, meta.writers()];
    let found = Found {
        format: Format::PytorchDcp,
        trainer: "torchtitan (PyTorch distributed checkpoint)".into(),
        folder: dir.display().to_string(),
        step,
        samples: 0,
        tokens: 0,
        grid,
        updates: 0,
        lr: 0.0,
        loss_scale: None,
        settings,
        without_states: None,
        wanted: WANTED.iter().filter(|row| !row.is_in(&choices.sets)).cloned().collect(),
        aside: Vec::new(),
        notes,
    };
    let mut folder = Folder { dir, found, meta, prefix };
    folder.model(choices)?;
    folder.optimizer()?;
    folder.found.counts();
    let count = |key: &str| asked(&choices.sets, key).and_then(|text| text.parse::<u64>().ok());
    if let (Some(global), Some(length)) = (count("batch.global"), count("model.seq_len")) {
        folder.found.samples = step.saturating_mul(global);
        folder.found.tokens = folder.found.samples.saturating_mul(length);
    }
    folder.found.notes.push(
        "the place of torchtitan's data loader is not carried: samples follow data.rule, of which \
         the steps' number is taken as seen"
            .into(),
    );
    Ok(Box::new(folder))
}

impl Folder {
    fn shape(&self, names: &[String]) -> anyhow::Result<&[usize]> {
        let full = |name: &String| format!("{}{name}", self.prefix);
        let found = names.iter().find_map(|name| self.meta.tensors.get(&full(name)));
        let found = found.filter(|entry| !entry.shape.is_empty());
        let found = found.ok_or_else(|| self.meta.problem(format!("has no {}", names[0])))?;
        Ok(&found.shape)
    }

    /// Settings of the model, by the tensors' shapes.
    fn model(&mut self, choices: &Choices) -> anyhow::Result<()> {
        let names = self.model_names().filter_map(|name| name.strip_prefix(self.prefix));
        let layers = layers(names);
        let embedding = self.shape(&["tok_embeddings.weight".into()])?;
        let [vocab, hidden] = *embedding else {
            return Err(self.meta.problem(format!("tok_embeddings.weight is {embedding:?}")));
        };
        let tied = ["output.weight", "lm_head.weight"];
        let has = |name: &&str| self.meta.tensors.contains_key(&format!("{}{name}", self.prefix));
        let tied = !tied.iter().any(has);
        let ffn = self.shape(&of_layer(Weight::Fc1W, 0, 0))?[0];
        let queries = self.shape(&of_layer(Weight::QkvW, 0, 0))?[0];
        let keys = self.shape(&of_layer(Weight::QkvW, 1, 0))?[0];
        let settings = &mut self.found.settings;
        settings.set("model.family", "llama", "");
        settings.set("model.layers", layers, "the names of layers.N");
        settings.set("model.hidden", hidden, "tok_embeddings");
        settings.set("model.vocab", vocab, "tok_embeddings");
        settings.set("model.vocab_multiple", 1, "torchtitan's softmax counts every row");
        settings.set("model.ffn_hidden", ffn, "feed_forward.w1");
        settings.set("model.tied_head", tied, "whether there is an output");
        settings.set("model.layernorm_eps", "1e-5", "torchtitan's norm_eps where it is not set");
        let heads = asked(&choices.sets, "model.heads").and_then(|text| text.parse::<usize>().ok());
        if let Some(heads) = heads.filter(|heads| *heads > 0) {
            let dim = queries / heads;
            if dim * heads != queries || dim == 0 || dim % 2 == 1 || keys % dim != 0 {
                let what = format!(
                    "model.heads={heads}: attention.wq has {queries} rows and attention.wk {keys}, \
                     which such heads do not divide"
                );
                return Err(Problems::one("--set", what, "name torchtitan's n_heads").into());
            }
            settings.set("model.kv_heads", keys / dim, "rows of attention.wk");
            settings.set("model.head_dim", dim, "rows of attention.wq / heads");
        }
        settings.set("precision", "bf16", "training.mixed_precision_param where it is not set");
        settings.set("batch.micro", 1, "");
        settings.set("lr.counted", "before", "PyTorch's schedulers step after the optimizer");
        Ok(())
    }

    /// AdamW's numbers, which every parameter has, and its count.
    fn optimizer(&mut self) -> anyhow::Result<()> {
        let names: Vec<String> = self.model_names().map(str::to_string).collect();
        let first = names.first().context("a tensor of the model")?.clone();
        let mut updates = None;
        for name in &names {
            let key = format!("optimizer.state.{name}.step");
            let Some(step) = self.meta.number(&key)? else {
                let what = format!("has no {key}: the optimizer's states are not there");
                let remedy = "import a step that was not saved by last_save_model_only, or the \
                              weights alone by way of Hugging Face's format";
                let place = self.dir.join(".metadata").display().to_string();
                return Err(Problems::one(place, what, remedy).into());
            };
            match updates {
                Some(known) if known != step as u64 => {
                    let what = format!("{key} is {step}, that of {first} is {known}");
                    return Err(self.meta.problem(what));
                }
                _ => updates = Some(step as u64),
            }
        }
        self.found.updates = updates.unwrap_or(0);
        let mut group: Option<Group> = None;
        let mut decayed_norms = 0;
        for name in &names {
            let Some(found) = Group::read(&self.meta, name)? else { continue };
            let vector = self.shape(&[name[self.prefix.len()..].to_string()])?.len() == 1;
            decayed_norms += usize::from(vector && found.weight_decay > 0.0);
            if let Some(known) = group.as_ref().filter(|known| !known.same(&found, vector)) {
                let what = format!(
                    "optimizer.param_groups.{name} has {found}, {first} has {known}: gptrain has one \
                     set of numbers"
                );
                return Err(self.meta.problem(what));
            }
            group.get_or_insert(found);
        }
        let Some(group) = group else {
            self.found.notes.push("has no optimizer.param_groups: set optimizer.adamw".into());
            return Ok(());
        };
        self.found.lr = group.lr;
        let settings = &mut self.found.settings;
        for (key, value) in [
            ("beta1", group.betas[0]),
            ("beta2", group.betas[1]),
            ("eps", group.eps),
            ("weight_decay", group.weight_decay),
        ] {
            settings.set(&format!("optimizer.adamw.{key}"), number(value), "param_groups");
        }
        let clip = "training.max_norm where it is not set";
        settings.set("optimizer.adamw.clip", "1.0", clip);
        settings.set("lr.peak", number(group.initial_lr.unwrap_or(group.lr)), "initial_lr");
        if decayed_norms > 0 {
            self.found.notes.push(format!(
                "torchtitan's AdamW decays all parameters, {decayed_norms} norms too; gptrain decays \
                 matrices alone"
            ));
        }
        Ok(())
    }

    /// Names of the model's tensors, with their prefix.
    fn model_names(&self) -> impl Iterator<Item = &str> {
        let names = self.meta.tensors.keys().map(String::as_str);
        names.filter(|name| {
            name.starts_with(self.prefix)
                && !name.ends_with("freqs_cis")
                && !NOT_MODEL.iter().any(|other| name.starts_with(other))
        })
    }

    /// Tensors of a parameter, with the prefix.
    fn tensors(&self, param: &Param, shape: &[usize], heads: Heads) -> Vec<(String, Cut)> {
        let full = |name: &str| format!("{}{name}", self.prefix);
        let has = |name: &str| self.meta.tensors.contains_key(&full(name));
        let tensors = tensors_of(param, shape, heads, &has).into_iter();
        tensors.map(|(name, cut)| (full(&name), cut)).collect()
    }
}

/// Name of a state of a tensor.
fn state(name: &str, kept: Kept) -> String {
    match kept {
        Kept::Master => name.to_string(),
        Kept::FirstMoment => format!("optimizer.state.{name}.exp_avg"),
        Kept::SecondMoment => format!("optimizer.state.{name}.exp_avg_sq"),
    }
}

impl ForeignRun for Folder {
    fn found(&self) -> &Found {
        &self.found
    }

    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let place = self.dir.join(".metadata").display().to_string();
        let mut compared = Comparison::new(place, "is it a Llama of torchtitan, copied whole?");
        for param in params {
            let shape = engine::saved_shape(param, model.vocab);
            let tensors = self.tensors(param, &shape, model.heads());
            if tensors.is_empty() {
                compared.missing(param);
            }
            for (name, cut) in tensors {
                let expected = like(&shape, cut.shape());
                for kept in Kept::ALL {
                    let key = state(&name, kept);
                    let found = self.meta.tensors.get(&key).map(|entry| &entry.shape[..]);
                    compared.shape(&key, found, &expected, "the model");
                    if found == Some(&expected)
                        && let Err(what) = self.meta.tiles(&key)
                    {
                        compared.add(format!("{key}: {what}"));
                    }
                }
            }
        }
        compared.others(self.model_names());
        Ok(compared.finish()?)
    }

    fn read(
        &mut self,
        model: &Model,
        param: &Param,
        shape: &[usize],
        kept: Kept,
    ) -> anyhow::Result<Vec<f32>> {
        let width = shape.get(1).copied().unwrap_or(1);
        let mut ours = vec![0.0; shape.iter().product()];
        for (name, cut) in self.tensors(param, shape, model.heads()) {
            let theirs = like(shape, cut.shape());
            let put = |at, size, values: &[f32]| cut.put((at, size), values, &mut ours, width);
            self.meta.each_rectangle(&state(&name, kept), None, &theirs, put)?;
        }
        Ok(ours)
    }
}

/// AdamW's numbers of a parameter.
struct Group {
    lr: f64,
    initial_lr: Option<f64>,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
}

impl Group {
    /// None if the checkpoint has none of this parameter.
    fn read(meta: &Metadata, name: &str) -> anyhow::Result<Option<Group>> {
        let key = |what: &str| format!("optimizer.param_groups.{name}.{what}");
        let object = |what: &str| meta.object(&key(what));
        let float = |what: &str| -> anyhow::Result<Option<f64>> {
            let Some(file) = object(what)? else { return Ok(None) };
            let root = file.root();
            scalar(&file, &root).map(Some)
        };
        let Some(lr) = float("lr")? else { return Ok(None) };
        for (what, wrong, why) in [
            ("amsgrad", true, "gptrain's AdamW keeps no largest second moment"),
            ("maximize", true, "gptrain minimises"),
            ("decoupled_weight_decay", false, "it is Adam with L2, not AdamW"),
        ] {
            let set = object(what)?.is_some_and(|file| {
                !matches!(file.root().node(), super::super::torch::Node::None)
                    && file.root().is_true() == wrong
            });
            if set {
                return Err(meta.problem(format!("{} is {wrong}: {why}", key(what))));
            }
        }
        let betas = object("betas")?
            .context("betas")
            .map_err(|_| meta.problem(format!("has no {}", key("betas"))))?;
        let items = betas.root().items()?;
        let [first, second] = items.as_slice() else {
            return Err(betas.root().problem(format!("{} is not two numbers", key("betas"))));
        };
        let betas = [scalar(&betas, first)?, scalar(&betas, second)?];
        let need =
            |what: &str| float(what)?.ok_or_else(|| meta.problem(format!("has no {}", key(what))));
        Ok(Some(Group {
            lr,
            initial_lr: float("initial_lr")?,
            betas,
            eps: need("eps")?,
            weight_decay: need("weight_decay")?,
        }))
    }

    /// Whether gptrain can have both; a vector is not decayed here.
    fn same(&self, other: &Group, vector: bool) -> bool {
        self.lr == other.lr
            && self.betas == other.betas
            && self.eps == other.eps
            && (vector || self.weight_decay == other.weight_decay)
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Group { lr, betas: [first, second], eps, weight_decay, .. } = self;
        write!(f, "lr {lr}, betas {first} {second}, eps {eps}, weight_decay {weight_decay}")
    }
}

/// A number, which may be a tensor.
fn scalar(file: &TorchFile, value: &Value) -> anyhow::Result<f64> {
    match value.tensor() {
        Ok(tensor) => {
            let values = file.floats(tensor, 0..tensor.numel().min(1))?;
            let first = values.first().copied();
            first.map(f64::from).ok_or_else(|| value.problem("a number's tensor is empty".into()))
        }
        Err(_) => value.float(),
    }
}
