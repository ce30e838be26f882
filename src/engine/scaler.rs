//! Loss scale: the factor that keeps small fp16 gradients from underflow; and the number of
//! updates. Updated on the device in every step; read and set between steps.
//!
//! f32 and bf16 have a constant scale of 1 and no hysteresis: the first non-finite step makes them
//! stuck, which ends the run.

use base::DType;
use device::{Arena, Backend, Scaler, Scaling, Tensor};
use manifest::{LossScale, Manifest};
use serde::{Deserialize, Serialize};

/// State of the loss scale after a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleState {
    pub scale: f64,
    /// Updates since the scale doubled or a step overflowed.
    pub updates_in_a_row: u64,
    /// Overflows until the scale halves, counting the next one; 1 or less: every overflow halves
    /// it.
    pub overflows_left: i64,
    /// Total updates, for AdamW's bias corrections.
    pub updates: u64,
    /// Total skipped steps.
    pub skipped: u64,
}

impl ScaleState {
    /// State before the first step.
    pub fn initial(m: &Manifest) -> ScaleState {
        let scale = m.loss_scale.map_or(1.0, |scale| scale.initial);
        let overflows_left = scaling(m).hysteresis as i64;
        ScaleState { scale, updates_in_a_row: 0, overflows_left, updates: 0, skipped: 0 }
    }

    /// The same state with counters of zero.
    pub fn without_counters(self) -> ScaleState {
        ScaleState { updates: 0, skipped: 0, ..self }
    }

    /// The same state under the settings of a manifest, which may have changed since.
    pub fn within_settings(self, m: &Manifest) -> ScaleState {
        let Scaling { growth, min, .. } = scaling(m);
        let scale = if growth == 1.0 { min.into() } else { self.scale.max(min.into()) };
        ScaleState { scale, ..self }
    }
}

/// Rules for changes of the scale.
pub fn scaling(m: &Manifest) -> Scaling {
    match m.loss_scale {
        None => Scaling { growth: 1.0, window: u64::MAX >> 1, hysteresis: 1, min: 1.0 },
        Some(LossScale { constant, min, window, hysteresis, .. }) => {
            let growth = if constant.is_some() { 1.0 } else { 2.0 };
            Scaling { growth, window, hysteresis, min: min as f32 }
        }
    }
}

/// Reserves the counters in device memory.
pub fn counts(arena: &Arena) -> Tensor {
    arena.matrix(1, 5, DType::I64)
}

pub fn write(be: &dyn Backend, to: Scaler, state: &ScaleState) {
    let ScaleState { scale, updates_in_a_row, overflows_left, updates, skipped } = *state;
    let counts = [
        updates_in_a_row as i64,
        overflows_left,
        updates as i64,
        skipped as i64,
        0, /* stuck */
    ];
    be.upload(bytemuck::cast_slice(&[scale as f32]), to.scale);
    be.upload(bytemuck::cast_slice(&counts), to.counts);
}

pub fn read(be: &dyn Backend, from: Scaler) -> ScaleState {
    let mut scale = [0.0f32];
    let mut counts = [0i64; 5];
    be.download(from.scale, bytemuck::cast_slice_mut(&mut scale));
    be.download(from.counts, bytemuck::cast_slice_mut(&mut counts));
    let [updates_in_a_row, overflows_left, updates, skipped, _] = counts;
    ScaleState {
        scale: scale[0].into(),
        updates_in_a_row: updates_in_a_row as u64,
        overflows_left,
        updates: updates as u64,
        skipped: skipped as u64,
    }
}
