//! Optimizer rules: which states a parameter has, and how a step updates them.

mod adafactor;
mod adam8bit;
mod adamw;
mod coded;
mod extended;
mod muon;
mod newton_schulz;
mod owners;
mod powersgd;

pub use coded::{Saved, decoded};
pub use powersgd::{ERROR, Q};

/// The second moment, which is never below zero.
pub const SECOND: &str = coded::SECOND.plain;

use super::groups::{Groups, model_dtype};
use super::masters::{self, Masters};
use super::states::{ParamStates, StateSpec, TensorSlice};
use super::update_norm::UpdateNorm;
use adafactor::Adafactor;
use adam8bit::Adam8bit;
use adamw::AdamW;
use device::{Backend, Tensor};
use extended::Extended;
use manifest::{Manifest, Optimizer};
use model::{Layout, ParamSpec};
use muon::Muon;

/// An optimizer. An update that is late runs on a thread of its own, hence `Sync`.
pub trait OptimizerRule: Sync {
    /// What is kept of a parameter, its model weight first; the same on every grid. ZeRO shares what
    /// has the parameter's columns (`Extent::is_sharded`); the rest every replica keeps whole.
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec>;

    /// How many f32 of scratch (`Step::scratch`) an update of these needs.
    fn scratch(&self, _: &Place, _: &[ParamStates]) -> usize {
        0
    }

    /// Once a step, on the device, before `update`: the rule's own numbers in `Step::scalars`.
    fn begin(&self, _: &Step) {}

    /// Updates the states of parameters from their gradients times `Step::factor`; a factor that is
    /// NaN changes nothing. Leaves the model weight rounded from the master weight. Called once for
    /// all parameters; where states lie on the host, with the host's backend and several times, each
    /// for some of them, and a parameter whose states are all sharded may come in several parts.
    fn update(&self, step: &Step, params: &[ParamStates]);

    /// Whether an update has sums over all parameters and ranks. It then runs on the device, for all
    /// parameters at once, also where master weights lie on the host: these come to the device in
    /// pieces (`Step::each_piece`), and no other state lies on the host.
    fn sums_up(&self) -> bool {
        false
    }

    /// Whether a run may go on from the states that another rule saved, of which `convert` makes
    /// this rule's. `rule` is the other's name in manifests.
    fn goes_on_from(&self, rule: &str) -> bool {
        let _ = rule;
        false
    }

    /// How a state is made of what a checkpoint has in another form. None: it has it in this form,
    /// or in none that the rule can read.
    fn convert(&self, state: &StateSpec, saved: Saved) -> Option<Conversion> {
        let _ = (state, saved);
        None
    }
}

/// How a state of a parameter is made of other states, when a checkpoint is read.
pub struct Conversion {
    /// The states that are read.
    pub from: Vec<StateSpec>,
    pub make: Make,
}

/// The bytes of what a state has of a part of the parameter, from the bytes of what the states of
/// `Conversion::from` have of it (of blocks of columns: all that the part touches).
pub type Make = Box<dyn Fn(TensorSlice, &[Vec<u8>]) -> Vec<u8> + Send + Sync>;

/// Where a rank is, and what it holds of the model.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub groups: &'a Groups,
    pub layout: &'a Layout,
    /// Whether each data-parallel rank updates a share only (ZeRO).
    pub sharded: bool,
}

/// What an update is by.
pub struct Step<'a> {
    pub be: &'a dyn Backend,
    pub at: Place<'a>,
    pub lr: f32,
    /// f32 [1, 3]: the gradients' factor (loss scale and clipping), then two numbers for the rule.
    pub scalars: Tensor,
    /// i64 [1, 1]: updates made, this one among them.
    pub updates: Tensor,
    /// f32 [1, n] of any content: what `OptimizerRule::scratch` asked for.
    pub scratch: Tensor,
    /// Of master weights that lie on the host, for a rule that sums up.
    pub masters: Option<&'a Masters>,
    /// Where the norm of the update is taken.
    pub norm: Option<&'a UpdateNorm>,
}

impl Step<'_> {
    /// Calls `work` with the number of a parameter and a piece of it, for all pieces of all, in their
    /// order: with the master and the model weight where the rule updates. Whether `work` changes
    /// them is to be said.
    pub fn each_piece(
        &self,
        params: &[ParamStates],
        changes: bool,
        work: &mut dyn FnMut(usize, &ParamStates),
    ) {
        match self.masters {
            None => masters::each_in_place(params, work),
            Some(masters) => masters.each(self.be, params, changes, work),
        }
    }

    /// Calls `work` for parameters whose master weights it updates: for all of them at once, or for
    /// pieces where the norm of the update is taken.
    pub fn change(&self, params: &[&ParamStates], work: &mut dyn FnMut(&[&ParamStates])) {
        match self.norm {
            None => work(params),
            Some(norm) => norm.around(self.be, params, work),
        }
    }
}

/// The rule of a manifest, with what a late update and the compression of gradients keep.
pub fn of(m: &Manifest) -> Box<dyn OptimizerRule> {
    let model = model_dtype(m.precision);
    let rule: Box<dyn OptimizerRule> = match m.optimizer {
        Optimizer::AdamW(settings) => Box::new(AdamW::new(settings, model, &m.model)),
        Optimizer::Adam8bit(settings) => Box::new(Adam8bit::new(settings, model, &m.model)),
        Optimizer::Adafactor(settings) => Box::new(Adafactor::new(settings, model, &m.model)),
        Optimizer::Muon(ref settings) => Box::new(Muon::new(settings.clone(), model, &m.model)),
    };
    let rule: Box<dyn OptimizerRule> = match m.topology.offload.delay {
        0 => rule,
        _ => Box::new(Extended::new(rule, Box::new(|_| vec![StateSpec::pending()]))),
    };
    match m.topology.compression.filter(|_| m.topology.data > 1) {
        Some(settings) => {
            Box::new(Extended::new(rule, powersgd::states(settings, m.topology.tensor)))
        }
        None => rule,
    }
}
