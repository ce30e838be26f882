//! Distributed checkpoints of Megatron-Core (`--ckpt-format torch_dist`): `iter_0000100/`.
//!
//! ```text
//! .metadata, __R_N.distcp     tensors of the whole model, in rectangles
//! common.pt                   args, iteration, the optimizer's groups; since 0.19 an object in the former
//! ```
//!
//! A block's parameter is a tensor of all layers with a leading axis, or one tensor a layer. The optimizer's
//! states are tensors of the same shapes, or flat pieces of each rank's share of them (before 0.15).

mod common;

use super::super::torch::{Element, TorchFile, Value};
use super::arguments::Arguments;
use super::compare::Comparison;
use super::dcp::metadata::Metadata;
use super::detect::{Format, step_folder};
use super::megatron::names::{Layers, dist_name};
use super::megatron::states::{groups, inner, loss_scale, rate, updates_of};
use super::run::{ForeignRun, Layout, ParamTable, PartReader, Piece, Put, Source, Stored};
use super::topology::{set_grid, set_replicas, set_said_split};
use super::{AdamState, Choices, RunDescription};
use anyhow::Context;
use base::{Problems, input};
use common::{common_root, open_common};
use std::path::Path;

/// Before a parameter's name in those of the optimizer's states.
const STATE: &str = "optimizer.state.";
/// Parts of the checkpoint that are not the model.
const NOT_MODEL: &[&str] = &["optimizer.", "chained_", "rng_state", "rerun_state_machine"];
/// Layers of a model, at most.
const MAX_LAYERS: usize = 1 << 12;

