//! AdamW, in f32 (Loshchilov & Hutter 2019).

use super::coded::{self, FIRST, SECOND, SavedStates};
use super::{Conversion, OptimizerRule, Step};
use crate::states::{MASTER, MODEL, ParamStates, StateSpec};
use base::DType;
use device::{AdamWUpdate, InPlace, op};
use manifest::{self, Model, OptimizerName};
use model::ParamSpec;
use model::mup::StepSize;

pub struct AdamW {
    rule: device::AdamW,
    dtype: DType,
    model: Model,
}

impl AdamW {
    pub fn new(settings: manifest::AdamW, dtype: DType, model: &Model) -> AdamW {
        let manifest::AdamW { beta1, beta2, eps, weight_decay, .. } = settings;
        let rule = device::AdamW { lr: 0.0, beta1, beta2, eps, weight_decay, lr_scale: 1.0 };
        AdamW { rule, dtype, model: model.clone() }
    }

    /// Constants of the update of a parameter in a step.
    pub fn constants(&self, step: &Step, p: &ParamStates) -> device::AdamW {
        let spec = &p.param.spec;
        let weight_decay = if spec.decay { self.rule.weight_decay } else { 0.0 };
        let lr_scale = spec.step_factor(&self.model, StepSize::Elements);
        device::AdamW { lr: step.lr, weight_decay, lr_scale, ..self.rule }
    }

    /// Updates the parameters of which this rank has a part.
    pub fn update_all<'a>(&self, step: &Step, params: impl Iterator<Item = &'a ParamStates>) {
        let updates: Vec<_> = params
            .filter(|p| !p.part.is_empty())
            .map(|p| {
                let names = [MODEL, MASTER, FIRST.plain, SECOND.plain];
                let [weight, master, m, v] = names.map(|name| p.get(name));
                AdamWUpdate {
                    rule: self.constants(step, p),
                    grad: p.grad,
                    master: InPlace(master),
                    m: InPlace(m),
                    v: InPlace(v),
                    weight: weight.set_unless(master),
                }
            })
            .collect();
        step.be
            .run(op::AdamW { scalars: step.scalars, updates: &updates });
    }
}

impl OptimizerRule for AdamW {
    fn states(&self, _: &ParamSpec) -> Vec<StateSpec> {
        let [first, second] = [FIRST, SECOND].map(|moment| StateSpec::moment(moment.plain));
        vec![StateSpec::model(self.dtype), StateSpec::master(), first, second]
    }

    fn begin(&self, step: &Step) {
        let rule = device::AdamW { lr: step.lr, ..self.rule };
        step.be.run(op::AdamScalars {
            rule,
            updates: step.updates,
            y: step.scalars.span(1, 2).set(),
        });
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        self.update_all(step, params.iter());
    }

    fn resumes_from(&self, rule: &str) -> bool {
        rule == OptimizerName::Adam8bit.name()
    }

    fn convert(&self, state: &StateSpec, saved: SavedStates) -> Option<Conversion> {
        coded::convert(state, 0, saved)
    }
}
