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

/// Sums over the finite values so far.
#[derive(Default)]
struct Sums {
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
        let mut stats = Stats::default();
        let mut sums = Sums::default();
        let dtype = tensor.state(state)?.dtype;
        let model = tensor
            .states
            .get(MODEL)
            .filter(|_| state == MASTER)
            .map(|model| model.dtype);
        checkpoint.blocks(tensor, state, &mut |first, bytes| {
            let digest = Digest::from_values(first as u64, dtype, bytes);
            stats.digest = stats.digest.and(digest);
            let values = dtype.widen(bytes);
            let rounded = match model.and_then(|model| Some((model, model.halves(&values)?))) {
                Some((model, bits)) => {
                    Digest::from_values(first as u64, model, bytemuck::cast_slice(&bits))
                }
                None => digest,
            };
            stats.rounded = stats.rounded.and(rounded);
            stats.add(&values, &mut sums);
            Ok(())
        })?;
        Ok(stats.with(sums))
    }

    /// Statistics of decoded numbers. They have no digest.
    pub fn from_numbers(numbers: &Numbers) -> anyhow::Result<Stats> {
        let mut stats = Stats::default();
        let mut sums = Sums::default();
        let mut buffer = Buffer::default();
        for rows in numbers.blocks()? {
            stats.add(&numbers.read(&mut buffer, rows)?, &mut sums);
        }
        Ok(stats.with(sums))
    }

    fn add(&mut self, values: &[f32], sums: &mut Sums) {
        for value in values {
            let x = f64::from(*value);
            self.count += 1;
            self.unsound.count(*value);
            if !x.is_finite() {
                continue;
            }
            self.min = self.min.min(x);
            self.max = self.max.max(x);
            sums.values += x;
            sums.squares += x * x;
            let exponent = (value.to_bits() >> 23 & 0xff) as i32 - 127;
            let bin = (exponent - FIRST_EXPONENT).clamp(0, BINS as i32 - 1);
            self.exponents[bin as usize] += 1;
        }
    }

    fn with(self, sums: Sums) -> Stats {
        let finite = self.count - self.unsound.nan - self.unsound.inf;
        Stats { mean: sums.values / finite.max(1) as f64, l2: sums.squares.sqrt(), ..self }
    }
}
