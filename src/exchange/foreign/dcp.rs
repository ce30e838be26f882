//! Distributed checkpoints of PyTorch as torchtitan and OLMo-core write them: `.metadata` and `__R_N.distcp`.
//!
//! The two have other names, and other settings in their files. torchtitan's queries and keys turn
//! neighbouring columns, OLMo-core's turn halves of a head, as ours.

mod groups;
pub mod metadata;
mod names;
mod olmo;
mod titan;

use super::compare::{Comparison, like};
use super::detect::{Format, OLMO_MODEL, step_folder};
use super::settings::{number, wanted};
use super::{AdamState, Choices, ForeignRun, Request, RunDescription};
use crate::tensor_part::Pairs;
use base::{Heads, Problems};
use groups::{AdamWNumbers, NumberGroups};
use manifest::Model;
use metadata::{Metadata, StoredPart};
use model::{Param, Weight};
use names::{Names, OLMO, TITAN};
use std::path::Path;

pub struct DcpRun {
    found: RunDescription,
    meta: Metadata,
    names: &'static Names,
    /// Before the model's names.
    prefix: &'static str,
    pairs: Pairs,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let step = step_folder(from)?;
    let olmo = step.join(OLMO_MODEL).is_dir();
    let names = if olmo { &OLMO } else { &TITAN };
    let dir = if olmo { step.join(OLMO_MODEL) } else { step.clone() };
    let meta = Metadata::read(&dir)?;
    let embedding = &names.all(Weight::TokenEmbed, 0)[0];
    let Some(prefix) = names
        .prefixes
        .iter()
        .find(|prefix| meta.tensors.contains_key(&format!("{prefix}{embedding}")))
    else {
        let first = meta
            .tensors
            .keys()
            .next()
            .map_or("no tensor", String::as_str);
        let trainer = names.trainer;
        return Err(Problems::one(
            meta.place(),
            format!("has no {embedding}, but {first}: {trainer}'s Llama is read"),
            "export the weights to Hugging Face's format and import those",
        )
        .into());
    };
    let trainer = format!("{} (PyTorch distributed checkpoint)", names.trainer);
    let mut found = RunDescription::new(Format::PytorchDcp, trainer, &step);
    found.grid[2] = meta.writers();
    let mut folder = DcpRun { found, meta, names, prefix, pairs: names.pairs };
    (names.describe)(&mut folder, &step, choices)?;
    folder.found.wanted =
        wanted(names.trainer, names.dialect, &folder.found.settings, &choices.sets);
    folder.found.note_updates();
    let trainer = names.trainer;
    folder.found.notes.push(format!(
        "the place of {trainer}'s data loader is not carried: samples follow data.rule, of which the steps' \
         number is taken as seen"
    ));
    Ok(Box::new(folder))
}

impl DcpRun {
    /// Whether the model has a tensor of one of these names.
    fn has(&self, names: &[String]) -> bool {
        let full = |name: &String| format!("{}{name}", self.prefix);
        names
            .iter()
            .any(|name| self.meta.tensors.contains_key(&full(name)))
    }

    fn shape(&self, names: &[String]) -> anyhow::Result<&[usize]> {
        let full = |name: &String| format!("{}{name}", self.prefix);
        let found = names
            .iter()
            .find_map(|name| self.meta.tensors.get(&full(name)))
            .filter(|entry| !entry.shape.is_empty())
            .ok_or_else(|| self.meta.problem(format!("has no {}", names[0])))?;
        Ok(&found.shape)
    }

    /// Settings of the model, by the tensors' shapes.
    fn model(&mut self, heads: Option<usize>) -> anyhow::Result<()> {
        let names = self
            .model_names()
            .filter_map(|name| name.strip_prefix(self.prefix));
        let layers = self.names.layers(names);
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
        self.has(&names)
            && names.iter().any(|name| {
                let moment =
                    self.adam_state(&format!("{}{name}", self.prefix), AdamState::FirstMoment);
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

    /// Name of a state of a tensor.
    fn adam_state(&self, name: &str, state: AdamState) -> String {
        if state == AdamState::Master {
            return name.to_string();
        }
        let own = if self.names.prefixed { name } else { &name[self.prefix.len()..] };
        format!("{}state.{own}.{}", self.names.optimizer, state.key(""))
    }

    /// Tensors with a state of a parameter, by the names of their weights, with the prefix.
    fn tensors(
        &self,
        param: &Param,
        shape: &[usize],
        heads: Heads,
        state: AdamState,
    ) -> Vec<StoredPart> {
        let has = |name: &str| {
            let key = self.adam_state(&format!("{}{name}", self.prefix), state);
            self.meta.tensors.contains_key(&key)
        };
        let tensors = self
            .names
            .tensors_of(param, shape, (heads, self.pairs), &has);
        tensors
            .into_iter()
            .map(|(name, cut)| StoredPart {
                name: format!("{}{name}", self.prefix),
                layer: None,
                cut,
            })
            .collect()
    }
}

impl ForeignRun for DcpRun {
    fn description(&self) -> &RunDescription {
        &self.found
    }

    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let mut compared =
            Comparison::new(self.meta.place(), "is it a Llama of that trainer, copied whole?");
        for param in params {
            let shape = engine::saved_shape(param, model.vocab);
            for state in AdamState::ALL {
                let tensors = self.tensors(param, &shape, model.heads(), state);
                if tensors.is_empty() {
                    compared.missing(param);
                }
                for StoredPart { name, cut, .. } in tensors {
                    let key = self.adam_state(&name, state);
                    let expected = like(&shape, cut.shape());
                    self.meta
                        .compare(&key, &expected, "the model", &mut compared);
                }
            }
        }
        if model.tied_head {
            let head = self.names.all(Weight::HeadW, 0);
            head.iter()
                .for_each(|name| compared.mark(&format!("{}{name}", self.prefix)));
        }
        compared.others(self.model_names());
        Ok(compared.finish()?)
    }

    fn read(&mut self, request: Request) -> anyhow::Result<Vec<f32>> {
        let Request { model, param, shape, state } = request;
        let parts = self.tensors(param, shape, model.heads(), state);
        self.meta
            .assemble(&parts, shape, |name| self.adam_state(name, state))
    }
}
