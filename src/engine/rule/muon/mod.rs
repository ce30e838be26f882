//! Muon (Jordan et al. 2024, as in PyTorch; scaled as by Liu et al. 2025) for the blocks' matrices,
//! AdamW for all other parameters.
//!
//! | parameter | states besides model and master weight |
//! |---|---|
//! | a matrix of a block | its momentum, sharded by ZeRO |
//! | any other | AdamW's moments |
//!
//! Among the ranks that share a stage's layers by tensor and data parallelism, one owner
//! orthogonalises the whole matrix (`owners`). The arithmetic is the same on every grid. Rounds of
//! one matrix per rank:
//!
//! 1. every rank updates the momentum of its part, which gives its part of the direction;
//! 2. under ZeRO the parts are sent to the ranks of the owner's replica, then from there to the
//!    owner; of copies with equal states, those of the owner's copy are sent;
//! 3. the owner splits fused matrices, orthogonalises each, and joins them again;
//! 4. the steps return the same way: without ZeRO to all replicas, which have the whole weight.
//!
//! For each parameter that it updates under ZeRO, a rank sends and receives at most two numbers of
//! the products' type.

#[cfg(test)]
mod tests;

use super::adamw::AdamW;
use super::newton_schulz::{NewtonSchulz, Workspace};
use super::owners;
use super::{OptimizerRule, Place, Step};
use crate::states::{MASTER, MODEL, ParamStates, StateSpec};
use base::{DType, decay_factor};
use comm::{Group, Message};
use device::{Arena, FusedMatrix, InPlace, Momentum, Tensor, op};
use manifest::{self, Model, MuonScale};
use model::mup::StepSize;
use model::{Param, ParamSpec, TpSplit};
use std::collections::HashMap;
use std::ops::Range;

pub struct Muon {
    settings: manifest::Muon,
    newton_schulz: NewtonSchulz,
    adamw: AdamW,
    dtype: DType,
    model: Model,
}

const MOMENTUM: &str = "momentum";

/// Matrix of a round, and its owner.
struct Job<'a> {
    param: &'a Param,
    /// None if this rank updates no part of it.
    states: Option<&'a ParamStates>,
    owner: StageRank,
}

/// Coordinates of a rank among the data-parallel and tensor-parallel ranks of a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StageRank {
    data: usize,
    tensor: usize,
}

/// Buffers on this rank for the direction of a matrix, and later its step.
struct MatrixBuffers {
    /// On the owner: the whole matrix, share after share.
    whole: Option<Tensor>,
    /// In the owner's replica: this rank's share.
    share: Option<Tensor>,
    /// Elements that this rank updates; a part of the share, if that exists.
    own: Tensor,
}

/// Buffers of a round's matrices, and workspaces for the matrices fused in the one that this rank owns.
struct RoundBuffers {
    matrices: Vec<MatrixBuffers>,
    work: Vec<(FusedMatrix, Workspace)>,
}

impl Muon {
    pub fn new(settings: manifest::Muon, dtype: DType, model: &Model) -> Muon {
        let manifest::MuonAdamW { beta1, beta2, eps, weight_decay, .. } = settings.adamw;
        let adamw = manifest::AdamW { beta1, beta2, eps, weight_decay, clip: None };
        let newton_schulz = NewtonSchulz::new(&settings);
        let adamw = AdamW::new(adamw, dtype, model);
        Muon { settings, newton_schulz, adamw, dtype, model: model.clone() }
    }

    /// Dtype of the matrix products and of the messages between ranks.
    fn product_dtype(&self) -> DType {
        if self.dtype == DType::BF16 { DType::BF16 } else { DType::F32 }
    }

    /// Matrices of a parameter that are orthogonalised separately.
    fn matrices(&self, spec: &ParamSpec, tensor: usize) -> impl Iterator<Item = FusedMatrix> {
        let ParamSpec { rows, cols, .. } = *spec;
        let shares = if spec.split == TpSplit::Cols { tensor } else { 1 };
        let fused = spec.fused(&self.model);
        (0..fused.count()).map(move |number| FusedMatrix { rows, cols, shares, fused, number })
    }

    /// Factor of a matrix's step.
    fn step_scale(&self, size: [usize; 2]) -> f32 {
        let [rows, cols] = size;
        match self.settings.scale {
            MuonScale::MatchRmsAdamw => (0.2 * (rows.max(cols) as f64).sqrt()) as f32,
            MuonScale::Original => (rows as f64 / cols as f64).max(1.0).sqrt() as f32,
        }
    }

    fn step_size(&self) -> StepSize {
        match self.settings.scale {
            MuonScale::MatchRmsAdamw => StepSize::OrthogonalElements,
            MuonScale::Original => StepSize::SpectralNorm,
        }
    }

