//! Checks a row for impossible or contradictory values.

use super::Row;
use crate::predictor::Predictor;
use estimate::setup::Setup;

/// All problems of a row, with remedies.
pub fn problems(row: &Row, devices: Option<usize>) -> Vec<String> {
    let s = match &row.setup {
        Ok(setup) => setup,
        Err(why) => return vec![why.clone()],
    };
    let mut found = s.violations();
    if let Some(devices) = devices
        && devices != s.ranks()
    {
        let t = &s.topology;
        let tp = t.tensor;
        let pp = t.pipeline;
        let dp = t.data;
        let what = format!(
            "TP {tp} × PP {pp} × DP {dp} = {} is not the {devices} GPUs of the row",
            s.ranks()
        );
        let fits = devices
            .is_multiple_of(tp * pp)
            .then(|| format!(": DP {} would be", devices / (tp * pp)));
        found.push(what + &fits.unwrap_or_default());
    }
    if s.model.layers > s.model.hidden {
        found.push(format!(
            "n_layers {} and hidden {} look swapped",
            s.model.layers, s.model.hidden
        ));
    }
    if let Some(gb) = row.memory_gb
        && gb > 1.1 * s.hardware.memory_gib * 1.024
    {
        let capacity = s.hardware.memory_gib;
        found.push(format!(
            "mem_gb {gb} is more than the device's {capacity} GiB: another unit or column?"
        ));
    }
    found.extend(rates(row, s));
    found
}

/// Seconds and TFLOPs must agree by one of the published formulas.
fn rates(row: &Row, s: &Setup) -> Option<String> {
    let seconds = row.seconds.filter(|_| row.seconds_printed)?;
    let tflops = row.tflops?;
    let ratio = |seconds: f64, tflops: f64| {
        let improved = s.flops().1 / (seconds * s.ranks() as f64 * 1e12);
        // The simple rule, with all parameters or without the embedding's.
        let blocks = s.counts.block * (s.topology.tensor * s.model.layers) as f64;
        let whole = s.simple_tflops(seconds);
        let all = model::parameters(&s.model) as f64;
        // FLOPs of the model only, with or without the scores above the diagonal.
        let device = seconds * s.ranks() as f64 * 1e12;
        let model = s.flops().0 / device;
        let scores = s.score_flops() / device;
        let published = [improved, whole, whole * blocks / all, model, model - scores / 2.0];
        published
            .into_iter()
            .map(|a| (a / tflops).ln().abs())
            .fold(f64::INFINITY, f64::min)
    };
    // Seconds × TFLOPs is the same if both are swapped; only the expected values show it.
    let expected = Predictor::shipped().predict(s);
    let off = |seconds: f64| (seconds / expected.seconds).ln().abs();
    if off(seconds) > expected.seconds_error && off(tflops) < 0.5 * expected.seconds_error {
        return Some(format!(
            "sec_per_iter {seconds} and tflops_reported {tflops} look swapped: {:.1} s are expected",
            expected.seconds
        ));
    }
    if off(seconds) > (3.0 * expected.seconds_error).max(0.5) {
        let times = seconds / expected.seconds;
        return Some(format!(
            "{seconds} s is {times:.2} times what is expected: a slow allocation, or another shape?"
        ));
    }
    if ratio(seconds, tflops) < 0.1 {
        return None;
    }
    let shown = s.flops().1 / (seconds * s.ranks() as f64 * 1e12);
    Some(format!(
        "{seconds} s are {shown:.1} TFLOPs, the row says {tflops}: wrong seq_len, gbs or gpus?"
    ))
}
