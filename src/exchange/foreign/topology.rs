//! The other run's grid as section `topology`: sizes, what its arguments say of them, and the layers of its
//! pipeline stages as `topology.layer_split`.

use super::arguments::Arguments;
use super::settings::{Settings, asked};
use plan::split;

const SPLIT: &str = "topology.layer_split";
const SCHEDULE: &str = "topology.schedule";
/// Schedules with chunks.
const CHUNKED: [&str; 2] = ["interleaved", "breadth_first"];
const CHUNKS: &str = "topology.chunks";
/// DeepSpeed's argument: the layers that its balance counts.
const METHOD: &str = "pp_partition_method";
/// Megatron-Core's arguments, with their names of former versions.
const FIRST: [&str; 2] =
    ["decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage"];
const LAST: [&str; 2] = ["decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage"];
const LAYOUT: &str = "pipeline_model_parallel_layout";
const EMBEDDING: &str = "account_for_embedding_in_pipeline_split";
const LOSS: &str = "account_for_loss_in_pipeline_split";
/// Layers of a model, at most.
const MAX_LAYERS: usize = 1 << 20;
/// Letters of a layout, at most.
const MAX_LETTERS: usize = 1 << 16;

/// Sets the tensor and pipeline ranks, and how they divide the work.
pub fn set_grid(settings: &mut Settings, args: &Arguments, [tensor, pipeline]: [usize; 2]) {
    settings.set("topology.tensor", tensor, args.name("topology.tensor"));
    settings.set("topology.pipeline", pipeline, args.name("topology.pipeline"));
    let sequence = "topology.sequence_parallel";
    if args.is_set(sequence) && tensor > 1 {
        settings.set(sequence, true, args.name(sequence));
    }
    let recompute = "topology.recompute";
    if let Some((name, value)) = args.given(recompute) {
        let selective = value.str().is_ok_and(|word| word == "selective");
        settings.set(recompute, if selective { "selective" } else { "full" }, name);
    }
    if let Some((name, _)) = args.given("topology.offload.what") {
        settings.set("topology.offload.what", "optimizer", name);
    }
}

/// Sets the replicas, if the arguments have their number, and what they share.
pub fn set_replicas(settings: &mut Settings, args: &Arguments) -> anyhow::Result<()> {
    let Some(data) = args.optional_count("topology.data")? else { return Ok(()) };
    settings.set("topology.data", data, args.name("topology.data"));
    // Stages of a pipeline cannot shard weights. Of the other levels, ZeRO 1 sends least.
    let whole = settings
        .get("topology.pipeline")
        .is_none_or(|stages| stages == "1");
    for (zero, possible) in [("3", whole), ("1", true)] {
        let given = args
            .given(&format!("topology.zero: {zero}"))
            .map(|(name, _)| name.to_string());
        if let Some(name) = given.filter(|_| data > 1 && possible) {
            settings.set("topology.zero", zero, &name);
            break;
        }
    }
    let shard = "topology.shard";
    let instances = args.optional_count(shard)?.unwrap_or(1);
    if instances > 1 && data > instances && data.is_multiple_of(instances) {
        settings.set(shard, data / instances, args.name(shard));
        let divides_states = args
            .get("topology.states")
            .is_some_and(|value| value.str().is_ok_and(|word| word == "optim"));
        if settings.get("topology.zero").is_some() && !divides_states {
            settings.set("topology.states", "shard", args.name(shard));
        }
    }
    Ok(())
}

/// Removes what the files say of their stages if the user asks for another number of them, or for a
/// schedule without chunks.
pub fn keep_asked_stages(settings: &mut Settings, sets: &[String]) {
    let stages = asked(sets, "topology.pipeline").map(|_| "--set topology.pipeline");
    let schedule = asked(sets, SCHEDULE).filter(|schedule| !CHUNKED.contains(schedule));
    let chunked = settings.get(CHUNKS).is_some();
    let schedule = schedule
        .filter(|_| chunked)
        .map(|_| "--set topology.schedule");
    let Some(source) = stages.or(schedule) else { return };
    if settings.get(SPLIT).is_some() {
        settings.set(SPLIT, "balanced", source);
    }
    for key in [SCHEDULE, CHUNKS, "topology.overlap_p2p"] {
        settings.remove(key);
    }
}

/// Sets the split of the layers. `parts` has the layers of each chunk of each stage of the files, chunk 0
/// of all stages first.
pub fn set_counted_split(
    settings: &mut Settings,
    args: &Arguments,
    parts: &[usize],
    stages: usize,
) {
    set_split(settings, args, parts, stages, "layers of the stages' files");
}

