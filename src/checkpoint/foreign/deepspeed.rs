//! Folders of Megatron-DeepSpeed with ZeRO stage 1, as BLOOM's: `global_stepN/`.
//!
//! ```text
//! mp_rank_MM_model_states.pt                            M = stage·TP + tensor rank: args, names, shapes
//! bf16_zero_pp_rank_D_mp_rank_MM_optim_states.pt        rank D's part of the flat f32 groups
//! ```
//!
//! A group of parameters is flat: one parameter after another, padded, then cut into equal parts for
//! the data-parallel ranks (which the files' names call pp_rank). `param_slice_mappings` has the place of
//! a parameter in each part; without it, the order and the sizes of `param_shapes` do.

mod flat;
pub mod layers;
mod names;
mod optimizer;
pub mod universal;
pub mod zero3;

use super::super::torch::{TorchFile, Value};
use super::arguments::Arguments;
use super::compare::Comparison;
use super::copies::Copies;
use super::detect::{Format, step_folder};
use super::settings::Settings;
use super::{Choices, ForeignRun, Found, Kept, Request};
use anyhow::Context;
use base::Problems;
use layers::{EMBEDDING, first_block, name_of};
use manifest::Model;
use model::{Param, TpSplit};
use names::Names;
use optimizer::{loss_scale, rate, updates};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The order of samples.
const RULE: &str = "megatron-deepspeed";

/// Names and shapes of a group's parameters, in their order.
type Group = Vec<(String, Vec<usize>)>;

/// A folder, its small values read.
struct Folder {
    dir: PathBuf,
    found: Found,
    /// Whether rows that pad the vocabulary are left out though they were trained.
    mask_padding: bool,
    /// Names and shapes of each stage's groups, in their order.
    stages: Vec<Vec<Group>>,
    /// The number that the first block has in the pipeline's list of layers.
    first_block: usize,
    /// Files of the optimizer: by data rank and model-parallel rank.
    files: BTreeMap<(usize, usize), PathBuf>,
    /// The files of one stage, opened: [tensor rank][data rank].
    open: Option<(usize, Vec<Vec<TorchFile>>)>,
    copies: Copies,
}

/// Place of a parameter in its stage.
struct Place {
    stage: usize,
    group: usize,
    /// First element in the flat group.
    first: usize,
    shape: Vec<usize>,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    let names = Names::list(&dir)?;
    let main = TorchFile::open(&dir.join(names.model(0)))?;
    let root = main.root();
    let place = dir.join(names.model(0)).display().to_string();
    let args = Arguments::new(root.need("args")?, place, RULE);
    refuse(&args)?;
    let grid = names.grid(&dir, &args)?;
    let stages = stages(&dir, &names, grid, root.need("iteration")?.count()?)?;
    let sharded = TorchFile::open(&dir.join(&names.optim[&(0, 0)]))?;
    let scheduler = root.some("lr_scheduler").or_else(|| root.some("opt_param_scheduler"));
    let trainer = format!("Megatron-DeepSpeed (DeepSpeed {})", deepspeed_version(&root));
    let found = Found::new(Format::MegatronDeepSpeed, trainer, &dir);
    let mut found = found.with_args(&root, &args, scheduler)?;
    topology(&mut found.settings, grid, &args);
    let block_names = stages.iter().flatten().flatten().map(|(name, _)| name.as_str());
    let first_block = first_block(block_names)
        .with_context(|| format!("{}: no parameter is a block's input_layernorm", dir.display()))?;
    uniform(&stages, first_block, &args)?;
    let optimizer = sharded.root().need("optimizer_state_dict")?;
    let tokens = root.some("tokens").map_or(Ok(0), |tokens| tokens.count())?;
    found.tokens = if tokens > 0 { tokens } else { found.tokens };
    found.grid = grid;
    found.updates = updates(&sharded, &optimizer)?;
    found.lr = rate(&optimizer).unwrap_or(0.0);
    found.loss_scale = loss_scale(&optimizer)?;
    let files = names.optim.iter().map(|(place, name)| (*place, dir.join(name))).collect();
    let (copies, mask_padding) = (Copies::new(choices.replicated), choices.mask_padding);
    let open = None;
    let mut folder = Folder { dir, found, mask_padding, stages, first_block, files, open, copies };
    folder.vocabulary(&root, &args)?;
    folder.found.counts();
    folder.found.aside = args.aside();
    if version_of(&root) < 2.0 {
        let what = format!("checkpoint_version is {}: 2.0 and later are read", version_of(&root));
        return Err(args.problem(what));
    }
    Ok(Box::new(folder))
}

