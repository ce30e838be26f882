//! Checks of batch sizes and length of the run, all in samples.

use super::super::report::Report;
use super::super::run::raw;
use super::super::tree::Value;
use super::super::{Batch, LengthRampUp, Model, Topology};
use plan::segments::BatchSchedule;

/// Checks the batch. `data` is topology.data.
pub fn batch(batch: &Batch, data: usize, report: &mut Report) {
    let micro = batch.micros().at(batch.global);
    let at_once = micro * data;
    let valid =
        report.are_valid(&["batch.micro", "batch.micro_stages", "batch.global", "topology.data"]);
    if valid && !batch.global.is_multiple_of(at_once) {
        let below = batch.global / at_once * at_once;
        let above = batch.global.next_multiple_of(at_once);
        let fits = if below > 0 { format!("{below} or {above}") } else { above.to_string() };
        let paths = ["batch.global", micro_path(batch), "topology.data"];
        let smaller = smaller_micro(batch, data);
        report.add_conflict(
            &paths,
            format!("batch.global {} is not a multiple of {}", batch.global, product(micro, data)),
            format!("set batch.global to {fits}{smaller}"),
        );
    }
    if let Some(stage) = batch
        .micro_stages
        .last()
        .filter(|stage| stage.from_global > batch.global)
        && valid
    {
        report.add_conflict(
            &["batch.micro_stages", "batch.global"],
            format!(
                "batch.micro_stages begins at a global batch of {}, which batch.global {} does not reach",
                stage.from_global, batch.global
            ),
            format!("begin at {} or less", batch.global),
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

/// Setting of the final micro-batch.
fn micro_path(batch: &Batch) -> &'static str {
    if batch.micro_stages.is_empty() { "batch.micro" } else { "batch.micro_stages" }
}

/// Checks that every stage of the ramp-up is divisible into micro-batches over all replicas.
fn stages(batch: &Batch, data: usize, report: &mut Report) {
    let micros = batch.micros();
    let failing: Vec<usize> = batch
        .ramp()
        .sizes()
        .filter(|size| !size.is_multiple_of(micros.at(*size) * data))
        .collect();
    let Some(first) = failing.first() else { return };
    let count = batch.ramp().sizes().count();
    let words: Vec<String> = failing.iter().map(|size| size.to_string()).collect();
    let shown = match words.len() {
        0..=12 => words.join(", "),
        many => format!("{}, … {}", words[..8].join(", "), words[many - 1]),
    };
    let micro = micros.at(*first);
    let at_once = micro * data;
    let (divisor, remedy) = if batch.micro_stages.is_empty() {
        let smaller = smaller_micro(batch, data);
        (product(micro, data), format!("make start and increment multiples of {at_once}{smaller}"))
    } else {
        (
            format!("its micro-batch × topology.data {data}"),
            format!(
                "begin the stages of batch.micro_stages at other global batches; at {first} the \
                 micro-batch is {micro}"
            ),
        )
    };
    report.add_conflict(&["batch.ramp_up", micro_path(batch), "topology.data"], format!(
        "in {} of its {count} stages the ramp-up's global batch is not a multiple of {divisor}: {shown}",
        failing.len(),
    ), remedy);
}

/// For example ", or set batch.micro to 2": the largest with which every global batch is divisible; empty if
/// there is none, or if the micro-batch has stages.
fn smaller_micro(batch: &Batch, data: usize) -> String {
    let found = (1..batch.micro).rev().find(|micro| {
        batch
            .ramp()
            .sizes()
            .all(|size| size.is_multiple_of(micro * data))
    });
    let found = found.filter(|_| batch.micro_stages.is_empty());
    found.map_or(String::new(), |micro| format!(", or set batch.micro to {micro}"))
}

/// Checks the warm-up of the length of samples.
pub fn lengths(batch: &Batch, model: &Model, topology: &Topology, report: &mut Report) {
    const KEY: &str = "batch.length_ramp_up";
    let Some(LengthRampUp { start, increment, .. }) = batch.length_ramp_up else { return };
    let full = model.seq_len;
    if !report.are_valid(&[KEY, "model.seq_len", "topology.tensor"]) {
        return;
    }
    let paths = [KEY, "model.seq_len"];
    let tensor = topology.tensor;
    if start > full {
        report.add_conflict(
            &paths,
            format!("the samples' length starts at {start} tokens, above model.seq_len {full}"),
            format!("start at {full} or less"),
        );
    } else if !(full - start).is_multiple_of(increment) {
        let span = full - start;
        report.add_conflict(&paths, format!(
            "the samples' length cannot reach model.seq_len {full}: {full} − {start} = {span} is not a \
             multiple of the increment {increment}"
        ), format!("take an increment that divides {span}"));
    } else if topology.sequence_parallel
        && [start, increment]
            .iter()
            .any(|tokens| !tokens.is_multiple_of(tensor))
    {
        report.add_conflict(&[KEY, "topology.tensor"], format!(
            "samples of {start} tokens, growing by {increment}, are not always divisible among \
             topology.tensor {tensor} ranks, as sequence parallelism needs it"
        ), format!(
            "make start and increment multiples of {tensor}, or set topology.sequence_parallel to false"
        ));
    }
}

/// For example "micro 2 × data 8 = 16", or "micro 4" alone.
fn product(micro: usize, data: usize) -> String {
    match data {
        1 => format!("batch.micro {micro}"),
        _ => format!("batch.micro {micro} × topology.data {data} = {}", micro * data),
    }
}

/// Length of the run in samples.
pub fn samples(train: &raw::Train, schedule: &BatchSchedule, report: &mut Report) -> u64 {
    let ramp = schedule.ramp;
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
            schedule.samples_of_tokens(tokens)
        }
        (None, None, Some(steps)) => {
            let valid = report.are_valid(&["batch"]);
            return if valid { ramp.samples_after(steps) } else { 1 };
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
    if report.are_valid(&["batch", "model.seq_len"]) && ramp.steps(samples) == 0 {
        let first = ramp.batch_at(0);
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