/// Reader of the tensors of a distributed checkpoint.
struct DistReader {
    meta: Metadata,
    /// Name of the f32 weights among the states; None if the model's own weights are read.
    masters: Option<&'static str>,
    layers: usize,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ForeignRun> {
    let dir = step_folder(from)?;
    check_backend(&dir)?;
    let meta = Metadata::read(&dir)?;
    let common = open_common(&dir, &meta)?;
    let root = common_root(&common)?;
    let place = common.place().to_string();
    let args = Arguments::new(root.need("args")?, place, "mcore", choices);
    args.refuse(&[])?;
    let mut found = RunDescription::new(Format::MegatronDist, "Megatron-Core (torch_dist)", &dir)
        .with_args(&root, &args)?;
    let sizes = ["topology.tensor", "topology.pipeline", "topology.data"];
    for (ranks, key) in found.grid.iter_mut().zip(sizes) {
        *ranks = args.optional_count(key)?.unwrap_or(1) as usize;
    }
    set_grid(&mut found.settings, &args, [found.grid[0], found.grid[1]]);
    set_replicas(&mut found.settings, &args)?;
    let layers = args.count("model.layers")? as usize;
    set_said_split(&mut found.settings, &args, layers, found.grid[1])?;
    found.lr = rate(&common, &groups(&root)?).unwrap_or(0.0);
    found.loss_scale = loss_scale(&common, &root)?;
    if layers > MAX_LAYERS {
        return Err(args.problem(format!("args.{} is {layers}", args.name("model.layers"))));
    }
    let table = table(&meta, layers);
    let half = args.is_set("precision: bf16") || args.is_set("precision: fp16");
    let masters = find_states(&meta, &common, &root, half, &mut found)?;
    let reader = DistReader { meta, masters, layers };
    let layout = Layout::new(1, 3.0, &args);
    let vocab = args.optional_count("model.vocab")?;
    ForeignRun::new(found, table, reader, layout).with_vocabulary(&args, vocab, choices)
}

/// Fails unless `metadata.json`, if it is there, names this format.
fn check_backend(dir: &Path) -> anyhow::Result<()> {
    let path = dir.join("metadata.json");
    if !path.exists() {
        return Ok(());
    }
    let place = path.display().to_string();
    let bytes = input::read(&path, input::SMALL).with_context(|| format!("cannot read {place}"))?;
    let json: serde_json::Value = base::json::from_python(&bytes).unwrap_or_default();
    let backend = json["sharded_backend"].as_str().unwrap_or_default();
    if backend == "torch_dist" {
        return Ok(());
    }
    let backend: String = backend.chars().take(40).collect();
    Err(Problems::one(
        place,
        format!("sharded_backend is {backend:?}: torch_dist is read"),
        "load it there and save it once with --ckpt-format torch_dist",
    )
    .into())
}

/// Tensors of every parameter.
fn table(meta: &Metadata, layers: usize) -> ParamTable {
    let mut table = ParamTable::default();
    for (name, entry) in &meta.tensors {
        if name.contains("_extra_state") || NOT_MODEL.iter().any(|part| name.starts_with(part)) {
            continue;
        }
        let Some((weight, held, half)) = dist_name(name) else {
            table.unknown.push(name.clone());
            continue;
        };
        let mut add = |number: Option<usize>, shape: &[usize], layer: Option<usize>| {
            let shape = shape.to_vec();
            let source = Source { name: name.clone(), shape, layer, ..Source::default() };
            let piece = half.map_or(Piece::All, Piece::Half);
            let stored = Stored { piece, ..Stored::whole(source) };
            table
                .stored
                .entry((weight, number))
                .or_default()
                .push(stored);
        };
        match held {
            Layers::Outside => add(None, &entry.shape, None),
            Layers::One(layer) => add(Some(layer), &entry.shape, None),
            Layers::All => {
                let shape = entry.shape.get(1..).unwrap_or_default();
                (0..layers).for_each(|layer| add(Some(layer), shape, Some(layer)));
            }
        }
    }
    table
}

/// Finds the optimizer's states, or notes why they are not read. Returns the name of the f32 weights among
/// them.
fn find_states(
    meta: &Metadata,
    common: &TorchFile,
    root: &Value,
    half: bool,
    found: &mut RunDescription,
) -> anyhow::Result<Option<&'static str>> {
    let has = |before: &str| meta.tensors.keys().any(|name| name.starts_with(before));
    let has_state = |name: &str| has(&format!("{STATE}{name}."));
    // The distributed optimizer's name, and the plain one's.
    let masters = ["param", "fp32_param"]
        .into_iter()
        .find(|name| has_state(name));
    let state = inner(root).and_then(|inner| inner.some("state"));
    let updates = updates_of(common, &groups(root)?, state.as_ref())?;
    let why = if !has("optimizer.") && !has("chained_") {
        "the files have no optimizer".to_string()
    } else if !has_state("exp_avg") {
        let kind = root
            .some("optimizer")
            .and_then(|outer| outer.some("param_state_sharding_type"));
        let kind = kind
            .as_ref()
            .and_then(|kind| kind.str().ok())
            .unwrap_or("dp_reshardable");
        format!(
            "they are in the buffers of the distributed optimizer ({kind}), whose order is not in the \
             files; save once with --dist-ckpt-optim-fully-reshardable"
        )
    } else if half && masters.is_none() {
        format!("there is no {STATE}param and no {STATE}fp32_param")
    } else if let Some(updates) = updates {
        found.updates = updates;
        found.note_updates();
        return Ok(masters);
    } else {
        format!("{}: the optimizer has no step", common.place())
    };
    found.restart_optimizer(why);
    Ok(None)
}

impl DistReader {
    /// Name of a state of a tensor.
    fn key(&self, name: &str, state: AdamState) -> String {
        match (state, self.masters) {
            (AdamState::Master, None) => name.to_string(),
            (_, masters) => format!("{STATE}{}.{name}", state.key(masters.unwrap_or_default())),
        }
    }
}

impl PartReader for DistReader {
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()> {
        let name = self.key(&source.name, state);
        self.meta
            .each_rectangle(&name, source.layer, &source.shape, put)
    }

    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element> {
        self.meta.element(&self.key(&source.name, state))
    }

    fn compare(&self, source: &Source, state: AdamState, shape: &[usize], into: &mut Comparison) {
        let mut whole = shape.to_vec();
        match source.layer {
            None => {}
            Some(0) => whole.insert(0, self.layers),
            // A tensor of all layers is compared once.
            Some(_) => return,
        }
        self.meta
            .compare(&self.key(&source.name, state), &whole, into);
    }
}
