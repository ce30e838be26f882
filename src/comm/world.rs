//! A rank's handle on the process group: makes groups, counts bytes sent, reports failure.

use super::endpoint::{Endpoint, RankResources, Traffic};
use super::p2p_group::P2pGroup;
use super::{Failed, Group, RankBusy, Recorder, Solo};
use std::sync::Arc;

/// One rank. Dropped, with its groups, when the rank ends. A drop during a panic fails the process
/// group; otherwise, over TCP, the drop returns when all ranks have ended. Drop it before the memory
/// of its tensors, into which its communication queue may write.
pub struct World {
    resources: Arc<RankResources>,
}

impl World {
    pub(super) fn new(endpoint: Endpoint) -> World {
        World { resources: Arc::new(RankResources::new(endpoint)) }
    }

    pub fn rank(&self) -> usize {
        self.resources.endpoint.rank
    }

    pub fn size(&self) -> usize {
        self.resources.endpoint.size
    }

    /// A group of these world ranks, in this order. Called by each of them and by no other rank.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Box<dyn Group> {
        let rank = self.rank();
        let me = ranks.iter().position(|r| *r == rank);
        let me = me.unwrap_or_else(|| panic!("rank {rank} is not in group {name} {ranks:?}"));
        assert!(ranks.iter().all(|r| *r < self.size()), "{ranks:?} of {} ranks", self.size());
        if ranks.len() == 1 {
            return Box::new(Solo);
        }
        let endpoint = &self.resources.endpoint;
        if let Err(failed) = endpoint.transport.connect(ranks) {
            endpoint.fail(failed).raise();
        }
        Box::new(P2pGroup::new(self.resources.clone(), name, ranks, me))
    }

    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.resources.endpoint.recorder
    }

    /// Bytes this rank has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.resources.endpoint.traffic().clone()
    }

    /// Fails every rank, this one at its next collective: "reading data: no such file". Returns the
    /// failure that all ranks agree on.
    pub fn fail(&self, why: &str) -> Failed {
        let endpoint = &self.resources.endpoint;
        endpoint.fail(Failed::new(format!("{} failed: {why}", endpoint.name())))
    }

    /// How busy every rank was, by rank, as of its last heartbeat; over TCP on rank 0 alone.
    pub fn busy(&self) -> Vec<RankBusy> {
        self.resources.endpoint.transport.busy()
    }

    /// What groups of other carriers (NCCL) share with this rank's own.
    pub(super) fn resources(&self) -> &Arc<RankResources> {
        &self.resources
    }

    /// This rank's name in messages: "rank 37 (node n12, TP1 PP3 DP0)".
    pub fn name(&self) -> String {
        self.resources.endpoint.name()
    }

    /// The failure of the process group, if it has failed.
    pub fn failed(&self) -> Option<Failed> {
        self.resources.endpoint.inbox.failed()
    }
}
