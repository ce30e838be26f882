//! The optimizer's rule with changes: decay of other parameters, clipping by another norm, tied gradients
//! that are not summed.

use super::change::{Counted, TiedGradients, UpdateChange};
use device::{Tensor, op};
use engine::{OptimizerRule, ParamStates, Place, SavedStates, StateSpec, Step};
use exchange::foreign::Decayed;
use manifest::Manifest;
use model::{Module, ParamSpec, TpSplit, Weight};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// Values that pass between the rule and the loop over steps.
#[derive(Debug)]
pub struct StepFacts {
    /// Loss scale of the step.
    pub scale: Cell<f64>,
    /// Norm of the counted gradient in the last step; NaN before the first.
    pub norm: Cell<f64>,
}

/// Rule of the manifest, changed.
pub struct AlteredUpdate {
    inner: Box<dyn OptimizerRule>,
    change: UpdateChange,
    clip: Option<f32>,
    /// Layers of each pipeline stage of the trainer.
    stages: Vec<Range<usize>>,
    facts: Rc<StepFacts>,
}

impl AlteredUpdate {
    pub fn new(
        m: &Manifest,
        change: UpdateChange,
        stages: Vec<Range<usize>>,
        facts: Rc<StepFacts>,
    ) -> AlteredUpdate {
        let clip = m.optimizer.clip();
        AlteredUpdate { inner: engine::optimizer_rule(m), change, clip, stages, facts }
    }

    /// Norms of the whole gradient and of its counted part, without the loss scale.
    fn norms(&self, step: &Step, params: &[ParamStates]) -> [f64; 2] {
        let mut whole = 0.0;
        let mut counted = 0.0;
        let mut grad = Vec::new();
        for states in params {
            grad.resize(states.grad.numel(), 0.0);
            step.be
                .download(states.grad, bytemuck::cast_slice_mut(&mut grad));
            whole += squares(&grad);
            counted += self.counted(states, &grad);
        }
        [whole, counted].map(|squares| squares.sqrt() / self.facts.scale.get())
    }

    /// Sum of the counted squares of a parameter's gradient.
    fn counted(&self, states: &ParamStates, grad: &[f32]) -> f64 {
        let spec = &states.param.spec;
        let is_left_out = match self.change.tied {
            TiedGradients::Summed => false,
            TiedGradients::OnlyHead => spec.weight == Weight::TokenEmbed,
            TiedGradients::Separate | TiedGradients::OnlyLookup => spec.weight == Weight::HeadW,
        };
        if is_left_out {
            return 0.0;
        }
        let all = squares(grad);
        let counts = |counts: bool| if counts { all } else { 0.0 };
        match self.change.counted {
            Counted::Whole => all,
            Counted::TensorRank { rank, ranks } => share_squares(states, grad, rank, ranks),
            Counted::EveryCopy { ranks } if spec.split == TpSplit::Whole => ranks as f64 * all,
            Counted::EveryCopy { .. } => all,
            Counted::WithoutStage(stage) => counts(self.stage_of(states) != stage),
            Counted::OnlyStage(stage) => counts(self.stage_of(states) == stage),
            Counted::WithoutEmbedding => counts(spec.weight != Weight::TokenEmbed),
            Counted::WithoutVectors => counts(spec.rows > 1),
        }
    }

    /// Stage of the trainer that has a parameter.
    fn stage_of(&self, states: &ParamStates) -> usize {
        let last = self.stages.len() - 1;
        match states.param.spec.module {
            Module::Embed => 0,
            Module::Block => {
                let layer = exchange::layer_of(&states.param).unwrap_or(0);
                let found = self
                    .stages
                    .iter()
                    .position(|layers| layers.contains(&layer));
                found.unwrap_or(last)
            }
            _ => last,
        }
    }

    /// Multiplies the gradient's factor by that of the counted norm over that of the whole one.
    fn clip_again(&self, step: &Step, [whole, counted]: [f64; 2]) {
        let Some(clip) = self.clip.map(f64::from) else { return };
        let factor = |norm: f64| (clip / (norm + 1e-6)).min(1.0);
        let at = step.scalars.span(0, 1);
        let mut value = [0.0f32];
        step.be.download(at, bytemuck::cast_slice_mut(&mut value));
        value[0] *= (factor(counted) / factor(whole)) as f32;
        step.be.upload(bytemuck::cast_slice(&value), at);
    }

    /// Copies all states of one weight to another, as if the two were one.
    fn copy_states(step: &Step, params: &[ParamStates], from: Weight, to: Weight) {
        let find = |weight| {
            params
                .iter()
                .find(|states| states.param.spec.weight == weight)
        };
        let (Some(from), Some(to)) = (find(from), find(to)) else { return };
        let pairs: Vec<(Tensor, Tensor)> = from
            .iter()
            .zip(to.iter())
            .map(|((_, _, from), (_, _, to))| (from, to))
            .collect();
        for (x, y) in pairs {
            step.be.run(op::Copy { x, y: y.set() });
        }
    }
}

impl OptimizerRule for AlteredUpdate {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        self.inner.states(param)
    }

    fn scratch(&self, place: &Place, params: &[ParamStates]) -> usize {
        self.inner.scratch(place, params)
    }

    fn begin(&self, step: &Step) {
        self.inner.begin(step);
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let norms = self.norms(step, params);
        self.facts.norm.set(norms[1]);
        self.clip_again(step, norms);
        let changed: Vec<ParamStates> = params
            .iter()
            .map(|states| decayed(states, self.change.decayed))
            .collect();
        self.inner.update(step, &changed);
        match self.change.tied {
            TiedGradients::Summed | TiedGradients::Separate => {}
            TiedGradients::OnlyLookup => {
                AlteredUpdate::copy_states(step, params, Weight::TokenEmbed, Weight::HeadW);
            }
            TiedGradients::OnlyHead => {
                AlteredUpdate::copy_states(step, params, Weight::HeadW, Weight::TokenEmbed);
            }
        }
    }

    fn needs_global_sums(&self) -> bool {
        self.inner.needs_global_sums()
    }

    fn convert(&self, state: &StateSpec, saved: SavedStates) -> Option<engine::Conversion> {
        self.inner.convert(state, saved)
    }
}

/// The same states, with weight decay where the trainer has it.
fn decayed(states: &ParamStates, decayed: Decayed) -> ParamStates {
    let mut states = states.clone();
    let spec = &mut states.param.spec;
    spec.decay = match spec.weight {
        Weight::TokenEmbed => decayed.embedding,
        _ if spec.decay => true,
        _ => decayed.vectors,
    };
    states
}

fn squares(grad: &[f32]) -> f64 {
    grad.iter().map(|x| f64::from(*x).powi(2)).sum()
}

/// Sum of squares of one tensor rank's share; a parameter that is not split is whole on every rank.
fn share_squares(states: &ParamStates, grad: &[f32], rank: usize, ranks: usize) -> f64 {
    let param = &states.param;
    let rows = param.rows.div_ceil(ranks);
    let cols = param.cols.div_ceil(ranks);
    let mut sum = 0.0;
    for (number, row) in grad.chunks(param.cols).enumerate() {
        sum += match param.spec.split {
            TpSplit::Whole => squares(row),
            TpSplit::Rows if number / rows == rank => squares(row),
            TpSplit::Rows => 0.0,
            TpSplit::Cols => squares(&row[rank * cols..((rank + 1) * cols).min(row.len())]),
        };
    }
    sum
}
