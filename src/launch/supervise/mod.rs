//! Restarts within the job. A supervisor in each task starts the rank as a separate process. When a
//! rank dies or hangs, all ranks restart from the newest checkpoint in a new epoch.
//!
//! A failed rank, and any NCCL in it, is never repaired: its process ends or is killed, and another
//! is started. (Aborting communicators of a live process hangs: NVIDIA/nccl #1013, #992, #863.)
//! Tasks beyond those that the grid needs are spares: their supervisors wait.
//!
//! | rank's process | supervisor |
//! |---|---|
//! | ends with 0, 2 or 4: done, or a user error | ends with that code |
//! | ends with 1, 3 or by a signal | joins the rendezvous of the next epoch (`rendezvous`, `plan`) |
//! | continues while others join: it hangs | kills it after some seconds, and joins too |

mod local;
mod plan;
mod rendezvous;

pub use local::{RANKS, start_processes, start_unrecorded_processes};

use super::alerts;
use super::events::{self, Kind};
use super::exit::{self, AlreadyPrinted};
use super::ranks;
use super::storage::Storage;
use anyhow::{Context, Result};
use base::{Deadline, Moment};
use comm::{Failed, LauncherEnv, Place};
use manifest::{Loaded, Manifest};
use plan::{Arrival, EpochPlan};
use rendezvous::Rendezvous;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time for a rank to end by itself once others have joined the rendezvous; it may still be writing.
const GRACE: Duration = Duration::from_secs(10);

/// Time for a killed process to disappear. One that is stuck in the kernel, as with a broken
/// driver, does not, and its task cannot continue.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Poll interval of the rank's process.
const POLL: Duration = Duration::from_millis(50);

/// Supervises this task's rank to the end of the job. Returns false if this process is to be the
/// rank itself. `newest` returns the step of the run's newest checkpoint, 0 without one.
pub fn supervise(loaded: &Loaded, newest: &dyn Fn() -> u64) -> Result<bool> {
    let m = &loaded.manifest;
    if Place::is_given() {
        end_with_parent();
        return Ok(false);
    }
    if m.restart.max == 0 {
        return Ok(false);
    }
    let launcher = ranks::launcher(m)?;
    let tasks = launcher.as_ref().map_or(1, |launcher| launcher.world);
    // The ranks of one machine, or too few ranks, which the process itself reports.
    if tasks > 1 && tasks < m.topology.ranks() {
        return Ok(false);
    }
    let (task, job) = match &launcher {
        Some(launcher) => (launcher.rank, launcher.job.clone()),
        None => (0, format!("process {}", std::process::id())),
    };
    let rendezvous = Rendezvous::open(&m.log.folder, &job, task, tasks)?;
    let first = EpochPlan::first(m, newest());
    let plan = if tasks == 1 { EpochPlan { members: vec![0], ..first } } else { first };
    let signals = Signals::listen()?;
    let storage = Storage::for_run(m);
    let epoch = 0;
    let mut supervisor =
        Supervisor { m, newest, launcher, rendezvous, storage, signals, plan, epoch };
    let ended = supervisor.run();
    supervisor.rendezvous.end_task();
    match ended? {
        0 => Ok(true),
        code => Err(AlreadyPrinted { code }.into()),
    }
}

/// Lets the rank die with its parent process; if this is refused, it ends when it misses the other
/// ranks.
fn end_with_parent() {
    follow_parent(Signal::KILL);
}

/// Sends this process a signal when its parent process ends.
pub(super) fn follow_parent(signal: Signal) {
    let _ = set_parent_process_death_signal(Some(signal));
}

struct Supervisor<'a> {
    m: &'a Manifest,
    /// Step of the newest checkpoint.
    newest: &'a dyn Fn() -> u64,
    launcher: Option<LauncherEnv>,
    rendezvous: Rendezvous,
    storage: Arc<Storage>,
    signals: Signals,
    plan: EpochPlan,
    epoch: u64,
}

