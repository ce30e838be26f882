//! Universal folders of DeepSpeed (`ds_to_universal.py`): each parameter whole, in files of its own.
//!
//! ```text
//! zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt          dict: param, cat_dim
//! zero/optimizer_state.pt                               the groups' numbers
//! mp_rank_MM_model_states.pt                            as before the conversion: args, iteration
//! ```

use super::super::super::torch::{TorchFile, Value};
use super::super::arguments::Arguments;
use super::super::compare::Comparison;
use super::super::detect::{Format, step_folder};
use super::super::megatron::states::step_number;
use super::super::{Choices, ForeignRun, Found, Kept, Request};
use super::layers::{EMBEDDING, first_block, name_of};
use super::{RULE, refuse};
use anyhow::Context;
use base::Problems;
use manifest::Model;
use model::Param;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

struct Universal {
    dir: PathBuf,
    found: Found,
    first_block: usize,
    /// Shape of each parameter.
    shapes: BTreeMap<String, Vec<usize>>,
}

pub fn open(from: &Path, _: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    let main = dir.join("mp_rank_00_model_states.pt");
    let file = TorchFile::open(&main)?;
    let root = file.root();
    let args = Arguments::new(root.need("args")?, main.display().to_string(), RULE);
    refuse(&args)?;
    let shapes = shapes(&dir)?;
    let names = shapes.keys().map(String::as_str);
    let first_block = first_block(names)
        .with_context(|| format!("{}: zero has no block's input_layernorm", dir.display()))?;
    let scheduler = root.some("lr_scheduler").or_else(|| root.some("opt_param_scheduler"));
    let trainer = "Megatron-DeepSpeed (universal checkpoint)";
    let found = Found::new(Format::DeepSpeedUniversal, trainer, &dir);
    let mut found = found.with_args(&root, &args, scheduler)?;
    let size = |name: &str| args.count(name).unwrap_or(1) as usize;
    for (i, key) in ["tensor", "pipeline"].into_iter().enumerate() {
        let name = format!("{key}_model_parallel_size");
        found.grid[i] = size(&name);
        found.settings.set(&format!("topology.{key}"), found.grid[i], &name);
    }
    (found.updates, found.lr) = numbers(&dir)?;
    let rows = shapes.get(EMBEDDING).and_then(|shape| shape.first().copied());
    let rows = rows.with_context(|| format!("{}: zero has no {EMBEDDING}", dir.display()))?;
    if let Some(padded) = args.get("padded_vocab_size").map(|size| size.count()).transpose()?
        && padded as usize > rows
    {
        found.notes.push(format!(
            "a universal folder has no rows that pad the vocabulary: {} that were trained are gone",
            padded as usize - rows
        ));
    }
    found.aside = args.aside();
    found.vocabulary([rows, rows], None, false);
    found.counts();
    Ok(Box::new(Universal { dir, found, first_block, shapes }))
}

/// Adam's count and the last rate.
fn numbers(dir: &Path) -> anyhow::Result<(u64, f64)> {
    let file = TorchFile::open(&dir.join("zero/optimizer_state.pt"))?;
    let root = file.root();
    let groups = root.some("param_groups").map_or(Ok(Vec::new()), |groups| groups.items())?;
    let first = groups.first();
    let step = first
        .and_then(|group| group.some("step"))
        .map(|step| step_number(&file, &step))
        .transpose()?;
    let lr = first.and_then(|group| group.some("lr")).map_or(Ok(0.0), |lr| lr.float())?;
    if let Some(step) = step {
        return Ok((step, lr));
    }
    // PyTorch's AdamW keeps the step beside each parameter.
    let own = dir.join("zero").join(EMBEDDING).join("step.pt");
    if own.is_file() {
        let file = TorchFile::open(&own)?;
        let root = file.root();
        return Ok((step_number(&file, &root)?, lr));
    }
    Err(root.problem("has no step in param_groups, and there is no step.pt".into()))
}

/// Shapes of all parameters, by their names.
fn shapes(dir: &Path) -> anyhow::Result<BTreeMap<String, Vec<usize>>> {
    let zero = dir.join("zero");
    let failed = || format!("cannot list {}", zero.display());
    let mut shapes = BTreeMap::new();
    for entry in fs::read_dir(&zero).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !path.is_dir() {
            continue;
        }
        let mut shape = None;
        for kept in Kept::ALL {
            let file = state(dir, name, kept);
            if !file.is_file() {
                let what = format!("{} is missing", file.display());
                let remedy = "copy the folder of the step whole";
                return Err(Problems::one(dir.display().to_string(), what, remedy).into());
            }
            let file = TorchFile::open(&file)?;
            let tensor = param(&file.root())?.tensor()?.shape.clone();
            if shape.get_or_insert_with(|| tensor.clone()) != &tensor {
                let what = format!("the {} of {name} is {tensor:?}, not {shape:?}", kept.name());
                return Err(file.root().problem(what));
            }
        }
        shapes.extend(shape.map(|shape| (name.to_string(), shape)));
    }
    Ok(shapes)
}

fn state(dir: &Path, name: &str, kept: Kept) -> PathBuf {
    let file = match kept {
        Kept::Master => "fp32.pt",
        Kept::FirstMoment => "exp_avg.pt",
        Kept::SecondMoment => "exp_avg_sq.pt",
    };
    dir.join("zero").join(name).join(file)
}

/// The tensor of a file: in a dict, or by itself in the first version.
fn param<'t>(root: &Value<'t>) -> anyhow::Result<Value<'t>> {
    match root.tensor() {
        Ok(_) => Ok(root.clone()),
        Err(_) => root.need("param"),
    }
}

impl Universal {
    fn name(&self, param: &Param) -> Option<String> {
        name_of(param, self.first_block, self.shapes.keys().map(String::as_str))
    }
}

impl ForeignRun for Universal {
    fn found(&self) -> &Found {
        &self.found
    }

    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let mut compared = Comparison::with_args(&self.dir);
        for param in params {
            let Some(name) = self.name(param) else {
                compared.missing(param);
                continue;
            };
            let shape = engine::saved_shape(param, model.vocab);
            let found = self.shapes.get(&name).map(|shape| &shape[..]);
            compared.shape(&name, found, &shape, "args");
        }
        compared.others(self.shapes.keys().map(String::as_str));
        Ok(compared.finish()?)
    }

    fn read(&mut self, Request { param, kept, .. }: Request) -> anyhow::Result<Vec<f32>> {
        let name = self.name(param).with_context(|| format!("no name for {}", param.name))?;
        let file = TorchFile::open(&state(&self.dir, &name, kept))?;
        let root = file.root();
        let value = self::param(&root)?;
        let tensor = value.tensor()?;
        file.floats(tensor, 0..tensor.numel())
    }
}
