//! Compares weights that must be equal on several ranks, bit by bit: weights that tensor
//! parallelism does not split, weights of replicas, and a tied embedding with its copy. A flipped
//! bit or a missed reduction would otherwise make them diverge silently.

#[cfg(test)]
mod tests;

use super::groups::Groups;
use super::params::{RankMaxima, ShardedParams, is_whole};
use super::states::{Extent, MODEL, ParamStates, StateSpec};
use base::DType;
use comm::Group;
use device::{Arena, Tensor, op};
use plan::grid::{GRADIENT_AXES, Grid, SHARES};
use std::fmt;

/// Weight that differs between ranks that must hold equal copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// For example "block.3.attn.qkv.weight" or "block.3.attn.qkv.weight (first moment)".
    pub tensor: String,
    /// World ranks of the majority, and those that differ from it (of two ranks, the second).
    pub majority: Vec<usize>,
    pub diverged: Vec<usize>,
    grid: Grid,
}

/// Error of a failed check, on this rank's groups or on others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicasDiverged {
    /// Differences found on this rank; empty if only other ranks found some.
    pub found: Vec<Divergence>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ranks: &[usize]| {
            ranks
                .iter()
                .map(|rank| format!("{rank} ({})", self.grid.coord(*rank).name()))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let diverged = list(&self.diverged);
        let majority = list(&self.majority);
        write!(f, "{} on rank {diverged} is not the same as on rank {majority}", self.tensor)
    }
}

impl fmt::Display for ReplicasDiverged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found[..] {
            [] => write!(f, "weights that must be equal differ on other ranks"),
            [drift] => write!(f, "{drift}"),
            [drift, more @ ..] => write!(f, "{drift}; and {} more weights differ", more.len()),
        }
    }
}

impl std::error::Error for ReplicasDiverged {}

/// Reserves the digests of the largest group.
pub fn plan_digests(
    groups: &Groups,
    states: &[ParamStates],
    maxima: RankMaxima,
    params: usize,
    arena: &Arena,
) -> Tensor {
    let ranks = groups
        .tensor
        .size()
        .max(groups.grad_sum.size())
        .max(groups.embedding.size());
    let states = states.iter().flat_map(ParamStates::iter);
    // Sharded parameters: only the model weights are equal on all replicas. With `states: shard`, all states
    // are equal on the copies.
    let whole = states
        .filter(|(spec, ..)| !spec.extent.is_sharded())
        .count();
    arena.matrix(ranks, maxima.states.max(whole + params), DType::I64)
}

/// Part of a state that must be equal among the ranks of a group.
struct View {
    name: String,
    at: Tensor,
}

/// Compares every state among the ranks that must hold equal copies. A collective: all ranks call
/// it after the same step, and either all return `Ok` or none. Costs one pass over the states on
/// the device, and messages of 8 bytes per state. `flag`, f32 [1, 1], is scratch.
pub fn check(
    params: &ShardedParams,
    digests: Tensor,
    flag: Tensor,
) -> Result<(), ReplicasDiverged> {
    params.wait_gathers();
    let Groups { tensor, grad_sum, copies: same_shard, levels, embedding, grid, coord, .. } =
        &params.groups;
    let repeated = select_states(params, |p, state| is_whole(&p.param, state.extent));
    let compare = |group, views, ranks: &[usize]| compare(params, digests, group, views, ranks);
    let mut found = compare(&**tensor, repeated, &grid.group(*coord, SHARES));
    let sharded = params.is_sharded();
    let mut copies = select_states(params, |_, state| {
        state.extent != Extent::PerReplica && !(sharded && state.extent.is_sharded())
    });
    let mut tied = Vec::new();
    for (param, at) in params.whole_weights() {
        if sharded {
            copies.push(view(&param.name, MODEL, at));
        }
        if param.spec.tied {
            tied.push(view(&param.name, MODEL, at));
        }
    }
    let replicas = grid.group(*coord, GRADIENT_AXES);
    found.extend(compare(&**grad_sum, copies, &replicas));
    let mut shards: Vec<View> = params
        .copied_weights()
        .into_iter()
        .map(|(param, at)| view(&param.name, MODEL, at))
        .collect();
    if sharded && !levels.copies_divide_shard() {
        shards.extend(select_states(params, |_, state| {
            state.extent.is_sharded() && state.name != MODEL
        }));
    }
    found.extend(compare(&**same_shard, shards, &levels.copy_group(&replicas)));
    if let Some(ends) = Groups::embedding_ranks(grid, *coord) {
        found.extend(compare(&**embedding, tied, &ends));
    }
    fail_on_all_ranks(params, found, flag)
}

/// States of this rank for which `selected` holds. States that share memory appear once.
fn select_states(
    params: &ShardedParams,
    selected: impl Fn(&ParamStates, &StateSpec) -> bool,
) -> Vec<View> {
    let mut views = Vec::new();
    for states in params.states() {
        let model = states.get(MODEL);
        for (state, _, at) in states.iter().filter(|(state, ..)| selected(states, state)) {
            if state.name == MODEL || at != model {
                views.push(view(&states.param.name, state.name, at));
            }
        }
    }
    views
}

fn view(param: &str, state: &str, at: Tensor) -> View {
    let name = match state {
        MODEL => param.to_string(),
        state => format!("{param} ({})", state.replace('_', " ")),
    };
    View { name, at }
}

/// Returns the views that differ between ranks of a group, whose world ranks are `ranks`.
fn compare(
    params: &ShardedParams,
    digests: Tensor,
    group: &dyn Group,
    views: Vec<View>,
    ranks: &[usize],
) -> Vec<Divergence> {
    let mut found = Vec::new();
    if group.size() == 1 || views.is_empty() {
        return found;
    }
    let size = group.size();
    let count = views.len();
    let be = params.be;
    let grid = params.groups.grid;
    let tensors: Vec<Tensor> = views.iter().map(|view| view.at).collect();
    let gathered = digests.span(0, size * count);
    let part = gathered.span(group.rank() * count, count);
    be.run(op::Digests { xs: &tensors, y: part.set() });
    group.all_gather(part, gathered);
    let mut values = vec![0u64; size * count];
    be.download(gathered, bytemuck::cast_slice_mut(&mut values));
    for (i, view) in views.into_iter().enumerate() {
        let own: Vec<u64> = (0..size).map(|member| values[member * count + i]).collect();
        let most = base::majority(&own).expect("a member");
        let (majority, diverged): (Vec<usize>, Vec<usize>) =
            (0..size).partition(|member| own[*member] == most);
        if !diverged.is_empty() {
            let world = |members: Vec<usize>| members.into_iter().map(|i| ranks[i]).collect();
            let majority = world(majority);
            let diverged = world(diverged);
            found.push(Divergence { tensor: view.name, majority, diverged, grid });
        }
    }
    found
}

/// Fails on all ranks if any rank found a difference.
fn fail_on_all_ranks(
    params: &ShardedParams,
    found: Vec<Divergence>,
    flag: Tensor,
) -> Result<(), ReplicasDiverged> {
    let be = params.be;
    let groups = &params.groups;
    let mut any = if found.is_empty() { 0.0f32 } else { 1.0 };
    be.upload(bytemuck::bytes_of(&any), flag);
    groups.tensor.all_reduce(flag);
    groups.sum_over_stages_and_replicas(flag);
    be.download(flag, bytemuck::bytes_of_mut(&mut any));
    if any == 0.0 { Ok(()) } else { Err(ReplicasDiverged { found }) }
}
