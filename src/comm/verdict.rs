//! Who holds up the others: follows who waits for whom to a rank that waits for nobody.

use super::report::{End, RankReport};
use super::{Event, Op};

/// One line that names the rank at fault; None while all is well. `reports` is by rank; a rank that
/// waits longer than `timeout_s` is too long held up.
pub fn verdict(reports: &[RankReport], timeout_s: f64) -> Option<String> {
    let accuse = |report: &RankReport, what: String| {
        let rest = format!("last event: {}; {}", report.doing, waiting(reports, report.rank));
        format!("{} {what}; {rest}", report.name())
    };
    for report in reports {
        if let Some(End::Died(how)) = &report.ended {
            let (name, doing) = (report.name(), &report.doing);
            return Some(format!("{name} died: {how}; last event: {doing}"));
        }
    }
    if let Some((report, silent)) = reports.iter().find_map(|r| Some((r, r.silent?))) {
        let what = format!("is silent for {silent:.0} s: stopped, or cut off");
        return Some(accuse(report, what));
    }
    let held = reports.iter().filter(|report| report.waits().is_some_and(|s| s >= timeout_s));
    let longest = |report: &&RankReport| report.waits().unwrap_or(0.0);
    let first = held.max_by(|a, b| longest(a).total_cmp(&longest(b)))?;
    let mut trail = Trail { reports, path: Vec::new(), seen: vec![false; reports.len()] };
    match trail.follow(first) {
        Found::Culprit(rank, what) => Some(accuse(&reports[rank], what)),
        Found::Circle(links) => {
            Some(format!("the ranks wait in a circle: {}; {}", links, waiting(reports, usize::MAX)))
        }
        Found::Nothing => {
            let event = first.held_by().next()?;
            let from = event.awaiting.map_or("others".to_string(), |r| reports[r].name());
            let what =
                format!("waits for data of {from} in {}, which all have entered", name(event));
            Some(accuse(first, what))
        }
    }
}

/// "383 ranks waiting 41 s", without the culprit.
fn waiting(reports: &[RankReport], culprit: usize) -> String {
    let others = reports.iter().filter(|report| report.rank != culprit && report.ended.is_none());
    let waits: Vec<f64> = others.filter_map(RankReport::waits).collect();
    let longest = waits.iter().copied().fold(0.0, f64::max);
    let ranks = if waits.len() == 1 { "rank" } else { "ranks" };
    format!("{} {ranks} waiting {longest:.0} s", waits.len())
}

/// "all_reduce #12345 of group dp".
fn name(event: &Event) -> String {
    let Event { op, sequence, group, .. } = event;
    format!("{op} #{sequence} of group {group}")
}

enum Found {
    /// This rank waits for nobody, and did this.
    Culprit(usize, String),
    /// "rank 0 in all_reduce #5 of group tp waits for rank 1, which …"
    Circle(String),
    Nothing,
}

struct Trail<'a> {
    reports: &'a [RankReport],
    /// From the first rank: (rank, what it is in).
    path: Vec<(usize, String)>,
    seen: Vec<bool>,
}

impl<'a> Trail<'a> {
    fn follow(&mut self, report: &'a RankReport) -> Found {
        self.seen[report.rank] = true;
        let mut best = Found::Nothing;
        let events: Vec<&Event> = match report.held_by().next() {
            Some(_) => report.held_by().collect(),
            None => report.within().collect(),
        };
        for event in events {
            self.path.push((report.rank, name(event)));
            for rank in self.blockers(report, event) {
                let found = self.judge(&self.reports[rank], event);
                match (&found, &best) {
                    (Found::Culprit(..), _) => return found,
                    (Found::Circle(_), Found::Nothing) => best = found,
                    _ => {}
                }
            }
            self.path.pop();
        }
        best
    }

    /// A rank that did not enter `event`: because of another rank?
    fn judge(&mut self, report: &'a RankReport, event: &Event) -> Found {
        let entered = |e: &&Event| e.group == event.group && e.sequence == event.sequence;
        let queued = report.events.iter().find(entered).is_some_and(|e| e.started.is_none());
        let held =
            report.held_by().next().is_some() || (queued && report.within().next().is_some());
        if report.ended.is_some() {
            Found::Culprit(report.rank, format!("ended and never entered {}", name(event)))
        } else if !held {
            let what = match event.op {
                Op::Recv => format!("never sent what {} waits for", name(event)),
                Op::Send => format!("never received {}", name(event)),
                _ => format!("never entered {}", name(event)),
            };
            Found::Culprit(report.rank, what)
        } else if let Some(at) = self.path.iter().position(|(rank, _)| *rank == report.rank) {
            let links = self.path[at..].iter().map(|(rank, what)| format!("rank {rank} in {what}"));
            let links = links.collect::<Vec<_>>().join(" waits for ");
            Found::Circle(format!("{links} waits for rank {}", report.rank))
        } else if self.seen[report.rank] {
            Found::Nothing
        } else {
            self.follow(report)
        }
    }

    /// The ranks that `event` of `report` cannot do without and that are not yet in it.
    fn blockers(&self, report: &RankReport, event: &Event) -> Vec<usize> {
        let Some(group) = report.group(&event.group) else { return Vec::new() };
        let reports = self.reports;
        let missing = |rank: &&usize| {
            let Some(its) = reports[**rank].group(&event.group) else { return true };
            let started = |e: &Event| e.started.is_some() || e.sequence != event.sequence;
            let behind = |counts: &[u64]| {
                let at = its.ranks.iter().position(|r| *r == report.rank);
                let count = at.and_then(|at| counts.get(at)).copied().unwrap_or(0);
                event.peer == Some(**rank) && count < event.sequence
            };
            match event.op {
                Op::Recv => behind(&its.sent),
                // It is taken by TCP and by memory; a GPU waits until the other takes it.
                Op::Send => behind(&its.received),
                _ => {
                    let mut same = reports[**rank].events.iter();
                    its.collectives < event.sequence
                        || !same.all(|e| e.peer.is_some() || e.group != event.group || started(e))
                }
            }
        };
        group.ranks.iter().filter(|rank| **rank != report.rank).filter(missing).copied().collect()
    }
}
