//! Folders of Megatron-LM with `--ckpt-format torch`, the only one until 2024: `iter_0000100/`.
//!
//! ```text
//! mp_rank_TT/model_optim_rng.pt         tensor rank TT: args, model, optimizer
//! mp_rank_TT_PPP/model_optim_rng.pt     the same of pipeline stage PPP
//! ```
//!
//! Blocks are numbered within their stage and chunk (`model0`, `model1` … of an interleaved schedule):
//! chunk 0 of all stages comes first. Versions differ only in names and in the
//! layout of the optimizer's states.

mod buffers;
pub mod files;
pub mod names;
pub mod states;

pub use names::{core_name, module_order};

use super::super::torch::TorchFile;
use super::arguments::{Arguments, ELSEWHERE};
use super::detect::{Format, step_folder};
use super::split_run::{FileLayout, ParamPlace, ParamPlaces, ShareReader, SplitRun};
use super::topology::set_counted_split;
use super::{AdamState, Choices, ForeignRun, Opened, RunDescription, same_step, same_updates};
use crate::tensor_part::ParamKey;
use base::Problems;
use buffers::Starts;
use files::{files, grid, topology};
use names::Entry;
use states::{PlainOptimizer, StatePlaces, groups, loss_scale, rate, updates_of};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reader of Megatron-LM's files.
struct MegatronReader {
    /// By stage and tensor rank.
    files: Vec<Vec<PathBuf>>,
    /// Places of each stage's states; None if they are not read.
    states: Option<Vec<States>>,
    /// Whether the weights are 16 bits with f32 copies in the optimizer.
    half: bool,
    /// The files of one stage, opened.
    open: Opened<Vec<Rank>>,
}

/// A tensor rank's files.
struct Rank {
    file: TorchFile,
    /// Buffers of the distributed optimizer.
    buffers: Option<TorchFile>,
}

/// Places of a stage's states.
enum States {
    /// Entries in the parameter groups of the plain optimizer.
    Plain(StatePlaces),
    /// Offsets in the buffers of the distributed optimizer.
    Flat(Starts),
}

/// A parameter as a file has it: its chunk, its weight and block's number in the chunk, its place.
type FoundPlace = (usize, ParamKey, ParamPlace);

/// Numbers of blocks by chunk and stage.
type ChunkLayers = BTreeMap<(usize, usize), usize>;

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    let files = files(&dir)?;
    let main = TorchFile::open(&files[0][0])?;
    let root = main.root();
    let core = core(&root)?;
    let rule = if core { "mcore" } else { "megatron-deepspeed" };
    let args = Arguments::new(root.need("args")?, files[0][0].display().to_string(), rule);
    args.refuse(&[])?;
    grid(&args, &files)?;
    let trainer = format!("Megatron-LM ({})", if core { "core" } else { "before core" });
    let mut found =
        RunDescription::new(Format::MegatronLegacy, trainer, &dir).with_args(&root, &args)?;
    let ranks = files[0].len();
    let stages = files.len();
    topology(&mut found.settings, &args, [ranks, stages])?;
    let replicas = args.count("data_parallel_size").unwrap_or(1) as usize;
    found.grid = [ranks, stages, replicas];
    found.loss_scale = loss_scale(&main, &root)?;
    let version = root
        .some("checkpoint_version")
        .map_or(Ok(0.0), |version| version.float())?;
    let half = args.is_set("bf16") || args.is_set("fp16");
    let mut files = MegatronReader { files, states: None, half, open: Opened(None) };
    let places = files.stages(&args, &mut found)?;
    let layout = FileLayout { ranks, version, vocab: args.optional_count("vocab_size")? };
    Ok(Box::new(SplitRun::new(found, (places, files), &args, layout, choices)?))
}

