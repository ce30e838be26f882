//! Groups of a rank, and the quantities that follow from its position in them.

use base::{DType, div_exact};
use comm::{Group, Solo, World};
use device::{Backend, Tensor, op};
use manifest::{LayerSplit, Manifest, Model, Precision, Schedule, Topology};
use model::{Chunk, Cx, LayerCosts, ModelShard, TensorParallel, costs};
use plan::grid::{Axis, Coord, GRADIENT_AXES, Grid, SHARES, STAGES};
use plan::levels::Levels;
use plan::schedule::{self, Action, PipelineRank};
use plan::split;
use std::ops::Range;

pub struct Groups {
    /// Ranks that hold the other shards of the same layers.
    pub tensor: Box<dyn Group>,
    /// The other stages of the same replica.
    pub pipeline: Box<dyn Group>,
    /// The ranks of `pipeline` again, for the asynchronous messages of an interleaved schedule: to
    /// the next stage, and to the previous one. Groups of one rank if messages are exchanged
    /// synchronously.
    pub pipeline_forward: Box<dyn Group>,
    pub pipeline_backward: Box<dyn Group>,
    /// Ranks that hold the same weights: they sum gradients, and shard states.
    pub grad_sum: Box<dyn Group>,
    /// The ranks of `grad_sum` at two levels (`topology.shard`): neighbours that divide one copy of the
    /// weights, and the ranks that hold the same shard. Groups of one rank if there is one level.
    pub(super) neighbours: Box<dyn Group>,
    pub copies: Box<dyn Group>,
    pub levels: Levels,
    /// The first and the last stage, which both hold a tied embedding.
    pub embedding: Box<dyn Group>,
    /// The ranks of `tensor` again: a second communicator, for sums that overlap with computation.
    pub tp_async: Box<dyn Group>,
    /// The grid, and the coordinate of this rank.
    pub(super) grid: Grid,
    pub(super) coord: Coord,
}

impl Groups {
    /// Groups of a single rank.
    pub fn solo() -> Groups {
        let solo = || -> Box<dyn Group> { Box::new(Solo) };
        Groups {
            tensor: solo(),
            pipeline: solo(),
            pipeline_forward: solo(),
            pipeline_backward: solo(),
            grad_sum: solo(),
            neighbours: solo(),
            copies: solo(),
            levels: Levels::one(1, 0),
            embedding: solo(),
            tp_async: solo(),
            grid: Grid::SOLO,
            coord: Grid::SOLO.coord(0),
        }
    }

    /// Creates the groups of this rank. A collective of all ranks of the world.
    pub fn new(world: &World, topology: &Topology) -> Groups {
        Groups::for_rank(world.rank(), topology, |name, ranks| world.group(name, ranks))
    }

