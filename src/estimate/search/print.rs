//! Prints the results of a search as text and as JSON.

use super::{Candidate, Planned, Ranking};
use crate::change::{layer_split_name, set_flags};
use crate::setup::{Moments, Program, Setup};
use crate::view::{GIB, Terms};
use crate::words::{self, span};
use base::Count;
use manifest::{Adam8bit, LayerSplit, Manifest, Model, OffloadWhat, Optimizer, Schedule};
use model::parameters;
use serde_json::{Value, json};
use std::fmt::Write;

/// The fewest devices.
pub fn fewest(m: &Manifest, found: &Candidate) -> (String, Value) {
    let s = &found.setup;
    let name = &m.name;
    let text = format!(
        "{name}: at least {} × {}: {:.1} GiB a device, {}\n  {}\n  {}\n",
        s.ranks(),
        s.hardware.name,
        found.bytes / GIB,
        bar(found),
        describe(s),
        flags(m, s).join("\n  ")
    );
    (text, json!({ "min_gpus": s.ranks(), "way": cut_json(m, found) }))
}

/// Time of a step: "a step 4.92 s ± 20 %".
fn bar(found: &Candidate) -> String {
    format!("a step {}", words::with_bar(found.seconds, found.seconds_error))
}

/// A cut's settings, two to a line.
fn flags(m: &Manifest, s: &Setup) -> Vec<String> {
    sets(m, s).chunks(2).map(set_flags).collect()
}

/// The largest model.
pub fn largest(m: &Manifest, devices: usize, found: &Candidate) -> (String, Value) {
    let model = &found.setup.model;
    let size = parameters(model);
    let text = format!(
        "{devices} × {} hold {:.1} B parameters: {} layers, hidden {}, feed-forward {}, {} heads;\n  \
         {:.1} GiB a device, {}: {}\n  {}\n",
        found.setup.hardware.name,
        size as f64 / 1e9,
        model.layers,
        model.hidden,
        model.ffn_hidden,
        model.heads,
        found.bytes / GIB,
        bar(found),
        describe(&found.setup),
        sized_sets(m, &found.setup)
            .chunks(2)
            .map(set_flags)
            .collect::<Vec<_>>()
            .join("\n  ")
    );
    let mut way = cut_json(m, found);
    way["set"] = flags_json(&sized_sets(m, &found.setup));
    let json = json!({
        "max_params": size, "layers": model.layers, "hidden": model.hidden,
        "ffn_hidden": model.ffn_hidden, "heads": model.heads, "way": way,
    });
    (text, json)
}

/// The best cuts of `devices`, and of fewer where that saves. `objective` is days, gpu-hours or money.
pub fn ranking(
    m: &Manifest,
    found: &Ranking,
    devices: usize,
    objective: &str,
    terms: &Terms,
) -> (String, Value) {
    let chosen = match objective {
        "days" => &found.best[0],
        _ => found
            .pareto
            .iter()
            .min_by(|a, b| a.days.device_hours().total_cmp(&b.days.device_hours()))
            .unwrap_or(&found.best[0]),
    };
    let (chosen, over) = within_budget(found, chosen, terms);
    let best = &chosen.candidate;
    let setup = &chosen.candidate.setup;
    let duration = terms.calendar_seconds(&chosen.days);
    let mut text = format!(
        "best by {objective}{over}: {} × {}, {}, {}{}\n  {}\n",
        chosen.days.devices,
        setup.hardware.name,
        bar(best),
        span(duration),
        terms.paid(&chosen.days),
        describe(setup)
    );
    for line in flags(m, setup) {
        text += &format!("  {line}\n");
    }
    for note in setup.hardware.notes(setup.program.name(), duration) {
        text += &format!("  {note}\n");
    }
    let smaller =
        if found.only_smaller { ", none without 8-bit moments or states on the host" } else { "" };
    let _ = writeln!(
        text,
        "\nof {} topologies over {devices} × {}{smaller}, the fastest through the whole run:",
        Count(found.cuts as u64),
        setup.hardware.name
    );
    text += &table(&found.best, terms);
    text += &ties(found);
    text +=
        "\nPareto: the best of each number of devices that is faster or cheaper than all others:\n";
    text += &table(&found.pareto, terms);
    let list = |all: &[Planned]| {
        all.iter()
            .map(|p| planned_json(m, p, terms))
            .collect::<Vec<_>>()
    };
    let json = json!({
        "objective": objective,
        "best": planned_json(m, chosen, terms),
        "only_smaller": found.only_smaller,
        "equal": found.equal,
        "ways": list(&found.best),
        "pareto": list(&found.pareto),
    });
    (text, json)
}

