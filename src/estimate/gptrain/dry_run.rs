//! gptrain's own needs: the trainer's engine on a device and groups that only count. Its memory is
//! the allocator's own plan, so it is what `run` reserves, byte for byte.

use super::overlap::{self, Overlap};
use super::prices::{Prices, TRAFFIC};
use crate::hardware::{HOST_SHARE, Hardware, UNMEASURED};
use crate::setup::Setup;
use base::Bytes;
use comm::dry::{self, Event, Journal, WaitPoint};
use comm::{Op, Solo};
use device::{self, COPIES, Gpu, Tally};
use engine::{self, Engine, Groups, MemoryPlan};
use manifest::{Batch, DeviceChoice, GradientHome, Manifest, Schedule, Topology, Train};
use plan::grid::Axis;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Memory and work of the first rank of a pipeline stage.
#[derive(Clone, Debug)]
pub struct Stage {
    pub layers: usize,
    pub memory_plan: MemoryPlan,
    /// Parameters of the model that this rank holds.
    pub parameters: u64,
    pub work: Work,
}

/// Work of a rank in a step.
#[derive(Clone, Debug)]
pub struct Work {
    /// A micro-batch's forward and backward.
    pub micro: Workload,
    /// Work per step: sums of gradients, optimizer, gathers of weights.
    pub step: Workload,
    /// The steps that were counted, of so many micro-batches and of twice as many.
    micros: f64,
    steps: [Arc<[Event]>; 2],
}

impl Work {
    /// A micro-batch's messages that the next op waits for.
    pub fn awaited_messages(&self) -> dry::Volume {
        let awaited = |event: &&Event| matches!(event, Event::Send { wait: WaitPoint::Now, .. });
        let [few, twice] = self.steps.each_ref().map(|step| {
            let awaited: Vec<Event> = step.iter().filter(awaited).cloned().collect();
            Workload { messages: dry::sum_volume(&awaited), ..Workload::default() }
        });
        twice.subtract(&few).times(1.0 / self.micros).messages
    }

    /// Whether both are one count, of stages that are alike.
    pub(super) fn is_copy_of(&self, other: &Work) -> bool {
        Arc::ptr_eq(&self.steps[0], &other.steps[0])
    }
}

/// Ops by kind, and bytes by group and collective.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    pub ops: Tally,
    /// Work of the processor of the device's host, and copies to and from it.
    pub host: Tally,
    pub messages: dry::Volume,
}

impl Workload {
    pub(super) fn subtract(mut self, other: &Workload) -> Workload {
        for (ours, theirs) in [(&mut self.ops, &other.ops), (&mut self.host, &other.host)] {
            for (name, work) in theirs {
                *ours.entry(name).or_default() += work.times(-1.0);
            }
        }
        for (key, sent) in &other.messages {
            let ours = self.messages.entry(*key).or_default();
            ours.calls -= sent.calls;
            ours.bytes -= sent.bytes;
        }
        self
    }

    fn times(mut self, factor: f64) -> Workload {
        for work in self.ops.values_mut().chain(self.host.values_mut()) {
            *work = work.times(factor);
        }
        for sent in self.messages.values_mut() {
            sent.calls *= factor;
            sent.bytes *= factor;
        }
        self
    }

    /// One after the other, by purpose.
    pub(super) fn seconds(&self, prices: &Prices) -> Vec<(&'static str, f64)> {
        prices.by_purpose(&self.ops, &self.messages)
    }

    /// Bytes sent to the members of some groups.
    fn sent(&self, groups: &[&str]) -> f64 {
        let sends = self.messages.iter().filter(|((_, op), _)| *op != Op::Recv);
        let ours = sends.filter(|((group, _), _)| groups.contains(group));
        let bytes = ours.map(|(_, sent)| sent.bytes);
        bytes.fold(0.0, |sum, bytes| sum + bytes)
    }
}

