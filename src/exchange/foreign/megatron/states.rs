//! States of Megatron's plain optimizer, which has no names: its parameters count through the
//! groups in the order of the model's modules.
//!
//! Which groups there are, and in which order, varies with the version: a group is the parameters that
//! decay, those that do not (vectors), or all, whichever its shapes are.

use super::super::super::torch::{TorchFile, Value};
use super::super::{AdamState, LossScale};
use super::names::Entry;
use std::collections::HashMap;

/// Group, and number in it, of each parameter of a stage.
pub type StatePlaces = Vec<(usize, usize)>;

/// The plain optimizer of a file.
pub struct PlainOptimizer<'t> {
    groups: Vec<Value<'t>>,
    /// Numbers of the parameters, by group.
    ids: Vec<Vec<Value<'t>>>,
    states: Value<'t>,
    /// State of each parameter, by its number.
    by_id: HashMap<i64, Value<'t>>,
    /// f32 copies of parameters in 16 bits, by group.
    masters: Option<Vec<Vec<Value<'t>>>>,
}

impl<'t> PlainOptimizer<'t> {
    /// The optimizer of a file, or the reason why its states cannot be read.
    pub fn open(
        root: &Value<'t>,
        half: bool,
    ) -> anyhow::Result<Result<PlainOptimizer<'t>, String>> {
        let Some(outer) = root.some("optimizer") else {
            return Ok(Err("the files have no optimizer".into()));
        };
        if let Ok(several) = outer.items() {
            return Ok(Err(format!("optimizer is a list of {}", several.len())));
        }
        let inner = outer
            .some("optimizer")
            .or_else(|| outer.some("optimizer_state_dict"))
            .unwrap_or_else(|| outer.clone());
        let (Some(groups), Some(states)) = (inner.some("param_groups"), inner.some("state")) else {
            let why = "optimizer has no state: a distributed optimizer wrote it beside, in \
                       distrib_optim.pt, which is missing";
            return Ok(Err(why.into()));
        };
        let groups = groups.items()?;
        let masters: Option<Vec<_>> = ["fp32_from_fp16_params", "fp32_from_fp16"]
            .into_iter()
            .find_map(|name| outer.some(name))
            .map(|masters| masters.items()?.iter().map(Value::items).collect())
            .transpose()?;
        match &masters {
            None if half => {
                return Ok(Err("optimizer has no fp32_from_fp16_params".into()));
            }
            Some(masters) if masters.len() != groups.len() => {
                let groups = groups.len();
                let masters = masters.len();
                let why = format!("fp32_from_fp16_params has {masters} groups, not {groups}");
                return Ok(Err(why));
            }
            _ => {}
        }
        let mut ids = Vec::new();
        for group in &groups {
            ids.push(group.need("params")?.items()?);
        }
        let by_id = states
            .pairs()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(id, state)| Some((id.int().ok()?, state)))
            .collect();
        let masters = masters.filter(|_| half);
        Ok(Ok(PlainOptimizer { groups, ids, states, by_id, masters }))
    }

    /// The place of each parameter of the model, or the reason why it cannot be found.
    pub fn slots(&self, entries: &[(usize, Entry)]) -> anyhow::Result<Result<StatePlaces, String>> {
        let mut shapes = Vec::new();
        for (_, entry) in entries {
            shapes.push(&entry.value.tensor()?.shape);
        }
        let all: Vec<usize> = (0..entries.len()).collect();
        let (rest, decay): (Vec<usize>, Vec<usize>) = all
            .iter()
            .copied()
            .partition(|entry| shapes[*entry].len() == 1);
        let mut slots = vec![None; entries.len()];
        for group in 0..self.groups.len() {
            // Shapes of the first moments.
            let mut held = Vec::new();
            for number in 0..self.ids[group].len() {
                let moment = self.state((group, number), AdamState::FirstMoment)?;
                held.push(&moment.expect("moments are always stored").tensor()?.shape);
            }
            let is_held = |list: &[usize]| {
                list.len() == held.len()
                    && list
                        .iter()
                        .zip(&held)
                        .all(|(entry, shape)| shapes[*entry] == *shape)
            };
            let Some(list) = [&all, &decay, &rest].into_iter().find(|list| is_held(list)) else {
                return Ok(Err(format!(
                    "group {group} of the optimizer has {} parameters, which are neither all {} of \
                     the file, nor its {} matrices, nor its {} vectors, in their order",
                    held.len(),
                    all.len(),
                    decay.len(),
                    rest.len()
                )));
            };
            for (number, entry) in list.iter().enumerate() {
                if slots[*entry].replace((group, number)).is_some() {
                    let name = &entries[*entry].1.name;
                    return Ok(Err(format!("{name} is in two groups of the optimizer")));
                }
            }
        }
        if let Some(entry) = slots.iter().position(Option::is_none) {
            let name = &entries[entry].1.name;
            return Ok(Err(format!("no group of the optimizer has {name}")));
        }
        Ok(Ok(slots.into_iter().flatten().collect()))
    }

    /// A state of the parameter in a slot; None for a weight that is f32 itself.
    pub fn state(
        &self,
        (group, number): (usize, usize),
        state: AdamState,
    ) -> anyhow::Result<Option<Value<'t>>> {
        let missing = |what: &str| {
            self.groups[group].problem(format!(
                "parameter {number} of group {group} of the optimizer has no {what}"
            ))
        };
        if state == AdamState::Master {
            let Some(masters) = &self.masters else { return Ok(None) };
            let copy = masters[group].get(number).cloned();
            return copy
                .ok_or_else(|| missing("copy in fp32_from_fp16_params"))
                .map(Some);
        }
        let id = self.ids[group]
            .get(number)
            .ok_or_else(|| missing("number"))?
            .int()?;
        let states = self.by_id.get(&id).ok_or_else(|| missing("state"))?;
        let key = state.key("param");
        states.some(key).ok_or_else(|| missing(key)).map(Some)
    }

    /// Adam's count: in the groups (apex, Transformer Engine) or in each state (PyTorch).
    pub fn updates(&self, file: &TorchFile) -> anyhow::Result<Option<u64>> {
        updates_of(file, &self.groups, Some(&self.states))
    }
}

