//! Distributed checkpoints of other programs: a file of the user says what each tensor is (`--names`), the
//! tensors' shapes make the model's settings, and the user is asked for the others.

use super::super::compare::Comparison;
use super::super::detect::Format;
use super::super::run::{ForeignRun, Layout, ParamTable, PartReader, Piece, Put, Source, Stored};
use super::super::settings::{Settings, asked, wanted_settings};
use super::super::{AdamState, Choices, RunDescription};
use super::metadata::Metadata;
use super::names_file::{NamesFile, Target};
use crate::tensor_part::{Fused, ParamKey};
use crate::torch::Element;
use base::Problems;
use model::{Param, Weight};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Tensors in one message, at most.
const LISTED: usize = 8;

/// Tensors of the folder by the parameters that they hold.
struct Matched {
    table: ParamTable,
    /// Shape of each part of a parameter.
    shapes: BTreeMap<(ParamKey, Piece), Vec<usize>>,
    /// Names of the weights.
    names: BTreeSet<String>,
}

/// Reader of the tensors that lines name.
struct GivenReader {
    meta: Metadata,
    names: NamesFile,
}

pub fn open(
    step: &Path,
    meta: Metadata,
    file: &Path,
    choices: &Choices,
) -> anyhow::Result<ForeignRun> {
    let names = NamesFile::read(file)?;
    let matched = match_tensors(&meta, &names)?;
    let trainer = format!("PyTorch distributed checkpoint, by {}", names.place);
    let mut found = RunDescription::new(Format::PytorchDcp, trainer, step);
    found.grid[2] = meta.writers();
    found.step = step_of(&meta, &names, step)?;
    set_model(&mut found.settings, &matched, choices)?;
    find_states(&mut found, &meta, &names, &matched)?;
    found.wanted = wanted_settings(&found.settings, &choices.sets, |_| "not in its files".into());
    let rotates = found.settings.get("model.position").is_none();
    found
        .wanted
        .retain(|row| rotates || row.key != "model.position.rope.theta");
    let count = |key: &str| asked(&choices.sets, key).and_then(|text| text.parse::<u64>().ok());
    if let (Some(global), Some(length)) = (count("batch.global"), count("model.seq_len")) {
        found.samples = found.step.saturating_mul(global);
        found.tokens = found.samples.saturating_mul(length);
    }
    found.notes.push(
        "AdamW's numbers, the precision and the order of samples are not in the files: compare those of the \
         manifest with the program's"
            .into(),
    );
    let layout =
        Layout { ranks: 1, fused: Fused::Heads(names.pairs), gated: false, less_one: false };
    let remedy = "is the file that of this model?";
    let comparison = Comparison::new(meta.place(), "the model", remedy);
    let reader = GivenReader { meta, names };
    let mut run = ForeignRun::new(found, matched.table, reader, layout);
    run.comparison = comparison;
    Ok(run)
}

/// Finds each tensor's line; an error lists tensors without one, and lines without a tensor.
fn match_tensors(meta: &Metadata, names: &NamesFile) -> anyhow::Result<Matched> {
    let mut matched =
        Matched { table: ParamTable::default(), shapes: BTreeMap::new(), names: BTreeSet::new() };
    let mut problems = Problems::default();
    let mut used = BTreeSet::new();
    for (name, entry) in &meta.tensors {
        let mut lines = names
            .rules
            .iter()
            .filter_map(|rule| Some((rule, rule.param(name)?)));
        let Some((rule, (key, piece))) = lines.next() else { continue };
        used.insert(rule.line);
        let shape = entry.shape.clone();
        let twice = lines.next().map(|(other, _)| other.line);
        if let Some(other) = twice {
            let place = format!("{}:{other}", names.place);
            let what = format!("{name} is that of line {} too", rule.line);
            problems.add(place, what, "leave one of the lines out");
        }
        if matched.shapes.insert((key, piece), shape.clone()).is_some() {
            let place = format!("{}:{}", names.place, rule.line);
            let what = format!("{name} is a parameter that another tensor is too");
            problems.add(place, what, "give each part of a parameter one tensor");
        }
        matched.names.insert(name.clone());
        let source = Source { name: name.clone(), shape, ..Source::default() };
        let stored = Stored { source, piece, states: &AdamState::ALL };
        matched.table.stored.entry(key).or_default().push(stored);
    }
    let mut left = Vec::new();
    for name in meta.names() {
        let mut known = matched.names.contains(name);
        for rule in &names.rules {
            let here = match (rule.placeholder(name), rule.target) {
                (None, _) | (_, Target::Param(..)) => false,
                (Some(text), Target::Moment(_)) => matched.names.contains(text),
                (Some(text), Target::Updates) => text.is_empty() || matched.names.contains(text),
                (Some(_), Target::Step | Target::LeftOut) => true,
            };
            if here {
                used.insert(rule.line);
                known = true;
            }
        }
        if !known && meta.tensors.contains_key(name) {
            left.push(name);
        }
    }
    for name in left.iter().take(LISTED) {
        let more = left.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" ({more} more such tensors)") } else { String::new() };
        let remedy = format!("add `{name} -> PARAMETER`, or `{name} -> -` to leave it out");
        problems.add(names.place.clone(), format!("has no line for {name}{more}"), remedy);
    }
    for rule in names.rules.iter().filter(|rule| !used.contains(&rule.line)) {
        let place = format!("{}:{}", names.place, rule.line);
        problems.add(
            place,
            "is the name of nothing in the folder",
            "correct the line, or remove it",
        );
    }
    problems.list.truncate(LISTED);
    Ok(problems.or(matched)?)
}