impl Work {
    /// Seconds of collectives and messages that overlap computation: a micro-batch's, and once a
    /// step.
    pub(super) fn overlap(&self, prices: &Prices) -> [Overlap; 2] {
        // A processor's collectives take it from its ops.
        if !prices.overlaps() {
            return [Overlap::default(); 2];
        }
        let timed = |step: &Arc<[Event]>| step.iter().map(|e| prices.time(e)).collect::<Vec<_>>();
        let [few, twice] = self.steps.each_ref().map(|step| {
            let step = timed(step);
            [overlap::overlap(&step), overlap::overlappable_seconds(&step)]
        });
        // A step of many micro-batches does not hide more than it sends.
        let part = |of: &dyn Fn(&Overlap) -> f64| {
            let [[hidden, sent], [twice, twice_sent]] =
                [&few, &twice].map(|step| step.each_ref().map(of));
            let sent_by_micro = (twice_sent - sent) / self.micros;
            let micro = ((twice - hidden) / self.micros).clamp(0.0, sent_by_micro.max(0.0));
            let once = hidden - self.micros * micro;
            [micro, once.min(sent - self.micros * sent_by_micro)]
        };
        let all = part(&|hidden| hidden.all);
        let messages = part(&|hidden| hidden.messages);
        let rows: [[f64; 2]; TRAFFIC.len()] =
            std::array::from_fn(|row| part(&|hidden| hidden.rows[row]));
        [0, 1].map(|i| Overlap { all: all[i], messages: messages[i], rows: rows.map(|row| row[i]) })
    }
}

impl Stage {
    /// Bytes sent in a step of so many micro-batches, by the rows of `TRAFFIC`.
    pub fn sends(&self, micros: usize) -> [f64; TRAFFIC.len()] {
        TRAFFIC.map(|(_, to)| micros as f64 * self.work.micro.sent(to) + self.work.step.sent(to))
    }
}

/// The first rank of every stage.
pub fn stages(m: &Manifest) -> Vec<Stage> {
    let cap = m.train.device_memory.map(|device| MemoryLimits {
        device,
        host: Bytes(u64::MAX),
        per_node: 1,
    });
    let m = &cap.map_or_else(|| m.clone(), |limits| place_gradients(m, limits));
    let mut stages: Vec<Stage> = Vec::new();
    for (stage, first) in first_alike_stages(m).into_iter().enumerate() {
        let work = stages.get(first).map(|alike| alike.work.clone());
        stages.push(reserve(m, stage).with_work(work.unwrap_or_else(|| count_work(m, stage))));
    }
    stages
}

/// Memory that the first rank of the fullest stage reserves on its device.
pub fn memory(m: &Manifest) -> Bytes {
    let alike = first_alike_stages(m).into_iter().enumerate();
    let distinct = alike.filter(|(stage, first)| stage == first);
    let needs = distinct.map(|(stage, _)| reserve(m, stage).memory_plan.total());
    needs.max().unwrap_or(Bytes(0))
}

/// Memory that a rank may reserve.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    pub device: Bytes,
    /// Memory of a node, which its ranks share.
    pub host: Bytes,
    /// Most ranks of a node.
    pub per_node: usize,
}

impl MemoryLimits {
    /// Memory of a device of that kind, without a process's own and without the margin that a run keeps
    /// free, within the manifest's limit.
    pub fn new(m: &Manifest, hw: &Hardware) -> MemoryLimits {
        let gib = |gib: f64| (gib * 1073741824.0).max(0.0) as u64;
        let device = gib(hw.memory_gib - hw.context_mib / 1024.0);
        let device = Bytes(device.saturating_sub(headroom(m, hw).0));
        let device = m
            .train
            .device_memory
            .map_or(device, |most| device.min(most));
        MemoryLimits { device, host: Bytes(gib(hw.host_gib)), per_node: hw.per_node }
    }

    /// Host memory of each of so many ranks.
    pub fn host_share(&self, ranks: usize) -> Bytes {
        Bytes(self.host.0 / self.per_node.min(ranks) as u64)
    }

    /// Whether each of so many ranks may reserve this.
    fn allows(&self, plan: &MemoryPlan, ranks: usize) -> bool {
        plan.total() <= self.device && plan.host_total() <= self.host_share(ranks)
    }
}

/// Memory of a GPU that a run leaves free.
pub fn headroom(m: &Manifest, hw: &Hardware) -> Bytes {
    match m.train.device {
        DeviceChoice::Cuda => Gpu::headroom(Bytes((hw.memory_gib * 1073741824.0) as u64)),
        DeviceChoice::Cpu | DeviceChoice::Auto => Bytes(0),
    }
}

/// The manifest, with gradients on the host where it leaves that open and they have no `limits` on the
/// device, but there.
pub fn place_gradients(m: &Manifest, limits: MemoryLimits) -> Manifest {
    let alike = first_alike_stages(m);
    let holds = |m: &Manifest| memory_within(m, &alike, limits).is_some();
    if m.gradients_are_open() && !holds(m) {
        let host = m.with_gradients(GradientHome::Host);
        if holds(&host) {
            return host;
        }
    }
    m.clone()
}

