//! Changes to a plan, each with what it gives: the ladder down into memory, and what would be faster.

use super::hardware::Hardware;
use super::own;
use super::predict::{Prediction, Predictor};
use super::setup::{Framework, Setup};
use crate::base::Bytes;
use crate::manifest::{self, LayerSplit, Manifest, Recompute, Schedule};
use std::path::Path;

/// A changed plan.
#[derive(Clone, Debug)]
pub struct Change {
    /// "micro-batch 2 → 1".
    pub what: String,
    /// The manifest's settings for it, as `--set` takes them.
    pub sets: Vec<String>,
    pub setup: Setup,
    pub prediction: Prediction,
}

impl Change {
    /// Seconds for the tokens of one step of the plan as it was; negative is faster.
    pub fn cost(&self, from: &Setup, before: &Prediction) -> f64 {
        self.prediction.seconds * from.global as f64 / self.setup.global as f64 - before.seconds
    }
}

struct Step {
    what: String,
    sets: Vec<String>,
    setup: Setup,
}

/// The smallest changes that make it fit, cheapest first: single ones, or pairs where no single one
/// is enough.
pub fn ladder(predictor: &Predictor, setup: &Setup) -> Vec<Change> {
    let fitting = |steps: Vec<Step>| -> Vec<Change> {
        let judged = steps.into_iter().map(|step| judge(predictor, step));
        judged.filter(|change| change.prediction.fits).collect()
    };
    let mut found = fitting(smaller(setup));
    if found.is_empty() {
        let pairs = smaller(setup).into_iter().flat_map(|first| {
            smaller(&first.setup).into_iter().map(move |second| Step {
                what: format!("{} and {}", first.what, second.what),
                sets: [first.sets.clone(), second.sets].concat(),
                setup: second.setup,
            })
        });
        found = fitting(pairs.collect());
    }
    found.sort_by(|a, b| a.prediction.seconds.total_cmp(&b.prediction.seconds));
    let mut seen: Vec<f64> = Vec::new();
    found.retain(|change| {
        let new = seen.iter().all(|s| (s - change.prediction.seconds).abs() > 1e-9);
        seen.push(change.prediction.seconds);
        new
    });
    found
}

/// A changed manifest, for gptrain itself.
#[derive(Clone, Debug)]
pub struct Smaller {
    /// As `--set` takes them.
    pub sets: Vec<String>,
    /// Of the rank that reserves most.
    pub bytes: Bytes,
    /// Of a step, by the planner's rates.
    pub seconds: f64,
    manifest: Manifest,
}

/// The smallest changes with which every rank of gptrain reserves at most `room`, cheapest first:
/// single ones, or pairs where no single one is enough. `effective` is the manifest's text.
pub fn own_ladder(
    m: &Manifest,
    effective: &str,
    room: Bytes,
    hw: &'static Hardware,
) -> Vec<Smaller> {
    let first = own_smaller(m, &[], effective, hw);
    let fitting = |changes: Vec<Smaller>| -> Vec<Smaller> {
        changes.into_iter().filter(|change| change.bytes.0 <= room.0).collect()
    };
    let mut found = fitting(first.clone());
    if found.is_empty() {
        let second = |one: &Smaller| own_smaller(&one.manifest, &one.sets, effective, hw);
        found = fitting(first.iter().flat_map(second).collect());
    }
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    found.dedup_by(|a, b| (a.bytes, a.seconds) == (b.bytes, b.seconds));
    found
}

/// Changes of `m`, which is the text with `sets`, that are valid and reserve less.
fn own_smaller(
    m: &Manifest,
    sets: &[String],
    effective: &str,
    hw: &'static Hardware,
) -> Vec<Smaller> {
    let peak = |m: &Manifest| own::stages(m, m.data.causal()).ok().map(|all| own::peak(&all).1);
    let Some(now) = peak(m) else { return Vec::new() };
    let setup = Setup::of(m, Framework::MegatronLm, hw);
    let levels = (m.topology.zero + 1).max(2)..=3;
    let more = levels.map(|zero| vec![format!("topology.zero={zero}")]);
    let steps = smaller(&setup).into_iter().map(|step| step.sets).chain(more);
    let change = |more: Vec<String>| {
        let sets = [sets, &more].concat();
        let loaded = manifest::parse(effective, "the manifest", Path::new("."), &sets).ok()?;
        let m = loaded.manifest;
        let stages = own::stages(&m, m.data.causal()).ok()?;
        let setup = Setup::of(&m, Framework::MegatronLm, hw);
        let seconds = own::parts(&stages, &setup).iter().map(|part| part.1).sum();
        Some(Smaller { sets, bytes: own::peak(&stages).1, seconds, manifest: m })
    };
    let found = steps.filter(|sets| !sets.is_empty()).filter_map(change);
    found.filter(|change| change.bytes.0 < now.0).collect()
}

