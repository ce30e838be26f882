//! gptrain's own needs: the trainer's engine on a device and groups that only count. Its memory is
//! the allocator's own plan, so it is what `run` reserves, byte for byte.

use crate::hardware::{Hardware, Link};
use crate::setup::Setup;
use base::Bytes;
use comm::{Op, Solo, dry};
use device::{self, COPIES, FP8_PRODUCT, Tally};
use engine::{self, Engine, Groups, MemoryPlan};
use manifest::{Batch, DeviceChoice, GradientHome, Manifest, Train};
use plan::grid::Coord;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What the first rank of a pipeline stage needs and does.
#[derive(Clone, Debug)]
pub struct Stage {
    pub layers: usize,
    pub memory_plan: MemoryPlan,
    /// Parameters of the model that this rank holds.
    pub parameters: u64,
    pub work: Work,
}

/// What a rank does in a step.
#[derive(Clone, Debug)]
pub struct Work {
    /// A micro-batch's forward and backward.
    pub micro: Workload,
    /// What is done once: sums of gradients, optimizer, gathers of weights.
    pub step: Workload,
}

/// Ops by kind, and bytes by group and collective.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    pub ops: Tally,
    /// Of the processor of the device's host, and copies to and from it.
    pub host: Tally,
    pub messages: dry::Volume,
}

impl Workload {
    fn minus(mut self, other: &Workload) -> Workload {
        for (ours, theirs) in [(&mut self.ops, &other.ops), (&mut self.host, &other.host)] {
            for (name, work) in theirs {
                let ours = ours.entry(name).or_default();
                ours.calls -= work.calls;
                ours.flops -= work.flops;
                ours.bytes -= work.bytes;
            }
        }
        for (key, sent) in &other.messages {
            let ours = self.messages.entry(*key).or_default();
            ours.calls -= sent.calls;
            ours.bytes -= sent.bytes;
        }
        self
    }

    fn share(mut self, of: f64) -> Workload {
        for work in self.ops.values_mut().chain(self.host.values_mut()) {
            work.calls *= of;
            work.flops *= of;
            work.bytes *= of;
        }
        for sent in self.messages.values_mut() {
            sent.calls *= of;
            sent.bytes *= of;
        }
        self
    }

    /// Bytes sent to the members of some groups.
    fn sent(&self, groups: &[&str]) -> f64 {
        let sends = self.messages.iter().filter(|((_, op), _)| *op != Op::Recv);
        let ours = sends.filter(|((group, _), _)| groups.contains(group));
        let bytes = ours.map(|(_, sent)| sent.bytes);
        bytes.fold(0.0, |sum, bytes| sum + bytes)
    }
}

/// What a rank sends for, and the groups it sends to: tensor parallelism (activations, and gradients
/// of weights that it does not split), pipeline, replicas, and the two copies of a tied embedding.
pub const TRAFFIC: [(&str, &[&str]); 4] = [
    ("tensor", &["tensor", "tp_async"]),
    ("pipeline", &["pipeline"]),
    ("data", &["data"]),
    ("tied", &["embedding"]),
];

impl Stage {
    /// Bytes sent in a step of so many micro-batches, by the rows of `TRAFFIC`.
    pub fn sends(&self, micros: usize) -> [f64; TRAFFIC.len()] {
        TRAFFIC.map(|(_, to)| micros as f64 * self.work.micro.sent(to) + self.work.step.sent(to))
    }
}

/// The first rank of every stage.
pub fn stages(m: &Manifest) -> Vec<Stage> {
    let cap = m.train.device_memory.map(|device| Room { device, host: Bytes(u64::MAX) });
    let m = &cap.map_or_else(|| m.clone(), |room| placed(m, room));
    let mut stages: Vec<Stage> = Vec::new();
    for (stage, first) in first_alike(m).into_iter().enumerate() {
        let work = stages.get(first).map(|alike| alike.work.clone());
        stages.push(reserved(m, stage).with(work.unwrap_or_else(|| work_of(m, stage))));
    }
    stages
}

/// What a rank may reserve.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub device: Bytes,
    /// Its share of the host's memory.
    pub host: Bytes,
}

impl Room {
    /// On a device of that kind, beside what a process has there anyway, and as the manifest allows.
    pub fn of(m: &Manifest, hw: &Hardware) -> Room {
        let gib = |gib: f64| (gib * 1073741824.0).max(0.0) as u64;
        let device = Bytes(gib(hw.memory_gib - hw.context_mib / 1024.0));
        let device = m.train.device_memory.map_or(device, |most| device.min(most));
        let ranks = hw.per_node.min(m.topology.ranks());
        Room { device, host: Bytes(gib(hw.host_gib) / ranks as u64) }
    }

