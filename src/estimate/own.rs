//! gptrain's own needs: the trainer's engine on a device and groups that only count. Its memory is
//! the allocator's own plan, so it is what `run` reserves, byte for byte.

use super::setup::Setup;
use crate::base::Bytes;
use crate::comm::{Solo, dry};
use crate::device::{self, Tally};
use crate::engine::{self, Bill, Engine, Groups};
use crate::manifest::{Batch, DeviceChoice, Manifest};
use crate::plan::grid::Place;
use crate::plan::volume::Volume;
use std::cell::RefCell;
use std::rc::Rc;

/// What one stage's rank needs and does.
#[derive(Clone, Debug)]
pub struct Stage {
    pub bill: Bill,
    /// Parameters of the model that this rank holds.
    pub parameters: u64,
    /// Bytes this rank sends in a step.
    pub sends: Volume,
    /// Of a micro-batch's forward, of its forward and backward, and of a step beside that.
    pub forward: Counted,
    pub micro: Counted,
    pub step: Counted,
}

/// Work and messages.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub work: Tally,
    pub sent: dry::Volume,
}

impl Counted {
    fn minus(mut self, other: &Counted) -> Counted {
        for (name, work) in &other.work {
            let ours = self.work.entry(name).or_default();
            ours.calls -= work.calls;
            ours.flops -= work.flops;
            ours.bytes -= work.bytes;
        }
        for (key, bytes) in &other.sent {
            *self.sent.entry(*key).or_default() -= bytes;
        }
        self
    }

    fn share(mut self, of: f64) -> Counted {
        for work in self.work.values_mut() {
            work.calls *= of;
            work.flops *= of;
            work.bytes *= of;
        }
        self.sent.values_mut().for_each(|bytes| *bytes *= of);
        self
    }

    pub fn flops(&self) -> f64 {
        self.work.values().map(|work| work.flops).sum()
    }
}

/// Every stage's first rank. `causal` is as for the engine.
pub fn stages(m: &Manifest, causal: bool) -> anyhow::Result<Vec<Stage>> {
    (0..m.topology.pipeline).map(|stage| one(m, stage, causal)).collect()
}

fn one(m: &Manifest, stage: usize, causal: bool) -> anyhow::Result<Stage> {
    let device = match m.train.device {
        DeviceChoice::Cuda => device::Dry::with_workspace(device::cuda::WORKSPACE),
        DeviceChoice::Cpu | DeviceChoice::Auto => device::Dry::default(),
    };
    let sent = Rc::new(RefCell::new(dry::Volume::new()));
    let engine = Engine::new(&device, groups(m, stage, &sent), m, causal)?;
    let bill = engine.bill().clone();
    let here = |slot: &&crate::model::Slot| !slot.copy;
    let parameters = engine.slots().filter(here).map(|slot| slot.numel() as u64).sum();
    let sends = engine::volume(&device, &groups(m, stage, &sent), m, m.batch.global);
    // Counted in two turns of a pipeline, which the run's own batch may be too small for.
    let turn = m.topology.pipeline;
    let global = 2 * turn * m.batch.micro * m.topology.data;
    let m = &Manifest { batch: Batch { global, ramp_up: None, ..m.batch }, ..m.clone() };
    let engine = Engine::new(&device, groups(m, stage, &sent), m, causal)?;
    let counted = || Counted { work: device.take(), sent: sent.take() };
    let load = &mut |_: &_| Ok(());
    counted();
    engine.evaluate(load, 1)?;
    let forward = counted();
    engine.step(load, turn, 0.0)?;
    let once = counted();
    engine.step(load, 2 * turn, 0.0)?;
    let micros = counted().minus(&once);
    let step = once.minus(&micros);
    let micro = micros.share(1.0 / turn as f64);
    Ok(Stage { bill, parameters, sends, forward, micro, step })
}

