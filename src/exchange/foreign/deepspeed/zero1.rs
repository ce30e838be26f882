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

use super::super::super::torch::{Element, IS_WHOLE, TorchFile};
use super::super::arguments::Arguments;
use super::super::detect::{Format, step_folder};
use super::super::run::{ForeignRun, Layout, PartReader, Put, Rows, Source};
use super::super::topology::{set_counted_split, set_grid};
use super::super::{AdamState, Choices, Opened, RunDescription, same_step, same_updates};
use super::files::{Files, RankFiles};
use super::layers::{EMBEDDING, first_block, name_of, table};
use super::optimizer::{element, loss_scale, partition, rate, slice, updates};
use super::{FlatGroup, RULE, deepspeed_version, find_in, groups, refuse, version_of};
use base::Problems;
use model::{Param, Weight};
use std::path::{Path, PathBuf};

/// Files of one stage, opened: [tensor rank][data rank].
type StageFiles = Vec<Vec<TorchFile>>;

/// Reader of the partitions of a stage's data ranks.
struct Zero1Reader {
    stages: Stages,
    open: Opened<StageFiles>,
}

/// Groups and files of all stages.
struct Stages {
    dir: PathBuf,
    /// Names and shapes of each stage's groups, in their order.
    groups: Vec<Vec<FlatGroup>>,
    /// The number that the first block has in the pipeline's list of layers.
    first_block: usize,
    files: RankFiles,
    /// Tensor and data ranks.
    ranks: [usize; 2],
    updates: u64,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ForeignRun> {
    let dir = step_folder(from)?;
    let files = Files::list(&dir)?;
    let main = TorchFile::open(&dir.join(&files.models[0]))?;
    let root = main.root();
    let args = Arguments::new(root.need("args")?, main.place().to_string(), RULE, choices);
    refuse(&args)?;
    let version = version_of(&root);
    if version < 2.0 {
        return Err(
            args.unsupported(format!("checkpoint_version is {version}: 2.0 and later are read"))
        );
    }
    let grid = files.grid(&dir, &args)?;
    let [tensor, _, data] = grid;
    let groups = stage_groups(&dir, &files, tensor, root.need("iteration")?.count()?)?;
    let trainer = format!("Megatron-DeepSpeed (DeepSpeed {})", deepspeed_version(&root));
    let mut found =
        RunDescription::new(Format::MegatronDeepSpeed, trainer, &dir).with_args(&root, &args)?;
    found.grid = grid;
    set_topology(&mut found, &args, &groups);
    let mut params = Vec::new();
    for (stage, groups) in groups.iter().enumerate() {
        let params_of = groups.iter().flatten();
        params.extend(params_of.map(|(name, shape)| (stage, name.as_str(), &shape[..])));
    }
    let first_block = first_block(params.iter().map(|(_, name, _)| *name))
        .ok_or_else(|| args.problem("no parameter is a block's input_layernorm".into()))?;
    check_blocks(params.iter().map(|(_, name, _)| *name), first_block, &args)?;
    let mut table = table(params, first_block);
    if !table.stored.contains_key(&(Weight::TokenEmbed, None)) {
        return Err(Problems::one(
            found.folder,
            format!("no stage's param_shapes has {EMBEDDING}"),
            "is it a GPT or a BLOOM of Megatron-DeepSpeed, copied whole?",
        )
        .into());
    }
    if args.is_set("model.tied_head") {
        table.stored.remove(&(Weight::HeadW, None));
    }
    let sharded = TorchFile::open(&files.optim[&(0, 0)])?;
    let optimizer = sharded.root().need("optimizer_state_dict")?;
    let tokens = root.some("tokens").map_or(Ok(0), |tokens| tokens.count())?;
    if tokens > 0 {
        found.tokens = tokens;
    }
    found.updates = updates(&sharded, &optimizer)?;
    found.lr = rate(&sharded, &optimizer).unwrap_or(0.0);
    found.loss_scale = loss_scale(&sharded, &optimizer)?;
    let vocab = root
        .some("checkpoint_info")
        .and_then(|info| info.some("original_vocab_size"))
        .map(|size| size.count())
        .transpose()?;
    let ranks = [tensor, data];
    let stages =
        Stages { dir, groups, first_block, files: files.optim, ranks, updates: found.updates };
    let reader = Zero1Reader { stages, open: Opened(None) };
    let layout = Layout::new(tensor, version, &args);
    let run = ForeignRun::new(found, table, reader, layout);
    let mut run = run.with_vocabulary(&args, vocab, choices)?;
    run.found.note_updates();
    Ok(run)
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

/// Every block is there, once.
fn check_blocks<'n>(
    names: impl Iterator<Item = &'n str> + Clone,
    first: usize,
    args: &Arguments,
) -> anyhow::Result<()> {
    let layers = args.count("model.layers")? as usize;
    for layer in first..first.saturating_add(layers) {
        let name = format!("{layer}.input_layernorm.weight");
        let count = names.clone().filter(|found| *found == name).count();
        if count != 1 {
            return Err(args.problem(format!("{name} is in {count} of param_shapes, not in one")));
        }
    }
    Ok(())
}

fn set_topology(found: &mut RunDescription, args: &Arguments, stages: &[Vec<FlatGroup>]) {
    let [tensor, pipeline, data] = found.grid;
    let settings = &mut found.settings;
    set_grid(settings, args, [tensor, pipeline]);
    settings.set("topology.data", data, "files of the optimizer");
    if data > 1 {
        settings.set("topology.zero", 1, "partitioned by DeepSpeed");
    }
    let mut layers = Vec::new();
    for groups in stages {
        let params = groups.iter().flatten();
        layers.push(
            params
                .filter(|(name, _)| name.ends_with(".input_layernorm.weight"))
                .count(),
        );
    }
    set_counted_split(settings, args, &layers, pipeline);
}

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

impl Stages {
    /// Opens the files of a stage, whose partitions are as long as its groups.
    fn open(&self, stage: usize) -> anyhow::Result<StageFiles> {
        let [tensor, data] = self.ranks;
        let mut files = StageFiles::new();
        for model in stage * tensor..(stage + 1) * tensor {
            let opened = (0..data).map(|data| TorchFile::open(&self.files[&(model, data)]));
            files.push(opened.collect::<anyhow::Result<Vec<_>>>()?);
        }
        for rank in &files {
            self.check(rank, &self.groups[stage])?;
        }
        Ok(files)
    }