/// Sets the split of `layers` layers by the arguments that give each stage a number of them.
pub fn set_said_split(
    settings: &mut Settings,
    args: &Arguments,
    layers: usize,
    stages: usize,
) -> anyhow::Result<()> {
    if stages < 2 || layers > MAX_LAYERS {
        return Ok(());
    }
    if stages > layers {
        // Embedding and head are stages of their own.
        if counts_ends(args) && layers + 2 == stages {
            settings.set(SPLIT, "transformer_and_embedding", METHOD);
        }
        return Ok(());
    }
    let chunks = said_chunks(args)?
        .filter(|chunks| *chunks <= layers / stages)
        .unwrap_or(1);
    match said_layers(args, layers, stages, chunks)? {
        Some((parts, from)) => set_split(settings, args, &parts, stages, &from),
        None if layers.is_multiple_of(stages * chunks) => {
            let parts = vec![layers / (stages * chunks); stages * chunks];
            set_split(settings, args, &parts, stages, args.name(CHUNKS));
        }
        // DeepSpeed's stages, whose files the folder does not have.
        None if counts_ends(args) && (layers + 2).is_multiple_of(stages) => {
            settings.set(SPLIT, "transformer_and_embedding", METHOD);
        }
        None => settings.set(SPLIT, "balanced", "the stages have different numbers of layers"),
    }
    Ok(())
}

fn set_split(
    settings: &mut Settings,
    args: &Arguments,
    parts: &[usize],
    stages: usize,
    from: &str,
) {
    if stages < 2 {
        return;
    }
    let chunks = parts.len() / stages;
    let mut sizes = parts.to_vec();
    if chunks > 1 && !parts.contains(&0) && takes_groups(settings, stages) {
        settings.set(SCHEDULE, "interleaved", args.name(CHUNKS));
        settings.set(CHUNKS, chunks, args.name(CHUNKS));
        let overlap = "topology.overlap_p2p";
        if args.is_set(overlap) {
            settings.set(overlap, true, args.name(overlap));
        }
    } else {
        sizes = (0..stages)
            .map(|stage| parts.iter().skip(stage).step_by(stages).sum())
            .collect();
    }
    let count = sizes.len();
    let all: usize = sizes.iter().sum();
    let is = |ranges: Vec<std::ops::Range<usize>>| {
        ranges
            .iter()
            .map(|range| range.len())
            .eq(sizes.iter().copied())
    };
    let even = all.is_multiple_of(count) && is(split::uniform(all, count));
    let ends = (all + 2).is_multiple_of(count) && is(split::with_ends(all, count));
    match (even, ends) {
        (true, true) if counts_ends(args) => {
            settings.set(SPLIT, "transformer_and_embedding", METHOD);
        }
        (true, _) => {}
        (false, true) => settings.set(SPLIT, "transformer_and_embedding", from),
        // gptrain's stages have a layer each.
        (false, false) if sizes.contains(&0) => settings.set(SPLIT, "balanced", from),
        (false, false) => {
            let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
            settings.set(SPLIT, format!("[{}]", sizes.join(", ")), from);
        }
    }
}

/// Whether every batch of the run is in groups of a micro-batch for each stage, which the interleaved
/// schedule takes.
fn takes_groups(settings: &Settings, stages: usize) -> bool {
    let count = |key: &str| settings.get(key)?.parse::<usize>().ok();
    let replicas = count("topology.data").unwrap_or(1);
    let group = count("batch.micro")
        .unwrap_or(1)
        .saturating_mul(replicas)
        .saturating_mul(stages);
    let ramp = settings.get("batch.ramp_up").unwrap_or_default();
    // Start and increment of the ramp; the samples that it takes do not matter.
    let sizes = ramp
        .split_whitespace()
        .take(2)
        .filter_map(|size| size.parse::<usize>().ok());
    count("batch.global")
        .into_iter()
        .chain(sizes)
        .all(|size| size.is_multiple_of(group))
}

/// Whether DeepSpeed counted embedding and head as layers.
fn counts_ends(args: &Arguments) -> bool {
    let method = args.get(METHOD);
    method.is_some_and(|method| {
        method
            .str()
            .is_ok_and(|method| method.contains("embedding"))
    })
}

/// Chunks of each stage, if the arguments have their number.
fn said_chunks(args: &Arguments) -> anyhow::Result<Option<usize>> {
    let chunks = args.optional_count(CHUNKS)?;
    Ok(chunks
        .map(|chunks| chunks as usize)
        .filter(|chunks| (2..=MAX_LAYERS).contains(chunks)))
}