    pub fn holds(&self, plan: &MemoryPlan) -> bool {
        plan.total() <= self.device && plan.host_total() <= self.host
    }
}

/// The manifest, with gradients on the host where it leaves that open and they have no `room` on the
/// device, but there.
pub fn placed(m: &Manifest, room: Room) -> Manifest {
    let alike = first_alike(m);
    let holds = |m: &Manifest| reserved_within(m, &alike, room).is_some();
    if m.gradients_are_open() && !holds(m) {
        let host = m.with_gradients(GradientHome::Host);
        if holds(&host) {
            return host;
        }
    }
    m.clone()
}

/// As `stages`, where no rank reserves more than `room`. Stages that do the same work are all taken
/// to reserve what the first of them does, which holds the most micro-batches.
pub fn stages_within(m: &Manifest, room: Room) -> Option<Vec<Stage>> {
    let m = &placed(m, room);
    let alike = first_alike(m);
    let distinct = reserved_within(m, &alike, room)?;
    let with_work = |(stage, needs): (usize, Reserved)| (stage, needs.with(work_of(m, stage)));
    let distinct: BTreeMap<usize, Stage> = distinct.into_iter().map(with_work).collect();
    Some(alike.iter().map(|first| distinct[first].clone()).collect())
}

/// Whether no rank reserves more than `room`.
pub fn fits(m: &Manifest, room: Room) -> bool {
    let m = &placed(m, room);
    reserved_within(m, &first_alike(m), room).is_some()
}

fn reserved_within(m: &Manifest, alike: &[usize], room: Room) -> Option<BTreeMap<usize, Reserved>> {
    let distinct = alike.iter().enumerate().filter(|(stage, first)| stage == *first);
    let needs = distinct.map(|(stage, _)| Some((stage, reserved(m, stage))));
    needs.map(|each| each.filter(|(_, needs)| room.holds(&needs.memory_plan))).collect()
}

/// Of each stage, the first that has as many layers and the same ends: both do the same work, and
/// the earlier holds at least as many micro-batches.
fn first_alike(m: &Manifest) -> Vec<usize> {
    let (cuts, ranks) = (engine::cuts(&m.model, &m.topology), m.topology.pipeline);
    let chunk = |stage: usize| (cuts[stage].len(), stage == 0, stage + 1 == cuts.len());
    let kind = |rank: usize| (rank..cuts.len()).step_by(ranks).map(chunk).collect::<Vec<_>>();
    let kinds: Vec<_> = (0..ranks).map(kind).collect();
    let first = |kind| kinds.iter().position(|other| other == kind).expect("itself at least");
    kinds.iter().map(first).collect()
}

/// A stage before its work is counted.
struct Reserved {
    layers: usize,
    memory_plan: MemoryPlan,
    parameters: u64,
}

impl Reserved {
    fn with(self, work: Work) -> Stage {
        let Reserved { layers, memory_plan, parameters } = self;
        Stage { layers, memory_plan, parameters, work }
    }
}

fn device(m: &Manifest) -> device::Dry {
    match m.train.device {
        DeviceChoice::Cuda => device::Dry::gpu(),
        DeviceChoice::Cpu | DeviceChoice::Auto => device::Dry::default(),
    }
}

fn reserved(m: &Manifest, stage: usize) -> Reserved {
    let groups = groups(m, stage, &Messages::default());
    let (memory_plan, layout) = Engine::plan(&device(m), &groups, m, m.data.causal());
    let here = layout.params().filter(|param| !param.tied_copy);
    let parameters = here.map(|param| param.numel() as u64).sum();
    let layers = layout.shard.chunks.iter().map(|chunk| chunk.layers.len()).sum();
    Reserved { layers, memory_plan, parameters }
}

