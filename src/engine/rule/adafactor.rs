//! Adafactor without momentum, in f32 (Shazeer & Stern 2018; `device::Adafactor` has the formulas).
//!
//! | parameter | states besides model and master weight |
//! |---|---|
//! | a matrix [rows, cols] | means of g² by row [rows], by column [cols] for each fused matrix |
//! | a vector | the whole second moment |
//!
//! The states are small, so every replica keeps them whole, on the device even if master weights
//! are on the host. A step all-reduces twice, for all parameters at once:
//!
//! 1. Σ g² by row and by column, and Σ θ²;
//! 2. Σ U², which needs the second moment from 1.
//!
//! A sum is taken over tensor-parallel ranks if they hold different elements, and over replicas if
//! each has a shard (ZeRO). The copy of a tied embedding contributes zero and receives the first
//! stage's values, so both stay bit-identical.

use super::{OptimizerRule, Place, SECOND, Step};
use crate::states::{Extent, MASTER, MODEL, ParamStates, StateSpec, rows_without_padding};
use base::DType;
use device::{self, InPlace, MatrixPart, SecondMoment, Tensor, op};
use manifest::{self, Model};
use model::mup::StepSize;
use model::{ParamSpec, TpSplit};

pub struct Adafactor {
    rule: device::Adafactor,
    scale_parameter: bool,
    dtype: DType,
    model: Model,
}

const ROW: &str = "row_mean";
const COL: &str = "col_mean";
/// States with means of the second moment.
pub const MEANS: [&str; 2] = [ROW, COL];

/// Ranks over which a group of sums is reduced.
#[derive(Clone, Copy)]
enum Among {
    /// Tensor-parallel ranks; those and then first and last stage; first and last stage only; none.
    Tensor,
    TensorTied,
    Tied,
    NoRanks,
}

/// Memory of the sums of one parameter, all f32.
struct Sums {
    /// Σ g² by row [rows]; None for a vector.
    rows: Option<Tensor>,
    /// Σ g² by column [fused, cols].
    cols: Tensor,
    /// Σ θ² [1, fused].
    weight: Tensor,
    /// Σ U² [1, fused].
    update: Tensor,
    /// Means of g² over fused matrices [1, fused].
    mean: Tensor,
}

/// Lengths of the sums by `Among`, in memory order.
#[derive(Clone, Copy, Default)]
struct SumLengths([usize; 4]);

impl SumLengths {
    /// Reserves the next `len` sums of a kind. Returns their offset, given the lengths of all kinds
    /// in `base`.
    fn take(&mut self, among: Among, len: usize, base: &SumLengths) -> usize {
        let kind = among as usize;
        let at = base.0[..kind].iter().sum::<usize>() + self.0[kind];
        self.0[kind] += len;
        at
    }

    fn total(&self) -> usize {
        self.0.iter().sum()
    }

    /// All-reduces the sums over their ranks.
    fn all_reduce(&self, step: &Step, sums: Tensor) {
        let [tensor, tensor_tied, tied, _] = self.0;
        let groups = step.at.groups;
        if tensor + tensor_tied > 0 {
            groups.tensor.all_reduce(sums.span(0, tensor + tensor_tied));
        }
        if step.at.sharded {
            groups.sum_over_pieces(step.be, sums);
        }
        if tensor_tied + tied > 0 {
            groups
                .embedding
                .all_reduce(sums.span(tensor, tensor_tied + tied));
        }
    }
}

/// Layout of the scratch: the sums of the two rounds, then the means.
#[derive(Clone, Copy, Default)]
struct ScratchLayout {
    first: SumLengths,
    second: SumLengths,
    means: usize,
}

impl Adafactor {
    pub fn new(settings: manifest::Adafactor, dtype: DType, model: &Model) -> Adafactor {
        let rule = device::Adafactor {
            lr: 0.0,
            relative_step: settings.relative_step,
            beta2_decay: settings.beta2_decay,
            eps: settings.eps,
            scale_eps: settings.scale_eps,
            clip_threshold: settings.clip_threshold,
            weight_decay: settings.weight_decay,
            lr_scale: 1.0,
        };
        let scale_parameter = settings.scale_parameter;
        Adafactor { rule, scale_parameter, dtype, model: model.clone() }
    }

    /// Elements that this rank updates, without rows that pad the vocabulary.
    fn part(&self, p: &ParamStates, tp_rank: usize) -> MatrixPart {
        let (param, spec) = (&p.param, &p.param.spec);
        let rows = rows_without_padding(param, tp_rank, self.model.vocab);
        let whole = if spec.vocab { self.model.vocab } else { spec.rows };
        let end = p.part.end.min(rows * param.cols);
        let first = p.part.start.min(end);
        let fused = spec.fused(&self.model);
        let whole = [whole, spec.cols];
        let cols = param.cols;
        MatrixPart { whole, rows, cols, first, len: end - first, fused }
    }

