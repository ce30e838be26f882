//! Seconds of an iteration: products by tiles and waves, element-wise work by bandwidth, launches,
//! messages, and the pipeline's bubble.

use super::constants::T;
use super::gemm;
use estimate::mixture::Degrees;
use estimate::rings;
use estimate::setup::{Moments, Numbers, Setup};
use manifest::Recompute;
use model::{ParamSpec, TpSplit, table};

/// Bytes of element-wise traffic an element of [s, b, h], in 16 bits: norms, dropout and residual
/// outside the part that tensor parallelism splits, activation function and copies inside.
const FORWARD: (f64, f64) = (26.0, 36.0);
const BACKWARD: (f64, f64) = (40.0, 60.0);
/// Bytes of traffic per attention score (softmax, dropout), and per logit.
const SCORE: (f64, f64) = (13.0, 20.0);
const LOGIT: f64 = 30.0;
/// Bytes per second of the scores' traffic on a multiprocessor: instructions limit their kernels, which
/// take as long a score on a V100 (op profile of Aceso, Liu et al. 2024) as on an A100 of 2,039 GB/s.
const SCORES: f64 = 2039e9 / 108.0;
/// Bytes per parameter: to add a micro-batch's gradient, in 16 or 32 bits; for an optimizer step; for
/// PowerSGD's factors, and the share that remains to be sent; over PCIe for an update on the host.
const ACCUMULATE: (f64, f64) = (6.0, 10.0);
const STEP: f64 = 40.0;
const POWER_SGD: (f64, f64) = (280.0, 0.45);
const OFFLOADED: f64 = 24.0;
/// Bytes of element-wise traffic, forward and backward, per element of attention inside the part that tensor
/// parallelism splits; and of a row that an expert has, per element of the hidden and of the inner width: it
/// is copied into the order of the experts, sent, sorted, gated and multiplied by its weight, and the same
/// back.
const ATTENTION: (f64, f64) = (12.0, 20.0);
const ROW: [(f64, f64); 2] = [(24.0, 36.0), (10.0, 16.0)];
/// Factor of kernels for a layer with experts: routing, sorting, grouped products and casts.
const EXPERT_LAUNCHES: f64 = 3.0;
/// Rate of grouped products beside single ones' on the same tiles: fitted to every second published row.
const EXPERT_PRODUCTS: f64 = 0.77;
/// Latency of a hop of DeepSpeed's rings, relative to NCCL's own: fitted to ZeRO-3 over 384, 1,120 and 1,536
/// A100 (Narayanan et al. 2021, table 2). Of its other half, over 640, 768 and 2,240, the time is then
/// within 10 %.
const DEEPSPEED_HOPS: f64 = 3.6;
/// Reference device of the constants: faster devices reach a smaller share of their peak.
const A100: f64 = 312e12;
/// Factor of kernels for op-by-op PyTorch, whose layers have more kernels than others'.
const EAGER_LAUNCHES: f64 = 1.5;
/// Factor of DeepSpeed's overhead per step, relative to others'.
const DEEPSPEED_STEP: f64 = 3.0;

/// Parts of an iteration's time on the slowest stage; they sum to the total.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// Seconds of a micro-batch's forward and backward on each stage.
    pub stage_seconds: Vec<f64>,
    pub parts: Vec<(&'static str, f64)>,
}

impl Time {
    pub fn total(&self) -> f64 {
        self.parts.iter().map(|(_, seconds)| seconds).sum()
    }

    /// Seconds of sums and gathers over replicas.
    pub fn data_parallel(&self) -> f64 {
        self.parts[BUBBLE + 1].1
    }

    /// Share by which the whole grows if a part doubles. The bubble consists of a micro-batch's parts,
    /// and counts for these too.
    pub fn shares(&self) -> Vec<f64> {
        let whole = self.total();
        let micro = self.parts[..BUBBLE].iter().chain(&self.parts[LEARNED..]);
        let waiting = self.parts[BUBBLE].1 / micro.map(|part| part.1).sum::<f64>();
        let longer = |at: usize| if at < BUBBLE { 1.0 + waiting } else { 1.0 };
        let parts = self.parts[..LEARNED].iter().enumerate();
        parts
            .map(|(at, (_, seconds))| longer(at) * seconds / whole)
            .collect()
    }
}

/// The bubble's place among a time's parts, after those of a micro-batch.
const BUBBLE: usize = 6;
/// Number of parts of which shares are learned; those of context and expert parallelism follow.
const LEARNED: usize = 9;

