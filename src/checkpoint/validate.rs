//! Checks an index against the model's table and the optimizer's groups.

use super::index::{Group, Index};
use base::DType;
use engine::{OptimizerRule, SavedStates, ScaleState, StateSpec, is_never_negative, saved_shape};
use manifest::Model;
use model::{Layout, ModelShard};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Gradient of a delayed update of an earlier version of gptrain. It is not read.
const DELAYED: &str = "pending_gradient";

/// Checks that the tensors are those of the model, each with the states of the optimizer's rule.
pub fn model(index: &Index, model: &Model, rule: &dyn OptimizerRule) -> Vec<String> {
    states(index, model, rule, |_, _| false)
}

/// Like `model`, but accepts states that the rule can convert.
pub fn readable(index: &Index, model: &Model, rule: &dyn OptimizerRule) -> Vec<String> {
    states(index, model, rule, |spec, saved| rule.convert(spec, saved).is_some())
}

fn states(
    index: &Index,
    model: &Model,
    rule: &dyn OptimizerRule,
    made: impl Fn(&StateSpec, SavedStates) -> bool,
) -> Vec<String> {
    let mut damage = weights(index, model);
    let layout = Layout::new(model, ModelShard::whole(model));
    for param in layout.params() {
        let Some(tensor) = index.tensor(&param.name) else { continue };
        let read = tensor
            .saved()
            .filter(|(name, state)| !state.extent.serves_exchange() && *name != DELAYED);
        let mut found: BTreeMap<&str, _> = read.collect();
        let saved = |name: &str| tensor.form(name);
        let mut converted = false;
        let states = rule.states(&param.spec).into_iter();
        for spec in states.filter(|spec| spec.saved && !spec.extent.serves_exchange()) {
            let (name, what) = (&param.name, spec.name);
            if made(&spec, &saved) {
                converted = true;
                continue;
            }
            match found.remove(what) {
                None if index.is_import() || index.weights_only => {}
                None => damage.push(format!("{name} has no {what}: the optimizer needs it")),
                Some(state) if (state.dtype, state.extent) != (spec.dtype, spec.extent) => damage
                    .push(format!(
                        "the {what} of {name} is {} {:?}, the optimizer's is {} {:?}",
                        state.dtype, state.extent, spec.dtype, spec.extent
                    )),
                Some(_) => {}
            }
        }
        let more = found.into_keys().filter(|_| !converted);
        damage.extend(more.map(|what| format!("{} has a {what} of another optimizer", param.name)));
    }
    damage
}

/// Checks that the tensors are those of the model: none missing or unexpected, with equal shapes
/// and decay.
pub fn weights(index: &Index, model: &Model) -> Vec<String> {
    let layout = Layout::new(model, ModelShard::whole(model));
    let mut damage = Vec::new();
    let mut names = BTreeSet::new();
    for param in layout.params() {
        let name = &param.name;
        let shape = saved_shape(param, model.vocab);
        match index.tensor(name) {
            None => damage.push(format!("{name} is missing: the manifest's model has it")),
            Some(tensor) if tensor.shape != shape => damage
                .push(format!("{name} is {:?}, the manifest's model has {shape:?}", tensor.shape)),
            Some(tensor) if tensor.decay != param.spec.decay => damage.push(format!(
                "{name} is in the group {} weight decay; norms and biases must not decay, \
                 matrices must",
                if tensor.decay { "with" } else { "without" }
            )),
            Some(_) => {}
        }
        names.insert(name);
    }
    let unexpected = index
        .tensors
        .iter()
        .filter(|tensor| !names.contains(&tensor.name));
    damage.extend(unexpected.map(|tensor| {
        format!("{} is unexpected: the manifest's model does not have it", tensor.name)
    }));
    damage
}

/// Counts of values that no update writes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct UnsoundValues {
    pub nan: u64,
    pub inf: u64,
    /// Values below 0, which some states may have.
    pub negative: u64,
}

impl UnsoundValues {
    pub fn count(&mut self, value: f32) {
        self.nan += u64::from(value.is_nan());
        self.inf += u64::from(value.is_infinite());
        self.negative += u64::from(value < 0.0 && value.is_finite());
    }

    /// Findings about a state of this name, in words; none if an update can have written its values.
    pub fn findings(self, state: &str) -> Vec<String> {
        let mut findings = Vec::new();
        if self.nan > 0 || self.inf > 0 {
            findings.push(format!("{} NaN, {} infinite", self.nan, self.inf));
        }
        if self.negative > 0 && is_never_negative(state) {
            findings.push(format!("{} values below 0", self.negative));
        }
        findings
    }
}

/// Checks the values of a state: of a checkpoint that is loaded, or of another program's.
pub fn values(state: &str, dtype: DType, bytes: &[u8]) -> Vec<String> {
    // The last byte of a value has its sign.
    let size = dtype.size();
    let has_sign = || {
        bytes
            .chunks_exact(size)
            .any(|value| value[size - 1] & 0x80 != 0)
    };
    if dtype.finite(bytes) && !(is_never_negative(state) && has_sign()) {
        return Vec::new();
    }
    let mut unsound = UnsoundValues::default();
    dtype
        .widen(bytes)
        .into_iter()
        .for_each(|value| unsound.count(value));
    unsound.findings(state)
}

/// Checks the numbers of the last update, with which the next one begins.
pub fn numbers(lr: f64, scale: Option<ScaleState>) -> Vec<String> {
    let mut damage = Vec::new();
    if !(lr.is_finite() && lr >= 0.0) {
        damage.push(format!("the learning rate is {lr}"));
    }
    if let Some(scale) = scale.map(|scale| scale.scale)
        && !(scale.is_finite() && scale > 0.0)
    {
        damage.push(format!("the loss scale is {scale}"));
    }
    damage
}

/// Checks that every tensor is in exactly one optimizer group, the right one, and that the groups
/// have counted every step that was not skipped; and the numbers of the last update.
pub fn groups(index: &Index) -> Vec<String> {
    let mut damage = numbers(index.lr, index.loss_scale);
    let mut seen = BTreeMap::new();
    let step = index
        .optimizer_steps()
        .saturating_add(index.optimizer.ahead);
    let updates = index.updates();
    let skipped = index.skipped();
    if updates.checked_add(skipped) != Some(step) {
        damage.push(format!("{updates} updates and {skipped} skipped steps, the run took {step}"));
    }
    for group in &index.optimizer.groups {
        if group.step != updates {
            damage.push(format!(
                "an optimizer group of {} tensors has taken {} steps, the run {}",
                group.tensors.len(),
                group.step,
                updates
            ));
        }
        group
            .tensors
            .iter()
            .for_each(|name| *seen.entry(name.as_str()).or_insert(0) += 1);
    }
    for tensor in &index.tensors {
        let times = seen.get(tensor.name.as_str()).copied().unwrap_or(0);
        if times != 1 {
            damage.push(format!("{} is in {times} optimizer groups", tensor.name));
        }
        let vector = tensor.shape.len() == 1;
        let decays =
            |group: &&Group| group.weight_decay > 0.0 && group.tensors.contains(&tensor.name);
        if vector && (tensor.decay || index.optimizer.groups.iter().any(|g| decays(&g))) {
            damage.push(format!("{} is a vector and decays", tensor.name));
        }
    }
    damage
}
