//! The groups a rank belongs to, and what follows from its place in them.

use crate::base::div_exact;
use crate::comm::{Group, Solo, World};
use crate::device::Tensor;
use crate::manifest::{LayerSplit, Manifest, Neighbours, Schedule, Topology};
use crate::model::Part;
use crate::plan::grid::Grid;
use crate::plan::schedule::{self, Action};
use crate::plan::split;

/// Makes a group of a name and ranks of the world.
pub type Make<'a> = dyn Fn(&str, &[usize]) -> Box<dyn Group> + 'a;

pub struct Groups {
    /// Ranks that hold the other shares of the same layers.
    pub tensor: Box<dyn Group>,
    /// The other stages of the same replica.
    pub pipeline: Box<dyn Group>,
    /// The other replicas.
    pub data: Box<dyn Group>,
    /// The first and the last stage, who both hold a tied embedding.
    pub ends: Box<dyn Group>,
}

/// The rank grid of a topology.
fn grid(topology: &Topology) -> Grid {
    Grid {
        tensor: topology.tensor,
        pipeline: topology.pipeline,
        data: topology.data,
        data_first: topology.neighbours == Neighbours::Data,
    }
}

impl Groups {
    /// One rank, alone in every group.
    pub fn solo() -> Groups {
        let solo = || -> Box<dyn Group> { Box::new(Solo) };
        Groups { tensor: solo(), pipeline: solo(), data: solo(), ends: solo() }
    }

    /// This rank's groups in the grid. Every rank of the world calls this.
    pub fn new(world: &World, topology: &Topology) -> Groups {
        Groups::of(world.rank(), topology, &|name, ranks| world.group(name, ranks))
    }

    /// The same, of groups that `make` makes.
    pub fn of(rank: usize, topology: &Topology, make: &Make) -> Groups {
        let grid = grid(topology);
        let at = grid.place(rank);
        let stages = grid.pipeline_group(at);
        let ends = match [0, grid.pipeline - 1].contains(&at.pipeline) && grid.pipeline > 1 {
            true => make("ends", &[stages[0], stages[grid.pipeline - 1]]),
            false => Box::new(Solo),
        };
        Groups {
            tensor: make("tensor", &grid.tensor_group(at)),
            pipeline: make("pipeline", &stages),
            data: make("data", &grid.data_group(at)),
            ends,
        }
    }

    /// x = Σ over all ranks that do not merely repeat it (the last stage alone has a loss).
    pub fn sum_over_stages_and_replicas(&self, x: Tensor) {
        self.pipeline.all_reduce(x);
        self.data.all_reduce(x);
    }
}

/// The part of the model this rank holds.
pub fn part(groups: &Groups, m: &Manifest) -> Part {
    let (stage, stages) = (groups.pipeline.rank(), groups.pipeline.size());
    let cuts = match &m.topology.layer_split {
        LayerSplit::Balanced if stages > 1 => unreachable!("`runnable` refuses pipelines"),
        LayerSplit::Uniform | LayerSplit::Balanced => split::uniform(m.model.layers, stages),
        LayerSplit::TransformerAndEmbedding => split::with_ends(m.model.layers, stages),
        LayerSplit::Explicit(sizes) => split::explicit(sizes),
    };
    Part {
        layers: cuts[stage].clone(),
        first: stage == 0,
        last: stage + 1 == stages,
        tp: groups.tensor.size(),
        tp_rank: groups.tensor.rank(),
        dp: groups.data.size(),
    }
}

/// Micro-batches of each replica in a step of `global` samples.
pub fn micros(groups: &Groups, m: &Manifest, global: usize) -> usize {
    div_exact(global, m.batch.micro * groups.data.size())
}

/// The order of this stage's forwards and backwards.
pub fn order(groups: &Groups, m: &Manifest, micros: usize) -> Vec<Action> {
    let (stage, stages) = (groups.pipeline.rank(), groups.pipeline.size());
    match m.topology.schedule {
        Schedule::OneFOneB => schedule::one_f_one_b(stage, stages, micros),
        Schedule::GPipe => schedule::gpipe(micros),
        Schedule::Interleaved { .. } => unreachable!("`runnable` refuses interleaved schedules"),
    }
}
