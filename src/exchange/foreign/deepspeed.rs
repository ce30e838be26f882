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

mod files;
pub mod layers;
mod optimizer;
mod partitions;
pub mod universal;
pub mod zero3;

use super::super::torch::{TorchFile, Value};
use super::arguments::Arguments;
use super::detect::{Format, step_folder};
use super::settings::Settings;
use super::split_run::{FileLayout, SplitRun};
use super::topology::set_counted_split;
use super::{Choices, ForeignRun, Opened, RunDescription, same_step};
use base::Problems;
use files::Files;
use layers::{EMBEDDING, first_block, places};
use model::Weight;
use optimizer::{loss_scale, rate, updates};
use partitions::{PartitionReader, Stages};
use std::path::Path;

/// The order of samples.
const RULE: &str = "megatron-deepspeed";

/// Names and shapes of a group's parameters, in their order.
type FlatGroup = Vec<(String, Vec<usize>)>;

/// Elements of a parameter of a group.
fn numel((_, shape): &(String, Vec<usize>)) -> usize {
    shape.iter().product()
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    let files = Files::list(&dir)?;
    let main = TorchFile::open(&dir.join(&files.models[0]))?;
    let root = main.root();
    let args = Arguments::new(root.need("args")?, main.place().to_string(), RULE);
    refuse(&args)?;
    let grid = files.grid(&dir, &args)?;
    let [tensor, _, data] = grid;
    let groups = stage_groups(&dir, &files, tensor, root.need("iteration")?.count()?)?;
    let sharded = TorchFile::open(&files.optim[&(0, 0)])?;
    let trainer = format!("Megatron-DeepSpeed (DeepSpeed {})", deepspeed_version(&root));
    let mut found =
        RunDescription::new(Format::MegatronDeepSpeed, trainer, &dir).with_args(&root, &args)?;
    topology(&mut found.settings, grid, &args);
    set_counted_split(&mut found.settings, &args, &stage_layers(&groups));
    let params = || {
        let stages = groups
            .iter()
            .enumerate()
            .flat_map(|(stage, groups)| groups.iter().flatten().map(move |p| (stage, p)));
        stages.map(|(stage, (name, shape))| (stage, name.as_str(), &shape[..]))
    };
    let first_block = first_block(params().map(|(_, name, _)| name))
        .ok_or_else(|| args.problem("no parameter is a block's input_layernorm".into()))?;
    uniform(params().map(|(_, name, _)| name), first_block, &args)?;
    let mut places = places(params(), first_block);
    if !places.known.contains_key(&(Weight::TokenEmbed, None)) {
        return Err(Problems::one(
            found.folder,
            format!("no stage's param_shapes has {EMBEDDING}"),
            "is it a GPT or a BLOOM of Megatron-DeepSpeed, copied whole?",
        )
        .into());
    }
    if args.is_set("untie_embeddings_and_output_weights") {
        places.known.remove(&(Weight::HeadW, None));
    }
    let optimizer = sharded.root().need("optimizer_state_dict")?;
    let tokens = root.some("tokens").map_or(Ok(0), |tokens| tokens.count())?;
    found.tokens = if tokens > 0 { tokens } else { found.tokens };
    found.grid = grid;
    let updates = updates(&sharded, &optimizer)?;
    found.updates = updates;
    found.lr = rate(&sharded, &optimizer).unwrap_or(0.0);
    found.loss_scale = loss_scale(&sharded, &optimizer)?;
    let vocab = root
        .some("checkpoint_info")
        .and_then(|info| info.some("original_vocab_size"))
        .map(|size| size.count())
        .transpose()?;
    let ranks = [tensor, data];
    let stages = Stages { dir, groups, first_block, files: files.optim, ranks, updates };
    let reader = PartitionReader { stages, open: Opened(None) };
    let version = version_of(&root);
    let layout = FileLayout { ranks: tensor, version, vocab };
    let mut run = SplitRun::new(found, (places, reader), &args, layout, choices)?;
    run.found.note_updates();
    if version < 2.0 {
        return Err(
            args.unsupported(format!("checkpoint_version is {version}: 2.0 and later are read"))
        );
    }
    Ok(Box::new(run))
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
    let version = root
        .some("ds_version")
        .and_then(|version| version.str().ok());
    version.unwrap_or("of an unknown version")
}

fn version_of(root: &Value) -> f64 {
    root.some("checkpoint_version")
        .and_then(|version| version.float().ok())
        .unwrap_or(3.0)
}

/// Names and shapes of every stage's groups, of its first tensor rank; all files are of one step.
fn stage_groups(
    dir: &Path,
    files: &Files,
    tensor: usize,
    step: u64,
) -> anyhow::Result<Vec<Vec<FlatGroup>>> {
    let mut stages = Vec::new();
    for (rank, name) in files.models.iter().enumerate() {
        let file = TorchFile::open(&dir.join(name))?;
        let root = file.root();
        same_step(&root, step, &files.models[0])?;
        if rank.is_multiple_of(tensor) {
            stages.push(groups(&root)?);
        }
    }
    Ok(stages)
}

/// Names and shapes of the groups that a file's rank has, in their order.
fn groups(root: &Value) -> anyhow::Result<Vec<FlatGroup>> {
    root.need("param_shapes")?
        .items()?
        .iter()
        .map(|group| -> anyhow::Result<FlatGroup> {
            let named = group.named()?;
            named
                .iter()
                .map(|(name, sizes)| {
                    let sizes = sizes.items()?.into_iter().map(|n| Ok(n.count()? as usize));
                    Ok((name.to_string(), sizes.collect::<anyhow::Result<Vec<_>>>()?))
                })
                .collect()
        })
        .collect()
}

/// Blocks that each stage has.
fn stage_layers(stages: &[Vec<FlatGroup>]) -> Vec<usize> {
    stages
        .iter()
        .map(|groups| {
            groups
                .iter()
                .flatten()
                .filter(|(name, _)| name.ends_with(".input_layernorm.weight"))
                .count()
        })
        .collect()
}

/// Every block is there, once.
fn uniform<'n>(
    names: impl Iterator<Item = &'n str> + Clone,
    first: usize,
    args: &Arguments,
) -> anyhow::Result<()> {
    let layers = args.count("num_layers")? as usize;
    for layer in first..first.saturating_add(layers) {
        let name = format!("{layer}.input_layernorm.weight");
        let count = names.clone().filter(|found| *found == name).count();
        if count != 1 {
            return Err(args.problem(format!("{name} is in {count} of param_shapes, not in one")));
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
    if args.is_set("checkpoint_activations") {
        settings.set("topology.recompute", "full", "checkpoint_activations");
    }
}