/// An error about options that this trainer's folders are not read with.
fn refuse(args: &Arguments) -> Result<(), Problems> {
    args.refuse(&[
        ("swiglu", "SwiGLU in this folder is not read yet"),
        ("add_position_embedding_type", "this position embedding is not one of gptrain's"),
        ("use_rotary_position_embeddings", "rotary positions in this folder are not read yet"),
    ])
}

/// Version of DeepSpeed that wrote the folder.
fn deepspeed_version<'a>(root: &Value<'a>) -> &'a str {
    let version = root.some("ds_version").and_then(|version| version.str().ok());
    version.unwrap_or("of an unknown version")
}

fn version_of(root: &Value) -> f64 {
    root.some("checkpoint_version").and_then(|version| version.float().ok()).unwrap_or(3.0)
}

/// Names and shapes of every stage's groups, of its first tensor rank; all files are of one step.
fn stages(
    dir: &Path,
    names: &Names,
    [tensor, pipeline, _]: [usize; 3],
    step: u64,
) -> anyhow::Result<Vec<Vec<Group>>> {
    let mut stages = Vec::new();
    for rank in 0..tensor * pipeline {
        let file = TorchFile::open(&dir.join(names.model(rank)))?;
        let root = file.root();
        let iteration = root.need("iteration")?;
        if iteration.count()? != step {
            let first = names.model(0);
            return Err(
                iteration.problem(format!("iteration is {iteration}, in {first} it is {step}"))
            );
        }
        if rank % tensor != 0 {
            continue;
        }
        stages.push(groups(&root)?);
    }
    Ok(stages)
}

/// Names and shapes of the groups that a file's rank has, in their order.
fn groups(root: &Value) -> anyhow::Result<Vec<Group>> {
    let group = |group: &Value| -> anyhow::Result<Group> {
        let named = group.named()?;
        let shape = |(name, sizes): &(&str, Value)| {
            let sizes = sizes.items()?.into_iter().map(|n| Ok(n.count()? as usize));
            Ok((name.to_string(), sizes.collect::<anyhow::Result<Vec<_>>>()?))
        };
        named.iter().map(shape).collect()
    };
    root.need("param_shapes")?.items()?.iter().map(group).collect()
}

/// Every block is there, once.
fn uniform(stages: &[Vec<Group>], first: usize, args: &Arguments) -> anyhow::Result<()> {
    let layers = args.count("num_layers")? as usize;
    for layer in first..first.saturating_add(layers) {
        let name = format!("{layer}.input_layernorm.weight");
        let count = stages.iter().flatten().flatten().filter(|(found, _)| *found == name).count();
        if count != 1 {
            let what = format!("{name} is in {count} of param_shapes, not in one");
            return Err(args.problem(what));
        }
    }
    Ok(())
}

fn topology(settings: &mut Settings, [tensor, pipeline, data]: [usize; 3], args: &Arguments) {
    settings.set("topology.tensor", tensor, "tensor_model_parallel_size");
    settings.set("topology.pipeline", pipeline, "pipeline_model_parallel_size");
    settings.set("topology.data", data, "files of the optimizer");
    if data > 1 {
        settings.set("topology.zero", 1, "partitioned by DeepSpeed");
    }
    let embedding = |method: &Value| method.str().is_ok_and(|method| method.contains("embedding"));
    if args.get("pp_partition_method").is_some_and(|method| embedding(&method)) && pipeline > 1 {
        settings.set("topology.layer_split", "transformer_and_embedding", "pp_partition_method");
    }
    if args.is_set("checkpoint_activations") {
        settings.set("topology.recompute", "full", "checkpoint_activations");
    }
}

impl Folder {
    /// Decides the model's vocabulary: padded, unless its last rows were never trained.
    fn vocabulary(&mut self, root: &Value, args: &Arguments) -> anyhow::Result<()> {
        let [tensor, ..] = self.found.grid;
        let shape = self.place(EMBEDDING)?.shape;
        let rows = shape[0] * tensor;
        let original =
            root.some("checkpoint_info").and_then(|info| info.some("original_vocab_size"));
        let original = original.map(|size| size.count()).transpose()?.map(|size| size as usize);
        let original = original.filter(|size| *size < rows).unwrap_or(rows);
        let multiple = args.get("make_vocab_size_divisible_by").map(|v| v.count()).transpose()?;
        let strip = original < rows && (self.mask_padding || self.untrained(original, &shape)?);
        self.found.vocabulary([original, rows], multiple, strip);
        Ok(())
    }