    fn rounds<'a>(&self, at: &Place<'a>, params: &'a [ParamStates]) -> Vec<Vec<Job<'a>>> {
        let by_offset: HashMap<usize, &ParamStates> =
            params.iter().map(|p| (p.param.offset, p)).collect();
        let matrices: Vec<&Param> = at
            .layout
            .params()
            .filter(|param| param.spec.is_block_matrix())
            .collect();
        let costs: Vec<u64> = matrices
            .iter()
            .map(|param| {
                self.matrices(&param.spec, 1)
                    .map(|one| self.newton_schulz.flops(one.size()))
                    .sum()
            })
            .collect();
        let replicas = at.groups.grad_sum.size();
        let new_job = |(matrix, owner): owners::Owned| {
            let param = matrices[matrix];
            let states = by_offset.get(&param.offset).copied();
            let owner = StageRank { data: owner % replicas, tensor: owner / replicas };
            Job { param, states, owner }
        };
        owners::rounds(&costs, replicas * at.groups.tensor.size())
            .into_iter()
            .map(|round| round.into_iter().map(new_job).collect())
            .collect()
    }

    /// Lays out the buffers of a rank.
    fn lay_out(&self, at: &Place, rank: StageRank, round: &[Job], arena: &Arena) -> RoundBuffers {
        let dtype = self.product_dtype();
        let shares = at.groups.tensor.size();
        let matrices = round
            .iter()
            .map(|job| MatrixBuffers::plan(at, rank, job, dtype, arena))
            .collect();
        let mut work = Vec::new();
        if let Some(job) = round.iter().find(|job| job.owner == rank) {
            for one in self.matrices(&job.param.spec, shares) {
                // Workspaces of fused matrices overlap, because they are used one after the other.
                let space = arena.temporary(|arena| Workspace::plan(one.size(), dtype, arena));
                work.push((one, space));
            }
        }
        RoundBuffers { matrices, work }
    }

    fn run_round(&self, step: &Step, round: &[Job]) {
        let be = step.be;
        let at = &step.at;
        let arena = Arena::over(step.scratch);
        let RoundBuffers { matrices, work } = self.lay_out(at, StageRank::this(at), round, &arena);
        let jobs = || round.iter().zip(&matrices);
        let updates = || {
            jobs()
                .filter_map(|(job, buffers)| Some((job.states?, buffers.own)))
                .filter(|(_, own)| own.numel() > 0)
        };
        let factor = step.scalars.span(0, 1);
        let manifest::Muon { momentum, nesterov, weight_decay, .. } = self.settings;
        for (p, own) in updates() {
            let rule = Momentum { momentum, nesterov };
            let m = InPlace(p.get(MOMENTUM));
            be.run(op::Momentum { rule, factor, grad: p.grad, m, y: own.set() });
        }
        let parts = |direction| jobs().flat_map(move |(job, b)| b.parts(at, job, direction));
        let shares = |direction| jobs().flat_map(move |(job, b)| b.shares(at, job, direction));
        if at.sharded {
            exchange(&*at.groups.grad_sum, parts(Direction::ToOwner));
        }
        exchange(&*at.groups.tensor, shares(Direction::ToOwner));
        if let Some(whole) = matrices.iter().find_map(|buffers| buffers.whole) {
            for (one, work) in &work {
                be.run(op::Unfuse { all: whole, which: *one, one: work.x[0].set() });
                let result = self
                    .newton_schulz
                    .run(be, work, self.step_scale(one.size()));
                be.run(op::Fuse { one: result, which: *one, all: InPlace(whole) });
            }
        }
        exchange(&*at.groups.tensor, shares(Direction::FromOwner));
        exchange(&*at.groups.grad_sum, parts(Direction::FromOwner));
        for (p, own) in updates() {
            let weight_decay = if p.param.spec.decay { weight_decay } else { 0.0 };
            let lr = step.lr * p.param.spec.step_factor(&self.model, self.step_size());
            be.run(op::MuonUpdate {
                keep: decay_factor(step.lr, weight_decay),
                step: lr,
                factor,
                direction: own,
                master: InPlace(p.get(MASTER)),
                weight: p.get(MODEL).set_unless(p.get(MASTER)),
            });
        }
    }

    /// Step with AdamW's learning rate.
    fn adamw_step<'a>(&self, step: &Step<'a>) -> Step<'a> {
        Step { lr: step.lr * self.settings.adamw.lr_scale, ..*step }
    }
}