/// What would be faster and fit, most gain first.
pub fn faster(predictor: &Predictor, setup: &Setup, now: &Prediction) -> Vec<Change> {
    let judged = bolder(setup).into_iter().map(|step| judge(predictor, step));
    let gain = |change: &Change| -change.cost(setup, now) / now.seconds;
    let mut found: Vec<Change> =
        judged.filter(|change| change.prediction.fits && gain(change) > 0.005).collect();
    found.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    found
}

fn judge(predictor: &Predictor, step: Step) -> Change {
    let prediction = predictor.predict(&step.setup);
    Change { what: step.what, sets: step.sets, setup: step.setup, prediction }
}

/// A list of steps under way; keeps the possible ones.
struct Steps<'a> {
    from: &'a Setup,
    list: Vec<Step>,
}

impl Steps<'_> {
    fn add(&mut self, what: String, sets: &[(&str, String)], setup: Setup) {
        let spread_out = setup.topology.tensor > setup.per_node;
        if setup.impossible().is_empty() && !spread_out {
            let sets = sets.iter().map(|(key, value)| format!("{key}={value}")).collect();
            self.list.push(Step { what, sets, setup });
        }
    }

    fn cut(&mut self, tensor: usize, pipeline: usize, data: usize) {
        let t = &self.from.topology;
        if !self.from.framework.cuts_layers() {
            return;
        }
        if tensor * pipeline * data != t.ranks() || pipeline > self.from.model.layers {
            return;
        }
        let split = split(self.from.model.layers, pipeline);
        let words = [("TP", t.tensor, tensor), ("PP", t.pipeline, pipeline), ("DP", t.data, data)];
        let changed = words.iter().filter(|(_, old, new)| old != new);
        let what = changed.map(|(name, old, new)| format!("{name} {old} → {new}"));
        let what = what.collect::<Vec<_>>().join(", ");
        let sets = [
            ("topology.tensor", tensor.to_string()),
            ("topology.pipeline", pipeline.to_string()),
            ("topology.data", data.to_string()),
            ("topology.layer_split", word(&split).to_string()),
        ];
        let setup = self.from.clone().cut(|t| {
            (t.tensor, t.pipeline, t.data) = (tensor, pipeline, data);
            t.layer_split = split;
        });
        self.add(what, &sets, setup);
    }

    fn micro(&mut self, micro: usize) {
        let what = format!("micro-batch {} → {micro}", self.from.micro);
        let sets = [("batch.micro", micro.to_string())];
        self.add(what, &sets, Setup { micro, ..self.from.clone() });
    }

    fn recompute(&mut self, recompute: Recompute) {
        if recompute == Recompute::Selective && self.from.framework == Framework::MegatronDeepSpeed
        {
            return; // which does not have it
        }
        let word = match recompute {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Full => "full",
        };
        let setup = self.from.clone().cut(|t| t.recompute = recompute);
        self.add(format!("recompute {word}"), &[("topology.recompute", word.to_string())], setup);
    }
}

/// Uniform where it divides, else with the ends counted, else as even as it goes.
pub fn split(layers: usize, pipeline: usize) -> LayerSplit {
    match () {
        _ if layers.is_multiple_of(pipeline) => LayerSplit::Uniform,
        _ if (layers + 2).is_multiple_of(pipeline) => LayerSplit::TransformerAndEmbedding,
        _ => LayerSplit::Balanced,
    }
}

pub fn word(split: &LayerSplit) -> &'static str {
    match split {
        LayerSplit::Uniform => "uniform",
        LayerSplit::TransformerAndEmbedding => "transformer_and_embedding",
        LayerSplit::Balanced | LayerSplit::Explicit(_) => "balanced",
    }
}

