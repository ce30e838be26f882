//! Changes to a plan, each with its benefit: less memory, or a faster step.

use super::setup::{Program, Setup};
use manifest::{LayerSplit, OffloadWhat, Recompute, Schedule};

/// Kinds of changes, in the order in which they are tried: the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// More, smaller micro-batches; sums of gradients for more tokens.
    Accumulate,
    /// Recomputation, ZeRO, and other cuts of the model.
    Shard,
    /// States in the host's memory.
    Offload,
    /// Moments in 8 bits.
    Code,
    /// Gradients of low rank between replicas.
    Compress,
}

/// Changed plan before it is evaluated.
#[derive(Clone, Debug)]
pub struct Step {
    pub rung: Rung,
    pub what: String,
    /// The manifest's settings for it, as `--set` takes them; empty where no setting does it.
    pub sets: Vec<String>,
    pub setup: Setup,
}

/// List of changes that keeps only possible ones.
struct Steps<'a> {
    from: &'a Setup,
    list: Vec<Step>,
}

impl Steps<'_> {
    fn add(&mut self, rung: Rung, what: String, sets: &[(&str, String)], setup: Setup) {
        let spread_out = setup.topology.tensor > setup.per_node;
        if setup.impossible().is_empty() && !spread_out {
            let sets = sets.iter().map(|(key, value)| format!("{key}={value}")).collect();
            self.list.push(Step { rung, what, sets, setup });
        }
    }

    fn cut(&mut self, tensor: usize, pipeline: usize, data: usize) {
        let t = &self.from.topology;
        if !self.from.program.cuts_layers() {
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
            ("topology.layer_split", split_word(&split).to_string()),
        ];
        let setup = self.from.clone().cut(|t| {
            (t.tensor, t.pipeline, t.data) = (tensor, pipeline, data);
            t.layer_split = split;
        });
        self.add(Rung::Shard, what, &sets, setup);
    }

    fn micro(&mut self, micro: usize) {
        let what = format!("micro-batch {} → {micro}", self.from.micro);
        let sets = [("batch.micro", micro.to_string())];
        self.add(Rung::Accumulate, what, &sets, Setup { micro, ..self.from.clone() });
    }

    fn recompute(&mut self, recompute: Recompute) {
        if !self.from.program.recomputes().contains(&recompute) {
            return;
        }
        let word = recompute.name();
        let setup = self.from.clone().cut(|t| t.recompute = recompute);
        let set = ("topology.recompute", word.to_string());
        self.add(Rung::Shard, format!("recompute {word}"), &[set], setup);
    }

    fn zero(&mut self, zero: u8) {
        let setup = self.from.clone().cut(|t| t.zero = zero);
        let set = ("topology.zero", zero.to_string());
        self.add(Rung::Shard, format!("ZeRO-{zero}"), &[set], setup);
    }

    /// Adds offload of the states, then also of the weights.
    fn offload(&mut self) {
        let (from, t) = (self.from, &self.from.topology);
        let optimizer = "optimizer in host memory".to_string();
        if from.program != Program::Gptrain {
            let mut setup = from.clone();
            setup.offload.optimizer = true;
            if !from.offload.optimizer && t.zero > 0 {
                self.add(Rung::Offload, optimizer, &[], setup);
            }
            return;
        }
        let full = "optimizer and weights in host memory".to_string();
        let more = [(OffloadWhat::Optimizer, optimizer), (OffloadWhat::Full, full)];
        let done = [OffloadWhat::None, OffloadWhat::Optimizer, OffloadWhat::Full];
        let at = done.iter().position(|what| *what == t.offload.what).expect("one of three");
        for (what, words) in more.into_iter().skip(at) {
            let setup = from.clone().cut(|t| t.offload.what = what);
            let set = ("topology.offload", what.name().to_string());
            self.add(Rung::Offload, words, &[set], setup);
        }
    }
}

