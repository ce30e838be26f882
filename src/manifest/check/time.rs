//! What goes by samples: batch, learning rate, length.

use super::super::report::Report;
use super::super::{Batch, Decay, Lr, RampUp, raw};
use crate::base::Count;

pub fn batch(raw: raw::Batch, topology: &raw::Topology, report: &mut Report) -> Batch {
    let batch = Batch {
        micro: raw.micro.unwrap_or(1),
        global: raw.global.unwrap_or(1),
        ramp_up: raw.ramp_up.and_then(|form| ramp_up(form, report)),
    };
    let data = topology.data.unwrap_or(1);
    let at_once = batch.micro * data;
    let sound = report.sound(&["batch.micro", "batch.global", "topology.data"]);
    if sound && !batch.global.is_multiple_of(at_once) {
        let (below, above) =
            (batch.global / at_once * at_once, batch.global.next_multiple_of(at_once));
        let fits = if below > 0 { format!("{below} or {above}") } else { above.to_string() };
        let what = format!(
            "batch.global {} is not a multiple of {}",
            batch.global,
            product(batch.micro, data)
        );
        let paths = ["batch.global", "batch.micro", "topology.data"];
        report.between(&paths, what, format!("set batch.global to {fits}"));
    }
    let Some(ramp) = batch.ramp_up else { return batch };
    if !report.sound(&["batch", "topology.data"]) {
        return batch;
    }
    if ramp.start > batch.global {
        let what = format!("the ramp-up starts at {}, above batch.global", ramp.start);
        let remedy = format!("start at {} or less", batch.global);
        report.between(&["batch.ramp_up", "batch.global"], what, remedy);
    } else if !(batch.global - ramp.start).is_multiple_of(ramp.increment) {
        let span = batch.global - ramp.start;
        let what = format!(
            "the ramp-up cannot reach batch.global {}: {} − {} = {span} is not a multiple of the \
             increment {}",
            batch.global, batch.global, ramp.start, ramp.increment
        );
        let remedy = format!("take an increment that divides {span}");
        report.between(&["batch.ramp_up", "batch.global"], what, remedy);
    } else {
        stages(&batch, data, report);
    }
    batch
}

/// Every stage of the ramp-up must divide into micro-batches over all replicas.
fn stages(batch: &Batch, data: usize, report: &mut Report) {
    let at_once = batch.micro * data;
    let sizes = batch.ramp().sizes();
    let failing: Vec<String> =
        sizes.filter(|size| !size.is_multiple_of(at_once)).map(|size| size.to_string()).collect();
    if failing.is_empty() {
        return;
    }
    let all = batch.ramp().sizes().count();
    let shown = match failing.len() {
        0..=12 => failing.join(", "),
        many => format!("{}, … {}", failing[..8].join(", "), failing[many - 1]),
    };
    let what = format!(
        "in {} of its {all} stages the ramp-up's global batch is not a multiple of {}: {shown}",
        failing.len(),
        product(batch.micro, data)
    );
    let remedy = format!("make start and increment multiples of {at_once}");
    report.between(&["batch.ramp_up", "batch.micro", "topology.data"], what, remedy);
}

/// "micro 2 × data 8 = 16", or "micro 4" alone.
fn product(micro: usize, data: usize) -> String {
    match data {
        1 => format!("batch.micro {micro}"),
        _ => format!("batch.micro {micro} × topology.data {data} = {}", micro * data),
    }
}