/// Speeds that the machine reaches: FLOP/s, and bytes per second.
struct Rates<'a> {
    k: &'a [f64],
    /// FLOP/s of the blocks' products, which may be in 8 or 4 bits, and of the head's.
    products: f64,
    head: f64,
    attention: f64,
    memory: f64,
    /// Bandwidth of element-wise work, which op-by-op PyTorch does in more passes.
    elements: f64,
    scores: f64,
    /// Factor of all that a micro-batch computes, and of what sums over nodes reach of the network.
    unfused: f64,
    ring: f64,
    /// Bandwidth between devices of a node, per device; and of all adapters of a node.
    bus: f64,
    network: f64,
    /// Number of devices that the fast links connect.
    domain: usize,
}

impl Rates<'_> {
    fn new<'a>(s: &Setup, k: &'a [f64]) -> Rates<'a> {
        let constant = |c: T| k[c as usize];
        let hw = s.hardware;
        let wide = if s.numbers == Numbers::F32 { 0.5 } else { 1.0 };
        let peak = hw.peak_tflops * 1e12 * wide;
        let blocks = match s.numbers {
            Numbers::Fp8 => hw.fp8_tflops * 1e12 * constant(T::Quantize),
            Numbers::Fp4 => hw.fp4_tflops * 1e12 * constant(T::Quantize).powi(2),
            _ => peak,
        };
        let slowed = |rate: f64, power: T| rate * (rate / A100).powf(-constant(power));
        let cooled = |rate: f64| slowed(rate, T::Fast);
        let power = if s.trainer().tuned { T::Fast } else { T::Aged };
        let attention = match (s.keeps_no_scores(), s.has_odd_heads()) {
            (true, _) => slowed(peak, power) * constant(T::Flash),
            (false, true) => peak * constant(T::OddHeads),
            (false, false) => peak * constant(T::Attention),
        };
        let repaired = match s.regime.as_deref() {
            Some("jz-a100-fp16-slownet") => constant(T::SlowNetwork),
            _ => 1.0,
        };
        let memory = hw.hbm_gb_s * 1e9 * constant(T::Hbm) * wide;
        let eager = if s.trainer().eager { constant(T::Eager) } else { 1.0 };
        let unfused = s.trainer().unfused && !s.keeps_no_scores();
        let if_unfused = |c: T| if unfused { constant(c) } else { 1.0 };
        Rates {
            unfused: if_unfused(T::Unfused),
            ring: s.hardware.ring_share * if_unfused(T::UnfusedRing),
            k,
            products: cooled(blocks) * constant(T::Gemm),
            head: cooled(peak) * constant(T::Gemm),
            attention,
            memory,
            elements: memory * eager,
            scores: hw.units as f64 * SCORES * constant(T::Hbm) * wide * eager,
            bus: hw.bus_gb_s * 1e9 * constant(T::Bus),
            network: hw.network_gb_s * 1e9 * repaired,
            domain: s.link_domain(),
        }
    }

    fn constant(&self, c: T) -> f64 {
        self.k[c as usize]
    }
}

/// Work of a layer or an end on a micro-batch, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    gemm: f64,
    attention: f64,
    elements: f64,
    launch: f64,
    tensor: f64,
    /// Keys and values of other context ranks, and rows of other ranks' experts.
    context: f64,
    expert: f64,
}

impl Work {
    fn total(&self) -> f64 {
        let exchanges = self.context + self.expert;
        self.gemm + self.attention + self.elements + self.launch + self.tensor + exchanges
    }

    fn times(self, n: f64) -> Work {
        Work {
            gemm: n * self.gemm,
            attention: n * self.attention,
            elements: n * self.elements,
            launch: n * self.launch,
            tensor: n * self.tensor,
            context: n * self.context,
            expert: n * self.expert,
        }
    }
}

/// Products of a micro-batch by tiles and waves, in seconds of a device of one FLOP/s. They do not depend
/// on the constants, and take longest to count.
#[derive(Clone, Copy, Debug)]
pub struct Products {
    layer: f64,
    head: f64,
}

