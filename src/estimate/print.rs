//! Prints an estimate as text of at most 100 columns, and as JSON.

use super::change::flag_lines;
use super::days::{Days, Segment};
use super::deepspeed::states;
use super::gptrain::advisor::{self, Advisor};
use super::gptrain::prices::TRAFFIC;
use super::gptrain::{compression, remedies};
use super::rates::simple_days;
use super::view::{GIB, Terms, View};
use super::words::{self, hours, size, span};
use base::Count;
use serde_json::{Value, json};
use std::fmt::Write;

const MIB: f64 = 1048576.0;

/// The whole table.
pub fn text(v: &View) -> String {
    let s = &v.setup;
    let t = &v.setup.topology;
    let mut out = headline(v);
    out += &format!(
        "\n{} as {} on {} × {}\nTP {} × PP {} × DP {}, ZeRO-{}, micro-batch {}, batch {}\n",
        v.name,
        v.program,
        s.ranks(),
        s.hardware.name,
        t.tensor,
        t.pipeline,
        t.data,
        t.zero,
        s.micro,
        s.global
    );
    let blocks = v.setup.counts.block * (t.tensor * s.model.layers) as f64;
    let _ = writeln!(
        out,
        "\nParameters  {} ({}, {} in the layers); vocabulary padded to {}",
        Count(v.parameters),
        size(v.parameters as f64),
        size(blocks),
        Count(s.model.vocab_padded as u64)
    );
    out += &memory(v);
    out += &sends(v);
    out += &time(v);
    out += &rates(v);
    out += &days(v);
    out
}

/// Summary: "fits: 43.3 of 79.2 GiB; a step 4.9 s ± 20 %; 27.1 days, $145,875".
pub fn headline(v: &View) -> String {
    let host = if v.fits_host() {
        String::new()
    } else {
        format!(", {:.0} of {:.0} GiB of its node's", v.host_needed / GIB, v.host_capacity / GIB)
    };
    let memory = |bytes: f64| match v.capacity {
        GIB.. => format!("{:.1}", bytes / GIB),
        _ => format!("{:.3}", bytes / GIB),
    };
    let mut out = format!(
        "{}: {} of {} GiB{host}; a step {}; {}{}\n",
        fit_words(v.fits_all()),
        memory(v.reserved),
        memory(v.capacity),
        words::with_bar(v.seconds, v.seconds_error),
        span(v.terms.calendar_seconds(&v.days)),
        v.terms.paid(&v.days),
    );
    for note in v
        .setup
        .hardware
        .notes(v.program, v.terms.calendar_seconds(&v.days))
    {
        out += &format!("  {note}\n");
    }
    out
}

/// Memory table, a row per stage.
fn memory(v: &View) -> String {
    let names = v.stages[0].terms.iter().map(|(name, _)| match *name {
        "library workspace" => "library",
        name => name,
    });
    let (unit, called, params, thousands) = match v.needed {
        GIB.. => (GIB, "GiB", 1e9, "params B"),
        _ => (MIB, "MiB", 1e6, "params M"),
    };
    let head = ["stage", "layers", thousands]
        .into_iter()
        .chain(names)
        .chain(["sum"]);
    let rows = v.stages.iter().enumerate().map(|(i, stage)| {
        let counts = [i.to_string(), stage.layers.to_string()];
        let parameters = format!("{:.3}", stage.parameters / params);
        let terms = stage
            .terms
            .iter()
            .map(|(_, bytes)| *bytes)
            .chain([stage.bytes()])
            .map(|bytes| format!("{:.2}", bytes / unit));
        counts
            .into_iter()
            .chain([parameters])
            .chain(terms)
            .collect::<Vec<_>>()
    });
    let rows: Vec<_> = [head.map(str::to_string).collect()]
        .into_iter()
        .chain(rows)
        .collect();
    let mut out = format!("\nMemory of a rank, {called}\n{}", words::table(&rows, 0));
    out += &deepspeed(v);
    let (stage, term) = v.peak();
    let [least, most] = words::range(v.reserved / unit, v.reserved_error);
    let bar = match v.reserved_error {
        0.0 => String::new(),
        error if words::is_wide(error) => format!(" ({least:.1} to {most:.1})"),
        error => format!(" {}", words::bar(error)),
    };
    let _ = writeln!(
        out,
        "Stage {stage} sets the peak, by its {term}: needed {:.1}, reserved {:.1}{bar} of {:.1}: {}",
        v.needed / unit,
        v.reserved / unit,
        v.capacity / unit,
        fit_words(v.fits)
    );
    if v.headroom > 0.0 {
        let free = v.headroom / unit;
        let _ = writeln!(
            out,
            "Left free for what CUDA and NCCL allocate in the first steps: {free:.1}"
        );
    }
    let needed = v.host_needed / GIB;
    let present = v.host_capacity / GIB;
    if needed > 0.0 {
        let _ = writeln!(
            out,
            "Host memory of a node, GiB: needed {needed:.1} of {present:.1}: {}",
            fit_words(v.fits_host())
        );
    }
    out
}

