//! Checks of the network's shape, and of its split over ranks.

use super::super::choices::LayerAttention;
use super::super::layers::{self, LayerForm};
use super::super::model::raw;
use super::super::report::Report;
use super::super::rope::{self, PositionForm, PositionSettings};
use super::super::shard;
use super::super::{
    Adam8bit, Batch, Family, Ffn, GradientHome, LayerSplit, Model, Offload, OffloadWhat, Optimizer,
    Position, Precision, Schedule, Topology,
};
use base::Gelu;

/// Checks for contradictions between written settings that the checked model no longer contains.
pub fn check_written(model: &raw::Model, report: &mut Report) {
    let family = model
        .family
        .unwrap_or(Family::for_position(model.position.as_ref()));
    if model.gelu == Some(Gelu::Exact) && model.ffn.unwrap_or(family.defaults().ffn) == Ffn::Swiglu
    {
        report.add_conflict(
            &["model.gelu", "model.ffn"],
            "model.gelu exact is for ffn: gelu, and ffn is swiglu",
            "remove it, or set model.ffn to gelu",
        );
    }
    if let Some(PositionForm::Settings(PositionSettings { rope: Some(rope) })) = &model.position {
        rope::check_written("model.position.rope.scaling", rope, report);
    }
    for (i, form) in model.pattern.iter().flatten().enumerate() {
        if let LayerForm::Settings(layers::raw::LayerKind { rope: Some(rope), .. }) = form {
            rope::check_written(&format!("model.pattern.{i}.rope.scaling"), rope, report);
        }
    }
}

/// Checks that each kind of layer can be computed and is used.
pub fn pattern(model: &Model, report: &mut Report) {
    let path = "model.pattern";
    if !report.are_valid(&[path, "model.window", "model.position", "model.layers"]) {
        return;
    }
    let kinds = model.pattern.len();
    let layers = model.layers;
    if kinds > layers {
        return report.add_conflict(
            &[path, "model.layers"],
            format!("model.pattern has {kinds} kinds of layers, and model.layers is {layers}"),
            "remove kinds, or raise model.layers",
        );
    }
    let windows = model
        .pattern
        .iter()
        .any(|kind| kind.attention == LayerAttention::Window);
    if windows && model.window.is_none() {
        report.add_conflict(
            &[path, "model.window"],
            "model.pattern has layers with a window, and model.window is not set",
            "set model.window",
        );
    }
    if kinds > 0 && !windows && model.window.is_some() {
        report.add_conflict(
            &[path, "model.window"],
            "model.window is set, and no layer of model.pattern has a window",
            "remove model.window, or give a layer attention: window",
        );
    }
    let rope = model.pattern.iter().any(|kind| kind.rope.is_some());
    if rope && !matches!(model.position, Position::Rope(_)) {
        let name = model.position.name();
        report.add_conflict(
            &[path, "model.position"],
            format!("model.pattern has layers with rope, and model.position is {name}"),
            "set model.position to rope",
        );
    }
}

/// Side length granularity: cuBLASLt multiplies fp8 matrices whose sides are multiples of 16.
const FP8_SIDE: usize = 16;

/// Checks the sides of the blocks' matrices on a rank, and the tokens of a micro-batch.
pub fn fp8(
    precision: Precision,
    model: &Model,
    batch: &Batch,
    topology: &Topology,
    report: &mut Report,
) {
    let keys = ["model.hidden", "model.heads", "model.kv_heads", "model.head_dim"];
    let others = ["model.ffn_hidden", "model.seq_len", "batch.micro", "topology.tensor"];
    if precision != Precision::Fp8 || !report.are_valid(&keys) || !report.are_valid(&others) {
        return;
    }
    let heads = model.heads();
    let ranks = topology.tensor;
    let sides = [
        ("model.hidden", "model.hidden", model.hidden, 1),
        ("model.heads", "columns of queries", heads.query_width(), ranks),
        ("model.heads", "columns of queries, keys and values", heads.qkv_width(), ranks),
        ("model.ffn_hidden", "model.ffn_hidden", model.ffn_hidden, ranks),
    ];
    let micros = batch.micro_stages.iter().map(|stage| stage.micro);
    let lengths = batch
        .length_ramp_up
        .map_or([model.seq_len; 2], |r| [r.start, r.increment]);
    let tokens = std::iter::once(batch.micro)
        .chain(micros)
        .flat_map(|micro| lengths.map(|length| micro * length))
        .map(|tokens| ("batch.micro", "batch.micro × the tokens of a sample,", tokens, 1));
    if let Some((path, name, side, ranks)) = sides
        .into_iter()
        .chain(tokens)
        .find(|(_, _, side, ranks)| !side.is_multiple_of(FP8_SIDE * ranks))
    {
        let share = if ranks > 1 { format!(" / topology.tensor {ranks}") } else { String::new() };
        report.add_conflict(
            &[path, "precision"],
            format!("{name} {side}{share} is not a multiple of {FP8_SIDE}, as fp8 needs it"),
            "change it, or set precision: bf16",
        );
    }
}

