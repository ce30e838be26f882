//! Folders of Megatron-LM with `--ckpt-format torch`, the only one until 2024: `iter_0000100/`.
//!
//! ```text
//! mp_rank_TT/model_optim_rng.pt         tensor rank TT: args, model, optimizer
//! mp_rank_TT_PPP/model_optim_rng.pt     the same of pipeline stage PPP
//! ```
//!
//! Blocks are numbered within their stage and chunk (`model0`, `model1` … of an interleaved schedule):
//! chunk 0 of all stages comes first. Of several layouts only the names and the optimizer's map differ.

mod files;
mod names;
mod states;

pub use names::{MODULES, core_name};

use super::super::torch::TorchFile;
use super::arguments::Arguments;
use super::copies::Copies;
use super::cut::{Cut, Fused};
use super::detect::{Format, step_folder};
use super::settings::Settings;
use super::{Choices, ForeignRun, Found, Kept};
use anyhow::Context;
use base::Problems;
use files::{files, grid, topology};
use manifest::Model;
use model::{Param, TpSplit, Weight};
use names::{Entry, entries};
use states::{Optimizer, StatePlaces, loss_scale};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

struct Folder {
    dir: PathBuf,
    found: Found,
    /// Files by stage and tensor rank.
    files: Vec<Vec<PathBuf>>,
    /// Stage of each parameter, and its number among the stage's.
    places: BTreeMap<(Weight, Option<usize>), Place>,
    /// Places of each stage's parameters in its optimizer; None if its states are not read.
    slots: Option<Vec<StatePlaces>>,
    /// Whether the weights are 16 bits with f32 copies in the optimizer.
    half: bool,
    /// Order of the rows of queries, keys and values.
    fused: Fused,
    gated: bool,
    /// Whether the file has a norm's scale less one.
    less_one: bool,
    /// Rows of the embedding on all tensor ranks.
    rows: usize,
    copies: Copies,
    /// The files of one stage, opened.
    open: Option<(usize, Vec<TorchFile>)>,
}

/// A parameter as a file has it: its chunk, its block's number in the chunk, its place.
type FoundPlace = (usize, Weight, Option<usize>, Place);

#[derive(Clone, Debug)]
struct Place {
    stage: usize,
    entry: usize,
    name: String,
    /// On a tensor rank.
    shape: Vec<usize>,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    let files = files(&dir)?;
    let main = TorchFile::open(&files[0][0])?;
    let root = main.root();
    let core = core(&root)?;
    let rule = if core { "mcore" } else { "megatron-deepspeed" };
    let args = Arguments::new(root.need("args")?, files[0][0].display().to_string(), rule);
    args.refuse(&[(
        "window_size",
        "gptrain's windows are model.window: import the weights alone",
    )])?;
    grid(&args, &files)?;
    let mut notes = Vec::new();
    let mut settings = Settings::default();
    args.model(&mut settings, &mut notes)?;
    args.training(&mut settings, &mut notes)?;
    let scheduler = root.some("opt_param_scheduler").or_else(|| root.some("lr_scheduler"));
    args.rates(scheduler.as_ref(), &mut settings)?;
    topology(&mut settings, &args, &files)?;
    let step = root.need("iteration")?.count()?;
    let samples = args.count("consumed_train_samples")?;
    let version = root.some("checkpoint_version").map_or(Ok(0.0), |version| version.float())?;
    let fused = match (version, args.is_set("rotary_interleaved")) {
        (version, _) if version < 1.0 => Fused::Kinds,
        (version, _) if version < 2.0 => Fused::Columns,
        (_, true) => Fused::Heads(super::cut::Pairs::Neighbours),
        _ => Fused::Heads(super::cut::Pairs::Halves),
    };
    let half = args.is_set("bf16") || args.is_set("fp16");
    let found = Found {
        format: Format::MegatronLegacy,
        trainer: format!("Megatron-LM ({})", if core { "core" } else { "before core" }),
        folder: dir.display().to_string(),
        step,
        samples,
        tokens: samples * args.count("seq_length")?,
        grid: [files[0].len(), files.len(), args.count("data_parallel_size").unwrap_or(1) as usize],
        updates: 0,
        lr: 0.0,
        loss_scale: loss_scale(&main)?,
        settings,
        without_states: None,
        wanted: Vec::new(),
        aside: Vec::new(),
        notes,
    };
    let mut folder = Folder {
        dir,
        found,
        files,
        places: BTreeMap::new(),
        slots: None,
        half,
        fused,
        gated: args.is_set("swiglu"),
        less_one: args.is_set("apply_layernorm_1p"),
        rows: 0,
        copies: Copies::new(choices.replicated),
        open: None,
    };
    folder.stages(&args)?;
    folder.vocabulary(&args, choices)?;
    folder.found.aside = args.aside();
    Ok(Box::new(folder))
}