impl Products {
    pub fn new(s: &Setup) -> Products {
        let rows = s.rows();
        let h = s.model.hidden;
        let v = s.model.vocab_padded / s.topology.tensor;
        let selective = s.topology.recompute == Recompute::Selective;
        let repeated = if selective { s.trainer().selective } else { 0.0 };
        let grouped = |shape, groups| {
            let share = if groups > 1 { EXPERT_PRODUCTS } else { 1.0 };
            gemm::seconds(s.hardware, shape, groups, share)
        };
        let one = |shape| gemm::seconds(s.hardware, shape, 1, 1.0);
        Products {
            layer: products(s)
                .into_iter()
                .map(|Product { rows, n, k, groups }| {
                    (s.forward_passes() + repeated) * grouped((rows, n, k), groups)
                        + grouped((rows, k, n), groups)
                        + grouped((n, k, rows), groups)
                })
                .sum(),
            head: one((rows, v, h)) + one((rows, h, v)) + one((v, h, rows)),
        }
    }
}

pub fn time(s: &Setup, k: &[f64]) -> Time {
    time_of_products(s, Products::new(s), k)
}

/// The same, of products that were counted before.
pub fn time_of_products(s: &Setup, products: Products, k: &[f64]) -> Time {
    let r = Rates::new(s, k);
    let layer = layer(s, products, &r);
    let head = head(s, products, &r);
    let send = send(s, &r);
    let cuts = s.stages();
    let stages = cuts.len();
    let works: Vec<(Work, f64, [f64; 2])> = (0..stages)
        .map(|i| {
            let first = i == 0;
            let last = i + 1 == stages;
            let parameters = s.stage_parameters(i);
            let mut work = layer.times(cuts[i].len() as f64);
            if last {
                work.gemm += head.gemm;
                work.elements += head.elements;
            }
            work.elements += accumulation(s, &r) * parameters.iter().sum::<f64>();
            work.launch += r.constant(T::Micro) * 1e-3;
            let neighbours = usize::from(!first) + usize::from(!last);
            (work, neighbours as f64 * send, parameters)
        })
        .collect();
    let most = [0, 1].map(|kind| works.iter().map(|work| work.2[kind]).fold(0.0, f64::max));
    let stage_seconds: Vec<f64> = works
        .iter()
        .map(|(work, pipe, _)| work.total() + pipe)
        .collect();
    let slowest = (0..stages)
        .max_by(|a, b| stage_seconds[*a].total_cmp(&stage_seconds[*b]))
        .expect("a pipeline has a stage");
    let (work, pipe, _) = works[slowest];
    let n = micros(s);
    // The pipe fills and drains once; chunks of layers make that shorter (Narayanan et al. 2021).
    let bubble = stage_seconds.iter().sum::<f64>() - stage_seconds[slowest];
    let computation = stage_seconds[slowest] * if s.topology.zero == 3 { n } else { 1.0 };
    Time {
        parts: vec![
            ("matrix products", n * work.gemm),
            ("attention", n * work.attention),
            ("element-wise", n * work.elements),
            ("launches", n * work.launch),
            ("tensor parallel", n * work.tensor),
            ("pipeline sends", n * pipe),
            ("pipeline bubble", bubble / s.topology.chunks as f64),
            ("data parallel", data_parallel(s, most, computation, &r)),
            ("optimizer", optimizer(s, most, &r)),
            ("context exchange", n * work.context),
            ("expert exchange", n * work.expert),
        ],
        stage_seconds,
    }
}

/// Micro-batches of a replica in a step, of which the last may be smaller.
fn micros(s: &Setup) -> f64 {
    (s.global as f64 / (s.micro * s.topology.data) as f64).max(1.0)
}

/// Products of a layer on one rank: rows [rows, k] times a matrix [n, k], `groups` of them at once.
#[derive(Clone, Copy)]
struct Product {
    rows: usize,
    n: usize,
    k: usize,
    groups: usize,
}

/// Products of a layer: by the matrices of a block, and in groups by those of the experts, to each of which
/// equally many rows come. Layers without experts count as the others, as wide ones are chosen for them.
fn products(s: &Setup) -> Vec<Product> {
    let tensor = s.topology.tensor;
    let own = |(n, k, split)| {
        let (n, k) = match split {
            TpSplit::Rows => (n / tensor, k),
            TpSplit::Cols => (n, k / tensor),
            TpSplit::Whole => (n, k),
        };
        Product { rows: s.rows(), n, k, groups: 1 }
    };
    let Some(mixture) = &s.mixture else {
        let matrices = table(&s.model)
            .into_iter()
            .filter(ParamSpec::is_block_matrix);
        return matrices.map(|p| own((p.rows, p.cols, p.split))).collect();
    };
    let groups = mixture.experts / s.degrees.expert;
    let rows = (expert_rows(s) / groups as f64).ceil().max(1.0) as usize;
    let experts = mixture.expert_matrices(&s.model);
    let experts = experts.map(|(n, k)| Product { rows, n, k, groups });
    let own = mixture.own_matrices(&s.model).into_iter().map(own);
    own.chain(experts).collect()
}

