//! Section `lr`, the learning rate: the table of decays with the settings of each, and the checks.

use super::choices::LrCounted;
use super::define::{
    OneOf, Written, checked, forms, kinds, one_of, read, sections, settings, written,
};
use super::report::Report;
use base::Count;
use plan::segments::BatchSchedule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

kinds! {
#[derive(Copy)]
/// Shape of the learning rate after the warm-up, with lengths: one of these.
Decay(ends: &mut DecayInputs) at "lr.decay", DecayName, DecayForm, DecaySection = "Decay" {
    /// Constant at the peak.
    Constant = "constant";
} settings {
    /// A straight line to the minimum.
    Linear = "linear", linear: Span(ends, "lr.decay.linear");
    /// Half a cosine wave to the minimum.
    Cosine = "cosine", cosine: Span(ends, "lr.decay.cosine");
    /// Warm-up, stable, decay: flat, then a straight line to the minimum at the end.
    Wsd = "wsd", wsd: Wsd(ends);
}
}

settings! {
/// Learning rate: warm-up from 0 to the peak, then a decay to the minimum.
Lr(raw, run: u64, schedule: &BatchSchedule, report: &mut Report) {
    /// Highest learning rate (--lr).
    peak: f64, required in 0.0..=1000.0;
    /// Learning rate after the decay (--min-lr). Default: 0.
    min: f64 = 0.0, in 0.0..=1000.0;
    /// Length of the linear warm-up in samples (--lr-warmup-samples). Default: 0.
    warmup_samples: u64 => u64 = warmup(&raw, schedule, report),
        in 0..=1_000_000_000_000_000u64, written Some(*warmup_samples);
    /// Shape after the warm-up: constant, linear, cosine or wsd. Default: cosine, over the run.
    decay: DecayForm => Decay = decay(raw.decay, run, warmup_samples, schedule, report);
    /// Sample count that sets the learning rate of a step: that after the step, or that before it as
    /// in Megatron. Default: after; an imported run follows its trainer.
    counted: LrCounted = LrCounted::After;
} [
    /// Length of the warm-up in tokens, instead of warmup_samples.
    warmup_tokens: u64, in 0..=1_000_000_000_000_000u64;
]

#[derive(Copy)]
/// End of a decay, counted from the start of the run (--lr-decay-samples). Default: the run's length.
Span(raw, ends: &mut DecayInputs, path: &str) {
    /// In samples.
    samples: u64 => u64 = ends.end(Length { samples: raw.samples, tokens: raw.tokens }, path),
        in 1..=1_000_000_000_000_000u64, written Some(*samples);
} [
    /// In tokens.
    tokens: u64, in 1..=1_000_000_000_000_000u64;
]

#[derive(Copy)]
/// Lengths of warm-up, stable, decay.
Wsd(raw, ends: &mut DecayInputs) {
    /// Length of the decay at the end, in samples (--lr-wsd-decay-samples). Default: a tenth.
    decay_samples: u64 => u64 = ends.last_part(&raw),
        in 1..=1_000_000_000_000_000u64, written Some(*decay_samples);
    /// End of the decay, in samples from the start of the run. Default: the run's length.
    samples: u64
        => u64 = ends.end(Length { samples: raw.samples, tokens: raw.tokens }, "lr.decay.wsd"),
        in 1..=1_000_000_000_000_000u64, written Some(*samples);
} [
    /// Length of the decay at the end, in tokens.
    decay_tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// End of the decay, in tokens.
    tokens: u64, in 1..=1_000_000_000_000_000u64;
] (
    /// Sample at which the decay begins.
    decay_from: u64 = samples.saturating_sub(decay_samples);
)
}

impl Decay {
    /// Name in Megatron (--lr-decay-style).
    pub fn megatron(&self) -> &'static str {
        match self {
            Decay::Constant | Decay::Linear(_) | Decay::Cosine(_) => self.name(),
            Decay::Wsd(_) => "WSD",
        }
    }

    /// Sample at its end; None if it is constant.
    pub fn end(&self) -> Option<u64> {
        match self {
            Decay::Constant => None,
            Decay::Linear(span) | Decay::Cosine(span) => Some(span.samples),
            Decay::Wsd(wsd) => Some(wsd.samples),
        }
    }
}

/// Inputs from which decays resolve their lengths.
pub(super) struct DecayInputs<'a, 'r> {
    /// Samples of the run.
    run: u64,
    warmup: u64,
    schedule: &'a BatchSchedule,
    report: &'a mut Report<'r>,
}

impl DecayInputs<'_, '_> {
    /// End of a decay: the end of the run unless written otherwise.
    fn end(&mut self, written: Length, path: &str) -> u64 {
        written
            .resolve(path, "", self.schedule, self.report)
            .unwrap_or(self.run)
    }

