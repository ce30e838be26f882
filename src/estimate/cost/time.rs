//! Seconds per iteration.

use super::constants::T;
use super::gemm;
use crate::estimate::setup::{Moments, Numbers, Setup};
use crate::manifest::{Recompute, Schedule};

/// Where an iteration's time goes, on the stage that sets the pace; sums to the total.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// Of each stage, a micro-batch's forward and backward.
    pub slots: Vec<f64>,
    pub parts: Vec<(&'static str, f64)>,
}

impl Time {
    pub fn total(&self) -> f64 {
        self.parts.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// One layer's or one end's work on a micro-batch.
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
    fn plus(self, o: Work, times: f64) -> Work {
        Work {
            gemm: self.gemm + times * o.gemm,
            attention: self.attention + times * o.attention,
            elements: self.elements + times * o.elements,
            launch: self.launch + times * o.launch,
            tensor: self.tensor + times * o.tensor,
        }
    }
}

pub fn time(s: &Setup, k: &[f64]) -> Time {
    let c = |c: T| k[c as usize];
    let hw = s.hardware;
    let (layer, head) = (layer(s, &c), head(s, &c));
    let m = &s.model;
    let counts = &s.counts;
    let cuts = s.stages();
    let (stages, micros) = (cuts.len(), s.micros() as f64);
    let hbm = hw.hbm_gb_s * 1e9 * c(T::Hbm);
    let grad_bytes = if s.numbers == Numbers::Bf16Fp32Grad { 10.0 } else { 6.0 };
    let network = hw.network_gb_s * 1e9 * c(T::Network) * slow(s, &c);
    let sbh = (m.seq_len * s.micro * m.hidden) as f64;
    let inside = s.ranks() <= s.per_node;
    let copies = s.per_node.min(s.ranks()) as f64;
    let send = if inside {
        2.0 * sbh / (hw.bus_gb_s * 1e9 * c(T::Bus))
    } else {
        2.0 * sbh * copies / network
    };
    // The pipe fills and drains once; chunks of layers make that shorter (Narayanan et al. 2021).
    let chunks = match s.topology.schedule {
        Schedule::Interleaved { chunks } => chunks as f64,
        Schedule::OneFOneB | Schedule::GPipe => 1.0,
    };
    let mut slots = Vec::with_capacity(stages);
    let mut works = Vec::with_capacity(stages);
    let mut biggest = 0.0f64;
    for (i, cut) in cuts.iter().enumerate() {
        let (first, last) = (i == 0, i + 1 == stages);
        let p = counts.stage(m, cut.len(), first, last);
        biggest = biggest.max(p);
        let mut work = Work::default().plus(layer, cut.len() as f64);
        if last {
            work = work.plus(head, 1.0);
        }
        work.elements += c(T::Accumulate) * grad_bytes * p / hbm;
        work.launch += c(T::Micro) * 1e-3;
        let passes = 2.0
            * if stages == 1 {
                0.0
            } else if first || last {
                0.5
            } else {
                1.0
            };
        let pipe = passes * send * chunks;
        slots.push(work.total() + pipe);
        works.push((work, pipe));
    }
    let slowest = (0..stages).max_by(|a, b| slots[*a].total_cmp(&slots[*b])).unwrap();
    let (work, pipe) = works[slowest];
    let bubble = (slots.iter().sum::<f64>() - slots[slowest]) / chunks;
    let data = data_comm(s, biggest, &c);
    let step = optimizer(s, biggest, &c);
    Time {
        slots,
        parts: vec![
            ("matrix products", micros * work.gemm),
            ("attention", micros * work.attention),
            ("element-wise", micros * work.elements),
            ("launches", micros * work.launch),
            ("tensor parallel", micros * work.tensor),
            ("pipeline sends", micros * pipe),
            ("pipeline bubble", bubble),
            ("data parallel", data),
            ("optimizer", step),
        ],
    }
}

fn slow(s: &Setup, c: &dyn Fn(T) -> f64) -> f64 {
    match s.regime.as_deref() {
        Some("jz-a100-fp16-slownet") => c(T::SlowNetwork),
        _ => 1.0,
    }
}

/// Outputs and inputs of a layer's four products, on one rank.
fn products(h: usize, f: usize, t: usize) -> [(usize, usize); 4] {
    [(3 * h / t, h), (h, h / t), (f / t, h), (h, f / t)]
}

/// The share of a layer's products that is lost to half-empty tiles and waves.
pub fn wasted(s: &Setup) -> f64 {
    let (m, rows) = (&s.model, s.model.seq_len * s.micro);
    let shapes = products(m.hidden, m.ffn_hidden, s.topology.tensor);
    let size = |(n, k): &(usize, usize)| (n * k) as f64;
    let lost = |(n, k): &(usize, usize)| size(&(*n, *k)) * gemm::wasted(s.hardware, (rows, *n, *k));
    shapes.iter().map(lost).sum::<f64>() / shapes.iter().map(size).sum::<f64>()
}

fn layer(s: &Setup, c: &dyn Fn(T) -> f64) -> Work {
    let (m, hw, t) = (&s.model, s.hardware, s.topology.tensor);
    let eager = if s.framework.eager() { c(T::Eager) } else { 1.0 };
    let rate = hw.peak_tflops * 1e12 * c(T::Gemm) * eager;
    let (rows, h, f) = (m.seq_len * s.micro, m.hidden, m.ffn_hidden);
    let forwards = s.forwards();
    let mut work = Work::default();
    for (n, k) in products(h, f, t) {
        work.gemm += forwards * gemm::seconds(hw, (rows, n, k), rate)
            + gemm::seconds(hw, (rows, k, n), rate)
            + gemm::seconds(hw, (n, k, rows), rate);
    }
    let hd = h / m.heads;
    let attention = if hd % 8 == 0 { c(T::Attention) } else { c(T::OddHeads) };
    let scores = (m.seq_len * m.seq_len * s.micro) as f64 * m.heads as f64 / t as f64;
    let selective = if s.topology.recompute == Recompute::Selective { 1.0 } else { 0.0 };
    work.attention = (forwards + selective + 2.0) * 4.0 * scores * hd as f64
        / (hw.peak_tflops * 1e12 * attention * eager);
    let hbm = hw.hbm_gb_s * 1e9 * c(T::Hbm) * eager;
    let sbh = (rows * h) as f64;
    let share = t as f64;
    let forward = sbh * (26.0 + 36.0 / share);
    let backward = sbh * (40.0 + 60.0 / share);
    work.elements = c(T::Elements) * (forwards * forward + backward) / hbm
        + c(T::Scores) * scores * ((forwards + selective) * 13.0 + 20.0) / hbm;
    work.launch = if s.blocking { c(T::Launch) * 1e-3 } else { 0.0 };
    let reduces = 2.0 * (forwards + 1.0);
    work.tensor =
        reduces * 2.0 * sbh * 2.0 * (share - 1.0) / share / (hw.bus_gb_s * 1e9 * c(T::Bus));
    let floor = 4e-3;
    if !s.blocking {
        work.launch = (floor - work.total()).max(0.0);
    }
    work
}

fn head(s: &Setup, c: &dyn Fn(T) -> f64) -> Work {
    let (m, hw, t) = (&s.model, s.hardware, s.topology.tensor);
    let eager = if s.framework.eager() { c(T::Eager) } else { 1.0 };
    let rate = hw.peak_tflops * 1e12 * c(T::Gemm) * eager;
    let (rows, h, v) = (m.seq_len * s.micro, m.hidden, m.vocab_padded / t);
    let gemm = gemm::seconds(hw, (rows, v, h), rate)
        + gemm::seconds(hw, (rows, h, v), rate)
        + gemm::seconds(hw, (v, h, rows), rate);
    let hbm = hw.hbm_gb_s * 1e9 * c(T::Hbm) * eager;
    Work { gemm, elements: (rows * v) as f64 * 30.0 / hbm, ..Work::default() }
}

fn data_comm(s: &Setup, parameters: f64, c: &dyn Fn(T) -> f64) -> f64 {
    let d = s.topology.data as f64;
    if s.topology.data == 1 {
        return 0.0;
    }
    let hw = s.hardware;
    let volume = 2.0 * parameters * (d - 1.0) / d;
    let passes = if s.topology.zero == 3 { 3.0 * s.micros() as f64 } else { 2.0 };
    let beside = s.per_node / s.topology.tensor.min(s.per_node);
    let slower = if s.framework.eager() { c(T::EagerBus) } else { 1.0 };
    let bus = passes * volume / (hw.bus_gb_s * 1e9 * c(T::Bus) * slower);
    if s.topology.data <= beside {
        return bus;
    }
    let rings = s.topology.tensor.min(s.per_node) as f64;
    let network = match s.framework.eager() {
        true => hw.network_gb_s * 1e9 * c(T::Ring),
        false => {
            let nodes = s.topology.data as f64 / beside as f64;
            hw.network_gb_s * 1e9 * c(T::Replicas) * slow(s, c) * (8.0 / nodes).powf(c(T::Crowd))
        }
    };
    let packed = if s.power_sgd { 0.45 } else { 1.0 };
    passes * packed * volume * rings / network + bus
}

fn optimizer(s: &Setup, parameters: f64, c: &dyn Fn(T) -> f64) -> f64 {
    let share = if s.topology.zero > 0 { s.topology.data as f64 } else { 1.0 };
    let hbm = s.hardware.hbm_gb_s * 1e9 * c(T::Hbm);
    if s.framework.eager() {
        let slow = if s.moments == Moments::Adafactor { c(T::EagerStep) } else { 1.0 };
        let compress = if s.power_sgd { 280.0 } else { 0.0 };
        return 0.3 + (slow * 40.0 * parameters / share + (20.0 + compress) * parameters) / hbm;
    }
    c(T::Step) + (40.0 * parameters / share + c(T::Flatten) * parameters) / hbm
}
