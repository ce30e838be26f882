//! Comparison of logged and computed steps, with the tolerances of each precision.

use super::log::{LoggedStep, Number, RunLog};
use super::steps::Computed;
use manifest::Precision;

/// Largest relative difference between two programs that compute the same step, measured on sound runs
/// (docs/check-run.md).
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    loss: f64,
    norm: f64,
}

/// Factor by which a tolerance grows with each further step, whose weights already differ.
const GROWTH: f64 = 1.5;

impl Tolerance {
    pub fn for_precision(precision: Precision) -> Tolerance {
        match precision {
            Precision::F32 | Precision::Tf32 => Tolerance { loss: 1e-6, norm: 1e-5 },
            Precision::Bf16 | Precision::Fp8 => Tolerance { loss: 1e-3, norm: 5e-3 },
            Precision::Fp16 => Tolerance { loss: 1e-4, norm: 1e-3 },
        }
    }

    /// Comparison of a quantity in the `number`th step after the checkpoint, from 0.
    fn pair(relative: f64, theirs: Number, ours: f64, number: u64) -> Pair {
        let rounding = theirs.unit / 2.0;
        let noise = relative * theirs.value.abs() * GROWTH.powi(number as i32);
        Pair { theirs, ours, tolerance: rounding + noise }
    }
}

/// A logged number and ours.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub theirs: Number,
    pub ours: f64,
    pub tolerance: f64,
}

impl Pair {
    pub fn difference(&self) -> f64 {
        self.ours - self.theirs.value
    }

    /// Difference in tolerances: at most 1 if the two agree.
    pub fn off(&self) -> f64 {
        let off = self.difference().abs() / self.tolerance;
        if off.is_nan() { f64::INFINITY } else { off }
    }

    pub fn agrees(&self) -> bool {
        self.off() <= 1.0
    }
}

/// A logged line and ours.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    pub step: u64,
    /// Steps whose mean loss it has.
    pub averaged: u64,
    pub loss: Pair,
    pub grad_norm: Option<Pair>,
}

impl Compared {
    fn pairs(&self) -> impl Iterator<Item = (Quantity, Pair)> {
        let norm = self.grad_norm.map(|norm| (Quantity::GradNorm, norm));
        [(Quantity::Loss, self.loss)].into_iter().chain(norm)
    }

    pub fn agrees(&self) -> bool {
        self.pairs().all(|(_, pair)| pair.agrees())
    }

    /// Largest difference in tolerances.
    pub fn off(&self) -> f64 {
        self.pairs().map(|(_, pair)| pair.off()).fold(0.0, f64::max)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    Loss,
    GradNorm,
}

impl Quantity {
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Loss => "loss",
            Quantity::GradNorm => "gradient norm",
        }
    }
}

/// First number that differs.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    pub step: u64,
    pub quantity: Quantity,
    /// Part of a step that the numbers before it leave as the cause; None if the first line has the mean
    /// of several steps, or a later one.
    pub cause: Option<Cause>,
}

/// Part of a training step, in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Weights, data, masks, model and loss.
    Forward,
    Gradient,
    Update,
}

impl Cause {
    pub fn evidence(self) -> &'static str {
        match self {
            Cause::Forward => {
                "the first loss depends on the weights, the data and the model alone, not on an update"
            }
            Cause::Gradient => {
                "the loss of the step agrees, so weights, data and model do; its gradient does not"
            }
            Cause::Update => {
                "the step before agrees, so weights, data and model do; its update does not"
            }
        }
    }
}

/// Compares the log's lines after step `from` whose steps were all computed.
pub fn compare(
    log: &RunLog,
    from: u64,
    computed: &[Computed],
    tolerance: Tolerance,
) -> Vec<Compared> {
    let last = from + computed.len() as u64;
    let mut compared = Vec::new();
    for row in log.steps.range(from + 1..=last).map(|(_, row)| row) {
        let LoggedStep { step, averaged, loss, grad_norm } = *row;
        if step - averaged < from {
            continue; // a mean that began before the checkpoint
        }
        let ours = &computed[(step - averaged - from) as usize..(step - from) as usize];
        let mean = ours.iter().map(|step| step.loss).sum::<f64>() / averaged as f64;
        let number = step - from - 1;
        let norm = ours.last().map_or(f64::NAN, |step| step.grad_norm);
        compared.push(Compared {
            step,
            averaged,
            loss: Tolerance::pair(tolerance.loss, loss, mean, number),
            grad_norm: grad_norm
                .map(|logged| Tolerance::pair(tolerance.norm, logged, norm, number)),
        });
    }
    compared
}

/// First number that differs, in the order in which a trainer computes them.
pub fn departure(compared: &[Compared], from: u64) -> Option<Departure> {
    let begins = compared.first().is_some_and(|row| row.step == from + 1);
    for row in compared {
        for (quantity, pair) in row.pairs() {
            if !pair.agrees() {
                let first = row.step == from + 1;
                let cause = match (first, quantity) {
                    (true, Quantity::Loss) => Cause::Forward,
                    (true, Quantity::GradNorm) => Cause::Gradient,
                    (false, _) => Cause::Update,
                };
                let cause = begins.then_some(cause);
                return Some(Departure { step: row.step, quantity, cause });
            }
        }
    }
    None
}
