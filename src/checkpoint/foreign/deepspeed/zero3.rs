//! Folders of Megatron-DeepSpeed with ZeRO stage 3, which has no pipeline stages: `global_stepN/`.
//!
//! ```text
//! zero_pp_rank_D_mp_rank_MM_model_states.pt             args, names and shapes; the same of each data rank D
//! bf16_zero_pp_rank_D_mp_rank_MM_optim_states.pt        its part of each parameter of tensor rank M
//! ```
//!
//! Every parameter is flat, padded to a multiple of the data ranks and cut into as many equal parts; a
//! rank's parts of a group of parameters follow each other in one tensor.

use super::super::super::torch::{TorchFile, Value};
use super::super::arguments::Arguments;
use super::super::detect::{Format, step_folder};
use super::super::megatron::folder::{Folder, Place, Places, Shares};
use super::super::megatron::names::known;
use super::super::{Choices, ForeignRun, Found, Kept};
use super::names::between;
use super::optimizer::{loss_scale, rate, updates};
use super::{Group, RULE, deepspeed_version, groups, version_of};
use anyhow::Context;
use base::Problems;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

const COPY_AGAIN: &str = "copy the folder of the step whole";

/// Files by tensor and data rank.
type Files = BTreeMap<(usize, usize), PathBuf>;

/// The parts that data ranks have of each tensor rank's parameters.
struct Parts {
    dir: PathBuf,
    /// Names and shapes of the groups, on any tensor rank.
    groups: Vec<Group>,
    /// Files of the optimizer.
    files: Files,
    ranks: usize,
    updates: u64,
    /// Files of one tensor rank, opened, by data rank.
    open: Option<(usize, Vec<TorchFile>)>,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    let models = list(&dir, "_model_states.pt")?;
    let files = list(&dir, "_optim_states.pt")?;
    let [tensor, data] = grid(&dir, [&models, &files])?;
    let main = TorchFile::open(&models[&(0, 0)])?;
    let root = main.root();
    let place = models[&(0, 0)].display().to_string();
    let Some(args) = root.some("args") else {
        let what = "has no args: only Megatron-DeepSpeed's folders of ZeRO-3 are read";
        let remedy =
            "write its weights with zero_to_fp32.py, and import those in Hugging Face's format";
        return Err(Problems::one(place, what, remedy).into());
    };
    let args = Arguments::new(args, place, RULE);
    args.refuse(&[("add_position_embedding_type", "this position embedding is not gptrain's")])?;
    if args.count("tensor_model_parallel_size")? as usize != tensor {
        let what = format!("args.tensor_model_parallel_size is not the {tensor} of the files");
        return Err(args.problem(what));
    }
    let step = root.need("iteration")?.count()?;
    let groups = same_groups(&models, tensor, step)?;
    let places = places(&groups, &args)?;
    let first = TorchFile::open(&files[&(0, 0)])?;
    let optimizer = first.root().need("optimizer_state_dict")?;
    let updates = updates(&first, &optimizer)?;
    let scheduler = root.some("lr_scheduler").or_else(|| root.some("opt_param_scheduler"));
    let trainer = format!("Megatron-DeepSpeed, ZeRO-3 (DeepSpeed {})", deepspeed_version(&root));
    let found = Found::new(Format::DeepSpeedZero3, trainer, &dir);
    let mut found = found.with_args(&root, &args, scheduler)?;
    let settings = &mut found.settings;
    settings.set("topology.tensor", tensor, "tensor_model_parallel_size");
    settings.set("topology.data", data, "files of the optimizer");
    if data > 1 {
        settings.set("topology.zero", 3, "partitioned by DeepSpeed");
    }
    found.grid = [tensor, 1, data];
    found.updates = updates;
    found.lr = rate(&optimizer).unwrap_or(0.0);
    found.loss_scale = loss_scale(&optimizer)?;
    found.counts();
    let parts = Parts { dir: dir.clone(), groups, files, ranks: data, updates, open: None };
    let version = version_of(&root);
    Ok(Box::new(Folder::new((dir, found), (places, parts), &args, version, choices)?))
}

/// The files whose names end so, by their ranks.
fn list(dir: &Path, end: &str) -> anyhow::Result<Files> {
    let failed = || format!("cannot list {}", dir.display());
    let mut files = Files::new();
    for entry in fs::read_dir(dir).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let plain = name.strip_prefix("bf16_").or(name.strip_prefix("fp16_")).unwrap_or(name);
        let ranks = between(plain, "zero_pp_rank_", end).and_then(|r| r.split_once("_mp_rank_"));
        let number = |text: &str| text.parse::<usize>().ok().filter(|rank| *rank < 1 << 20);
        if let Some((data, tensor)) = ranks
            && let (Some(data), Some(tensor)) = (number(data), number(tensor))
        {
            files.insert((tensor, data), path);
        }
    }
    Ok(files)
}

