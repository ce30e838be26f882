//! Ranks as threads of one process.

use super::inbox::{Frame, Inbox, Wire};
use super::{Failed, World};
use std::sync::{Arc, OnceLock};

/// A world of `size` ranks: one handle for each thread, in rank order.
pub fn world(size: usize) -> Vec<World> {
    let inboxes: Arc<Vec<Arc<Inbox>>> = Arc::new((0..size).map(|_| Arc::default()).collect());
    let first = Arc::new(OnceLock::new());
    (0..size)
        .map(|rank| {
            let wire = Memory { rank, inboxes: inboxes.clone(), first: first.clone() };
            World::new(rank, size, inboxes[rank].clone(), Box::new(wire))
        })
        .collect()
}

/// A frame is put where the other thread looks for it.
struct Memory {
    rank: usize,
    inboxes: Arc<Vec<Arc<Inbox>>>,
    first: Arc<OnceLock<Failed>>,
}

impl Wire for Memory {
    fn send(&self, to: usize, frame: Frame) -> Result<(), Failed> {
        self.inboxes[to].put(self.rank, frame);
        Ok(())
    }

    fn fail(&self, failed: Failed) -> Failed {
        let agreed = self.first.get_or_init(|| failed);
        self.inboxes.iter().for_each(|inbox| inbox.fail(agreed));
        agreed.clone()
    }

    fn leave(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.leave(self.rank));
    }
}
