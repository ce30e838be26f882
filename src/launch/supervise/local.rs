//! One process per GPU where no launcher started the ranks. This process starts itself once for each
//! rank, with the launcher's variables, forwards signals, and ends with the ranks' exit code.
//!
//! NVIDIA recommends one GPU per process for captured collectives. Launches of several ranks do not
//! contend for the driver's locks, and the other ranks survive a crash and report it.

use super::super::{alerts, events, exit, ranks};
use super::{GRACE, POLL, Signals, end_with_parent, kill};
use anyhow::{Context, Result};
use base::{Deadline, Problems};
use comm::{Failed, LauncherEnv, Place};
use manifest::Loaded;
use parking_lot::Mutex;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Variable that sets whether ranks without a launcher are threads of one process or processes.
pub const RANKS: &str = "GPTRAIN_RANKS";

/// Exit codes of errors that this rank or another one has printed.
const REPORTED: std::ops::RangeInclusive<u8> = 1..=5;

/// Runs the ranks as processes of the arguments `words`, to their end. Returns false if this process
/// runs the ranks itself: under a launcher, on CPUs, or without a GPU for each rank. `check` finds
/// mistakes that every rank would report. A failure that no rank reported is recorded in the run's
/// folder.
pub fn start_processes(
    loaded: &Loaded,
    words: &[OsString],
    check: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    let m = &loaded.manifest;
    let started = start_unrecorded_processes(loaded, words, check);
    if let Err(error) = &started
        && let Some(failed) = error.downcast_ref::<Failed>()
    {
        let event = events::add(&m.log.folder, events::Kind::Failure, &failed.line);
        alerts::call(m, &event);
    }
    started
}

/// As `start_processes`, for a command that leaves nothing in the run's folder.
pub fn start_unrecorded_processes(
    loaded: &Loaded,
    words: &[OsString],
    check: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    let m = &loaded.manifest;
    if ranks::launcher(m)?.is_some_and(|launch| launch.world > 1) {
        if Place::is_given() {
            end_with_parent();
        }
        return Ok(false);
    }
    if !are_processes()? || !ranks::gpu_for_each_rank(m) {
        return Ok(false);
    }
    check()?;
    let signals = Signals::listen()?;
    let mut ranks = LocalProcesses::start(m.topology.ranks(), words)?;
    ranks.wait(&signals)?;
    match ranks.outcome(signals.stop()) {
        Ok(0) => Ok(true),
        Ok(code) => Err(exit::AlreadyPrinted { code }.into()),
        Err(failed) => Err(failed.into()),
    }
}

fn are_processes() -> Result<bool, Problems> {
    match std::env::var(RANKS).ok().as_deref() {
        None | Some("" | "processes") => Ok(true),
        Some("threads") => Ok(false),
        Some(other) => Err(Problems::one(
            RANKS,
            format!("{other:?} is not a way to start ranks"),
            "set it to processes or threads, or unset it",
        )),
    }
}

/// A rank's process.
struct LocalProcess {
    child: Child,
    /// Forwards its standard error; None for rank 0, which has the terminal.
    reader: Option<JoinHandle<()>>,
    last_line: Arc<Mutex<String>>,
    ended: Option<ExitStatus>,
    /// Whether it was killed because another rank had failed.
    killed: bool,
}

struct LocalProcesses {
    ranks: Vec<LocalProcess>,
    /// Number of the first rank that failed, and the end of the time in which the others report it.
    first: Option<(usize, Deadline)>,
}

impl LocalProcesses {
    fn start(world: usize, words: &[OsString]) -> Result<LocalProcesses> {
        let address = LauncherEnv::free_address().context("looking for a free port")?;
        let epoch = Place::epoch().unwrap_or(0);
        let mut all = LocalProcesses { ranks: Vec::with_capacity(world), first: None };
        for rank in 0..world {
            let place = Place { epoch, rank, world, address: address.clone() };
            all.ranks.push(LocalProcess::start(&place, words)?);
        }
        Ok(all)
    }

    /// Waits for the end of all. Once one has failed, the others have some seconds to report it.
    fn wait(&mut self, signals: &Signals) -> Result<()> {
        loop {
            for (rank, process) in self.ranks.iter_mut().enumerate() {
                if process.has_failed()? && self.first.is_none() {
                    self.first = Some((rank, Deadline::after(GRACE)));
                }
            }
            let running = self.ranks.iter().filter(|process| process.ended.is_none());
            if running.clone().next().is_none() {
                return Ok(());
            }
            signals.forward(running.map(|process| &process.child));
            if self.first.is_some_and(|(_, grace)| grace.has_passed()) {
                self.kill_all()?;
            }
            std::thread::sleep(POLL);
        }
    }

    fn kill_all(&mut self) -> Result<()> {
        for process in &mut self.ranks {
            if process.ended.is_none() {
                process.ended = Some(kill(&mut process.child)?);
                process.killed = true;
            }
        }
        Ok(())
    }

