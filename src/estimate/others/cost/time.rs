//! Seconds of an iteration: products by tiles and waves, element-wise work by bandwidth, launches,
//! messages, and the pipeline's bubble.

use super::constants::T;
use super::gemm;
use crate::setup::{Moments, Numbers, Setup};
use manifest::Recompute;
use model::{ParamSpec, TpSplit, table};

/// Bytes of element-wise traffic an element of [s, b, h], in 16 bits: norms, dropout and residual
/// outside the part that tensor parallelism splits, activation function and copies inside.
const FORWARD: (f64, f64) = (26.0, 36.0);
const BACKWARD: (f64, f64) = (40.0, 60.0);
/// Of an attention score (softmax, dropout), and of a logit.
const SCORE: (f64, f64) = (13.0, 20.0);
const LOGIT: f64 = 30.0;
/// Of a parameter: adding a micro-batch's gradient, in 16 or 32 bits; an optimizer step.
const ACCUMULATE: (f64, f64) = (6.0, 10.0);
const STEP: f64 = 40.0;
/// Kernels of a layer cannot be launched faster than this, in seconds.
const LAUNCH_FLOOR: f64 = 4e-3;
/// In op-by-op PyTorch: seconds a step; bytes a parameter of unfused clipping, and of PowerSGD, which
/// leaves so much to send.
const EAGER_STEP: f64 = 0.3;
const UNFUSED: f64 = 20.0;
const POWER_SGD: (f64, f64) = (280.0, 0.45);
/// Offload, which was not measured: bytes a second over PCIe, parameters a second of Adam on the host.
const PCIE: f64 = 16e9;
const HOST_ADAM: f64 = 1e9;

/// Where an iteration's time goes, on the stage that sets the pace; sums to the total.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// Of each stage, a micro-batch's forward and backward.
    pub stage_seconds: Vec<f64>,
    pub parts: Vec<(&'static str, f64)>,
}

impl Time {
    pub fn total(&self) -> f64 {
        self.parts.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// What the machine reaches: FLOP/s, and bytes a second.
struct Rates<'a> {
    k: &'a [f64],
    products: f64,
    attention: f64,
    memory: f64,
    /// Between devices of a node, per device; and of all of a node's adapters.
    bus: f64,
    network: f64,
}

impl Rates<'_> {
    fn new<'a>(s: &Setup, k: &'a [f64]) -> Rates<'a> {
        let of = |c: T| k[c as usize];
        let hw = s.hardware;
        let eager = if s.trainer().eager { of(T::Eager) } else { 1.0 };
        let half = if s.numbers == Numbers::F32 { 0.5 } else { 1.0 };
        let peak = hw.peak_tflops * 1e12 * eager * half;
        let repaired = match s.regime.as_deref() {
            Some("jz-a100-fp16-slownet") => of(T::SlowNetwork),
            _ => 1.0,
        };
        Rates {
            k,
            products: peak * of(T::Gemm),
            attention: peak * of(if s.odd_heads() { T::OddHeads } else { T::Attention }),
            memory: hw.hbm_gb_s * 1e9 * of(T::Hbm) * half,
            bus: hw.bus_gb_s * 1e9 * of(T::Bus),
            network: hw.network_gb_s * 1e9 * repaired,
        }
    }

    fn of(&self, c: T) -> f64 {
        self.k[c as usize]
    }
}

/// One layer's or one end's work on a micro-batch, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    gemm: f64,
    attention: f64,
    elements: f64,
    launch: f64,
    tensor: f64,
}

impl Work {
    fn total(&self) -> f64 {
        self.gemm + self.attention + self.elements + self.launch + self.tensor
    }

    fn times(self, n: f64) -> Work {
        Work {
            gemm: n * self.gemm,
            attention: n * self.attention,
            elements: n * self.elements,
            launch: n * self.launch,
            tensor: n * self.tensor,
        }
    }
}