/// As `stages`, where no rank reserves more than `limits`. Stages that do the same work are all taken
/// to reserve what the first of them does, which holds the most micro-batches.
pub fn stages_within(m: &Manifest, limits: MemoryLimits) -> Option<Vec<Stage>> {
    let m = &place_gradients(m, limits);
    let alike = first_alike_stages(m);
    let distinct: BTreeMap<usize, Stage> = memory_within(m, &alike, limits)?
        .into_iter()
        .map(|(stage, needs)| (stage, needs.with_work(count_work(m, stage))))
        .collect();
    Some(alike.iter().map(|first| distinct[first].clone()).collect())
}

/// Whether no rank reserves more than `limits`.
pub fn fits(m: &Manifest, limits: MemoryLimits) -> bool {
    let m = &place_gradients(m, limits);
    memory_within(m, &first_alike_stages(m), limits).is_some()
}

fn memory_within(
    m: &Manifest,
    alike: &[usize],
    limits: MemoryLimits,
) -> Option<BTreeMap<usize, StageMemory>> {
    engine::check_micro_batch(&device(m), m).ok()?;
    let distinct = alike
        .iter()
        .enumerate()
        .filter(|(stage, first)| stage == *first);
    let needs = distinct.map(|(stage, _)| Some((stage, reserve(m, stage))));
    needs
        .map(|each| each.filter(|(_, needs)| limits.allows(&needs.memory_plan, m.topology.ranks())))
        .collect()
}

/// For each stage, the first that has the same layers and the same ends: both do the same work, and
/// the earlier holds at least as many micro-batches.
fn first_alike_stages(m: &Manifest) -> Vec<usize> {
    let cuts = engine::cuts(&m.model, &m.topology);
    let ranks = m.topology.pipeline;
    let chunk = |stage: usize| {
        let kinds = cuts[stage]
            .clone()
            .map(|layer| m.model.kind(layer))
            .collect::<Vec<_>>();
        (kinds, stage == 0, stage + 1 == cuts.len())
    };
    let kind = |rank: usize| {
        (rank..cuts.len())
            .step_by(ranks)
            .map(chunk)
            .collect::<Vec<_>>()
    };
    let kinds: Vec<_> = (0..ranks).map(kind).collect();
    kinds
        .iter()
        .map(|kind| {
            kinds
                .iter()
                .position(|other| other == kind)
                .expect("itself at least")
        })
        .collect()
}

/// A stage before its work is counted.
struct StageMemory {
    layers: usize,
    memory_plan: MemoryPlan,
    parameters: u64,
}

impl StageMemory {
    fn with_work(self, work: Work) -> Stage {
        let StageMemory { layers, memory_plan, parameters } = self;
        Stage { layers, memory_plan, parameters, work }
    }
}

fn device(m: &Manifest) -> device::Dry {
    match m.train.device {
        DeviceChoice::Cuda => device::Dry::gpu(),
        DeviceChoice::Cpu | DeviceChoice::Auto => device::Dry::default(),
    }
}

fn reserve(m: &Manifest, stage: usize) -> StageMemory {
    let groups = groups(m, stage, &Rc::default());
    let (memory_plan, layout) = Engine::plan(&device(m), &groups, m, m.data.causal());
    let own = layout.params().filter(|param| !param.tied_copy);
    let parameters = own.map(|param| param.numel() as u64).sum();
    let layers = layout
        .shard
        .chunks
        .iter()
        .map(|chunk| chunk.layers.len())
        .sum();
    StageMemory { layers, memory_plan, parameters }
}

/// The memory and the work of a stage's first rank.
pub fn count_stage(m: &Manifest, stage: usize) -> (MemoryPlan, Work) {
    (reserve(m, stage).memory_plan, count_work(m, stage))
}