/// Layers of each chunk of each stage by Megatron-Core's arguments, and the arguments; None if they say
/// nothing of it.
fn said_layers(
    args: &Arguments,
    layers: usize,
    stages: usize,
    chunks: usize,
) -> anyhow::Result<Option<(Vec<usize>, String)>> {
    if let Some(layout) = args.get(LAYOUT) {
        // Text, or the object that Megatron makes of it.
        let layout = layout.some("input_data").unwrap_or(layout);
        return layout_layers(args, layout.str()?, layers, stages);
    }
    let given = |names: [&'static str; 2]| {
        let name = names.into_iter().find(|name| args.get(name).is_some());
        let Some(name) = name else { return anyhow::Ok(None) };
        Ok(args
            .optional_count(name)?
            .map(|count| (name, count as usize)))
    };
    let first = given(FIRST)?;
    let last = given(LAST)?;
    let embedding = usize::from(args.is_set(EMBEDDING));
    let loss = usize::from(args.is_set(LOSS));
    let mut parts;
    let from;
    if first.is_some() || last.is_some() {
        let names: Vec<&str> = [first, last]
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
            .collect();
        from = names.join(", ");
        let ends = [first, last].map(|end| end.map(|(_, count)| count));
        parts = with_end_sizes(ends, layers, stages, chunks);
    } else if embedding + loss > 0 {
        parts = vec![(layers + embedding + loss) / (stages * chunks); stages * chunks];
        parts[0] = parts[0].saturating_sub(embedding);
        let end = parts.len() - 1;
        parts[end] = parts[end].saturating_sub(loss);
        let names = [(EMBEDDING, embedding), (LOSS, loss)];
        let set: Vec<&str> = names
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, _)| name)
            .collect();
        from = set.join(", ");
    } else {
        return Ok(None);
    }
    let held = parts
        .iter()
        .fold(0usize, |sum, size| sum.saturating_add(*size));
    if held == layers {
        return Ok(Some((parts, from)));
    }
    let cut = if chunks > 1 { format!(" of {chunks} chunks") } else { String::new() };
    Err(args.problem(format!(
        "args.{from} do not divide {} {layers} among {stages} stages{cut}",
        args.name("model.layers")
    )))
}

/// Layers of the parts if the first and the last stage have a number of their own.
fn with_end_sizes(
    [first, last]: [Option<usize>; 2],
    layers: usize,
    stages: usize,
    chunks: usize,
) -> Vec<usize> {
    let free = stages - [first, last].iter().flatten().count();
    let rest = layers.saturating_sub(first.unwrap_or(0).saturating_add(last.unwrap_or(0)));
    let mut sizes = vec![rest / free.max(1); stages];
    sizes[0] = first.unwrap_or(sizes[0]);
    sizes[stages - 1] = last.unwrap_or(sizes[stages - 1]);
    // Every chunk of a stage has the same share of its layers.
    let shares = sizes.iter().map(|size| size / chunks);
    shares.collect::<Vec<usize>>().repeat(chunks)
}

/// Layers of the parts of a layout in letters, `Et*3|(tt|)*29,m|L`: E the embedding, t a layer, L the loss.
fn layout_layers(
    args: &Arguments,
    layout: &str,
    layers: usize,
    stages: usize,
) -> anyhow::Result<Option<(Vec<usize>, String)>> {
    let parts = expand(layout).map(|letters| {
        let part = |letters: &str| letters.chars().filter(|letter| *letter == 't').count();
        letters.split('|').map(part).collect::<Vec<usize>>()
    });
    match parts {
        Some(parts)
            if parts.len().is_multiple_of(stages) && parts.iter().sum::<usize>() == layers =>
        {
            Ok(Some((parts, LAYOUT.to_string())))
        }
        _ => Err(args.problem(format!(
            "args.{LAYOUT} {:?} does not divide {} {layers} among {stages} stages",
            layout.chars().take(60).collect::<String>(),
            args.name("model.layers")
        ))),
    }
}

/// A layout without its repetitions, first `(…)*n`, then of one letter; None if it is not one.
fn expand(layout: &str) -> Option<String> {
    let mut whole = String::new();
    let mut rest = layout;
    while let Some((before, after)) = rest.split_once('(') {
        let (group, after) = after.split_once(')')?;
        let (count, after) = times(after)?;
        whole.push_str(before);
        if whole.len() + group.len().saturating_mul(count) > MAX_LETTERS {
            return None;
        }
        whole.push_str(&group.repeat(count));
        rest = after;
    }
    whole.push_str(rest);
    let mut letters = String::new();
    let mut rest = whole.as_str();
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        let count = if rest.starts_with('*') {
            let (count, after) = times(rest)?;
            rest = after;
            count
        } else {
            1
        };
        match letter {
            ',' => {}
            'E' | 'L' | 't' | '|' if letters.len().saturating_add(count) <= MAX_LETTERS => {
                letters.extend(std::iter::repeat_n(letter, count));
            }
            _ => return None,
        }
    }
    Some(letters)
}

/// The number of `*n` at the start of a text, and the text after it.
fn times(text: &str) -> Option<(usize, &str)> {
    let digits = text.strip_prefix('*')?;
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    Some((digits[..end].parse().ok()?, &digits[end..]))
}

#[cfg(test)]
mod tests;
