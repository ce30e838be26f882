//! Statistics of a tensor, computed in one pass.

use super::numbers::Numbers;
use crate::validate::UnsoundValues;
use crate::{Buffer, Checkpoint, Digest, Tensor};
use engine::{MASTER, MODEL};
use serde::Serialize;

/// Bins of the histogram: powers of two from 2⁻⁴⁰ to 2²³; the first also counts smaller values.
pub const BINS: usize = 64;
/// Exponent of the first bin.
pub const FIRST_EXPONENT: i32 = -40;

/// Statistics of a tensor's values. Minimum, maximum, mean and norm cover the finite values.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    pub count: u64,
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    /// Euclidean norm.
    pub l2: f64,
    #[serde(flatten)]
    pub unsound: UnsoundValues,
    /// Number of values by binary exponent.
    #[serde(skip)]
    pub exponents: Vec<u64>,
    #[serde(skip)]
    pub digest: Digest,
    /// Digest of the values rounded to the model weight's type.
    #[serde(skip)]
    pub rounded: Digest,
}

/// Statistics of the values so far.
#[derive(Default)]
pub struct RunningStats {
    stats: Stats,
    /// Sums over the finite values.
    values: f64,
    squares: f64,
}

impl Default for Stats {
    /// Statistics of no values.
    fn default() -> Stats {
        Stats {
            count: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: 0.0,
            l2: 0.0,
            unsound: UnsoundValues::default(),
            exponents: vec![0; BINS],
            digest: Digest::default(),
            rounded: Digest::default(),
        }
    }
}

impl Stats {
    /// Reads a state once, a few MiB at a time, and verifies every byte.
    pub fn read(checkpoint: &Checkpoint, tensor: &Tensor, state: &str) -> anyhow::Result<Stats> {
        let mut running = RunningStats::default();
        let dtype = tensor.state(state)?.dtype;
        let model = tensor
            .states
            .get(MODEL)
            .filter(|_| state == MASTER)
            .map(|model| model.dtype);
        checkpoint.blocks(tensor, state, &mut |first, bytes| {
            let digest = Digest::from_values(first as u64, dtype, bytes);
            let stats = &mut running.stats;
            stats.digest = stats.digest.and(digest);
            let values = dtype.widen(bytes);
            let rounded = match model.and_then(|model| Some((model, model.halves(&values)?))) {
                Some((model, bits)) => {
                    Digest::from_values(first as u64, model, bytemuck::cast_slice(&bits))
                }
                None => digest,
            };
            stats.rounded = stats.rounded.and(rounded);
            running.add(&values);
            Ok(())
        })?;
        Ok(running.finish())
    }

    /// Statistics of decoded numbers. They have no digest.
    pub fn from_numbers(numbers: &Numbers) -> anyhow::Result<Stats> {
        let mut running = RunningStats::default();
        let mut buffer = Buffer::default();
        for rows in numbers.blocks()? {
            running.add(&numbers.read(&mut buffer, rows)?);
        }
        Ok(running.finish())
    }
}

impl RunningStats {
    pub fn add(&mut self, values: &[f32]) {
        let stats = &mut self.stats;
        for value in values {
            let x = f64::from(*value);
            stats.count += 1;
            stats.unsound.count(*value);
            if !x.is_finite() {
                continue;
            }
            stats.min = stats.min.min(x);
            stats.max = stats.max.max(x);
            self.values += x;
            self.squares += x * x;
            let exponent = (value.to_bits() >> 23 & 0xff) as i32 - 127;
            let bin = (exponent - FIRST_EXPONENT).clamp(0, BINS as i32 - 1);
            stats.exponents[bin as usize] += 1;
        }
    }

    pub fn finish(self) -> Stats {
        let RunningStats { stats, values, squares } = self;
        let finite = stats.count - stats.unsound.nan - stats.unsound.inf;
        Stats { mean: values / finite.max(1) as f64, l2: squares.sqrt(), ..stats }
    }
}
