//! Every way to cut a model over so many devices, judged.

use super::change::split;
use super::days::{Days, days};
use super::predict::{Prediction, Predictor};
use super::setup::{Framework, Setup};
use crate::manifest::{LayerSplit, Recompute, Schedule};
use crate::plan::ramp::Ramp;

/// A way that fits.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub setup: Setup,
    pub prediction: Prediction,
}

/// What is asked for.
pub struct Wish<'a> {
    pub setup: &'a Setup,
    /// Every batch that must divide.
    pub ramp: Ramp,
}

/// All that fit on exactly `devices`, fastest first.
pub fn search(predictor: &Predictor, wish: &Wish, devices: usize) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for (tensor, pipeline, data) in grids(wish.setup, devices) {
        let cut = split(wish.setup.model.layers, pipeline);
        if cut == LayerSplit::Balanced {
            continue;
        }
        let base = wish.setup.clone().cut(|t| {
            (t.tensor, t.pipeline, t.data) = (tensor, pipeline, data);
            t.layer_split = cut.clone();
            t.sequence_parallel &= tensor > 1;
        });
        for setup in choices(&base, wish.ramp) {
            // Memory first: it is cheap, and most ways need too much.
            if predictor.fits(&setup) {
                let prediction = predictor.predict(&setup);
                found.push(Candidate { setup, prediction });
            }
        }
    }
    found.sort_by(|a, b| a.prediction.seconds.total_cmp(&b.prediction.seconds));
    found
}

/// TP inside a node, PP up to a stage a layer.
fn grids(s: &Setup, devices: usize) -> Vec<(usize, usize, usize)> {
    let mut all = Vec::new();
    for tensor in 1..=s.per_node.min(devices) {
        let possible = s.per_node.is_multiple_of(tensor)
            && s.model.heads.is_multiple_of(tensor)
            && devices.is_multiple_of(tensor);
        if !possible {
            continue;
        }
        let rest = devices / tensor;
        let pipelines = (1..=s.model.layers.min(rest)).filter(|p| rest.is_multiple_of(*p));
        all.extend(pipelines.map(|pipeline| (tensor, pipeline, rest / pipeline)));
    }
    all
}

/// Micro-batch, ZeRO, recomputation and schedule of a grid.
fn choices(base: &Setup, ramp: Ramp) -> Vec<Setup> {
    let pipeline = base.topology.pipeline;
    let mut all = Vec::new();
    let micros = [1, 2, 4, 8, 16].into_iter().filter(|micro| {
        let at_once = micro * base.topology.data;
        let fused = (base.model.heads / base.topology.tensor * micro).is_multiple_of(4);
        fused && ramp.sizes().all(|size| size.is_multiple_of(at_once))
    });
    let eager = base.framework.eager() || base.framework == Framework::DeepSpeedZero;
    let zeros: &[u8] = match base.framework {
        Framework::Ddp => &[0],
        Framework::Fsdp | Framework::DeepSpeedZero => &[3],
        _ if eager && pipeline == 1 => &[1, 2, 3],
        _ => &[0, 1],
    };
    let mut schedules = vec![Schedule::OneFOneB];
    let chunked = base.framework == Framework::MegatronLm && pipeline > 1;
    if chunked && base.model.layers.is_multiple_of(2 * pipeline) {
        schedules.push(Schedule::Interleaved { chunks: 2 });
    }
    if eager && pipeline > 1 {
        return all;
    }
    // Megatron-DeepSpeed has no selective recomputation.
    let recomputes: &[Recompute] = match base.framework {
        Framework::MegatronDeepSpeed => &[Recompute::None, Recompute::Full],
        _ => &[Recompute::None, Recompute::Selective, Recompute::Full],
    };
    for micro in micros {
        for zero in zeros {
            for recompute in recomputes {
                for schedule in &schedules {
                    let mut setup = Setup { micro, ..base.clone() };
                    setup.topology.zero = if base.topology.data == 1 { 0 } else { *zero };
                    setup.topology.recompute = *recompute;
                    setup.topology.schedule = *schedule;
                    all.push(setup);
                }
            }
        }
    }
    all
}

/// A candidate through its run.
pub struct Judged {
    pub candidate: Candidate,
    pub days: Days,
}

/// The best of so many devices, through the whole run.
pub fn best(predictor: &Predictor, wish: &Wish, devices: usize, samples: u64) -> Option<Judged> {
    let candidate = search(predictor, wish, devices).into_iter().next()?;
    let days = days(predictor, &candidate.setup, wish.ramp, samples);
    Some(Judged { candidate, days })
}

/// The fewest whole nodes that hold the model, and how.
pub fn fewest(predictor: &Predictor, wish: &Wish, most: usize) -> Option<Candidate> {
    let node = wish.setup.per_node;
    let part_of_node = (0..).map(|i| 1 << i).take_while(|n| *n < node);
    let nodes = (1..=most / node).map(|n| n * node);
    let mut counts = part_of_node.chain(nodes);
    counts.find_map(|devices| search(predictor, wish, devices).into_iter().next())
}

/// The widest model of the wish's proportions (layers to hidden, head dimension) that fits.
pub fn largest(predictor: &Predictor, wish: &Wish, devices: usize) -> Option<Candidate> {
    let m = &wish.setup.model;
    let head = (m.hidden / m.heads).next_multiple_of(8);
    let ratio = m.hidden as f64 / m.layers as f64;
    let sized = |width: usize| {
        let mut setup = wish.setup.clone();
        let hidden = width * head * 8;
        setup.model.hidden = hidden;
        setup.model.heads = width * 8;
        setup.model.ffn_hidden = 4 * hidden;
        let layers = (hidden as f64 / ratio).round() as usize;
        let stages = (1..=layers).rev().filter(|p| devices.is_multiple_of(*p));
        let unit = stages.filter(|p| *p <= 16).max().unwrap_or(1);
        setup.model.layers = layers.next_multiple_of(unit);
        let setup = setup.cut(|_| ());
        search(predictor, &Wish { setup: &setup, ramp: wish.ramp }, devices).into_iter().next()
    };
    let (mut low, mut high) = (0, 1);
    let mut found = None;
    while let Some(candidate) = sized(high) {
        (found, low, high) = (Some(candidate), high, 2 * high);
        if high > 1024 {
            break;
        }
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        match sized(middle) {
            Some(candidate) => (found, low) = (Some(candidate), middle),
            None => high = middle,
        }
    }
    found
}