/// Tensor and data ranks of the files; an error names one that is missing.
fn grid(dir: &Path, both: [&Files; 2]) -> anyhow::Result<[usize; 2]> {
    let all = || both.iter().flat_map(|files| files.keys());
    let tensor = 1 + all().map(|(tensor, _)| *tensor).max().unwrap_or(0);
    let data = 1 + all().map(|(_, data)| *data).max().unwrap_or(0);
    let most = all().count();
    for (files, end) in both.iter().zip(["model", "optim"]) {
        // The first gap is within the number of files plus one, whatever rank a name claims.
        let ranks = (0..tensor).flat_map(|t| (0..data).map(move |d| (t, d))).take(most + 1);
        let missing = ranks.into_iter().find(|ranks| !files.contains_key(ranks));
        if let Some((tensor, data)) = missing {
            let what =
                format!("zero_pp_rank_{data}_mp_rank_{tensor:02}_{end}_states.pt is missing");
            return Err(Problems::one(dir.display().to_string(), what, COPY_AGAIN).into());
        }
    }
    Ok([tensor, data])
}

/// Names and shapes of the groups, which are those of every tensor rank.
fn same_groups(models: &Files, tensor: usize, step: u64) -> anyhow::Result<Vec<Group>> {
    let mut first: Option<Vec<Group>> = None;
    for rank in 0..tensor {
        let file = TorchFile::open(&models[&(rank, 0)])?;
        let root = file.root();
        let iteration = root.need("iteration")?;
        if iteration.count()? != step {
            let what = format!("iteration is {iteration}, in the first file it is {step}");
            return Err(iteration.problem(what));
        }
        let found = groups(&root)?;
        if *first.get_or_insert_with(|| found.clone()) != found {
            return Err(root.problem("param_shapes is not that of tensor rank 0".into()));
        }
    }
    Ok(first.unwrap_or_default())
}

fn places(groups: &[Group], args: &Arguments) -> anyhow::Result<Places> {
    let mut places = Places::new();
    for (entry, (name, shape)) in groups.iter().flatten().enumerate() {
        let key = known(name);
        let key = key.ok_or_else(|| args.problem(format!("{name} is not in gptrain's model")))?;
        let place = Place { stage: 0, entry, name: name.clone(), shape: shape.clone() };
        if places.insert(key, place).is_some() {
            return Err(args.problem(format!("{name} is in param_shapes under another name too")));
        }
    }
    Ok(places)
}

impl Parts {
    /// The files of a tensor rank, opened and compared with its groups.
    fn files(&mut self, tensor: usize) -> anyhow::Result<&[TorchFile]> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != tensor) {
            self.open = None;
            let files = (0..self.ranks).map(|data| TorchFile::open(&self.files[&(tensor, data)]));
            let files = files.collect::<anyhow::Result<Vec<_>>>()?;
            for file in &files {
                self.compare(file)?;
            }
            self.open = Some((tensor, files));
        }
        Ok(&self.open.as_ref().expect("opened above").1)
    }

    /// Whether a rank's tensors are as long as its parts of the groups.
    fn compare(&self, file: &TorchFile) -> anyhow::Result<()> {
        let optimizer = file.root().need("optimizer_state_dict")?;
        let updates = updates(file, &optimizer)?;
        if updates != self.updates {
            let first = self.updates;
            let what = format!("Adam's step is {updates}, in the first file it is {first}");
            return Err(optimizer.problem(what));
        }
        if let Some(count) = optimizer.some("partition_count")
            && count.count()? != self.ranks as u64
        {
            let ranks = self.ranks;
            let what = format!("partition_count is {count}, the folder has files of {ranks} ranks");
            return Err(optimizer.problem(what));
        }
        for (group, params) in self.groups.iter().enumerate() {
            let needed: usize = params.iter().map(|(_, shape)| self.part(shape)).sum();
            for kept in Kept::ALL {
                let held = flat(&optimizer, group, kept)?.tensor()?.numel();
                if held < needed {
                    let name = kept.name();
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

    /// Group of a parameter, and place of a rank's part in the group's tensor.
    fn slice(&self, name: &str) -> Option<(usize, Range<usize>)> {
        self.groups.iter().enumerate().find_map(|(group, params)| {
            let at = params.iter().position(|(found, _)| found == name)?;
            let first = params[..at].iter().map(|(_, shape)| self.part(shape)).sum();
            Some((group, first..first + self.part(&params[at].1)))
        })
    }
}

impl Shares for Parts {
    fn read(&mut self, place: &Place, rank: usize, kept: Kept) -> anyhow::Result<Vec<f32>> {
        let slice = self.slice(&place.name);
        let (group, part) =
            slice.with_context(|| format!("{}: no {}", self.dir.display(), place.name))?;
        let numel = place.shape.iter().product();
        let mut values = Vec::with_capacity(numel);
        for file in self.files(rank)? {
            // The end of the last parts is padding.
            let own = part.len().min(numel - values.len());
            let optimizer = file.root().need("optimizer_state_dict")?;
            let flat = flat(&optimizer, group, kept)?;
            values.extend(file.floats(flat.tensor()?, part.start..part.start + own)?);
        }
        Ok(values)
    }
}

/// The flat tensor of a state of a group.
fn flat<'t>(optimizer: &Value<'t>, group: usize, kept: Kept) -> anyhow::Result<Value<'t>> {
    let missing = |of: &Value| of.problem(format!("has no group {group} of param_shapes"));
    if kept == Kept::Master {
        let groups = optimizer.need("fp32_flat_groups")?;
        return groups.items()?.get(group).cloned().ok_or_else(|| missing(&groups));
    }
    let key = if kept == Kept::FirstMoment { "exp_avg" } else { "exp_avg_sq" };
    let states = optimizer.need("optimizer_state_dict")?.need("state")?;
    states.at(group as i64).ok_or_else(|| missing(&states))?.need(key)
}