    /// Whether the partitions of a rank are equal and hold its groups; their step is the run's.
    fn check(&self, files: &[TorchFile], groups: &[FlatGroup]) -> anyhow::Result<()> {
        for (group, params) in groups.iter().enumerate() {
            let mut lens = Vec::new();
            for file in files {
                let optimizer = file.root().need("optimizer_state_dict")?;
                same_updates(&optimizer, updates(file, &optimizer)?, self.updates)?;
                let master = partition(&optimizer, group, AdamState::Master)?;
                let len = master.tensor()?.numel();
                for state in [AdamState::FirstMoment, AdamState::SecondMoment] {
                    let other = partition(&optimizer, group, state)?.tensor()?.numel();
                    if other != len {
                        let name = state.name();
                        return Err(optimizer.problem(format!(
                            "the {name} of group {group} has {other} elements, its weights {len}"
                        )));
                    }
                }
                lens.push(len);
                let equal = lens[0] == len || lens.len() == files.len() && len < lens[0];
                if !equal {
                    let first = lens[0];
                    return Err(master.problem(format!(
                        "partition {group} has {len} elements, that of data rank 0 {first}"
                    )));
                }
            }
            let held: usize = lens.iter().sum();
            let needed: usize = params.iter().map(|(_, shape)| numel(shape)).sum();
            if held < needed {
                let last = files.last().expect("a data rank").root();
                return Err(last.problem(format!(
                    "the partitions of group {group} hold {held} elements, its parameters have {needed}"
                )));
            }
        }
        Ok(())
    }
}

impl PartReader for Zero1Reader {
    /// Puts a share together from the partitions of all data ranks.
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()> {
        let Zero1Reader { stages, open } = self;
        let Source { name, rank, stage, .. } = source;
        let (group, range) = find_in(&stages.groups[*stage], name, numel)
            .expect("a source is in its stage's groups");
        let needed = source.numel();
        let mut held = 0;
        let mut rows = Rows::new(put, [0, 0], source.matrix());
        let mut begin = 0;
        for file in &open.get(*stage, || stages.open(*stage))?[*rank] {
            let optimizer = file.root().need("optimizer_state_dict")?;
            let partition = partition(&optimizer, group, state)?;
            let tensor = partition.tensor()?;
            let end = begin + tensor.numel();
            let part = match optimizer.some("param_slice_mappings") {
                Some(maps) => slice(&maps, group, name)?,
                None => {
                    let from = range.start.max(begin);
                    let to = range.end.min(end);
                    (from < to).then(|| from - begin..to - begin)
                }
            };
            begin = end;
            let Some(part) = part else { continue };
            if part.end > tensor.numel() {
                let len = tensor.numel();
                let end = part.end;
                return Err(partition.problem(format!(
                    "partition {group} has {len} elements, {name} reaches to {end}"
                )));
            }
            held += part.len();
            file.each_floats(tensor, part, &mut |values| rows.push(values))?;
        }
        if held != needed {
            return Err(Problems::one(
                stages.dir.display().to_string(),
                format!(
                    "the partitions of mp_rank {:02} hold {held} of the {needed} elements of {name}",
                    stage * stages.ranks[0] + rank
                ),
                IS_WHOLE,
            )
            .into());
        }
        Ok(())
    }

    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element> {
        let Zero1Reader { stages, open } = self;
        let Source { name, rank, stage, .. } = source;
        let (group, _) = find_in(&stages.groups[*stage], name, numel)
            .expect("a source is in its stage's groups");
        let first = &open.get(*stage, || stages.open(*stage))?[*rank][0];
        element(first, group, state)
    }

    fn name(&self, param: &Param, _: AdamState) -> Option<String> {
        name_of(param, self.stages.first_block)
    }
}
