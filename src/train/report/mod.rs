//! The report of a run: Megatron's log line, `metrics.jsonl`, TensorBoard events, a progress bar.
//!
//! Independent of the model, the device and the checkpoint: it receives numbers and writes them.

mod append;
mod format;
mod line;
mod logged;
pub mod metrics;
pub mod numbers;
mod screen;
pub mod tensorboard;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;

use base::Count;
use data::eval::Accuracy;
use estimate::parts::PartTable;

use launch::console::Console;
use launch::storage::Storage;
use plan::segments::BatchSchedule;
use std::collections::BTreeMap;

pub use append::SyncReceipt;

use append::Appender;
use metrics::{EvalRow, MetricsFile, TaskRow};
use numbers::{Interval, Shown, StepRow};
use screen::Screen;
use tensorboard::{Events, Position};

/// Constants of a run, for rates and totals.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Length of the run.
    pub total_samples: u64,
    /// Batches of its steps, and tokens of its samples.
    pub schedule: BatchSchedule,
    /// Tokens of a whole sample, and FLOPs of each.
    pub seq_len: usize,
    pub flops: TokenFlops,
    /// The same of the shorter samples of `batch.length_ramp_up`.
    pub shorter: BTreeMap<u64, TokenFlops>,
    /// FLOPs of one token by the simple formula, if the log shows it.
    pub simple_flops_per_token: Option<f64>,
    /// Devices of the run.
    pub devices: usize,
    /// Peak FLOP/s of all devices together, if known.
    pub peak_flops: Option<f64>,
    /// Optimizer steps in the whole run.
    pub total_steps: u64,
}

impl RunInfo {
    /// Place in the run after `step` steps, of `samples` samples.
    fn position(&self, step: u64, samples: u64) -> Position {
        Position { step, samples, tokens: self.schedule.tokens(samples) }
    }

    fn total_tokens(&self) -> u64 {
        self.schedule.tokens(self.total_samples)
    }
}

/// FLOPs of one token's forward and backward.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenFlops {
    /// Without recomputation; for MFU.
    pub model: f64,
    /// Recomputation included; for `TFLOPs` in the log.
    pub hardware: f64,
}

/// Writes every step of a run to its folder and to the terminal.
pub struct Report {
    folder: PathBuf,
    storage: Arc<Storage>,
    info: RunInfo,
    every: u64,
    last_step: u64,
    interval: Interval,
    metrics: MetricsFile,
    events: Option<Events>,
    screen: Screen,
}

impl Report {
    /// Opens the files of a run in `folder`, which is created if missing. A log line is printed
    /// every `every` steps. Rows of steps after `resume_step` are dropped from `metrics.jsonl` (all,
    /// at 0), so that a resumed run's record reads like an uninterrupted one.
    pub fn open(
        console: &Console,
        folder: &Path,
        storage: &Arc<Storage>,
        info: RunInfo,
        every: u64,
        tensorboard: bool,
        resume_step: u64,
    ) -> Result<Report> {
        assert!(every > 0, "a log interval of 0 steps");
        let (metrics, dropped) = MetricsFile::open(folder, resume_step, storage)?;
        let path = metrics.path().display();
        if !dropped.unreadable.is_empty() {
            let lines: Vec<_> = dropped.unreadable.iter().map(|n| n.to_string()).collect();
            tracing::warn!("dropped from {path}: unreadable line {}", lines.join(", "));
        }
        if dropped.after_resume > 0 {
            let lines = Count(dropped.after_resume).with_noun("line");
            tracing::info!("dropped from {path}: {lines} after step {resume_step}");
        }
        let events = if tensorboard {
            Some(Events::open(&folder.join("tensorboard"), storage)?)
        } else {
            None
        };
        Ok(Report {
            folder: folder.to_path_buf(),
            storage: storage.clone(),
            screen: Screen::new(console, &info),
            info,
            every,
            last_step: resume_step,
            interval: Interval::default(),
            metrics,
            events,
        })
    }

