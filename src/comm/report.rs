//! What is known of a rank: heartbeats carry it, dumps keep it, the verdict is found in it.

use super::{Event, Op};
use serde::{Deserialize, Serialize};

/// One rank, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: usize,
    pub node: String,
    /// "TP1 PP3 DP0"; empty before the rank said it.
    pub place: String,
    /// "reading data".
    pub doing: String,
    /// Times are seconds since the rank's start.
    pub doing_since: f64,
    pub now: f64,
    /// Seconds since it was last heard, where that is too long.
    pub silent: Option<f64>,
    /// How it ended, if it did.
    pub ended: Option<End>,
    pub groups: Vec<GroupCount>,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It said that it would.
    Left,
    /// It did not: "connection reset".
    Died(String),
}

/// How many operations of a group a rank has entered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCount {
    pub name: String,
    /// Ranks of the world, in the group's order.
    pub ranks: Vec<usize>,
    pub collectives: u64,
    /// Messages to each rank of the group, and from each.
    pub sent: Vec<u64>,
    #[serde(default)]
    pub received: Vec<u64>,
}

impl GroupCount {
    pub fn new(name: &str, ranks: &[usize]) -> GroupCount {
        let (name, ranks, none) = (name.to_string(), ranks.to_vec(), vec![0; ranks.len()]);
        GroupCount { name, ranks, collectives: 0, sent: none.clone(), received: none }
    }

    pub fn count(&mut self, event: &Event) {
        let with = event.peer.and_then(|peer| self.ranks.iter().position(|rank| *rank == peer));
        match (event.op, with) {
            (Op::Send, Some(to)) => self.sent[to] = event.sequence,
            (Op::Recv, Some(from)) => self.received[from] = event.sequence,
            _ => self.collectives = event.sequence,
        }
    }
}

impl RankReport {
    /// Nothing is known of it yet.
    pub fn unknown(rank: usize) -> RankReport {
        super::Recorder::default().report(rank, "", 0)
    }

    /// "rank 37 (node n12, TP1 PP3 DP0)".
    pub fn name(&self) -> String {
        let node = Some(&self.node).filter(|node| !node.is_empty());
        let place = Some(&self.place).filter(|place| !place.is_empty());
        let details: Vec<String> =
            node.map(|node| format!("node {node}")).into_iter().chain(place.cloned()).collect();
        match details.is_empty() {
            true => format!("rank {}", self.rank),
            false => format!("rank {} ({})", self.rank, details.join(", ")),
        }
    }

    pub fn group(&self, name: &str) -> Option<&GroupCount> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Operations it is in the middle of, on its own thread or on the queue.
    pub fn within(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|e| e.started.is_some() && e.finished.is_none())
    }

    /// Those of them that its own thread waits for.
    pub fn held_by(&self) -> impl Iterator<Item = &Event> {
        self.within().filter(|event| !event.queued)
    }

    /// Seconds it has been in the operation it entered first of those it waits for.
    pub fn waits(&self) -> Option<f64> {
        let since = self.held_by().filter_map(|event| event.started);
        since.min_by(f64::total_cmp).map(|since| self.now - since)
    }
}
