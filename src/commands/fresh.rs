//! Makes checkpoints from weights only: imported ones, and means of other checkpoints.

use anyhow::Context;
use checkpoint::disk::Disk;
use checkpoint::{self, Share, State, WrittenPart};
use engine::{
    Initial, MASTER, MODEL, StateSpec, TensorSlice, model_dtype, optimizer_rule, saved_shape,
};
use manifest::Manifest;
use model::{Layout, ModelShard, Param};
use std::fs;
use std::path::{Path, PathBuf};

/// Whole parameter, in the shape that checkpoints have.
pub struct Whole {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Saves weights as a checkpoint of the manifest's run in the folder `checkpoints`. The optimizer's
/// states are those before its first update; an import has none, because its optimizer may still
/// change. `read` returns the weights in the model's order: one of them is in memory at a time, and has
/// its own files.
pub fn save(
    m: &Manifest,
    checkpoints: &Path,
    state: &State,
    read: &mut dyn FnMut(&Param) -> anyhow::Result<Whole>,
) -> anyhow::Result<PathBuf> {
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let (disk, step) = (Disk::default(), state.progress.step);
    fs::create_dir_all(checkpoints)
        .with_context(|| format!("cannot create {}", checkpoints.display()))?;
    let fresh = checkpoint::fresh(checkpoints, step);
    checkpoint::begin(&disk, &fresh, step, bytes(m, &layout, state))?;
    let mut write = || {
        let mut parts = Vec::new();
        for (number, param) in layout.params().enumerate() {
            let whole = read(param)?;
            parts.push(write_part(m, &disk, &fresh, (number, param), &whole, state)?);
        }
        checkpoint::publish(&disk, &fresh, parts, state)
    };
    let written = write();
    written.map_err(|error| {
        let error = checkpoint::abandon(&disk, &fresh, step, error);
        let _ = fs::remove_dir(checkpoints); // if nothing else is in it
        error
    })
}

/// Whether a state is in such a checkpoint.
fn is_kept(spec: &StateSpec, state: &State) -> bool {
    match state.is_import() {
        true => [MASTER, MODEL].contains(&spec.name),
        false => !spec.extent.serves_exchange(),
    }
}

/// Bytes of all states that are saved.
fn bytes(m: &Manifest, layout: &Layout, state: &State) -> u64 {
    let bytes = |param: &Param| -> u64 {
        let shape = saved_shape(param, m.model.vocab);
        let cols = shape[shape.len() - 1];
        let rows = shape.iter().product::<usize>() / cols;
        let states = optimizer_rule(m).states(&param.spec).into_iter();
        let saved = states.filter(|spec| spec.saved && is_kept(spec, state));
        let size = |spec: StateSpec| {
            spec.extent.shape([rows, cols]).iter().product::<usize>() * spec.dtype.size()
        };
        saved.map(size).sum::<usize>() as u64
    };
    layout.params().map(bytes).sum()
}

/// Writes the states of a weight.
fn write_part(
    m: &Manifest,
    disk: &Disk,
    fresh: &Path,
    (number, param): (usize, &Param),
    weight: &Whole,
    state: &State,
) -> anyhow::Result<WrittenPart> {
    let Whole { shape, values } = weight;
    let rounded = model_dtype(m.precision).halves(values);
    let zeros = vec![0u8; if state.is_import() { 0 } else { 4 * values.len() }];
    let cols = shape[shape.len() - 1];
    let share = |spec: StateSpec| {
        let size = spec.extent.shape([values.len() / cols, cols]);
        let slice = TensorSlice { at: [0, 0], size };
        let bytes: &[u8] = match (spec.init, &rounded) {
            (Initial::Normal, _) => unreachable!("of the exchange of gradients alone"),
            (Initial::Zero, _) => &zeros[..slice.numel() * spec.dtype.size()],
            (Initial::CastOf(_), Some(bits)) => bytemuck::cast_slice(bits),
            (Initial::CastOf(_), None) | (Initial::Parameter, _) => bytemuck::cast_slice(values),
        };
        let (name, decay, replica) = (&param.name, param.spec.decay, Default::default());
        Share { name, number, shape, decay, state: spec, slice, replica, bytes }
    };
    let states = optimizer_rule(m).states(&param.spec).into_iter();
    let shares: Vec<Share> = states.filter(|spec| is_kept(spec, state)).map(share).collect();
    checkpoint::write_part(disk, fresh, number, &shares, state)
}
