//! Loss spikes: which steps a run takes for one, and what it does, as a function of the losses and
//! gradient norms of its steps alone. The limits of a step are fixed two steps before it, when it can
//! not be under way yet: every rank, on any grid, decides the same, and none waits for another. All
//! of the state is saved, so a resumed run decides as the run itself would have.
//!
//! A window of accepted steps (as OLMo-core's SkipStepOptimizer; a spike does not enter it, and so
//! does not hide the next one) gives the limits, by medians, which no outlier moves. A standard
//! deviation grows with a heavy tail and s does not, so σ is 8 where theirs is 6: of 200,000
//! healthy steps whose noise was doubled one time in fifty, 6 took three for spikes, 7 one, 8 none.
//!
//! The least rises, half a nat and ten medians, are what healthy batches do not reach: of a GPT-2 124M
//! that was trained without a skipped step (llm.c; 10,000 steps) the worst were 0.35 nat and 7.5
//! medians. At 0.3 nat and 2 medians, 17 of its steps would have been skipped.
//!
//!   loss  > median + max(σ·s, rise)          s = 1.4826 · median |x − median|
//!   norm  > max(median + σ·s, factor·median)
//!
//! A slow divergence would lead the window along. It is found by the mean of the last 20 accepted
//! losses: above the lowest such mean of the run by max(3·d, rise), d the scatter of a loss from its
//! step to the next.

//!
//! The norm of an update over its learning rate, which a warm-up and a decay leave as it is, has a window
//! of its own. It is known when the update is made, so what is above is only named.

use crate::robust::NORMAL;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Steps in the window, and those it needs before it says anything.
const WINDOW: usize = 128;
const ENOUGH: usize = 64;
/// Losses whose mean tells a slow divergence.
const RECENT: usize = 20;
/// Spikes in a row, where nothing is done about them, that are no spike: another level.
const NEW_LEVEL: u32 = 20;

/// What counts as a spike, and how often what is tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Distances from the median, in units of the scatter.
    pub sigmas: f64,
    /// The least rise of the loss, in nats, and of the norm, as a factor.
    pub loss_rise: f64,
    pub norm_rise: f64,
    /// The least rise of an update's norm, as a factor.
    pub update_rise: f64,
    /// Whether spikes are skipped, and the run goes back; else they are only named.
    pub acts: bool,
    /// Updates skipped in a row before the run goes back.
    pub skips: u32,
    /// Steps the run goes back at least; and whose samples it leaves out beyond the spike.
    pub roll_back: u64,
    /// How often, in all; a second time within five such stretches is once too often.
    pub roll_backs: usize,
}

/// What a step's loss and gradient norm may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub loss: f32,
    pub norm: f32,
}

/// The run went back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollBack {
    /// The last step before it, and the one that it went on from.
    pub at: u64,
    pub to: u64,
    /// Samples that it left out for it: the first, and the one past the last.
    pub samples: [u64; 2],
}

/// A step's result.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub step: u64,
    pub loss: f64,
    pub norm: f64,
    /// Whether its update was skipped: by an overflow, or by its limits.
    pub skipped: bool,
}

/// What a step's result says.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    Healthy,
    /// A spike, the first of a row or one that was skipped.
    Spike(String),
    /// The run does not come back by itself.
    Diverged(String),
}

/// What is known of the steps so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpikeWatch {
    /// The last step seen.
    step: u64,
    /// Of accepted steps, oldest first.
    losses: VecDeque<f64>,
    norms: VecDeque<f64>,
    /// As they were after the step before the last, and after the last: each of the step two later.
    limits: [Option<Limits>; 2],
    /// Spikes since the last accepted step.
    in_a_row: u32,
    /// The lowest mean of `RECENT` accepted losses.
    lowest: Option<f64>,
    /// Whether a slow divergence was named, and has not ended.
    rising: bool,
    /// Norms of updates over their learning rates, oldest first, and how many since were above.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    updates: VecDeque<f64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    high_updates: u32,
    pub roll_backs: Vec<RollBack>,
}

impl SpikeWatch {
    /// Of the run's next steps: those of a step that no earlier one decides are None.
    pub fn limits(&self, step: u64) -> Option<Limits> {
        match step.checked_sub(self.step) {
            Some(1) => self.limits[0],
            Some(2) => self.limits[1],
            _ => None,
        }
    }

    /// The run's data changed from this step on, and with it what its losses were.
    pub fn begin_anew(&mut self) {
        let (step, roll_backs) = (self.step, std::mem::take(&mut self.roll_backs));
        *self = SpikeWatch { step, roll_backs, ..SpikeWatch::default() };
    }