/// Reason why an epoch is over for this task.
enum EpochEnd {
    /// The job is over, with this exit code.
    Job(u8),
    /// Other tasks have joined the next rendezvous, or the rank failed with this code.
    Rendezvous(Option<u8>),
}

impl Supervisor<'_> {
    /// Runs epochs until the job is over. Returns the exit code.
    fn run(&mut self) -> Result<u8> {
        loop {
            let end = match self
                .plan
                .members
                .iter()
                .position(|task| *task == self.rendezvous.task)
            {
                Some(rank) => self.run_rank(rank)?,
                None => self.wait_as_spare(),
            };
            let code = match end {
                EpochEnd::Job(code) => return Ok(code),
                EpochEnd::Rendezvous(code) => code,
            };
            self.epoch += 1;
            if !self.join(code)? {
                let ended = self.rendezvous.job_exit_code().filter(|ended| *ended > 0);
                return Ok(ended.or(code).unwrap_or(0));
            }
            if let Some(end) = self.plan.end {
                if self.plan.by == self.rendezvous.task && !self.plan.why.is_empty() {
                    return Err(Failed::new(self.plan.why.clone()).into());
                }
                return Ok(end);
            }
        }
    }

    fn wait_as_spare(&self) -> EpochEnd {
        loop {
            self.rendezvous.heartbeat();
            if let Some(code) = self.rendezvous.job_exit_code() {
                return EpochEnd::Job(code);
            }
            if self.signals.stop() {
                return EpochEnd::Job(0);
            }
            if self.rendezvous.has_begun(self.epoch + 1) {
                return EpochEnd::Rendezvous(None);
            }
            std::thread::sleep(
                self.rendezvous
                    .poll_interval()
                    .min(Duration::from_millis(500)),
            );
        }
    }

    /// Starts the rank, and waits for its end.
    fn run_rank(&self, rank: usize) -> Result<EpochEnd> {
        let mut child = self
            .command(rank)?
            .spawn()
            .context("cannot start the rank's process")?;
        let mut polled = Moment::now();
        let mut grace = None::<Deadline>;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            self.signals.forward([&child]);
            if grace.is_none() && polled.elapsed() >= self.rendezvous.poll_interval() {
                polled = Moment::now();
                let others_joined = self.rendezvous.has_begun(self.epoch + 1);
                grace = others_joined.then(|| Deadline::after(GRACE));
            }
            if grace.is_some_and(|grace| grace.has_passed()) {
                break kill(&mut child)?;
            }
            std::thread::sleep(POLL);
        };
        let code = status
            .code()
            .or_else(|| Some(128 + status.signal()?))
            .unwrap_or(1) as u8;
        let over =
            matches!(code, 0 | exit::WRONG_INPUT | exit::DOES_NOT_FIT) || self.signals.stop();
        if over && (rank == 0 || code > 0) {
            self.rendezvous.end_job(code);
        }
        Ok(if over { EpochEnd::Job(code) } else { EpochEnd::Rendezvous(Some(code)) })
    }

    /// Command that starts this program as a rank of this epoch.
    fn command(&self, rank: usize) -> Result<Command> {
        let address = match (&self.launcher, self.plan.address.rsplit_once(':')) {
            (Some(launcher), Some((host, _))) => {
                let port = launcher
                    .address
                    .rsplit_once(':')
                    .map_or("", |(_, port)| port);
                format!("{host}:{port}")
            }
            (Some(launcher), None) => launcher.address.clone(),
            (None, _) => String::new(),
        };
        // A single task has all ranks of the grid, and starts them.
        let world = self.plan.members.len();
        let place = Place { epoch: self.epoch, rank, world, address };
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(std::env::args_os().skip(1));
        if self.plan.data != self.m.topology.data {
            command.args(["--set", &format!("topology.data={}", self.plan.data)]);
        }
        command.env(Place::VARIABLE, serde_json::to_string(&place)?);
        Ok(command)
    }

    /// Joins the rendezvous and adopts its plan. Returns false if the job ended meanwhile.
    fn join(&mut self, code: Option<u8>) -> Result<bool> {
        let m = self.m;
        let host = base::hostname();
        let mine = Arrival { task: self.rendezvous.task, host, code };
        let wait = Duration::from_secs_f64(m.restart.wait_s);
        let members = &self.plan.members;
        // Waits for a full disk, as ranks do; a signal cancels the wait.
        let agreed = self.storage.retry(|| {
            if self.signals.stop() {
                return Ok(None);
            }
            self.rendezvous
                .join(self.epoch, &mine, members, wait, |arrivals: &[Arrival]| {
                    let next = match self.rendezvous.tasks {
                        1 => self.plan.next_alone(m, arrivals, (self.newest)()),
                        _ => self.plan.next(m, arrivals, (self.newest)()),
                    };
                    EpochPlan { by: self.rendezvous.task, ..next }
                })
        })?;
        let Some(plan) = agreed else { return Ok(false) };
        self.plan = plan;
        if self.plan.by == self.rendezvous.task && self.plan.end.is_none() {
            let tried = self.plan.tried;
            let max = m.restart.max;
            let line = format!("restart {} ({tried} of {max}): {}", self.epoch, self.plan.why);
            tracing::warn!("{line}");
            alerts::call(m, &events::add(&m.log.folder, Kind::Restart, &line));
        }
        Ok(true)
    }
}

