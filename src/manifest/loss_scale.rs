//! Section `loss_scale`: factor of the loss in fp16, by which gradients are divided before the
//! update. A step with a non-finite gradient overflows: it updates nothing.
//!
//! A run with a constant scale ends at the `hysteresis`th overflow without `window` updates in a row
//! before it, one with a dynamic scale at an overflow that would reduce it below `min`.

use super::choices::Precision;
use super::define::{Written, checked, forms, read, sections, settings, written};
use super::report::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
#[derive(Copy)]
/// Loss scale of fp16. A dynamic scale doubles after a number of updates in a row and halves after
/// overflows, whose steps are skipped.
LossScale(raw) {
    /// Constant scale, instead of initial and min (--loss-scale).
    constant: f64, in 1e-9..=1e18;
    /// First scale (--initial-loss-scale). Default: 4_294_967_296.
    initial: f64 => f64 = raw.initial.or(constant).unwrap_or(4_294_967_296.0),
        in 1e-9..=1e18, written Some(*initial).filter(|_| constant.is_none());
    /// Minimum scale; a run that overflows at it ends (--min-loss-scale). Default: 1.
    min: f64 => f64 = raw.min.or(constant).unwrap_or(1.0),
        in 1e-9..=1e18, written Some(*min).filter(|_| constant.is_none());
    /// Updates in a row after which the scale doubles (--loss-scale-window). Default: 1000.
    window: u64 = 1000, in 1..=1_000_000_000_000u64;
    /// Number of overflows before the scale halves; after that it halves at each overflow, until it
    /// doubles again (--hysteresis). Default: 2.
    hysteresis: u64 = 2, in 1..=1_000_000;
}
}

forms! {
    /// Loss scale: a constant, or settings.
    LossScaleForm {
        /// Constant scale.
        Constant(Factor),
        /// Settings.
        Settings(raw::LossScale),
    }
}

/// Loss scale.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Factor(#[schemars(range(min = 1e-9, max = 1e18))] pub f64);

/// Loss scale of a run; None unless the precision is fp16.
pub fn loss_scale(
    form: Option<LossScaleForm>,
    precision: Precision,
    report: &mut Report,
) -> Option<LossScale> {
    if precision != Precision::Fp16 {
        if form.is_some() && report.are_valid(&["precision"]) {
            report.add(
                "loss_scale",
                "loss_scale is for precision fp16: f32 and bf16 have a range that needs none",
                "remove it, or set precision: fp16",
            );
        }
        return None;
    }
    let raw = match form {
        None => raw::LossScale::default(),
        Some(LossScaleForm::Constant(Factor(scale))) => {
            raw::LossScale { constant: Some(scale), ..Default::default() }
        }
        Some(LossScaleForm::Settings(settings)) => settings,
    };
    let scale = LossScale::read(raw);
    if scale.constant.is_some() {
        if raw.initial.is_some() || raw.min.is_some() {
            report.add(
                "loss_scale.constant",
                "loss_scale is constant, and has an initial or lowest value",
                "keep constant alone, or remove it",
            );
        }
    } else if scale.min > scale.initial {
        let LossScale { min, initial, .. } = scale;
        report.add(
            "loss_scale.min",
            format!("loss_scale.min {min} is above loss_scale.initial {initial}"),
            "lower min, or raise initial",
        );
    }
    Some(scale)
}
