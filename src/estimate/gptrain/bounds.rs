//! Lower bounds of a cut's memory and seconds: a search runs the engine dry only for cuts that may be
//! among the best.
//!
//! All layers are assumed to be alike, as cheap as the cheapest kind. So the needs of a stage are those
//! of one layer with its ends, plus those that a second layer adds, for each further one: two small dry
//! runs give both. A micro-batch's needs depend on tensor parallelism, the micro-batch and
//! recomputation. Weights and states depend on tensor parallelism, replicas, ZeRO and their memory. Only
//! the number of micro-batches held depends on the pipeline's depth. So thousands of cuts share some
//! hundred dry runs.
//!
//! Not in the bounds: collectives among replicas, overlapped messages, and small buffers.

use super::cuts;
use super::dry_run::{self, MemoryLimits, Workload};
use super::memo::Memo;
use super::prices::Prices;
use crate::setup::{Moments, Setup};
use device::{COPIES, Tally};
use engine::MemoryPlan;
use manifest::{
    AdamW, GradientHome, LayerSplit, Manifest, Offload, Optimizer, Recompute, Schedule,
};
use plan::ramp::Ramp;
use plan::schedule::PipelineRank;
use std::sync::Arc;

/// A rule that needs no memory where activations are kept.
const PLAIN: AdamW =
    AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: Some(1.0) };

/// Bounds of the cuts of one model.
pub struct Bounds<'a> {
    manifest: &'a Manifest,
    /// Samples of the largest step of the run.
    largest: usize,
    limits: MemoryLimits,
    passes: Memo<PassesKey, Arc<Vec<Layered<Passes>>>>,
    states: Memo<StatesKey, Arc<Vec<Layered<States>>>>,
    pipes: Memo<PipeKey, Arc<Vec<RankKind>>>,
    slots: Memo<(usize, usize, usize, usize), usize>,
}

/// Lower bound of a cut's needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    pub seconds: f64,
    /// Memory of the rank that reserves most.
    pub bytes: u64,
}

/// Needs of a stage with one layer, and of each further layer.
struct Layered<T> {
    one: T,
    more: T,
}

/// Needs of a stage for one micro-batch.
struct Passes {
    saved: u64,
    workspace: u64,
    inputs: u64,
    /// Ops, and messages that the next op waits for.
    work: Workload,
}