fn kill(child: &mut Child) -> Result<std::process::ExitStatus> {
    child.kill()?;
    let end = Deadline::after(KILL_TIMEOUT);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if end.has_passed() {
            let line = format!("process {} of a rank that hangs cannot be killed", child.id());
            return Err(Failed::new(line).into());
        }
        std::thread::sleep(POLL);
    }
}

/// Signals of the launcher and the user, which are forwarded to the rank. Ctrl-C reaches both
/// processes; the rank waits for its supervisor's reaction.
pub(super) struct Signals {
    stop: Arc<AtomicBool>,
    arrived: [(Arc<AtomicBool>, Signal); 3],
}

impl Signals {
    pub(super) fn listen() -> Result<Signals> {
        let stop = Arc::<AtomicBool>::default();
        let terminate = Arc::<AtomicBool>::default();
        // A second Ctrl-C exits at once, and the rank with it. Below a supervisor, it forwards both.
        if Place::is_given() {
            flag::register(SIGINT, Arc::default())?;
        } else {
            flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, stop.clone())?;
            flag::register(SIGINT, stop.clone())?;
            flag::register(SIGINT, terminate.clone())?;
        }
        flag::register(SIGTERM, stop.clone())?;
        flag::register(SIGTERM, terminate.clone())?;
        let [hang_up, save] = [Arc::<AtomicBool>::default(), Arc::default()];
        if super::signals::stop_signals().contains(&SIGHUP) {
            flag::register(SIGHUP, stop.clone())?;
            flag::register(SIGHUP, hang_up.clone())?;
        }
        flag::register(SIGUSR1, save.clone())?;
        let arrived = [(terminate, Signal::TERM), (hang_up, Signal::HUP), (save, Signal::USR1)];
        Ok(Signals { stop, arrived })
    }

    pub(super) fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn forward<'a>(&self, children: impl IntoIterator<Item = &'a Child>) {
        let arrived = |(arrived, signal): &(Arc<AtomicBool>, Signal)| {
            arrived.swap(false, Ordering::Relaxed).then_some(*signal)
        };
        let signals: Vec<Signal> = self.arrived.iter().filter_map(arrived).collect();
        for child in children {
            for signal in &signals {
                // The next poll detects a rank that has ended meanwhile.
                let _ = kill_process(Pid::from_child(child), *signal);
            }
        }
    }
}