/// The groups of a stage's first rank.
fn groups(m: &Manifest, stage: usize, sent: &Rc<RefCell<dry::Volume>>) -> Groups {
    let grid = m.topology.grid();
    let rank = grid.rank(Place { tensor: 0, pipeline: stage, data: 0 });
    Groups::of(rank, &m.topology, |name, ranks| {
        let at = ranks.iter().position(|member| *member == rank).expect("a member");
        match ranks.len() {
            1 => Box::new(Solo),
            size => Box::new(dry::Dry::new(name, at, size, sent)),
        }
    })
}

/// What a micro-batch's forward and backward take on each stage.
pub fn slots(stages: &[Stage], s: &Setup) -> Vec<f64> {
    stages.iter().map(|stage| total(&seconds(&stage.micro, s))).collect()
}

/// What an iteration of the setup's batch takes, on the stage that sets the pace.
pub fn parts(stages: &[Stage], s: &Setup) -> Vec<(&'static str, f64)> {
    let micros = s.micros() as f64;
    let slots = slots(stages, s);
    let slower = |a: &usize, b: &usize| slots[*a].total_cmp(&slots[*b]);
    let pace = (0..slots.len()).max_by(slower).expect("a pipeline has a stage");
    let bubble = slots.iter().sum::<f64>() - slots[pace];
    let mut parts: Vec<(&'static str, f64)> =
        seconds(&stages[pace].micro, s).iter().map(|(name, t)| (*name, t * micros)).collect();
    let step = seconds(&stages[pace].step, s);
    let sums = step.iter().filter(|(name, _)| *name == "data parallel").map(|part| part.1).sum();
    parts.push(("pipeline bubble", bubble));
    parts.push(("once a step: sums", sums));
    parts.push(("once a step: optimizer", total(&step) - sums));
    parts
}

fn total(parts: &[(&'static str, f64)]) -> f64 {
    parts.iter().map(|(_, seconds)| seconds).sum()
}

/// Seconds of counted work on the setup's device, and of the messages between devices.
fn seconds(counted: &Counted, s: &Setup) -> Vec<(&'static str, f64)> {
    let hw = s.hardware;
    let rate = hw.peak_tflops * 1e12 * hw.product_share;
    let bandwidth = hw.hbm_gb_s * 1e9 * hw.memory_share;
    let each = |w: &device::Work| {
        (w.flops / rate).max(w.bytes / bandwidth) + w.calls * hw.launch_us * 1e-6
    };
    let compute = |of: &dyn Fn(&str) -> bool| {
        counted.work.iter().filter(|(name, _)| of(name)).map(|(_, work)| each(work)).sum::<f64>()
    };
    let t = &s.topology;
    let inside = |group: &str| match group {
        "tensor" | "partial" => t.tensor <= s.per_node,
        "data" => t.tensor * t.data <= s.per_node,
        _ => t.ranks() <= s.per_node,
    };
    let messages = |name: &'static str| {
        let link = match inside(name) {
            true => hw.bus_gb_s,
            false => hw.network_gb_s / s.per_node as f64,
        };
        let sent = counted.sent.iter().filter(|((group, _), _)| *group == name);
        sent.map(|(_, bytes)| bytes / (link * 1e9 * LINK_SHARE)).sum::<f64>()
    };
    let products = |name: &str| name == "gemm";
    let attention = |name: &str| name.starts_with("attention");
    vec![
        ("matrix products", compute(&products)),
        ("attention", compute(&attention)),
        ("element-wise", compute(&|name| !products(name) && !attention(name))),
        ("tensor parallel", messages("tensor") + messages("partial")),
        ("pipeline sends", messages("pipeline") + messages("ends")),
        ("data parallel", messages("data")),
    ]
}

/// What messages reach of a link.
const LINK_SHARE: f64 = 0.7;

/// The stage whose bill is highest.
pub fn peak(stages: &[Stage]) -> (usize, Bytes) {
    let total = |i: &usize| stages[*i].bill.total().0;
    let at = (0..stages.len()).rev().max_by_key(total).expect("a pipeline has a stage");
    (at, stages[at].bill.total())
}
