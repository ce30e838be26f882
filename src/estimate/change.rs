//! Changes to a plan, each with its benefit: less memory, or a faster step.

use super::gptrain::cuts::shard_groups;
use super::mixture::{Degrees, KEYS};
use super::setup::{Program, Setup};
use manifest::{LayerSplit, OffloadWhat, Recompute, Schedule, Shard, Topology};

/// Kinds of changes, in the order in which they are tried: the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// More, smaller micro-batches; sums of gradients for more tokens.
    Accumulate,
    /// Recomputation, ZeRO, and other cuts of the model.
    Shard,
    /// States in the host's memory.
    Offload,
    /// Moments in 8 bits.
    Adam8bit,
    /// Gradients of low rank between replicas.
    Compress,
}

/// Changed plan before it is evaluated.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub kind: ChangeKind,
    pub what: String,
    /// The manifest's settings for it, as `--set` takes them; empty where no setting does it.
    pub sets: Vec<String>,
    pub setup: Setup,
}

impl Proposal {
    /// Change by one setting, on the same setup.
    pub fn new(kind: ChangeKind, what: String, set: String, setup: &Setup) -> Proposal {
        Proposal { kind, what, sets: vec![set], setup: setup.clone() }
    }

    /// Both changes; `second` was derived from the setup of this one.
    pub fn and(&self, second: Proposal) -> Proposal {
        Proposal {
            kind: self.kind.max(second.kind),
            what: format!("{} and {}", self.what, second.what),
            sets: [&self.sets[..], &second.sets].concat(),
            setup: second.setup,
        }
    }
}

/// List of changes that keeps only possible ones.
struct Proposals<'a> {
    from: &'a Setup,
    list: Vec<Proposal>,
}

