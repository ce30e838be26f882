//! Detects other programs on the machine: processors that are busy while all ranks wait, and GPU
//! memory that is in use.

use super::bench_rank::BenchRank;
use base::Bytes;
use base::busy::{Busy, Ticks};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time that all ranks wait.
const WAIT: Duration = Duration::from_millis(200);

/// GPU memory used by a process before it reserves anything, and by a display.
const CONTEXT: u64 = 2 << 30;

/// Load that a rank sees on its node and GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RankLoad {
    node: String,
    /// Number of busy processors, and of all processors.
    busy: f64,
    processors: f64,
    /// Bytes in use on its GPU.
    taken: u64,
}

/// Load by other programs at the start of the measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// One sentence for each node and GPU that is not idle.
    pub notes: Vec<String>,
    /// Largest share of a node's processors, or of a GPU, that others had; 0 if all are idle.
    pub share: f64,
}

/// Share of a GPU that others have if they use its memory: their process is one of two.
const SHARED_GPU: f64 = 0.5;

/// Load on every rank's node and GPU. A collective.
pub fn find_load(bench: &BenchRank) -> anyhow::Result<Load> {
    let before = Ticks::now();
    std::thread::sleep(WAIT);
    let Busy { busy, processors } = Ticks::now().since(before);
    let taken = bench
        .device
        .memory()
        .map_or(0, |(free, all)| all.0.saturating_sub(free.0));
    let node = bench.nodes[bench.rank.number()].clone();
    Ok(summarise(
        &bench
            .rank
            .all_gather(&RankLoad { node, busy, processors, taken })?,
    ))
}

fn summarise(loads: &[RankLoad]) -> Load {
    // A rank that starts to wait early may see others still working, so the calmest report
    // counts.
    let mut nodes: BTreeMap<&str, &RankLoad> = BTreeMap::new();
    for load in loads {
        let calmest = nodes.entry(&load.node).or_insert(load);
        if load.busy < calmest.busy {
            *calmest = load;
        }
    }
    let loud =
        |load: &&&RankLoad| Busy { busy: load.busy, processors: load.processors }.exceeds_idle();
    let mut share = nodes
        .values()
        .filter(loud)
        .map(|load| load.busy / load.processors)
        .fold(0.0, f64::max);
    let mut notes: Vec<String> = nodes
        .values()
        .filter(loud)
        .map(|RankLoad { node, busy, processors, .. }| {
            format!(
                "{node} is not idle: other programs keep {busy:.1} of its {processors:.0} processors \
                 busy; figures are below what it can do"
            )
        })
        .collect();
    for (rank, load) in loads
        .iter()
        .enumerate()
        .filter(|(_, load)| load.taken > CONTEXT)
    {
        share = share.max(SHARED_GPU);
        notes.push(format!(
            "the GPU of rank {rank} ({}) is not idle: {} of its memory were taken at the start",
            load.node,
            Bytes(load.taken)
        ));
    }
    Load { notes, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_idle_is_told_once() {
        let seen = |node: &str, busy: f64, taken: u64| RankLoad {
            node: node.into(),
            busy,
            processors: 2.0,
            taken,
        };
        let idle = [seen("n1", 0.2, 1 << 30), seen("n1", 1.9, 0)];
        assert_eq!(summarise(&idle), Load::default());
        let load = [seen("n1", 1.5, 0), seen("n1", 1.6, 0), seen("n2", 0.1, 5 << 30)];
        let Load { notes: told, share } = summarise(&load);
        assert_eq!(share, 0.75);
        assert_eq!(summarise(&load[2..]).share, SHARED_GPU);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("n1 is not idle: other programs keep 1.5 of its 2 processors"));
        assert!(told[1].starts_with("the GPU of rank 2 (n2) is not idle: 5.0 GiB"), "{told:?}");
    }
}
