//! Status of a run for other programs: `status.json` in its folder, which a thread of rank 0 writes
//! every few seconds (also as a heartbeat), and the same for Prometheus. Training waits for neither.
//! Events such as starts, warnings and ends are appended to `events.jsonl`.

mod prometheus;
mod state;

pub use state::{COMPLETE, FAILED, LastStep, NAME, REACHED, RunState, Status};

use super::energy::Energy;
use super::report::metrics::Metrics;
use super::report::numbers::StepRow;
use anyhow::Result;
use base::output::{self, Existing};
use base::{Count, Moment, Seconds, push_recent, redact, shell_word, unix_time};
use comm::{Place, Recorder};
use estimate::parts::{Part, PartTable};
use launch::alerts::Alerts;
use launch::events::{self, Event, Kind};
use launch::messages::{Warning, Warnings};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Number of last steps whose wall time gives the expected end.
const RECENT: usize = 100;

/// Writer of the status, on rank 0.
pub struct StatusWriter {
    shared: Arc<Mutex<Status>>,
    recent: VecDeque<(Moment, u64)>,
    /// Closed to make the thread write a last time and end.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Records that ranks begin to train.
fn record_start(folder: &Path, status: &Status, from_step: u64) {
    let ranks = Count(status.ranks as u64).with_noun("rank");
    let host = &status.host;
    let job = status
        .job
        .as_ref()
        .map_or(String::new(), |job| format!(", Slurm job {job}"));
    let words = std::env::args_os().map(|word| shell_word(&word.to_string_lossy()));
    let command = words.collect::<Vec<_>>().join(" ");
    let version = env!("CARGO_PKG_VERSION");
    let commit = base::commit();
    let text = format!(
        "from step {from_step}: {ranks}, rank 0 on {host}{job}, gptrain {version}, commit {commit}: \
         {command}"
    );
    events::add(folder, Kind::Start, &redact(&text));
}

/// Seconds for which this process was stopped since the last poll. Prints them if there are any.
fn stopped_seconds(polled: &mut Moment) -> f64 {
    let now = Moment::now();
    let stopped = now
        .stopped_since(std::mem::replace(polled, now))
        .as_secs_f64();
    if stopped > 0.0 {
        let time = Seconds(stopped);
        tracing::info!("rank 0 was stopped for {time} and continues; no time limit ran meanwhile");
    }
    stopped
}

/// Records the warnings after a moment. Returns the moment of the last one that was written.
fn append_warnings(folder: &Path, warnings: &Warnings, after: f64, alerts: &Alerts) -> f64 {
    let new: Vec<Warning> = warnings
        .lock()
        .iter()
        .filter(|warning| warning.at > after)
        .cloned()
        .collect();
    let mut last = after;
    for Warning { at, kind, text } in new {
        let event = Event { at, kind, text };
        if events::append(folder, &event).is_err() {
            break; // the next call tries it again
        }
        alerts.send(&event);
        last = at;
    }
    last
}

/// Status of the run's last start, before the lines of steps that are repeated are dropped. A start
/// without an end, because it was killed, ends here with its last line of metrics.
pub fn last_start(folder: &Path) -> Option<Status> {
    let mut last = Status::read(folder).ok()?;
    if last.ended {
        return Some(last);
    }
    let rows = Metrics::read(folder).map_or(Vec::new(), |metrics| metrics.steps);
    for row in rows.iter().filter(|row| row.step > last.step) {
        last.updated += row.sec;
    }
    last.step = rows.last().map_or(last.step, |row| row.step);
    last.updated = last.updated.min(unix_time().as_secs_f64());
    let events = events::read(folder).unwrap_or_default();
    let newest = events
        .iter()
        .rfind(|event| matches!(event.kind, Kind::Start | Kind::End));
    if newest.is_some_and(|newest| newest.kind == Kind::Start) {
        let text = format!("step {}: killed while {}", last.step, last.phase);
        // If the folder is full or missing, the event is lost.
        let _ = events::append(folder, &Event { at: last.updated, kind: Kind::End, text });
    }
    Some(last)
}

/// Energy that the processes of the run in `folder` have spent, by its last record of it.
pub fn spent_energy(folder: &Path) -> Energy {
    let rows = Metrics::read(folder).map_or(Vec::new(), |metrics| metrics.steps);
    let status = Status::read(folder).ok().map(|status| status.last.0);
    let last = |kwh: fn(&StepRow) -> Option<f64>| {
        let recorded = rows.iter().chain(&status).filter_map(kwh);
        recorded.max_by(f64::total_cmp)
    };
    Energy { gpu: last(|row| row.gpu_kwh), cpu: last(|row| row.cpu_kwh) }
}

/// Seconds of a run between its ends and starts, including those since its last step. The time in
/// which a supervisor restarts ranks counts as lost, not as away.
fn away_seconds(before: &Status, now: f64) -> f64 {
    let restarted = Place::epoch().is_some_and(|epoch| epoch > 0);
    before.away_s + if restarted { 0.0 } else { (now - before.updated).max(0.0) }
}

impl StatusWriter {
    /// Starts the status of a run in `folder` that continues after `from_step`. `status` has the run's
    /// constants and the seconds of its earlier steps; `before` is the status of its last start.
    /// `collector` is the folder of node_exporter's textfile collector.
    pub fn open(
        folder: PathBuf,
        mut status: Status,
        before: Option<Status>,
        from_step: u64,
        collector: Option<&Path>,
        recorder: Arc<Recorder>,
        warnings: Warnings,
        alerts: Alerts,
    ) -> Result<StatusWriter> {
        let now = unix_time().as_secs_f64();
        // A new run in an old folder has no steps yet, and begins now.
        let before = before.filter(|_| status.useful_s > 0.0);
        status.away_s = before
            .as_ref()
            .map_or(0.0, |before| away_seconds(before, now));
        status.began = before.map_or(now - status.useful_s, |before| before.began);
        status.started = now;
        status.process = std::process::id();
        status.job = std::env::var("SLURM_JOB_ID").ok();
        record_start(&folder, &status, from_step);
        let mut metrics = prometheus::Files::new(&folder, &status.name, collector);
        let shared = Arc::new(Mutex::new(status));
        let (open, closed) = channel();
        let mut written_until = now;
        let mut polled = Moment::now();
        let status = shared.clone();
        let path = folder.join(NAME);
        let thread = base::threads::spawn("status", move || {
            loop {
                written_until = append_warnings(&folder, &warnings, written_until, &alerts);
                let now = {
                    let mut status = status.lock();
                    if !status.ended {
                        status.phase = recorder.phase();
                    }
                    status.away_s += stopped_seconds(&mut polled);
                    status.updated = unix_time().as_secs_f64();
                    status.warnings = warnings.lock().clone();
                    status.clone()
                };
                let text = serde_json::to_vec_pretty(&now).expect("numbers and names");
                // The next save reports a folder that is full or missing.
                let _ = output::write(&path, Existing::Replaced, &text);
                metrics.write(&now);
                if now.ended {
                    let text = format!("step {}: {}", now.step, now.phase);
                    let end = Event { at: now.updated, kind: Kind::End, text };
                    let _ = events::append(&folder, &end); // lost if the folder is full
                    let failed = now.phase.starts_with(FAILED);
                    let kind = if failed { Kind::Failure } else { Kind::End };
                    alerts.send(&Event { kind, ..end });
                    return;
                }
                if closed.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Disconnected) {
                    let mut status = status.lock();
                    if !status.ended {
                        status.phase = format!("{FAILED} while {}", recorder.phase());
                        status.ended = true;
                    }
                }
            }
        })?;
        Ok(StatusWriter { shared, recent: VecDeque::new(), open: Some(open), thread: Some(thread) })
    }