/// Memory that is kept from step to step, and the work per step.
struct States {
    device: u64,
    host: u64,
    /// Ops, and passes of the host's processor. Its copies are not counted: they depend on buffers that
    /// few layers do not fill.
    work: Workload,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PassesKey {
    tensor: usize,
    sequence: bool,
    micro: usize,
    recompute: u8,
    piped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct StatesKey {
    tensor: usize,
    data: usize,
    shard: usize,
    copies_states: bool,
    zero: u8,
    adam8bit: bool,
    offload: u8,
    gradients_on_host: bool,
    compressed: bool,
    /// Whether a step has several micro-batches.
    several: bool,
    piped: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct PipeKey {
    layers: usize,
    tensor: usize,
    pipeline: usize,
    chunks: usize,
    recompute: u8,
    split: LayerSplit,
}

/// Ranks of a pipeline with the same layers and ends: the first of them, and how many there are.
struct RankKind {
    rank: usize,
    count: usize,
    /// Layers of each chunk, and its end.
    chunks: Vec<(usize, End)>,
}

/// Place of a chunk in a pipeline. A model without a pipeline has one, with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    First,
    Middle,
    Last,
}

impl RankKind {
    fn layers(&self) -> usize {
        self.chunks.iter().map(|(layers, _)| layers).sum()
    }

    /// End of the stage: that of its chunk which has one.
    fn end(&self) -> End {
        let ends = self.chunks.iter().map(|(_, end)| *end);
        ends.fold(End::Middle, |end, other| if other == End::Middle { end } else { other })
    }
}

impl<'a> Bounds<'a> {
    pub fn new(manifest: &'a Manifest, ramp: Ramp, limits: MemoryLimits) -> Bounds<'a> {
        Bounds {
            manifest,
            largest: ramp.sizes().max().expect("a batch"),
            limits,
            passes: Memo::default(),
            states: Memo::default(),
            pipes: Memo::default(),
            slots: Memo::default(),
        }
    }

    /// None if the cut needs more memory than available.
    pub fn bound(&self, s: &Setup) -> Option<Bound> {
        let bytes = self
            .bytes(s)
            .filter(|bytes| *bytes <= self.limits.device.0)?;
        Some(Bound { seconds: self.seconds(s), bytes })
    }

    /// False if the cut needs more memory than available.
    pub fn may_fit(&self, s: &Setup) -> bool {
        self.bytes(s)
            .is_some_and(|bytes| bytes <= self.limits.device.0)
    }

    /// Memory of the rank that reserves most; None if the host has too little memory.
    fn bytes(&self, s: &Setup) -> Option<u64> {
        let kinds = self.rank_kinds(s);
        let passes = self.passes(s);
        let homes = gradient_homes(s).into_iter();
        let states: Vec<_> = homes.map(|home| self.states(s, home)).collect();
        kinds
            .iter()
            .map(|kind| {
                let more = kind.layers() as u64 - 1;
                let kept = |bytes: fn(&States) -> u64| {
                    let needs = states.iter().map(|states| {
                        let states = &states[kind.end() as usize];
                        bytes(&states.one) + more * bytes(&states.more)
                    });
                    needs.min().expect("one home at least")
                };
                let chunk = |(layers, end): &(usize, End)| {
                    let passes = &passes[*end as usize];
                    passes.one.saved + (*layers as u64 - 1) * passes.more.saved
                };
                let saved = kind.chunks.iter().map(chunk).max().expect("a chunk");
                let workspace = kind
                    .chunks
                    .iter()
                    .map(|(_, end)| passes[*end as usize].one.workspace)
                    .max();
                let inputs = passes[kind.end() as usize].one.inputs;
                let slots = self.micro_batches_held(s, kind.rank) as u64;
                let device =
                    kept(|s| s.device) + slots * saved + workspace.expect("a chunk") + inputs;
                (kept(|s| s.host) <= self.limits.host_share(s.ranks()).0).then_some(device)
            })
            .try_fold(0, |most, bytes| Some(bytes?.max(most)))
    }

    /// Lower bound of the time of all passes. More cuts share it than the full bound, so it is computed
    /// first.
    pub fn passes_seconds(&self, s: &Setup) -> f64 {
        let kinds = self.rank_kinds(s);
        let passes = self.passes(s);
        let prices = Prices::new(s);
        let seconds: Vec<f64> = kinds
            .iter()
            .map(|kind| {
                let mut ops = Tally::new();
                let mut sent = 0.0;
                for (layers, end) in &kind.chunks {
                    let passes = &passes[*end as usize];
                    let more = (*layers - 1) as f64;
                    add(&mut ops, &passes.one.work.ops, 1.0);
                    add(&mut ops, &passes.more.work.ops, more);
                    sent += prices.messages(&passes.one.work.messages);
                    sent += more * prices.messages(&passes.more.work.messages);
                }
                prices.ops(&ops) + sent
            })
            .collect();
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        let sum: f64 = kinds
            .iter()
            .zip(&seconds)
            .map(|(kind, seconds)| kind.count as f64 * seconds)
            .sum();
        // Sums in another order than the dry run's differ in their last digits.
        (1.0 - 1e-9) * (s.micros() as f64 * slowest + (sum - slowest) / s.topology.chunks as f64)
    }

    fn seconds(&self, s: &Setup) -> f64 {
        let kinds = self.rank_kinds(s);
        let prices = Prices::new(s);
        let homes = gradient_homes(s)
            .into_iter()
            .map(|home| self.states(s, home));
        self.passes_seconds(s)
            + (1.0 - 1e-9)
                * homes
                    .map(|home| {
                        kinds
                            .iter()
                            .map(|kind| step_seconds(s, kind, &home, &prices))
                            .fold(f64::INFINITY, f64::min)
                    })
                    .fold(f64::INFINITY, f64::min)
    }

    /// Micro-batches whose activations a rank holds at once.
    fn micro_batches_held(&self, s: &Setup, rank: usize) -> usize {
        let t = &s.topology;
        let pp = PipelineRank { rank, ranks: t.pipeline, chunks: t.chunks };
        let micros = (self.largest / (s.micro * t.data)).min(2 * t.pipeline * t.chunks);
        let key = (rank, t.pipeline, t.chunks, micros);
        self.slots.get(key, || engine::actions(pp, t, micros).1)
    }

    fn rank_kinds(&self, s: &Setup) -> Arc<Vec<RankKind>> {
        let t = &s.topology;
        let tensor = t.tensor;
        let pipeline = t.pipeline;
        let chunks = t.chunks;
        let layers = s.model.layers;
        let split = t.layer_split.clone();
        let key = PipeKey { layers, tensor, pipeline, chunks, recompute: t.recompute as u8, split };
        self.pipes.get(key, || Arc::new(rank_kinds(s)))
    }

    fn passes(&self, s: &Setup) -> Arc<Vec<Layered<Passes>>> {
        let t = &s.topology;
        let key = PassesKey {
            tensor: t.tensor,
            sequence: t.sequence_parallel,
            micro: s.micro,
            recompute: t.recompute as u8,
            piped: t.pipeline > 1,
        };
        self.passes.get(key, || {
            let plain = s.clone().with_topology(|t| {
                (t.data, t.zero, t.compression, t.offload) = (1, 0, None, Offload::NONE);
            });
            let plain = Setup { moments: Moments::Adam, ..plain };
            let m = Manifest { optimizer: Optimizer::AdamW(PLAIN), ..self.manifest.clone() };
            let one = count_stages(&m, &plain, 1, 1);
            let two = count_stages(&m, &plain, 2, 1);
            Arc::new(
                one.into_iter()
                    .zip(two)
                    .map(|(one, two)| layered_passes(one, two))
                    .collect(),
            )
        })
    }

    fn states(&self, s: &Setup, gradients: GradientHome) -> Arc<Vec<Layered<States>>> {
        let t = &s.topology;
        let key = StatesKey {
            tensor: t.tensor,
            data: t.data,
            shard: t.shard_size(),
            copies_states: t.copies_states(),
            zero: t.zero,
            adam8bit: s.moments == Moments::Adam8bit,
            offload: t.offload.what as u8,
            gradients_on_host: gradients == GradientHome::Host,
            compressed: t.compression.is_some(),
            several: self.largest > s.micro * t.data,
            piped: t.pipeline > 1,
        };
        self.states.get(key, || {
            let kept = s.clone().with_topology(|t| {
                (t.recompute, t.sequence_parallel) = (Recompute::None, false);
                t.offload.gradients = gradients;
            });
            let kept = Setup { micro: 1, ..kept };
            let micros = if key.several { 2 } else { 1 };
            let one = count_stages(self.manifest, &kept, 1, micros);
            let two = count_stages(self.manifest, &kept, 2, micros);
            // Which rank has a whole matrix's states is not the same for every layer.
            let counts = s.moments != Moments::Muon;
            Arc::new(
                one.into_iter()
                    .zip(two)
                    .map(|(one, two)| layered_states(one, two, counts))
                    .collect(),
            )
        })
    }
}

/// Seconds of the work of a rank and its host per step.
fn step_seconds(s: &Setup, kind: &RankKind, states: &[Layered<States>], prices: &Prices) -> f64 {
    let states = &states[kind.end() as usize];
    let more = (kind.layers() - 1) as f64;
    let whole = |tally: fn(&Workload) -> &Tally| {
        let mut sum = tally(&states.one.work).clone();
        add(&mut sum, tally(&states.more.work), more);
        sum
    };
    prices.ops(&whole(|work| &work.ops)) + dry_run::host_seconds(&whole(|work| &work.host), s)
}

/// Possible memories of gradients: also the host's if the manifest leaves it open.
fn gradient_homes(s: &Setup) -> Vec<GradientHome> {
    if s.topology
        .gradients_are_open(s.moments == Moments::Adafactor)
    {
        vec![GradientHome::Auto, GradientHome::Host]
    } else {
        vec![s.topology.offload.gradients]
    }
}

/// Memory and work of each stage of the cut, with so many layers a stage: of one stage, or of three
/// where it has a pipeline.
fn count_stages(
    m: &Manifest,
    s: &Setup,
    layers: usize,
    micros: usize,
) -> Vec<(MemoryPlan, dry_run::Work)> {
    let stages = if s.topology.pipeline > 1 { 3 } else { 1 };
    let mut setup = s.clone().with_topology(|t| {
        (t.pipeline, t.chunks) = (stages, 1);
        (t.schedule, t.layer_split) = (Schedule::OneFOneB, LayerSplit::Uniform);
    });
    setup.model = setup.model.lightest();
    setup.model.layers = stages * layers;
    setup.global = micros * setup.micro * setup.topology.data;
    let mut m = cuts::manifest(m, &setup);
    m.batch.ramp_up = None;
    m.train.device_memory = None;
    (0..stages)
        .map(|stage| dry_run::count_stage(&m, stage))
        .collect()
}

fn layered_passes(
    one: (MemoryPlan, dry_run::Work),
    two: (MemoryPlan, dry_run::Work),
) -> Layered<Passes> {
    let passes = |(plan, work): (MemoryPlan, dry_run::Work)| Passes {
        saved: row(&plan, "activations"),
        workspace: row(&plan, "workspace") + row(&plan, "library workspace"),
        inputs: row(&plan, "inputs"),
        work: Workload {
            messages: work.awaited_messages(),
            ops: work.micro.ops,
            host: Tally::new(),
        },
    };
    let one = passes(one);
    let mut two = passes(two);
    two.saved = two.saved.saturating_sub(one.saved);
    two.work = two.work.subtract(&one.work);
    Layered { one, more: two }
}

fn layered_states(
    one: (MemoryPlan, dry_run::Work),
    two: (MemoryPlan, dry_run::Work),
    counts: bool,
) -> Layered<States> {
    let states = |(plan, work): (MemoryPlan, dry_run::Work)| {
        let kept = row(&plan, "weights") + row(&plan, "gradients");
        if !counts {
            return States { device: kept, host: 0, work: Workload::default() };
        }
        let device = kept + row(&plan, "optimizer");
        let work =
            Workload { ops: work.step.ops, host: passes(work.step.host), ..Workload::default() };
        States { device, host: plan.host_total().0, work }
    };
    let one = states(one);
    let mut two = states(two);
    two.device = two.device.saturating_sub(one.device);
    two.host = two.host.saturating_sub(one.host);
    two.work = two.work.subtract(&one.work);
    Layered { one, more: two }
}

/// Work without the copies.
fn passes(mut host: Tally) -> Tally {
    host.retain(|name, _| !COPIES.contains(name));
    host
}

fn row(plan: &MemoryPlan, name: &str) -> u64 {
    plan.rows
        .iter()
        .filter(|row| row.0 == name)
        .map(|row| row.1.0)
        .sum()
}

/// all += times · more
fn add(all: &mut Tally, more: &Tally, times: f64) {
    for (name, work) in more {
        *all.entry(name).or_default() += work.times(times);
    }
}

fn rank_kinds(s: &Setup) -> Vec<RankKind> {
    let cuts = engine::cuts(&s.model, &s.topology);
    let ranks = s.topology.pipeline;
    let end = |stage: usize| match stage {
        0 => End::First,
        _ if stage + 1 == cuts.len() => End::Last,
        _ => End::Middle,
    };
    let mut kinds: Vec<RankKind> = Vec::new();
    for rank in 0..ranks {
        let stages = (rank..cuts.len()).step_by(ranks);
        let chunks: Vec<_> = stages
            .map(|stage| (cuts[stage].len(), end(stage)))
            .collect();
        match kinds.iter_mut().find(|kind| kind.chunks == chunks) {
            Some(kind) => kind.count += 1,
            None => kinds.push(RankKind { rank, count: 1, chunks }),
        }
    }
    kinds
}
