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
mod rank;
pub mod states;

pub use names::{core_name, module_order};

use super::super::torch::{Element, TorchFile, Value};
use super::arguments::Arguments;
use super::detect::{Format, step_folder};
use super::run::{ForeignRun, Layout, ParamTable, PartReader, Put, Rows, Source, Stored};
use super::topology::{set_counted_split, set_grid, set_replicas};
use super::{AdamState, Choices, Opened, RunDescription, same_step, same_updates};
use crate::tensor_part::ParamKey;
use files::{files, grid};
use rank::{Rank, States, stage_entries};
use states::{PlainOptimizer, groups, loss_scale, rate, updates_of};
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

/// A parameter of a stage.
struct StageParam {
    chunk: usize,
    /// The weight, and the block's number in the chunk.
    key: ParamKey,
    source: Source,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ForeignRun> {
    let dir = step_folder(from)?;
    let files = files(&dir)?;
    let main = TorchFile::open(&files[0][0])?;
    let root = main.root();
    let core = has_core_names(&root)?;
    let rule = if core { "mcore" } else { "megatron-deepspeed" };
    let args = Arguments::new(root.need("args")?, files[0][0].display().to_string(), rule, choices);
    args.refuse(&[])?;
    grid(&args, &files)?;
    let trainer = format!("Megatron-LM ({})", if core { "core" } else { "before core" });
    let mut found =
        RunDescription::new(Format::MegatronLegacy, trainer, &dir).with_args(&root, &args)?;
    let ranks = files[0].len();
    let stages = files.len();
    set_grid(&mut found.settings, &args, [ranks, stages]);
    set_replicas(&mut found.settings, &args)?;
    let replicas = args.count("topology.data").unwrap_or(1) as usize;
    found.grid = [ranks, stages, replicas];
    found.loss_scale = loss_scale(&main, &root)?;
    let version = root
        .some("checkpoint_version")
        .map_or(Ok(0.0), |version| version.float())?;
    let half = args.is_set("precision: bf16") || args.is_set("precision: fp16");
    let mut reader = MegatronReader { files, states: None, half, open: Opened(None) };
    let params = reader.open_stages(&args, &mut found)?;
    let table = number_blocks(params, &args, stages, &mut found)?;
    let layout = Layout::new(ranks, version, &args);
    let vocab = args.optional_count("model.vocab")?;
    ForeignRun::new(found, table, reader, layout).with_vocabulary(&args, vocab, choices)
}

/// Whether the model has the names of Megatron-Core.
fn has_core_names(root: &Value) -> anyhow::Result<bool> {
    let chunk = root
        .some("model")
        .or_else(|| root.some("model0"))
        .ok_or_else(|| root.problem("has neither model nor model0".into()))?;
    let names = chunk.named()?;
    Ok(!names
        .iter()
        .any(|(name, _)| name.starts_with("language_model")))
}

impl MegatronReader {
    /// Opened files of the rank that holds a source, and the places of its stage's states.
    fn rank(&mut self, source: &Source) -> anyhow::Result<(&Rank, Option<&States>)> {
        let MegatronReader { files, states, half, open } = self;
        let states = states.as_ref().map(|states| &states[source.stage]);
        let ranks = open.get(source.stage, || {
            let paths = &files[source.stage];
            paths
                .iter()
                .map(|path| Rank::open(path, states, *half))
                .collect()
        })?;
        Ok((&ranks[source.rank], states))
    }

    /// Reads the first tensor rank of every stage: its parameters, and the places of their states.
    fn open_stages(
        &mut self,
        args: &Arguments,
        found: &mut RunDescription,
    ) -> anyhow::Result<Vec<StageParam>> {
        let mut states = Vec::new();
        let mut why = None;
        let mut updates = None;
        let mut params = Vec::new();
        for (stage, paths) in self.files.iter().enumerate() {
            let file = TorchFile::open(&paths[0])?;
            let root = file.root();
            same_step(&root, found.step, "the first file")?;
            let entries = stage_entries(&file)?;
            for (entry, (chunk, param)) in entries.iter().enumerate() {
                let name = param.name.clone();
                let shape = param.value.tensor()?.shape.clone();
                let source = Source { name, shape, stage, entry, ..Source::default() };
                params.push(StageParam { chunk: *chunk, key: param.key, source });
            }
            let optimizer = PlainOptimizer::open(&root, self.half)?;
            match States::find(&file, &entries, &optimizer, &paths[0], args)? {
                Ok(found) => states.push(found),
                Err(reason) => why = why.or(Some(format!("{}: {reason}", file.place()))),
            }
            let groups = groups(&root)?;
            if stage == 0 {
                found.lr = rate(&file, &groups).unwrap_or(0.0);
            }
            let count = match &optimizer {
                Ok(optimizer) => optimizer.updates(&file)?,
                Err(_) => updates_of(&file, &groups, None)?,
            };
            updates = updates.or(count);
            if let (Some(count), Some(first)) = (count, updates) {
                same_updates(&root, count, first)?;
            }
        }
        match (why, updates) {
            (Some(why), _) => found.restart_optimizer(why),
            (None, None) => found
                .restart_optimizer("the optimizer has no step, in param_groups or in state".into()),
            (None, Some(updates)) => {
                self.states = Some(states);
                found.updates = updates;
                found.note_updates();
            }
        }
        Ok(params)
    }
}

/// Numbers the blocks of all stages and chunks through, chunk 0 of all stages first, and sets the split of
/// the layers.
fn number_blocks(
    params: Vec<StageParam>,
    args: &Arguments,
    stages: usize,
    found: &mut RunDescription,
) -> anyhow::Result<ParamTable> {
    // Blocks of each chunk and stage.
    let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for StageParam { chunk, key: (_, layer), source } in &params {
        if let Some(layer) = layer.filter(|layer| *layer < 1 << 20) {
            let count = counts.entry((*chunk, source.stage)).or_default();
            *count = (layer + 1).max(*count);
        }
    }
    let layers = args.count("model.layers")? as usize;
    let held: usize = counts.values().sum();
    if held != layers {
        return Err(args.problem(format!(
            "args has {} {layers}, the files have {held} blocks",
            args.name("model.layers")
        )));
    }
    let chunks = 1 + counts.keys().map(|(chunk, _)| *chunk).max().unwrap_or(0);
    let mut parts = vec![0; chunks * stages];
    let mut first = BTreeMap::new();
    let mut next = 0;
    for ((chunk, stage), count) in counts {
        parts[chunk * stages + stage] = count;
        first.insert((chunk, stage), next);
        next += count;
    }
    set_counted_split(&mut found.settings, args, &parts, stages);
    let mut table = ParamTable::default();
    for StageParam { chunk, key: (weight, layer), source } in params {
        let begin = first.get(&(chunk, source.stage)).copied().unwrap_or(0);
        let key = (weight, layer.map(|layer| begin + layer));
        // The first stage's tied copy is the embedding; the last stage's is the head.
        table
            .stored
            .entry(key)
            .or_insert_with(|| vec![Stored::whole(source)]);
    }
    Ok(table)
}

impl PartReader for MegatronReader {
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()> {
        let (rank, states) = self.rank(source)?;
        let mut rows = Rows::new(put, [0, 0], source.matrix());
        rank.read(states, source, state, &mut |values| rows.push(values))
    }

    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element> {
        let (rank, states) = self.rank(source)?;
        rank.element(states, source, state)
    }
}