    /// Records the end of a step.
    pub fn step(&mut self, row: &StepRow) {
        let now = (Moment::now(), row.consumed_samples);
        push_recent(&mut self.recent, now, RECENT);
        let first = self.recent[0];
        let wall = now.0.since(first.0).as_secs_f64();
        let samples = now.1.saturating_sub(first.1);
        let mut status = self.shared.lock();
        let left = status.total_samples.saturating_sub(now.1) as f64;
        status.left_s = (samples > 0).then(|| wall / samples as f64 * left);
        status.step = row.step;
        status.consumed_samples = row.consumed_samples;
        status.last = LastStep(*row);
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

    /// Sets the energy of the run, whose electricity has `carbon` g of CO₂ per kWh.
    pub fn energy(&mut self, energy: Energy, carbon: Option<f64>) {
        let last = &mut self.shared.lock().last.0;
        last.gpu_kwh = energy.gpu;
        last.cpu_kwh = energy.cpu;
        last.co2_kg = energy.co2_kg(carbon);
    }

    /// Records a rollback; `useful_s` is the time of the steps that still count.
    pub fn roll_back(&mut self, useful_s: f64) {
        self.recent.clear();
        self.shared.lock().useful_s = useful_s;
    }

    /// Records the end of the run. This is the final status.
    pub fn end(&mut self, how: &str) -> Status {
        {
            let mut status = self.shared.lock();
            status.phase = redact(how).into_owned();
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

impl Drop for StatusWriter {
    fn drop(&mut self) {
        self.close();
    }
}