    /// Takes in the result of the step after the last one.
    pub fn see(&mut self, rule: &Rule, taken: Taken) -> Found {
        let Taken { step, loss, norm, skipped } = taken;
        let limits = self.limits(step);
        self.step = step;
        let above = limits.and_then(|limits| limits.passed(loss, norm));
        let found = match above {
            Some(what) => self.spike(rule, step, what),
            // An overflow of fp16, which the loss scale answers, or a number that ends the run.
            None if skipped || !loss.is_finite() || !norm.is_finite() => Found::Healthy,
            None => self.accept(rule, loss, norm),
        };
        self.limits = [self.limits[1], self.next_limits(rule)];
        found
    }

    /// Takes in the norm of an update, made at a learning rate above 0; what to say of the first
    /// that is above the usual.
    pub fn see_update(&mut self, rule: &Rule, norm: f64, lr: f64) -> Option<String> {
        let size = norm / lr;
        let (usual, s) = median_and_scatter(self.updates.iter().copied());
        let limit = (usual + rule.sigmas * s).max(rule.update_rise * usual);
        if self.updates.len() < ENOUGH || size <= limit {
            push(&mut self.updates, size);
            self.high_updates = 0;
            return None;
        }
        self.high_updates += 1;
        if self.high_updates == NEW_LEVEL {
            self.updates.clear();
        }
        let (times, most) = (size / usual, limit / usual);
        (self.high_updates == 1).then(|| {
            format!(
                "the update's norm {norm:.3e} is {times:.1} times the usual at its learning rate \
                 (above {most:.1} times)"
            )
        })
    }

    fn spike(&mut self, rule: &Rule, step: u64, what: String) -> Found {
        self.in_a_row += 1;
        match rule.acts {
            true if self.in_a_row > rule.skips => Found::Diverged(format!(
                "{} spikes in a row, to step {step}: {what}",
                self.in_a_row
            )),
            true => Found::Spike(format!("{what}: its update is skipped")),
            false => {
                let first = self.in_a_row == 1;
                if self.in_a_row == NEW_LEVEL {
                    self.begin_anew();
                }
                if first { Found::Spike(what) } else { Found::Healthy }
            }
        }
    }

    fn accept(&mut self, rule: &Rule, loss: f64, norm: f64) -> Found {
        self.in_a_row = 0;
        push(&mut self.losses, loss);
        push(&mut self.norms, norm);
        if self.losses.len() < ENOUGH {
            return Found::Healthy;
        }
        let recent = self.losses.iter().rev().take(RECENT).sum::<f64>() / RECENT as f64;
        let lowest = self.lowest.map_or(recent, |lowest| lowest.min(recent));
        self.lowest = Some(lowest);
        let changes = self.losses.iter().zip(self.losses.iter().skip(1)).map(|(a, b)| b - a);
        let scatter = median_and_scatter(changes).1 / 2f64.sqrt();
        let before = std::mem::replace(
            &mut self.rising,
            recent > lowest + (3.0 * scatter).max(rule.loss_rise),
        );
        match self.rising && !before {
            false => Found::Healthy,
            true => {
                let what = format!("the loss rises: {recent:.3}, and was {lowest:.3}");
                if rule.acts { Found::Diverged(what) } else { Found::Spike(what) }
            }
        }
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

    /// Whether the run may go back once more, from `step`; else why not.
    pub fn may_roll_back(&self, rule: &Rule, step: u64) -> Result<(), String> {
        let within = 5 * rule.roll_back;
        match self.roll_backs.last() {
            Some(last) if step < last.at + within => {
                Err(format!("it went back from step {} already, to step {}", last.at, last.to))
            }
            _ if self.roll_backs.len() >= rule.roll_backs => {
                Err(format!("it went back {} times already", self.roll_backs.len()))
            }
            _ => Ok(()),
        }
    }
}

impl Limits {
    /// Which one the step is above, if one; the numbers are those that the device compares.
    fn passed(&self, loss: f64, norm: f64) -> Option<String> {
        let of = |what, value: f64, limit: f32| {
            (value as f32 > limit).then(|| format!("{what} {value:.3} is above {limit:.3}"))
        };
        of("the loss", loss, self.loss).or(of("the gradient norm", norm, self.norm))
    }
}

fn push(window: &mut VecDeque<f64>, value: f64) {
    if window.len() == WINDOW {
        window.pop_front();
    }
    window.push_back(value);
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The median, and the scatter around it: 1.4826 times the median distance from it.
pub fn median_and_scatter(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    let middle = median(&mut values);
    values.iter_mut().for_each(|value| *value = (*value - middle).abs());
    (middle, NORMAL * median(&mut values))
}

/// The upper one of two; 0 of nothing.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
