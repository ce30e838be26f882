//! Status of a run for other programs: `status.json` in its folder, which a thread of rank 0 writes
//! every few seconds (also as a heartbeat), and the same for Prometheus. Training waits for neither.
//! Events such as starts, warnings and ends are appended to `events.jsonl`.

mod prometheus;
mod state;

pub use state::{COMPLETE, FAILED, Last, NAME, State, Status};

use super::report::numbers::StepRow;
use anyhow::Result;
use base::output::{self, Existing};
use base::{Count, unix_time};
use comm::{Place, Recorder};
use estimate::parts::{Part, PartTable};
use launch::events::{self, Event, Kind};
use launch::messages::{Warning, Warnings};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of heartbeats.
const EVERY: Duration = Duration::from_secs(5);

/// Number of last steps whose wall time gives the expected end.
const RECENT: usize = 100;

/// Handle of rank 0.
pub struct Board {
    shared: Arc<Mutex<Status>>,
    recent: VecDeque<(Instant, u64)>,
    /// Closed to make the thread write a last time and end.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Records that ranks begin to train.
fn begun(folder: &Path, place: &str, from_step: u64, job: Option<&str>) {
    let job = job.map_or(String::new(), |job| format!(", Slurm job {job}"));
    events::add(folder, Kind::Start, &format!("from step {from_step}: {place}{job}"));
}

/// Records the warnings after a moment. Returns the moment of the last one that was written.
fn append_warnings(folder: &Path, warnings: &Warnings, told: f64) -> f64 {
    let new: Vec<Warning> =
        warnings.lock().iter().filter(|warning| warning.at > told).cloned().collect();
    let noted = new.into_iter().map_while(|Warning { at, text }| {
        events::append(folder, &Event { at, kind: Kind::Warning, text }).ok().map(|()| at)
    });
    noted.last().unwrap_or(told)
}

/// Seconds of a run between its ends and starts, including those since its last heartbeat. The time in
/// which a supervisor restarts ranks counts as lost, not as away.
fn away(before: &Status, now: f64) -> f64 {
    let restarted = Place::epoch().is_some_and(|epoch| epoch > 0);
    before.away_s + if restarted { 0.0 } else { (now - before.updated).max(0.0) }
}

/// Constants of the run.
pub struct Fixed {
    pub folder: PathBuf,
    pub name: String,
    pub host: String,
    pub ranks: usize,
    /// Step that this process continues from.
    pub from_step: u64,
    pub total_steps: u64,
    pub total_samples: u64,
    /// Seconds of earlier steps of the run.
    pub useful_s: f64,
    /// Folder of node_exporter's textfile collector.
    pub collector: Option<PathBuf>,
}

impl Board {
    pub fn open(fixed: Fixed, recorder: Arc<Recorder>, warnings: Warnings) -> Result<Board> {
        let Fixed { folder, name, host, ranks, total_steps, total_samples, .. } = fixed;
        let place = format!("{}, rank 0 on {host}", Count(ranks as u64).with_noun("rank"));
        let now = unix_time().as_secs_f64();
        // A new run in an old folder has no steps yet, and begins now.
        let before = Status::read(&folder).ok().filter(|_| fixed.useful_s > 0.0);
        let away_s = before.as_ref().map_or(0.0, |before| away(before, now));
        let status = Status {
            name,
            host,
            ranks,
            total_steps,
            total_samples,
            process: std::process::id(),
            job: std::env::var("SLURM_JOB_ID").ok(),
            began: before.map_or(now - fixed.useful_s, |before| before.began),
            started: now,
            useful_s: fixed.useful_s,
            away_s,
            ..Status::default()
        };
        let shared = Arc::new(Mutex::new(status));
        begun(&folder, &place, fixed.from_step, shared.lock().job.as_deref());
        let (open, closed) = channel();
        let mut told = now;
        let (board, path) = (shared.clone(), folder.join(NAME));
        let name = shared.lock().name.clone();
        let mut metrics = prometheus::Files::new(&folder, &name, fixed.collector.as_deref());
        let write = move || {
            loop {
                told = append_warnings(&folder, &warnings, told);
                let now = {
                    let mut status = board.lock();
                    if !status.ended {
                        status.phase = recorder.phase();
                    }
                    status.updated = unix_time().as_secs_f64();
                    status.warnings = warnings.lock().clone();
                    status.clone()
                };
                let text = serde_json::to_vec_pretty(&now).expect("numbers and names");
                // The next save reports a folder that is full or missing.
                let _ = output::write(&path, Existing::Replaced, &text);
                metrics.write(&now);
                if now.ended {
                    events::add(&folder, Kind::End, &format!("step {}: {}", now.step, now.phase));
                    return;
                }
                if closed.recv_timeout(EVERY) == Err(RecvTimeoutError::Disconnected) {
                    let mut status = board.lock();
                    if !status.ended {
                        status.phase = format!("{FAILED} while {}", recorder.phase());
                        status.ended = true;
                    }
                }
            }
        };
        let thread = base::threads::spawn("status", write)?;
        Ok(Board { shared, recent: VecDeque::new(), open: Some(open), thread: Some(thread) })
    }

    /// Records the end of a step.
    pub fn step(&mut self, row: &StepRow) {
        let now = (Instant::now(), row.consumed_samples);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        let first = self.recent[0];
        let (wall, samples) = ((now.0 - first.0).as_secs_f64(), now.1.saturating_sub(first.1));
        let mut status = self.shared.lock();
        let left = status.total_samples.saturating_sub(now.1) as f64;
        status.left_s = (samples > 0).then(|| wall / samples as f64 * left);
        status.step = row.step;
        status.consumed_samples = row.consumed_samples;
        status.last = Last(*row);
        status.useful_s += if row.skipped { 0.0 } else { row.sec };
        status.skipped_steps += u64::from(row.skipped);
    }

    /// Sets the table of the parts of a step.
    pub fn parts(&mut self, table: &PartTable) {
        self.shared.lock().parts = Some(table.clone());
    }

    /// Sets the seconds per step in which saves have stopped the steps.
    pub fn saved(&mut self, each_step: f64) {
        if let Some(table) = &mut self.shared.lock().parts {
            table.set_measured(Part::Save, each_step);
        }
    }

    /// Records a rollback, after which so many seconds of steps still count.
    pub fn go_back(&mut self, useful_s: f64) {
        self.recent.clear();
        self.shared.lock().useful_s = useful_s;
    }

    /// Records the end of the run. This is the final status.
    pub fn end(&mut self, how: &str) -> Status {
        {
            let mut status = self.shared.lock();
            status.phase = how.to_string();
            status.ended = true;
        }
        self.close();
        self.shared.lock().clone()
    }

    fn close(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.close();
    }
}
