//! Seconds of a step's parts, measured in a run's third to fifth steps: op by op on the device, and
//! the waits of the rank's thread. Between these steps the rank waits for the device, and each op
//! costs two readings of the clock; all other steps are as without it.

use super::op_table;
use device::{Backend, begin_op_log};
use estimate::parts::{PartSeconds, StepTimes};
use launch::rank::Rank;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Measured steps, counted from the start of this process: the first ones warm up.
const MEASURED: RangeInclusive<u64> = 3..=5;

/// Measurement of one rank.
#[derive(Default)]
pub struct StepParts {
    /// Steps begun by this process.
    begun: u64,
    is_on: bool,
    waits: BTreeMap<String, f64>,
    input: f64,
    /// Step and its times.
    measured: Vec<(u64, StepTimes)>,
    /// Seconds in which saves have stopped the steps.
    saving: f64,
    /// File for the ops of a step, until they are written.
    ops: Option<PathBuf>,
}

impl StepParts {
    /// `ops` is a file for the ops of a step of this rank.
    pub fn new(ops: Option<PathBuf>) -> StepParts {
        StepParts { ops, ..StepParts::default() }
    }

    /// Whether the next step is to be measured.
    pub fn next_is_due(&self) -> bool {
        MEASURED.contains(&(self.begun + 1))
    }

    /// Whether the step that was begun last is to be measured.
    pub fn is_due(&self) -> bool {
        MEASURED.contains(&self.begun)
    }

    /// Adds a step that is queued, after `input` seconds of waits for its input and copies of it.
    /// Writes its ops: the first step has all; a later one, in which the device times them, replaces
    /// it.
    pub fn queued(&mut self, step: u64, input: f64) {
        self.input = input;
        let is_last = self.is_on;
        if self.begun > 1 && !is_last {
            return;
        }
        if let Some(file) = &self.ops {
            op_table::write(file, step);
        }
        if is_last {
            self.ops = None;
        }
    }

    /// Counts the step; starts timing if this step is due and the device supports it.
    pub fn begin(&mut self, be: &dyn Backend, rank: &Rank) {
        self.begun += 1;
        if self.begun == 1 && self.ops.is_some() {
            begin_op_log();
        }
        if !self.is_due() {
            return;
        }
        self.is_on = be.time_ops();
        if self.is_on && self.ops.is_some() {
            begin_op_log();
        }
        self.waits = rank.world().recorder().waits();
    }

    /// Ends the measurement of a step that took `seconds`.
    pub fn end(&mut self, be: &dyn Backend, rank: &Rank, step: u64, seconds: f64) {
        if !std::mem::take(&mut self.is_on) {
            return;
        }
        let mut waits = rank.world().recorder().waits();
        for (group, before) in &self.waits {
            waits.entry(group.clone()).and_modify(|now| *now -= before);
        }
        let ops = be.take_times();
        let input = self.input;
        self.measured
            .push((step, StepTimes { ops, waits, input, save: 0.0, seconds }));
    }

    /// The measured step of median length, and its parts.
    pub fn median(&self) -> Option<(u64, PartSeconds)> {
        let mut steps: Vec<&(u64, StepTimes)> = self.measured.iter().collect();
        steps.sort_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
        steps
            .get(steps.len() / 2)
            .map(|(step, times)| (*step, times.parts()))
    }

    /// Adds the time in which a save stopped the steps. Returns its mean over all steps so far.
    pub fn saved(&mut self, seconds: f64) -> f64 {
        self.saving += seconds;
        self.saving / self.begun.max(1) as f64
    }
}