/// Checks that the table of learned positions has a row for each token of a sample.
pub fn positions(model: &Model, report: &mut Report) {
    let Some(rows) = model.positions else { return };
    let key = "model.positions";
    let seq_len = model.seq_len;
    if !report.are_valid(&[key, "model.seq_len", "model.position"]) {
        return;
    }
    if model.position != Position::Learned {
        let name = model.position.name();
        report.add_conflict(
            &[key, "model.position"],
            format!("{key} is for position: learned, and model.position is {name}"),
            format!("remove {key}"),
        );
    } else if rows < seq_len {
        report.add_conflict(
            &[key, "model.seq_len"],
            format!("{key} {rows} is less than model.seq_len {seq_len}"),
            format!("set model.seq_len to {rows} or less, or {key} to {seq_len} or more"),
        );
    }
}

pub fn heads(model: &Model, report: &mut Report) {
    groups(model, report);
    columns(model, report);
    let hidden = model.hidden;
    let heads = model.heads;
    let valid = report.are_valid(&["model.hidden", "model.heads", "model.head_dim"]);
    if !valid || model.head_dim.is_some() || hidden.is_multiple_of(heads) {
        return;
    }
    let below = hidden / heads * heads;
    let above = hidden.next_multiple_of(heads);
    let hidden_fits = if below > 0 { format!("{below} or {above}") } else { above.to_string() };
    report.add_conflict(
        &["model.hidden", "model.heads"],
        format!("model.hidden {hidden} is not a multiple of model.heads {heads}"),
        format!(
            "set model.hidden to {hidden_fits}, or model.heads to {}",
            nearest_divisors(hidden, heads)
        ),
    );
}

/// Checks that each key/value head serves the same number of query heads.
fn groups(model: &Model, report: &mut Report) {
    let query = model.heads;
    let kv = model.heads().kv;
    if !report.are_valid(&["model.heads", "model.kv_heads"]) || query.is_multiple_of(kv) {
        return;
    }
    report.add_conflict(
        &["model.kv_heads", "model.heads"],
        format!("model.heads {query} is not divisible by model.kv_heads {kv}"),
        format!("set model.kv_heads to {}", nearest_divisors(query, kv)),
    );
}

/// Checks the columns of a head, if they are rotated in pairs or normalised.
fn columns(model: &Model, report: &mut Report) {
    let paths = ["model.head_dim", "model.hidden", "model.heads"];
    let rope = matches!(model.position, Position::Rope(_));
    if !(rope || model.qk_norm) || !report.are_valid(&paths) {
        return;
    }
    let dim = model.heads().dim;
    if rope && !dim.is_multiple_of(2) {
        report.add_conflict(
            &paths,
            format!("position rope turns columns of a head in pairs, and a head has {dim} columns"),
            format!("set model.head_dim to {}", dim + 1),
        );
    } else if dim > 256 {
        report.add_conflict(
            &paths,
            format!("a head has {dim} columns; rope and qk_norm take at most 256"),
            "set model.head_dim, or model.heads to more",
        );
    }
}

/// Divisors of `n` on both sides of `near`: "90 or 100".
fn nearest_divisors(n: usize, near: usize) -> String {
    let below = (1..near).rev().find(|d| n.is_multiple_of(*d));
    let above = (near + 1..=n).find(|d| n.is_multiple_of(*d));
    let both: Vec<String> = below
        .into_iter()
        .chain(above)
        .map(|d| d.to_string())
        .collect();
    both.join(" or ")
}