    /// Exit code for all ranks, or the failure that none of them reported.
    fn outcome(mut self, stopped: bool) -> Result<u8, Failed> {
        for process in &mut self.ranks {
            process.read_to_end();
        }
        let Some((rank, _)) = self.first else { return Ok(0) };
        let codes: Vec<u8> = self
            .ranks
            .iter()
            .filter(|process| !process.killed)
            .filter_map(LocalProcess::code)
            .collect();
        let failed = &self.ranks[rank];
        if codes.contains(&Failed::EXIT_CODE) {
            return Ok(Failed::EXIT_CODE);
        }
        let reported = |code: &u8| REPORTED.contains(code);
        if let Some(code) = codes.into_iter().find(reported) {
            return Ok(failed.code().filter(reported).unwrap_or(code));
        }
        match failed.ended.and_then(|status| status.signal()) {
            Some(signal) if stopped => Ok(128 + signal as u8),
            _ => Err(Failed::new(failed.describe(rank))),
        }
    }
}

impl Drop for LocalProcesses {
    fn drop(&mut self) {
        for process in &mut self.ranks {
            if process.ended.is_none() {
                let _ = process.child.kill();
                let _ = process.child.wait();
            }
        }
    }
}

impl LocalProcess {
    fn start(place: &Place, words: &[OsString]) -> Result<LocalProcess> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command
            .args(words)
            .envs(LauncherEnv::local_variables(place));
        if place.rank > 0 {
            command.stderr(Stdio::piped());
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start rank {}", place.rank))?;
        let last_line = Arc::<Mutex<String>>::default();
        let mut reader = None;
        if let Some(stderr) = child.stderr.take() {
            let last = last_line.clone();
            reader = Some(base::threads::spawn("stderr", move || {
                forward_lines(BufReader::new(stderr), &last)
            })?);
        }
        Ok(LocalProcess { child, reader, last_line, ended: None, killed: false })
    }

    /// Whether it has ended with an error.
    fn has_failed(&mut self) -> Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended.is_some_and(|status| !status.success()))
    }

    fn read_to_end(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join(); // a panic there has been printed
        }
    }

    fn code(&self) -> Option<u8> {
        self.ended
            .and_then(|status| status.code())
            .map(|code| code as u8)
    }

    /// Failure of this rank, with the last line that it printed.
    fn describe(&self, rank: usize) -> String {
        let end = match self.ended.and_then(|status| status.signal()) {
            Some(signal) => format!("was ended by signal {signal}"),
            None => format!("ended with code {}", self.code().unwrap_or_default()),
        };
        let last = match (rank, self.last_line.lock().as_str()) {
            (0, _) | (_, "") => String::new(),
            (_, line) => format!("; its last line: {line}"),
        };
        format!("rank {rank} (process {}) {end}, and no rank reported it{last}", self.child.id())
    }
}

/// Prints the lines of a rank on standard error as they arrive, and keeps the last.
fn forward_lines(mut lines: impl BufRead, last: &Mutex<String>) {
    let mut line = Vec::new();
    while lines
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        let text = String::from_utf8_lossy(&line).trim_end().to_string();
        base::warn!("{text}");
        if !text.is_empty() {
            *last.lock() = text;
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of a shell that ended so, in this order; `None`: killed because of the first.
    fn ended(scripts: &[Option<&str>]) -> LocalProcesses {
        let mut all = LocalProcesses { ranks: Vec::new(), first: None };
        for script in scripts {
            let mut child = Command::new("sh");
            child.args(["-c", script.unwrap_or("kill -KILL $$")]);
            let child = child.spawn().unwrap();
            let last_line = Arc::new(Mutex::new("Xid 79".to_string()));
            let killed = script.is_none();
            let mut one = LocalProcess { child, reader: None, last_line, ended: None, killed };
            one.ended = Some(one.child.wait().unwrap());
            if all.first.is_none() && one.has_failed().unwrap() {
                all.first = Some((all.ranks.len(), Deadline::after(GRACE)));
            }
            all.ranks.push(one);
        }
        all
    }

    fn outcome(scripts: &[Option<&str>], stopped: bool) -> Result<u8, String> {
        ended(scripts)
            .outcome(stopped)
            .map_err(|failed| failed.line)
    }

    #[test]
    fn the_code_is_that_of_a_rank_that_reported() {
        let [well, killed] = ["exit 0", "kill -KILL $$"].map(Some);
        assert_eq!(outcome(&[well, well], false), Ok(0));
        assert_eq!(outcome(&[well, killed, Some("exit 3")], false), Ok(3));
        assert_eq!(outcome(&[Some("exit 2"), Some("exit 2")], false), Ok(2));
        assert_eq!(outcome(&[Some("exit 1"), None], false), Ok(1));
        assert_eq!(outcome(&[killed, Some("exit 1")], false), Ok(1));
        assert_eq!(outcome(&[Some("kill -TERM $$"), None], true), Ok(143));
    }

    #[test]
    fn a_death_that_no_rank_reported_is_named_with_the_last_line() {
        let line = outcome(&[Some("exit 0"), Some("kill -KILL $$"), None], false).unwrap_err();
        assert!(line.starts_with("rank 1 (process "), "{line}");
        assert!(
            line.ends_with("signal 9, and no rank reported it; its last line: Xid 79"),
            "{line}"
        );
        let line = outcome(&[Some("exit 134"), None], false).unwrap_err();
        assert!(line.starts_with("rank 0 ") && line.ends_with("code 134, and no rank reported it"));
    }

    #[test]
    fn the_last_line_of_a_rank_is_kept() {
        let last = Mutex::default();
        forward_lines(&b"first\nlast one\n\n"[..], &last);
        assert_eq!(last.into_inner(), "last one");
    }
}
