//! Detection of loss spikes, and the reaction to them, as a function of the losses and gradient
//! norms of earlier steps. The limits of a step are fixed two steps before it, when it cannot have
//! been queued yet. Every rank therefore decides the same on any grid, without waiting for another.
//! All state is saved, so a resumed run decides as the uninterrupted run would.
//!
//! The limits come from medians over a window of accepted steps (as in OLMo-core's
//! SkipStepOptimizer). A spike does not enter the window and so does not hide the next one. A heavy
//! tail increases a standard deviation but not s, so σ is 8 instead of OLMo-core's 6. Of 200,000
//! healthy steps whose noise was doubled one time in fifty, 6 flagged three, 7 one, 8 none.
//!
//! Healthy batches do not reach the minimum rises, half a nat and ten medians. The largest of a
//! GPT-2 124M trained without skipped steps (llm.c; 10,000 steps) were 0.35 nat and 7.5 medians.
//! Limits of 0.3 nat and 2 medians would have skipped 17 of its steps.
//!
//!   loss  > median + max(σ·s, rise)          s = 1.4826 · median |x − median|
//!   norm  > max(median + σ·s, factor·median)
//!
//! A slow divergence shifts the window with it, so it is tested separately. The mean of the last 20
//! accepted losses must not exceed the lowest such mean of the run by more than max(3·d, rise). d
//! is the scatter of the loss from step to step.

use crate::robust::NORMAL;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Steps in the window, and the minimum for limits.
const WINDOW: usize = 128;
const ENOUGH: usize = 64;
/// Accepted losses whose mean detects a slow divergence.
const RECENT: usize = 20;
/// Spikes in a row that are taken for a new level of the loss, if no action is taken.
const NEW_LEVEL: u32 = 20;

/// Thresholds of a spike, and limits of the reactions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Distance from the median, in units of the scatter.
    pub sigmas: f64,
    /// Minimum rise of the loss, in nats, and of the norm, as a factor.
    pub loss_rise: f64,
    pub norm_rise: f64,
    /// Whether to skip spikes and roll back; otherwise they are only reported.
    pub acts: bool,
    /// Updates skipped in a row before a rollback.
    pub skips: u32,
    /// Minimum steps of a rollback. The samples of this number of steps after the spike are skipped.
    pub roll_back: u64,
    /// Maximum rollbacks of the run. A second one within five times `roll_back` steps is refused.
    pub roll_backs: usize,
}

/// Upper limits of a step's loss and gradient norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub loss: f32,
    pub norm: f32,
}

/// Record of a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollBack {
    /// Last step before the rollback, and the step that the run continued from.
    pub at: u64,
    pub to: u64,
    /// Samples left out: the first, and one past the last.
    pub samples: [u64; 2],
}

/// Result of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepResult {
    pub step: u64,
    pub loss: f64,
    pub norm: f64,
    /// Whether the update was skipped, by an overflow or by the limits.
    pub skipped: bool,
}

/// Assessment of a step's result.
#[derive(Clone, Debug, PartialEq)]
pub enum Assessment {
    Healthy,
    /// Spike: the first of several in a row, or a skipped one.
    Spike(String),
    /// The run does not recover by itself.
    Diverged(String),
}

/// State of the detection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpikeDetector {
    /// Last step seen.
    step: u64,
    /// Values of accepted steps, oldest first.
    losses: VecDeque<f64>,
    norms: VecDeque<f64>,
    /// Limits of the next step and the one after it.
    limits: [Option<Limits>; 2],
    /// Spikes since the last accepted step.
    in_a_row: u32,
    /// Lowest mean of `RECENT` accepted losses.
    lowest: Option<f64>,
    /// Whether a slow divergence was reported and has not ended.
    rising: bool,
    pub roll_backs: Vec<RollBack>,
}

impl SpikeDetector {
    /// Limits of one of the next two steps. None for any other step, and while the window has too
    /// few steps.
    pub fn limits(&self, step: u64) -> Option<Limits> {
        match step.checked_sub(self.step) {
            Some(1) => self.limits[0],
            Some(2) => self.limits[1],
            _ => None,
        }
    }

    /// Clears all losses, because the run's data changes from this step on.
    pub fn clear_losses(&mut self) {
        let step = self.step;
        let roll_backs = std::mem::take(&mut self.roll_backs);
        *self = SpikeDetector { step, roll_backs, ..SpikeDetector::default() };
    }