/// Whether the model has the names of Megatron-Core.
fn core(root: &super::super::torch::Value) -> anyhow::Result<bool> {
    let chunk = root.some("model").or_else(|| root.some("model0"));
    let chunk = chunk.ok_or_else(|| root.problem("has neither model nor model0".into()))?;
    Ok(!chunk.named()?.iter().any(|(name, _)| name.starts_with("language_model")))
}

impl Folder {
    /// Reads the first tensor rank of every stage: the places of parameters and of their states.
    fn stages(&mut self, args: &Arguments) -> anyhow::Result<()> {
        let (mut slots, mut updates, mut why) = (Vec::new(), None, None);
        let mut found = Vec::new();
        for stage in 0..self.files.len() {
            let file = TorchFile::open(&self.files[stage][0])?;
            let root = file.root();
            let iteration = root.need("iteration")?;
            if iteration.count()? != self.found.step {
                let first = self.found.step;
                let what = format!("iteration is {iteration}, in the first file it is {first}");
                return Err(iteration.problem(what));
            }
            let all = stage_entries(&file)?;
            for (number, (chunk, entry)) in all.iter().enumerate() {
                let (name, shape) = (entry.name.clone(), entry.value.tensor()?.shape.clone());
                let place = Place { stage, entry: number, name, shape };
                found.push((*chunk, entry.weight, entry.layer, place));
            }
            let entries: Vec<Entry> = all.into_iter().map(|(_, entry)| entry).collect();
            let opened = Optimizer::of(&root, self.half)?;
            let mapped = match &opened {
                Ok(optimizer) => optimizer.slots(&entries)?,
                Err(why) => Err(why.clone()),
            };
            match mapped {
                Ok(mapped) => slots.push(mapped),
                Err(reason) => why = why.or(Some(format!("{}: {reason}", file.place()))),
            }
            let Ok(optimizer) = &opened else { continue };
            if stage == 0 {
                self.found.lr = optimizer.rate().unwrap_or(0.0);
            }
            let count = optimizer.updates(&file)?;
            if let (Some(count), Some(known)) = (count, updates)
                && count != known
            {
                let what = format!("Adam's step is {count}, in the first file it is {known}");
                return Err(root.problem(what));
            }
            updates = updates.or(count);
        }
        self.states_of(slots, updates, why);
        self.number(found, args)
    }

    /// Takes the optimizer's states, or notes why they are not read.
    fn states_of(&mut self, slots: Vec<StatePlaces>, updates: Option<u64>, why: Option<String>) {
        let no_step = || "the optimizer has no step, in param_groups or in state".to_string();
        match why.or_else(|| updates.is_none().then(no_step)) {
            Some(why) => {
                let note = format!("AdamW begins again: its states are not read ({why})");
                self.found.notes.push(note);
                self.found.without_states = Some(why);
            }
            None => {
                self.slots = Some(slots);
                self.found.updates = updates.unwrap_or(0);
                self.found.counts();
            }
        }
    }

    /// Numbers the blocks of all stages and chunks through: chunk 0 of all stages, then chunk 1.
    fn number(&mut self, found: Vec<FoundPlace>, args: &Arguments) -> anyhow::Result<()> {
        let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (chunk, _, layer, place) in &found {
            if let Some(layer) = layer.filter(|layer| *layer < 1 << 20) {
                let count = counts.entry((*chunk, place.stage)).or_default();
                *count = (layer + 1).max(*count);
            }
        }
        let layers = args.count("num_layers")? as usize;
        let held: usize = counts.values().sum();
        if held != layers {
            let what = format!("args has num_layers {layers}, the files have {held} blocks");
            return Err(args.problem(what));
        }
        let (mut first, mut next) = (BTreeMap::new(), 0);
        for (key, count) in counts {
            first.insert(key, next);
            next += count;
        }
        for (chunk, weight, layer, place) in found {
            let begin = first.get(&(chunk, place.stage)).copied().unwrap_or(0);
            let key = (weight, layer.map(|layer| begin + layer));
            // The first stage's tied copy is the embedding; the last stage's is the head.
            self.places.entry(key).or_insert(place);
        }
        Ok(())
    }