    /// Lays out the sums of all parameters. `base` holds the lengths of a previous, measuring call.
    fn lay_out(
        &self,
        params: &[ParamStates],
        base: &ScratchLayout,
        scratch: Tensor,
    ) -> (Vec<Sums>, ScratchLayout) {
        let mut layout = ScratchLayout::default();
        let (second, means) = (base.first.total(), base.first.total() + base.second.total());
        (
            params
                .iter()
                .map(|p| {
                    let (param, spec) = (&p.param, &p.param.spec);
                    let count = spec.fused(&self.model).count();
                    let vector = spec.rows == 1;
                    let among = |split: bool| match (split, spec.tied) {
                        (true, false) => Among::Tensor,
                        (true, true) => Among::TensorTied,
                        (false, true) => Among::Tied,
                        (false, false) => Among::NoRanks,
                    };
                    let by_row = among(spec.split == TpSplit::Cols && !vector);
                    let by_col = among(spec.split == TpSplit::Rows);
                    let whole = among(spec.split != TpSplit::Whole);
                    let first = &mut layout.first;
                    let mut take =
                        |among, len| scratch.span(first.take(among, len, &base.first), len);
                    let rows = (!vector).then(|| take(by_row, param.rows));
                    let cols = take(by_col, if vector { param.cols } else { count * param.cols });
                    let weight = take(whole, if self.scale_parameter { count } else { 0 });
                    let offset = second + layout.second.take(whole, count, &base.second);
                    let mean = scratch.span(means + layout.means, count);
                    layout.means += count;
                    Sums { rows, cols, weight, update: scratch.span(offset, count), mean }
                })
                .collect(),
            layout,
        )
    }

    fn scratch_layout(&self, params: &[ParamStates]) -> ScratchLayout {
        // Larger than any layout; never written.
        let unplaced = Tensor::at(0, 1, usize::MAX / 8, DType::F32);
        self.lay_out(params, &ScratchLayout::default(), unplaced).1
    }
}

impl OptimizerRule for Adafactor {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        let mean = |name, extent| StateSpec { extent, offloads: false, ..StateSpec::moment(name) };
        let mut states = vec![StateSpec::model(self.dtype), StateSpec::master()];
        match (param.rows, param.fused(&self.model).count()) {
            (1, _) => states.push(mean(SECOND, Extent::Cols)),
            (_, 1) => states.extend([mean(ROW, Extent::Rows), mean(COL, Extent::Cols)]),
            (_, n) => states.extend([mean(ROW, Extent::Rows), mean(COL, Extent::PartCols(n))]),
        }
        states
    }

    fn scratch(&self, _: &Place, params: &[ParamStates]) -> usize {
        let layout = self.scratch_layout(params);
        layout.first.total() + layout.second.total() + layout.means
    }

    fn needs_global_sums(&self) -> bool {
        true
    }

    fn begin(&self, step: &Step) {
        let rule = device::Adafactor { lr: step.lr, ..self.rule };
        step.be.run(op::AdafactorScalars {
            rule,
            updates: step.updates,
            y: step.scalars.span(1, 2).set(),
        });
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let rule = device::Adafactor { lr: step.lr, ..self.rule };
        let be = step.be;
        let scalars = step.scalars;
        let layout = self.scratch_layout(params);
        let (sums, _) = self.lay_out(params, &layout, step.scratch);
        let part = |p: &ParamStates| self.part(p, step.at.groups.tensor.rank());
        let with_sums = || params.iter().zip(&sums).map(|(p, sums)| (p, part(p), sums));
        let counted = || with_sums().filter(|(p, part, _)| !p.param.tied_copy && part.len > 0);
        be.run(op::Zero { x: step.scratch.set() });
        for (p, part, sums) in counted() {
            let x = p.grad.span(0, part.len);
            let factor = scalars.span(0, 1);
            let rows = sums.rows.map(|rows| rows.span(0, part.rows).add());
            be.run(op::FactorSums { x, factor, part, rows, cols: sums.cols.add() });
        }
        if self.scale_parameter {
            step.for_each_piece(params, false, &mut |i, piece| {
                let part = part(piece);
                if !piece.param.tied_copy && part.len > 0 {
                    let master = piece.get(MASTER).span(0, part.len);
                    be.run(op::FusedSquareSums { x: master, part, y: sums[i].weight.add() });
                }
            });
        }
        layout
            .first
            .all_reduce(step, step.scratch.span(0, layout.first.total()));
        for (p, part, sums) in with_sums() {
            let rows = sums.rows.map(|rows| rows.span(0, part.rows));
            let cols = sums.cols;
            let v = InPlace(second_moment(p, &part, sums));
            be.run(op::MoveSecondMoment { scalars, part, rows, cols, v });
        }
        for (p, part, sums) in counted() {
            let grad = p.grad.span(0, part.len);
            let v = second_moment(p, &part, sums);
            let y = sums.update.add();
            be.run(op::AdafactorSquareSums { rule, scalars, grad, part, v, y });
        }
        let second = step
            .scratch
            .span(layout.first.total(), layout.second.total());
        layout.second.all_reduce(step, second);
        step.for_each_piece(params, true, &mut |i, p| {
            let part = part(p);
            let sums = &sums[i];
            if part.len == 0 {
                return;
            }
            let weight_decay = if p.param.spec.decay { rule.weight_decay } else { 0.0 };
            let lr_scale = p.param.spec.step_factor(&self.model, StepSize::Elements);
            let rule = device::Adafactor { weight_decay, lr_scale, ..rule };
            let own = |x: Tensor| x.span(0, part.len);
            be.run(op::Adafactor {
                rule,
                scalars,
                grad: own(p.grad),
                part,
                v: second_moment(p, &part, sums),
                update_squares: sums.update,
                weight_squares: self.scale_parameter.then_some(sums.weight),
                master: InPlace(own(p.get(MASTER))),
                weight: own(p.get(MODEL)).set_unless(p.get(MASTER)),
            });
        });
    }
}

/// Second moment of a parameter.
fn second_moment(p: &ParamStates, part: &MatrixPart, sums: &Sums) -> SecondMoment {
    if part.is_vector() {
        return SecondMoment::Full(p.get(SECOND));
    }
    let row = p.get(ROW).span(0, part.rows);
    SecondMoment::Factored { row, col: p.get(COL), mean: sums.mean }
}