impl Proposals<'_> {
    fn add(&mut self, kind: ChangeKind, what: String, sets: &[(&str, String)], setup: Setup) {
        let t = &setup.topology;
        let is_kept = t.tensor == self.from.topology.tensor;
        let is_joined = is_kept || setup.has_fast_links(t.tensor, setup.ranks());
        let fits = is_joined && t.data.is_multiple_of(t.shard_size());
        if setup.violations().is_empty() && fits {
            let sets = sets
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            self.list.push(Proposal { kind, what, sets, setup });
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
        // A single stage has no chunks.
        let chunked = t.schedule.has_chunks();
        let unchunked = chunked && pipeline == 1;
        let chunks = if unchunked { 1 } else { t.chunks };
        let split = layer_split(self.from.model.layers, pipeline * chunks);
        let words = [("TP", t.tensor, tensor), ("PP", t.pipeline, pipeline), ("DP", t.data, data)];
        let changed = words.iter().filter(|(_, old, new)| old != new);
        let what = changed
            .map(|(name, old, new)| format!("{name} {old} → {new}"))
            .collect::<Vec<_>>()
            .join(", ");
        let mut sets = vec![
            ("topology.tensor", tensor.to_string()),
            ("topology.pipeline", pipeline.to_string()),
            ("topology.data", data.to_string()),
            ("topology.layer_split", layer_split_name(&split).to_string()),
        ];
        let schedule = if unchunked { Schedule::OneFOneB } else { t.schedule };
        if unchunked {
            sets.push(("topology.schedule", schedule.name().to_string()));
            sets.push(("topology.chunks", "null".to_string()));
        }
        if unchunked && t.zero_every > 1 {
            sets.push(("topology.zero_every", "1".to_string()));
        }
        let zero_every = if unchunked { 1 } else { t.zero_every };
        let setup = self.from.clone().with_topology(|t| {
            (t.tensor, t.pipeline, t.data) = (tensor, pipeline, data);
            t.zero_every = zero_every;
            (t.schedule, t.chunks, t.layer_split) = (schedule, chunks, split);
        });
        self.add(ChangeKind::Shard, what, &sets, setup);
    }

    fn micro(&mut self, micro: usize) {
        let sets = [("batch.micro", micro.to_string())];
        self.add(
            ChangeKind::Accumulate,
            format!("micro-batch {} → {micro}", self.from.micro),
            &sets,
            Setup { micro, ..self.from.clone() },
        );
    }

    /// Adds a change of one setting of the topology.
    fn set(
        &mut self,
        kind: ChangeKind,
        what: String,
        (key, value): (&str, &str),
        change: impl FnOnce(&mut Topology),
    ) {
        let setup = self.from.clone().with_topology(change);
        self.add(kind, what, &[(key, value.to_string())], setup);
    }

    fn recompute(&mut self, recompute: Recompute) {
        if self.from.program.recomputes().contains(&recompute) {
            let what = format!("recompute {}", recompute.name());
            let set = ("topology.recompute", recompute.name());
            self.set(ChangeKind::Shard, what, set, |t| t.recompute = recompute);
        }
    }

    fn zero(&mut self, zero: u8) {
        let set = ("topology.zero", &*zero.to_string());
        self.set(ChangeKind::Shard, format!("ZeRO-{zero}"), set, |t| t.zero = zero);
    }

    /// Adds the other shard groups.
    fn shard_groups(&mut self) {
        let from = self.from;
        let now = from.topology.shard_size();
        for shard in shard_groups(from, from.topology.zero) {
            let (what, value) = match shard {
                Shard::Ranks(ranks) => (format!("shard groups of {ranks}"), ranks.to_string()),
                Shard::All | Shard::Node => {
                    ("one level of replicas".to_string(), "all".to_string())
                }
            };
            let is_other = Topology { shard, ..from.topology.clone() }.shard_size() != now;
            if from.program == Program::Gptrain && is_other {
                let set = ("topology.shard", &*value);
                self.set(ChangeKind::Shard, what, set, |t| t.shard = shard);
            }
        }
    }

    /// Adds another expert degree, if the experts and the ranks are divisible by it.
    fn expert(&mut self, expert: usize) {
        let from = self.from;
        if from.mixture.is_some() {
            let what = format!("EP {} → {expert}", from.degrees.expert);
            let setup = from
                .clone()
                .with_degrees(Degrees { expert, ..from.degrees });
            self.add(ChangeKind::Shard, what, &[(KEYS[1], expert.to_string())], setup);
        }
    }

    /// Adds offload of the states, then also of the weights.
    fn offload(&mut self) {
        let from = self.from;
        let optimizer = "optimizer in host memory".to_string();
        if from.program != Program::Gptrain {
            let mut setup = from.clone();
            setup.offload.optimizer = true;
            if !from.offload.optimizer && from.topology.zero > 0 {
                self.add(ChangeKind::Offload, optimizer, &[], setup);
            }
            return;
        }
        let full = "optimizer and weights in host memory".to_string();
        for (what, words) in [(OffloadWhat::Optimizer, optimizer), (OffloadWhat::Full, full)] {
            if what as usize > from.topology.offload.what as usize {
                let set = ("topology.offload", what.name());
                self.set(ChangeKind::Offload, words, set, |t| t.offload.what = what);
            }
        }
    }
}

/// Layer split: uniform if divisible, else with embedding and head counted, else as even as possible.
pub fn layer_split(layers: usize, pipeline: usize) -> LayerSplit {
    match () {
        _ if layers.is_multiple_of(pipeline) => LayerSplit::Uniform,
        _ if (layers + 2).is_multiple_of(pipeline) => LayerSplit::TransformerAndEmbedding,
        _ => LayerSplit::Balanced,
    }
}

pub fn layer_split_name(split: &LayerSplit) -> &'static str {
    match split {
        LayerSplit::Uniform => "uniform",
        LayerSplit::TransformerAndEmbedding => "transformer_and_embedding",
        LayerSplit::Balanced | LayerSplit::Explicit(_) => "balanced",
    }
}

/// Settings as flags that a shell takes.
pub fn set_flags(sets: &[String]) -> String {
    sets.iter()
        .map(
            |set| {
                if set.contains(' ') { format!("--set '{set}'") } else { format!("--set {set}") }
            },
        )
        .collect::<Vec<_>>()
        .join(" ")
}

/// Flags in lines of at most 96 columns.
pub fn flag_lines(sets: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for set in sets {
        let flag = set_flags(std::slice::from_ref(set));
        match lines.last_mut() {
            Some(line) if line.len() + 1 + flag.len() <= 96 => *line += &format!(" {flag}"),
            _ => lines.push(flag),
        }
    }
    lines
}

