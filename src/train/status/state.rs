//! What is known of a run at one moment, as `status.json` holds it.

use anyhow::{Context, Result};
use base::{Problems, Seconds, unix_time};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// The file's name in a run's folder.
pub const NAME: &str = "status.json";

/// The last warnings that are kept.
const WARNINGS: usize = 16;

/// A run, at one moment. Times of day are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    /// Of rank 0.
    pub host: String,
    pub process: u32,
    /// Its Slurm job.
    pub job: Option<String>,
    pub ranks: usize,
    /// When the run began its first step ever, and when this process began its first.
    pub began: f64,
    pub started: f64,
    pub updated: f64,
    /// What rank 0 is doing, or how the run ended.
    pub phase: String,
    pub ended: bool,
    pub step: u64,
    pub total_steps: u64,
    pub consumed_samples: u64,
    pub total_samples: u64,
    pub tokens: u64,
    /// Of the last step; None before it, and of a loss that is not a number.
    pub lm_loss: Option<f64>,
    pub grad_norm: Option<f64>,
    pub lr: f64,
    pub tokens_per_s: f64,
    /// Seconds to the run's end, at the wall time of the last steps, all that is between them included.
    pub left_s: Option<f64>,
    /// Seconds in steps, each step once, of all processes of the run.
    pub useful_s: f64,
    pub skipped_steps: u64,
    pub warnings: VecDeque<Warning>,
}

/// A message that a person should see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    pub at: f64,
    pub text: String,
}

/// The last warnings of a process.
pub type Warnings = Arc<Mutex<VecDeque<Warning>>>;

/// Keeps a warning.
pub fn keep(warnings: &Warnings, text: &str) {
    let mut warnings = warnings.lock();
    if warnings.len() == WARNINGS {
        warnings.pop_front();
    }
    warnings.push_back(Warning { at: unix_time().as_secs_f64(), text: text.to_string() });
}

impl Status {
    /// Of the run in `folder`.
    pub fn read(folder: &Path) -> Result<Status> {
        let path = folder.join(NAME);
        let place = path.display().to_string();
        if !path.exists() {
            let remedy =
                "give the folder of a run that has taken a step: log.folder of its manifest";
            return Err(Problems::one(place, "there is no such file", remedy).into());
        }
        let text = std::fs::read(&path).with_context(|| format!("cannot read {place}"))?;
        serde_json::from_slice(&text).with_context(|| format!("{place} is damaged"))
    }

    /// The share of the time since the run began, waiting in queues included, that went into steps
    /// which count.
    pub fn goodput(&self) -> f64 {
        (self.useful_s / (self.updated - self.began).max(1e-9)).min(1.0)
    }

    /// "goodput 93.1 %: 3 h 02 m in steps since it began 3 h 16 m ago".
    pub fn goodput_line(&self) -> String {
        let (useful, all) = (Seconds(self.useful_s), Seconds(self.updated - self.began));
        let share = 100.0 * self.goodput();
        format!("goodput {share:.1} %: {useful} in steps since the run began {all} ago")
    }
}