    /// Decides the model's vocabulary.
    fn vocabulary(&mut self, args: &Arguments, choices: &Choices) -> anyhow::Result<()> {
        let place = self.places.get(&(Weight::TokenEmbed, None)).cloned();
        let place = place.ok_or_else(|| args.problem("the model has no word_embeddings".into()))?;
        self.rows = place.shape.first().copied().unwrap_or(0) * self.files[0].len();
        let rows = self.rows;
        let original = args.get("vocab_size").map(|size| size.count()).transpose()?;
        let original = original.map_or(rows, |size| size as usize).clamp(1, rows.max(1));
        let multiple = args.get("make_vocab_size_divisible_by").map(|v| v.count()).transpose()?;
        let strip =
            original < rows && (choices.mask_padding || self.untrained(original, &place)?);
        self.found.vocabulary([original, rows], multiple, strip);
        Ok(())
    }

    /// Whether the rows that pad the embedding are zero in every state.
    fn untrained(&mut self, original: usize, place: &Place) -> anyhow::Result<bool> {
        let (rows, cols) = (place.shape[0], place.shape.get(1).copied().unwrap_or(1));
        let states = if self.slots.is_some() { &Kept::ALL[..] } else { &[Kept::Master] };
        for rank in 0..self.files[0].len() {
            let from = original.saturating_sub(rank * rows).min(rows);
            for kept in states.iter().filter(|_| from < rows) {
                let values = self.part(place, rank, *kept)?;
                if values[from * cols..].iter().any(|value| *value != 0.0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn key(&self, param: &Param) -> (Weight, Option<usize>) {
        let layer = param.name.strip_prefix("block.").and_then(|rest| rest.split_once('.'));
        (param.spec.weight, layer.and_then(|(layer, _)| layer.parse().ok()))
    }

    /// The part of a parameter on a tensor rank.
    fn cut(&self, model: &Model, param: &Param, shape: &[usize], rank: usize) -> Cut {
        let rows = if param.spec.vocab { self.rows } else { shape[0] };
        let whole = [rows, shape.get(1).copied().unwrap_or(1)];
        let ranks = [rank, self.files[0].len()];
        match param.spec.weight {
            Weight::QkvW | Weight::QkvB => {
                Cut::of_fused(model.heads(), whole[1], ranks, self.fused)
            }
            _ => Cut::of_rank(param, whole, ranks, self.gated),
        }
    }

    /// A state of a parameter on a tensor rank; of a weight without states, the model's own.
    fn part(&mut self, place: &Place, rank: usize, kept: Kept) -> anyhow::Result<Vec<f32>> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != place.stage) {
            self.open = None;
            let files = self.files[place.stage].iter().map(|path| TorchFile::open(path));
            self.open = Some((place.stage, files.collect::<anyhow::Result<Vec<_>>>()?));
        }
        let file = &self.open.as_ref().expect("opened above").1[rank];
        let root = file.root();
        let own = || -> anyhow::Result<_> {
            let entries = stage_entries(file)?;
            let entry = entries.into_iter().nth(place.entry).map(|(_, entry)| entry);
            let entry = entry.filter(|entry| entry.name == place.name);
            let missing = || root.problem(format!("{} is not where rank 0 has it", place.name));
            Ok(entry.ok_or_else(missing)?.value)
        };
        let value = match &self.slots {
            None => own()?,
            Some(slots) => {
                let optimizer = Optimizer::of(&root, self.half)?;
                let optimizer = optimizer.map_err(|why| root.problem(why))?;
                match optimizer.state(slots[place.stage][place.entry], kept)? {
                    Some(value) => value,
                    None => own()?,
                }
            }
        };
        let tensor = value.tensor()?;
        if tensor.shape != place.shape {
            let (found, name, shape) = (&tensor.shape, &place.name, &place.shape);
            let what = format!(
                "the {} of {name} is {found:?}, tensor rank 0's weight {shape:?}",
                kept.name()
            );
            return Err(value.problem(what));
        }
        file.floats(tensor, 0..tensor.numel())
    }
}

/// The parameters of a file with the numbers of their chunks, in the optimizer's order.
fn stage_entries(file: &TorchFile) -> anyhow::Result<Vec<(usize, Entry<'_>)>> {
    let root = file.root();
    let mut all = Vec::new();
    let chunk = |number: usize| match number {
        0 => root.some("model").or_else(|| root.some("model0")),
        _ => root.some(&format!("model{number}")),
    };
    for number in 0.. {
        let Some(model) = chunk(number) else { break };
        let found = entries(&model)?
            .map_err(|name| model.problem(format!("{name} is not in gptrain's model")))?;
        all.extend(found.into_iter().map(|entry| (number, entry)));
    }
    Ok(all)
}

impl ForeignRun for Folder {
    fn found(&self) -> &Found {
        &self.found
    }

    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let (mut problems, mut known) = (Problems::default(), BTreeSet::new());
        let mut add = |what: String| {
            problems.add(self.dir.display().to_string(), what, "is args that of this model?");
        };
        let (ranks, heads) = (self.files[0].len(), model.heads());
        if !heads.kv.is_multiple_of(ranks) {
            add(format!("{} heads of keys on {ranks} tensor ranks: copies are not read", heads.kv));
        }
        if heads.kv != heads.query && !matches!(self.fused, Fused::Heads(_)) {
            add("checkpoint_version is older than 2.0, and there are groups of queries".into());
        }
        if !problems.list.is_empty() {
            return Err(problems.into());
        }
        let mut add = |what: String| {
            problems.add(self.dir.display().to_string(), what, "is args that of this model?");
        };
        for param in params {
            let key = self.key(param);
            known.insert(key);
            let shape = engine::saved_shape(param, model.vocab);
            let Some(place) = self.places.get(&key) else {
                add(format!("has no parameter for {}", param.name));
                continue;
            };
            let [rows, cols] = self.cut(model, param, &shape, 0).shape();
            let expected = if shape.len() == 1 { vec![rows] } else { vec![rows, cols] };
            if place.shape != expected {
                let (name, found) = (&place.name, &place.shape);
                add(format!("{name} is {found:?}, args makes it {expected:?}"));
            }
        }
        let tied = model.tied_head.then_some((Weight::HeadW, None));
        for (key, place) in &self.places {
            if !known.contains(key) && Some(*key) != tied {
                add(format!("{} is not in gptrain's model", place.name));
            }
        }
        problems.list.truncate(8);
        Ok(problems.or(())?)
    }

    fn read(
        &mut self,
        model: &Model,
        param: &Param,
        shape: &[usize],
        kept: Kept,
    ) -> anyhow::Result<Vec<f32>> {
        let numel = shape.iter().product();
        if self.slots.is_none() && kept != Kept::Master {
            return Ok(vec![0.0; numel]);
        }
        let place = self.places.get(&self.key(param)).cloned();
        let place = place.with_context(|| format!("no place of {}", param.name))?;
        let ranks = self.files[0].len();
        let mut ours = if param.spec.split == TpSplit::Whole {
            let copies = (0..ranks).map(|rank| self.part(&place, rank, kept));
            let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
            self.copies.merge(&place.name, kept, copies)
        } else {
            let mut ours = vec![0.0; numel];
            let width = shape.get(1).copied().unwrap_or(1);
            let tied = self.places.get(&(Weight::HeadW, None)).cloned();
            let tied = tied.filter(|_| param.spec.tied && kept == Kept::Master);
            for rank in 0..ranks {
                let part = self.part(&place, rank, kept)?;
                if let Some(copy) = &tied {
                    let last = self.part(copy, rank, kept)?;
                    self.copies.tied(&part, &last);
                }
                let cut = self.cut(model, param, shape, rank);
                cut.put(([0, 0], cut.shape()), &part, &mut ours, width);
            }
            ours
        };
        let scale = matches!(
            param.spec.weight,
            Weight::Ln1Scale | Weight::Ln2Scale | Weight::LnfScale | Weight::QNorm | Weight::KNorm
        );
        if self.less_one && scale && kept == Kept::Master {
            ours.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(ours)
    }

    fn remarks(&mut self) -> Vec<String> {
        self.copies.remarks()
    }
}
