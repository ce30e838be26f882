//! A series of commands of this program, each a process, several at a time. A record in the series'
//! folder has one line for each command that ended well, and on request for one that failed; the next
//! start skips these, also after SIGKILL.
//!
//! Independent of what the commands do. A command that was cut off is started again: `gptrain run`
//! continues from its own checkpoint.

use super::run_folder::{SERIES, is_task_of_series};
use super::supervise::{ForwardedSignals, follow_parent};
use anyhow::{Context, Result};
use base::{Moment, Seconds};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Record of the commands that ended well, in the series' folder.
const RECORD: &str = "series.jsonl";

/// Poll interval of the processes.
const POLL: Duration = Duration::from_millis(50);

/// Time for a process to end by itself after its time limit.
const GRACE: Duration = Duration::from_secs(10);

/// Command of a series.
#[derive(Clone, Debug)]
pub struct Task {
    /// Unique name in the series.
    pub name: String,
    /// Text of everything that the result depends on: a task with another text is done again.
    pub input: String,
    /// Command that starts this program, such as srun with its options; empty if none does.
    pub launcher: Vec<OsString>,
    /// Arguments of this program.
    pub words: Vec<OsString>,
    /// Time after which the command is ended and has failed.
    pub limit: Option<Duration>,
    /// File that receives the command's output, appended.
    pub output: PathBuf,
    /// File that the command leaves when it has ended well: without it the task is done again.
    pub leaves: PathBuf,
}

/// Line of the record.
#[derive(Serialize, Deserialize)]
struct Done {
    task: String,
    /// Digest of the task's input.
    input: u64,
    seconds: f64,
    /// Reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

/// Progress of a series.
pub enum Progress<'a> {
    Started,
    /// Ended well, after this many seconds.
    Done(f64),
    /// Ended early: its exit code or signal, and the last line of its output.
    Failed(&'a str),
    /// Ended early by the signal that ends the series.
    Stopped,
}

/// Result of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Names of the tasks that ended early.
    pub failed: Vec<String>,
    /// Whether a signal ended the series early.
    pub stopped: bool,
}

/// Running process of a task.
struct Running<'t> {
    task: &'t Task,
    slot: usize,
    child: Child,
    since: Moment,
    /// Whether its time limit has ended it.
    is_late: bool,
}

impl Running<'_> {
    /// Ends a process that has reached its time limit: by SIGTERM, and `GRACE` later by SIGKILL.
    fn enforce_limit(&mut self) {
        let Some(limit) = self.task.limit else { return };
        let elapsed = self.since.elapsed();
        if elapsed > limit + GRACE {
            let _ = self.child.kill(); // it has ended if this fails
        } else if elapsed > limit && !self.is_late {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        self.is_late |= elapsed > limit;
    }

    /// Reason of a failure: how it ended, and the last line of its output.
    fn describe_failure(&self, status: ExitStatus) -> String {
        let last = last_line(&self.task.output);
        match self.task.limit.filter(|_| self.is_late) {
            Some(limit) => format!("time limit of {}: {last}", Seconds(limit.as_secs_f64())),
            None => format!("{status}: {last}"),
        }
    }
}

/// Series of tasks with its folder.
pub struct Series<'t> {
    folder: PathBuf,
    tasks: &'t [Task],
    done: Vec<Done>,
    /// Whether failures are recorded, and whether recorded ones are not tried again.
    keeps_failures: bool,
    skips_failures: bool,
}

impl<'t> Series<'t> {
    /// Reads the record in `folder`.
    pub fn open(folder: &Path, tasks: &'t [Task]) -> Result<Series<'t>> {
        let done = read_record(&folder.join(RECORD))?;
        let folder = folder.to_path_buf();
        Ok(Series { folder, tasks, done, keeps_failures: false, skips_failures: false })
    }

    /// The same series, which records failures, and does not try them again unless it `retries`.
    pub fn keeping_failures(self, retries: bool) -> Series<'t> {
        Series { keeps_failures: true, skips_failures: !retries, ..self }
    }

    pub fn is_done(&self, task: &Task) -> bool {
        self.newest(task).is_some_and(|done| match &done.failed {
            None => task.leaves.exists(),
            Some(_) => self.skips_failures,
        })
    }

    /// Recorded reason why a task failed; None if it did not.
    pub fn failure(&self, task: &Task) -> Option<&str> {
        self.newest(task)?.failed.as_deref()
    }