/// Whether the model has the names of Megatron-Core.
fn core(root: &super::super::torch::Value) -> anyhow::Result<bool> {
    let chunk = root
        .some("model")
        .or_else(|| root.some("model0"))
        .ok_or_else(|| root.problem("has neither model nor model0".into()))?;
    Ok(!chunk
        .named()?
        .iter()
        .any(|(name, _)| name.starts_with("language_model")))
}

impl MegatronReader {
    /// Reads the first tensor rank of every stage: the places of parameters and of their states.
    fn stages(
        &mut self,
        args: &Arguments,
        about: &mut RunDescription,
    ) -> anyhow::Result<ParamPlaces> {
        let mut slots = Vec::new();
        let mut updates = None;
        let mut why = None;
        let mut found = Vec::new();
        for stage in 0..self.files.len() {
            let file = TorchFile::open(&self.files[stage][0])?;
            let root = file.root();
            same_step(&root, about.step, "the first file")?;
            let entries = stage_entries(&file)?;
            for (number, (chunk, entry)) in entries.iter().enumerate() {
                let name = entry.name.clone();
                let shape = entry.value.tensor()?.shape.clone();
                let place = ParamPlace { stage, entry: number, name, shape };
                found.push((*chunk, entry.key, place));
            }
            let buffers = buffers::buffer_file(&self.files[stage][0]);
            let opened = PlainOptimizer::open(&root, self.half)?;
            let flat = opened.is_err() && buffers.is_file();
            let mapped = match &opened {
                _ if flat => buffers::starts(&file, &entries, &buffers, args)?.map(States::Flat),
                Ok(optimizer) => {
                    let entries: Vec<Entry> = entries.into_iter().map(|(_, entry)| entry).collect();
                    optimizer.slots(&entries)?.map(States::Plain)
                }
                Err(why) => Err(why.clone()),
            };
            match mapped {
                Ok(mapped) => slots.push(mapped),
                Err(reason) => why = why.or(Some(format!("{}: {reason}", file.place()))),
            }
            let groups = groups(&root)?;
            if stage == 0 {
                about.lr = rate(&file, &groups).unwrap_or(0.0);
            }
            let count = match &opened {
                Ok(optimizer) => optimizer.updates(&file)?,
                Err(_) => updates_of(&file, &groups, None)?,
            };
            updates = updates.or(count);
            if let (Some(count), Some(first)) = (count, updates) {
                same_updates(&root, count, first)?;
            }
        }
        self.states_of(slots, updates, why, about);
        let counts = chunk_layers(&found, args)?;
        let layers = |stage| counts.iter().filter(move |((_, held), _)| *held == stage);
        let layers = (0..self.files.len()).map(|stage| layers(stage).map(|(_, count)| count).sum());
        set_counted_split(&mut about.settings, args, &layers.collect::<Vec<usize>>());
        Ok(number(found, counts))
    }

    /// Takes the optimizer's states, or notes why they are not read.
    fn states_of(
        &mut self,
        states: Vec<States>,
        updates: Option<u64>,
        why: Option<String>,
        about: &mut RunDescription,
    ) {
        match why.or_else(|| {
            updates
                .is_none()
                .then(|| "the optimizer has no step, in param_groups or in state".to_string())
        }) {
            Some(why) => about.restart_optimizer(why),
            None => {
                self.states = Some(states);
                about.updates = updates.unwrap_or(0);
                about.note_updates();
            }
        }
    }
}

/// Blocks of each chunk and stage.
fn chunk_layers(found: &[FoundPlace], args: &Arguments) -> anyhow::Result<ChunkLayers> {
    let mut counts = ChunkLayers::new();
    for (chunk, (_, layer), place) in found {
        if let Some(layer) = layer.filter(|layer| *layer < 1 << 20) {
            let count = counts.entry((*chunk, place.stage)).or_default();
            *count = (layer + 1).max(*count);
        }
    }
    let layers = args.count("num_layers")? as usize;
    let held: usize = counts.values().sum();
    if held != layers {
        return Err(
            args.problem(format!("args has num_layers {layers}, the files have {held} blocks"))
        );
    }
    Ok(counts)
}

