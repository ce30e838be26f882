//! Prints the results of a search as text and as JSON.

use super::{Candidate, Planned, Ranking};
use crate::change::{flags_of, split_word};
use crate::setup::{Moments, Program, Setup};
use crate::view::{GIB, Terms};
use crate::words::{self, span};
use base::{Count, Seconds};
use manifest::{Adam8bit, LayerSplit, Manifest, OffloadWhat, Optimizer};
use model::parameters;
use serde_json::{Value, json};
use std::fmt::Write;

/// The fewest devices.
pub fn fewest(m: &Manifest, found: &Candidate) -> (String, Value) {
    let (s, name) = (&found.setup, &m.name);
    let text = format!(
        "{name}: at least {} × {}: {:.1} GiB a device, {}\n  {}\n  {}\n",
        s.ranks(),
        s.hardware.name,
        found.bytes / GIB,
        bar(found),
        way(s),
        flags(m, s).join("\n  ")
    );
    (text, json!({ "min_gpus": s.ranks(), "way": way_json(m, found) }))
}

/// Time of a step: "a step 4.92 s ± 20 %".
fn bar(found: &Candidate) -> String {
    format!("a step {} {}", Seconds(found.seconds), words::bar(found.seconds_error))
}

/// A cut's settings, two to a line.
fn flags(m: &Manifest, s: &Setup) -> Vec<String> {
    sets(m, s).chunks(2).map(flags_of).collect()
}

/// The largest model.
pub fn largest(m: &Manifest, devices: usize, found: &Candidate) -> (String, Value) {
    let model = &found.setup.model;
    let size = parameters(model);
    let text = format!(
        "{devices} × {} hold {:.1} B parameters: {} layers, hidden {}, feed-forward {}, {} heads;\n  \
         {:.1} GiB a device, {}: {}\n",
        found.setup.hardware.name,
        size as f64 / 1e9,
        model.layers,
        model.hidden,
        model.ffn_hidden,
        model.heads,
        found.bytes / GIB,
        bar(found),
        way(&found.setup)
    );
    let json = json!({
        "max_params": size, "layers": model.layers, "hidden": model.hidden,
        "ffn_hidden": model.ffn_hidden, "heads": model.heads, "way": way_json(m, found),
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
    let by_hours =
        |a: &&Planned, b: &&Planned| a.days.device_hours().total_cmp(&b.days.device_hours());
    let chosen = match objective {
        "days" => &found.best[0],
        _ => found.pareto.iter().min_by(by_hours).unwrap_or(&found.best[0]),
    };
    let (chosen, over) = within_budget(found, chosen, terms);
    let (best, setup) = (&chosen.candidate, &chosen.candidate.setup);
    let mut text = format!(
        "best by {objective}{over}: {} × {}, {}, {}, {}\n  {}\n",
        chosen.days.devices,
        setup.hardware.name,
        bar(best),
        span(chosen.days.seconds / terms.availability),
        words::money(terms.currency, money(chosen, terms)),
        way(setup)
    );
    flags(m, setup).iter().for_each(|line| text += &format!("  {line}\n"));
    let span = chosen.days.seconds / terms.availability;
    for note in setup.hardware.notes(setup.program.name(), span) {
        text += &format!("  {note}\n");
    }
    let smaller = match found.only_smaller {
        true => ", none without 8-bit moments or states on the host",
        false => "",
    };
    let _ = writeln!(
        text,
        "\nof {} topologies over {devices} × {}{smaller}, the fastest through the whole run:",
        Count(found.cuts as u64),
        setup.hardware.name
    );
    text += &table(&found.best, terms);
    text +=
        "\nPareto: the best of each number of devices that is faster or cheaper than all others:\n";
    text += &table(&found.pareto, terms);
    let list = |all: &[Planned]| all.iter().map(|p| planned_json(m, p, terms)).collect::<Vec<_>>();
    let json = json!({
        "objective": objective,
        "best": planned_json(m, chosen, terms),
        "only_smaller": found.only_smaller,
        "ways": list(&found.best),
        "pareto": list(&found.pareto),
    });
    (text, json)
}

/// Chosen plan, or the fastest within the budget if that differs; and a note about it.
fn within_budget<'a>(
    found: &'a Ranking,
    chosen: &'a Planned,
    terms: &Terms,
) -> (&'a Planned, String) {
    let Some(budget) = terms.budget else { return (chosen, String::new()) };
    let paid = |p: &&Planned| money(p, terms) <= budget;
    let all = std::iter::once(chosen).chain(&found.best).chain(&found.pareto);
    match all.filter(paid).min_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds)) {
        _ if paid(&chosen) => {
            (chosen, format!(" for at most {}", words::money(terms.currency, budget)))
        }
        Some(cheaper) => {
            (cheaper, format!(" for at most {}", words::money(terms.currency, budget)))
        }
        None => (chosen, format!(", above the budget of {}", words::money(terms.currency, budget))),
    }
}