    fn newest(&self, task: &Task) -> Option<&Done> {
        let input = digest(&task.input);
        let mut done = self.done.iter();
        done.rfind(|done| done.task == task.name && done.input == input)
    }

    /// Runs the tasks that are not done, `environment.len()` at a time. Each slot has the variables of
    /// its entry. A task that fails does not end the series; a signal does, after the tasks have ended.
    /// `is_whole` is called for a task that has ended with code 0; false counts as a failure.
    pub fn run(
        &mut self,
        environment: &[Vec<(String, String)>],
        is_whole: &dyn Fn(&Task) -> bool,
        report: &mut dyn FnMut(&Task, Progress),
    ) -> Result<Outcome> {
        let signals = ForwardedSignals::listen()?;
        let mut open: VecDeque<&Task> = self
            .tasks
            .iter()
            .filter(|task| !self.is_done(task))
            .collect();
        let mut running = Vec::<Running>::new();
        let mut outcome = Outcome::default();
        loop {
            outcome.stopped |= signals.stop_requested();
            let free = (0..environment.len()).find(|slot| running.iter().all(|r| r.slot != *slot));
            if let Some(slot) = free.filter(|_| !outcome.stopped)
                && let Some(task) = open.pop_front()
            {
                running.push(start(task, slot, &environment[slot])?);
                report(task, Progress::Started);
                continue;
            }
            if running.is_empty() {
                return Ok(outcome);
            }
            signals.forward(running.iter().map(|running| &running.child));
            running.iter_mut().for_each(Running::enforce_limit);
            let mut ended = None;
            for (i, running) in running.iter_mut().enumerate() {
                if let Some(status) = running.child.try_wait()? {
                    ended = Some((i, status));
                    break;
                }
            }
            let Some((i, status)) = ended else {
                std::thread::sleep(POLL);
                continue;
            };
            let ended = running.remove(i);
            let task = ended.task;
            let seconds = ended.since.elapsed().as_secs_f64();
            if status.success() && is_whole(task) {
                self.record_end(task, seconds, None)?;
                report(task, Progress::Done(seconds));
            } else if outcome.stopped || signals.stop_requested() {
                report(task, Progress::Stopped);
            } else {
                let why = ended.describe_failure(status);
                if self.keeps_failures {
                    self.record_end(task, seconds, Some(why.clone()))?;
                }
                report(task, Progress::Failed(&why));
                outcome.failed.push(task.name.clone());
            }
        }
    }

    /// Records that a task has ended well, or why it failed.
    fn record_end(&mut self, task: &Task, seconds: f64, failed: Option<String>) -> Result<()> {
        let path = self.folder.join(RECORD);
        let done = Done { task: task.name.clone(), input: digest(&task.input), seconds, failed };
        let mut line = serde_json::to_vec(&done)?;
        line.push(b'\n');
        let append = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_data()
        };
        append().with_context(|| format!("cannot write {}", path.display()))?;
        self.done.push(done);
        Ok(())
    }
}

/// Digest of a text.
pub fn digest(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// Ends this process with SIGTERM when the process of its series dies, so that a run saves.
pub fn end_with_series() {
    if is_task_of_series() {
        follow_parent(Signal::TERM);
    }
}

/// Lines of the record. One that was cut off by a crash is left out.
fn read_record(path: &Path) -> Result<Vec<Done>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let mut done = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        done.extend(serde_json::from_str::<Done>(&line).ok());
    }
    Ok(done)
}

fn start<'t>(task: &'t Task, slot: usize, environment: &[(String, String)]) -> Result<Running<'t>> {
    let failed = || format!("cannot write {}", task.output.display());
    if let Some(folder) = task.output.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    let output = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&task.output)
        .with_context(failed)?;
    let program = std::env::current_exe().context("finding this program")?;
    let mut words = task.launcher.clone();
    words.push(program.into_os_string());
    words.extend(task.words.iter().cloned());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(SERIES, &task.name);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone().with_context(failed)?)
        .stderr(output);
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {}", task.name))?;
    Ok(Running { task, slot, child, since: Moment::now(), is_late: false })
}

/// Last line of a command's output that is neither empty nor the remedy of the line before.
fn last_line(path: &Path) -> String {
    let bytes = read_end(path, 4096).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    // Remedies are indented.
    let mut lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with(char::is_whitespace));
    lines.next_back().unwrap_or("no output").trim().to_string()
}

/// Last `most` bytes of a file.
fn read_end(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
