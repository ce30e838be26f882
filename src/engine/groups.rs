//! The groups a rank belongs to, and what follows from its place in them.

use base::{DType, div_exact};
use comm::{ACTIVATIONS, GRADIENTS, Group, PIPELINE, Solo, World};
use device::{Backend, Tensor};
use manifest::{LayerSplit, Manifest, Model, Precision, Schedule, Topology};
use model::{Chunk, Cx, ModelShard, TensorParallel, costs};
use plan::grid::{Coord, Grid};
use plan::schedule::{self, Action, PipelineRank};
use plan::split;
use std::ops::Range;

pub struct Groups {
    /// Ranks that hold the other shares of the same layers.
    pub tensor: Box<dyn Group>,
    /// The other stages of the same replica.
    pub pipeline: Box<dyn Group>,
    /// The same ranks, for the messages that an interleaved order begins: to the next stage, and to the
    /// one before. Of one rank where messages are exchanged.
    pub activations: Box<dyn Group>,
    pub gradients: Box<dyn Group>,
    /// The other replicas.
    pub data: Box<dyn Group>,
    /// The first and the last stage, which both hold a tied embedding.
    pub embedding: Box<dyn Group>,
    /// The ranks of `tensor` again: a second communicator, for sums that run during the computation.
    pub tp_async: Box<dyn Group>,
    /// Where this rank is, of which grid.
    pub(super) grid: Grid,
    pub(super) at: Coord,
}

impl Groups {
    /// One rank, alone in every group.
    pub fn solo() -> Groups {
        let solo = || -> Box<dyn Group> { Box::new(Solo) };
        Groups {
            tensor: solo(),
            pipeline: solo(),
            activations: solo(),
            gradients: solo(),
            data: solo(),
            embedding: solo(),
            tp_async: solo(),
            grid: Grid::SOLO,
            at: Grid::SOLO.coord(0),
        }
    }

    /// This rank's groups in the grid. Every rank of the world calls this.
    pub fn new(world: &World, topology: &Topology) -> Groups {
        Groups::of(world.rank(), topology, |name, ranks| world.group(name, ranks))
    }

