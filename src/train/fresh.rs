//! Makes checkpoints from weights only: imported ones, and means of other checkpoints.

use checkpoint::disk::Disk;
use checkpoint::{self, Share, State};
use engine::{Initial, MASTER, MODEL, StateSpec, TensorSlice, model_dtype, rule};
use manifest::Manifest;
use model::{Layout, ModelShard};
use std::path::{Path, PathBuf};

/// Whole parameter, in the shape that checkpoints have.
pub struct Whole {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Saves weights, in the model's order, as a checkpoint of the manifest's run in the folder
/// `checkpoints`. The optimizer's states are those before its first update; an import has none,
/// because its optimizer may still change.
pub fn save(
    m: &Manifest,
    checkpoints: &Path,
    weights: &[Whole],
    state: &State,
) -> anyhow::Result<PathBuf> {
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let rounded = weights.iter().map(|whole| model_dtype(m.precision).halves(&whole.values));
    let rounded: Vec<Option<Vec<u16>>> = rounded.collect();
    let longest = weights.iter().map(|whole| whole.values.len()).max().unwrap_or(0);
    let (zeros, rule) = (vec![0u8; 4 * longest], rule(m));
    let kept = |spec: &StateSpec| match state.is_import() {
        true => [MASTER, MODEL].contains(&spec.name),
        false => !spec.is_dispensable(),
    };
    let mut shares = Vec::new();
    for (number, (param, whole)) in layout.params().zip(weights).enumerate() {
        let Whole { shape, values } = whole;
        let cols = shape[shape.len() - 1];
        let states = rule.states(&param.spec).into_iter();
        for state in states.filter(|state| kept(state)) {
            let size = state.extent.shape([values.len() / cols, cols]);
            let slice = TensorSlice { at: [0, 0], size };
            let bytes: &[u8] = match (state.init, &rounded[number]) {
                (Initial::Normal, _) => unreachable!("of the exchange of gradients alone"),
                (Initial::Zero, _) => &zeros[..slice.numel() * state.dtype.size()],
                (Initial::CastOf(_), Some(bits)) => bytemuck::cast_slice(bits),
                (Initial::CastOf(_), None) | (Initial::Parameter, _) => {
                    bytemuck::cast_slice(values)
                }
            };
            let (name, decay, replica) = (&param.name, param.spec.decay, Default::default());
            shares.push(Share { name, number, shape, decay, state, slice, replica, bytes });
        }
    }
    let saved = shares.iter().filter(|share| share.state.saved);
    let disk = Disk::showing(saved.map(|share| share.bytes.len() as u64).sum());
    checkpoint::save(&disk, checkpoints, &shares, state)
}