impl OptimizerRule for Muon {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        if !param.is_block_matrix() {
            return self.adamw.states(param);
        }
        let model = StateSpec::model(self.dtype);
        let momentum = StateSpec::moment(MOMENTUM);
        vec![model, StateSpec::master(), momentum]
    }

    /// Owners differ in their matrices, and others in their parts: every rank reserves what the one
    /// with most needs.
    fn scratch(&self, at: &Place, params: &[ParamStates]) -> usize {
        let replicas = at.groups.grad_sum.size();
        let arena = Arena::measuring();
        for round in self.rounds(at, params) {
            let owners = round.iter().map(|job| job.owner);
            let others = (0..replicas).map(|data| StageRank { data, tensor: 0 });
            for rank in owners.chain(others) {
                arena.temporary(|arena| self.lay_out(at, rank, &round, arena));
            }
        }
        arena.peak().div_ceil(DType::F32.size())
    }

    fn begin(&self, step: &Step) {
        self.adamw.begin(&self.adamw_step(step));
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let rest = params.iter().filter(|p| !p.param.spec.is_block_matrix());
        self.adamw.update_all(&self.adamw_step(step), rest);
        for round in self.rounds(&step.at, params) {
            self.run_round(step, &round);
        }
    }
}

/// Elements of this tensor-parallel rank's share of a parameter that a replica updates.
fn part_of_replica(at: &Place, param: &Param, replica: usize) -> Range<usize> {
    if !at.sharded {
        return 0..param.numel();
    }
    let levels = at.groups.levels.for_replica(replica);
    let shard = at.layout.buckets[param.bucket].shard(levels.pieces(), levels.piece());
    let inside = |element: usize| element.clamp(param.offset, param.range().end) - param.offset;
    inside(shard.start)..inside(shard.end)
}

impl StageRank {
    fn this(at: &Place) -> StageRank {
        StageRank { data: at.groups.grad_sum.rank(), tensor: at.groups.tensor.rank() }
    }
}

impl MatrixBuffers {
    fn plan(at: &Place, rank: StageRank, job: &Job, dtype: DType, arena: &Arena) -> MatrixBuffers {
        let numel = job.param.numel();
        let part = part_of_replica(at, job.param, rank.data);
        let row = |len| arena.matrix(1, len, dtype);
        if job.owner.data != rank.data {
            return MatrixBuffers { whole: None, share: None, own: row(part.len()) };
        }
        let whole = (job.owner == rank).then(|| row(at.groups.tensor.size() * numel));
        let share =
            whole.map_or_else(|| row(numel), |whole| whole.span(rank.tensor * numel, numel));
        MatrixBuffers { whole, share: Some(share), own: share.span(part.start, part.len()) }
    }

    /// Messages among replicas: parts of the direction to the owner's replica, or of the step from
    /// it.
    fn parts(&self, at: &Place, job: &Job, direction: Direction) -> Vec<Message> {
        let replicas = &at.groups.grad_sum;
        let levels = at.groups.levels;
        let takes_part = |replica: &usize| {
            let same_states = levels.for_replica(*replica).states_copy() == levels.states_copy();
            *replica != replicas.rank() && (direction == Direction::FromOwner || same_states)
        };
        let mut messages = Vec::new();
        match self.share {
            None if takes_part(&job.owner.data) => {
                messages.push(direction.with_owner(job.owner.data, self.own));
            }
            None => {}
            Some(share) => {
                for replica in (0..replicas.size()).filter(takes_part) {
                    let part = part_of_replica(at, job.param, replica);
                    let x = share.span(part.start, part.len());
                    messages.push(direction.with_other(replica, x));
                }
            }
        }
        messages.retain(|message| message.tensor().numel() > 0);
        messages
    }

    /// Messages among tensor-parallel ranks of the owner's replica: their shares.
    fn shares(&self, at: &Place, job: &Job, direction: Direction) -> Vec<Message> {
        let (tensor, Some(share)) = (&at.groups.tensor, self.share) else { return Vec::new() };
        let Some(whole) = self.whole else {
            return vec![direction.with_owner(job.owner.tensor, share)];
        };
        (0..tensor.size())
            .filter(|rank| *rank != tensor.rank())
            .map(|rank| {
                let x = whole.span(rank * share.numel(), share.numel());
                direction.with_other(rank, x)
            })
            .collect()
    }
}

/// Direction of messages between an owner and the other ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToOwner,
    FromOwner,
}

impl Direction {
    /// Message to another rank, from the owner's point of view.
    fn with_other(self, rank: usize, x: Tensor) -> Message {
        match self {
            Direction::FromOwner => Message::Send { to: rank, x },
            Direction::ToOwner => Message::Recv { from: rank, x },
        }
    }

    /// Message between the owner and this rank, from this rank's point of view.
    fn with_owner(self, owner: usize, x: Tensor) -> Message {
        match self {
            Direction::ToOwner => Message::Send { to: owner, x },
            Direction::FromOwner => Message::Recv { from: owner, x },
        }
    }
}

fn exchange(group: &dyn Group, messages: impl Iterator<Item = Message>) {
    let messages: Vec<Message> = messages.collect();
    if !messages.is_empty() {
        group.exchange(&messages);
    }
}