    /// Adds the result of the next step.
    pub fn observe(&mut self, rule: &Rule, result: StepResult) -> Assessment {
        let StepResult { step, loss, norm, skipped } = result;
        let limits = self.limits(step);
        self.step = step;
        let exceeded = limits.and_then(|limits| limits.describe_excess(loss, norm));
        let assessment = match exceeded {
            Some(what) => self.spike(rule, step, what),
            // An overflow of fp16, which the loss scale answers, or a number that ends the run.
            None if skipped || !loss.is_finite() || !norm.is_finite() => Assessment::Healthy,
            None => self.accept(rule, loss, norm),
        };
        self.limits = [self.limits[1], self.next_limits(rule)];
        assessment
    }

    fn spike(&mut self, rule: &Rule, step: u64, what: String) -> Assessment {
        self.in_a_row += 1;
        let in_a_row = self.in_a_row;
        if rule.acts && in_a_row > rule.skips {
            Assessment::Diverged(format!("{in_a_row} spikes in a row, to step {step}: {what}"))
        } else if rule.acts {
            Assessment::Spike(format!("{what}: its update is skipped"))
        } else {
            if in_a_row == NEW_LEVEL {
                self.clear_losses();
            }
            if in_a_row == 1 { Assessment::Spike(what) } else { Assessment::Healthy }
        }
    }

    fn accept(&mut self, rule: &Rule, loss: f64, norm: f64) -> Assessment {
        self.in_a_row = 0;
        push(&mut self.losses, loss);
        push(&mut self.norms, norm);
        if self.losses.len() < ENOUGH {
            return Assessment::Healthy;
        }
        let recent = self.losses.iter().rev().take(RECENT).sum::<f64>() / RECENT as f64;
        let lowest = self.lowest.map_or(recent, |lowest| lowest.min(recent));
        self.lowest = Some(lowest);
        let changes = self
            .losses
            .iter()
            .zip(self.losses.iter().skip(1))
            .map(|(a, b)| b - a);
        let scatter = median_and_scatter(changes).1 / 2f64.sqrt();
        let rises = recent > lowest + (3.0 * scatter).max(rule.loss_rise);
        let rose_before = std::mem::replace(&mut self.rising, rises);
        if rose_before || !rises {
            return Assessment::Healthy;
        }
        let what = format!("the loss rises: {recent:.3}, from a low of {lowest:.3}");
        if rule.acts { Assessment::Diverged(what) } else { Assessment::Spike(what) }
    }

    fn next_limits(&self, rule: &Rule) -> Option<Limits> {
        if self.losses.len() < ENOUGH {
            return None;
        }
        let (loss, s) = median_and_scatter(self.losses.iter().copied());
        let loss = loss + (rule.sigmas * s).max(rule.loss_rise);
        let (norm, s) = median_and_scatter(self.norms.iter().copied());
        let norm = (norm + rule.sigmas * s).max(rule.norm_rise * norm);
        Some(Limits { loss: loss as f32, norm: norm as f32 })
    }

    /// Checks whether the run may roll back from `step`. The error says why not.
    pub fn may_roll_back(&self, rule: &Rule, step: u64) -> Result<(), String> {
        let within = 5 * rule.roll_back;
        match self.roll_backs.last() {
            Some(last) if step < last.at + within => {
                Err(format!("it already rolled back from step {} to step {}", last.at, last.to))
            }
            _ if self.roll_backs.len() >= rule.roll_backs => {
                Err(format!("it already rolled back {} times", self.roll_backs.len()))
            }
            _ => Ok(()),
        }
    }
}

impl Limits {
    /// Describes the limit that the step exceeds, if any. Compares in f32, as the device does.
    fn describe_excess(&self, loss: f64, norm: f64) -> Option<String> {
        let compare = |what, value: f64, limit: f32| {
            (value as f32 > limit).then(|| format!("{what} {value:.3} is above {limit:.3}"))
        };
        compare("the loss", loss, self.loss).or(compare("the gradient norm", norm, self.norm))
    }
}

fn push(window: &mut VecDeque<f64>, value: f64) {
    if window.len() == WINDOW {
        window.pop_front();
    }
    window.push_back(value);
}

/// Median, and the scatter around it: 1.4826 times the median absolute deviation.
fn median_and_scatter(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    let middle = upper_median(&mut values);
    values
        .iter_mut()
        .for_each(|value| *value = (*value - middle).abs());
    (middle, NORMAL * upper_median(&mut values))
}

/// The upper of two middle values, unlike `robust::median`; 0 for no values. Saved limits of runs
/// depend on it.
fn upper_median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
