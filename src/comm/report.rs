//! State of a rank: sent in heartbeats, stored in dumps, read by the hang diagnosis.

use super::{Event, Op};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// State of one rank at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: usize,
    pub node: String,
    /// Grid coordinates, "TP1 PP3 DP0"; empty until the rank reports them.
    pub coord: String,
    /// For example "reading data".
    pub phase: String,
    /// Times are seconds since the rank's start.
    pub phase_since: f64,
    pub now: f64,
    /// Seconds since its last heartbeat, if longer than the timeout.
    pub silent: Option<f64>,
    /// Its end; None while it runs.
    pub ended: Option<End>,
    pub groups: Vec<GroupCount>,
    pub events: Vec<Event>,
    #[serde(default)]
    pub log: Vec<LogLine>,
    /// Last windows of steps, oldest first.
    #[serde(default)]
    pub busy: VecDeque<BusyWindow>,
}

/// Busy time of a rank in a window of steps: computing, not waiting for others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyWindow {
    /// Counted from the rank's start, from 1. The same number has the same steps on every rank.
    pub number: u64,
    /// Busy seconds of a step: the median of the window.
    pub seconds: f64,
    /// Processor that it computes on: "GPU 3".
    pub processor: String,
    /// State of the processor, for messages: "1410 MHz, 82 °C".
    pub health: String,
}

/// Busy time of a rank, as last reported to rank 0.
#[derive(Clone, Debug)]
pub struct RankBusy {
    /// Name in messages: "rank 37 (node n12, TP1 PP3 DP0)".
    pub name: String,
    pub node: String,
    /// Oldest first.
    pub windows: VecDeque<BusyWindow>,
}

impl RankBusy {
    pub(super) fn from_report(report: &RankReport) -> RankBusy {
        let node = report.node.clone();
        let windows = report.busy.clone();
        RankBusy { name: report.name(), node, windows }
    }
}

/// Log line of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// Seconds since the rank's start.
    pub at: f64,
    /// For example "WARN".
    pub level: String,
    pub step: Option<u64>,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It closed its connections in an orderly way.
    Left,
    /// Its connection broke: "connection reset".
    Died(String),
}

/// Number of operations of a group that a rank has entered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCount {
    pub name: String,
    /// World ranks, in the order of the group.
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

    /// Counts an operation that the rank enters.
    pub fn count(&mut self, event: &Event) {
        let peer_index = event
            .peer
            .and_then(|peer| self.ranks.iter().position(|rank| *rank == peer));
        match (event.op, peer_index) {
            (Op::Send, Some(to)) => self.sent[to] = event.sequence,
            (Op::Recv, Some(from)) => self.received[from] = event.sequence,
            _ => self.collectives = event.sequence,
        }
    }
}

/// Node of the rank that starts a failure line, in the format of `RankReport::name`.
pub fn blamed_node(line: &str) -> Option<&str> {
    let place = line.strip_prefix("rank ")?.split_once(" (node ")?.1;
    place.split([',', ')']).next()
}

impl RankReport {
    /// Placeholder for a rank without a report.
    pub fn unknown(rank: usize) -> RankReport {
        super::Recorder::default().report(rank, "", 0)
    }

    /// Name in messages: "rank 37 (node n12, TP1 PP3 DP0)".
    pub fn name(&self) -> String {
        let node = Some(&self.node).filter(|node| !node.is_empty());
        let coord = Some(&self.coord).filter(|coord| !coord.is_empty());
        let details: Vec<String> = node
            .map(|node| format!("node {node}"))
            .into_iter()
            .chain(coord.cloned())
            .collect();
        if details.is_empty() {
            format!("rank {}", self.rank)
        } else {
            format!("rank {} ({})", self.rank, details.join(", "))
        }
    }

    pub fn group(&self, name: &str) -> Option<&GroupCount> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Operations that are running, on the rank's own thread or on a queue.
    pub fn active_ops(&self) -> impl Iterator<Item = &Event> {
        self.events
            .iter()
            .filter(|e| e.started.is_some() && e.finished.is_none())
    }

    /// Running operations that the rank's own thread waits for.
    pub fn blocking_ops(&self) -> impl Iterator<Item = &Event> {
        self.active_ops().filter(|event| !event.queued)
    }

    /// Seconds since it entered the oldest of its blocking operations.
    pub fn blocked_seconds(&self) -> Option<f64> {
        let since = self.blocking_ops().filter_map(|event| event.started);
        since.min_by(f64::total_cmp).map(|since| self.now - since)
    }
}
