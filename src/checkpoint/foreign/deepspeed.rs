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
mod names;
mod optimizer;

use super::super::torch::{TorchFile, Value};
use super::arguments::Arguments;
use super::detect::{Format, step_folder};
use super::settings::Settings;
use super::{Choices, ForeignRun, Found, Kept, Replicated};
use anyhow::Context;
use base::Problems;
use manifest::Model;
use model::{Param, TpSplit, Weight};
use names::Names;
use optimizer::{loss_scale, rate, updates};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The name of the tied embedding in the optimizer's maps.
const EMBEDDING: &str = "tied_modules.embed.word_embeddings.weight";

/// Names and shapes of a group's parameters, in their order.
type Group = Vec<(String, Vec<usize>)>;

/// A folder, its small values read.
struct Folder {
    dir: PathBuf,
    found: Found,
    choices: Choices,
    /// Names and shapes of each stage's groups, in their order.
    stages: Vec<Vec<Group>>,
    /// The number that the first block has in the pipeline's list of layers.
    first_block: usize,
    /// Files of the optimizer: by data rank and model-parallel rank.
    files: BTreeMap<(usize, usize), PathBuf>,
    /// The files of one stage, opened: [tensor rank][data rank].
    open: Option<(usize, Vec<Vec<TorchFile>>)>,
    /// Largest difference between copies of a state, with the names it occurs in.
    differences: BTreeMap<&'static str, Vec<(String, f64)>>,
    /// Largest difference between the tied copies of the embedding.
    tied: Option<f64>,
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
    let args = Arguments::new(root.need("args")?, dir.join(names.model(0)).display().to_string());
    args.refuse()?;
    let grid = names.grid(&dir, &args)?;
    let stages = stages(&dir, &names, grid, root.need("iteration")?.count()?)?;
    let sharded = TorchFile::open(&dir.join(&names.optim[&(0, 0)]))?;
    let mut notes = Vec::new();
    let mut settings = Settings::default();
    args.model(&mut settings, &mut notes)?;
    args.training(&mut settings, &mut notes)?;
    let scheduler = root.some("lr_scheduler").or_else(|| root.some("opt_param_scheduler"));
    args.rates(scheduler.as_ref(), &mut settings)?;
    topology(&mut settings, grid, &args);
    let first_block = first_block(&stages)
        .with_context(|| format!("{}: no parameter is a block's input_layernorm", dir.display()))?;
    uniform(&stages, first_block, &args)?;
    let optimizer = sharded.root().need("optimizer_state_dict")?;
    let updates = updates(&sharded, &optimizer)?;
    let step = root.need("iteration")?.count()?;
    let samples = args.count("consumed_train_samples")?;
    let tokens = root.some("tokens").map_or(Ok(0), |tokens| tokens.count())?;
    let version = root.some("ds_version").and_then(|version| version.str().ok());
    let found = Found {
        format: Format::MegatronDeepSpeed,
        trainer: format!(
            "Megatron-DeepSpeed (DeepSpeed {})",
            version.unwrap_or("of an unknown version")
        ),
        folder: dir.display().to_string(),
        step,
        samples,
        tokens: if tokens > 0 { tokens } else { samples * args.count("seq_length")? },
        grid,
        updates,
        lr: rate(&optimizer).unwrap_or(0.0),
        loss_scale: loss_scale(&optimizer)?,
        settings,
        aside: Vec::new(),
        notes,
    };
    let files = names.optim.iter().map(|(place, name)| (*place, dir.join(name))).collect();
    let (differences, tied) = Default::default();
    let (choices, open) = (*choices, None);
    let mut folder =
        Folder { dir, found, choices, stages, first_block, files, open, differences, tied };
    folder.vocabulary(&root, &args)?;
    folder.counts(updates);
    folder.found.aside = args.aside();
    if version_of(&root) < 2.0 {
        let what = format!("checkpoint_version is {}: 2.0 and later are read", version_of(&root));
        return Err(args.problem(what));
    }
    Ok(Box::new(folder))
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
        let groups = root.need("param_shapes")?.items()?;
        let group = |group: &Value| -> anyhow::Result<Group> {
            let named = group.named()?;
            let shape = |(name, sizes): &(&str, Value)| {
                let sizes = sizes.items()?.into_iter().map(|n| Ok(n.count()? as usize));
                Ok((name.to_string(), sizes.collect::<anyhow::Result<Vec<_>>>()?))
            };
            named.iter().map(shape).collect()
        };
        stages.push(groups.iter().map(group).collect::<anyhow::Result<Vec<_>>>()?);
    }
    Ok(stages)
}

