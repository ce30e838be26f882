//! Lines of a training log as measured runs: Megatron's, Megatron-DeepSpeed's and gptrain's, and
//! gptrain's `metrics.jsonl`.

use super::Row;
use crate::parts::PartTable;
use crate::setup::Setup;
use base::Problems;
use plan::robust::median;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Rows that the steps of one batch size are summed up in at most: what is learned from them takes
/// the cube of their number.
const STRETCHES: usize = 32;

/// The steps of a run.
pub struct Log {
    /// Stretches of steps of one batch size, each with its median: at most `STRETCHES` of a size.
    pub rows: Vec<Row>,
    /// Batch and seconds of each step, but those that are odd.
    pub steps: Vec<(usize, f64)>,
    /// Lines whose time is far from the median of their batch, and what is odd about them.
    pub odd: Vec<(String, String)>,
    /// Parts of a step that the run has measured: the newest table.
    pub parts: Option<PartTable>,
}

/// A line that says how long a step took.
struct Step {
    line: usize,
    seconds: f64,
    memory_gb: Option<f64>,
    tflops: Option<f64>,
}

/// What a line says.
struct Line {
    seconds: f64,
    global: Option<f64>,
}

/// A step of `metrics.jsonl`; an evaluation has no seconds.
#[derive(Deserialize)]
struct Metrics {
    sec: f64,
    global_batch: usize,
}

fn read_line(line: &str) -> Option<Line> {
    if line.starts_with('{') {
        let Metrics { sec, global_batch } = serde_json::from_str(line).ok()?;
        return Some(Line { seconds: sec, global: Some(global_batch as f64) });
    }
    Some(Line { seconds: seconds(line)?, global: field(line, "global batch size:") })
}

/// The steps of a run of `setup`, each with its line's batch, in memory that grows with the log. The
/// first is left out where there are more: it pays for the warm-up. So are times that are none.
pub fn read(text: &str, name: &str, setup: &Setup) -> Result<Log, Problems> {
    let mut batches: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
    let (mut first, mut newest, mut parts) = (None, None, None);
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
        let Some(Line { seconds, global }) = read_line(line) else { continue };
        let batch = global.map_or(setup.global, |batch| batch as usize);
        let tflops = field(line, "TFLOPs:");
        let step = Step { line: number + 1, seconds, memory_gb: None, tflops };
        batches.entry(batch).or_default().push(step);
        first.get_or_insert(batch);
        newest = Some(batch);
    }
    let Some(first) = first else {
        let what = "no line says `elapsed time per iteration`, and none is a step of metrics.jsonl";
        let remedy = "give a log of Megatron, Megatron-DeepSpeed or gptrain, a metrics.jsonl, or (of \
                      other programs) a csv of runs";
        return Err(Problems::one(name, what, remedy));
    };
    if batches.values().map(Vec::len).sum::<usize>() > 1 {
        batches.get_mut(&first).expect("it is of this batch").remove(0);
    }
    let mut log = Log { rows: Vec::new(), steps: Vec::new(), odd: Vec::new(), parts };
    for (batch, mut steps) in batches {
        steps.retain(|step| step.seconds.is_finite() && step.seconds > 0.0);
        usual(&mut steps, &mut log.odd);
        log.steps.extend(steps.iter().map(|step| (batch, step.seconds)));
        let each = steps.len().div_ceil(STRETCHES).max(1);
        let setup = Setup { global: batch, ..setup.clone() };
        log.rows.extend(steps.chunks(each).map(|stretch| row(stretch, name, &setup)));
    }
    Ok(log)
}

/// Steps of one batch that follow each other, as a measured run.
fn row(steps: &[Step], name: &str, setup: &Setup) -> Row {
    let (first, last) = (steps[0].line, steps[steps.len() - 1].line);
    let median_of = |value: fn(&Step) -> Option<f64>| {
        let found = median(steps.iter().filter_map(value));
        found.is_finite().then_some(found)
    };
    Row {
        id: if first == last {
            format!("line {first}")
        } else {
            format!("lines {first} to {last}")
        },
        line: first,
        group: format!("batch {}", setup.global),
        source: name.to_string(),
        seconds: median_of(|step| Some(step.seconds)),
        seconds_printed: true,
        memory_gb: median_of(|step| step.memory_gb),
        fits: Some(true),
        tflops: median_of(|step| step.tflops),
        devices: None,
        flags: Vec::new(),
        use_time: true,
        use_memory: true,
        setup: Ok(setup.clone()),
    }
}

/// Leaves out the steps whose time is far from the median of all, which are of one batch.
fn usual(steps: &mut Vec<Step>, odd: &mut Vec<(String, String)>) {
    let middle = median(steps.iter().map(|step| step.seconds));
    let few = steps.len() < 3;
    steps.retain(|Step { line, seconds, .. }| {
        let usual = few || (0.8..1.25).contains(&(seconds / middle));
        if !usual {
            let times = seconds / middle;
            let what = format!("{seconds:.2} s is {times:.2} times its neighbours': left out");
            odd.push((format!("line {line}"), what));
        }
        usual
    });
}

fn seconds(line: &str) -> Option<f64> {
    let milliseconds = field(line, "elapsed time per iteration (ms):").map(|ms| ms / 1000.0);
    milliseconds.or_else(|| field(line, "elapsed time per iteration (s):"))
}

/// The number after a name.
fn field(line: &str, name: &str) -> Option<f64> {
    let rest = line.split_once(name)?.1.trim_start();
    rest.split(|c: char| c == '|' || c.is_whitespace()).next()?.parse().ok()
}