    /// Creates the groups of a rank by calling `make` with each name and its world ranks.
    pub fn for_rank(
        rank: usize,
        topology: &Topology,
        make: impl Fn(&'static str, &[usize]) -> Box<dyn Group>,
    ) -> Groups {
        let grid = topology.grid();
        let coord = grid.coord(rank);
        let stages = grid.group(coord, STAGES);
        let embedding = match Groups::embedding_ranks(&grid, coord) {
            Some(ends) => make("embedding", &ends),
            None => Box::new(Solo),
        };
        let message_group = |name| -> Box<dyn Group> {
            if messages_overlap(topology) { make(name, &stages) } else { Box::new(Solo) }
        };
        let replicas = grid.group(coord, GRADIENT_AXES);
        let place = replicas.iter().position(|replica| *replica == rank);
        let levels = topology.levels(place.expect("a replica of itself"));
        let level_group = |name, ranks: Vec<usize>| -> Box<dyn Group> {
            if levels.copies > 1 { make(name, &ranks) } else { Box::new(Solo) }
        };
        Groups {
            tensor: make("tensor", &grid.group(coord, SHARES)),
            tp_async: make("tp_async", &grid.group(coord, SHARES)),
            pipeline: make(comm::PIPELINE, &stages),
            pipeline_forward: message_group(comm::FORWARD_MESSAGES),
            pipeline_backward: message_group(comm::BACKWARD_MESSAGES),
            grad_sum: make(comm::GRAD_SUM, &replicas),
            neighbours: level_group(comm::SHARD, levels.shard_group(&replicas)),
            copies: level_group(comm::SHARD_COPIES, levels.copy_group(&replicas)),
            levels,
            embedding,
            grid,
            coord,
        }
    }

    /// World ranks of the first and the last stage of a replica, if `coord` is one of two.
    pub(super) fn embedding_ranks(grid: &Grid, coord: Coord) -> Option<[usize; 2]> {
        let last = grid[Axis::Pipeline] - 1;
        let is_end = last > 0 && [0, last].contains(&coord[Axis::Pipeline]);
        is_end.then(|| [0, last].map(|stage| grid.rank(coord.with(Axis::Pipeline, stage))))
    }

    /// Ranks that divide one copy of the weights: all replicas, or this rank's neighbours.
    pub fn shard(&self) -> &dyn Group {
        if self.levels.copies > 1 { &*self.neighbours } else { &*self.grad_sum }
    }

    /// x = Σ x over the ranks that update different pieces of the same weights. Of copies that update equal
    /// pieces, the first one counts, so that all ranks get the bits of one sum.
    pub fn sum_over_pieces(&self, be: &dyn Backend, x: Tensor) {
        if self.levels.states_copy() > 0 {
            be.run(op::Zero { x: x.set() });
        }
        self.grad_sum.all_reduce(x);
    }

    /// Number of replicas, each of which reads other samples.
    pub fn replicas(&self) -> usize {
        self.grid[Axis::Data]
    }

    /// x = Σ x over pipeline and data-parallel ranks. Only the last stage has a loss; the others
    /// add 0.
    pub fn sum_over_stages_and_replicas(&self, x: Tensor) {
        self.pipeline.all_reduce(x);
        self.grad_sum.all_reduce(x);
    }
}

/// Position of this rank in its pipeline.
pub fn pipeline_rank(groups: &Groups, m: &Manifest) -> PipelineRank {
    let rank = groups.pipeline.rank();
    let ranks = groups.pipeline.size();
    PipelineRank { rank, ranks, chunks: m.topology.chunks }
}

/// Layers of each virtual stage of a pipeline.
pub fn cuts(model: &Model, topology: &Topology) -> Vec<Range<usize>> {
    let stages = topology.pipeline * topology.chunks;
    match &topology.layer_split {
        LayerSplit::Uniform => split::uniform(model.layers, stages),
        LayerSplit::Balanced => {
            let LayerCosts { embed, layers, head } = costs(model, topology.recompute);
            split::balanced(stages, embed, &layers, head)
        }
        LayerSplit::TransformerAndEmbedding => split::with_ends(model.layers, stages),
        LayerSplit::Explicit(sizes) => split::explicit(sizes),
    }
}

/// Part of the model that this rank holds.
pub fn model_shard(groups: &Groups, m: &Manifest) -> ModelShard {
    let pp = pipeline_rank(groups, m);
    let cuts = cuts(&m.model, &m.topology);
    ModelShard {
        chunks: (0..pp.chunks)
            .map(|chunk| {
                let stage = pp.stage(chunk);
                let first = stage == 0;
                let last = stage + 1 == pp.stages();
                Chunk { layers: cuts[stage].clone(), first, last }
            })
            .collect(),
        tp: groups.tensor.size(),
        tp_rank: groups.tensor.rank(),
        dp: groups.grad_sum.size(),
    }
}

/// Actions of a rank in a step of `micros` micro-batches, and the number of activation slots that
/// they use.
pub fn actions(pp: PipelineRank, topology: &Topology, micros: usize) -> (Vec<Action>, usize) {
    let rounds = match topology.schedule {
        Schedule::OneFOneB => schedule::one_f_one_b(pp, micros),
        Schedule::GPipe => schedule::gpipe(micros),
        Schedule::Interleaved => schedule::interleaved(pp, micros),
        Schedule::BreadthFirst => schedule::breadth_first(pp, micros),
    };
    let actions = if messages_overlap(topology) {
        schedule::with_async_messages(pp, &rounds)
    } else {
        let early = match topology.schedule {
            Schedule::BreadthFirst => micros.saturating_sub(pp.ranks),
            Schedule::OneFOneB | Schedule::GPipe | Schedule::Interleaved => 0,
        };
        schedule::with_early_messages(pp, &rounds, early)
    };
    schedule::with_slots(actions, pp.chunks)
}

/// Whether messages between stages overlap with computation. Off by default, because ranks launch
/// such messages in no common order, which NCCL does not guarantee to support. A pipeline without
/// chunks has little computation to overlap with (see the tests of `timeline`) and needs no
/// buffers. Evaluations always exchange synchronously, since each forward needs the result of the
/// previous one.
pub fn messages_overlap(topology: &Topology) -> bool {
    topology.schedule == Schedule::Interleaved && topology.overlap_p2p
}

/// Whether collectives or messages of several groups run at once: sums of gradients with sums of layers
/// or with messages, or messages in both directions.
pub fn groups_overlap(topology: &Topology) -> bool {
    let Topology { tensor, pipeline, data, .. } = *topology;
    tensor > 1 || messages_overlap(topology) || data > 1 && pipeline > 1
}

/// Actions of every rank of a pipeline in a step of `micros` micro-batches.
pub fn orders(topology: &Topology, micros: usize) -> Vec<Vec<Action>> {
    let pipeline_rank =
        |rank| PipelineRank { rank, ranks: topology.pipeline, chunks: topology.chunks };
    (0..topology.pipeline)
        .map(|rank| actions(pipeline_rank(rank), topology, micros).0)
        .collect()
}

/// Activation slots for the largest batch of the run with micro-batches of `micro` samples. GPipe and
/// breadth-first orders keep every micro-batch; others need no more slots than a batch that fills the
/// pipeline twice.
pub fn slots(groups: &Groups, m: &Manifest, micro: usize) -> usize {
    let pp = pipeline_rank(groups, m);
    let micros = div_exact(m.batch.largest_global(micro), micro * groups.replicas());
    let in_flight = if m.topology.schedule.keeps_all_micros() {
        micros
    } else {
        micros.min(micros_to_fill_twice(pp))
    };
    actions(pp, &m.topology, in_flight).1
}

/// Micro-batches that fill a pipeline twice.
fn micros_to_fill_twice(pp: PipelineRank) -> usize {
    2 * pp.ranks * pp.chunks
}

/// Context that the model's layers need.
pub fn context<'a>(
    be: &'a dyn Backend,
    groups: &'a Groups,
    manifest: &'a Manifest,
    training: bool,
) -> Cx<'a> {
    Cx {
        be,
        tp: TensorParallel {
            group: &*groups.tensor,
            sequence: manifest.topology.sequence_parallel,
        },
        model: &manifest.model,
        dtype: model_dtype(manifest.precision),
        recompute: manifest.topology.recompute,
        seed: manifest.train.seed,
        training,
        z_loss: manifest.train.z_loss.filter(|_| training),
        fp8: None,
        cached_tokens: 0,
    }
}

