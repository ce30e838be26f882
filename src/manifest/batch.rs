//! Section `batch`: samples of a step.

use super::define::{Written, checked, forms, read, sections, settings, written};
use super::report::Report;
use base::number::whole;
use plan::ramp::Ramp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
/// Batch sizes, in samples.
Batch(raw, report: &mut Report) {
    /// Samples that a rank computes at once (--micro-batch-size).
    micro: usize, required in 1..=1_048_576;
    /// Samples per optimizer step, over all ranks (--global-batch-size); a multiple of
    /// micro × topology.data.
    global: usize, required in 1..=16_777_216;
    /// Smaller global batches at the start. Default: none.
    ramp_up: RampUpForm => Option<RampUp> = ramp_up(raw.ramp_up, report);
}

#[derive(Copy)]
/// Growth of the global batch, as Megatron's --rampup-batch-size.
RampUp(raw) {
    /// First global batch.
    start: usize, required in 1..=16_777_216;
    /// Samples added at each growth; global − start must be divisible by it.
    increment: usize, required in 1..=16_777_216;
    /// Samples over which the batch grows from start to global.
    samples: u64, required in 1..=1_000_000_000_000_000u64;
}
}

forms! {
    /// Ramp-up, by keys or in Megatron's notation.
    RampUpForm {
        /// Megatron's `START INCREMENT SAMPLES`, such as `16 16 9_765_625`.
        Text(String),
        /// By keys.
        Keys(raw::RampUp),
    }
}

fn ramp_up(form: Option<RampUpForm>, report: &mut Report) -> Option<RampUp> {
    let text = match form? {
        RampUpForm::Keys(keys) => return Some(RampUp::read(keys)),
        RampUpForm::Text(text) => text,
    };
    let numbers: Option<Vec<u64>> = text
        .split_whitespace()
        .map(|word| whole(word).ok().filter(|n| *n > 0))
        .collect();
    let small = |n: u64| usize::try_from(n).ok().filter(|n| *n <= 1 << 24);
    if let Some([start, increment, samples]) = numbers.as_deref()
        && let (Some(start), Some(increment)) = (small(*start), small(*increment))
        && *samples <= 1_000_000_000_000_000
    {
        return Some(RampUp { start, increment, samples: *samples });
    }
    report.add(
        "batch.ramp_up",
        format!("batch.ramp_up \"{text}\" is not START INCREMENT SAMPLES"),
        "write three whole numbers, such as 16 16 9_765_625",
    );
    None
}

impl Batch {
    /// Global batch over the run.
    pub fn ramp(&self) -> Ramp {
        match self.ramp_up {
            None => Ramp::constant(self.global),
            Some(r) => Ramp::growing(r.start, r.increment, r.samples, self.global),
        }
    }
}
