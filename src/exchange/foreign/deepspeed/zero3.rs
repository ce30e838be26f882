//! Folders of Megatron-DeepSpeed with ZeRO stage 3, which has no pipeline stages: `global_stepN/`.
//!
//! ```text
//! zero_pp_rank_D_mp_rank_MM_model_states.pt             args, names and shapes; the same of each data rank D
//! bf16_zero_pp_rank_D_mp_rank_MM_optim_states.pt        its part of each parameter of tensor rank M
//! ```
//!
//! Every parameter is flat, padded to a multiple of the data ranks and cut into as many equal parts; a
//! rank's parts of a group of parameters follow each other in one tensor.

use super::super::super::torch::{Element, TorchFile};
use super::super::arguments::Arguments;
use super::super::detect::{Format, step_folder};
use super::super::megatron::names::known;
use super::super::run::{ForeignRun, Layout, ParamTable, PartReader, Put, Rows, Source, Stored};
use super::super::topology::set_grid;
use super::super::{
    AdamState, Choices, Opened, RunDescription, incomplete, same_step, same_updates,
};
use super::files::{MODEL_STATES, OPTIM, RankFiles, rank_files};
use super::optimizer::{element, loss_scale, partition, rate, updates};
use super::{FlatGroup, RULE, deepspeed_version, find_in, groups, version_of};
use base::Problems;
use std::path::Path;

/// Reader of the parts that data ranks have of each tensor rank's parameters.
struct Zero3Reader {
    groups: RankGroups,
    /// Files of one tensor rank, opened, by data rank.
    open: Opened<Vec<TorchFile>>,
}

/// Groups and files of all tensor ranks.
struct RankGroups {
    /// Names and shapes, on any tensor rank.
    groups: Vec<FlatGroup>,
    /// Files of the optimizer.
    files: RankFiles,
    /// Data ranks.
    ranks: usize,
    updates: u64,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ForeignRun> {
    let dir = step_folder(from)?;
    let models = rank_files(&dir, MODEL_STATES)?;
    let files = rank_files(&dir, OPTIM)?;
    let [tensor, data] = grid(&dir, [&models, &files])?;
    let main = TorchFile::open(&models[&(0, 0)])?;
    let root = main.root();
    let place = models[&(0, 0)].display().to_string();
    let Some(args) = root.some("args") else {
        return Err(Problems::one(
            place,
            "has no args: only Megatron-DeepSpeed's folders of ZeRO-3 are read",
            "write its weights with zero_to_fp32.py, and import those in Hugging Face's format",
        )
        .into());
    };
    let args = Arguments::new(args, place, RULE, choices);
    args.refuse(&[("add_position_embedding_type", "this position embedding is not gptrain's")])?;
    if args.count("topology.tensor")? as usize != tensor {
        let name = args.name("topology.tensor");
        return Err(args.problem(format!("args.{name} is not the {tensor} of the files")));
    }
    let step = root.need("iteration")?.count()?;
    let groups = same_groups(&models, tensor, step)?;
    let table = table(&groups, &args)?;
    let first = TorchFile::open(&files[&(0, 0)])?;
    let optimizer = first.root().need("optimizer_state_dict")?;
    let updates = updates(&first, &optimizer)?;
    let trainer = format!("Megatron-DeepSpeed, ZeRO-3 (DeepSpeed {})", deepspeed_version(&root));
    let mut found =
        RunDescription::new(Format::DeepSpeedZero3, trainer, &dir).with_args(&root, &args)?;
    let settings = &mut found.settings;
    set_grid(settings, &args, [tensor, 1]);
    settings.set("topology.data", data, "files of the optimizer");
    if data > 1 {
        settings.set("topology.zero", 3, "partitioned by DeepSpeed");
    }
    found.grid = [tensor, 1, data];
    found.updates = updates;
    found.lr = rate(&first, &optimizer).unwrap_or(0.0);
    found.loss_scale = loss_scale(&first, &optimizer)?;
    found.note_updates();
    let groups = RankGroups { groups, files, ranks: data, updates };
    let reader = Zero3Reader { groups, open: Opened(None) };
    let layout = Layout::new(tensor, version_of(&root), &args);
    let vocab = args.optional_count("model.vocab")?;
    ForeignRun::new(found, table, reader, layout).with_vocabulary(&args, vocab, choices)
}

/// Tensor and data ranks of the files; an error names one that is missing.
fn grid(dir: &Path, both: [&RankFiles; 2]) -> anyhow::Result<[usize; 2]> {
    let all = || both.iter().flat_map(|files| files.keys());
    let tensor = 1 + all().map(|(tensor, _)| *tensor).max().unwrap_or(0);
    let data = 1 + all().map(|(_, data)| *data).max().unwrap_or(0);
    let most = all().count();
    for (files, end) in both.iter().zip([MODEL_STATES, OPTIM]) {
        // The first gap is within the number of files plus one, whatever rank a name claims.
        let ranks = (0..tensor)
            .flat_map(|t| (0..data).map(move |d| (t, d)))
            .take(most + 1);
        let missing = ranks.into_iter().find(|ranks| !files.contains_key(ranks));
        if let Some((tensor, data)) = missing {
            return Err(incomplete(
                dir,
                format!("zero_pp_rank_{data}_mp_rank_{tensor:02}{end} is missing"),
            ));
        }
    }
    Ok([tensor, data])
}

/// Names and shapes of the groups, which are those of every tensor rank.
fn same_groups(models: &RankFiles, tensor: usize, step: u64) -> anyhow::Result<Vec<FlatGroup>> {
    let mut first: Option<Vec<FlatGroup>> = None;
    for rank in 0..tensor {
        let file = TorchFile::open(&models[&(rank, 0)])?;
        let root = file.root();
        same_step(&root, step, "the first file")?;
        let found = groups(&root)?;
        if *first.get_or_insert_with(|| found.clone()) != found {
            return Err(root.problem("param_shapes is not that of tensor rank 0".into()));
        }
    }
    Ok(first.unwrap_or_default())
}

fn table(groups: &[FlatGroup], args: &Arguments) -> anyhow::Result<ParamTable> {
    let mut table = ParamTable::default();
    for (name, shape) in groups.iter().flatten() {
        let key = known(name)
            .ok_or_else(|| args.unsupported(format!("{name} is not in gptrain's model")))?;
        let shape = shape.clone();
        let source = Source { name: name.clone(), shape, ..Source::default() };
        if table
            .stored
            .insert(key, vec![Stored::whole(source)])
            .is_some()
        {
            return Err(args.problem(format!("{name} is in param_shapes under another name too")));
        }
    }
    Ok(table)
}

impl RankGroups {
    /// Opens the files of a tensor rank, and compares them with its groups.
    fn open(&self, tensor: usize) -> anyhow::Result<Vec<TorchFile>> {
        let files = (0..self.ranks)
            .map(|data| TorchFile::open(&self.files[&(tensor, data)]))
            .collect::<anyhow::Result<Vec<_>>>()?;
        files.iter().try_for_each(|file| self.compare(file))?;
        Ok(files)
    }