/// The smallest layer that has an input norm.
fn first_block(stages: &[Vec<Group>]) -> Option<usize> {
    let names = stages.iter().flatten().flatten();
    let block = |name: &str| name.strip_suffix(".input_layernorm.weight")?.parse().ok();
    names.filter_map(|(name, _)| block(name)).min()
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
        let strip =
            original < rows && (self.choices.mask_padding || self.untrained(original, &shape)?);
        let settings = &mut self.found.settings;
        if strip {
            settings.set("model.vocab", original, "original_vocab_size");
            settings.set(
                "model.vocab_multiple",
                multiple.unwrap_or(128),
                "make_vocab_size_divisible_by",
            );
            let what = format!("rows {original} to {} of the embedding pad it: left out", rows - 1);
            self.found.notes.push(what);
            return Ok(());
        }
        settings.set("model.vocab", rows, "padded_vocab_size: its rows were trained");
        settings.set("model.vocab_multiple", 1, "the vocabulary is padded already");
        if original < rows {
            self.found.notes.push(format!(
                "rows {original} to {} of the embedding pad it, and Megatron's softmax counts them: they \
                 are part of the model here too (--mask-padding leaves them out)",
                rows - 1
            ));
        }
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

    /// Notes the difference between Adam's count and the steps.
    fn counts(&mut self, updates: u64) {
        let step = self.found.step;
        if updates > step {
            self.found.notes.push(format!(
                "Adam has counted {updates} updates in {step} steps (DeepSpeed's BF16_Optimizer began \
                 with one of zero gradients): its bias corrections go by that count here too"
            ));
        } else if updates < step {
            let skipped = step - updates;
            self.found.notes.push(format!("{skipped} of {step} steps were skipped: no update"));
        }
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
        let most = largest_difference(first, &other);
        self.tied = Some(self.tied.unwrap_or(0.0).max(most));
        Ok(())
    }

    /// Copies of a parameter on all tensor ranks as one.
    fn replicated(&mut self, name: &str, kept: Kept) -> anyhow::Result<Vec<f32>> {
        let ranks = self.found.grid[0];
        let copies = (0..ranks).map(|rank| self.fragments(name, rank, kept));
        let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
        let most = copies[1..].iter().map(|copy| largest_difference(&copies[0], copy));
        let most = most.fold(0.0, f64::max);
        if most > 0.0 {
            self.differences.entry(kept.name()).or_default().push((name.to_string(), most));
        }
        let mut copies = copies.into_iter();
        let first = copies.next().context("a tensor rank")?;
        if most == 0.0 || self.choices.replicated == Replicated::First {
            return Ok(first);
        }
        let mut sums: Vec<f64> = first.into_iter().map(f64::from).collect();
        for copy in copies {
            sums.iter_mut().zip(copy).for_each(|(sum, value)| *sum += f64::from(value));
        }
        Ok(sums.into_iter().map(|sum| (sum / ranks as f64) as f32).collect())
    }

    /// The trainer's name of a parameter.
    fn name(&self, param: &Param) -> Option<String> {
        use Weight::*;
        let of_block = |name: &str| {
            let layer =
                param.name.strip_prefix("block.")?.split_once('.')?.0.parse::<usize>().ok()?;
            Some(format!("{}.{name}", layer + self.first_block))
        };
        let last = |kind: &str| {
            // The final norm: the one layer whose parameters have no other name.
            let names = self.stages.iter().flatten().flatten().map(|(name, _)| name.as_str());
            let is_norm = |name: &str| {
                name.strip_suffix(kind).is_some_and(|layer| layer.parse::<usize>().is_ok())
            };
            names.into_iter().find(|name| is_norm(name)).map(str::to_string)
        };
        match param.spec.weight {
            TokenEmbed => Some(EMBEDDING.to_string()),
            PosEmbed => Some("tied_modules.embed.position_embeddings.weight".to_string()),
            EmbedLnScale => Some("tied_modules.embed.word_embeddings.norm.weight".to_string()),
            EmbedLnShift => Some("tied_modules.embed.word_embeddings.norm.bias".to_string()),
            Ln1Scale => of_block("input_layernorm.weight"),
            Ln1Shift => of_block("input_layernorm.bias"),
            QkvW => of_block("self_attention.query_key_value.weight"),
            QkvB => of_block("self_attention.query_key_value.bias"),
            ProjW => of_block("self_attention.dense.weight"),
            ProjB => of_block("self_attention.dense.bias"),
            Ln2Scale => of_block("post_attention_layernorm.weight"),
            Ln2Shift => of_block("post_attention_layernorm.bias"),
            Fc1W => of_block("mlp.dense_h_to_4h.weight"),
            Fc1B => of_block("mlp.dense_h_to_4h.bias"),
            Fc2W => of_block("mlp.dense_4h_to_h.weight"),
            Fc2B => of_block("mlp.dense_4h_to_h.bias"),
            LnfScale => last(".weight"),
            LnfShift => last(".bias"),
            HeadW | QNorm | KNorm => None,
        }
    }
}

