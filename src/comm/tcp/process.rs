//! State shared by the threads of one rank's process: whether the process group has failed, and
//! whether this rank has left it.

use super::super::inbox::Inbox;
use super::super::watchdog::{Watchdog, end_process};
use super::super::{Failed, RankBusy, RankReport, Recorder};
use super::Join;
use base::{Deadline, Moment, threads};
use parking_lot::{Condvar, Mutex};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// One rank over TCP, as its threads share it.
pub struct ProcessState {
    pub rank: usize,
    pub size: usize,
    pub node: String,
    pub inbox: Arc<Inbox>,
    pub recorder: Arc<Recorder>,
    pub watchdog: Watchdog,
    #[cfg(any(test, feature = "testing"))]
    pub throttle: Option<super::testing::Throttle>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    failed: Option<Failed>,
    left: bool,
    /// Connections that are shut down when the process group fails, to wake blocked threads.
    sockets: Vec<TcpStream>,
}

/// Connection of a rank to the coordinator; on rank 0, the coordinator itself.
pub trait ControlChannel: Send + Sync {
    /// Reports that this rank failed. Returns the failure that all ranks agree on.
    fn report_failure(&self, failed: Failed) -> Failed;
    /// Addresses at which these ranks listen for data.
    fn find_addresses(&self, ranks: &[usize]) -> Result<Vec<SocketAddr>, Failed>;
    /// Announces that this rank has ended successfully. Returns when all ranks have.
    fn leave(&self);
    /// Busy times by rank, from the last heartbeats; empty except on rank 0.
    fn busy(&self) -> Vec<RankBusy>;
}

/// Starts a thread that runs as long as its connection. Fails, with the name of the rank, if the
/// thread cannot be started.
pub fn start_thread(
    rank: usize,
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), Failed> {
    let started = threads::spawn(name, work);
    started
        .map(drop)
        .map_err(|error| Failed::new(format!("rank {rank}: {error:#}")))
}

impl ProcessState {
    pub fn new(join: &Join, recorder: Arc<Recorder>) -> ProcessState {
        recorder.set_node(&join.node);
        ProcessState {
            rank: join.rank,
            size: join.world,
            node: join.node.clone(),
            inbox: Arc::default(),
            recorder,
            watchdog: join.watchdog.clone(),
            #[cfg(any(test, feature = "testing"))]
            throttle: join.send_limit.map(super::testing::Throttle::new),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub fn report(&self, events: usize) -> RankReport {
        self.recorder.report(self.rank, &self.node, events)
    }

    pub fn failed(&self) -> Option<Failed> {
        self.state.lock().failed.clone()
    }

    pub fn has_left(&self) -> bool {
        self.state.lock().left
    }

    /// Registers `socket` for shutdown when the process group fails.
    pub fn close_on_failure(&self, socket: &TcpStream) {
        let mut state = self.state.lock();
        match (&state.failed, socket.try_clone()) {
            (None, Ok(clone)) => state.sockets.push(clone),
            _ => drop(socket.shutdown(Shutdown::Both)),
        }
    }

    /// Fails the process group with the agreed failure. The first call writes the dump, wakes
    /// blocked threads, and ends the process if the rank does not unwind.
    pub fn fail(self: &Arc<ProcessState>, failed: Failed) -> Failed {
        let mut state = self.state.lock();
        if let Some(failed) = &state.failed {
            return failed.clone();
        }
        state.failed = Some(failed.clone());
        let sockets = std::mem::take(&mut state.sockets);
        drop(state);
        self.watchdog.dump(&[self.report(usize::MAX)]);
        self.inbox.fail(&failed);
        for socket in sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        let process = self.clone();
        let last = failed.clone();
        // If this thread cannot start, a rank in an endless computation ends at its next exchange.
        let _ = threads::spawn("end", move || {
            if !process.wait_at_most(process.watchdog.grace, |state| state.left) {
                end_process(&last);
            }
        });
        failed
    }

    /// Waits for the agreed failure.
    pub fn wait_for_failure(&self, timeout: Duration) -> Option<Failed> {
        self.wait_at_most(timeout, |state| state.failed.is_some());
        self.failed()
    }

    /// Sleeps. Returns false if this rank left or the process group failed meanwhile.
    pub fn sleep(&self, time: Duration) -> bool {
        let begun = Moment::now();
        let left = || time.saturating_sub(begun.elapsed());
        !self.wait_while(left, |state| state.left || state.failed.is_some())
    }

    pub fn leave(&self) {
        self.state.lock().left = true;
        self.changed.notify_all();
    }

    fn wait_at_most(&self, timeout: Duration, until: impl Fn(&State) -> bool) -> bool {
        let end = Deadline::after(timeout);
        self.wait_while(|| end.left(), until)
    }

    /// Waits until `until` holds. Returns false if no time was left before that.
    fn wait_while(&self, left: impl Fn() -> Duration, until: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state.lock();
        while !until(&state) {
            let left = left();
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut state, left);
        }
        true
    }
}

/// Reason why a connection ended.
pub fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "connection closed".into(),
        std::io::ErrorKind::ConnectionReset => "connection reset".into(),
        _ => error.to_string(),
    }
}