/// Checks the topology. `chunks` is whether topology.chunks is given.
pub fn topology(
    topology: &Topology,
    chunks: bool,
    model: &Model,
    batch: &Batch,
    report: &mut Report,
) {
    if chunks && !topology.schedule.has_chunks() {
        report.add(
            "topology.chunks",
            "topology.chunks is only for schedule: interleaved and breadth_first",
            "set topology.schedule to interleaved, or remove it",
        );
    }
    tensor_cut(topology, model, report);
    pipeline_cut(topology, model, report);
    check_chunked_schedule(topology, batch, report);
    zero_in_pipeline(topology, report);
    check_sums_of_micros(topology, report);
    shard::check(topology, report);
    check_compression(topology, report);
    check_offload(topology, report);
}

/// Rejects settings without an effect, and settings that exclude each other.
fn check_offload(topology: &Topology, report: &mut Report) {
    let Offload { what, gradients } = topology.offload;
    if !report.are_valid(&["topology.offload"]) {
        return;
    }
    if what == OffloadWhat::None && topology.offload != Offload::NONE {
        report.add(
            "topology.offload",
            "topology.offload has settings, but topology.offload.what is missing",
            "set topology.offload.what to optimizer",
        );
    }
    let compressed = topology.compression.is_some() && report.are_valid(&["topology.compression"]);
    if compressed && gradients == GradientHome::Host {
        report.add_conflict(
            &["topology.offload.gradients", "topology.compression"],
            "topology.compression powersgd with topology.offload.gradients host: the factors \
             are made of all gradients of a step, on the device",
            "set topology.offload.gradients to device, or topology.compression to none",
        );
    }
}

fn tensor_cut(topology: &Topology, model: &Model, report: &mut Report) {
    let tensor = topology.tensor;
    let kv = model.heads().kv;
    let parts = [
        ("model.heads", model.heads, kv == model.heads),
        ("model.kv_heads", kv, kv != model.heads),
        ("model.ffn_hidden", model.ffn_hidden, true),
        ("model.seq_len", model.seq_len, topology.sequence_parallel),
    ];
    for (path, size, is_cut) in parts {
        // Settings that the manifest does not contain follow from others.
        let origins: &[&str] = match path {
            _ if report.root().at(path).is_some() => &[],
            "model.ffn_hidden" => &["model.hidden"],
            _ => &["model.heads"],
        };
        let known = report.are_valid(&["topology.tensor", path]) && report.are_valid(origins);
        if known && is_cut && !size.is_multiple_of(tensor) {
            report.add_conflict(
                &["topology.tensor", path],
                format!("{path} {size} is not divisible by topology.tensor {tensor}"),
                format!("set topology.tensor to {}", nearest_divisors(size, tensor)),
            );
        }
    }
}

/// Checks that blocks of 8-bit moments fit into a rank's columns. If tensor parallelism cut a
/// block, the states would depend on the grid.
pub fn blocks_of_columns(
    optimizer: &Optimizer,
    topology: &Topology,
    model: &Model,
    report: &mut Report,
) {
    const SIZES: [usize; 3] = [64, 32, 16];
    let Optimizer::Adam8bit(Adam8bit { block, .. }) = *optimizer else { return };
    if !report.are_valid(&["optimizer.adam8bit.block", "topology.tensor", "model"]) {
        return;
    }
    if !SIZES.contains(&block) {
        return report.add(
            "optimizer.adam8bit.block",
            format!("optimizer.adam8bit.block {block} is not 16, 32 or 64"),
            "take 64",
        );
    }
    let hidden = model.heads().query_width();
    let ffn = model.ffn_hidden;
    let tensor = topology.tensor;
    let cut = [("attn.proj.weight", hidden), ("mlp.fc2.weight", ffn)];
    let holds_blocks = |cols: usize, tensor: usize, block: usize| {
        !cols.is_multiple_of(block) || cols.is_multiple_of(tensor * block)
    };
    let fits = |tensor, block| {
        cut.iter()
            .all(|(_, cols)| holds_blocks(*cols, tensor, block))
    };
    let Some((weight, cols)) = cut
        .iter()
        .find(|(_, cols)| !holds_blocks(*cols, tensor, block))
    else {
        return;
    };
    let smaller = (1..tensor)
        .rev()
        .filter(|t| model.heads.is_multiple_of(*t) && ffn.is_multiple_of(*t))
        .find(|t| fits(*t, block))
        .unwrap_or(1);
    let remedy = match SIZES
        .into_iter()
        .find(|size| *size < block && fits(tensor, *size))
    {
        Some(size) => {
            format!("set optimizer.adam8bit.block to {size}, or topology.tensor to {smaller}")
        }
        None => format!("set topology.tensor to {smaller}"),
    };
    report.add_conflict(&["optimizer.adam8bit.block", "topology.tensor"], format!(
        "topology.tensor {tensor} leaves a rank {} of the {cols} columns of {weight}, which are not \
         whole blocks of optimizer.adam8bit.block {block}",
        cols / tensor
    ), remedy);
}

