//! One file of the optimizer: Adam's count, the loss scale, the flat partitions, and the places of
//! parameters in them.

use super::super::super::torch::{Element, TorchFile, Value};
use super::super::{AdamState, LossScale};

/// Adam's count: in the groups (apex), in the states (DeepSpeed, PyTorch), or beside them (elastic).
pub fn updates(file: &TorchFile, optimizer: &Value) -> anyhow::Result<u64> {
    if let Some(step) = optimizer.some("base_optimizer_state_step") {
        return file.count(&step);
    }
    let base = base(optimizer)?;
    let group = base
        .get("param_groups")
        .and_then(|groups| groups.items().ok()?.first().cloned());
    let state = base.get("state").and_then(|state| state.at(0));
    let step = group
        .and_then(|group| group.some("step"))
        .or_else(|| state?.some("step"))
        .ok_or_else(|| {
            base.problem("the optimizer has no step, in param_groups or in state".into())
        })?;
    file.count(&step)
}

/// PyTorch's part of the optimizer: of ZeRO-3 under another name.
fn base<'t>(optimizer: &Value<'t>) -> anyhow::Result<Value<'t>> {
    let zero3 = optimizer.some("optimizer_state_dict");
    zero3.map_or_else(|| optimizer.need("base_optimizer_state"), Ok)
}

/// The rate of the last update.
pub fn rate(file: &TorchFile, optimizer: &Value) -> Option<f64> {
    let groups = base(optimizer).ok()?.get("param_groups")?.items().ok()?;
    file.number(&groups.first()?.some("lr")?).ok()
}

/// The state of DeepSpeed's dynamic loss scaler.
pub fn loss_scale(file: &TorchFile, optimizer: &Value) -> anyhow::Result<Option<LossScale>> {
    let Some(scaler) = optimizer.some("loss_scaler") else { return Ok(None) };
    let Some(scale) = scaler.some("cur_scale") else { return Ok(None) };
    let count = |name: &str| scaler.some(name).and_then(|value| value.int().ok());
    let since = count("cur_iter").zip(count("last_overflow_iter"));
    let window = count("scale_window")
        .filter(|window| *window > 0)
        .unwrap_or(i64::MAX);
    let in_a_row = since.map_or(0, |(now, last)| (now - last - 1).max(0) % window);
    Ok(Some(LossScale {
        scale: file.number(&scale)?,
        updates_in_a_row: in_a_row as u64,
        overflows_left: count("cur_hysteresis").unwrap_or(1),
    }))
}

/// The flat tensor of a state of a group in a file.
pub fn partition<'t>(
    optimizer: &Value<'t>,
    group: usize,
    state: AdamState,
) -> anyhow::Result<Value<'t>> {
    let missing = |of: &Value| of.problem(format!("has no group {group} of param_shapes in {of}"));
    if state == AdamState::Master {
        let masters = match optimizer.some("fp32_flat_groups") {
            Some(zero3) => zero3,
            None => optimizer.need("single_partition_of_fp32_groups")?,
        };
        return masters
            .items()?
            .get(group)
            .cloned()
            .ok_or_else(|| missing(&masters));
    }
    let base = base(optimizer)?;
    let states = match base.get("state") {
        Some(states) => states.at(group as i64),
        None => base.items()?.get(group).cloned(), // without padding, "elastic"
    };
    states
        .ok_or_else(|| missing(&base))?
        .need(state.key("param"))
}

/// Type of a state of a group in a file.
pub fn element(file: &TorchFile, group: usize, state: AdamState) -> anyhow::Result<Element> {
    let optimizer = file.root().need("optimizer_state_dict")?;
    Ok(partition(&optimizer, group, state)?.tensor()?.element)
}

/// Elements of a parameter in a partition; None if it is in others alone.
pub fn slice(
    maps: &Value,
    group: usize,
    name: &str,
) -> anyhow::Result<Option<std::ops::Range<usize>>> {
    let groups = maps.items()?;
    let Some(address) = groups.get(group).and_then(|group| group.get(name)) else {
        return Ok(None);
    };
    // fragment_address: a dataclass of numel and start; a tuple in old files.
    let (start, numel) = match address.get("start") {
        Some(start) => (start.count()?, address.need("numel")?.count()?),
        None => {
            let items = address.items()?;
            let [numel, start] = items.as_slice() else {
                return Err(address.problem(format!("the address of {name} is {address}")));
            };
            (start.count()?, numel.count()?)
        }
    };
    let start = start as usize;
    let numel = numel as usize;
    let end = start
        .checked_add(numel)
        .ok_or_else(|| address.problem(format!("the address of {name} overflows")))?;
    Ok(Some(start..end))
}