/// Rows that a rank's experts get from a micro-batch: as many as the rank sends, if all experts get equally
/// many. 0 without experts.
fn expert_rows(s: &Setup) -> f64 {
    let chosen = s.mixture.map_or(0, |mixture| mixture.chosen);
    (chosen * s.rows()) as f64 / s.topology.tensor as f64
}

/// The share of a layer's products that is lost to half-empty tiles and waves.
pub fn wasted_share(s: &Setup) -> f64 {
    let shapes = products(s);
    let size = |p: &Product| (p.rows * p.n * p.k * p.groups) as f64;
    shapes
        .iter()
        .map(|p| size(p) * gemm::wasted_share(s.hardware, (p.rows, p.n, p.k), p.groups))
        .sum::<f64>()
        / shapes.iter().map(size).sum::<f64>()
}

/// Forwards and backward of a layer.
fn layer(s: &Setup, products: Products, r: &Rates) -> Work {
    let m = &s.model;
    let rows = s.rows();
    let forwards = s.forward_passes();
    let t = s.topology.tensor as f64;
    let selective = s.topology.recompute == Recompute::Selective;
    let scores = (m.seq_len * rows * m.heads) as f64 / t;
    // Scores that are not kept are computed for half the pairs, and a fifth time in backward.
    let again = if selective { 1.0 } else { 0.0 };
    let (passes, stored) = if s.keeps_no_scores() {
        (forwards / 2.0 + 1.25, 0.0)
    } else {
        (forwards + again + 2.0, (forwards + again) * SCORE.0 + SCORE.1)
    };
    let elements = (rows * m.hidden) as f64;
    let outside = if s.splits_sequence() { t } else { 1.0 };
    let traffic = |(whole, split): (f64, f64)| elements * (whole / outside + split / t);
    let (forward, backward) = match s.mixture {
        None => (traffic(FORWARD), traffic(BACKWARD)),
        Some(mixture) => {
            let sent = expert_rows(s);
            let [hidden, inner] = ROW;
            let [h, f] = [m.hidden, mixture.width].map(|width| sent * width as f64);
            (
                traffic((FORWARD.0, ATTENTION.0)) + h * hidden.0 + f * inner.0,
                traffic((BACKWARD.0, ATTENTION.1)) + h * hidden.1 + f * inner.1,
            )
        }
    };
    let work = Work {
        gemm: products.layer / r.products,
        attention: passes * 4.0 * scores * m.heads().dim as f64 / r.attention,
        elements: r.constant(T::Elements) * (forwards * forward + backward) / r.elements
            + r.constant(T::Scores) * scores * stored / r.scores,
        launch: 0.0,
        tensor: tensor_sums(s, elements, r),
        expert: dispatch(s, r),
        ..Work::default()
    };
    let work = Work { context: key_exchange(s, work.attention, r), ..work }.times(r.unfused);
    if s.blocking {
        Work { launch: r.constant(T::Launch) * 1e-3, ..work }
    } else {
        let eager = if s.trainer().eager { EAGER_LAUNCHES } else { 1.0 };
        let eager = if s.mixture.is_some() { EXPERT_LAUNCHES * eager } else { eager };
        overlap_launches(work, r.constant(T::Floor) * 1e-3 * eager * (forwards + 2.0) / 3.0)
    }
}

/// Work with launches that run beside it, which take somewhat more than the longer of both. Each has the
/// part of that by which it would change if it were itself a little longer.
fn overlap_launches(work: Work, launches: f64) -> Work {
    let all = (work.total().powi(4) + launches.powi(4)).powf(0.25);
    let seen = work.times((work.total() / all).powi(3));
    Work { launch: all - seen.total(), ..seen }
}

/// Bytes per second of a rank among `ranks` neighbours, `apart` ranks from each other: inside the fast links,
/// or in a ring over nodes, whose adapters `apart` such rings share.
fn ring(ranks: usize, apart: usize, r: &Rates) -> f64 {
    if ranks * apart > r.domain {
        r.network * r.constant(T::Network) / apart.min(r.domain) as f64
    } else {
        r.bus
    }
}