/// PyTorch's part of a file's optimizer: inside of Megatron's, or by itself.
pub fn inner<'t>(root: &Value<'t>) -> Option<Value<'t>> {
    let outer = root.some("optimizer")?;
    outer.some("optimizer").or(Some(outer))
}

/// The groups of a file's optimizer; none if it has no optimizer.
pub fn groups<'t>(root: &Value<'t>) -> anyhow::Result<Vec<Value<'t>>> {
    let groups = inner(root).and_then(|inner| inner.some("param_groups"));
    groups.map_or(Ok(Vec::new()), |groups| groups.items())
}

/// Adam's count: in the groups, or in the states, if they are there.
pub fn updates_of(
    file: &TorchFile,
    groups: &[Value],
    states: Option<&Value>,
) -> anyhow::Result<Option<u64>> {
    let mut updates = None;
    for group in groups {
        let first = group
            .some("params")
            .and_then(|params| params.items().ok()?.first().cloned())
            .map(|id| id.int())
            .transpose()?;
        let state = first.zip(states).and_then(|(id, states)| states.at(id));
        let step = group
            .some("step")
            .or_else(|| state?.some("step"))
            .or_else(|| states?.some("common_step"));
        let Some(step) = step.map(|step| file.count(&step)).transpose()? else { continue };
        match updates {
            Some(known) if known != step => {
                return Err(group
                    .problem(format!("Adam's step is {step} in one group, {known} in another")));
            }
            _ => updates = Some(step),
        }
    }
    Ok(updates)
}

/// The rate of the last update.
pub fn rate(file: &TorchFile, groups: &[Value]) -> Option<f64> {
    file.number(&groups.first()?.some("lr")?).ok()
}

/// The state of Megatron's dynamic loss scaler.
pub fn loss_scale(file: &TorchFile, root: &Value) -> anyhow::Result<Option<LossScale>> {
    let scaler = root
        .some("optimizer")
        .and_then(|outer| outer.some("grad_scaler"));
    let Some(scale) = scaler.as_ref().and_then(|scaler| scaler.some("scale")) else {
        return Ok(None);
    };
    let scale = file.number(&scale)?;
    let count = |name: &str| scaler.as_ref()?.some(name)?.int().ok();
    Ok(Some(LossScale {
        scale,
        updates_in_a_row: count("growth_tracker").unwrap_or(0).max(0) as u64,
        overflows_left: count("hysteresis_tracker").unwrap_or(1),
    }))
}