/// Layer split: uniform if divisible, else with embedding and head counted, else as even as possible.
pub fn split(layers: usize, pipeline: usize) -> LayerSplit {
    match () {
        _ if layers.is_multiple_of(pipeline) => LayerSplit::Uniform,
        _ if (layers + 2).is_multiple_of(pipeline) => LayerSplit::TransformerAndEmbedding,
        _ => LayerSplit::Balanced,
    }
}

pub fn split_word(split: &LayerSplit) -> &'static str {
    match split {
        LayerSplit::Uniform => "uniform",
        LayerSplit::TransformerAndEmbedding => "transformer_and_embedding",
        LayerSplit::Balanced | LayerSplit::Explicit(_) => "balanced",
    }
}

/// Settings as flags that a shell takes.
pub fn flags_of(sets: &[String]) -> String {
    let flag = |set: &String| match set.contains(' ') {
        true => format!("--set '{set}'"),
        false => format!("--set {set}"),
    };
    sets.iter().map(flag).collect::<Vec<_>>().join(" ")
}

/// Steps that need less memory.
pub fn smaller_steps(from: &Setup) -> Vec<Step> {
    let t = &from.topology;
    let (tensor, pipeline, data) = (t.tensor, t.pipeline, t.data);
    let mut steps = Steps { from, list: Vec::new() };
    if from.micro > 1 {
        steps.micro(from.micro / 2);
    }
    match t.recompute {
        Recompute::None => {
            steps.recompute(Recompute::Selective);
            steps.recompute(Recompute::Full);
        }
        Recompute::Selective => steps.recompute(Recompute::Full),
        Recompute::Full => {}
    }
    for &zero in from.program.zeros(pipeline).iter().filter(|zero| **zero > t.zero && data > 1) {
        steps.zero(zero);
    }
    if data.is_multiple_of(2) {
        steps.cut(2 * tensor, pipeline, data / 2);
        steps.cut(tensor, 2 * pipeline, data / 2);
    }
    if pipeline.is_multiple_of(2) {
        steps.cut(2 * tensor, pipeline / 2, data);
    }
    steps.offload();
    steps.list
}

/// Steps that may be faster.
pub fn faster_steps(from: &Setup) -> Vec<Step> {
    let (m, t) = (&from.model, &from.topology);
    let (tensor, pipeline, data) = (t.tensor, t.pipeline, t.data);
    let mut steps = Steps { from, list: Vec::new() };
    let mut heads: Vec<usize> = (1..=4 * m.heads)
        .filter(|a| m.hidden.is_multiple_of(8 * a) && a.is_multiple_of(tensor))
        .filter(|a| m.head_dim.is_none() && a.is_multiple_of(m.kv_heads.unwrap_or(1)))
        .collect();
    heads.sort_by_key(|a| a.abs_diff(m.heads));
    for heads in heads.into_iter().take(if from.odd_heads() { 2 } else { 0 }) {
        let (before, after) = (m.heads().dim, m.hidden / heads);
        let what = format!("{} → {heads} heads: head_dim {before} → {after}", m.heads);
        let mut setup = from.clone();
        setup.model.heads = heads;
        steps.add(Rung::Shard, what, &[("model.heads", heads.to_string())], setup);
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
        steps.add(Rung::Shard, what, &[("topology.layer_split", word)], setup);
    }
    let chunked = from.program.chunks().contains(&2) && m.layers.is_multiple_of(2 * pipeline);
    if chunked && pipeline > 1 && t.schedule == Schedule::OneFOneB {
        let setup = from.clone().cut(|t| (t.schedule, t.chunks) = (Schedule::Interleaved, 2));
        let what = "interleaved schedule, 2 chunks".to_string();
        let set = ("topology.schedule", "interleaved".to_string());
        steps.add(Rung::Shard, what, &[set], setup);
    }
    if from.micros() < 4 * pipeline && pipeline > 1 {
        let global = 2 * from.global;
        let what = format!("global batch {} → {global}", from.global);
        let setup = Setup { global, ..from.clone() };
        steps.add(Rung::Accumulate, what, &[("batch.global", global.to_string())], setup);
    }
    steps.list
}