/// Line about the plans that count as equally fast, if there are several.
fn ties(found: &Ranking) -> String {
    let seconds = found.best.iter().map(|planned| planned.days.seconds);
    let fastest = seconds.fold(f64::INFINITY, f64::min);
    let slower = 100.0 * (found.best[0].days.seconds / fastest - 1.0);
    match found.equal {
        ..=1 => String::new(),
        equal => format!(
            "{equal} of these are equal within a tenth of the error bar; the simplest is first, \
             {slower:.1} % slower\n"
        ),
    }
}

/// Chosen plan, or the fastest within the budget if that differs; and a note about it.
fn within_budget<'a>(
    found: &'a Ranking,
    chosen: &'a Planned,
    terms: &Terms,
) -> (&'a Planned, String) {
    let Some(budget) = terms.budget else { return (chosen, String::new()) };
    let paid = |p: &&Planned| terms.cost(&p.days) <= budget;
    let limit = terms.money(budget);
    let plans = std::iter::once(chosen)
        .chain(&found.best)
        .chain(&found.pareto);
    match plans
        .filter(paid)
        .min_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds))
    {
        _ if paid(&chosen) => (chosen, format!(" for at most {limit}")),
        Some(cheaper) => (cheaper, format!(" for at most {limit}")),
        None => (chosen, format!(", above the budget of {limit}")),
    }
}

/// Heads and widths of columns. The last one is only for gptrain, left-aligned.
const COLUMNS: [(&str, usize); 13] = [
    ("GPUs", 6),
    ("TP", 4),
    ("PP", 4),
    ("DP", 5),
    ("micro", 6),
    ("ZeRO", 6),
    ("recompute", 11),
    ("GiB", 8),
    ("s/step", 9),
    ("TFLOPs", 8),
    ("time", 10),
    ("GPU-hours", 11),
    ("money", 11),
];

fn table(all: &[Planned], terms: &Terms) -> String {
    let mut out = line(&COLUMNS.map(|(head, _)| head.to_string()));
    out += "\n";
    for planned in all {
        out += &line(&row(planned, terms));
        out +=
            &extras(&planned.candidate.setup).map_or("\n".into(), |extras| format!("  {extras}\n"));
    }
    out
}

fn line(cells: &[String; COLUMNS.len()]) -> String {
    let columns = cells.iter().zip(COLUMNS);
    let padded = columns.map(|(cell, (_, width))| format!("{cell:>width$}"));
    format!("  {}", padded.collect::<String>())
}

fn row(p: &Planned, terms: &Terms) -> [String; COLUMNS.len()] {
    let c = &p.candidate;
    let s = &p.candidate.setup;
    let t = &s.topology;
    let hours = terms.device_hours(&p.days);
    let tflops = s.flops().1 / (c.seconds * s.ranks() as f64 * 1e12);
    [
        s.ranks().to_string(),
        t.tensor.to_string(),
        t.pipeline.to_string(),
        t.data.to_string(),
        s.micro.to_string(),
        t.zero.to_string(),
        t.recompute.name().to_string(),
        format!("{:.1}", c.bytes / GIB),
        format!("{:.*}", if c.seconds < 10.0 { 3 } else { 2 }, c.seconds),
        format!("{tflops:.1}"),
        words::short_span(terms.calendar_seconds(&p.days)),
        Count(hours as u64).to_string(),
        if terms.has_price() {
            Count(terms.cost(&p.days) as u64).to_string()
        } else {
            "–".to_string()
        },
    ]
}

