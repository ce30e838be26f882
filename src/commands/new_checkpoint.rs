//! Writes checkpoints from whole parameters: imported ones, and means of other checkpoints.

use anyhow::{Context, Result};
use checkpoint::disk::Disk;
use checkpoint::{self, Share, State, WrittenPart};
use engine::{
    Initial, MASTER, MODEL, StateSpec, TensorSlice, model_dtype, optimizer_rule, saved_shape,
};
use exchange::foreign::AdamState;
use exchange::source::ParamSource;
use manifest::Manifest;
use model::{Layout, ModelShard, Param};
use std::fs;
use std::path::{Path, PathBuf};

/// Whole parameter, in the shape that checkpoints have.
pub struct WholeWeight {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Bytes of the checkpoint that `save_source` writes.
pub fn source_bytes(source: &ParamSource, state: &State) -> u64 {
    let m = source.manifest();
    count_bytes(m, &Layout::new(&m.model, ModelShard::whole(&m.model)), state)
}

/// Saves what a source reads as a checkpoint of its manifest's run in the folder `checkpoints`, one state
/// of one parameter at a time, each into its own file.
pub fn save_source(source: &mut ParamSource, checkpoints: &Path, state: &State) -> Result<PathBuf> {
    let m = source.manifest().clone();
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let states = source.written_states();
    let reads = 4 * states.len() as u64 * model::parameters(&m.model);
    let bytes = source_bytes(source, state);
    write(checkpoints, state, bytes, |disk, staging| {
        source.show_progress("reading", reads);
        let mut parts = Vec::new();
        for (number, param) in layout.params().enumerate() {
            let shape = saved_shape(param, m.model.vocab);
            for kept in states.iter().copied() {
                let values = source.read_valid(param, kept)?;
                let whole = WholeState { number, param, shape: &shape, values: &values, kept };
                parts.push(whole.write(&m, disk, staging, state)?);
            }
        }
        Ok(parts)
    })
}

/// State of a whole parameter.
struct WholeState<'a> {
    number: usize,
    param: &'a Param,
    shape: &'a [usize],
    values: &'a [f32],
    kept: AdamState,
}

impl WholeState<'_> {
    /// Writes it. For a master weight, also records the digest of the model weight.
    fn write(
        &self,
        m: &Manifest,
        disk: &Disk,
        staging: &Path,
        state: &State,
    ) -> Result<WrittenPart> {
        let WholeState { number, param, shape, values, kept } = *self;
        let rounded = model_dtype(m.precision)
            .halves(values)
            .filter(|_| kept == AdamState::Master);
        let wanted =
            |name: &str| name == kept.saved_name() || name == MODEL && kept == AdamState::Master;
        let states = optimizer_rule(m).states(&param.spec).into_iter();
        let shares: Vec<Share> = states
            .filter(|spec| wanted(spec.name))
            .map(|spec| {
                let bytes: &[u8] = match (&rounded, spec.name == MODEL) {
                    (Some(bits), true) => bytemuck::cast_slice(bits),
                    _ => bytemuck::cast_slice(values),
                };
                whole_share(number, param, shape, spec, bytes)
            })
            .collect();
        checkpoint::write_part(disk, staging, number, &shares, state)
    }
}

/// Saves weights as a checkpoint of the manifest's run in the folder `checkpoints`. The optimizer's
/// states are those before its first update. `read` returns the weights in the model's order: one of them is in memory at a time, and has
/// its own files.
pub fn save_weights(
    m: &Manifest,
    checkpoints: &Path,
    state: &State,
    read: &mut dyn FnMut(&Param) -> Result<WholeWeight>,
) -> Result<PathBuf> {
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    write(checkpoints, state, count_bytes(m, &layout, state), |disk, staging| {
        let mut parts = Vec::new();
        for (number, param) in layout.params().enumerate() {
            let weight = read(param)?;
            parts.push(write_part(m, disk, staging, number, param, &weight, state)?);
        }
        Ok(parts)
    })
}