pub fn time(s: &Setup, k: &[f64]) -> Time {
    let r = Rates::new(s, k);
    let (layer, head, send) = (layer(s, &r), head(s, &r), send(s, &r));
    let cuts = s.stages();
    let stages = cuts.len();
    let stage = |i: usize| {
        let (first, last) = (i == 0, i + 1 == stages);
        let parameters = s.counts.stage(&s.model, cuts[i].len(), first, last);
        let mut work = layer.times(cuts[i].len() as f64);
        if last {
            work.gemm += head.gemm;
            work.elements += head.elements;
        }
        work.elements += accumulation(s, &r) * parameters;
        work.launch += r.of(T::Micro) * 1e-3;
        let neighbours = usize::from(!first) + usize::from(!last);
        (work, neighbours as f64 * send, parameters)
    };
    let works: Vec<(Work, f64, f64)> = (0..stages).map(stage).collect();
    let most = works.iter().map(|work| work.2).fold(0.0, f64::max);
    let stage_seconds: Vec<f64> = works.iter().map(|(work, pipe, _)| work.total() + pipe).collect();
    let slower = |a: &usize, b: &usize| stage_seconds[*a].total_cmp(&stage_seconds[*b]);
    let slowest = (0..stages).max_by(slower).expect("a pipeline has a stage");
    let (work, pipe, _) = works[slowest];
    let n = s.micros() as f64;
    // The pipe fills and drains once; chunks of layers make that shorter (Narayanan et al. 2021).
    let chunks = s.topology.chunks as f64;
    Time {
        parts: vec![
            ("matrix products", n * work.gemm),
            ("attention", n * work.attention),
            ("element-wise", n * work.elements),
            ("launches", n * work.launch),
            ("tensor parallel", n * work.tensor),
            ("pipeline sends", n * pipe),
            (
                "pipeline bubble",
                (stage_seconds.iter().sum::<f64>() - stage_seconds[slowest]) / chunks,
            ),
            ("data parallel", data_parallel(s, most, &r)),
            ("optimizer", optimizer(s, most, &r)),
        ],
        stage_seconds,
    }
}

/// Outputs and inputs of a layer's products, on one rank: the matrices of a block.
fn products(s: &Setup) -> Vec<(usize, usize)> {
    let matrices = table(&s.model).into_iter().filter(ParamSpec::is_block_matrix);
    let share = |p: ParamSpec| match p.split {
        TpSplit::Rows => (p.rows / s.topology.tensor, p.cols),
        TpSplit::Cols => (p.rows, p.cols / s.topology.tensor),
        TpSplit::Whole => (p.rows, p.cols),
    };
    matrices.map(share).collect()
}

/// The share of a layer's products that is lost to half-empty tiles and waves.
pub fn wasted(s: &Setup) -> f64 {
    let rows = s.model.seq_len * s.micro;
    let shapes = products(s);
    let size = |(n, k): &(usize, usize)| (n * k) as f64;
    let lost = |(n, k): &(usize, usize)| size(&(*n, *k)) * gemm::wasted(s.hardware, (rows, *n, *k));
    shapes.iter().map(lost).sum::<f64>() / shapes.iter().map(size).sum::<f64>()
}

/// Forwards and backward of a layer.
fn layer(s: &Setup, r: &Rates) -> Work {
    let (m, hw) = (&s.model, s.hardware);
    let (rows, forwards, t) = (m.seq_len * s.micro, s.forwards(), s.topology.tensor as f64);
    let product = |(n, k): (usize, usize)| {
        forwards * gemm::seconds(hw, (rows, n, k), r.products)
            + gemm::seconds(hw, (rows, k, n), r.products)
            + gemm::seconds(hw, (n, k, rows), r.products)
    };
    let again = if s.topology.recompute == Recompute::Selective { 1.0 } else { 0.0 };
    let softmaxes = forwards + again;
    let scores = (m.seq_len * rows * m.heads) as f64 / t;
    let head_dim = m.heads().dim as f64;
    let elements = (rows * m.hidden) as f64;
    let outside = if s.topology.sequence_parallel { t } else { 1.0 };
    let traffic = |(whole, split): (f64, f64)| elements * (whole / outside + split / t);
    // Two sums over tensor ranks each way, as rings.
    let sums = 2.0 * (forwards + 1.0) * 2.0 * (t - 1.0) / t * 2.0 * elements;
    let link = if s.topology.tensor > s.per_node { r.network / s.per_node as f64 } else { r.bus };
    let eager = if s.trainer().eager { r.of(T::Eager) } else { 1.0 };
    let mut work = Work {
        gemm: products(s).into_iter().map(product).sum(),
        attention: (softmaxes + 2.0) * 4.0 * scores * head_dim / r.attention,
        elements: (r.of(T::Elements) * (forwards * traffic(FORWARD) + traffic(BACKWARD))
            + r.of(T::Scores) * scores * (softmaxes * SCORE.0 + SCORE.1))
            / (r.memory * eager),
        launch: 0.0,
        tensor: sums / link,
    };
    work.launch = match s.blocking {
        true => r.of(T::Launch) * 1e-3,
        false => (LAUNCH_FLOOR - work.total()).max(0.0),
    };
    work
}

