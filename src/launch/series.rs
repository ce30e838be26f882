//! A series of commands of this program, each a process, several at a time. A record in the series'
//! folder has one line for each command that ended well; the next start skips these, also after
//! SIGKILL.
//!
//! Independent of what the commands do. A command that was cut off is started again: `gptrain run`
//! continues from its own checkpoint.

use super::run_folder::{SERIES, is_task_of_series};
use super::supervise::{Signals, follow_parent};
use anyhow::{Context, Result};
use base::Moment;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Record of the commands that ended well, in the series' folder.
const RECORD: &str = "series.jsonl";

/// Poll interval of the processes.
const POLL: Duration = Duration::from_millis(50);

/// Command of a series.
#[derive(Clone, Debug)]
pub struct Task {
    /// Unique name in the series.
    pub name: String,
    /// Text of everything that the result depends on: a task with another text is done again.
    pub input: String,
    /// Arguments of this program.
    pub words: Vec<OsString>,
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
}

/// Progress of a series.
pub enum Progress<'a> {
    Started,
    /// Ended well, after this many seconds.
    Done(f64),
    /// Ended early: its exit code or signal, and the last line of its output.
    Failed(&'a str),
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
}

/// Series of tasks with its folder.
pub struct Series<'t> {
    folder: PathBuf,
    tasks: &'t [Task],
    done: Vec<Done>,
}

impl<'t> Series<'t> {
    /// Reads the record in `folder`.
    pub fn open(folder: &Path, tasks: &'t [Task]) -> Result<Series<'t>> {
        let done = read_record(&folder.join(RECORD))?;
        Ok(Series { folder: folder.to_path_buf(), tasks, done })
    }

    pub fn is_done(&self, task: &Task) -> bool {
        task.leaves.exists()
            && self
                .done
                .iter()
                .any(|done| done.task == task.name && done.input == digest(&task.input))
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
        let signals = Signals::listen()?;
        let mut open: VecDeque<&Task> = self
            .tasks
            .iter()
            .filter(|task| !self.is_done(task))
            .collect();
        let mut running = Vec::<Running>::new();
        let mut outcome = Outcome::default();
        loop {
            outcome.stopped |= signals.stop();
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
            let Running { task, since, .. } = running.remove(i);
            if status.success() && is_whole(task) {
                let seconds = since.elapsed().as_secs_f64();
                self.record_done(task, seconds)?;
                report(task, Progress::Done(seconds));
            } else {
                let last = last_line(&task.output);
                report(task, Progress::Failed(&format!("{status}: {last}")));
                outcome.failed.push(task.name.clone());
            }
        }
    }

    /// Records that a task has ended well.
    fn record_done(&mut self, task: &Task, seconds: f64) -> Result<()> {
        let path = self.folder.join(RECORD);
        let done = Done { task: task.name.clone(), input: digest(&task.input), seconds };
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
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(&task.words).env(SERIES, &task.name);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone().with_context(failed)?)
        .stderr(output);
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {}", task.name))?;
    Ok(Running { task, slot, child, since: Moment::now() })
}

/// Last line of a command's output that is not empty.
fn last_line(path: &Path) -> String {
    let bytes = read_end(path, 4096).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next_back().unwrap_or("no output").to_string()
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