/// Numbers the blocks of all stages and chunks through: chunk 0 of all stages, then chunk 1.
fn number(found: Vec<FoundPlace>, counts: ChunkLayers) -> ParamPlaces {
    let mut first = BTreeMap::new();
    let mut next = 0;
    let mut places = ParamPlaces::default();
    for (key, count) in counts {
        first.insert(key, next);
        next += count;
    }
    for (chunk, (weight, layer), place) in found {
        let begin = first.get(&(chunk, place.stage)).copied().unwrap_or(0);
        let key = (weight, layer.map(|layer| begin + layer));
        // The first stage's tied copy is the embedding; the last stage's is the head.
        places.known.entry(key).or_insert(place);
    }
    places
}

impl ShareReader for MegatronReader {
    fn read(
        &mut self,
        place: &ParamPlace,
        rank: usize,
        state: AdamState,
    ) -> anyhow::Result<Vec<f32>> {
        let flat = |states: &Vec<States>| matches!(states[place.stage], States::Flat(_));
        let flat = self.states.as_ref().is_some_and(flat);
        let open = |path: &PathBuf| -> anyhow::Result<Rank> {
            let buffers = flat
                .then(|| TorchFile::open(&buffers::buffer_file(path)))
                .transpose()?;
            Ok(Rank { file: TorchFile::open(path)?, buffers })
        };
        let stage = &self.files[place.stage];
        let ranks = self
            .open
            .get(place.stage, || stage.iter().map(open).collect())?;
        let Rank { file, buffers } = &ranks[rank];
        let root = file.root();
        let own = || -> anyhow::Result<_> {
            let entries = stage_entries(file)?;
            let entry = entries.into_iter().nth(place.entry).map(|(_, entry)| entry);
            let entry = entry.filter(|entry| entry.name == place.name);
            Ok(entry
                .ok_or_else(|| root.problem(format!("{} is not where rank 0 has it", place.name)))?
                .value)
        };
        let value = match self.states.as_ref().map(|states| &states[place.stage]) {
            None => own()?,
            Some(States::Flat(starts)) => {
                let (chunk, start) = starts[place.entry];
                let buffers = buffers.as_ref().expect("opened above");
                let root = buffers.root();
                let buffer =
                    buffers::state(&root, chunk, state)?.map_err(|why| root.problem(why))?;
                let numel: usize = place.shape.iter().product();
                return buffers.floats(buffer.tensor()?, start..start + numel);
            }
            Some(States::Plain(slots)) => {
                let optimizer =
                    PlainOptimizer::open(&root, self.half)?.map_err(|why| root.problem(why))?;
                match optimizer.state(slots[place.entry], state)? {
                    Some(value) => value,
                    None => own()?,
                }
            }
        };
        let tensor = value.tensor()?;
        if tensor.shape != place.shape {
            let found = &tensor.shape;
            let name = &place.name;
            let shape = &place.shape;
            return Err(value.problem(format!(
                "the {} of {name} is {found:?}, tensor rank 0's weight {shape:?}",
                state.name()
            )));
        }
        file.floats(tensor, 0..tensor.numel())
    }
}

/// The parameters of a file with the numbers of their chunks, in the optimizer's order.
fn stage_entries(file: &TorchFile) -> anyhow::Result<Vec<(usize, Entry<'_>)>> {
    let root = file.root();
    let mut entries = Vec::new();
    let chunk = |number: usize| match number {
        0 => root.some("model").or_else(|| root.some("model0")),
        _ => root.some(&format!("model{number}")),
    };
    for number in 0.. {
        let Some(model) = chunk(number) else { break };
        let found = names::entries(&model)?.map_err(|name| {
            Problems::one(file.place(), format!("{name} is not in gptrain's model"), ELSEWHERE)
        })?;
        entries.extend(found.into_iter().map(|entry| (number, entry)));
    }
    Ok(entries)
}
