//! Handle of a rank on the process group: creates groups, counts sent bytes, reports failures.

use super::endpoint::{Endpoint, RankResources, Traffic};
use super::p2p_group::P2pGroup;
use super::{Failed, Group, RankBusy, Recorder, Solo};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

/// One rank. Dropped, with its groups, when the rank ends. A drop during a panic fails the process
/// group. Otherwise, over TCP, the drop returns when all ranks have ended. Drop it before the
/// memory of its tensors, to which its communication queues may write.
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

    /// Creates a group of these world ranks, in this order. Called by each of them and by no other
    /// rank.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Box<dyn Group> {
        let rank = self.rank();
        let me = ranks
            .iter()
            .position(|r| *r == rank)
            .unwrap_or_else(|| panic!("rank {rank} is not in group {name} {ranks:?}"));
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

    /// Bytes that this rank has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.resources.endpoint.traffic().clone()
    }

    /// Fails every rank, this one at its next collective. `why` is for example "reading data: no
    /// such file". Returns the failure that all ranks agree on.
    pub fn fail(&self, why: &str) -> Failed {
        let endpoint = &self.resources.endpoint;
        endpoint.fail(Failed::new(format!("{} failed: {why}", endpoint.name())))
    }

    /// Busy times by rank, as of the last heartbeats; over TCP on rank 0 only.
    pub fn busy(&self) -> Vec<RankBusy> {
        self.resources.endpoint.transport.busy()
    }

    /// Streams of bytes between the ranks, beside the groups. They outlive this handle.
    pub fn streams(&self) -> Streams {
        Streams(self.resources.endpoint.clone())
    }

    /// Resources that groups of other transports (NCCL) share with this rank's own.
    pub(super) fn resources(&self) -> &Arc<RankResources> {
        &self.resources
    }

    /// Name of this rank in messages: "rank 37 (node n12, TP1 PP3 DP0)".
    pub fn name(&self) -> String {
        self.resources.endpoint.name()
    }

    /// Failure of the process group, if it has failed.
    pub fn failed(&self) -> Option<Failed> {
        self.resources.endpoint.inbox.failed()
    }
}

/// Authenticated streams of bytes between ranks that are processes, for data that no step waits for.
/// Any thread may use them.
#[derive(Clone)]
pub struct Streams(Arc<Endpoint>);

impl Streams {
    /// Opens a stream to another rank, which `accept` receives there. Fails between ranks that are
    /// threads, and if the rank does not answer.
    pub fn open(&self, to: usize) -> io::Result<TcpStream> {
        self.0.transport.open_stream(to)
    }

    /// Passes the streams that other ranks open to `accept`, each on its own thread. The first call
    /// counts; streams that arrive before it are closed.
    pub fn accept(&self, accept: impl Fn(TcpStream) + Send + Sync + 'static) {
        self.0.transport.accept_streams(Box::new(accept));
    }
}
