//! A search's findings as text and as JSON.

use super::{Candidate, Planned, Ranking, Search};
use crate::base::Count;
use crate::estimate::change::split_word;
use crate::estimate::setup::{Program, Setup};
use crate::estimate::view::Terms;
use crate::manifest::LayerSplit;
use crate::model::parameters;
use serde_json::{Value, json};
use std::fmt::Write;

/// The fewest devices.
pub fn fewest(name: &str, found: &Candidate) -> (String, Value) {
    let s = &found.setup;
    let text = format!("{name}: at least {} × {}: {}\n", s.ranks(), s.hardware.name, way(s));
    (text, json!({ "min_gpus": s.ranks(), "way": way_json(found) }))
}

/// The largest model.
pub fn largest(devices: usize, found: &Candidate) -> (String, Value) {
    let model = &found.setup.model;
    let size = parameters(model);
    let text = format!(
        "{devices} × {} hold {:.1} B parameters: {} layers, hidden {}, {} heads: {}\n",
        found.setup.hardware.name,
        size as f64 / 1e9,
        model.layers,
        model.hidden,
        model.heads,
        way(&found.setup)
    );
    let json = json!({
        "max_params": size, "layers": model.layers, "hidden": model.hidden,
        "heads": model.heads, "way": way_json(found),
    });
    (text, json)
}

/// The best cuts of `devices`, and of fewer where that saves. `objective` is days, gpu-hours or money.
pub fn ranking(
    search: &Search,
    found: &Ranking,
    devices: usize,
    objective: &str,
    terms: &Terms,
) -> (String, Value) {
    let name = &search.setup.hardware.name;
    let mut text = format!(
        "{} ways fit on {devices} × {name}; the fastest through the whole run:\n",
        found.fitting
    );
    text += &table(&found.best, terms);
    text +=
        "\nPareto: the best of each number of devices that is faster or cheaper than all others:\n";
    text += &table(&found.pareto, terms);
    let by_hours =
        |a: &&Planned, b: &&Planned| a.days.device_hours().total_cmp(&b.days.device_hours());
    let chosen = match objective {
        "days" => &found.best[0],
        _ => found.pareto.iter().min_by(by_hours).unwrap_or(&found.best[0]),
    };
    let setup = &chosen.candidate.setup;
    let _ =
        writeln!(text, "\nBest by {objective}: {} devices, {}", chosen.days.devices, way(setup));
    for pair in sets(setup).chunks(2) {
        let flags: Vec<String> = pair.iter().map(|set| format!("--set {set}")).collect();
        let _ = writeln!(text, "  {}", flags.join(" "));
    }
    let list = |all: &[Planned]| all.iter().map(|p| planned_json(p, terms)).collect::<Vec<_>>();
    let json = json!({
        "objective": objective,
        "best": planned_json(chosen, terms),
        "ways": list(&found.best),
        "pareto": list(&found.pareto),
    });
    (text, json)
}

/// Heads and widths of columns. The last is gptrain's alone, on the left.
const COLUMNS: [(&str, usize); 13] = [
    ("GPUs", 6),
    ("TP", 4),
    ("PP", 4),
    ("DP", 5),
    ("micro", 6),
    ("ZeRO", 6),
    ("recompute", 11),
    ("GB", 8),
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
        format!("{:.1}", c.gigabytes),
        format!("{:.2}", c.seconds),
        format!("{tflops:.1}"),
        format!("{:.1}", p.days.days() / terms.availability),
        Count(hours as u64).to_string(),
        Count((hours * terms.price) as u64).to_string(),
    ]
}

/// What gptrain's cut has that no column tells.
fn with(s: &Setup) -> Option<String> {
    let t = &s.topology;
    let words = [
        t.sequence_parallel.then(|| "sequence parallel".to_string()),
        (t.chunks > 1).then(|| format!("{} chunks", t.chunks)),
        (t.layer_split != LayerSplit::Uniform)
            .then(|| split_word(&t.layer_split).replace('_', " ")),
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

/// The manifest's settings for a cut, as `--set` takes them.
pub fn sets(s: &Setup) -> Vec<String> {
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
    if s.program == Program::Gptrain {
        all.push(format!("topology.sequence_parallel={}", t.sequence_parallel));
        all.push(format!("topology.schedule={}", t.schedule.name()));
        if t.chunks > 1 {
            all.push(format!("topology.chunks={}", t.chunks));
        }
    }
    all
}

fn way_json(c: &Candidate) -> Value {
    let (s, t) = (&c.setup, &c.setup.topology);
    let flags: Vec<String> = sets(s).iter().map(|set| format!("--set {set}")).collect();
    json!({
        "tensor": t.tensor, "pipeline": t.pipeline, "data": t.data, "micro_batch": s.micro,
        "zero": t.zero, "recompute": t.recompute.name(), "set": flags,
        "sec_per_iter": c.seconds, "sec_error": c.seconds_error, "mem_gb": c.gigabytes,
    })
}

fn planned_json(p: &Planned, terms: &Terms) -> Value {
    let mut way = way_json(&p.candidate);
    let hours = p.days.device_hours() / terms.availability;
    way["gpus"] = json!(p.days.devices);
    way["days"] = json!(p.days.days() / terms.availability);
    way["gpu_hours"] = json!(hours);
    way["money"] = json!(hours * terms.price);
    way
}