    /// Whether the rows that pad the embedding are zero in every state.
    fn untrained(&mut self, original: usize, shape: &[usize]) -> anyhow::Result<bool> {
        let (rows, cols) = (shape[0], shape[1]);
        for rank in 0..self.found.grid[0] {
            let from = original.saturating_sub(rank * rows).min(rows);
            if from == rows {
                continue;
            }
            for kept in Kept::ALL {
                let values = self.fragments(EMBEDDING, rank, kept)?;
                if values[from * cols..].iter().any(|value| *value != 0.0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The first stage that has a parameter, and where in it.
    fn place(&self, name: &str) -> anyhow::Result<Place> {
        self.places(name).next().ok_or_else(|| {
            let what = format!("no stage's param_shapes has {name}");
            Problems::one(self.dir.display().to_string(), what, "copy the folder whole").into()
        })
    }

    fn places(&self, name: &str) -> impl DoubleEndedIterator<Item = Place> {
        let name = name.to_string();
        self.stages.iter().enumerate().filter_map(move |(stage, groups)| {
            groups.iter().enumerate().find_map(|(group, params)| {
                let at = params.iter().position(|(found, _)| *found == name)?;
                let numel = |(_, shape): &(String, Vec<usize>)| shape.iter().product::<usize>();
                let first = params[..at].iter().map(numel).sum();
                Some(Place { stage, group, first, shape: params[at].1.clone() })
            })
        })
    }

    /// Compares the last stage's copy of the embedding with the first's.
    fn compare_tied(&mut self, rank: usize, first: &[f32]) -> anyhow::Result<()> {
        let Some(last) = self.places(EMBEDDING).next_back().filter(|place| place.stage > 0) else {
            return Ok(());
        };
        let other = self.fragments_at(&last, EMBEDDING, rank, Kept::Master)?;
        self.copies.tied(first, &other);
        Ok(())
    }

    /// Copies of a parameter on all tensor ranks as one.
    fn replicated(&mut self, name: &str, kept: Kept) -> anyhow::Result<Vec<f32>> {
        let ranks = self.found.grid[0];
        let copies = (0..ranks).map(|rank| self.fragments(name, rank, kept));
        let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(self.copies.merge(name, kept, copies))
    }

    /// The trainer's name of a parameter.
    fn name(&self, param: &Param) -> Option<String> {
        let names = self.stages.iter().flatten().flatten().map(|(name, _)| name.as_str());
        name_of(param, self.first_block, names)
    }
}

impl ForeignRun for Folder {
    fn found(&self) -> &Found {
        &self.found
    }

    fn check(&self, _: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let mut compared = Comparison::with_args(&self.dir);
        let tensor = self.found.grid[0];
        for param in params {
            let Some(name) = self.name(param) else {
                compared.missing(param);
                continue;
            };
            let [rows, cols] = match param.spec.split {
                // The vocabulary may lose its padding.
                TpSplit::Rows if param.spec.vocab => [self.place(&name)?.shape[0], param.cols],
                TpSplit::Rows => [param.rows / tensor, param.cols],
                TpSplit::Cols => [param.rows, param.cols / tensor],
                TpSplit::Whole => [param.rows, param.cols],
            };
            let shape = if param.spec.rows == 1 { vec![cols] } else { vec![rows, cols] };
            let found = self.places(&name).next().map(|place| place.shape);
            compared.shape(&name, found.as_deref(), &shape, "args");
        }
        let names = self.stages.iter().flatten().flatten().map(|(name, _)| name.as_str());
        compared.others(names);
        Ok(compared.finish()?)
    }

    fn read(&mut self, Request { param, shape, kept, .. }: Request) -> anyhow::Result<Vec<f32>> {
        let name = self.name(param).with_context(|| format!("no name for {}", param.name))?;
        let ranks = self.found.grid[0];
        let cols = shape[shape.len() - 1];
        let mut whole = match param.spec.split {
            TpSplit::Whole => self.replicated(&name, kept)?,
            TpSplit::Cols if shape.len() > 1 => {
                let share = cols / ranks;
                let mut whole = vec![0.0; shape.iter().product()];
                for rank in 0..ranks {
                    let part = self.fragments(&name, rank, kept)?;
                    for (row, values) in part.chunks_exact(share).enumerate() {
                        whole[row * cols + rank * share..][..share].copy_from_slice(values);
                    }
                }
                whole
            }
            TpSplit::Rows | TpSplit::Cols => {
                let mut whole = Vec::new();
                for rank in 0..ranks {
                    let part = self.fragments(&name, rank, kept)?;
                    if name == EMBEDDING && kept == Kept::Master {
                        self.compare_tied(rank, &part)?;
                    }
                    whole.extend(part);
                }
                whole
            }
        };
        whole.truncate(shape.iter().product()); // rows that pad the vocabulary
        Ok(whole)
    }

    fn remarks(&mut self) -> Vec<String> {
        self.copies.remarks()
    }
}