/// Changes that need less memory.
pub fn propose_smaller(from: &Setup) -> Vec<Proposal> {
    let t = &from.topology;
    let tensor = t.tensor;
    let pipeline = t.pipeline;
    let data = t.data;
    let mut proposals = Proposals { from, list: Vec::new() };
    if from.micro > 1 {
        proposals.micro(from.micro / 2);
    }
    match t.recompute {
        Recompute::None => {
            proposals.recompute(Recompute::Selective);
            proposals.recompute(Recompute::Full);
        }
        Recompute::Selective => proposals.recompute(Recompute::Full),
        Recompute::Full => {}
    }
    for &zero in from
        .program
        .zero_levels(pipeline)
        .iter()
        .filter(|zero| **zero > t.zero && data > 1)
    {
        proposals.zero(zero);
    }
    if data.is_multiple_of(2) {
        proposals.cut(2 * tensor, pipeline, data / 2);
        proposals.cut(tensor, 2 * pipeline, data / 2);
    }
    if pipeline.is_multiple_of(2) {
        proposals.cut(2 * tensor, pipeline / 2, data);
    }
    proposals.expert(2 * from.degrees.expert);
    proposals.offload();
    proposals.list
}

/// Changes that may be faster.
pub fn propose_faster(from: &Setup) -> Vec<Proposal> {
    let m = &from.model;
    let t = &from.topology;
    let tensor = t.tensor;
    let pipeline = t.pipeline;
    let data = t.data;
    let mut proposals = Proposals { from, list: Vec::new() };
    let mut heads: Vec<usize> = (1..=4 * m.heads)
        .filter(|a| m.hidden.is_multiple_of(8 * a) && a.is_multiple_of(tensor))
        .filter(|a| m.head_dim.is_none() && a.is_multiple_of(m.kv_heads.unwrap_or(1)))
        .collect();
    heads.sort_by_key(|a| a.abs_diff(m.heads));
    for heads in heads
        .into_iter()
        .take(if from.has_odd_heads() { 2 } else { 0 })
    {
        let before = m.heads().dim;
        let after = m.hidden / heads;
        let what = format!("{} → {heads} heads: head_dim {before} → {after}", m.heads);
        let mut setup = from.clone();
        setup.model.heads = heads;
        proposals.add(ChangeKind::Shard, what, &[("model.heads", heads.to_string())], setup);
    }
    proposals.micro(2 * from.micro);
    if from.micro > 1 {
        proposals.micro(from.micro / 2);
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
            proposals.cut(tensor, pipeline, data);
        }
    }
    for expert in [from.degrees.expert / 2, 2 * from.degrees.expert] {
        proposals.expert(expert);
    }
    match t.recompute {
        Recompute::Full => {
            proposals.recompute(Recompute::Selective);
            proposals.recompute(Recompute::None);
        }
        Recompute::Selective => proposals.recompute(Recompute::None),
        Recompute::None => {}
    }
    proposals.shard_groups();
    let even = (m.layers + 2).is_multiple_of(pipeline) && pipeline > 1;
    if even && t.layer_split != LayerSplit::TransformerAndEmbedding {
        let what = "embedding and head counted as a layer each".to_string();
        let set = ("topology.layer_split", "transformer_and_embedding");
        let split = LayerSplit::TransformerAndEmbedding;
        proposals.set(ChangeKind::Shard, what, set, |t| t.layer_split = split);
    }
    let chunked = from.program.chunks().contains(&2) && m.layers.is_multiple_of(2 * pipeline);
    if chunked && pipeline > 1 && t.schedule == Schedule::OneFOneB {
        let what = "interleaved schedule, 2 chunks".to_string();
        let set = ("topology.schedule", "interleaved");
        proposals.set(ChangeKind::Shard, what, set, |t: &mut Topology| {
            (t.schedule, t.chunks) = (Schedule::Interleaved, 2)
        });
    }
    if from.micros() < 4 * pipeline && pipeline > 1 {
        let global = 2 * from.global;
        let setup = Setup { global, ..from.clone() };
        proposals.add(
            ChangeKind::Accumulate,
            format!("global batch {} → {global}", from.global),
            &[("batch.global", global.to_string())],
            setup,
        );
    }
    proposals.list
}
