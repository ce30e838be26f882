//! `metrics.jsonl`: one JSON object per step, one for each validation set and task at each evaluation,
//! and one for the parts of a step after the first steps.
//!
//! Whole lines are appended (`append`), so a kill at any moment leaves at most one torn last line.
//! Numbers have the fewest digits that give the same bits back. JSON has no NaN or infinity: they are
//! written as `null` and read as NaN.

use std::fs;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::append::Appender;
use super::numbers::StepRow;
use base::output::{Existing, Output};
use base::{Problems, input, null_is_nan};
use data::eval::Accuracy;
use estimate::parts::PartTable;
use launch::storage::Storage;

/// Name of the file in a run's folder.
pub const NAME: &str = "metrics.jsonl";

/// Record of the loss on a validation set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRow {
    pub step: u64,
    pub consumed_samples: u64,
    /// Name of the set.
    pub eval: String,
    #[serde(deserialize_with = "null_is_nan")]
    pub lm_loss: f64,
}

/// Record of the accuracy on a task's questions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    pub step: u64,
    pub consumed_samples: u64,
    /// Name of the task.
    pub task: String,
    #[serde(flatten)]
    pub accuracy: Accuracy,
}

/// Line of any kind. Only an evaluation has the key `eval`, only a task the key `task`, only a
/// table of parts the key `parts`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Eval(EvalRow),
    Task(TaskRow),
    Parts(PartTable),
    Step(Box<StepRow>),
}

/// File `metrics.jsonl`, open for appending.
pub struct MetricsFile(Appender);

/// Lines removed from the file when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Number of lines of steps after the one resumed from.
    pub after_resume: u64,
    /// Numbers, from 1, of invalid lines: torn by a kill or a full disk.
    pub unreadable: Vec<u64>,
}

impl MetricsFile {
    /// Opens or creates the file in `folder`, and removes lines after `resume_step` (all lines if that
    /// is 0). The old file remains complete until the new one replaces it.
    pub fn open(
        folder: &Path,
        resume_step: u64,
        storage: &Arc<Storage>,
    ) -> Result<(MetricsFile, Dropped)> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the run's folder {}", folder.display()))?;
        let path = folder.join(NAME);
        let context = || format!("cannot prepare {}", path.display());
        let dropped = drop_after(&path, resume_step).with_context(context)?;
        let file = Appender::open(&path, storage).with_context(context)?;
        Ok((MetricsFile(file), dropped))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Appender, which writes the lines.
    pub fn appender(&mut self) -> &mut Appender {
        &mut self.0
    }

    /// Appends a row of any kind.
    pub fn write(&mut self, row: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(row).expect("numbers and names are always JSON");
        line.push(b'\n');
        self.0.append(line)
    }
}

/// Copies the lines to keep and replaces the file by the copy, if there is anything to remove.
fn drop_after(path: &Path, resume_step: u64) -> Result<Dropped> {
    let file = match input::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Dropped::default()),
        opened => opened?,
    };
    let mut copy = BufWriter::new(Output::create(path, Existing::Replaced)?);
    let mut dropped = Dropped::default();
    let mut lines = BufReader::new(file);
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        if lines.read_until(b'\n', &mut text)? == 0 {
            break;
        }
        match line_step(&text) {
            Some(step) if resume_step > 0 && step <= resume_step => copy.write_all(&text)?,
            Some(_) => dropped.after_resume += 1,
            None => dropped.unreadable.push(number),
        }
    }
    if dropped != Dropped::default() {
        copy.into_inner()
            .map_err(|error| error.into_error())?
            .finish()?;
    }
    Ok(dropped)
}

/// Step of a whole line. A line without its end may lack digits too.
fn line_step(line: &[u8]) -> Option<u64> {
    match serde_json::from_slice(line.strip_suffix(b"\n")?).ok()? {
        Row::Eval(row) => Some(row.step),
        Row::Task(row) => Some(row.step),
        Row::Parts(table) => Some(table.step),
        Row::Step(row) => Some(row.step),
    }
}

/// Record of a run, read back.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Steps, in order.
    pub steps: Vec<StepRow>,
    pub evals: Vec<EvalRow>,
    pub tasks: Vec<TaskRow>,
    /// Newest table of parts.
    pub parts: Option<PartTable>,
    /// Whether the last line is incomplete: the run was killed, or is writing it now.
    pub torn: bool,
}

impl Metrics {
    /// Seconds of the steps with an update.
    pub fn useful_seconds(&self) -> f64 {
        self.steps
            .iter()
            .filter(|row| !row.skipped)
            .map(|row| row.sec)
            .sum()
    }

    /// Reads the record of the run in `folder`. Ignores a torn last line. An unreadable line
    /// elsewhere, or a record without a step, is an error.
    pub fn read(folder: &Path) -> Result<Metrics> {
        let path = folder.join(NAME);
        let place = path.display().to_string();
        let bytes = match input::read(&path, u64::MAX) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Err(Problems::one(
                    place,
                    "there is no such file",
                    "give the folder of a run, the `log.folder` of its manifest",
                )
                .into());
            }
            read => read.with_context(|| format!("cannot read {place}"))?,
        };
        let mut metrics = Metrics::default();
        let mut problems = Problems::default();
        for (i, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let whole = line.strip_suffix(b"\n");
            match serde_json::from_slice(whole.unwrap_or(line)) {
                _ if whole.is_none() => metrics.torn = true,
                Ok(Row::Step(row)) => metrics.steps.push(*row),
                Ok(Row::Eval(row)) => metrics.evals.push(row),
                Ok(Row::Task(row)) => metrics.tasks.push(row),
                Ok(Row::Parts(table)) => metrics.parts = Some(table),
                Err(_) => problems.add(
                    format!("{place}:{}", i + 1),
                    format!("not a line of metrics: {}", excerpt(line)),
                    "delete the line, or resume the run, which drops it",
                ),
            }
        }
        if problems.list.is_empty() && metrics.steps.is_empty() {
            problems.add(place, "the file holds no step yet", "wait for the run's first step");
        }
        Ok(problems.or(metrics)?)
    }
}

/// Start of a line, for messages.
fn excerpt(line: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(line)
        .trim_end()
        .chars()
        .take(40)
        .collect();
    format!("{text:?}")
}
