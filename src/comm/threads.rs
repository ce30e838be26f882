//! Ranks as threads of one process.

use super::endpoint::Endpoint;
use super::inbox::{Frame, Inbox, Transport};
use super::watchdog::{Watchdog, end_process};
use super::{End, Failed, RankBusy, RankReport, Recorder, World, diagnose};
use base::Deadline;
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};

/// Creates a world of `size` ranks: one handle per thread, in rank order. Hangs are not detected.
pub fn world(size: usize) -> Vec<World> {
    handles(Arc::new(ThreadWorld::new(size, None, channel().0)))
}

/// Creates a world with a watchdog thread that detects hangs.
pub fn with_watchdog(size: usize, watchdog: &Watchdog) -> anyhow::Result<Vec<World>> {
    let (alive, ended) = channel();
    let shared = Arc::new(ThreadWorld::new(size, Some(watchdog.clone()), alive));
    let seen = Arc::downgrade(&shared);
    let watchdog = watchdog.clone();
    base::threads::spawn("watch", move || watch_for_hangs(&seen, &watchdog, &ended))?;
    Ok(handles(shared))
}

fn handles(shared: Arc<ThreadWorld>) -> Vec<World> {
    (0..shared.ranks.len())
        .map(|rank| {
            let ThreadRank { inbox, recorder, .. } = &shared.ranks[rank];
            let transport = Box::new(MemoryTransport { rank, shared: shared.clone() });
            let size = shared.ranks.len();
            World::new(Endpoint::new(rank, size, inbox.clone(), recorder.clone(), transport))
        })
        .collect()
}

/// State shared by all ranks.
struct ThreadWorld {
    ranks: Vec<ThreadRank>,
    /// First failure, on which all ranks agree.
    failed: OnceLock<Failed>,
    watchdog: Option<Watchdog>,
    /// Dropped with this struct, which signals the watchdog thread that the last rank has ended.
    _alive: Mutex<Sender<()>>,
}

/// State of one rank that the others see.
#[derive(Default)]
struct ThreadRank {
    inbox: Arc<Inbox>,
    recorder: Arc<Recorder>,
    left: OnceLock<()>,
}

impl ThreadWorld {
    fn new(size: usize, watchdog: Option<Watchdog>, alive: Sender<()>) -> ThreadWorld {
        let ranks = (0..size).map(|_| ThreadRank::default()).collect();
        ThreadWorld { ranks, failed: OnceLock::new(), watchdog, _alive: Mutex::new(alive) }
    }

    fn reports(&self, events: usize) -> Vec<RankReport> {
        self.ranks
            .iter()
            .enumerate()
            .map(|(number, rank)| RankReport {
                ended: rank.left.get().map(|()| End::Left),
                ..rank.recorder.report(number, "", events)
            })
            .collect()
    }

    fn fail(&self, failed: Failed) -> Failed {
        let agreed = self.failed.get_or_init(|| {
            if let Some(watchdog) = &self.watchdog {
                watchdog.claim(failed.line.clone());
                watchdog.dump(&self.reports(usize::MAX));
            }
            failed
        });
        self.ranks.iter().for_each(|rank| rank.inbox.fail(agreed));
        agreed.clone()
    }
}

/// Diagnoses hangs until the last rank has ended.
fn watch_for_hangs(shared: &Weak<ThreadWorld>, watchdog: &Watchdog, ended: &Receiver<()>) {
    while ended.recv_timeout(watchdog.period()) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = shared.upgrade() else { return };
        let mut failed = shared.failed.get().cloned();
        if failed.is_none()
            && let Some(line) = diagnose(&shared.reports(8), watchdog.timeout.as_secs_f64())
        {
            failed = Some(shared.fail(Failed::new(line)));
        }
        drop(shared);
        let Some(agreed) = failed else { continue };
        if Deadline::after(watchdog.grace).receive(ended) == Err(RecvTimeoutError::Timeout) {
            end_process(&agreed);
        }
    }
}

/// Transport that puts frames directly into the receiver's inbox.
struct MemoryTransport {
    rank: usize,
    shared: Arc<ThreadWorld>,
}

impl Transport for MemoryTransport {
    fn connect(&self, _: &[usize]) -> Result<(), Failed> {
        Ok(())
    }

    fn send(&self, to: usize, frame: Frame) -> Result<(), Failed> {
        self.shared.ranks[to].inbox.put(self.rank, frame);
        Ok(())
    }

    fn fail(&self, failed: Failed) -> Failed {
        self.shared.fail(failed)
    }

    fn leave(&self) {
        self.shared.ranks[self.rank].left.get_or_init(|| ());
        self.shared
            .ranks
            .iter()
            .for_each(|rank| rank.inbox.leave(self.rank));
    }

    fn busy(&self) -> Vec<RankBusy> {
        let ranks = self.shared.ranks.iter().enumerate();
        ranks
            .map(|(number, rank)| rank.recorder.busy(number))
            .collect()
    }
}
