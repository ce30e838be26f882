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
        if tensor > 1 && !s.framework.cuts_layers() {
            continue;
        }
        let deepest = if s.framework.cuts_layers() { s.model.layers } else { 1 };
        let pipelines = (1..=deepest.min(rest)).filter(|p| rest.is_multiple_of(*p));
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
    let mut schedules = vec![Schedule::OneFOneB];
    let chunked = base.framework == Framework::MegatronLm && pipeline > 1;
    if chunked && base.model.layers.is_multiple_of(2 * pipeline) {
        schedules.push(Schedule::Interleaved { chunks: 2 });
    }
    // Megatron-DeepSpeed has no selective recomputation.
    let recomputes: &[Recompute] = match base.framework {
        Framework::MegatronDeepSpeed => &[Recompute::None, Recompute::Full],
        _ => &[Recompute::None, Recompute::Selective, Recompute::Full],
    };
    for micro in micros {
        for zero in base.framework.zeros(pipeline) {
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

/// The widest model of the wish's proportions (layers to hidden, head dimension) that fits: layers
/// are rounded to what a pipeline on these devices divides.
pub fn largest(predictor: &Predictor, wish: &Wish, devices: usize) -> Option<Candidate> {
    let m = &wish.setup.model;
    let head = (m.hidden / m.heads).next_multiple_of(8);
    let ratio = m.hidden as f64 / m.layers as f64;
    let sized = |width: usize, unit: usize| {
        let mut setup = wish.setup.clone();
        setup.model.heads = 8 * width;
        setup.model.hidden = setup.model.heads * head;
        setup.model.ffn_hidden = 4 * setup.model.hidden;
        let layers = (setup.model.hidden as f64 / ratio).round() as usize;
        setup.model.layers = layers.next_multiple_of(unit);
        let setup = setup.cut(|_| ());
        search(predictor, &Wish { setup: &setup, ramp: wish.ramp }, devices).into_iter().next()
    };
    let units: Vec<usize> = (1..=24).rev().filter(|unit| devices.is_multiple_of(*unit)).collect();
    let mut found = None;
    let mut misses = 0;
    for width in 1..=512 {
        match units.iter().find_map(|unit| sized(width, *unit)) {
            Some(candidate) => (found, misses) = (Some(candidate), 0),
            // Small models may be too few layers for many devices; large ones need too much.
            None if found.is_some() => misses += 1,
            None => {}
        }
        if misses == 4 {
            break;
        }
    }
    found
}