/// The step: what a line names, or the number at the end of the folder's name.
fn step_of(meta: &Metadata, names: &NamesFile, dir: &Path) -> anyhow::Result<u64> {
    if let Some(rule) = names.rules(Target::Step).next()
        && let Some(step) = meta.count(&rule.fill(""))?
    {
        return Ok(step);
    }
    let name = dir
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let start = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    if let Ok(step) = name[start..].parse() {
        return Ok(step);
    }
    Err(Problems::one(
        names.place.clone(),
        format!("has no line for the step, and the folder's name {name:?} does not end with it"),
        "add `NAME -> step`, or name the folder step-N",
    )
    .into())
}

/// Settings of the model, by the tensors that are there and their shapes.
fn set_model(settings: &mut Settings, matched: &Matched, choices: &Choices) -> anyhow::Result<()> {
    let has = |weight| {
        matched
            .shapes
            .keys()
            .any(|((known, _), _)| *known == weight)
    };
    let layers = matched
        .shapes
        .keys()
        .filter_map(|((_, layer), _)| *layer)
        .max();
    let layers = layers.map_or(0, |last| last.saturating_add(1));
    let shape = |weight, piece| {
        let mut found = matched
            .shapes
            .iter()
            .filter(|((key, held), _)| key.0 == weight && *held == piece);
        found.next().map(|(_, shape)| shape.clone())
    };
    let embedding = shape(Weight::TokenEmbed, Piece::All);
    let Some([vocab, hidden]) = embedding.as_deref() else {
        return Err(Problems::one(
            "--names",
            format!("embed.token is {embedding:?}, not a matrix of the folder"),
            "add the line of the embedding",
        )
        .into());
    };
    let family = match (has(Weight::PosEmbed), has(Weight::EmbedLnScale), has(Weight::QNorm)) {
        (true, ..) => "gpt2",
        (_, true, _) => "bloom",
        (.., true) => "qwen3",
        _ => "llama",
    };
    settings.set("model.family", family, "the parameters of the lines");
    settings.set("model.layers", layers, "the tensors' names");
    settings.set("model.hidden", hidden, "embed.token");
    settings.set("model.vocab", vocab, "embed.token");
    settings.set("model.vocab_multiple", 1, "every row of embed.token is kept");
    if let Some(rows) = shape(Weight::PosEmbed, Piece::All).and_then(|shape| shape.first().copied())
    {
        settings.set("model.position", "learned", "embed.position");
        settings.set("model.positions", rows, "embed.position");
    }
    let norm = if has(Weight::Ln1Shift) { "layer" } else { "rms" };
    settings.set("model.norm", norm, "whether norms have a shift");
    let bias = match (has(Weight::Fc1B), has(Weight::ProjB), has(Weight::QkvB)) {
        (true, ..) => "all",
        (_, true, _) => "attention",
        (.., true) => "qkv",
        _ => "none",
    };
    settings.set("model.bias", bias, "the biases of the lines");
    let gates = shape(Weight::Fc1W, Piece::Half(0));
    let both = shape(Weight::Fc1W, Piece::Halves);
    let whole = shape(Weight::Fc1W, Piece::All);
    let gated = whole.is_none() || asked(&choices.sets, "model.ffn") == Some("swiglu");
    let rows = gates
        .or(both.clone())
        .or(whole.clone())
        .and_then(|shape| shape.first().copied());
    let halved = both.is_some() || whole.is_some() && gated;
    if let Some(rows) = rows {
        settings.set("model.ffn_hidden", if halved { rows / 2 } else { rows }, "mlp.fc1.weight");
    }
    settings.set("model.ffn", if gated { "swiglu" } else { "gelu" }, "parts of mlp.fc1.weight");
    let tied = !has(Weight::HeadW);
    settings.set("model.tied_head", tied, "whether there is a head.weight");
    settings.set("precision", "bf16", "");
    settings.set("batch.micro", 1, "");
    set_heads(settings, matched, *hidden, choices)
}