/// Counted in steps of one and two micro-batches, or as few more as the schedule allows: what the
/// second has more is the micro-batches' work, the rest is done once.
fn work_of(m: &Manifest, stage: usize) -> Work {
    let fewest = if m.topology.chunks > 1 { m.topology.pipeline } else { 1 };
    let global = 2 * fewest * m.batch.micro * m.topology.data;
    let batch = Batch { global, ramp_up: None, ..m.batch };
    // What does not fit is counted all the same.
    let train = Train { device_memory: None, ..m.train.clone() };
    let m = &Manifest { batch, train, ..m.clone() };
    let (device, messages) = (device(m), Messages::default());
    let engine = Engine::new(&device, groups(m, stage, &messages), m, m.data.causal());
    let engine = engine.expect("a dry device is never full");
    engine.set_steps(u64::MAX / 2); // whatever a run begins with is over
    let step = |micros| {
        engine.step(&mut |_: &_| Ok(()), micros, 0.0).expect("loading nothing does not fail");
    };
    step(fewest); // of which an update may be late
    let count = |micros: usize| {
        drop((device.take(), device.host_device().take(), messages.take()));
        step(micros);
        let host = device.host_device().take();
        Workload { ops: device.take(), host, messages: messages.take() }
    };
    let once = count(fewest);
    let micros = count(2 * fewest).minus(&once);
    let known = |group| TRAFFIC.iter().any(|(_, groups)| groups.contains(group));
    assert!(micros.messages.keys().chain(once.messages.keys()).all(|(group, _)| known(group)));
    Work { step: once.minus(&micros), micro: micros.share(1.0 / fewest as f64) }
}

/// Bytes, added up by the groups of a rank.
type Messages = Rc<RefCell<dry::Volume>>;

/// The groups of a stage's first rank.
fn groups(m: &Manifest, stage: usize, sent: &Messages) -> Groups {
    let grid = m.topology.grid();
    let rank = grid.rank(Coord { tensor: 0, pipeline: stage, data: 0 });
    Groups::of(rank, &m.topology, |name, ranks| {
        let at = ranks.iter().position(|member| *member == rank).expect("a member");
        match ranks.len() {
            1 => Box::new(Solo),
            size => Box::new(dry::Dry::new(name, at, size, sent)),
        }
    })
}

/// Seconds of a micro-batch's forward and backward on each stage.
pub fn stage_seconds(stages: &[Stage], s: &Setup) -> Vec<f64> {
    stages.iter().map(|stage| total(&seconds_of(&stage.work.micro, s))).collect()
}

/// The part of a step in which replicas sum up gradients and gather weights.
pub const SUMS: &str = "once a step: sums";

