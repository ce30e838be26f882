//! Reads training logs: those of Megatron, Megatron-DeepSpeed, DeepSpeed and gptrain, and gptrain's
//! `metrics.jsonl`.

use super::parts::PartTable;
use super::setup::Setup;
use base::Problems;
use plan::robust::median;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Maximum number of medians of one batch size: learning takes the cube of their number.
const MAX_MEDIANS: usize = 32;

/// Steps of a run.
pub struct Log {
    /// Medians of consecutive steps of one batch size: at most `MAX_MEDIANS` of a size.
    pub medians: Vec<StepMedians>,
    /// Batch and seconds of each step, except outliers.
    pub steps: Vec<(usize, f64)>,
    /// Outliers: lines whose time is far from the median of their batch, with the reason.
    pub outliers: Vec<(String, String)>,
    /// Parts of a step that the run has measured: the newest table.
    pub parts: Option<PartTable>,
}

/// Medians of consecutive steps of one batch size.
pub struct StepMedians {
    /// Lines of the log, such as "lines 5 to 40".
    pub id: String,
    pub line: usize,
    pub batch: usize,
    pub seconds: Option<f64>,
    pub memory_gb: Option<f64>,
    pub tflops: Option<f64>,
}

/// Line with the duration of a step.
struct Step {
    line: usize,
    seconds: f64,
    memory_gb: Option<f64>,
    tflops: Option<f64>,
}

/// Step of `metrics.jsonl`; an evaluation has no seconds.
#[derive(Deserialize)]
struct Metrics {
    sec: f64,
    global_batch: usize,
}

/// Seconds of a step, and its batch if the line has it. DeepSpeed prints samples per second, of `global`
/// samples.
fn read_line(line: &str, global: usize) -> Option<(f64, Option<usize>)> {
    if line.starts_with('{') {
        let Metrics { sec, global_batch } = serde_json::from_str(line).ok()?;
        return Some((sec, Some(global_batch)));
    }
    if let Some(rate) = field(line, "CurrSamplesPerSec=") {
        return Some((global as f64 / rate, None));
    }
    let batch = field(line, "global batch size:").map(|batch| batch as usize);
    Some((seconds(line)?, batch))
}

/// Steps of a run of `setup`, each with its line's batch, in memory that grows with the log. Skips the
/// first step if there are more, because it includes the warm-up, and invalid times.
pub fn read(text: &str, name: &str, setup: &Setup) -> Result<Log, Problems> {
    let mut batches: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
    let mut first = None;
    let mut newest = None;
    let mut parts = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(reserved) = field(line, "max reserved:")
            && let Some(step) = newest.and_then(|batch| batches.get_mut(&batch)?.last_mut())
        {
            step.memory_gb = Some(reserved / 1000.0);
        }
        if line.starts_with('{') && line.contains("\"parts\"") {
            parts = serde_json::from_str(line).ok().or(parts);
            continue;
        }
        let Some((seconds, batch)) = read_line(line, setup.global) else { continue };
        let batch = batch.unwrap_or(setup.global);
        let tflops =
            field(line, "TFLOPs:").or_else(|| field(line, "throughput per GPU (TFLOP/s/GPU):"));
        let memory_gb = field(line, "device reserved (MB):").map(|mb| mb / 1000.0);
        let step = Step { line: number + 1, seconds, memory_gb, tflops };
        batches.entry(batch).or_default().push(step);
        first.get_or_insert(batch);
        newest = Some(batch);
    }
    let Some(first) = first else {
        return Err(Problems::one(
            name,
            "no line says `elapsed time per iteration`, and none is a step of metrics.jsonl",
            "give a log of Megatron, Megatron-DeepSpeed or gptrain, a metrics.jsonl, or (of \
             other programs) a csv of runs",
        ));
    };
    if batches.values().map(Vec::len).sum::<usize>() > 1 {
        batches
            .get_mut(&first)
            .expect("it is of this batch")
            .remove(0);
    }
    let mut log = Log { medians: Vec::new(), steps: Vec::new(), outliers: Vec::new(), parts };
    for (batch, mut steps) in batches {
        steps.retain(|step| step.seconds.is_finite() && step.seconds > 0.0);
        drop_outliers(&mut steps, &mut log.outliers);
        log.steps
            .extend(steps.iter().map(|step| (batch, step.seconds)));
        let each = steps.len().div_ceil(MAX_MEDIANS).max(1);
        log.medians
            .extend(steps.chunks(each).map(|steps| medians(steps, batch)));
    }
    Ok(log)
}

/// Place of a run in its log: the last step's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
    pub step: u64,
    pub samples: Option<u64>,
}

/// Last step of a log; None if no line has its number.
pub fn end(text: &str) -> Option<LogEnd> {
    text.lines().rev().find_map(|line| {
        let count = |name: &str| field(line, name).map(|count| count as u64);
        if line.starts_with('{') {
            let row: serde_json::Value = serde_json::from_str(line).ok()?;
            row.get("sec")?;
            return Some(LogEnd {
                step: row["step"].as_u64()?,
                samples: row["consumed_samples"].as_u64(),
            });
        }
        let (_, rest) = line
            .split_once("iteration")
            .filter(|_| seconds(line).is_some())?;
        let step = rest.trim_start().split('/').next()?.trim().parse().ok()?;
        Some(LogEnd { step, samples: count("consumed samples:") })
    })
}

/// Medians of consecutive steps of one batch.
fn medians(steps: &[Step], batch: usize) -> StepMedians {
    let (line, last) = (steps[0].line, steps[steps.len() - 1].line);
    let median_of = |value: fn(&Step) -> Option<f64>| {
        let found = median(steps.iter().filter_map(value));
        found.is_finite().then_some(found)
    };
    StepMedians {
        id: if line == last { format!("line {line}") } else { format!("lines {line} to {last}") },
        line,
        batch,
        seconds: median_of(|step| Some(step.seconds)),
        memory_gb: median_of(|step| step.memory_gb),
        tflops: median_of(|step| step.tflops),
    }
}

/// Leaves out the steps whose time is far from the median of all, which are of one batch.
fn drop_outliers(steps: &mut Vec<Step>, outliers: &mut Vec<(String, String)>) {
    let middle = median(steps.iter().map(|step| step.seconds));
    let few = steps.len() < 3;
    steps.retain(|Step { line, seconds, .. }| {
        let usual = few || (0.8..1.25).contains(&(seconds / middle));
        if !usual {
            let times = seconds / middle;
            let what = format!("{seconds:.2} s is {times:.2} times its neighbours': left out");
            outliers.push((format!("line {line}"), what));
        }
        usual
    });
}

fn seconds(line: &str) -> Option<f64> {
    let milliseconds = field(line, "elapsed time per iteration (ms):").map(|ms| ms / 1000.0);
    milliseconds.or_else(|| field(line, "elapsed time per iteration (s):"))
}

/// Number after a name.
fn field(line: &str, name: &str) -> Option<f64> {
    let rest = line.split_once(name)?.1.trim_start();
    rest.split(|c: char| c == '|' || c == ',' || c.is_whitespace())
        .next()?
        .parse()
        .ok()
}