/// Dtype of model weights and activations. Master weights and gradients are f32.
pub fn model_dtype(precision: Precision) -> DType {
    match precision {
        Precision::F32 | Precision::Tf32 => DType::F32,
        Precision::Bf16 | Precision::Fp8 => DType::BF16,
        Precision::Fp16 => DType::F16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::timeline::{Costs, simulate};

    /// Every batch of a ramp-up fits the reserved slots and is free of deadlocks.
    #[test]
    fn every_batch_of_a_ramp_up_fits() {
        let text = "
model: {layers: 12, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 64, ramp_up: 4 4 1000}
lr: {peak: 1e-3}
train: {samples: 8000}
";
        let overlapped = "interleaved, chunks: 3, overlap_p2p: true";
        let breadth_first = "breadth_first, chunks: 3";
        for schedule in ["1f1b", "gpipe", "interleaved, chunks: 3", overlapped, breadth_first] {
            let sets = [format!("topology={{pipeline: 4, schedule: {schedule}}}")];
            let m = manifest::for_test(text, &sets);
            let stages = 4 * m.topology.chunks;
            let costs =
                Costs { forward: vec![1.0; stages], backward: vec![2.0; stages], message: 0.0 };
            let slots = |orders: &[Vec<Action>]| -> Vec<usize> {
                orders
                    .iter()
                    .filter_map(|order| order.iter().map(|a| a.pass().slot + 1).max())
                    .collect()
            };
            let most = slots(&orders(&m.topology, 64));
            if !m.topology.schedule.keeps_all_micros() {
                let pp = PipelineRank { rank: 0, ranks: 4, chunks: m.topology.chunks };
                let filled = orders(&m.topology, micros_to_fill_twice(pp));
                assert_eq!(slots(&filled), most, "{schedule}");
            }
            for micros in m.batch.ramp().sizes() {
                let orders = orders(&m.topology, micros);
                assert!(simulate(&orders, &costs).is_ok());
                let fits = slots(&orders)
                    .iter()
                    .zip(&most)
                    .all(|(used, most)| used <= most);
                assert!(fits, "{schedule}: {micros} micro-batches");
            }
        }
    }
}
