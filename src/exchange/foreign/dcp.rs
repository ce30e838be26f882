//! Distributed checkpoints of PyTorch as torchtitan and OLMo-core write them: `.metadata` and `__R_N.distcp`.
//!
//! The two have other names, and other settings in their files. Queries and keys of torchtitan's Llama turn
//! neighbouring columns; those of its Qwen3, of transformers' models and of OLMo-core turn halves of a head,
//! as ours. Names of other programs are a table that the user gives (`given`).

mod given;
mod groups;
pub mod metadata;
mod names;
mod names_file;
mod olmo;
mod rectangles;
mod titan;

use super::compare::Comparison;
use super::detect::{Format, OLMO_MODEL, step_folder};
use super::run::{ForeignRun, Layout, ParamTable, PartReader, Put, Source, Stored};
use super::settings::{number, wanted};
use super::{AdamState, Choices, Decayed, RunDescription};
use crate::tensor_part::{Fused, Pairs, param_key};
use crate::torch::Element;
use base::Problems;
use groups::{AdamWNumbers, NumberGroups};
use metadata::Metadata;
use model::{Param, Weight};
use names::{Names, OLMO, TITAN, TRANSFORMERS};
use rectangles::Entry;
use std::collections::BTreeSet;
use std::path::Path;

/// A folder that is described.
pub struct DcpFolder {
    found: RunDescription,
    meta: Metadata,
    names: &'static Names,
    /// Before the model's names.
    prefix: &'static str,
    pairs: Pairs,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ForeignRun> {
    let step = step_folder(from)?;
    let olmo = step.join(OLMO_MODEL).is_dir();
    let dir = if olmo { step.join(OLMO_MODEL) } else { step.clone() };
    let meta = Metadata::read(&dir)?;
    if let Some(file) = &choices.names {
        return given::open(&step, meta, file, choices);
    }
    let known = if olmo { &[&OLMO][..] } else { &[&TITAN, &TRANSFORMERS] };
    let (names, prefix) = find_names(&meta, known)?;
    let trainer = format!("{} (PyTorch distributed checkpoint)", names.trainer);
    let mut found = RunDescription::new(Format::PytorchDcp, trainer, &step);
    found.grid[2] = meta.writers();
    let mut folder = DcpFolder { found, meta, names, prefix, pairs: names.pairs };
    (names.describe)(&mut folder, &step, choices)?;
    folder.found.wanted =
        wanted(names.trainer, names.dialect, &folder.found.settings, &choices.sets);
    folder.found.note_updates();
    let trainer = names.trainer;
    folder.found.notes.push(format!(
        "the place of {trainer}'s data loader is not carried: samples follow data.rule, of which the steps' \
         number is taken as seen"
    ));
    let table = folder.table();
    let fused = Fused::Heads(folder.pairs);
    let layout = Layout { ranks: 1, fused, gated: false, less_one: false };
    let DcpFolder { found, meta, names, prefix, .. } = folder;
    let remedy = "is it a Llama of that trainer, copied whole?";
    let comparison = Comparison::new(meta.place(), "the model", remedy);
    let reader = DcpReader { meta, names, prefix };
    let mut run = ForeignRun::new(found, table, reader, layout);
    run.comparison = comparison;
    Ok(run)
}

/// Trainer's names of the folder's tensors, and what is before them.
fn find_names(
    meta: &Metadata,
    known: &[&'static Names],
) -> anyhow::Result<(&'static Names, &'static str)> {
    for names in known {
        let embedding = &names.all(Weight::TokenEmbed, 0)[0];
        let is_there = |prefix: &&&str| meta.tensors.contains_key(&format!("{prefix}{embedding}"));
        if let Some(prefix) = names.prefixes.iter().find(is_there) {
            return Ok((names, prefix));
        }
    }
    let first = meta
        .tensors
        .keys()
        .next()
        .map_or("no tensor", String::as_str);
    let embedding = &known[0].all(Weight::TokenEmbed, 0)[0];
    let trainer = known[0].trainer;
    Err(Problems::one(
        meta.place(),
        format!("has no {embedding}, but {first}: {trainer}'s Llama and Qwen3 are read"),
        "say what its tensors are: --names FILE (docs/import.md), or export the weights to Hugging Face's \
         format and import those",
    )
    .into())
}

impl DcpFolder {
    /// Whether queries and keys have norms, as in Qwen3.
    fn has_qk_norm(&self) -> bool {
        self.entry(&self.names.all(Weight::QNorm, 0)).is_some()
    }

    /// The model's tensor of one of these names.
    fn entry(&self, names: &[String]) -> Option<&Entry> {
        names
            .iter()
            .find_map(|name| self.meta.tensors.get(&format!("{}{name}", self.prefix)))
    }

    fn shape(&self, names: &[String]) -> anyhow::Result<&[usize]> {
        match self.entry(names) {
            Some(entry) if !entry.shape.is_empty() => Ok(&entry.shape),
            _ => Err(self.meta.problem(format!("has no {}", names[0]))),
        }
    }

    /// Settings of the model, by the tensors' shapes.
    fn model(&mut self, heads: Option<usize>) -> anyhow::Result<()> {
        let layers = self
            .layers()
            .last()
            .map_or(0, |last| last.saturating_add(1));
        let name = |weight, part| self.names.all(weight, part);
        let embedding = name(Weight::TokenEmbed, 0);
        let head = name(Weight::HeadW, 0);
        let shape = self.shape(&embedding)?;
        let [vocab, hidden] = *shape else {
            return Err(self.meta.problem(format!("{} is {shape:?}", embedding[0])));
        };
        let tied = !self.has_own_head();
        let ffn = self.shape(&name(Weight::Fc1W, 0))?[0];
        let queries = self.shape(&name(Weight::QkvW, 0))?[0];
        let keys = self.shape(&name(Weight::QkvW, 1))?[0];
        let trainer = self.names.trainer;
        let settings = &mut self.found.settings;
        settings.set("model.family", "llama", "");
        settings.set("model.layers", layers, "the tensors' names");
        settings.set("model.hidden", hidden, &embedding[0]);
        settings.set("model.vocab", vocab, &embedding[0]);
        let counted = format!("{trainer}'s softmax counts every row");
        settings.set("model.vocab_multiple", 1, &counted);
        settings.set("model.ffn_hidden", ffn, "feed_forward.w1");
        settings.set("model.tied_head", tied, &format!("whether there is a {}", head[0]));
        if let Some(heads) = heads.filter(|heads| *heads > 0) {
            let dim = queries / heads;
            if dim * heads != queries || dim == 0 || dim % 2 == 1 || keys % dim != 0 {
                return Err(Problems::one("--set", format!(
                    "model.heads={heads}: the matrix of queries has {queries} rows and that of keys {keys}, \
                     which such heads do not divide"
                ), format!("name {trainer}'s {}", self.names.dialect.name("model.heads"))).into());
            }
            settings.set("model.kv_heads", keys / dim, "rows of the keys");
            settings.set("model.head_dim", dim, "rows of the queries / heads");
        }
        Ok(())
    }

    /// Whether the head is a weight by itself. A tied one is saved too, but has no moments.
    fn has_own_head(&self) -> bool {
        let names = self.names.all(Weight::HeadW, 0);
        self.entry(&names).is_some()
            && names.iter().any(|name| {
                let name = format!("{}{name}", self.prefix);
                let moment = self.names.key(self.prefix, &name, AdamState::FirstMoment);
                self.meta.tensors.contains_key(&moment)
            })
    }

    /// Adam's count, which is the same of every parameter.
    fn updates(&self) -> anyhow::Result<u64> {
        let mut first: Option<(&str, u64)> = None;
        for name in self.updated_names() {
            let key = format!("{}state.{name}.step", self.names.optimizer);
            let Some(step) = self.meta.count(&key)? else { continue };
            match first {
                Some((first, known)) if known != step => {
                    return Err(self
                        .meta
                        .problem(format!("{key} is {step}, that of {first} is {known}")));
                }
                _ => first = first.or(Some((name, step))),
            }
        }
        let Some((_, updates)) = first else {
            let optimizer = self.names.optimizer;
            return Err(Problems::one(
                self.meta.place(),
                format!("has no {optimizer}state: the optimizer's states are not there"),
                "import a step that was saved with them, or the weights alone by way of \
                 Hugging Face's format",
            )
            .into());
        };
        Ok(updates)
    }

    /// Reads AdamW's numbers and count, which all parameters share. Notes a decay that gptrain cannot
    /// express. Returns the number of decayed norms.
    fn optimizer(&mut self) -> anyhow::Result<usize> {
        self.found.updates = self.updates()?;
        let groups = NumberGroups::find(&self.meta, self.names.optimizer)?;
        let embedding = &self.names.all(Weight::TokenEmbed, 0)[0];
        let mut known: Option<(String, AdamWNumbers)> = None;
        let mut decayed_norms = 0;
        let mut embedding_decay = None;
        for name in self.updated_names() {
            let Some(found) = groups.read(&self.meta, name)? else { continue };
            let moment = format!("{}state.{name}.exp_avg", self.names.optimizer);
            let vector = self
                .meta
                .tensors
                .get(&moment)
                .is_some_and(|entry| entry.shape.len() == 1);
            decayed_norms += usize::from(vector && found.weight_decay > 0.0);
            let embeds = name.ends_with(embedding.as_str());
            if embeds {
                embedding_decay = Some(found.weight_decay);
            }
            let free = vector || embeds;
            if let Some((first, group)) = &known
                && !group.same(&found, free)
            {
                return Err(self.meta.unsupported(format!(
                    "the group of {name} has {found}, that of {first} has {group}: gptrain has one set of \
                     numbers"
                )));
            }
            // Numbers of a matrix that decays, if there is one.
            if known.is_none() && !free {
                known = Some((name.to_string(), found));
            }
        }
        let notes = &mut self.found.notes;
        let Some((_, group)) = known else {
            notes.push("has no param_groups: set optimizer.adamw".into());
            return Ok(decayed_norms);
        };
        if let Some(decay) = embedding_decay.filter(|decay| *decay != group.weight_decay) {
            let trainer = self.names.trainer;
            notes.push(format!(
                "{trainer} decayed {embedding} by {decay}, other matrices by {}; gptrain decays all matrices \
                 alike",
                group.weight_decay
            ));
        }
        self.found.lr = group.lr;
        self.found.decayed = Decayed {
            embedding: embedding_decay.is_none_or(|decay| decay > 0.0),
            vectors: decayed_norms > 0,
        };
        let settings = &mut self.found.settings;
        for (key, value) in [
            ("beta1", group.betas[0]),
            ("beta2", group.betas[1]),
            ("eps", group.eps),
            ("weight_decay", group.weight_decay),
        ] {
            settings.set(&format!("optimizer.adamw.{key}"), number(value), "param_groups");
        }
        settings.set("lr.peak", number(group.initial_lr.unwrap_or(group.lr)), "initial_lr");
        Ok(decayed_norms)
    }

    /// Names of the model's tensors, with their prefix.
    fn model_names(&self) -> impl Iterator<Item = &str> {
        let names = self.meta.tensors.keys().map(String::as_str);
        names.filter(|name| {
            name.starts_with(self.prefix)
                && !name.ends_with("freqs_cis")
                && !self
                    .names
                    .others
                    .iter()
                    .any(|other| name.starts_with(other))
        })
    }

    /// Names of the parameters that the optimizer updates, as it has them.
    fn updated_names(&self) -> impl Iterator<Item = &str> {
        let before = format!("{}state.", self.names.optimizer);
        self.meta
            .names()
            .filter_map(move |name| str::strip_prefix(name, before.as_str())?.strip_suffix(".step"))
    }

    /// Tensors of every parameter. Weights and moments may have different layouts.
    fn table(&self) -> ParamTable {
        let mut table = ParamTable::default();
        let mut used = BTreeSet::new();
        let own_head = self.has_own_head();
        for key in self.names.params(&self.layers()) {
            for (state, states) in AdamState::ALL.into_iter().zip(SINGLE_STATES) {
                let entry = |name: &str| {
                    let name = format!("{}{name}", self.prefix);
                    self.meta
                        .tensors
                        .get(&self.names.key(self.prefix, &name, state))
                };
                for (name, piece) in self.names.tensors(key, |name| entry(name).is_some()) {
                    let shape = entry(&name)
                        .map(|entry| entry.shape.clone())
                        .unwrap_or_default();
                    let name = format!("{}{name}", self.prefix);
                    used.insert(name.clone());
                    // A tied head is saved too.
                    if key.0 != Weight::HeadW || own_head {
                        let source = Source { name, shape, ..Source::default() };
                        let stored = Stored { source, piece, states };
                        table.stored.entry(key).or_default().push(stored);
                    }
                }
            }
        }
        let unknown = self.model_names().filter(|name| !used.contains(*name));
        table.unknown = unknown.map(str::to_string).collect();
        table
    }

    /// Numbers of the blocks in the names.
    fn layers(&self) -> BTreeSet<usize> {
        let names = self
            .model_names()
            .filter_map(|name| name.strip_prefix(self.prefix));
        names.filter_map(|name| self.names.layer(name)).collect()
    }
}

/// Each state by itself, in their order.
const SINGLE_STATES: [&[AdamState]; 3] =
    [&[AdamState::Master], &[AdamState::FirstMoment], &[AdamState::SecondMoment]];

/// Reader of a trainer's tensors.
struct DcpReader {
    meta: Metadata,
    names: &'static Names,
    prefix: &'static str,
}

impl PartReader for DcpReader {
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()> {
        let name = self.names.key(self.prefix, &source.name, state);
        self.meta.each_rectangle(&name, None, &source.shape, put)
    }

    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element> {
        self.meta
            .element(&self.names.key(self.prefix, &source.name, state))
    }

    fn compare(&self, source: &Source, state: AdamState, shape: &[usize], into: &mut Comparison) {
        let name = self.names.key(self.prefix, &source.name, state);
        self.meta.compare(&name, shape, into);
    }

    fn name(&self, param: &Param, state: AdamState) -> Option<String> {
        let tensors = self.names.tensors(param_key(param), |_| true);
        let (name, _) = tensors.first()?;
        Some(
            self.names
                .key(self.prefix, &format!("{}{name}", self.prefix), state),
        )
    }
}
