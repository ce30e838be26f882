//! The cuts of a model that gptrain can train: the manifest's rules of topology and batch.

use crate::setup::{Extras, Moments, Setup};
use engine::cuts;
use manifest::{
    Adam8bit, Batch, LayerSplit, Manifest, OffloadWhat, Optimizer, PowerSgd, Recompute, Schedule,
    Shard, Split, StateReplicas, Topology, replicas_on_node,
};
use plan::ramp::Ramp;

/// Samples of a micro-batch that are tried, beside the manifest's own.
const MICROS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The manifest with a setup's model, cut, batch and moments.
pub fn manifest(m: &Manifest, s: &Setup) -> Manifest {
    Manifest {
        optimizer: optimizer(m, s),
        model: s.model.clone(),
        topology: s.topology.clone(),
        batch: batch(m, s),
        ..m.clone()
    }
}

/// Whether the manifest may have a setup's settings.
pub fn is_permitted(m: &Manifest, s: &Setup) -> bool {
    Split {
        precision: m.precision,
        model: &s.model,
        batch: &batch(m, s),
        optimizer: &optimizer(m, s),
        topology: &s.topology,
    }
    .is_permitted()
}

fn batch(m: &Manifest, s: &Setup) -> Batch {
    let micro_stages = Vec::new();
    Batch { micro: s.micro, micro_stages, global: s.global, ..m.batch.clone() }
}

fn optimizer(m: &Manifest, s: &Setup) -> Optimizer {
    match (&m.optimizer, s.moments) {
        (Optimizer::AdamW(rule), Moments::Adam8bit) => {
            Optimizer::Adam8bit(Adam8bit::from_adamw(*rule))
        }
        (optimizer, _) => optimizer.clone(),
    }
}

/// Every cut over exactly `devices` that the manifest permits, through its whole ramp-up: with its own
/// settings, and with the extras.
pub fn list(m: &Manifest, base: &Setup, ramp: Ramp, devices: usize, extras: Extras) -> Vec<Setup> {
    let mut micros: Vec<usize> = MICROS.into_iter().chain([base.micro]).collect();
    micros.sort_unstable();
    micros.dedup();
    let mut cuts = Vec::new();
    for (tensor, pipeline, data) in base.grids(devices) {
        let base = base
            .clone()
            .with_topology(|t| (t.tensor, t.pipeline, t.data) = (tensor, pipeline, data));
        for (chunks, layer_split) in pipelines(&base) {
            // Interleaving takes micro-batches in groups of one a stage.
            let group = if chunks > 1 { pipeline } else { 1 };
            let mut base = base.clone();
            let t = &mut base.topology;
            t.schedule = if chunks > 1 { Schedule::Interleaved } else { Schedule::OneFOneB };
            (t.chunks, t.layer_split, t.zero_every) = (chunks, layer_split, 1);
            let recomputes = recomputes(&base);
            for micro in micros.iter().filter(|micro| {
                ramp.sizes()
                    .all(|size| size.is_multiple_of(**micro * data * group))
            }) {
                let plain = memory_savings(&Setup { micro: *micro, ..base.clone() }, &recomputes);
                cuts.extend(plain.into_iter().flat_map(|cut| with_extras(cut, extras)));
            }
        }
    }
    cuts.retain(|cut| is_permitted(m, cut));
    cuts
}

/// Chunks of layers a stage, and the rules by which layers can be dealt to them.
fn pipelines(s: &Setup) -> Vec<(usize, LayerSplit)> {
    let layers = s.model.layers;
    let stages = s.topology.pipeline;
    let chunks = [1]
        .iter()
        .chain(s.program.chunks())
        .filter(|chunks| **chunks == 1 || stages > 1);
    chunks
        .flat_map(|chunks| {
            let chunks = *chunks;
            rules(layers, stages * chunks)
                .into_iter()
                .map(move |rule| (chunks, rule))
        })
        .collect()
}

/// The rules that can deal layers to so many parts.
fn rules(layers: usize, parts: usize) -> Vec<LayerSplit> {
    let rules = [
        (LayerSplit::Uniform, layers.is_multiple_of(parts)),
        (LayerSplit::TransformerAndEmbedding, (layers + 2).is_multiple_of(parts)),
        (LayerSplit::Balanced, true),
    ];
    let possible = rules
        .into_iter()
        .filter(|(_, divides)| *divides && parts <= layers);
    possible.map(|(rule, _)| rule).collect()
}