/// Seconds of an iteration of the setup's batch, by purpose, on the slowest stage. Chunks of layers
/// shorten the pipeline's bubble (Narayanan et al. 2021).
pub fn parts(stages: &[Stage], s: &Setup) -> Vec<(&'static str, f64)> {
    let micros = s.micros() as f64;
    let each = stage_seconds(stages, s);
    let slower = |a: &usize, b: &usize| each[*a].total_cmp(&each[*b]);
    let slowest = (0..each.len()).max_by(slower).expect("a pipeline has a stage");
    let chunks = s.topology.chunks as f64;
    let bubble = (each.iter().sum::<f64>() - each[slowest]) / chunks;
    let work = &stages[slowest].work;
    let mut parts: Vec<(&'static str, f64)> =
        seconds_of(&work.micro, s).iter().map(|(name, t)| (*name, t * micros)).collect();
    let step = seconds_of(&work.step, s);
    let sums = step.iter().filter(|(name, _)| *name == "data parallel").map(|part| part.1).sum();
    parts.push(("pipeline bubble", bubble));
    parts.push((SUMS, sums));
    parts.push(("once a step: optimizer", total(&step) - sums));
    let host = match s.topology.offload.delay {
        0 => host_seconds(&work.step.host, s),
        _ => late_seconds(&work.step.host, s, each[slowest] * micros),
    };
    parts.extend((host > 0.0).then_some(("once a step: host", host)));
    let copies = host_seconds(&work.micro.host, s) - each[slowest];
    parts.extend((copies > 0.0).then_some(("waiting for copies", copies * micros)));
    parts
}

/// Seconds of an iteration.
pub fn seconds(stages: &[Stage], s: &Setup) -> f64 {
    total(&parts(stages, s))
}

fn total(parts: &[(&'static str, f64)]) -> f64 {
    parts.iter().map(|(_, seconds)| seconds).sum()
}

/// Seconds of a workload on the setup's device and links, by purpose.
fn seconds_of(work: &Workload, s: &Setup) -> Vec<(&'static str, f64)> {
    let hw = s.hardware;
    // Ranks that are threads of one processor have a part of it each.
    let part = if hw.here { 1.0 / s.ranks() as f64 } else { 1.0 };
    let shares = [hw.product_share, hw.memory_share].map(|share| share * part);
    let each = |name: &str, w: &device::Work| {
        (hw.seconds(name, w, shares) + w.calls * hw.launch_us * 1e-6) * hw.slowdown
    };
    let compute = |of: &dyn Fn(&str) -> bool| {
        work.ops
            .iter()
            .filter(|(name, _)| of(name))
            .map(|(name, work)| each(name, work))
            .sum::<f64>()
    };
    let messages = |groups: &[&str], members: &[usize]| {
        let link = link(s, members);
        let of = work.messages.iter().filter(|((group, _), _)| groups.contains(group));
        let seconds =
            |sent: &dry::Sent| sent.calls * link.latency_us * 1e-6 + sent.bytes / (link.gb_s * 1e9);
        of.map(|(_, sent)| seconds(sent) * hw.slowdown).sum::<f64>()
    };
    let products = |name: &str| ["gemm", FP8_PRODUCT].contains(&name);
    let attention = |name: &str| name.starts_with("attention");
    let (grid, first) = (s.topology.grid(), Coord { tensor: 0, pipeline: 0, data: 0 });
    let [to_tensor, to_data] = [grid.tensor_group(first), grid.data_group(first)];
    let stages = grid.pipeline_group(first);
    let [tensor, pipeline, data, tied] = TRAFFIC.map(|(_, groups)| groups);
    vec![
        ("matrix products", compute(&products)),
        ("attention", compute(&attention)),
        ("element-wise", compute(&|name| !products(name) && !attention(name))),
        ("tensor parallel", messages(tensor, &to_tensor)),
        ("pipeline sends", messages(pipeline, &stages) + messages(tied, &stages)),
        ("data parallel", messages(data, &to_data)),
    ]
}

/// The link of a rank to the next of its group. Of a group over nodes all members of a node are in one
/// ring, which leaves the node once: they have their part of its adapters together.
pub fn link(s: &Setup, members: &[usize]) -> Link {
    let node = |rank: &usize| rank / s.per_node;
    let beside = members.iter().filter(|rank| node(rank) == node(&members[0])).count();
    s.hardware.link(beside == members.len(), s.per_node.div_ceil(beside))
}

/// Seconds of what the host does in a step: its passes over memory, which a node's ranks share, run
/// beside the copies in both directions, and the longest of them counts.
fn host_seconds(work: &Tally, s: &Setup) -> f64 {
    copy_seconds(work, s).into_iter().fold(pass_seconds(work, s), f64::max)
}

/// The same where the passes run while the device computes for so long: what is left of them, and
/// the copies, of gradients before and of weights after.
fn late_seconds(work: &Tally, s: &Setup, computing: f64) -> f64 {
    (pass_seconds(work, s) - computing).max(0.0) + copy_seconds(work, s).iter().sum::<f64>()
}

fn pass_seconds(work: &Tally, s: &Setup) -> f64 {
    let hw = s.hardware;
    let ranks = hw.per_node.min(s.ranks()) as f64;
    let passes = work.iter().filter(|(name, _)| !COPIES.contains(name));
    let passes: f64 = passes.map(|(_, work)| work.bytes).sum();
    passes * ranks / (hw.host_gb_s * 1e9 * hw.memory_share) * hw.slowdown
}

/// To the host, and to the device.
fn copy_seconds(work: &Tally, s: &Setup) -> [f64; 2] {
    let bytes = COPIES.map(|name| work.get(name).map_or(0.0, |work| work.bytes));
    bytes.map(|bytes| bytes / (s.hardware.link_gb_s * 1e9) * s.hardware.slowdown)
}

/// The share of its prediction that a step's time is within, nine times in ten.
pub fn error(hw: &Hardware) -> f64 {
    2.0 * hw.scatter.max(hw.doubt)
}

/// The stage whose first rank reserves most.
pub fn peak(stages: &[Stage]) -> (usize, Bytes) {
    let total = |i: &usize| stages[*i].memory_plan.total().0;
    let at = (0..stages.len()).rev().max_by_key(total).expect("a pipeline has a stage");
    (at, stages[at].memory_plan.total())
}

/// The most that a rank reserves on its host.
pub fn host_peak(stages: &[Stage]) -> Bytes {
    stages.iter().map(|stage| stage.memory_plan.host_total()).max().expect("a stage")
}

#[cfg(test)]
mod tests;