impl ForeignRun for Folder {
    fn found(&self) -> &Found {
        &self.found
    }

    fn check(&self, _: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let (mut problems, mut known) = (Problems::default(), BTreeSet::new());
        let tensor = self.found.grid[0];
        let mut add = |what: String| {
            problems.add(self.dir.display().to_string(), what, "is args that of this model?");
        };
        for param in params {
            let Some(name) = self.name(param) else {
                add(format!("has no parameter for {}", param.name));
                continue;
            };
            let [rows, cols] = match param.spec.split {
                // The vocabulary may lose its padding.
                TpSplit::Rows if param.spec.vocab => [self.place(&name)?.shape[0], param.cols],
                TpSplit::Rows => [param.rows / tensor, param.cols],
                TpSplit::Cols => [param.rows, param.cols / tensor],
                TpSplit::Whole => [param.rows, param.cols],
            };
            match self.places(&name).next() {
                None => add(format!("no stage's param_shapes has {name}")),
                Some(place) => {
                    let shape = if param.spec.rows == 1 { vec![cols] } else { vec![rows, cols] };
                    if place.shape != shape {
                        add(format!("{name} is {:?}, args makes it {shape:?}", place.shape));
                    }
                }
            }
            known.insert(name);
        }
        for (name, _) in self.stages.iter().flatten().flatten() {
            if !known.contains(name) {
                add(format!("{name} is not in gptrain's model"));
            }
        }
        problems.list.truncate(8);
        Ok(problems.or(())?)
    }

    fn read(&mut self, param: &Param, shape: &[usize], kept: Kept) -> anyhow::Result<Vec<f32>> {
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
        let mut remarks = Vec::new();
        for (state, mut found) in std::mem::take(&mut self.differences) {
            found.sort_by(|a, b| b.1.total_cmp(&a.1));
            let (name, most) = &found[0];
            let count = found.len();
            let taken = match self.choices.replicated {
                Replicated::Mean => "their mean is taken",
                Replicated::First => "tensor rank 0's is taken",
            };
            remarks.push(format!(
                "copies of {count} parameters on the tensor ranks differ in the {state}, at most by \
                 {most:.3e} ({name}): {taken}"
            ));
        }
        if let Some(most) = self.tied.take().filter(|most| *most > 0.0) {
            remarks.push(format!(
                "the last stage's copy of the embedding differs from the first's by at most {most:.3e}: \
                 the first's is taken"
            ));
        }
        remarks
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    let pairs = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b));
    pairs.map(f64::abs).fold(0.0, f64::max)
}