/// Keys and values of the other context ranks in a layer's forward and backward passes, which also sends
/// their gradients in f32. What is sent beside a step of `attention` seconds is hidden.
fn key_exchange(s: &Setup, attention: f64, r: &Rates) -> f64 {
    let ranks = s.degrees.context;
    if ranks == 1 {
        return 0.0;
    }
    let heads = s.model.heads();
    let width = 2 * heads.kv * heads.dim / s.topology.tensor.min(heads.kv);
    let elements = (s.rows() * (ranks - 1) * width) as f64;
    let bytes = elements * (2.0 * (s.forward_passes() + 1.0) + 4.0);
    let calls = (ranks - 1) as f64 * (s.forward_passes() + 2.0);
    let all = bytes / ring(ranks, s.topology.tensor, r) + calls * r.constant(T::BusLatency) * 1e-6;
    let hidden = r.constant(T::Hidden).min(1.0) * all;
    all - hidden + (hidden - attention).max(0.0)
}

/// Rows to the experts of other ranks and back, in 16 bits, forward and backward. A row goes once to each
/// node that has one of its experts, through the sender's share of the adapters, and there to each expert.
fn dispatch(s: &Setup, r: &Rates) -> f64 {
    let Some(mixture) = s.mixture.filter(|_| s.degrees.expert > 1) else { return 0.0 };
    let ranks = s.degrees.expert as f64;
    let inside = ranks.min(r.domain as f64);
    let nodes = ranks / inside;
    let chosen = mixture.chosen as f64;
    let row = 2.0 * s.model.hidden as f64;
    let other_nodes = (nodes - 1.0) * (1.0 - (1.0 - 1.0 / nodes).powf(chosen));
    let away = row * other_nodes * expert_rows(s) / chosen;
    let around = row * expert_rows(s) * (inside - 1.0) / inside;
    let adapter = r.network * r.constant(T::Network) / r.domain as f64;
    let way = around / r.bus + away / adapter + r.constant(T::BusLatency) * 1e-6;
    2.0 * (s.forward_passes() + 1.0) * way
}

/// Two sums over a layer's tensor ranks each way, as rings; those over nodes use all of a node's
/// adapters. With experts, whose rows stay split, one.
fn tensor_sums(s: &Setup, elements: f64, r: &Rates) -> f64 {
    let t = s.topology.tensor as f64;
    if s.topology.tensor == 1 {
        return 0.0;
    }
    let (link, latency) = if s.topology.tensor > r.domain {
        (r.network * r.constant(T::Network), 2.0)
    } else {
        (r.bus, 1.0)
    };
    let each =
        2.0 * (t - 1.0) / t * 2.0 * elements / link + latency * r.constant(T::BusLatency) * 1e-6;
    let sums = if s.mixture.is_some() { 1.0 } else { 2.0 };
    sums * (s.forward_passes() + 1.0) * each
}

/// Logits and loss, on the last stage.
fn head(s: &Setup, products: Products, r: &Rates) -> Work {
    let rows = s.rows();
    let v = s.model.vocab_padded / s.topology.tensor;
    Work {
        gemm: products.head / r.head,
        elements: (rows * v) as f64 * LOGIT / r.elements,
        ..Work::default()
    }
    .times(r.unfused)
}

/// A micro-batch over one boundary between stages, there and back. Every tensor rank sends a whole
/// copy through its node's adapters, unless the program scatters it first.
fn send(s: &Setup, r: &Rates) -> f64 {
    let bytes = 2.0 * (s.rows() * s.model.hidden) as f64 * s.topology.chunks as f64;
    let tensor = if s.trainer().scatter { s.topology.tensor } else { 1 };
    let copies = s.per_node as f64 / tensor as f64;
    // Between chunks, a send runs beside another chunk's work.
    let overlaps = s.trainer().overlap && s.topology.chunks > 1;
    let seen = if overlaps { 1.0 - r.constant(T::Hidden).min(1.0) } else { 1.0 };
    if s.ranks() <= r.domain {
        seen * bytes / r.bus
    } else {
        seen * bytes * copies.max(1.0) / (r.network * r.constant(T::Network))
    }
}

/// Seconds per parameter and micro-batch.
fn accumulation(s: &Setup, r: &Rates) -> f64 {
    let wide = s.numbers == Numbers::Bf16Fp32Grad;
    r.constant(T::Accumulate) * if wide { ACCUMULATE.1 } else { ACCUMULATE.0 } / r.memory
}