/// Writes a checkpoint of `bytes` bytes into the folder `checkpoints`, or nothing. `write_parts`
/// writes its data into the staging folder.
fn write(
    checkpoints: &Path,
    state: &State,
    bytes: u64,
    write_parts: impl FnOnce(&Disk, &Path) -> Result<Vec<WrittenPart>>,
) -> Result<PathBuf> {
    let disk = Disk::default();
    let step = state.progress.step;
    fs::create_dir_all(checkpoints)
        .with_context(|| format!("cannot create {}", checkpoints.display()))?;
    let staging = checkpoint::temporary_folder(checkpoints, step);
    checkpoint::begin(&disk, &staging, step, bytes)?;
    let written = write_parts(&disk, &staging)
        .and_then(|parts| checkpoint::publish(&disk, &staging, parts, state));
    written.map_err(|error| {
        let error = checkpoint::abandon(&disk, &staging, step, error);
        let _ = fs::remove_dir(checkpoints); // if nothing else is in it
        error
    })
}

/// Size of a state of a whole parameter, in rows and columns.
fn whole_size(spec: &StateSpec, shape: &[usize]) -> [usize; 2] {
    let cols = shape[shape.len() - 1];
    spec.extent
        .shape([shape.iter().product::<usize>() / cols, cols])
}

/// State of a whole parameter, with its bytes.
fn whole_share<'a>(
    number: usize,
    param: &'a Param,
    shape: &'a [usize],
    state: StateSpec,
    bytes: &'a [u8],
) -> Share<'a> {
    let slice = TensorSlice { at: [0, 0], size: whole_size(&state, shape) };
    let name = &param.name;
    let decay = param.spec.decay;
    let replica = Default::default();
    Share { name, number, shape, decay, state, slice, replica, bytes }
}

/// Whether a state is in a checkpoint of weights.
fn is_kept(spec: &StateSpec, state: &State) -> bool {
    if state.is_import() {
        [MASTER, MODEL].contains(&spec.name)
    } else {
        !spec.extent.serves_exchange()
    }
}

fn state_bytes(spec: &StateSpec, shape: &[usize]) -> usize {
    whole_size(spec, shape).iter().product::<usize>() * spec.dtype.size()
}

/// Bytes of all states that are saved.
fn count_bytes(m: &Manifest, layout: &Layout, state: &State) -> u64 {
    layout
        .params()
        .map(|param| -> u64 {
            let shape = saved_shape(param, m.model.vocab);
            let states = optimizer_rule(m).states(&param.spec).into_iter();
            let saved = states.filter(|spec| spec.saved && is_kept(spec, state));
            saved.map(|spec| state_bytes(&spec, &shape)).sum::<usize>() as u64
        })
        .sum()
}

/// Writes the states of a weight.
fn write_part(
    m: &Manifest,
    disk: &Disk,
    staging: &Path,
    number: usize,
    param: &Param,
    weight: &WholeWeight,
    state: &State,
) -> Result<WrittenPart> {
    let WholeWeight { shape, values } = weight;
    let rounded = model_dtype(m.precision).halves(values);
    let zeros = vec![0u8; 4 * values.len()];
    let states = optimizer_rule(m).states(&param.spec).into_iter();
    let shares: Vec<Share> = states
        .filter(|spec| is_kept(spec, state))
        .map(|spec| {
            let bytes: &[u8] = match (spec.init, &rounded) {
                (Initial::Normal, _) => unreachable!("of the exchange of gradients alone"),
                (Initial::Zero, _) => &zeros[..state_bytes(&spec, shape)],
                (Initial::CastOf(_), Some(bits)) => bytemuck::cast_slice(bits),
                (Initial::CastOf(_), None) | (Initial::Parameter, _) => {
                    bytemuck::cast_slice(values)
                }
            };
            whole_share(number, param, shape, spec, bytes)
        })
        .collect();
    checkpoint::write_part(disk, staging, number, &shares, state)
}