fn pipeline_cut(topology: &Topology, model: &Model, report: &mut Report) {
    let stages = topology.pipeline;
    let layers = model.layers;
    if !report.are_valid(&["topology.pipeline", "topology.layer_split", "model.layers"]) {
        return;
    }
    let chunks = topology.chunks;
    let parts = stages * chunks;
    let cut = if chunks > 1 { format!("{stages} × {chunks} chunks") } else { stages.to_string() };
    // The stages of the embedding and of the head may have no layer.
    let has_enough = match topology.layer_split {
        LayerSplit::TransformerAndEmbedding => parts <= layers || parts == layers + 2,
        LayerSplit::Explicit(_) => parts <= layers + 2,
        LayerSplit::Uniform | LayerSplit::Balanced => parts <= layers,
    };
    if !has_enough {
        let remedy = match layers / chunks {
            0 => format!("set model.layers to {parts} or more"),
            _ if parts == layers + 2 => {
                "set topology.layer_split to transformer_and_embedding: embedding \
                                         and head are stages of their own"
                    .to_string()
            }
            most => format!("set topology.pipeline to {most} or less"),
        };
        return report.add_conflict(
            &["topology.pipeline", "model.layers"],
            format!("topology.pipeline {cut} needs more layers than model.layers {layers}"),
            remedy,
        );
    }
    match &topology.layer_split {
        LayerSplit::Uniform if !layers.is_multiple_of(parts) => {
            let remedy = if (layers + 2).is_multiple_of(parts) {
                "set topology.layer_split to transformer_and_embedding or balanced"
            } else {
                "set topology.layer_split to balanced, or to a list of layers per stage"
            };
            report.add_conflict(
                &["topology.pipeline", "model.layers"],
                format!("model.layers {layers} is not divisible by topology.pipeline {cut}"),
                remedy,
            );
        }
        LayerSplit::TransformerAndEmbedding if !(layers + 2).is_multiple_of(parts) => {
            report.add(
                "topology.layer_split",
                format!(
                    "model.layers {layers} + 2 (embedding and head) = {} is not divisible by \
                     topology.pipeline {cut}",
                    layers + 2
                ),
                "set topology.layer_split to balanced",
            );
        }
        LayerSplit::Explicit(list) if list.len() != parts => {
            report.add(
                "topology.layer_split",
                format!(
                    "topology.layer_split has {} entries for topology.pipeline {cut}",
                    list.len()
                ),
                format!("give {parts} numbers of layers"),
            );
        }
        LayerSplit::Explicit(list) if list.iter().sum::<usize>() != layers => {
            let sum = list.iter().sum::<usize>();
            report.add(
                "topology.layer_split",
                format!("topology.layer_split holds {sum} layers, model.layers is {layers}"),
                "make the numbers add up",
            );
        }
        LayerSplit::Explicit(list) if parts > 2 && list[1..parts - 1].contains(&0) => {
            report.add(
                "topology.layer_split",
                "a stage between the first and the last has no layer",
                "give it one: only the stages of the embedding and of the head may have none",
            );
        }
        _ => {}
    }
}

/// Checks the schedules with chunks. The interleaved one needs micro-batches in groups of one per stage
/// (Narayanan et al. 2021).
fn check_chunked_schedule(topology: &Topology, batch: &Batch, report: &mut Report) {
    let keys = ["topology.schedule", "topology.pipeline", "topology.data", "batch"];
    if !topology.schedule.has_chunks() || !report.are_valid(&keys) {
        return;
    }
    let stages = topology.pipeline;
    if stages < 2 {
        return report.add(
            "topology.schedule",
            format!("schedule: {} needs at least 2 pipeline stages", topology.schedule.name()),
            "set topology.schedule to 1f1b",
        );
    }
    if topology.schedule != Schedule::Interleaved {
        return;
    }
    let micros = batch.micros();
    let group = |size: usize| micros.at(size) * topology.data * stages;
    let failing: Vec<usize> = batch
        .ramp()
        .sizes()
        .filter(|size| !size.is_multiple_of(group(*size)))
        .collect();
    if let [first, more @ ..] = &failing[..] {
        let (micro, group) = (micros.at(*first), group(*first));
        let others = match more.len() {
            0 => String::new(),
            n => format!(" (and {n} more of the ramp-up)"),
        };
        report.add("topology.schedule", format!(
            "schedule: interleaved takes {group} samples at a time (micro {} × data {} × pipeline \
             {stages}); a global batch of {first}{others} is not divisible by it",
            micro, topology.data
        ), format!("use multiples of {group}, or 1f1b"));
    }
}