/// Heads of keys and their width, if the user gives the number of heads.
fn set_heads(
    settings: &mut Settings,
    matched: &Matched,
    hidden: usize,
    choices: &Choices,
) -> anyhow::Result<()> {
    let count = |key: &str| asked(&choices.sets, key).and_then(|text| text.parse::<usize>().ok());
    let Some(heads) = count("model.heads").filter(|heads| *heads > 0) else { return Ok(()) };
    let shape = |weight, piece| {
        let mut found = matched.shapes.iter();
        found
            .find(|(((known, _), held), _)| *known == weight && *held == piece)
            .map(|(_, shape)| shape.clone())
    };
    let rows = |piece| shape(Weight::QkvW, piece).and_then(|shape| shape.first().copied());
    // The product after attention has a column for each of its numbers.
    let width = shape(Weight::ProjW, Piece::All).and_then(|shape| shape.get(1).copied());
    let dim = (width.unwrap_or(hidden) / heads).max(1);
    let kv = match rows(Piece::Kind(1)) {
        Some(keys) => keys / dim,
        None => {
            let rows = rows(Piece::All).or(rows(Piece::Kinds)).unwrap_or(0);
            (rows / dim).saturating_sub(heads) / 2
        }
    };
    if kv > 0 && kv != heads {
        settings.set("model.kv_heads", kv, "rows of attn.qkv.weight");
    }
    if dim * heads != hidden {
        settings.set("model.head_dim", dim, "columns of attn.proj.weight / heads");
    }
    Ok(())
}

/// Finds the moments and Adam's count, or notes why the optimizer restarts.
fn find_states(
    found: &mut RunDescription,
    meta: &Metadata,
    names: &NamesFile,
    matched: &Matched,
) -> anyhow::Result<()> {
    let moments = [AdamState::FirstMoment, AdamState::SecondMoment];
    let rules = moments.map(|state| names.rules(Target::Moment(state)).next());
    let lines: Vec<usize> = rules.iter().flatten().map(|rule| rule.line).collect();
    match lines[..] {
        [] => {
            let why = format!("{} has no lines for the moments", names.place);
            found.restart_optimizer(why);
            return Ok(());
        }
        [line] => {
            let what = "there is no line of the other moment".to_string();
            return Err(names.problem(line, what, "add it, or remove this one"));
        }
        _ => {}
    }
    let mut updates: Option<(String, u64)> = None;
    for rule in names.rules(Target::Updates) {
        for name in &matched.names {
            let key = rule.fill(if rule.has_placeholder() { name } else { "" });
            let Some(count) = meta.count(&key)? else { continue };
            match &updates {
                Some((first, known)) if *known != count => {
                    let what = format!("{key} is {count}, {first} is {known}");
                    return Err(names.problem(rule.line, what, "all parameters have one count"));
                }
                Some(_) => {}
                None => updates = Some((key, count)),
            }
        }
    }
    found.updates = updates.map_or(found.step, |(_, count)| count);
    found.note_updates();
    Ok(())
}

impl GivenReader {
    /// Name of a state of a weight.
    fn key(&self, name: &str, state: AdamState) -> String {
        if state == AdamState::Master {
            return name.to_string();
        }
        let rule = self.names.rules(Target::Moment(state)).next();
        rule.map_or_else(String::new, |rule| rule.fill(name))
    }
}

impl PartReader for GivenReader {
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()> {
        let key = self.key(&source.name, state);
        self.meta.each_rectangle(&key, None, &source.shape, put)
    }

    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element> {
        self.meta.element(&self.key(&source.name, state))
    }

    fn compare(&self, source: &Source, state: AdamState, shape: &[usize], into: &mut Comparison) {
        self.meta
            .compare(&self.key(&source.name, state), shape, into);
    }

    fn name(&self, param: &Param, _: AdamState) -> Option<String> {
        Some(format!("line for {} in {}", param.name, self.names.place))
    }
}