/// Counted in steps of one and two micro-batches, or as few more as the schedule allows: what the
/// second has more is the micro-batches' work, the rest is done once. Breadth first, some messages are sent
/// once for several micro-batches and hide behind them, so the first step has all micro-batches.
fn count_work(m: &Manifest, stage: usize) -> Work {
    let t = &m.topology;
    let micro = m.batch.micros().at(m.batch.global);
    let micros = (m.batch.global / (micro * t.data)).max(1);
    let fewest = match t.schedule {
        Schedule::OneFOneB | Schedule::GPipe => 1,
        Schedule::Interleaved => t.pipeline,
        Schedule::BreadthFirst => micros,
    };
    let sums_once = t.zero_every > 1 && t.zero_every >= micros;
    let zero_every = if sums_once { usize::MAX } else { t.zero_every };
    let topology = Topology { zero_every, ..t.clone() };
    let batch = Batch::constant(micro, 2 * fewest * micro * t.data);
    // What does not fit is counted all the same.
    let train = Train { device_memory: None, ..m.train.clone() };
    let m = &Manifest { batch, train, topology, ..m.clone() };
    let device = Rc::new(device(m));
    let journal = Journal::for_device(&device);
    let engine = Engine::new(&*device, groups(m, stage, &journal), m, m.data.causal())
        .expect("a dry device is never full");
    engine.set_steps(u64::MAX / 2); // whatever a run begins with is over
    let step = |micros| {
        engine
            .step(&mut |_: &_| Ok(()), micros, 0.0)
            .expect("loading nothing does not fail");
    };
    step(fewest); // of which an update may be late
    let count = |micros: usize| {
        drop((journal.take(), device.host_device().take()));
        step(micros);
        let host = device.host_device().take();
        let events = journal.take();
        (
            Workload { ops: dry::sum_ops(&events), host, messages: dry::sum_volume(&events) },
            events.into(),
        )
    };
    let (once, few) = count(fewest);
    let (twice, many) = count(2 * fewest);
    let micros = twice.subtract(&once);
    Work {
        step: once.subtract(&micros),
        micro: micros.times(1.0 / fewest as f64),
        micros: fewest as f64,
        steps: [few, many],
    }
}

/// The groups of a stage's first rank.
fn groups(m: &Manifest, stage: usize, journal: &Rc<Journal>) -> Groups {
    let grid = m.topology.grid();
    let rank = grid.rank(grid.first().with(Axis::Pipeline, stage));
    Groups::for_rank(rank, &m.topology, |name, ranks| {
        let at = ranks
            .iter()
            .position(|member| *member == rank)
            .expect("a member");
        match ranks.len() {
            1 => Box::new(Solo),
            size => Box::new(dry::Dry::new(name, at, size, journal)),
        }
    })
}

/// Seconds of the host's work in a step. Its passes over memory, which a node's ranks share, run beside
/// the copies in both directions; the longest of the three counts.
pub fn host_seconds(work: &Tally, s: &Setup) -> f64 {
    let hw = s.hardware;
    let ranks = hw.per_node.min(s.ranks()) as f64;
    let passes = work.iter().filter(|(name, _)| !COPIES.contains(name));
    let bytes: f64 = passes.map(|(_, work)| work.bytes).sum();
    let passes = bytes * ranks / (hw.host_gb_s * 1e9 * HOST_SHARE) * hw.slowdown;
    let copies = COPIES
        .map(|name| work.get(name).map_or(0.0, |work| work.bytes))
        .map(|bytes| bytes / (hw.link_gb_s * 1e9) * hw.slowdown);
    copies.into_iter().fold(passes, f64::max)
}

/// Growth of a measured machine's uncertainty for each e-fold of devices above the measured ones. With other
/// programs' runs above 16, 32 … 256 devices left out, 94 to 98 % of these are within bars that grow so.
const LARGER: f64 = 0.05;

/// The share of its prediction that a step's time on so many devices is within, nine times in ten.
pub fn error(hw: &Hardware, devices: usize) -> f64 {
    let measured = hw.scatter.max(hw.uncertainty);
    let times = devices as f64 / hw.measured_devices as f64;
    if hw.is_local || hw.measured_devices == 0 || times <= 1.0 {
        return 2.0 * measured;
    }
    2.0 * measured.max(measured.hypot(LARGER * times.ln()).min(UNMEASURED))
}

/// The stage whose first rank reserves most.
pub fn peak(stages: &[Stage]) -> (usize, Bytes) {
    let total = |i: &usize| stages[*i].memory_plan.total().0;
    let stage = (0..stages.len())
        .rev()
        .max_by_key(total)
        .expect("a pipeline has a stage");
    (stage, stages[stage].memory_plan.total())
}

/// The most that a rank reserves on its host.
pub fn host_peak(stages: &[Stage]) -> Bytes {
    stages
        .iter()
        .map(|stage| stage.memory_plan.host_total())
        .max()
        .expect("a stage")
}

#[cfg(test)]
mod tests;
