//! Settings `topology.shard` and `topology.states`: their checks, and the replicas of a node.

use super::choices::{RankOrder, StateReplicas};
use super::report::Report;
use super::topology::{Shard, Topology};
use base::Problems;

const SHARD: &str = "topology.shard";
const STATES: &str = "topology.states";

/// Checks that shard groups divide the replicas. Rejects PowerSGD with two levels, because its factors are
/// summed over all replicas at once, and states of a shard group where ZeRO does not divide states.
pub fn check(topology: &Topology, report: &mut Report) {
    let Topology { data, shard, compression, zero, states, .. } = *topology;
    if data == 1 || !report.are_valid(&[SHARD, "topology.data"]) {
        return;
    }
    let keys = [STATES, "topology.zero"];
    if states == StateReplicas::Shard && zero == 0 && report.are_valid(&keys) {
        report.add_conflict(
            &keys,
            format!("{STATES} shard with topology.zero 0: every replica has all states"),
            format!("set topology.zero to 1, 2 or 3, or {STATES} to all"),
        );
    }
    if let Shard::Ranks(ranks) = shard
        && !data.is_multiple_of(ranks)
    {
        return report.add_conflict(
            &[SHARD, "topology.data"],
            format!("topology.data {data} is not divisible by topology.shard {ranks}"),
            format!("set {SHARD} to {}", fitting(data)),
        );
    }
    if shard != Shard::All && compression.is_some() {
        report.add_conflict(
            &[SHARD, "topology.compression"],
            format!(
                "topology.compression powersgd with {SHARD} {}: its factors are summed over all \
                 replicas at once",
                name(shard)
            ),
            format!("set {SHARD} to all, or topology.compression to none"),
        );
    }
}

/// Values that `data` replicas can have: "all, 2 or 4".
fn fitting(data: usize) -> String {
    let numbers: Vec<String> = (2..data)
        .filter(|size| data.is_multiple_of(*size))
        .map(|size| size.to_string())
        .collect();
    match &numbers[..] {
        [] => "all".to_string(),
        [one] => format!("all or {one}"),
        [first @ .., last] => format!("all, {} or {last}", first.join(", ")),
    }
}

fn name(shard: Shard) -> String {
    match shard {
        Shard::All => "all".to_string(),
        Shard::Node => "node".to_string(),
        Shard::Ranks(ranks) => ranks.to_string(),
    }
}

/// Replaces `shard: node` by the number of replicas on a node of `per_node` ranks. Does nothing if all ranks
/// are on one.
pub fn resolve_shard(topology: &mut Topology, per_node: usize) -> Result<(), Problems> {
    if topology.shard != Shard::Node || topology.ranks() <= per_node {
        return Ok(());
    }
    let refuse = |what: String, remedy: String| Err(Problems::one(SHARD, what, remedy));
    let data = topology.data;
    let replicas = replicas_on_node(topology, per_node);
    if replicas < 2 {
        let (name, nearer) = nearer_ranks(topology);
        return refuse(
            format!(
                "{SHARD} is node, and the {per_node} ranks of a node are not 2 or more times {name} \
                 {nearer}"
            ),
            format!("set {SHARD} to {}", fitting(data)),
        );
    }
    if !data.is_multiple_of(replicas) && replicas < data {
        let data_above = data.next_multiple_of(replicas);
        return refuse(
            format!(
                "{SHARD} is node, and topology.data {data} is not divisible by its {replicas} replicas"
            ),
            format!("set topology.data to {data_above}, or {SHARD} to {}", fitting(data)),
        );
    }
    topology.shard = if replicas < data { Shard::Ranks(replicas) } else { Shard::All };
    Ok(())
}

/// Whole replicas on a node of `per_node` ranks; 0 if these are not whole replicas.
pub fn replicas_on_node(topology: &Topology, per_node: usize) -> usize {
    let (_, nearer) = nearer_ranks(topology);
    if per_node.is_multiple_of(nearer) { per_node / nearer } else { 0 }
}

/// Ranks from a replica to the next, and the settings whose product it is.
fn nearer_ranks(topology: &Topology) -> (&'static str, usize) {
    let Topology { tensor, pipeline, .. } = *topology;
    match topology.neighbours {
        RankOrder::Data => ("topology.tensor", tensor),
        RankOrder::Pipeline => ("topology.tensor × topology.pipeline", tensor * pipeline),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TEXT: &str = "
model: {layers: 4, hidden: 32, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 96}
lr: {peak: 1e-3}
train: {samples: 960}
";

    /// Shard groups on nodes of eight ranks, or the words of the refusal.
    fn resolved(topology: &str, per_node: usize) -> Result<Shard, String> {
        let set = format!("topology={{shard: node, {topology}}}");
        let mut topology = crate::for_test(TEXT, &[set]).topology;
        resolve_shard(&mut topology, per_node)
            .map(|()| topology.shard)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_node_holds_the_replicas_that_its_ranks_have_room_for() {
        assert_eq!(resolved("data: 16", 8), Ok(Shard::Ranks(8)));
        assert_eq!(resolved("data: 16, tensor: 2", 8), Ok(Shard::Ranks(4)));
        assert_eq!(resolved("data: 8, pipeline: 2", 8), Ok(Shard::All));
        assert_eq!(resolved("data: 8, pipeline: 2, neighbours: pipeline", 8), Ok(Shard::Ranks(4)));
        assert_eq!(resolved("data: 4", 8), Ok(Shard::Node), "one node");
        let refused = |topology, words: [&str; 2]| {
            let line = resolved(topology, 8).expect_err("a refusal");
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
        };
        refused(
            "data: 12",
            ["divisible by its 8 replicas", "set topology.data to 16, or topology.shard"],
        );
        refused("data: 12", ["to all, 2, 3, 4 or 6", ""]);
        refused(
            "data: 4, pipeline: 4, tensor: 2, neighbours: pipeline",
            ["are not 2 or more times topology.tensor × topology.pipeline 8", "all or 2"],
        );
    }

    #[test]
    fn states_of_a_shard_group_need_zero() {
        for (topology, expected) in [
            ("data: 4, shard: 2, states: shard", true),
            ("data: 4, shard: 2, states: shard, zero: 1", false),
            ("data: 4, states: shard, zero: 3", false),
            ("data: 1, states: shard", false),
        ] {
            let set = format!("topology={{{topology}}}");
            let refusal = crate::parse(TEXT, "test", Path::new("."), &[set]).err();
            let words = "set topology.zero to 1, 2 or 3, or topology.states to all";
            let is_refused = refusal.is_some_and(|problems| problems.to_string().contains(words));
            assert_eq!(is_refused, expected, "{topology}");
        }
    }
}
