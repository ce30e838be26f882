//! What the threads of one rank's process share: whether the world has failed, and if this rank has
//! left it.

use super::super::inbox::Inbox;
use super::super::watch::{Watch, end_process};
use super::super::{Failed, RankReport, Recorder};
use super::Join;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub struct Here {
    pub rank: usize,
    pub size: usize,
    pub node: String,
    pub inbox: Arc<Inbox>,
    pub recorder: Arc<Recorder>,
    pub watch: Watch,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    agreed: Option<Failed>,
    left: bool,
    /// Connections that nobody may be blocked in once the world has failed.
    sockets: Vec<TcpStream>,
}

/// The connection between a rank and whoever finds the verdict.
pub trait Control: Send + Sync {
    /// This rank cannot go on; what all are told.
    fn failure(&self, failed: Failed) -> Failed;
    /// This rank has ended well: returns when all have.
    fn leave(&self);
}

impl Here {
    pub fn new(join: &Join, recorder: Arc<Recorder>) -> Here {
        recorder.node(&join.node);
        Here {
            rank: join.rank,
            size: join.world,
            node: join.node.clone(),
            inbox: Arc::default(),
            recorder,
            watch: join.watch.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub fn report(&self, events: usize) -> RankReport {
        self.recorder.report(self.rank, &self.node, events)
    }

    pub fn agreed(&self) -> Option<Failed> {
        self.lock().agreed.clone()
    }

    pub fn left(&self) -> bool {
        self.lock().left
    }

    /// `socket` is closed when the world fails.
    pub fn guard(&self, socket: &TcpStream) {
        let mut state = self.lock();
        match (&state.agreed, socket.try_clone()) {
            (None, Ok(clone)) => state.sockets.push(clone),
            _ => drop(socket.shutdown(Shutdown::Both)),
        }
    }

    /// Why the world fails. The first time: dumps, wakes who waits, and sees that the process ends.
    pub fn agree(self: &Arc<Here>, failed: Failed) -> Failed {
        let mut state = self.lock();
        if let Some(agreed) = &state.agreed {
            return agreed.clone();
        }
        state.agreed = Some(failed.clone());
        let sockets = std::mem::take(&mut state.sockets);
        drop(state);
        self.watch.dump(&[self.report(usize::MAX)]);
        self.inbox.fail(&failed);
        for socket in sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        let (here, last) = (self.clone(), failed.clone());
        std::thread::spawn(move || {
            if !here.wait(here.watch.grace, |state| state.left) {
                end_process(&last);
            }
        });
        failed
    }

    /// What is agreed on, if that comes in time.
    pub fn wait_agreed(&self, patience: Duration) -> Option<Failed> {
        self.wait(patience, |state| state.agreed.is_some());
        self.agreed()
    }

    /// Sleeps for a while, or until this rank has left or the world failed: then false.
    pub fn sleep(&self, time: Duration) -> bool {
        !self.wait(time, |state| state.left || state.agreed.is_some())
    }

    pub fn leave(&self) {
        self.lock().left = true;
        self.changed.notify_all();
    }

    fn wait(&self, patience: Duration, until: impl Fn(&State) -> bool) -> bool {
        let end = Instant::now() + patience;
        let mut state = self.lock();
        while !until(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// What an end of a connection is called.
pub fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "connection closed".into(),
        std::io::ErrorKind::ConnectionReset => "connection reset".into(),
        _ => error.to_string(),
    }
}