    /// Length of the decay of `wsd`.
    fn last_part(&mut self, wsd: &raw::Wsd) -> u64 {
        let path = "lr.decay.wsd";
        let end = Length { samples: wsd.samples, tokens: wsd.tokens }
            .samples(self.schedule)
            .unwrap_or(self.run);
        let tenth = (end / 10).min(end.saturating_sub(self.warmup)).max(1);
        let length = Length { samples: wsd.decay_samples, tokens: wsd.decay_tokens };
        let decay = length
            .resolve(path, "decay_", self.schedule, self.report)
            .unwrap_or(tenth);
        if decay > end && self.report.are_valid(&[path, "train"]) {
            let [decay, end] = [decay, end].map(Count);
            self.report.add(
                path,
                format!("lr.decay.wsd: a decay of {decay} samples cannot end at {end}"),
                "shorten the decay",
            );
        }
        decay
    }
}

/// Decay of a run of `run` samples.
fn decay(
    form: Option<DecayForm>,
    run: u64,
    warmup: u64,
    schedule: &BatchSchedule,
    report: &mut Report,
) -> Decay {
    if let Some(DecayForm::Settings(section)) = &form {
        match section.kinds() {
            0 if report.are_valid(&["lr.decay"]) => {
                report.add(
                    "lr.decay",
                    "lr.decay names no shape",
                    "take constant, linear, cosine or wsd",
                );
            }
            2.. => report.add("lr.decay", "lr.decay has more than one shape", "keep one"),
            _ => {}
        }
    }
    // A run too short for its warm-up (a trial, say) does not reach the decay.
    let run = run.max(warmup + 1);
    Decay::read(form, DecayName::Cosine, &mut DecayInputs { run, warmup, schedule, report })
}

fn warmup(raw: &raw::Lr, schedule: &BatchSchedule, report: &mut Report) -> u64 {
    let warmup = Length { samples: raw.warmup_samples, tokens: raw.warmup_tokens };
    warmup
        .resolve("lr", "warmup_", schedule, report)
        .unwrap_or(0)
}

/// Checks the learning rate. `tokens` is whether the warm-up is given in tokens.
pub fn check(lr: &Lr, tokens: bool, report: &mut Report) {
    let Lr { peak, min, warmup_samples: warmup, decay, .. } = *lr;
    if report.are_valid(&["lr.peak", "lr.min"]) && min > peak {
        report.add_conflict(
            &["lr.min", "lr.peak"],
            format!("lr.min {min} is above lr.peak {peak}"),
            "set lr.min to lr.peak or less",
        );
    }
    if decay == Decay::Constant && min > 0.0 && report.are_valid(&["lr.min", "lr.decay"]) {
        report.add(
            "lr.min",
            format!("lr.min {min} is never reached: lr.decay is constant"),
            "remove lr.min, or choose another lr.decay",
        );
    }
    // Maximum samples of the warm-up; the event that follows, and its sample.
    let (begins, what, at) = match (decay, decay.end()) {
        (_, None) => return,
        (Decay::Wsd(wsd), _) => (wsd.decay_from, "the decay begins", wsd.decay_from),
        (_, Some(end)) => (end - 1, "lr.decay ends", end),
    };
    if warmup > begins && report.are_valid(&["lr.warmup_samples", "lr.warmup_tokens", "lr.decay"]) {
        let warmup = Count(warmup);
        let at = Count(at);
        let path = if tokens { "lr.warmup_tokens" } else { "lr.warmup_samples" };
        report.add_conflict(
            &[path, "lr.decay"],
            format!("the warm-up takes {warmup} samples, and {what} at {at}"),
            "shorten the warm-up or lengthen lr.decay",
        );
    }
}

/// Length given in samples or in tokens.
pub struct Length {
    pub samples: Option<u64>,
    pub tokens: Option<u64>,
}

impl Length {
    /// Length in samples; tokens are rounded up to whole samples.
    fn samples(&self, schedule: &BatchSchedule) -> Option<u64> {
        self.samples
            .or(self.tokens.map(|tokens| schedule.samples_of_tokens(tokens)))
    }

    /// Length in samples; None after reporting that it is given twice.
    pub fn resolve(
        self,
        section: &str,
        prefix: &str,
        schedule: &BatchSchedule,
        report: &mut Report,
    ) -> Option<u64> {
        if self.samples.is_some() && self.tokens.is_some() {
            let path = format!("{section}.{prefix}tokens");
            report.add(
                &path,
                format!("{path} and {section}.{prefix}samples are both given"),
                "keep one of them",
            );
            return None;
        }
        self.samples(schedule)
    }
}