fn ramp_up(form: raw::RampUpForm, report: &mut Report) -> Option<RampUp> {
    match form {
        raw::RampUpForm::Keys(keys) => Some(RampUp {
            start: keys.start.unwrap_or(1),
            increment: keys.increment.unwrap_or(1),
            samples: keys.samples.unwrap_or(1),
        }),
        raw::RampUpForm::Text(text) => {
            let numbers: Option<Vec<u64>> = text
                .split_whitespace()
                .map(|word| word.replace('_', "").parse().ok().filter(|n| *n > 0))
                .collect();
            let small = |n: u64| usize::try_from(n).ok().filter(|n| *n <= 1 << 24);
            match numbers.as_deref() {
                Some([start, increment, samples]) if *samples <= 1_000_000_000_000_000 => {
                    let (start, increment) = (small(*start), small(*increment));
                    if let (Some(start), Some(increment)) = (start, increment) {
                        return Some(RampUp { start, increment, samples: *samples });
                    }
                }
                _ => {}
            }
            let what = format!("batch.ramp_up \"{text}\" is not START INCREMENT SAMPLES");
            report.add("batch.ramp_up", what, "write three whole numbers, such as 16 16 9_765_625");
            None
        }
    }
}

/// The run's length in samples.
pub fn samples(train: &raw::Train, batch: &Batch, seq_len: usize, report: &mut Report) -> u64 {
    let sound = report.sound(&["train.samples", "train.tokens", "train.steps"]);
    if !sound {
        return 1;
    }
    let path;
    let samples = match (train.samples, train.tokens, train.steps) {
        (Some(samples), None, None) => {
            path = "train.samples";
            samples
        }
        (None, Some(tokens), None) => {
            path = "train.tokens";
            tokens.div_ceil(seq_len as u64)
        }
        (None, None, Some(steps)) => {
            let sound = report.sound(&["batch"]);
            return if sound { batch.ramp().samples_after(steps) } else { 1 };
        }
        (None, None, None) => {
            let remedy = "add train.samples, train.tokens or train.steps";
            report.add("train", "the run's length is missing", remedy);
            return 1;
        }
        _ => {
            let what = "the run's length is given more than once";
            report.add("train", what, "keep one of train.samples, train.tokens, train.steps");
            return 1;
        }
    };
    if report.sound(&["batch", "model.seq_len"]) && batch.ramp().steps(samples) == 0 {
        let first = batch.ramp().batch_at(0);
        let what = match train.tokens {
            Some(tokens) => {
                format!("{path} {tokens} is {samples} samples, less than one step of {first}")
            }
            None => format!("{path} {samples} is less than one step of {first}"),
        };
        report.between(&[path, "batch"], what, format!("train for at least {first} samples"));
    }
    samples
}

pub fn lr(raw: raw::Lr, run: u64, seq_len: usize, report: &mut Report) -> Lr {
    let (peak, min) = (raw.peak.unwrap_or(0.0), raw.min.unwrap_or(0.0));
    if report.sound(&["lr.peak", "lr.min"]) && min > peak {
        let what = format!("lr.min {min} is above lr.peak {peak}");
        report.between(&["lr.min", "lr.peak"], what, "set lr.min to lr.peak or less");
    }
    let warmup = Length { samples: raw.warmup_samples, tokens: raw.warmup_tokens };
    let warmup = warmup.resolve("lr", "warmup_", seq_len, report).unwrap_or(0);
    // A run too short for its warm-up (a trial, say) just does not reach the decay.
    let decay = decay(raw.decay, run.max(warmup + 1), warmup, seq_len, report);
    if decay == Decay::Constant && min > 0.0 && report.sound(&["lr.min", "lr.decay"]) {
        let what = format!("lr.min {min} is never reached: lr.decay is constant");
        report.add("lr.min", what, "remove lr.min, or choose another lr.decay");
    }
    let begins = match decay {
        Decay::Constant => u64::MAX,
        Decay::Linear { samples } | Decay::Cosine { samples } => samples - 1,
        Decay::Wsd { decay_from, .. } => decay_from,
    };
    if warmup > begins && report.sound(&["lr.warmup_samples", "lr.warmup_tokens", "lr.decay"]) {
        let what = match decay {
            Decay::Wsd { .. } => "and the decay begins",
            _ => "and lr.decay ends",
        };
        let at = if matches!(decay, Decay::Wsd { .. }) { begins } else { begins + 1 };
        let what = format!("the warm-up takes {} samples, {what} at {}", Count(warmup), Count(at));
        let path = match raw.warmup_tokens {
            Some(_) => "lr.warmup_tokens",
            None => "lr.warmup_samples",
        };
        let remedy = "shorten the warm-up or lengthen lr.decay";
        report.between(&[path, "lr.decay"], what, remedy);
    }
    Lr { peak, min, warmup_samples: warmup, decay }
}