/// Settings of gptrain's cut without their own column.
fn extras(s: &Setup) -> Option<String> {
    let t = &s.topology;
    let words = [
        t.sequence_parallel.then(|| "sequence parallel".to_string()),
        (t.chunks > 1).then(|| format!("{} chunks", t.chunks)),
        (t.layer_split != LayerSplit::Uniform)
            .then(|| layer_split_name(&t.layer_split).replace('_', " ")),
        (t.offload.what != OffloadWhat::None).then(|| format!("offload {}", t.offload.what.name())),
        (s.moments == Moments::Adam8bit).then(|| "8-bit moments".to_string()),
        t.compression.map(|_| "PowerSGD".to_string()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (s.program == Program::Gptrain && !words.is_empty()).then(|| words.join(", "))
}

/// A cut in words.
pub fn describe(s: &Setup) -> String {
    let t = &s.topology;
    let more = match extras(s) {
        Some(extras) => format!(", {extras}"),
        None if t.chunks > 1 => format!(", {} chunks", t.chunks),
        None => String::new(),
    };
    format!(
        "TP {} × PP {} × DP {}, micro-batch {}, ZeRO-{}, recompute {}{more}",
        t.tensor,
        t.pipeline,
        t.data,
        s.micro,
        t.zero,
        t.recompute.name()
    )
}

/// Settings of `m` for a cut of it, as for `--set`.
pub fn sets(m: &Manifest, s: &Setup) -> Vec<String> {
    let t = &s.topology;
    let keys = [
        ("topology.tensor", t.tensor.to_string()),
        ("topology.pipeline", t.pipeline.to_string()),
        ("topology.data", t.data.to_string()),
        ("topology.zero", t.zero.to_string()),
        ("topology.recompute", t.recompute.name().to_string()),
        ("topology.layer_split", layer_split_name(&t.layer_split).to_string()),
        ("batch.micro", s.micro.to_string()),
        ("topology.sequence_parallel", t.sequence_parallel.to_string()),
        ("topology.schedule", t.schedule.name().to_string()),
    ];
    let mut sets: Vec<String> = keys
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    match (m.topology.schedule, t.schedule) {
        (_, Schedule::Interleaved) => sets.push(format!("topology.chunks={}", t.chunks)),
        (Schedule::Interleaved, _) => sets.push("topology.chunks=null".to_string()),
        _ => {}
    }
    if s.program == Program::Gptrain {
        if t.offload.what != m.topology.offload.what {
            sets.push(format!("topology.offload.what={}", t.offload.what.name()));
        }
        if t.compression != m.topology.compression {
            sets.push("topology.compression=powersgd".to_string());
        }
        if let (Optimizer::AdamW(rule), Moments::Adam8bit) = (&m.optimizer, s.moments) {
            sets.push(Adam8bit::from_adamw(*rule).to_set());
        }
    }
    sets
}

/// Settings of `m` for a model of another size and a cut of it.
pub fn sized_sets(m: &Manifest, s: &Setup) -> Vec<String> {
    let Model { layers, hidden, heads, ffn_hidden, .. } = s.model;
    let mut all = vec![
        format!("model.layers={layers}"),
        format!("model.hidden={hidden}"),
        format!("model.heads={heads}"),
        format!("model.ffn_hidden={ffn_hidden}"),
    ];
    let or_null = |size: Option<usize>| size.map_or("null".to_string(), |size| size.to_string());
    for (key, before, now) in [
        ("model.kv_heads", m.model.kv_heads, s.model.kv_heads),
        ("model.head_dim", m.model.head_dim, s.model.head_dim),
    ] {
        if before.is_some() || now.is_some() {
            all.push(format!("{key}={}", or_null(now)));
        }
    }
    all.extend(sets(m, s));
    all
}

fn cut_json(m: &Manifest, c: &Candidate) -> Value {
    let s = &c.setup;
    let t = &c.setup.topology;
    json!({
        "tensor": t.tensor, "pipeline": t.pipeline, "data": t.data, "micro_batch": s.micro,
        "zero": t.zero, "recompute": t.recompute.name(), "set": flags_json(&sets(m, s)),
        "offload": t.offload.what.name(), "adam8bit": s.moments == Moments::Adam8bit,
        "powersgd": t.compression.is_some(),
        "sec_per_iter": c.seconds, "sec_error": c.seconds_error, "mem_gib": c.bytes / GIB,
    })
}

/// Settings as flags.
pub fn flags_json(sets: &[String]) -> Value {
    sets.iter().map(|set| format!("--set {set}")).collect()
}

fn planned_json(m: &Manifest, p: &Planned, terms: &Terms) -> Value {
    let mut cut = cut_json(m, &p.candidate);
    let hours = terms.device_hours(&p.days);
    cut["gpus"] = json!(p.days.devices);
    cut["days"] = json!(terms.calendar_days(&p.days));
    cut["gpu_hours"] = json!(hours);
    cut["money"] = json!(terms.cost(&p.days));
    cut
}
