//! Lines of a training log as measured runs: Megatron's, Megatron-DeepSpeed's and gptrain's, and
//! gptrain's `metrics.jsonl`.

use super::Row;
use crate::setup::Setup;
use base::Problems;
use serde::Deserialize;

/// What a line says.
struct Line {
    seconds: f64,
    global: Option<f64>,
}

/// A step of `metrics.jsonl`; an evaluation has no seconds.
#[derive(Deserialize)]
struct Step {
    sec: f64,
    global_batch: usize,
}

fn read_line(line: &str) -> Option<Line> {
    if line.starts_with('{') {
        let Step { sec, global_batch } = serde_json::from_str(line).ok()?;
        return Some(Line { seconds: sec, global: Some(global_batch as f64) });
    }
    Some(Line { seconds: seconds(line)?, global: field(line, "global batch size:") })
}

/// Every iteration's line, as a run of `setup` with that line's batch. The first is left out where
/// there are more: it pays for the warm-up.
pub fn read(text: &str, name: &str, setup: &Setup) -> Result<Vec<Row>, Problems> {
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(reserved) = field(line, "max reserved:")
            && let Some(row) = rows.last_mut()
        {
            row.memory_gb = Some(reserved / 1000.0);
        }
        let Some(Line { seconds, global }) = read_line(line) else { continue };
        let mut setup = setup.clone();
        if let Some(batch) = global {
            setup.global = batch as usize;
        }
        rows.push(Row {
            id: format!("line {}", number + 1),
            line: number + 1,
            group: format!("batch {}", setup.global),
            source: name.to_string(),
            seconds: Some(seconds),
            seconds_printed: true,
            memory_gb: None,
            fits: Some(true),
            tflops: field(line, "TFLOPs:"),
            devices: None,
            flags: Vec::new(),
            use_time: true,
            use_memory: true,
            setup: Ok(setup),
        });
    }
    if rows.is_empty() {
        let what = "no line says `elapsed time per iteration`, and none is a step of metrics.jsonl";
        let remedy = "give a log of Megatron, Megatron-DeepSpeed or gptrain, a metrics.jsonl, or (of \
                      other programs) a csv of runs";
        return Err(Problems::one(name, what, remedy));
    }
    if rows.len() > 1 {
        rows.remove(0);
    }
    Ok(rows)
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

/// Lines whose time is far from the median of their batch.
pub fn odd(rows: &[Row]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for row in rows {
        let alike = rows.iter().filter(|other| other.group == row.group);
        let mut times: Vec<f64> = alike.filter_map(|other| other.seconds).collect();
        times.sort_by(f64::total_cmp);
        let (median, own) = (times[times.len() / 2], row.seconds.unwrap_or(0.0));
        if times.len() > 2 && !(0.8..1.25).contains(&(own / median)) {
            let what = format!("{own:.2} s is {:.2} times its neighbours': left out", own / median);
            found.push((row.id.clone(), what));
        }
    }
    found
}
