//! Contents of `status.json`: the state of a run at one moment.

use crate::report::numbers::{Shown, StepRow, placed_numbers};
use anyhow::Context;
use base::{Problems, Seconds, WrongInput, input};
use estimate::parts::PartTable;
use launch::messages::Warning;
use launch::run_folder;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::Path;

/// Name of the file in a run's folder.
pub const NAME: &str = "status.json";

/// Value of `phase` for a complete run.
pub const COMPLETE: &str = "complete";
/// First word of `phase` for a failed run.
pub const FAILED: &str = "failed";

/// Phase of a run that has ended at its loss.
pub const REACHED: &str = "saved, with train.stop_at_loss reached";

/// Seconds without a heartbeat after which a run counts as silent.
const SILENT: f64 = 60.0;

/// State of a run in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    /// No heartbeat for a minute: the run was killed, or its folder is unreachable.
    Silent,
    /// Its process on this machine is gone, without an end.
    Killed,
    /// Ended before its last step, after a save.
    Stopped,
    Failed,
    Complete,
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// State of a run at one moment. Times of day are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    /// Host and process of rank 0.
    pub host: String,
    pub process: u32,
    /// Slurm job.
    pub job: Option<String>,
    pub ranks: usize,
    /// Start of the run's first step, and of this process's first step.
    pub began: f64,
    pub started: f64,
    /// Seconds between ends of the run and the next starts, in which nothing had to be computed.
    #[serde(default)]
    pub away_s: f64,
    pub updated: f64,
    /// Phase of rank 0, or the end of the run.
    pub phase: String,
    pub ended: bool,
    pub step: u64,
    pub total_steps: u64,
    pub consumed_samples: u64,
    pub total_samples: u64,
    #[serde(flatten)]
    pub last: LastStep,
    /// Seconds to the run's end, by the wall time of the last steps, including evaluations and saves.
    pub left_s: Option<f64>,
    /// Seconds in steps, of all processes of the run; repeated steps count once.
    pub useful_s: f64,
    pub skipped_steps: u64,
    /// Parts of a step, planned and measured; None before the fifth step.
    #[serde(default)]
    pub parts: Option<PartTable>,
    pub warnings: VecDeque<Warning>,
}

/// Record of the last step, of which a status has the numbers with `Shown::Status`. Loss and
/// gradient norm are NaN before the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastStep(pub StepRow);

impl Default for LastStep {
    fn default() -> LastStep {
        LastStep(StepRow { lm_loss: f64::NAN, grad_norm: f64::NAN, ..StepRow::default() })
    }
}

impl LastStep {
    /// Keys of a status.
    fn keys() -> impl Iterator<Item = &'static str> {
        let kept = placed_numbers(|place| matches!(place, Shown::Status).then_some((0, ())));
        kept.map(|(number, ())| number.key)
    }
}

impl Serialize for LastStep {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let row = serde_json::to_value(self.0).expect("numbers are always JSON");
        to.collect_map(LastStep::keys().map(|key| (key, &row[key])))
    }
}

impl<'de> Deserialize<'de> for LastStep {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<LastStep, D::Error> {
        let mut read = BTreeMap::<String, Value>::deserialize(from)?;
        let mut row = serde_json::to_value(StepRow::default()).expect("numbers are always JSON");
        for key in LastStep::keys() {
            // A status of an earlier version lacks newer numbers.
            if let Some(value) = read.remove(key) {
                row[key] = value;
            }
        }
        serde_json::from_value(row)
            .map(LastStep)
            .map_err(D::Error::custom)
    }
}

impl Status {
    /// Reads the status of the run in `folder`.
    pub fn read(folder: &Path) -> anyhow::Result<Status> {
        let path = folder.join(NAME);
        let place = path.display().to_string();
        if !path.exists() {
            return Err(Problems::one(
                place,
                "there is no such file",
                "give the folder of a run that has taken a step: log.folder of its manifest",
            )
            .into());
        }
        let text = input::read(&path, input::SMALL)
            .map_err(|error| WrongInput::reading(error, format!("cannot read {place}")))?;
        serde_json::from_slice(&text).with_context(|| WrongInput(format!("{place} is damaged")))
    }

    /// Loss of the last step; None before the first step, and if it is not finite.
    pub fn loss(&self) -> Option<f64> {
        Some(self.last.0.lm_loss).filter(|loss| loss.is_finite())
    }

    /// Percentage of the run's samples that it has consumed.
    pub fn share(&self) -> f64 {
        100.0 * self.consumed_samples as f64 / self.total_samples.max(1) as f64
    }

    /// State of the run in `folder` at a time, in seconds since 1970.
    pub fn state(&self, folder: &Path, now: f64) -> RunState {
        if self.ended {
            match self.phase.as_str() {
                COMPLETE => RunState::Complete,
                phase if phase.starts_with(FAILED) => RunState::Failed,
                _ => RunState::Stopped,
            }
        } else if self.is_gone(folder) {
            RunState::Killed
        } else if now - self.updated > SILENT {
            RunState::Silent
        } else {
            RunState::Running
        }
    }

    /// Whether rank 0's process was on this machine and is gone, and no supervisor starts another. A
    /// process in another container has another number here, but holds the lock.
    fn is_gone(&self, folder: &Path) -> bool {
        self.host == base::hostname()
            && !Path::new(&format!("/proc/{}", self.process)).exists()
            && run_folder::is_unlocked(folder)
            && !run_folder::is_supervised(folder)
    }

    /// Share of the run's time, from each start to its end, that went into steps that count.
    pub fn goodput(&self) -> f64 {
        (self.useful_s / self.running_s().max(1e-9)).min(1.0)
    }

    fn running_s(&self) -> f64 {
        self.updated - self.began - self.away_s
    }

    /// "goodput 93.1 %: 3 h 02 m in steps, of 3 h 16 m from starts to ends; away for 5 h 00 m".
    pub fn goodput_line(&self) -> String {
        let useful = Seconds(self.useful_s);
        let all = Seconds(self.running_s());
        let share = 100.0 * self.goodput();
        let away = if self.away_s >= 1.0 {
            format!("; away for {}", Seconds(self.away_s))
        } else {
            Default::default()
        };
        format!("goodput {share:.1} %: {useful} in steps, of {all} from starts to ends{away}")
    }
}