/// Chunks of a stage from which ZeRO 3 saves memory in a pipeline: two of them are whole at a time.
const CHUNKS_OF_ZERO_3: usize = 3;

/// Rejects ZeRO 3 in a pipeline whose schedule does not use a chunk's weights for all micro-batches in
/// turn, or which has so few chunks that the whole ones are all of them.
fn zero_in_pipeline(topology: &Topology, report: &mut Report) {
    let Topology { zero, pipeline, schedule, chunks, .. } = *topology;
    let keys = ["topology.zero", "topology.pipeline", "topology.schedule", "topology.chunks"];
    if zero < 3 || pipeline == 1 || !report.are_valid(&keys) {
        return;
    }
    if schedule != Schedule::BreadthFirst {
        report.add_conflict(
            &["topology.zero", "topology.pipeline"],
            format!(
                "topology.zero {zero} with topology.pipeline {pipeline} and schedule: {}: a stage would \
                 gather its weights twice for each micro-batch, which costs more traffic than the memory \
                 is worth",
                schedule.name()
            ),
            "set topology.zero to 2, which shards gradients and optimizer states, topology.pipeline to 1, \
             or topology.schedule to breadth_first with topology.chunks of 3 or more, which gathers a \
             chunk twice per step",
        );
    } else if chunks < CHUNKS_OF_ZERO_3 {
        report.add_conflict(
            &["topology.zero", "topology.chunks"],
            format!(
                "topology.zero {zero} with topology.chunks {chunks}: the weights of two chunks are whole \
                 at a time, so nothing is saved"
            ),
            format!("set topology.chunks to {CHUNKS_OF_ZERO_3} or more, or topology.zero to 2"),
        );
    }
}

/// Rejects sums of several micro-batches where gradients are not sharded, or where the micro-batches of a
/// block do not follow one another.
fn check_sums_of_micros(topology: &Topology, report: &mut Report) {
    let Topology { zero, zero_every, schedule, .. } = *topology;
    let keys = ["topology.zero", "topology.zero_every", "topology.schedule", "topology.pipeline"];
    if zero_every == 1 || !report.are_valid(&keys) {
        return;
    }
    if zero < 2 {
        report.add_conflict(
            &["topology.zero_every", "topology.zero"],
            format!(
                "topology.zero_every {zero_every} with topology.zero {zero}, which sums gradients over \
                 replicas once per step"
            ),
            "set topology.zero to 2, or remove topology.zero_every",
        );
    } else if schedule != Schedule::BreadthFirst {
        report.add_conflict(
            &["topology.zero_every", "topology.schedule"],
            format!(
                "topology.zero_every {zero_every} with schedule: {}: the gradients of all blocks of a \
                 stage would be whole at a time, as at topology.zero 1",
                schedule.name()
            ),
            "set topology.schedule to breadth_first in a pipeline, or topology.zero to 1, or remove \
             topology.zero_every",
        );
    }
}

/// Rejects PowerSGD with ZeRO ≥ 2, because each replica keeps an error as large as the gradients
/// that ZeRO 2 would shard; and with offload settings that leave no device memory for it.
fn check_compression(topology: &Topology, report: &mut Report) {
    let Topology { zero, compression, offload, .. } = *topology;
    let keys = ["topology.compression", "topology.zero", "topology.offload"];
    if compression.is_none() || !report.are_valid(&keys) {
        return;
    }
    if zero >= 2 {
        report.add_conflict(
            &["topology.zero", "topology.compression"],
            format!(
                "topology.compression powersgd with topology.zero {zero}: every replica keeps an \
                 error of 4 bytes for each of its parameters, as much as the gradients that ZeRO \
                 {zero} shares"
            ),
            "set topology.zero to 1, or topology.compression to none",
        );
    }
    if offload.what == OffloadWhat::Full {
        report.add_conflict(
            &["topology.offload", "topology.compression"],
            "topology.compression powersgd with topology.offload full: every replica keeps an \
             error of 4 bytes for each of its parameters on the device, twice the weights that \
             offload takes away",
            "set topology.offload to optimizer, or topology.compression to none",
        );
    }
}