    /// Removes the records of later steps after a rollback to a step.
    pub fn roll_back(&mut self, step: u64) -> Result<()> {
        self.print_interval();
        self.files().try_for_each(Appender::close)?;
        self.metrics = MetricsFile::open(&self.folder, step, &self.storage)?.0;
        if let Some(events) = &mut self.events {
            *events = Events::open(&self.folder.join("tensorboard"), &self.storage)?;
        }
        self.last_step = step;
        Ok(())
    }

    /// Records a finished step; prints a log line if the step ends an interval.
    pub fn step(&mut self, row: &StepRow) -> Result<()> {
        assert!(row.step > self.last_step, "step {} after step {}", row.step, self.last_step);
        self.last_step = row.step;
        self.metrics.write(row)?;
        if let Some(events) = &mut self.events
            && tensorboard::is_written(row.step)
        {
            let curves = numbers::placed_numbers(|place| match place {
                Shown::Curve(tag) => Some((0, tag)),
                _ => None,
            });
            let scalars: Vec<_> = curves
                .filter_map(|(number, tag)| Some((tag, (number.value)(row)?)))
                .collect();
            let at = Position { step: row.step, samples: row.consumed_samples, tokens: row.tokens };
            events.scalars(at, &scalars)?;
        }
        self.interval.add(row);
        self.screen.advance(row);
        if row.step.is_multiple_of(self.every) {
            self.print_interval();
        }
        Ok(())
    }

    /// Records the parts of a step, planned and measured.
    pub fn parts(&mut self, table: &PartTable) -> Result<()> {
        self.metrics.write(table)
    }

    /// Records the mean loss on the validation set `set` after `step` steps.
    pub fn eval(&mut self, step: u64, consumed_samples: u64, set: &str, loss: f64) -> Result<()> {
        self.metrics.write(&EvalRow {
            step,
            consumed_samples,
            eval: set.to_string(),
            lm_loss: loss,
        })?;
        if let Some(events) = &mut self.events {
            let tag = format!("lm-loss-validation/{set}/lm loss validation");
            events.scalars(self.info.position(step, consumed_samples), &[(&tag, loss)])?;
        }
        self.screen
            .print(|form| line::validation(form, step, set, loss));
        Ok(())
    }

    /// Records the accuracy on a task after `step` steps.
    pub fn task(
        &mut self,
        step: u64,
        consumed_samples: u64,
        task: &str,
        accuracy: Accuracy,
    ) -> Result<()> {
        let name = task.to_string();
        self.metrics
            .write(&TaskRow { step, consumed_samples, task: name, accuracy })?;
        if let Some(events) = &mut self.events {
            let named: Vec<(String, f64)> = accuracy
                .scores()
                .map(|(name, score)| (format!("eval-tasks/{task}/{name}"), score))
                .collect();
            let scalars: Vec<(&str, f64)> = named
                .iter()
                .map(|(name, score)| (&**name, *score))
                .collect();
            events.scalars(self.info.position(step, consumed_samples), &scalars)?;
        }
        self.screen
            .print(|form| line::task(form, step, task, &accuracy));
        Ok(())
    }

    /// Requests that `metrics.jsonl` is on disk up to the last step.
    pub fn sync_metrics(&mut self) -> SyncReceipt {
        self.metrics.appender().sync()
    }

    /// Whether all text is in the files. Fails if some cannot be written.
    pub fn is_written(&mut self) -> Result<bool> {
        self.files()
            .try_fold(true, |all, file| Ok(all && file.is_written()?))
    }

    fn files(&mut self) -> impl Iterator<Item = &mut Appender> {
        let events = self.events.iter_mut().flat_map(Events::appenders);
        std::iter::once(self.metrics.appender()).chain(events)
    }

    /// Prints the last, incomplete interval, removes the progress bar, and closes the files.
    pub fn finish(&mut self) {
        self.print_interval();
        self.screen.finish();
        if let Err(error) = self.files().try_for_each(Appender::close) {
            tracing::warn!("{error:#}");
        }
    }

    fn print_interval(&mut self) {
        let info = &self.info;
        if let Some((interval, last)) = self.interval.take() {
            self.screen
                .print(|form| line::steps(form, &interval, &last, info));
        }
    }
}
