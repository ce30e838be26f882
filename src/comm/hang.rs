//! Hang diagnosis: follows the chain of waiting ranks to the root cause, a rank that waits for no
//! other.

use super::report::{End, RankReport};
use super::{Event, Op};

/// Returns one line that names the rank at fault. None if no rank is dead, silent or blocked for
/// more than `timeout_s`. `reports` is indexed by rank.
pub fn diagnose(reports: &[RankReport], timeout_s: f64) -> Option<String> {
    let blame = |report: &RankReport, what: String| {
        let rest =
            format!("last event: {}; {}", report.phase, describe_waits(reports, report.rank));
        format!("{} {what}; {rest}", report.name())
    };
    for report in reports {
        if let Some(End::Died(how)) = &report.ended {
            let name = report.name();
            let phase = &report.phase;
            return Some(format!("{name} died: {how}; last event: {phase}"));
        }
    }
    if let Some((report, silent)) = reports.iter().find_map(|r| Some((r, r.silent?))) {
        return Some(blame(report, format!("is silent for {silent:.0} s: stopped, or cut off")));
    }
    let blocked = reports
        .iter()
        .filter(|report| report.blocked_seconds().is_some_and(|s| s >= timeout_s));
    let longest = |report: &&RankReport| report.blocked_seconds().unwrap_or(0.0);
    let first = blocked.max_by(|a, b| longest(a).total_cmp(&longest(b)))?;
    let mut chain = WaitChain { reports, path: Vec::new(), seen: vec![false; reports.len()] };
    match chain.follow(first) {
        WaitCause::RootCause(rank, what) => Some(blame(&reports[rank], what)),
        WaitCause::Cycle(links) => {
            Some(format!("deadlock: {}; {}", links, describe_waits(reports, usize::MAX)))
        }
        WaitCause::Unknown => {
            let event = first.blocking_ops().next()?;
            let from = event
                .awaiting
                .map_or("others".to_string(), |r| reports[r].name());
            Some(blame(
                first,
                format!(
                    "waits for data from {from} in {}, which all ranks have entered",
                    describe_op(event)
                ),
            ))
        }
    }
}

/// Describes the waiting ranks other than the root cause, for example "383 ranks waiting 41 s".
fn describe_waits(reports: &[RankReport], root_cause: usize) -> String {
    let waits: Vec<f64> = reports
        .iter()
        .filter(|report| report.rank != root_cause && report.ended.is_none())
        .filter_map(RankReport::blocked_seconds)
        .collect();
    let longest = waits.iter().copied().fold(0.0, f64::max);
    let ranks = if waits.len() == 1 { "rank" } else { "ranks" };
    format!("{} {ranks} waiting {longest:.0} s", waits.len())
}

/// For example "all_reduce #12345 of group dp".
fn describe_op(event: &Event) -> String {
    let Event { op, sequence, group, .. } = event;
    format!("{op} #{sequence} of group {group}")
}

/// Result of following a chain of waiting ranks.
enum WaitCause {
    /// Rank that waits for no other, and its fault.
    RootCause(usize, String),
    /// For example "rank 0 in all_reduce #5 of group tp waits for rank 1, which …"
    Cycle(String),
    /// The chain ends in a rank that waits for data which all ranks have entered.
    Unknown,
}

struct WaitChain<'a> {
    reports: &'a [RankReport],
    /// From the first blocked rank on: (rank, its current operation).
    path: Vec<(usize, String)>,
    seen: Vec<bool>,
}

impl<'a> WaitChain<'a> {
    fn follow(&mut self, report: &'a RankReport) -> WaitCause {
        self.seen[report.rank] = true;
        let mut best = WaitCause::Unknown;
        let events: Vec<&Event> = match report.blocking_ops().next() {
            Some(_) => report.blocking_ops().collect(),
            None => report.active_ops().collect(),
        };
        for event in events {
            self.path.push((report.rank, describe_op(event)));
            for rank in self.blockers(report, event) {
                let found = self.inspect(&self.reports[rank], event);
                match (&found, &best) {
                    (WaitCause::RootCause(..), _) => return found,
                    (WaitCause::Cycle(_), WaitCause::Unknown) => best = found,
                    _ => {}
                }
            }
            self.path.pop();
        }
        best
    }

    /// Reason why a rank has not entered `event`: its own fault, or another rank that blocks it.
    fn inspect(&mut self, report: &'a RankReport, event: &Event) -> WaitCause {
        let queued = report
            .events
            .iter()
            .find(|e| e.group == event.group && e.sequence == event.sequence)
            .is_some_and(|e| e.started.is_none());
        let is_blocked = report.blocking_ops().next().is_some()
            || (queued && report.active_ops().next().is_some());
        if report.ended.is_some() {
            WaitCause::RootCause(
                report.rank,
                format!("ended and never entered {}", describe_op(event)),
            )
        } else if !is_blocked {
            let what = match event.op {
                Op::Recv => format!("never sent what {} waits for", describe_op(event)),
                Op::Send => format!("never received {}", describe_op(event)),
                _ => format!("never entered {}", describe_op(event)),
            };
            WaitCause::RootCause(report.rank, what)
        } else if let Some(at) = self.path.iter().position(|(rank, _)| *rank == report.rank) {
            let links = self.path[at..]
                .iter()
                .map(|(rank, what)| format!("rank {rank} in {what}"))
                .collect::<Vec<_>>()
                .join(" waits for ");
            WaitCause::Cycle(format!("{links} waits for rank {}", report.rank))
        } else if self.seen[report.rank] {
            WaitCause::Unknown
        } else {
            self.follow(report)
        }
    }

    /// Ranks that `event` of `report` waits for: members that have not entered it.
    fn blockers(&self, report: &RankReport, event: &Event) -> Vec<usize> {
        let Some(group) = report.group(&event.group) else { return Vec::new() };
        let reports = self.reports;
        group
            .ranks
            .iter()
            .copied()
            .filter(|rank| *rank != report.rank)
            .filter(|rank| has_not_entered(&reports[*rank], report.rank, event))
            .collect()
    }
}

/// Whether a rank has not entered `event`, which `waiting` waits for.
fn has_not_entered(report: &RankReport, waiting: usize, event: &Event) -> bool {
    let Some(group) = report.group(&event.group) else { return true };
    let is_behind = |counts: &[u64]| {
        let index = group.ranks.iter().position(|rank| *rank == waiting);
        let count = index.and_then(|index| counts.get(index)).copied();
        event.peer == Some(report.rank) && count.unwrap_or(0) < event.sequence
    };
    match event.op {
        Op::Recv => is_behind(&group.sent),
        // TCP and threads buffer messages; on a GPU a send blocks until it is received.
        Op::Send => is_behind(&group.received),
        _ => {
            let is_same = |e: &&Event| {
                e.peer.is_none() && e.group == event.group && e.sequence == event.sequence
            };
            let mut same = report.events.iter().filter(is_same);
            group.collectives < event.sequence || same.any(|e| e.started.is_none())
        }
    }
}
