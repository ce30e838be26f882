//! Section `batch`: samples of a step.

use super::define::{Written, checked, forms, read, sections, settings, written};
use super::report::Report;
use base::number::whole;
use plan::length::LengthRamp;
use plan::ramp::Ramp;
use plan::segments::{BatchSchedule, MicroStages};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
/// Batch sizes, in samples.
Batch(raw, report: &mut Report) {
    /// Samples that a rank computes at once (--micro-batch-size).
    micro: usize, required in 1..=1_048_576;
    /// Other micro-batches from a global batch of the ramp-up on, as in
    /// `[{from_global: 784, micro: 2}]`. Memory is reserved for the largest. Default: none.
    micro_stages: Vec<MicroStageSection> => Vec<MicroStage> = micro_stages(raw.micro_stages, report);
    /// Samples per optimizer step, over all ranks (--global-batch-size); a multiple of
    /// micro × topology.data.
    global: usize, required in 1..=16_777_216;
    /// Smaller global batches at the start. Default: none.
    ramp_up: RampUpForm => Option<RampUp> = ramp_up(raw.ramp_up, report);
    /// Shorter samples at the start (sequence-length warm-up, DeepSpeed's curriculum learning): each is
    /// cut to its first tokens, and the order of samples is unchanged. Default: none.
    length_ramp_up: LengthRampUpForm => Option<LengthRampUp>
        = length_ramp_up(raw.length_ramp_up, report);
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

#[derive(Copy)]
/// Growth of the samples' length from start to model.seq_len.
LengthRampUp(raw) {
    /// First length, in tokens.
    start: usize, required in 1..=16_777_216;
    /// Tokens added at each growth; model.seq_len − start must be divisible by it. Multiples of 8 suit
    /// tensor cores.
    increment: usize, required in 1..=16_777_216;
    /// Samples over which the length grows. That of a step follows from the samples after it.
    samples: u64, required in 1..=1_000_000_000_000_000u64;
}
}

sections! {
/// Micro-batch from a global batch on.
#[schemars(rename = "MicroStage")]
MicroStageSection {
    /// Global batch of the first step with this micro-batch.
    from_global: usize, required in 1..=16_777_216;
    /// Samples that a rank computes at once.
    micro: usize, required in 1..=1_048_576;
}
}

/// Micro-batch from a global batch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroStage {
    pub from_global: usize,
    pub micro: usize,
}

impl Written for Vec<MicroStage> {
    type Raw = Vec<MicroStageSection>;

    fn written(&self) -> Option<Vec<MicroStageSection>> {
        let section = |stage: &MicroStage| MicroStageSection {
            from_global: Some(stage.from_global),
            micro: Some(stage.micro),
        };
        Some(self.iter().map(section).collect())
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

    /// Growth of the length, by keys or as three numbers.
    LengthRampUpForm {
        /// `START INCREMENT SAMPLES`, such as `64 8 4_000_000`.
        Text(String),
        /// By keys.
        Keys(raw::LengthRampUp),
    }
}

fn ramp_up(form: Option<RampUpForm>, report: &mut Report) -> Option<RampUp> {
    match form? {
        RampUpForm::Keys(keys) => Some(RampUp::read(keys)),
        RampUpForm::Text(text) => {
            let (start, increment, samples) =
                three_numbers(&text, "batch.ramp_up", "16 16 9_765_625", report)?;
            Some(RampUp { start, increment, samples })
        }
    }
}

fn length_ramp_up(form: Option<LengthRampUpForm>, report: &mut Report) -> Option<LengthRampUp> {
    match form? {
        LengthRampUpForm::Keys(keys) => Some(LengthRampUp::read(keys)),
        LengthRampUpForm::Text(text) => {
            let (start, increment, samples) =
                three_numbers(&text, "batch.length_ramp_up", "64 8 4_000_000", report)?;
            Some(LengthRampUp { start, increment, samples })
        }
    }
}

/// START, INCREMENT and SAMPLES of a setting that is written as text.
fn three_numbers(
    text: &str,
    path: &str,
    example: &str,
    report: &mut Report,
) -> Option<(usize, usize, u64)> {
    let numbers: Option<Vec<u64>> = text
        .split_whitespace()
        .map(|word| whole(word).ok().filter(|n| *n > 0))
        .collect();
    let small = |n: u64| usize::try_from(n).ok().filter(|n| *n <= 1 << 24);
    if let Some([start, increment, samples]) = numbers.as_deref()
        && let (Some(start), Some(increment)) = (small(*start), small(*increment))
        && *samples <= 1_000_000_000_000_000
    {
        return Some((start, increment, *samples));
    }
    report.add(
        path,
        format!("{path} \"{text}\" is not START INCREMENT SAMPLES"),
        format!("write three whole numbers, such as {example}"),
    );
    None
}

/// Stages in ascending order of their global batch.
fn micro_stages(stages: Option<Vec<MicroStageSection>>, report: &mut Report) -> Vec<MicroStage> {
    let mut checked: Vec<MicroStage> = Vec::new();
    for (i, stage) in stages.into_iter().flatten().enumerate() {
        let (Some(from_global), Some(micro)) = (stage.from_global, stage.micro) else { continue };
        if let Some(before) = checked
            .last()
            .filter(|before| before.from_global >= from_global)
        {
            report.add(
                &format!("batch.micro_stages.{i}.from_global"),
                format!(
                    "batch.micro_stages.{i} begins at a global batch of {from_global}, the stage \
                     before it at {}",
                    before.from_global
                ),
                "write the stages in the order of their global batches",
            );
        }
        checked.push(MicroStage { from_global, micro });
    }
    checked
}

impl Batch {
    /// Batch that does not grow.
    pub fn constant(micro: usize, global: usize) -> Batch {
        Batch { micro, micro_stages: Vec::new(), global, ramp_up: None, length_ramp_up: None }
    }

    /// Global batch over the run.
    pub fn ramp(&self) -> Ramp {
        match self.ramp_up {
            None => Ramp::constant(self.global),
            Some(r) => Ramp::growing(r.start, r.increment, r.samples, self.global),
        }
    }
    /// Micro-batch over the run.
    pub fn micros(&self) -> MicroStages {
        let later = self
            .micro_stages
            .iter()
            .map(|stage| (stage.from_global, stage.micro));
        MicroStages { first: self.micro, later: later.collect() }
    }

    /// Largest global batch whose micro-batches have `micro` samples.
    ///
    /// # Panics
    /// If no batch of the run has such micro-batches.
    pub fn largest_global(&self, micro: usize) -> usize {
        let micros = self.micros();
        let sizes = self.ramp().sizes().filter(|size| micros.at(*size) == micro);
        sizes.max().expect("a batch with this micro-batch")
    }

    /// Schedule of a run whose samples have at most `seq_len` tokens. A growth that does not reach its end,
    /// which the check reports, counts as none.
    pub fn schedule(&self, seq_len: usize) -> BatchSchedule {
        let warm_up = self
            .length_ramp_up
            .filter(|r| r.start <= seq_len && (seq_len - r.start).is_multiple_of(r.increment));
        let lengths = match warm_up {
            None => LengthRamp::constant(seq_len),
            Some(r) => LengthRamp::growing(r.start, r.increment, r.samples, seq_len),
        };
        let reaches = |r: RampUp| {
            r.start <= self.global && (self.global - r.start).is_multiple_of(r.increment)
        };
        let ramp = if self.ramp_up.is_none_or(reaches) {
            self.ramp()
        } else {
            Ramp::constant(self.global)
        };
        BatchSchedule { ramp, micros: self.micros(), lengths }
    }
}
