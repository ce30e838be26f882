//! A small model and grids of ranks, for tests of the planner's dry run.

/// A manifest of eight layers, changed by the settings of each grid.
pub const MANIFEST: &str = "
model: {layers: 8, hidden: 16, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 32}
lr: {peak: 1e-3}
train: {samples: 800}
";

/// Settings of every kind of grid.
pub const GRIDS: [&[&str]; 32] = [
    &["topology.tensor=2"],
    &["topology.tensor=4", "topology.recompute=full", "precision=bf16"],
    &["topology.tensor=2", "topology.sequence_parallel=true", "topology.recompute=selective"],
    &["topology.data=4", "precision=bf16"],
    &["topology.data=4", "topology.zero=1", "precision=bf16"],
    &["topology.data=2", "topology.zero=2", "topology.tensor=2"],
    &["topology.data=2", "topology.zero=3"],
    &["topology.data=2", "topology.zero=3", "model.layers=1", "precision=bf16"],
    &["topology.pipeline=4", "model.tied_head=false"],
    &["topology.pipeline=2", "topology.schedule=gpipe", "precision=bf16"],
    &["topology={pipeline: 3, layer_split: [0, 8, 0], tensor: 2}"],
    &["topology={pipeline: 2, schedule: interleaved, overlap_p2p: true}"],
    &["topology.pipeline=2", "topology.schedule=interleaved", "topology.tensor=2"],
    &["topology={pipeline: 2, tensor: 2, data: 2, sequence_parallel: true, zero: 1}"],
    &["topology={data: 4, compression: {powersgd: {rank: 2, min_rate: 1}}}"],
    &["topology={tensor: 2, data: 2, zero: 1, compression: {powersgd: {rank: 1}}}"],
    &["topology={tensor: 2, data: 2, zero: 1}", "optimizer.adafactor.scale_parameter=true"],
    &["topology={pipeline: 2, tensor: 2, data: 2, zero: 1}", "optimizer=adafactor"],
    &["topology={tensor: 2, data: 2, zero: 3}", "precision=fp8", "model.hidden=32"],
    &["topology={pipeline: 2, data: 2, zero: 2}", "precision=bf16"],
    &["topology={pipeline: 4, data: 2, zero: 2, schedule: gpipe}", "model.tied_head=false"],
    &["topology={pipeline: 2, tensor: 2, data: 2, zero: 2, schedule: interleaved}"],
    &["topology={data: 4, shard: 2}"],
    &["topology={data: 8, shard: 4, zero: 1}", "precision=bf16"],
    &["topology={data: 4, shard: 2, zero: 2, pipeline: 2}", "precision=bf16"],
    &["topology={data: 8, shard: 2, zero: 3}", "precision=bf16"],
    &["topology={data: 4, shard: 2, zero: 2, states: shard, pipeline: 2}", "precision=bf16"],
    &["topology={data: 8, shard: 2, zero: 3, states: shard}", "optimizer=adafactor"],
    &["topology={pipeline: 2, tensor: 2, schedule: breadth_first}"],
    &["topology={pipeline: 2, data: 2, zero: 3, schedule: breadth_first, chunks: 4}"],
    &[
        "topology={pipeline: 2, data: 2, zero: 2, zero_every: 4, schedule: breadth_first}",
        "precision=bf16",
    ],
    &[
        "topology={pipeline: 2, data: 2, zero: 3, zero_every: 8, schedule: breadth_first, chunks: 4}",
    ],
];
