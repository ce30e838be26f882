//! The groups a rank belongs to, and what follows from its place in them.

use crate::base::div_exact;
use crate::comm::{Group, Solo, World};
use crate::device::Tensor;
use crate::manifest::{LayerSplit, Manifest, Schedule, Topology};
use crate::model::{Chunk, Part, costs};
use crate::plan::grid::{Grid, Place};
use crate::plan::schedule::{self, Action, Seat};
use crate::plan::split;
use std::ops::Range;

pub struct Groups {
    /// Ranks that hold the other shares of the same layers.
    pub tensor: Box<dyn Group>,
    /// The other stages of the same replica.
    pub pipeline: Box<dyn Group>,
    /// The other replicas.
    pub data: Box<dyn Group>,
    /// The first and the last stage, who both hold a tied embedding.
    pub ends: Box<dyn Group>,
    /// The ranks of `tensor` again, for what goes on beside the computation.
    pub partial: Box<dyn Group>,
    /// Where this rank is, of which grid.
    pub(super) grid: Grid,
    pub(super) at: Place,
}

impl Groups {
    /// One rank, alone in every group.
    pub fn solo() -> Groups {
        let solo = || -> Box<dyn Group> { Box::new(Solo) };
        Groups {
            tensor: solo(),
            pipeline: solo(),
            data: solo(),
            ends: solo(),
            partial: solo(),
            grid: Grid::SOLO,
            at: Grid::SOLO.place(0),
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
        let at = grid.place(rank);
        let stages = grid.pipeline_group(at);
        let ends = match [0, grid.pipeline - 1].contains(&at.pipeline) && grid.pipeline > 1 {
            true => make("ends", &[stages[0], stages[grid.pipeline - 1]]),
            false => Box::new(Solo),
        };
        Groups {
            tensor: make("tensor", &grid.tensor_group(at)),
            partial: make("partial", &grid.tensor_group(at)),
            pipeline: make("pipeline", &stages),
            data: make("data", &grid.data_group(at)),
            ends,
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
pub fn seat(groups: &Groups, m: &Manifest) -> Seat {
    let (rank, ranks) = (groups.pipeline.rank(), groups.pipeline.size());
    Seat { rank, ranks, chunks: m.topology.schedule.chunks() }
}

/// The layers of each virtual stage of a manifest's pipeline.
pub fn cuts(m: &Manifest) -> Vec<Range<usize>> {
    let stages = m.topology.pipeline * m.topology.schedule.chunks();
    match &m.topology.layer_split {
        LayerSplit::Uniform => split::uniform(m.model.layers, stages),
        LayerSplit::Balanced => {
            let costs = costs(&m.model, m.topology.recompute);
            split::balanced(m.model.layers, stages, costs)
        }
        LayerSplit::TransformerAndEmbedding => split::with_ends(m.model.layers, stages),
        LayerSplit::Explicit(sizes) => split::explicit(sizes),
    }
}

/// The part of the model this rank holds.
pub fn part(groups: &Groups, m: &Manifest) -> Part {
    let seat = seat(groups, m);
    let cuts = cuts(m);
    let chunk = |chunk| {
        let stage = seat.stage(chunk);
        let (first, last) = (stage == 0, stage + 1 == seat.stages());
        Chunk { layers: cuts[stage].clone(), first, last }
    };
    Part {
        chunks: (0..seat.chunks).map(chunk).collect(),
        tp: groups.tensor.size(),
        tp_rank: groups.tensor.rank(),
        dp: groups.data.size(),
    }
}

/// What a rank does in a step of `micros` micro-batches, and the slots it needs for that.
pub fn actions(seat: Seat, schedule: Schedule, micros: usize) -> (Vec<Action>, usize) {
    let rounds = match schedule {
        Schedule::OneFOneB => schedule::one_f_one_b(seat, micros),
        Schedule::GPipe => schedule::gpipe(micros),
        Schedule::Interleaved { .. } => schedule::interleaved(seat, micros),
    };
    schedule::with_slots(schedule::with_messages(seat, &rounds), seat.chunks)
}

/// What every rank of a pipeline does in a step of `micros` micro-batches.
pub fn orders(topology: &Topology, micros: usize) -> Vec<Vec<Action>> {
    let seat = |rank| Seat { rank, ranks: topology.pipeline, chunks: topology.schedule.chunks() };
    (0..topology.pipeline).map(|rank| actions(seat(rank), topology.schedule, micros).0).collect()
}

/// The most slots that a step of the run needs.
pub fn slots(groups: &Groups, m: &Manifest) -> usize {
    let micros = |global| div_exact(global, m.batch.micro * groups.data.size());
    let of = |global| actions(seat(groups, m), m.topology.schedule, micros(global)).1;
    m.batch.ramp().sizes().map(of).max().expect("a batch")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use crate::plan::timeline::{Costs, simulate};

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
            let loaded = manifest::parse(text, "test", std::path::Path::new("."), &sets);
            let m = loaded.unwrap_or_else(|problems| panic!("{problems}")).manifest;
            let stages = 4 * m.topology.schedule.chunks();
            let costs =
                Costs { forward: vec![1.0; stages], backward: vec![2.0; stages], message: 0.0 };
            let slots = |orders: &[Vec<Action>]| -> Vec<usize> {
                let used = |order: &Vec<Action>| order.iter().map(|a| a.pass().slot + 1).max();
                orders.iter().filter_map(used).collect()
            };
            let most = slots(&orders(&m.topology, 64));
            for micros in m.batch.ramp().sizes() {
                let orders = orders(&m.topology, micros);
                assert!(simulate(&orders, &costs).is_ok());
                let fits = slots(&orders).iter().zip(&most).all(|(used, most)| used <= most);
                assert!(fits, "{schedule}: {micros} micro-batches");
            }
        }
    }
}
