//! Whether anything else runs on the machine: processors that are busy while all ranks wait, and memory
//! of a GPU that somebody holds.

use super::site::Site;
use base::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::time::Duration;

/// That all ranks wait.
const WAIT: Duration = Duration::from_millis(200);

/// As much of the processors, or of one of them, may be busy on an idle machine.
const SHARE: f64 = 0.1;
const LEAST: f64 = 0.3;

/// What a process holds of a GPU before it reserves anything, and a display.
const CONTEXT: u64 = 2 << 30;

/// What a rank sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    node: String,
    /// Processors that were busy, of so many.
    busy: f64,
    processors: f64,
    /// Bytes of its GPU that are taken.
    taken: u64,
}

/// A sentence for each node and each GPU that is not idle; on every rank. A collective.
pub fn notes(site: &Site) -> anyhow::Result<Vec<String>> {
    let before = ticks();
    std::thread::sleep(WAIT);
    let (busy, processors) = busy(before, ticks());
    let taken = site.device.memory().map_or(0, |(free, all)| all.0.saturating_sub(free.0));
    let node = site.nodes[site.rank.number()].clone();
    Ok(sentences(&site.rank.all_gather(&Seen { node, busy, processors, taken })?))
}

fn sentences(all: &[Seen]) -> Vec<String> {
    // Ranks that begin to wait a little later saw the others come: the calmest view counts.
    let mut nodes: BTreeMap<&str, &Seen> = BTreeMap::new();
    for seen in all {
        let calmest = nodes.entry(&seen.node).or_insert(seen);
        if seen.busy < calmest.busy {
            *calmest = seen;
        }
    }
    let loud = |seen: &&&Seen| seen.busy > (SHARE * seen.processors).max(LEAST);
    let mut notes: Vec<String> = nodes
        .values()
        .filter(loud)
        .map(|Seen { node, busy, processors, .. }| {
            format!(
                "{node} is not idle: other programs keep {busy:.1} of its {processors:.0} processors \
                 busy; figures are below what it can do"
            )
        })
        .collect();
    for (rank, seen) in all.iter().enumerate().filter(|(_, seen)| seen.taken > CONTEXT) {
        notes.push(format!(
            "the GPU of rank {rank} ({}) is not idle: {} of its memory were taken at the start",
            seen.node,
            Bytes(seen.taken)
        ));
    }
    notes
}

/// Ticks of all processors together that were busy, and all, and how many processors there are; zeros
/// where the system does not say.
fn ticks() -> [f64; 3] {
    read_to_string("/proc/stat").map_or([0.0; 3], |text| counted(&text))
}

/// Of the text of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
fn counted(text: &str) -> [f64; 3] {
    let sum = text.lines().find(|line| line.starts_with("cpu ")).unwrap_or("");
    let numbers: Vec<f64> = sum.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let first = &numbers[..numbers.len().min(8)];
    let idle: f64 = first.iter().skip(3).take(2).sum();
    let all: f64 = first.iter().sum();
    let one = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    [all - idle, all, text.lines().filter(one).count() as f64]
}

/// Processors that were busy between two counts, and how many there are.
fn busy(before: [f64; 3], after: [f64; 3]) -> (f64, f64) {
    let [busy, all] = [after[0] - before[0], after[1] - before[1]];
    let processors = after[2];
    (if all > 0.0 { processors * busy / all } else { 0.0 }, processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_processors_are_counted_from_the_systems_ticks() {
        let text = |user: u64, idle: u64| {
            format!("cpu  {user} 0 10 {idle} 5 0 1 2 99 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n")
        };
        let (some, all) = busy(counted(&text(100, 1000)), counted(&text(130, 1010)));
        assert!((some - 1.5).abs() < 1e-12 && all == 2.0, "{some} of {all}");
        assert_eq!(busy([0.0; 3], [0.0; 3]), (0.0, 0.0));
    }

    #[test]
    fn who_is_not_idle_is_told_once() {
        let seen = |node: &str, busy: f64, taken: u64| Seen {
            node: node.into(),
            busy,
            processors: 2.0,
            taken,
        };
        let idle = [seen("n1", 0.2, 1 << 30), seen("n1", 1.9, 0)];
        assert!(sentences(&idle).is_empty());
        let told = sentences(&[seen("n1", 1.5, 0), seen("n1", 1.6, 0), seen("n2", 0.1, 5 << 30)]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("n1 is not idle: other programs keep 1.5 of its 2 processors"));
        assert!(told[1].starts_with("the GPU of rank 2 (n2) is not idle: 5.0 GiB"), "{told:?}");
    }
}