/// `run` is where a decay ends that says nothing else.
fn decay(
    form: Option<raw::DecayForm>,
    run: u64,
    warmup: u64,
    seq_len: usize,
    report: &mut Report,
) -> Decay {
    use raw::DecayName::{Constant, Cosine, Linear, Wsd};
    let lengths = match form {
        None | Some(raw::DecayForm::Name(Cosine)) => return Decay::Cosine { samples: run },
        Some(raw::DecayForm::Name(Constant)) => return Decay::Constant,
        Some(raw::DecayForm::Name(Linear)) => return Decay::Linear { samples: run },
        Some(raw::DecayForm::Name(Wsd)) => {
            raw::Decay { wsd: Some(raw::Wsd::default()), ..Default::default() }
        }
        Some(raw::DecayForm::Lengths(lengths)) => lengths,
    };
    let end = |samples, tokens, path: &str, report: &mut Report| {
        Length { samples, tokens }.resolve(path, "", seq_len, report).unwrap_or(run)
    };
    match (lengths.linear, lengths.cosine, lengths.wsd) {
        (Some(span), None, None) => {
            Decay::Linear { samples: end(span.samples, span.tokens, "lr.decay.linear", report) }
        }
        (None, Some(span), None) => {
            Decay::Cosine { samples: end(span.samples, span.tokens, "lr.decay.cosine", report) }
        }
        (None, None, Some(wsd)) => {
            let samples = end(wsd.samples, wsd.tokens, "lr.decay.wsd", report);
            last_part(wsd, samples, warmup, seq_len, report)
        }
        (None, None, None) => {
            if report.sound(&["lr.decay"]) {
                let remedy = "take constant, linear, cosine or wsd";
                report.add("lr.decay", "lr.decay names no shape", remedy);
            }
            Decay::Constant
        }
        _ => {
            report.add("lr.decay", "lr.decay has more than one shape", "keep one");
            Decay::Constant
        }
    }
}

/// The decay of warm-up, stable, decay, which ends at `samples`.
fn last_part(
    wsd: raw::Wsd,
    samples: u64,
    warmup: u64,
    seq_len: usize,
    report: &mut Report,
) -> Decay {
    let path = "lr.decay.wsd";
    let tenth = (samples / 10).min(samples.saturating_sub(warmup)).max(1);
    let length = Length { samples: wsd.decay_samples, tokens: wsd.decay_tokens };
    let decay = length.resolve(path, "decay_", seq_len, report).unwrap_or(tenth);
    if decay > samples && report.sound(&[path, "train"]) {
        let [decay, samples] = [decay, samples].map(Count);
        let what = format!("lr.decay.wsd: a decay of {decay} samples cannot end at {samples}");
        report.add(path, what, "shorten the decay");
    }
    Decay::Wsd { decay_from: samples.saturating_sub(decay), samples }
}

/// A length given in samples or in tokens.
pub struct Length {
    pub samples: Option<u64>,
    pub tokens: Option<u64>,
}

impl Length {
    /// In samples; a sample that is begun counts.
    pub fn resolve(
        self,
        section: &str,
        prefix: &str,
        seq_len: usize,
        report: &mut Report,
    ) -> Option<u64> {
        match (self.samples, self.tokens) {
            (Some(_), Some(_)) => {
                let path = format!("{section}.{prefix}tokens");
                let what = format!("{path} and {section}.{prefix}samples are both given");
                report.add(&path, what, "keep one of them");
                None
            }
            (Some(samples), None) => Some(samples),
            (None, Some(tokens)) => Some(tokens.div_ceil(seq_len as u64)),
            (None, None) => None,
        }
    }
}