/// The recomputations with which no earlier rule gives the same stages.
fn recomputes(s: &Setup) -> Vec<Recompute> {
    let with = |recompute: Recompute| {
        let mut setup = s.clone();
        setup.topology.recompute = recompute;
        setup
    };
    let all = s.program.recomputes().iter().copied();
    all.filter(|recompute| !is_repeated(&with(*recompute)))
        .collect()
}

/// Whether an earlier rule gives the same stages.
fn is_repeated(s: &Setup) -> bool {
    let t = &s.topology;
    let by = |layer_split| cuts(&s.model, &Topology { layer_split, ..t.clone() });
    let all = rules(s.model.layers, t.pipeline * t.chunks);
    let earlier = all.into_iter().take_while(|rule| *rule != t.layer_split);
    let own = cuts(&s.model, t);
    earlier.into_iter().any(|rule| by(rule) == own)
}

/// The cut alone, and with each combination of the extras that it can have.
fn with_extras(cut: Setup, extras: Extras) -> Vec<Setup> {
    let mut cuts = vec![cut];
    if extras.adam8bit {
        let in_8_bits = cuts
            .iter()
            .filter(|s| s.moments == Moments::Adam)
            .map(|s| Setup { moments: Moments::Adam8bit, ..s.clone() });
        cuts.extend(in_8_bits.collect::<Vec<_>>());
    }
    if extras.offload {
        let from = |what| {
            move |s: &Setup| {
                let rank = |what| what as usize;
                let more = rank(s.topology.offload.what) < rank(what);
                more.then(|| s.clone().with_topology(|t| t.offload.what = what))
            }
        };
        let optimizer: Vec<Setup> = cuts
            .iter()
            .filter_map(from(OffloadWhat::Optimizer))
            .collect();
        let full: Vec<Setup> = cuts.iter().filter_map(from(OffloadWhat::Full)).collect();
        cuts.extend(optimizer.into_iter().chain(full));
    }
    if extras.powersgd {
        let compressed = cuts
            .iter()
            .filter(|s| s.topology.data > 1 && s.topology.compression.is_none());
        cuts.extend(
            compressed
                .map(|s| {
                    s.clone()
                        .with_topology(|t| t.compression = Some(PowerSgd::default()))
                })
                .collect::<Vec<_>>(),
        );
    }
    cuts
}

/// Shard groups that are tried: all replicas, and those that fast links join where gradients or weights are
/// sharded, whose sums and gathers of every pass then remain on these links; those of a node if the replicas
/// are not divisible by a link domain's.
pub fn shard_groups(s: &Setup, zero: u8) -> Vec<Shard> {
    let data = s.topology.data;
    let joined = [s.link_domain(), s.per_node].map(|ranks| replicas_on_node(&s.topology, ranks));
    let group = joined
        .into_iter()
        .find(|group| 1 < *group && *group < data && data.is_multiple_of(*group))
        .filter(|_| zero >= 2 && data > joined[0]);
    [Shard::All]
        .into_iter()
        .chain(group.map(Shard::Ranks))
        .collect()
}

/// Sequence parallelism, ZeRO levels, shard groups and recomputation.
fn memory_savings(s: &Setup, recomputes: &[Recompute]) -> Vec<Setup> {
    let t = &s.topology;
    let sequence: &[bool] = if t.tensor > 1 && s.model.seq_len.is_multiple_of(t.tensor) {
        &[false, true]
    } else {
        &[false]
    };
    let zeros: &[u8] = if t.data == 1 { &[0] } else { s.program.zero_levels(t.pipeline) };
    let mut cuts = Vec::new();
    for sequence_parallel in sequence {
        for zero in zeros {
            for shard in shard_groups(s, *zero) {
                for recompute in recomputes {
                    let mut setup = s.clone();
                    let t = &mut setup.topology;
                    (t.sequence_parallel, t.zero, t.shard) = (*sequence_parallel, *zero, shard);
                    t.recompute = *recompute;
                    if !t.copies_states() {
                        t.states = StateReplicas::All;
                    }
                    cuts.push(setup);
                }
            }
        }
    }
    cuts
}