/// Logits and loss, on the last stage.
fn head(s: &Setup, r: &Rates) -> Work {
    let (m, hw) = (&s.model, s.hardware);
    let (rows, h, v) = (m.seq_len * s.micro, m.hidden, m.vocab_padded / s.topology.tensor);
    let ways = [(rows, v, h), (rows, h, v), (v, h, rows)];
    let eager = if s.trainer().eager { r.of(T::Eager) } else { 1.0 };
    Work {
        gemm: ways.into_iter().map(|way| gemm::seconds(hw, way, r.products)).sum(),
        elements: (rows * v) as f64 * LOGIT / (r.memory * eager),
        ..Work::default()
    }
}

/// A micro-batch over one boundary between stages, there and back. Every tensor rank sends a whole
/// copy through its node's adapters; Megatron-LM scatters it first.
fn send(s: &Setup, r: &Rates) -> f64 {
    let bytes =
        2.0 * (s.model.seq_len * s.micro * s.model.hidden) as f64 * s.topology.chunks as f64;
    let tensor = if s.trainer().scatter { s.topology.tensor } else { 1 };
    let copies = s.per_node as f64 / tensor as f64;
    match s.ranks() <= s.per_node {
        true => bytes / r.bus,
        false => bytes * copies.max(1.0) / (r.network * r.of(T::Network)),
    }
}

/// Seconds a parameter and micro-batch.
fn accumulation(s: &Setup, r: &Rates) -> f64 {
    let wide = s.numbers == Numbers::Bf16Fp32Grad;
    r.of(T::Accumulate) * if wide { ACCUMULATE.1 } else { ACCUMULATE.0 } / r.memory
}

/// Sums of gradients and gathers of weights over replicas, which nothing overlaps in the programs
/// that were measured.
fn data_parallel(s: &Setup, parameters: f64, r: &Rates) -> f64 {
    let t = &s.topology;
    let d = t.data as f64;
    let volume = 2.0 * parameters * (d - 1.0) / d;
    let passes = if t.zero == 3 { 3.0 * s.micros() as f64 } else { 2.0 };
    let tensor = t.tensor.min(s.per_node);
    let beside = s.per_node / tensor;
    let eager = s.trainer().eager;
    let inside = passes * volume / (r.bus * if eager { r.of(T::EagerBus) } else { 1.0 });
    if t.data <= beside {
        return inside;
    }
    let nodes = d / beside as f64;
    let reached = match eager {
        true => r.of(T::Ring),
        // The more nodes, the smaller the pieces: fitted around eight.
        false => r.of(T::Replicas) * (8.0 / nodes).powf(r.of(T::Crowd)),
    };
    let packed = if s.power_sgd { POWER_SGD.1 } else { 1.0 };
    inside + passes * packed * volume * tensor as f64 / (r.network * reached)
}

fn optimizer(s: &Setup, parameters: f64, r: &Rates) -> f64 {
    let own = parameters / if s.topology.zero > 0 { s.topology.data as f64 } else { 1.0 };
    if s.offload.optimizer {
        return r.of(T::Step) + own * (4.0 / PCIE + 1.0 / HOST_ADAM);
    }
    if s.trainer().eager {
        let slow = if s.moments == Moments::Adafactor { r.of(T::EagerStep) } else { 1.0 };
        let compress = if s.power_sgd { POWER_SGD.0 } else { 0.0 };
        return EAGER_STEP + (slow * STEP * own + (UNFUSED + compress) * parameters) / r.memory;
    }
    r.of(T::Step) + (STEP * own + r.of(T::Flatten) * parameters) / r.memory
}