    /// Whether a rank's tensors are as long as its parts of the groups.
    fn compare(&self, file: &TorchFile) -> anyhow::Result<()> {
        let optimizer = file.root().need("optimizer_state_dict")?;
        same_updates(&optimizer, updates(file, &optimizer)?, self.updates)?;
        if let Some(count) = optimizer.some("partition_count")
            && count.count()? != self.ranks as u64
        {
            let ranks = self.ranks;
            return Err(optimizer.problem(format!(
                "partition_count is {count}, the folder has files of {ranks} ranks"
            )));
        }
        for (group, params) in self.groups.iter().enumerate() {
            let needed: usize = params.iter().map(|(_, shape)| self.part(shape)).sum();
            for state in AdamState::ALL {
                let held = partition(&optimizer, group, state)?.tensor()?.numel();
                if held < needed {
                    let name = state.name();
                    return Err(optimizer.problem(format!(
                        "the {name} of group {group} has {held} elements, its parameters' parts {needed}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Elements of a rank's part of a parameter, with padding.
    fn part(&self, shape: &[usize]) -> usize {
        shape.iter().product::<usize>().div_ceil(self.ranks)
    }
}

impl PartReader for Zero3Reader {
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()> {
        let Zero3Reader { groups, open } = self;
        let (group, part) = find_in(&groups.groups, &source.name, |shape| groups.part(shape))
            .expect("a source is in the groups");
        let mut rows = Rows::new(put, [0, 0], source.matrix());
        for file in open.get(source.rank, || groups.open(source.rank))? {
            // The end of the last parts is padding.
            let own = part.len().min(rows.left);
            let optimizer = file.root().need("optimizer_state_dict")?;
            let flat = partition(&optimizer, group, state)?;
            let which = part.start..part.start + own;
            file.each_floats(flat.tensor()?, which, &mut |values| rows.push(values))?;
        }
        Ok(())
    }

    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element> {
        let Zero3Reader { groups, open } = self;
        let (group, _) = find_in(&groups.groups, &source.name, |shape| groups.part(shape))
            .expect("a source is in the groups");
        element(&open.get(source.rank, || groups.open(source.rank))?[0], group, state)
    }
}
