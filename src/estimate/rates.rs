//! Rules of thumb: FLOPs by parameters and tokens.

use manifest::Recompute;

/// FLOPs of a parameter and token by the simple formula: 8 with full recomputation, else 6.
pub fn simple_factor(recompute: Recompute) -> f64 {
    if recompute == Recompute::Full { 8.0 } else { 6.0 }
}

/// TFLOP/s of a device: `factor` FLOPs a parameter and token (6, or 8 with full recomputation).
pub fn simple_tflops(factor: f64, parameters: f64, tokens: f64, seconds: f64, devices: f64) -> f64 {
    factor * parameters * tokens / (seconds * devices * 1e12)
}

/// Days of a run at that rate.
pub fn simple_days(factor: f64, parameters: f64, tokens: f64, devices: f64, tflops: f64) -> f64 {
    factor * parameters * tokens / (devices * tflops * 1e12) / 86400.0
}