fn money(p: &Planned, terms: &Terms) -> f64 {
    p.days.device_hours() / terms.availability * terms.price
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
    ("days", 8),
    ("GPU-hours", 13),
    ("money", 11),
];

fn table(all: &[Planned], terms: &Terms) -> String {
    let mut out = line(&COLUMNS.map(|(head, _)| head.to_string()));
    out += "\n";
    for planned in all {
        out += &line(&row(planned, terms));
        out += &with(&planned.candidate.setup).map_or("\n".into(), |with| format!("  {with}\n"));
    }
    out
}

fn line(cells: &[String; COLUMNS.len()]) -> String {
    let columns = cells.iter().zip(COLUMNS);
    let padded = columns.map(|(cell, (_, width))| format!("{cell:>width$}"));
    format!("  {}", padded.collect::<String>())
}

fn row(p: &Planned, terms: &Terms) -> [String; COLUMNS.len()] {
    let (c, s) = (&p.candidate, &p.candidate.setup);
    let t = &s.topology;
    let hours = p.days.device_hours() / terms.availability;
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
        format!("{:.1}", p.days.days() / terms.availability),
        Count(hours as u64).to_string(),
        Count((hours * terms.price) as u64).to_string(),
    ]
}

/// Settings of gptrain's cut without their own column.
fn with(s: &Setup) -> Option<String> {
    let t = &s.topology;
    let words = [
        t.sequence_parallel.then(|| "sequence parallel".to_string()),
        (t.chunks > 1).then(|| format!("{} chunks", t.chunks)),
        (t.layer_split != LayerSplit::Uniform)
            .then(|| split_word(&t.layer_split).replace('_', " ")),
        (t.offload.what != OffloadWhat::None).then(|| format!("offload {}", t.offload.what.name())),
        (s.moments == Moments::Adam8bit).then(|| "8-bit moments".to_string()),
        t.compression.map(|_| "PowerSGD".to_string()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (s.program == Program::Gptrain && !words.is_empty()).then(|| words.join(", "))
}

/// A cut in words.
pub fn way(s: &Setup) -> String {
    let t = &s.topology;
    let more = match with(s) {
        Some(with) => format!(", {with}"),
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
        ("topology.layer_split", split_word(&t.layer_split).to_string()),
        ("batch.micro", s.micro.to_string()),
    ];
    let mut all: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
    all.push(format!("topology.sequence_parallel={}", t.sequence_parallel));
    all.push(format!("topology.schedule={}", t.schedule.name()));
    if t.chunks > 1 {
        all.push(format!("topology.chunks={}", t.chunks));
    }
    if s.program == Program::Gptrain {
        if t.offload.what != m.topology.offload.what {
            all.push(format!("topology.offload={}", t.offload.what.name()));
        }
        if t.compression != m.topology.compression {
            all.push("topology.compression=powersgd".to_string());
        }
        if let (Optimizer::AdamW(rule), Moments::Adam8bit) = (&m.optimizer, s.moments) {
            all.push(Adam8bit::of(*rule).set());
        }
    }
    all
}

fn way_json(m: &Manifest, c: &Candidate) -> Value {
    let (s, t) = (&c.setup, &c.setup.topology);
    let flags: Vec<String> = sets(m, s).iter().map(|set| format!("--set {set}")).collect();
    json!({
        "tensor": t.tensor, "pipeline": t.pipeline, "data": t.data, "micro_batch": s.micro,
        "zero": t.zero, "recompute": t.recompute.name(), "set": flags,
        "offload": t.offload.what.name(), "adam8bit": s.moments == Moments::Adam8bit,
        "powersgd": t.compression.is_some(),
        "sec_per_iter": c.seconds, "sec_error": c.seconds_error, "mem_gib": c.bytes / GIB,
    })
}

fn planned_json(m: &Manifest, p: &Planned, terms: &Terms) -> Value {
    let mut way = way_json(m, &p.candidate);
    let hours = p.days.device_hours() / terms.availability;
    way["gpus"] = json!(p.days.devices);
    way["days"] = json!(p.days.days() / terms.availability);
    way["gpu_hours"] = json!(hours);
    way["money"] = json!(hours * terms.price);
    way
}
