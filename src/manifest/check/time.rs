//! Checks of batch sizes and length of the run, all in samples.

use super::super::Batch;
use super::super::report::Report;
use super::super::run::raw;
use super::super::tree::Value;

/// Checks the batch. `data` is topology.data.
pub fn batch(batch: &Batch, data: usize, report: &mut Report) {
    let at_once = batch.micro * data;
    let valid = report.are_valid(&["batch.micro", "batch.global", "topology.data"]);
    if valid && !batch.global.is_multiple_of(at_once) {
        let below = batch.global / at_once * at_once;
        let above = batch.global.next_multiple_of(at_once);
        let fits = if below > 0 { format!("{below} or {above}") } else { above.to_string() };
        let paths = ["batch.global", "batch.micro", "topology.data"];
        let smaller = smaller_micro(batch, data);
        report.add_conflict(
            &paths,
            format!(
                "batch.global {} is not a multiple of {}",
                batch.global,
                product(batch.micro, data)
            ),
            format!("set batch.global to {fits}{smaller}"),
        );
    }
    let Some(ramp) = batch.ramp_up else { return };
    if !report.are_valid(&["batch", "topology.data"]) {
        return;
    }
    if ramp.start > batch.global {
        report.add_conflict(
            &["batch.ramp_up", "batch.global"],
            format!("the ramp-up starts at {}, above batch.global", ramp.start),
            format!("start at {} or less", batch.global),
        );
    } else if !(batch.global - ramp.start).is_multiple_of(ramp.increment) {
        let span = batch.global - ramp.start;
        report.add_conflict(&["batch.ramp_up", "batch.global"], format!(
            "the ramp-up cannot reach batch.global {}: {} − {} = {span} is not a multiple of the \
             increment {}",
            batch.global, batch.global, ramp.start, ramp.increment
        ), format!("take an increment that divides {span}"));
    } else {
        stages(batch, data, report);
    }
}

/// Checks that every stage of the ramp-up is divisible into micro-batches over all replicas.
fn stages(batch: &Batch, data: usize, report: &mut Report) {
    let at_once = batch.micro * data;
    let sizes = batch.ramp().sizes();
    let failing: Vec<String> = sizes
        .filter(|size| !size.is_multiple_of(at_once))
        .map(|size| size.to_string())
        .collect();
    if failing.is_empty() {
        return;
    }
    let count = batch.ramp().sizes().count();
    let shown = match failing.len() {
        0..=12 => failing.join(", "),
        many => format!("{}, … {}", failing[..8].join(", "), failing[many - 1]),
    };
    let smaller = smaller_micro(batch, data);
    report.add_conflict(&["batch.ramp_up", "batch.micro", "topology.data"], format!(
        "in {} of its {count} stages the ramp-up's global batch is not a multiple of {}: {shown}",
        failing.len(),
        product(batch.micro, data)
    ), format!("make start and increment multiples of {at_once}{smaller}"));
}

/// For example ", or set batch.micro to 2": the largest with which every global batch is divisible; empty if
/// there is none.
fn smaller_micro(batch: &Batch, data: usize) -> String {
    let found = (1..batch.micro).rev().find(|micro| {
        batch
            .ramp()
            .sizes()
            .all(|size| size.is_multiple_of(micro * data))
    });
    found.map_or(String::new(), |micro| format!(", or set batch.micro to {micro}"))
}

/// For example "micro 2 × data 8 = 16", or "micro 4" alone.
fn product(micro: usize, data: usize) -> String {
    match data {
        1 => format!("batch.micro {micro}"),
        _ => format!("batch.micro {micro} × topology.data {data} = {}", micro * data),
    }
}

/// Length of the run in samples.
pub fn samples(train: &raw::Train, batch: &Batch, seq_len: usize, report: &mut Report) -> u64 {
    let lengths = ["train.samples", "train.tokens", "train.steps"];
    if lengths
        .iter()
        .filter(|path| {
            report
                .root()
                .at(path)
                .is_some_and(|at| at.value != Value::Null)
        })
        .count()
        > 1
    {
        report.add(
            "train",
            "the run's length is given more than once",
            "keep one of train.samples, train.tokens, train.steps",
        );
        return 1;
    }
    if !report.are_valid(&lengths) {
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
            let valid = report.are_valid(&["batch"]);
            return if valid { batch.ramp().samples_after(steps) } else { 1 };
        }
        (None, None, None) => {
            report.add(
                "train",
                "the run's length is missing",
                "add train.samples, train.tokens or train.steps",
            );
            return 1;
        }
        _ => return 1, // given more than once
    };
    if report.are_valid(&["batch", "model.seq_len"]) && batch.ramp().steps(samples) == 0 {
        let first = batch.ramp().batch_at(0);
        let what = match train.tokens {
            Some(tokens) => {
                format!("{path} {tokens} is {samples} samples, less than one step of {first}")
            }
            None => format!("{path} {samples} is less than one step of {first}"),
        };
        report.add_conflict(&[path, "batch"], what, format!("train for at least {first} samples"));
    }
    samples
}