    /// The groups of a rank, each made from its name and the ranks of the world in it.
    pub fn of(
        rank: usize,
        topology: &Topology,
        make: impl Fn(&'static str, &[usize]) -> Box<dyn Group>,
    ) -> Groups {
        let grid = topology.grid();
        let at = grid.coord(rank);
        let stages = grid.pipeline_group(at);
        let embedding = match [0, grid.pipeline - 1].contains(&at.pipeline) && grid.pipeline > 1 {
            true => make("embedding", &[stages[0], stages[grid.pipeline - 1]]),
            false => Box::new(Solo),
        };
        let begun = |name| -> Box<dyn Group> {
            if begins_messages(topology.schedule) { make(name, &stages) } else { Box::new(Solo) }
        };
        Groups {
            tensor: make("tensor", &grid.tensor_group(at)),
            tp_async: make("tp_async", &grid.tensor_group(at)),
            pipeline: make(PIPELINE, &stages),
            activations: begun(ACTIVATIONS),
            gradients: begun(GRADIENTS),
            data: make("data", &grid.data_group(at)),
            embedding,
            grid,
            at,
        }
    }

    /// x = Σ over all ranks that do not merely repeat it (the last stage alone has a loss).
    pub fn sum_over_stages_and_replicas(&self, x: Tensor) {
        self.pipeline.all_reduce(x);
        self.data.all_reduce(x);
    }
}

/// This rank's place in its pipeline.
pub fn pipeline_rank(groups: &Groups, m: &Manifest) -> PipelineRank {
    let (rank, ranks) = (groups.pipeline.rank(), groups.pipeline.size());
    PipelineRank { rank, ranks, chunks: m.topology.chunks }
}

/// The layers of each virtual stage of a pipeline.
pub fn cuts(model: &Model, topology: &Topology) -> Vec<Range<usize>> {
    let stages = topology.pipeline * topology.chunks;
    match &topology.layer_split {
        LayerSplit::Uniform => split::uniform(model.layers, stages),
        LayerSplit::Balanced => {
            let costs = costs(model, topology.recompute);
            split::balanced(model.layers, stages, costs)
        }
        LayerSplit::TransformerAndEmbedding => split::with_ends(model.layers, stages),
        LayerSplit::Explicit(sizes) => split::explicit(sizes),
    }
}

/// The part of the model this rank holds.
pub fn model_shard(groups: &Groups, m: &Manifest) -> ModelShard {
    let pp = pipeline_rank(groups, m);
    let cuts = cuts(&m.model, &m.topology);
    let chunk = |chunk| {
        let stage = pp.stage(chunk);
        let (first, last) = (stage == 0, stage + 1 == pp.stages());
        Chunk { layers: cuts[stage].clone(), first, last }
    };
    ModelShard {
        chunks: (0..pp.chunks).map(chunk).collect(),
        tp: groups.tensor.size(),
        tp_rank: groups.tensor.rank(),
        dp: groups.data.size(),
    }
}

/// What a rank does in a step of `micros` micro-batches, and the slots it needs for that.
pub fn actions(pp: PipelineRank, schedule: Schedule, micros: usize) -> (Vec<Action>, usize) {
    let rounds = match schedule {
        Schedule::OneFOneB => schedule::one_f_one_b(pp, micros),
        Schedule::GPipe => schedule::gpipe(micros),
        Schedule::Interleaved => schedule::interleaved(pp, micros),
    };
    let actions = match begins_messages(schedule) {
        true => schedule::with_begun_messages(pp, &rounds),
        false => schedule::with_messages(pp, &rounds),
    };
    schedule::with_slots(actions, pp.chunks)
}

/// Whether a step's messages run beside its passes. Without chunks there is next to nothing that they
/// could hide behind (`timeline`'s tests), and one exchange needs no buffers. Evaluations exchange
/// theirs: forwards follow each other, and each needs what the one before it gives.
pub fn begins_messages(schedule: Schedule) -> bool {
    schedule == Schedule::Interleaved
}

/// What every rank of a pipeline does in a step of `micros` micro-batches.
pub fn orders(topology: &Topology, micros: usize) -> Vec<Vec<Action>> {
    let pipeline_rank =
        |rank| PipelineRank { rank, ranks: topology.pipeline, chunks: topology.chunks };
    (0..topology.pipeline)
        .map(|rank| actions(pipeline_rank(rank), topology.schedule, micros).0)
        .collect()
}

/// The most slots that a step of the run needs: those of its largest batch. But for GPipe, which
/// keeps every micro-batch, no batch needs more than one that fills the pipe twice.
pub fn slots(groups: &Groups, m: &Manifest) -> usize {
    let (pp, schedule) = (pipeline_rank(groups, m), m.topology.schedule);
    let largest = m.batch.ramp().sizes().max().expect("a batch");
    let micros = div_exact(largest, m.batch.micro * groups.data.size());
    actions(
        pp,
        schedule,
        if schedule == Schedule::GPipe { micros } else { micros.min(filling(pp)) },
    )
    .1
}

/// Micro-batches that fill a pipe twice.
fn filling(pp: PipelineRank) -> usize {
    2 * pp.ranks * pp.chunks
}

/// What the model's layers need of a rank.
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
        past: 0,
    }
}

/// The dtype of model weights and activations; master weights and gradients are f32.
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

    /// A ramp-up's steps run in the slots that were laid out, and no order of them deadlocks.
    #[test]
    fn every_batch_of_a_ramp_up_fits() {
        let text = "
model: {layers: 12, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 64, ramp_up: 4 4 1000}
lr: {peak: 1e-3}
train: {samples: 8000}
";
        for schedule in ["1f1b", "gpipe", "interleaved, chunks: 3"] {
            let sets = [format!("topology={{pipeline: 4, schedule: {schedule}}}")];
            let m = manifest::of_test(text, &sets);
            let stages = 4 * m.topology.chunks;
            let costs =
                Costs { forward: vec![1.0; stages], backward: vec![2.0; stages], message: 0.0 };
            let slots = |orders: &[Vec<Action>]| -> Vec<usize> {
                let used = |order: &Vec<Action>| order.iter().map(|a| a.pass().slot + 1).max();
                orders.iter().filter_map(used).collect()
            };
            let most = slots(&orders(&m.topology, 64));
            if m.topology.schedule != Schedule::GPipe {
                let pp = PipelineRank { rank: 0, ranks: 4, chunks: m.topology.chunks };
                assert_eq!(slots(&orders(&m.topology, filling(pp))), most, "{schedule}");
            }
            for micros in m.batch.ramp().sizes() {
                let orders = orders(&m.topology, micros);
                assert!(simulate(&orders, &costs).is_ok());
                let fits = slots(&orders).iter().zip(&most).all(|(used, most)| used <= most);
                assert!(fits, "{schedule}: {micros} micro-batches");
            }
        }
    }
}
