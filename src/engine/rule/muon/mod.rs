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
//!    owner;
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
use base::{DType, decayed};
use comm::{Group, Message};
use device::{Arena, FusedMatrix, Momentum, Tensor, op};
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

/// Matrix of a round.
struct Job<'a> {
    param: &'a Param,
    /// None if this rank updates no part of it.
    kept: Option<&'a ParamStates>,
    /// Owner, among data-parallel and tensor-parallel ranks.
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

/// Buffers of a round's matrices, and workspaces for the matrices fused in this rank's own.
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
    fn products(&self) -> DType {
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
    fn scale(&self, [rows, cols]: [usize; 2]) -> f32 {
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
        let kept: HashMap<usize, &ParamStates> = params
            .iter()
            .map(|kept| (kept.param.offset, kept))
            .collect();
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
        let rounds = owners::rounds(&costs, replicas * at.groups.tensor.size());
        rounds
            .into_iter()
            .map(|round| {
                round
                    .into_iter()
                    .map(|(piece, owner)| {
                        let param = matrices[piece];
                        let kept = kept.get(&param.offset).copied();
                        Job { param, kept, data: owner % replicas, tensor: owner / replicas }
                    })
                    .collect()
            })
            .collect()
    }

    fn lay_out(&self, at: &Place, round: &[Job], arena: &Arena) -> RoundBuffers {
        let dtype = self.products();
        let shares = at.groups.tensor.size();
        let plan = |job| MatrixBuffers::plan(at, job, dtype, arena);
        let matrices = round.iter().map(plan).collect();
        let own = round.iter().find(|job| job.is_owner(at));
        // Workspaces of fused matrices overlap, because they are used one after the other.
        let work = |one: FusedMatrix| {
            (one, arena.temporary(|arena| Workspace::plan(one.size(), dtype, arena)))
        };
        RoundBuffers {
            matrices,
            work: own.map_or(Vec::new(), |job| {
                self.matrices(&job.param.spec, shares).map(work).collect()
            }),
        }
    }

    fn round(&self, step: &Step, round: &[Job]) {
        let be = step.be;
        let at = &step.at;
        let RoundBuffers { matrices, work } = self.lay_out(at, round, &Arena::over(step.scratch));
        let jobs = || round.iter().zip(&matrices);
        let updated = || jobs().filter_map(|(job, buffers)| Some((job.kept?, buffers.own)));
        let factor = step.scalars.span(0, 1);
        let manifest::Muon { momentum, nesterov, weight_decay, .. } = self.settings;
        for (kept, own) in updated().filter(|(_, own)| own.numel() > 0) {
            let rule = Momentum { momentum, nesterov };
            be.run(op::Momentum {
                rule,
                factor,
                grad: kept.grad,
                m: kept.get(MOMENTUM),
                y: own.set(),
            });
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
                let made = self.newton_schulz.run(be, work, self.scale(one.size()));
                be.run(op::Fuse { one: made, which: *one, all: whole.set() });
            }
        }
        exchange(&*at.groups.tensor, shares(Direction::FromOwner));
        exchange(&*at.groups.grad_sum, parts(Direction::FromOwner));
        for (kept, own) in updated().filter(|(_, own)| own.numel() > 0) {
            let weight_decay = if kept.param.spec.decay { weight_decay } else { 0.0 };
            let lr = step.lr * kept.param.spec.step_factor(&self.model, self.step_size());
            be.run(op::MuonUpdate {
                keep: decayed(step.lr, weight_decay),
                step: lr,
                factor,
                direction: own,
                master: kept.get(MASTER),
                weight: kept.get(MODEL),
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

    fn scratch(&self, at: &Place, params: &[ParamStates]) -> usize {
        let arena = Arena::measuring();
        for round in self.rounds(at, params) {
            arena.temporary(|arena| self.lay_out(at, &round, arena));
        }
        arena.peak().div_ceil(DType::F32.size())
    }

    fn begin(&self, step: &Step) {
        self.adamw.begin(&self.adamw_step(step));
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let rest = params.iter().filter(|p| !p.param.spec.is_block_matrix());
        self.adamw.update_all(&self.adamw_step(step), rest);
        self.rounds(&step.at, params)
            .iter()
            .for_each(|round| self.round(step, round));
    }
}

/// Elements of this tensor-parallel rank's share of a parameter that a replica updates.
fn part(at: &Place, param: &Param, replica: usize) -> Range<usize> {
    if !at.sharded {
        return 0..param.numel();
    }
    let shard = at.layout.buckets[param.bucket].shard(at.layout.shard.dp, replica);
    let inside = |element: usize| element.clamp(param.offset, param.range().end) - param.offset;
    inside(shard.start)..inside(shard.end)
}

impl Job<'_> {
    fn is_owner(&self, at: &Place) -> bool {
        (self.data, self.tensor) == (at.groups.grad_sum.rank(), at.groups.tensor.rank())
    }
}

impl MatrixBuffers {
    fn plan(at: &Place, job: &Job, dtype: DType, arena: &Arena) -> MatrixBuffers {
        let numel = job.param.numel();
        let replica = at.groups.grad_sum.rank();
        let part = part(at, job.param, replica);
        let row = |len| arena.matrix(1, len, dtype);
        if job.data != replica {
            return MatrixBuffers { whole: None, share: None, own: row(part.len()) };
        }
        let tensor = &at.groups.tensor;
        let whole = job.is_owner(at).then(|| row(tensor.size() * numel));
        let share =
            whole.map_or_else(|| row(numel), |whole| whole.span(tensor.rank() * numel, numel));
        MatrixBuffers { whole, share: Some(share), own: share.span(part.start, part.len()) }
    }

    /// Messages among replicas: parts of the direction to the owner's replica, or of the step from
    /// it.
    fn parts(&self, at: &Place, job: &Job, direction: Direction) -> Vec<Message> {
        let data = &at.groups.grad_sum;
        let messages: Vec<Message> = match self.share {
            None => vec![direction.with_owner(job.data, self.own)],
            Some(share) => {
                let others = (0..data.size()).filter(|replica| *replica != data.rank());
                let part = |replica| part(at, job.param, replica);
                let place = |part: Range<usize>| share.span(part.start, part.len());
                others
                    .map(|replica| direction.with_other(replica, place(part(replica))))
                    .collect()
            }
        };
        messages
            .into_iter()
            .filter(|message| match message {
                Message::Send { x, .. } | Message::Recv { x, .. } => x.numel() > 0,
            })
            .collect()
    }

    /// Messages among tensor-parallel ranks of the owner's replica: their shares.
    fn shares(&self, at: &Place, job: &Job, direction: Direction) -> Vec<Message> {
        let (tensor, Some(share)) = (&at.groups.tensor, self.share) else { return Vec::new() };
        let Some(whole) = self.whole else { return vec![direction.with_owner(job.tensor, share)] };
        let others = (0..tensor.size()).filter(|rank| *rank != tensor.rank());
        let place = |rank| whole.span(rank * share.numel(), share.numel());
        others
            .map(|rank| direction.with_other(rank, place(rank)))
            .collect()
    }
}

/// Direction of messages between an owner and the other ranks.
#[derive(Clone, Copy)]
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