fn fit_words(fits: bool) -> &'static str {
    if fits { "fits" } else { "DOES NOT FIT" }
}

/// Traffic of each stage's first rank in a step, if it has a peer.
fn sends(v: &View) -> String {
    let rows: Vec<Vec<String>> = v
        .stages
        .iter()
        .enumerate()
        .filter_map(|(i, stage)| {
            let total: f64 = stage.sends.iter().sum();
            let mib = stage
                .sends
                .iter()
                .chain([&total])
                .map(|bytes| format!("{:.1}", bytes / MIB));
            (total > 0.0).then(|| std::iter::once(i.to_string()).chain(mib).collect())
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let head: Vec<String> = ["stage"]
        .into_iter()
        .chain(TRAFFIC.map(|(name, _)| name))
        .chain(["sum"])
        .map(str::to_string)
        .collect();
    let rows = [&[head], &rows[..]].concat();
    format!("\nSent by a rank in a step, MiB\n{}", words::table(&rows, 0))
}

/// Memory of the states by DeepSpeed's own estimator, if it has a rule.
fn deepspeed(v: &View) -> String {
    let s = &v.setup;
    let t = &v.setup.topology;
    if t.zero < 2 || t.pipeline > 1 || v.program == "gptrain" {
        return String::new();
    }
    let sizes = (v.stages[0].parameters, s.counts.tokens.max(s.counts.block));
    let gpus = (t.data as f64, s.per_node.min(t.data) as f64);
    let states = states(t.zero, sizes, gpus, s.offload, true);
    format!(
        "DeepSpeed's own rule for weights, gradients and optimizer: {:.2} GiB a GPU, {:.1} GiB of a \
         node's memory\n",
        states.gpu / GIB,
        states.host / GIB
    )
}

/// The waterfall.
fn time(v: &View) -> String {
    let mut out = format!("\nTime of an iteration  {:.4} s", v.seconds);
    out += &if words::is_wide(v.seconds_error) {
        format!(", nine in ten {}\n", words::with_bar(v.seconds, v.seconds_error))
    } else {
        format!(" {} (nine in ten)\n", words::bar(v.seconds_error))
    };
    for (name, seconds) in v.parts.iter().filter(|(_, seconds)| *seconds != 0.0) {
        let share = seconds / v.seconds;
        let _ = writeln!(
            out,
            "  {name:24}{seconds:>10.4} s {:>6.1} %  {}",
            100.0 * share,
            "█".repeat((50.0 * share).round() as usize)
        );
    }
    let _ = writeln!(out, "  {:24}{:>10.4} s", "sum", v.seconds);
    if v.program == "gptrain" {
        out += "  without input, which is read ahead of the step, and saves, whose time the disk decides\n";
    }
    out
}

fn rates(v: &View) -> String {
    let (model, hardware) = v.tflops();
    let peak = v.setup.hardware.peak_tflops;
    let simple = v.setup.simple_tflops(v.seconds);
    let tokens = (v.setup.global * v.setup.model.seq_len) as f64 / v.seconds;
    let mut out = format!(
        "\nRates  {tokens:.0} tokens/s, {:.0} per device; {:.2} samples/s\n",
        tokens / v.setup.ranks() as f64,
        v.setup.global as f64 / v.seconds
    );
    let _ = writeln!(
        out,
        "  TFLOP/s per device: {hardware:.2} as hardware does them, {model:.2} as the model asks \
         (improved formula),\n  {simple:.2} by 8 or 6 a parameter (simple formula); HFU {:.1} %, MFU \
         {:.1} % of {peak} dense;\n  attention counted as if not causal",
        100.0 * hardware / peak,
        100.0 * model / peak
    );
    out
}

fn days(v: &View) -> String {
    let d = &v.days;
    let terms = &v.terms;
    let calendar = if terms.availability < 1.0 {
        format!(
            " ({} of the calendar at {:.0} % availability)",
            span(terms.calendar_seconds(d)),
            100.0 * terms.availability
        )
    } else {
        String::new()
    };
    let mut out = format!(
        "\nRun of {} tokens: {}{calendar}; {} device-hours\n",
        size(v.tokens()),
        span(d.seconds),
        hours(terms.device_hours(d))
    );
    let _ = writeln!(
        out,
        "  {:>14}{:>10}{:>10}{:>12}{:>9}",
        "batch", "steps", "s/step", "time", "TFLOP/s"
    );
    for rows in condensed(&d.segments) {
        let first = &rows[0];
        let last = &rows[rows.len() - 1];
        let steps: u64 = rows.iter().map(|s| s.steps).sum();
        let seconds: f64 = rows.iter().map(|s| s.steps as f64 * s.seconds).sum();
        let batch = match rows.len() {
            1 => first.global.to_string(),
            _ => format!("{}–{}", first.global, last.global),
        };
        let mean = rows
            .iter()
            .map(|s| s.tflops * s.steps as f64 * s.seconds)
            .sum::<f64>()
            / seconds;
        let _ = writeln!(
            out,
            "  {batch:>14}{steps:>10}{:>10.3}{:>12}{mean:>9.1}",
            seconds / steps as f64,
            span(seconds)
        );
    }
    let factor = if v.setup.forwards() > 1.0 { 8.0 } else { 6.0 };
    let simple = v.setup.simple_tflops(v.seconds);
    let rule = simple_days(factor, v.parameters as f64, v.tokens(), v.setup.ranks() as f64, simple);
    let _ = writeln!(
        out,
        "  {} if every step were a full one ({factor} FLOPs a parameter and token)",
        span(86400.0 * rule)
    );
    match d.full_from {
        Some(batch) if v.setup.topology.pipeline > 1 => {
            let _ = writeln!(out, "  The pipe is first full at batch {batch}.");
        }
        None => out += "  No batch fills the pipe.\n",
        _ => {}
    }
    out + &money(d, terms)
}

/// Cost of a run, and the rest of its budget; empty without a price.
fn money(d: &Days, terms: &Terms) -> String {
    if !terms.has_price() {
        return String::new();
    }
    let currency = terms.currency;
    let price = terms.price;
    let cost = terms.cost(d);
    let mut out = format!("  Money at {currency}{price} a device-hour: {}", terms.money(cost));
    if let Some(budget) = terms.budget {
        let left = budget - cost;
        let word = if left < 0.0 { "over the budget by" } else { "left of the budget:" };
        let _ = write!(out, "; {word} {}", terms.money(left.abs()));
    }
    out + "\n"
}

/// At most eight rows: neighbouring segments together.
fn condensed(segments: &[Segment]) -> Vec<&[Segment]> {
    let Some((last, ramp)) = segments.split_last() else { return Vec::new() };
    let rows = ramp.len().div_ceil(7).max(1);
    ramp.chunks(rows)
        .chain([std::slice::from_ref(last)])
        .collect()
}

/// Advice for gptrain's own plan: changes that make it fit if it does not, else faster plans, in the
/// order in which they are tried.
pub fn advise_own(v: &View, advisor: &Advisor, text: &mut String, json: &mut Value) {
    *text += &compression::describe(advisor.manifest, &v.setup);
    let (title, key, list) = if v.fits_all() {
        ("Faster, in the order that helps", "faster", advisor.speed_ups())
    } else {
        ("Would fit, in the order that helps", "ladder", advisor.remedies())
    };
    json[key] = list.iter().map(|change| own_json(change, v)).collect();
    *text += &own_changes(title, &list, v);
    if list.is_empty() && !v.fits_all() {
        let found = remedies::same_devices(advisor.manifest, &v.setup, advisor.limits);
        let other = match &found {
            Some(flags) => format!("over {} devices this topology does: {flags}", v.setup.ranks()),
            None => format!(
                "and no topology over {} devices: --search tries the host and 8 bits, --min-gpus more",
                v.setup.ranks()
            ),
        };
        *text += &format!("\nNo change of one or two steps fits:\n  {other}\n");
        json["advice"] = json!(other);
    }
}

/// Maximum number of printed changes per kind.
const NAMED: usize = 3;

/// Changes of gptrain's own plan: the memory of each rank, the seconds for the tokens of a current step,
/// and the flags.
fn own_changes(title: &str, list: &[advisor::Change], v: &View) -> String {
    if list.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{title:<54}{:>9}{:>11}\n", "GiB", "s/step");
    for kind in list.chunk_by(|a, b| a.kind == b.kind) {
        for change in kind.iter().take(NAMED) {
            let off = 100.0 * (change.seconds / v.seconds - 1.0);
            let gib = own_bytes(change, v) / GIB;
            let _ = writeln!(
                out,
                "  {:<52}{gib:>9.1}{:>11.3} {off:>+7.1} %",
                change.what, change.seconds,
            );
            out += &flag_lines(&change.sets);
        }
    }
    out
}

/// Memory as nvidia-smi shows it.
fn own_bytes(change: &advisor::Change, v: &View) -> f64 {
    change.bytes.0 as f64 + v.setup.hardware.context_mib * MIB
}

fn own_json(change: &advisor::Change, v: &View) -> Value {
    json!({ "change": change.what, "set": change.sets, "seconds": change.seconds,
        "cost_seconds": change.seconds - v.seconds, "mem_gib": own_bytes(change, v) / GIB,
        "host_gib": change.host.0 as f64 / GIB, "fits": true })
}

pub fn json(v: &View) -> Value {
    let s = &v.setup;
    let t = &v.setup.topology;
    let d = &v.days;
    let ((stage, term), (model, hardware)) = (v.peak(), v.tflops());
    let map = |list: &[(&'static str, f64)]| -> Value {
        list.iter()
            .map(|(name, x)| (name.to_string(), json!(x)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let stages: Vec<Value> = v
        .stages
        .iter()
        .map(|s| json!({ "layers": s.layers, "parameters": s.parameters, "bytes": map(&s.terms) }))
        .collect();
    let segments: Vec<Value> = d
        .segments
        .iter()
        .map(|s| {
            let hours = s.steps as f64 * s.seconds / 3600.0;
            json!({
                "batch": s.global, "steps": s.steps, "seconds": s.seconds, "hours": hours,
                "tflops": s.tflops,
            })
        })
        .collect();
    json!({
        "name": v.name, "framework": v.program, "hardware": s.hardware.name, "devices": s.ranks(),
        "topology": { "tensor": t.tensor, "pipeline": t.pipeline, "data": t.data, "zero": t.zero,
            "micro_batch": s.micro, "global_batch": s.global },
        "parameters": v.parameters,
        "memory": { "stages": stages, "peak_stage": stage, "peak_term": term,
            "needed_bytes": v.needed, "reserved_bytes": v.reserved, "error": v.reserved_error,
            "headroom_bytes": v.headroom, "capacity_bytes": v.capacity, "fits": v.fits,
            "host": { "needed_bytes": v.host_needed, "capacity_bytes": v.host_capacity,
                "fits": v.fits_host() } },
        "time": { "seconds": v.seconds, "error": v.seconds_error, "parts": map(&v.parts) },
        "tflops": { "hardware": hardware, "model": model, "simple": s.simple_tflops(v.seconds),
            "mfu": model / s.hardware.peak_tflops, "hfu": hardware / s.hardware.peak_tflops },
        "run": { "tokens": v.tokens(), "days": d.days(), "calendar_days": v.terms.calendar_days(d),
            "gpu_hours": v.terms.device_hours(d), "money": v.terms.cost(d),
            "budget_left": v.terms.budget.map(|b| b - v.terms.cost(d)),
            "pipe_full_from": d.full_from,
            "segments": segments },
    })
}
