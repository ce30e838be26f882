//! Optimizer rules: the states of a parameter, and the update of a step.

mod adafactor;
mod adam8bit;
mod adamw;
mod coded;
mod extra_states;
mod muon;
mod newton_schulz;
mod owners;
mod powersgd;

pub use coded::{SavedStates, decoding_conversions};
pub use powersgd::{ERROR, Q};

/// The second moment.
pub const SECOND: &str = coded::SECOND.plain;

/// Whether an update keeps a state of this name at 0 or above: second moments, whole or by row and column,
/// and the scales of codes.
pub fn is_never_negative(state: &str) -> bool {
    let scales = [coded::FIRST.scales, coded::SECOND.scales];
    state == SECOND || adafactor::MEANS.contains(&state) || scales.contains(&state)
}

use super::groups::{Groups, model_dtype};
use super::masters::{self, MasterWindows};
use super::states::{ParamStates, StateSpec, TensorSlice};
use adafactor::Adafactor;
use adam8bit::Adam8bit;
use adamw::AdamW;
use device::{Backend, Tensor};
use extra_states::WithExtraStates;
use manifest::{Manifest, Optimizer};
use model::{Layout, ParamSpec};
use muon::Muon;

/// Optimizer.
pub trait OptimizerRule {
    /// States of a parameter, its model weight first; equal on every grid. ZeRO shards states that
    /// have the parameter's columns (`Extent::is_sharded`). Every replica keeps the others whole.
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec>;

    /// Number of f32 of scratch (`Step::scratch`) for an update of these parameters. Equal on all
    /// ranks of a stage.
    fn scratch(&self, _: &Place, _: &[ParamStates]) -> usize {
        0
    }

    /// Writes the rule's own numbers to `Step::scalars`. Called once per step, on the device,
    /// before `update`.
    fn begin(&self, _: &Step) {}

    /// Updates parameters from their gradients times `Step::factor`; a factor of NaN changes
    /// nothing. Sets the model weight to the rounded master weight. Called once for all parameters.
    /// For states on the host it is called several times with the host's backend, each time for
    /// some parameters. A parameter whose states are all sharded may then be split into several
    /// parts.
    fn update(&self, step: &Step, params: &[ParamStates]);

    /// Whether an update needs sums over all parameters and ranks. It then runs on the device for
    /// all parameters at once, even if master weights are on the host. Those are copied to the
    /// device in pieces (`Step::for_each_piece`), and no other state is on the host.
    fn needs_global_sums(&self) -> bool {
        false
    }

    /// Whether a run may resume from the states of another rule, with the help of `convert`. `rule`
    /// is that rule's name in manifests.
    fn resumes_from(&self, rule: &str) -> bool {
        let _ = rule;
        false
    }

    /// Conversion to a state from another format in a checkpoint. None if the checkpoint has this
    /// format, or no format that the rule can read.
    fn convert(&self, state: &StateSpec, saved: SavedStates) -> Option<Conversion> {
        let _ = (state, saved);
        None
    }
}

/// Conversion of a parameter's states when a checkpoint is read.
pub struct Conversion {
    /// States to read.
    pub from: Vec<StateSpec>,
    pub compute: Compute,
}

/// Computes the bytes of a state for a part of the parameter, from the bytes of the states in
/// `Conversion::from`. Blocks of columns are given whole if the part touches them.
pub type Compute = Box<dyn Fn(TensorSlice, &[Vec<u8>]) -> Vec<u8> + Send + Sync>;

/// Position of a rank, and the layout of its parameters.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub groups: &'a Groups,
    pub layout: &'a Layout,
    /// Whether each data-parallel rank updates only a shard (ZeRO).
    pub sharded: bool,
}

/// Inputs of an optimizer update.
pub struct Step<'a> {
    pub be: &'a dyn Backend,
    pub at: Place<'a>,
    pub lr: f32,
    /// f32 [1, 3]: factor of the gradients (loss scale and clipping), then two numbers of the rule.
    pub scalars: Tensor,
    /// i64 [1, 1]: number of updates, including this one.
    pub updates: Tensor,
    /// f32 [1, n], uninitialised: as many as `OptimizerRule::scratch` returned.
    pub scratch: Tensor,
    /// Windows for master weights on the host, for a rule that needs global sums.
    pub masters: Option<&'a MasterWindows>,
}

impl Step<'_> {
    /// Calls `work` with a parameter's index and each piece of it, for all parameters in order.
    /// Master and model weight are where the rule updates. `changes` says whether `work` writes to
    /// them.
    pub fn for_each_piece(
        &self,
        params: &[ParamStates],
        changes: bool,
        work: &mut dyn FnMut(usize, &ParamStates),
    ) {
        match self.masters {
            None => masters::for_each_piece_in_place(params, work),
            Some(masters) => masters.for_each_piece(self.be, params, changes, work),
        }
    }
}

/// Rule of a manifest, with the additional states of gradient compression.
pub fn optimizer_rule(m: &Manifest) -> Box<dyn OptimizerRule> {
    let model = model_dtype(m.precision);
    let rule: Box<dyn OptimizerRule> = match m.optimizer {
        Optimizer::AdamW(settings) => Box::new(AdamW::new(settings, model, &m.model)),
        Optimizer::Adam8bit(settings) => Box::new(Adam8bit::new(settings, model, &m.model)),
        Optimizer::Adafactor(settings) => Box::new(Adafactor::new(settings, model, &m.model)),
        Optimizer::Muon(ref settings) => Box::new(Muon::new(settings.clone(), model, &m.model)),
    };
    match m.topology.compression.filter(|_| m.topology.data > 1) {
        Some(settings) => {
            Box::new(WithExtraStates::new(rule, powersgd::states(settings, m.topology.tensor)))
        }
        None => rule,
    }
}