/// Sums of gradients and gathers of weights over replicas: `dense` parameters over all, those of `experts`
/// over the ranks with the same experts. `computation` is the seconds of work that a program which overlaps
/// them has: a micro-batch's, or under ZeRO 3, where every micro-batch gathers, all of them.
fn data_parallel(s: &Setup, [dense, experts]: [f64; 2], computation: f64, r: &Rates) -> f64 {
    let Degrees { expert, .. } = s.degrees;
    let mut all = replica_sums(s, dense, (s.replicas(), s.topology.tensor), r);
    if experts > 0.0 {
        all += replica_sums(s, experts, (s.expert_replicas(), expert), r);
    }
    all += gather_hops(s, r.domain / s.topology.tensor.min(r.domain));
    if !s.trainer().overlap {
        return all;
    }
    let hidden = r.constant(T::Hidden).min(1.0) * all;
    all - hidden + (hidden - computation).max(0.0)
}

/// The same for a group of replicas that lie `apart` ranks from each other, as many groups side by side.
fn replica_sums(s: &Setup, parameters: f64, (ranks, apart): (usize, usize), r: &Rates) -> f64 {
    if ranks == 1 {
        return 0.0;
    }
    let t = &s.topology;
    let d = ranks as f64;
    let volume = 2.0 * parameters * (d - 1.0) / d;
    let layers = s.model.layers as f64;
    let (passes, calls) = match t.zero {
        3 => (3.0 * micros(s), 1.5 * micros(s) * layers),
        _ => (2.0, layers / t.pipeline as f64),
    };
    let apart = apart.min(r.domain);
    let domain = r.domain / apart;
    let inside = passes * volume / r.bus;
    let outside = if ranks <= domain {
        0.0
    } else {
        // The more nodes, the smaller the pieces: fitted around eight.
        let crowd = (8.0 * domain as f64 / d).powf(r.constant(T::Crowd));
        let nodes = (r.domain / s.per_node) as f64;
        let reached = nodes * r.network * r.constant(T::Replicas) * r.ring * crowd;
        let packed = if s.power_sgd { POWER_SGD.1 } else { 1.0 };
        passes * packed * volume * apart as f64 / reached
    };
    inside + outside + calls * r.constant(T::RingLatency) * 1e-6
}

/// Latency of the rings over nodes that gather a step's weights and scatter its gradients under ZeRO 3.
/// DeepSpeed has one for each matrix, the other programs one for each layer. `domain` is the number of
/// replicas that fast links join.
fn gather_hops(s: &Setup, domain: usize) -> f64 {
    if s.topology.zero < 3 || s.replicas() <= domain {
        return 0.0;
    }
    let deepspeed = DEEPSPEED_HOPS * products(s).len() as f64;
    let rings = if s.trainer().deepspeed { deepspeed } else { 1.0 };
    let calls = 3.0 * micros(s) * s.model.layers as f64;
    calls * rings * rings::gather_latency(s.replicas(), domain)
}

fn optimizer(s: &Setup, [dense, experts]: [f64; 2], r: &Rates) -> f64 {
    let trainer = s.trainer();
    let share = |ranks: usize| if s.topology.zero > 0 { ranks as f64 } else { 1.0 };
    let own = dense / share(s.replicas()) + experts / share(s.expert_replicas());
    let parameters = dense + experts;
    let eager_adafactor = s.moments == Moments::Adafactor && trainer.eager;
    let slow = if eager_adafactor { r.constant(T::EagerStep) } else { 1.0 };
    let compress = if s.power_sgd { POWER_SGD.0 } else { 0.0 };
    // Copies and checks of all gradients, where nothing runs beside them.
    let checks = if trainer.deepspeed || !trainer.overlap { r.constant(T::Flatten) } else { 0.0 };
    let around = r.constant(T::Step) * if trainer.deepspeed { DEEPSPEED_STEP } else { 1.0 };
    let host = if s.offload.optimizer { own * OFFLOADED / pcie(s, r) } else { 0.0 };
    let gathers =
        if s.offload.weights { micros(s) * 3.0 * 2.0 * parameters / pcie(s, r) } else { 0.0 };
    around + (slow * STEP * own + (checks + compress) * parameters) / r.memory + host + gathers
}

/// Bytes a second between a device and its host, with what the host does to them.
fn pcie(s: &Setup, r: &Rates) -> f64 {
    s.hardware.link_gb_s * 1e9 * r.constant(T::Host)
}
