//! Rings over nodes: the latency of their hops, and contention for the network.
//!
//! NCCL gathers weights and scatters gradients in a ring whatever its size, so that latency grows with the
//! number of ranks; a sum of all ranks has a tree to choose, whose latency grows with its logarithm.

use std::sync::LazyLock;

/// Seconds of a hop between GPUs of a node, and between nodes: NCCL's own model of a ring (protocol
/// Simple, `src/graph/tuning.cc`). A hop then takes 5.3 µs in the mean where 8 GPUs are a node; fitted to
/// the shipped runs, of up to 512 GPUs, it takes 3.7.
const NODE_HOP: f64 = 4.0e-6;
const NETWORK_HOP: f64 = 14.0e-6;

/// Nodes up to which rings share the network without contention.
const FREE_NODES: f64 = 8.0;

/// Power of the nodes by which rings slow down beyond: that of other programs' sums over replicas.
static CONTENTION: LazyLock<f64> = LazyLock::new(|| {
    let mut fitted = include_str!("../predict/constants.yaml").lines();
    let power = fitted.find_map(|line| line.trim().strip_prefix("crowd: "));
    power
        .and_then(|power| power.parse().ok())
        .expect("constants.yaml has `crowd`")
});

/// Seconds of latency of a gather or a scatter over `ranks`, of which `on_node` are on each node.
pub fn gather_latency(ranks: usize, on_node: usize) -> f64 {
    let between = ranks.div_ceil(on_node.max(1)) - 1;
    let within = ranks - 1 - between;
    within as f64 * NODE_HOP + between as f64 * NETWORK_HOP
}

/// Seconds of latency of a sum of all `ranks`: there and back through a chain within each node and a tree
/// of nodes.
pub fn sum_latency(ranks: usize, on_node: usize) -> f64 {
    let nodes = ranks.div_ceil(on_node.max(1));
    let within = on_node.min(ranks) - 1;
    2.0 * (within as f64 * NODE_HOP + (nodes as f64).log2().ceil() * NETWORK_HOP)
}

/// Share of a node's bandwidth that a ring over so many nodes reaches, relative to eight.
pub fn contention(nodes: usize) -> f64 {
    (FREE_NODES / nodes as f64).min(1.0).powf(*CONTENTION)
}

#[test]
fn latency_grows_with_the_ranks_of_a_ring_and_the_logarithm_of_a_tree() {
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a}, {b}");
    close(gather_latency(8, 8), 7.0 * NODE_HOP);
    close(gather_latency(16, 8), 14.0 * NODE_HOP + NETWORK_HOP);
    close(gather_latency(1024, 1), 1023.0 * NETWORK_HOP);
    close(sum_latency(1024, 1), 20.0 * NETWORK_HOP);
    close(sum_latency(64, 8), 2.0 * (7.0 * NODE_HOP + 3.0 * NETWORK_HOP));
    assert_eq!((gather_latency(1, 8), sum_latency(1, 8)), (0.0, 0.0));
    assert_eq!(contention(8), 1.0);
    close(contention(16), 2f64.powf(-*CONTENTION));
}
