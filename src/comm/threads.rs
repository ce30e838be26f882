//! Ranks as threads of one process.

use super::inbox::{Frame, Inbox, Wire};
use super::watch::{Watch, end_process};
use super::{End, Failed, RankReport, Recorder, World, verdict};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A world of `size` ranks: one handle for each thread, in rank order. A hang is not noticed.
pub fn world(size: usize) -> Vec<World> {
    handles(Arc::new(Hub::new(size, None, channel().0)))
}

/// The same, with somebody who looks whether the ranks get on.
pub fn watched(size: usize, watch: &Watch) -> Vec<World> {
    let (alive, ended) = channel();
    let hub = Arc::new(Hub::new(size, Some(watch.clone()), alive));
    let (seen, watch) = (Arc::downgrade(&hub), watch.clone());
    let look = move || look_after(&seen, &watch, &ended);
    std::thread::Builder::new().name("watch".into()).spawn(look).expect("a thread");
    handles(hub)
}

fn handles(hub: Arc<Hub>) -> Vec<World> {
    let handle = |rank| {
        let Desk { inbox, recorder, .. } = &hub.desks[rank];
        let wire = Box::new(Memory { rank, hub: hub.clone() });
        World::new((rank, hub.desks.len()), inbox.clone(), recorder.clone(), wire)
    };
    (0..hub.desks.len()).map(handle).collect()
}

/// What all ranks share.
struct Hub {
    desks: Vec<Desk>,
    first: OnceLock<Failed>,
    watch: Option<Watch>,
    /// Dropped with the hub.
    _alive: Mutex<Sender<()>>,
}

/// What others see of one rank.
#[derive(Default)]
struct Desk {
    inbox: Arc<Inbox>,
    recorder: Arc<Recorder>,
    left: OnceLock<()>,
}

impl Hub {
    fn new(size: usize, watch: Option<Watch>, alive: Sender<()>) -> Hub {
        let desks = (0..size).map(|_| Desk::default()).collect();
        Hub { desks, first: OnceLock::new(), watch, _alive: Mutex::new(alive) }
    }

    fn reports(&self, events: usize) -> Vec<RankReport> {
        let report = |(rank, desk): (usize, &Desk)| RankReport {
            ended: desk.left.get().map(|()| End::Left),
            ..desk.recorder.report(rank, "", events)
        };
        self.desks.iter().enumerate().map(report).collect()
    }

    fn fail(&self, failed: Failed) -> Failed {
        let agreed = self.first.get_or_init(|| {
            if let Some(watch) = &self.watch {
                watch.claim(failed.line.clone());
                watch.dump(&self.reports(usize::MAX));
            }
            failed
        });
        self.desks.iter().for_each(|desk| desk.inbox.fail(agreed));
        agreed.clone()
    }
}

/// Until the last rank has ended.
fn look_after(hub: &Weak<Hub>, watch: &Watch, ended: &Receiver<()>) {
    while ended.recv_timeout(watch.period()) == Err(RecvTimeoutError::Timeout) {
        let Some(hub) = hub.upgrade() else { return };
        let known = hub.first.get().cloned();
        let found = || verdict(&hub.reports(8), watch.timeout.as_secs_f64());
        let agreed = known.or_else(|| found().map(|line| hub.fail(Failed::new(line))));
        drop(hub);
        let Some(agreed) = agreed else { continue };
        if ended.recv_timeout(watch.grace) == Err(RecvTimeoutError::Timeout) {
            end_process(&agreed);
        }
    }
}

/// A frame is put where the other thread looks for it.
struct Memory {
    rank: usize,
    hub: Arc<Hub>,
}

impl Wire for Memory {
    fn meet(&self, _: &[usize]) -> Result<(), Failed> {
        Ok(())
    }

    fn send(&self, to: usize, frame: Frame) -> Result<(), Failed> {
        self.hub.desks[to].inbox.put(self.rank, frame);
        Ok(())
    }

    fn fail(&self, failed: Failed) -> Failed {
        self.hub.fail(failed)
    }

    fn leave(&self) {
        self.hub.desks[self.rank].left.get_or_init(|| ());
        self.hub.desks.iter().for_each(|desk| desk.inbox.leave(self.rank));
    }
}
