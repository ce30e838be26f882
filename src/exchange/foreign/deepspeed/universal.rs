//! Universal folders of DeepSpeed (`ds_to_universal.py`): each parameter whole, in files of its own.
//!
//! ```text
//! zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt          dict: param, cat_dim
//! zero/optimizer_state.pt                               the groups' numbers
//! mp_rank_MM_model_states.pt                            as before the conversion: args, iteration
//! ```

use super::super::super::torch::{Element, TorchFile, Value};
use super::super::arguments::Arguments;
use super::super::detect::{Format, list_names, step_folder};
use super::super::run::{ForeignRun, Layout, PartReader, Put, Rows, Source};
use super::super::topology::{set_grid, set_replicas, set_said_split};
use super::super::{AdamState, Choices, RunDescription, incomplete};
use super::layers::{EMBEDDING, first_block, name_of, table};
use super::{RULE, refuse};
use model::Param;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reader of the parameters' files.
struct UniversalReader {
    dir: PathBuf,
    first_block: usize,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ForeignRun> {
    let dir = step_folder(from)?;
    let file = TorchFile::open(&dir.join("mp_rank_00_model_states.pt"))?;
    let root = file.root();
    let args = Arguments::new(root.need("args")?, file.place().to_string(), RULE, choices);
    refuse(&args)?;
    let shapes = shapes(&dir)?;
    let first_block = first_block(shapes.keys().map(String::as_str))
        .ok_or_else(|| args.problem("zero has no block's input_layernorm".into()))?;
    let trainer = "Megatron-DeepSpeed (universal checkpoint)";
    let mut found =
        RunDescription::new(Format::DeepSpeedUniversal, trainer, &dir).with_args(&root, &args)?;
    for (i, key) in ["topology.tensor", "topology.pipeline"]
        .into_iter()
        .enumerate()
    {
        found.grid[i] = args.count(key).unwrap_or(1) as usize;
    }
    set_grid(&mut found.settings, &args, [found.grid[0], found.grid[1]]);
    set_replicas(&mut found.settings, &args)?;
    let layers = args.count("model.layers")? as usize;
    set_said_split(&mut found.settings, &args, layers, found.grid[1])?;
    (found.updates, found.lr) = numbers(&dir)?;
    let rows = shapes
        .get(EMBEDDING)
        .and_then(|shape| shape.first().copied())
        .ok_or_else(|| args.problem(format!("zero has no {EMBEDDING}")))?;
    if let Some(padded) = args.optional_count("padded_vocab_size")?
        && padded as usize > rows
    {
        found.notes.push(format!(
            "a universal folder has no rows that pad the vocabulary: {} that were trained are gone",
            padded as usize - rows
        ));
    }
    let params = shapes
        .iter()
        .map(|(name, shape)| (0, name.as_str(), &shape[..]));
    let table = table(params, first_block);
    let reader = UniversalReader { dir, first_block };
    let layout = Layout::new(1, 3.0, &args);
    let run = ForeignRun::new(found, table, reader, layout);
    let mut run = run.with_vocabulary(&args, None, choices)?;
    run.found.note_updates();
    Ok(run)
}

/// Adam's count and the last rate.
fn numbers(dir: &Path) -> anyhow::Result<(u64, f64)> {
    let file = TorchFile::open(&dir.join("zero/optimizer_state.pt"))?;
    let root = file.root();
    let groups = root
        .some("param_groups")
        .map_or(Ok(Vec::new()), |groups| groups.items())?;
    let first = groups.first();
    let step = first
        .and_then(|group| group.some("step"))
        .map(|step| file.count(&step))
        .transpose()?;
    let lr = first
        .and_then(|group| group.some("lr"))
        .map_or(Ok(0.0), |lr| file.number(&lr))?;
    if let Some(step) = step {
        return Ok((step, lr));
    }
    // PyTorch's AdamW keeps the step beside each parameter.
    let own = dir.join("zero").join(EMBEDDING).join("step.pt");
    if own.is_file() {
        let file = TorchFile::open(&own)?;
        let root = file.root();
        return Ok((file.count(&root)?, lr));
    }
    Err(root.problem("has no step in param_groups, and there is no step.pt".into()))
}

/// Shapes of all parameters, by their names.
fn shapes(dir: &Path) -> anyhow::Result<BTreeMap<String, Vec<usize>>> {
    let zero = dir.join("zero");
    let mut shapes = BTreeMap::new();
    for name in list_names(&zero)?
        .into_iter()
        .filter(|name| zero.join(name).is_dir())
    {
        let mut shape = None;
        for state in AdamState::ALL {
            let path = state_file(dir, &name, state);
            if !path.is_file() {
                return Err(incomplete(dir, format!("{} is missing", path.display())));
            }
            let file = TorchFile::open(&path)?;
            let tensor = param(&file.root())?.tensor()?.shape.clone();
            if shape.get_or_insert_with(|| tensor.clone()) != &tensor {
                return Err(file.root().problem(format!(
                    "the {} of {name} is {tensor:?}, not {shape:?}",
                    state.name()
                )));
            }
        }
        shapes.extend(shape.map(|shape| (name, shape)));
    }
    Ok(shapes)
}

fn state_file(dir: &Path, name: &str, state: AdamState) -> PathBuf {
    dir.join("zero")
        .join(name)
        .join(format!("{}.pt", state.key("fp32")))
}

/// The tensor of a file: in a dict, or by itself in the first version.
fn param<'t>(root: &Value<'t>) -> anyhow::Result<Value<'t>> {
    match root.tensor() {
        Ok(_) => Ok(root.clone()),
        Err(_) => root.need("param"),
    }
}

impl PartReader for UniversalReader {
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()> {
        let file = TorchFile::open(&state_file(&self.dir, &source.name, state))?;
        let root = file.root();
        let value = param(&root)?;
        let tensor = value.tensor()?;
        let mut rows = Rows::new(put, [0, 0], source.matrix());
        file.each_floats(tensor, 0..tensor.numel(), &mut |values| rows.push(values))
    }

    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element> {
        let file = TorchFile::open(&state_file(&self.dir, &source.name, state))?;
        Ok(param(&file.root())?.tensor()?.element)
    }

    fn name(&self, param: &Param, _: AdamState) -> Option<String> {
        name_of(param, self.first_block)
    }
}