/// Steps that need less memory.
fn smaller(from: &Setup) -> Vec<Step> {
    let t = &from.topology;
    let (tensor, pipeline, data) = (t.tensor, t.pipeline, t.data);
    let mut steps = Steps { from, list: Vec::new() };
    match t.recompute {
        Recompute::None => {
            steps.recompute(Recompute::Selective);
            steps.recompute(Recompute::Full);
        }
        Recompute::Selective => steps.recompute(Recompute::Full),
        Recompute::Full => {}
    }
    for &zero in from.framework.zeros(pipeline).iter().filter(|zero| **zero > t.zero) {
        let setup = from.clone().cut(|t| t.zero = zero);
        steps.add(format!("ZeRO-{zero}"), &[("topology.zero", zero.to_string())], setup);
    }
    if from.micro > 1 {
        steps.micro(from.micro / 2);
    }
    if data.is_multiple_of(2) {
        steps.cut(2 * tensor, pipeline, data / 2);
        steps.cut(tensor, 2 * pipeline, data / 2);
    }
    if pipeline.is_multiple_of(2) {
        steps.cut(2 * tensor, pipeline / 2, data);
    }
    if !from.offload.optimizer && from.topology.zero > 0 {
        let mut setup = from.clone();
        setup.offload.optimizer = true;
        steps.add("optimizer in host memory".to_string(), &[], setup);
    }
    steps.list
}

/// Steps that may be faster.
fn bolder(from: &Setup) -> Vec<Step> {
    let (m, t) = (&from.model, &from.topology);
    let (tensor, pipeline, data) = (t.tensor, t.pipeline, t.data);
    let mut steps = Steps { from, list: Vec::new() };
    let mut heads: Vec<usize> = (1..=4 * m.heads)
        .filter(|a| m.hidden.is_multiple_of(8 * a) && a.is_multiple_of(tensor))
        .collect();
    heads.sort_by_key(|a| a.abs_diff(m.heads));
    for heads in heads.into_iter().take(if from.odd_heads() { 2 } else { 0 }) {
        let (before, after) = (m.hidden / m.heads, m.hidden / heads);
        let what = format!("{} → {heads} heads: head_dim {before} → {after}", m.heads);
        let mut setup = from.clone();
        setup.model.heads = heads;
        steps.add(what, &[("model.heads", heads.to_string())], setup);
    }
    steps.micro(2 * from.micro);
    if from.micro > 1 {
        steps.micro(from.micro / 2);
    }
    for (tensor, pipeline, data) in [
        (tensor / 2, pipeline, data * 2),
        (tensor / 2, pipeline * 2, data),
        (tensor, pipeline / 2, data * 2),
        (tensor * 2, pipeline, data / 2),
        (tensor * 2, pipeline / 2, data),
        (tensor, pipeline * 2, data / 2),
    ] {
        if tensor * pipeline * data > 0 {
            steps.cut(tensor, pipeline, data);
        }
    }
    match t.recompute {
        Recompute::Full => {
            steps.recompute(Recompute::Selective);
            steps.recompute(Recompute::None);
        }
        Recompute::Selective => steps.recompute(Recompute::None),
        Recompute::None => {}
    }
    let even = (m.layers + 2).is_multiple_of(pipeline) && pipeline > 1;
    if even && t.layer_split != LayerSplit::TransformerAndEmbedding {
        let what = "embedding and head counted as a layer each".to_string();
        let setup = from.clone().cut(|t| t.layer_split = LayerSplit::TransformerAndEmbedding);
        let word = "transformer_and_embedding".to_string();
        steps.add(what, &[("topology.layer_split", word)], setup);
    }
    let chunked = from.framework == Framework::MegatronLm && m.layers.is_multiple_of(2 * pipeline);
    if chunked && pipeline > 1 && t.schedule == Schedule::OneFOneB {
        let setup = from.clone().cut(|t| t.schedule = Schedule::Interleaved { chunks: 2 });
        let what = "interleaved schedule, 2 chunks".to_string();
        steps.add(what, &[("topology.schedule", "interleaved".to_string())], setup);
    }
    if from.micros() < 4 * pipeline && pipeline > 1 {
        let global = 2 * from.global;
        let what = format!("global batch {} → {global}", from.global);
        let setup = Setup { global, ..from.clone() };
        steps.add(what, &[("batch.global", global.to_string())], setup);
    }
    steps.list
}
