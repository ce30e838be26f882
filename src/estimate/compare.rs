//! Comparison of two estimates: the changed settings, the effect, and the parts of memory and time
//! that cause it.

use super::machine;
use super::print;
use super::view::{GIB, View};
use super::words::{self, seconds_in_unit_of, span};
use base::Count;
use base::table::{Cell, Printout, Rows, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Minimum change of a part, as a share of the whole, to be printed.
const WORTH_SAYING: f64 = 0.005;

/// Estimate, with its settings.
pub struct Side<'a> {
    pub name: &'a str,
    pub view: &'a View,
    /// YAML with every setting.
    pub effective: &'a str,
}

/// Both plans side by side.
pub fn comparison(now: &Side, then: &Side) -> Printout {
    let a = now.view;
    let b = then.view;
    let mut changed = changes(now.effective, then.effective);
    changed.extend(machine::differences(a.setup.hardware, b.setup.hardware));
    changed.extend(a.setup.degree_differences(&b.setup));
    let memory = differences(&peak_terms(a), &peak_terms(b), a.reserved.max(b.reserved));
    let time = differences(&a.parts, &b.parts, a.seconds.max(b.seconds));
    let json = json!({
        "now": print::json(a), "what_if": print::json(b), "changed": changed,
        "memory_bytes": pairs(&memory), "seconds": pairs(&time),
    });
    let mut out = Printout::new(json);
    out.table(figures(now, then));
    out.line("\nChanged");
    for (key, [from, to]) in &changed {
        out.line(format!("  {key}: {from} → {to}"));
    }
    if changed.is_empty() {
        out.line("  nothing");
    }
    let largest = a.seconds.max(b.seconds);
    let mut rows = Vec::new();
    for (name, from, to) in memory {
        let [name, from, to, change] = figure(name, from, to, &gib);
        rows.push(["memory".into(), name, from, to, change]);
    }
    for (name, from, to) in time {
        let seconds = |seconds| seconds_in_unit_of(seconds, largest);
        let [name, from, to, change] = figure(name, from, to, &seconds);
        rows.push(["step".into(), name, from, to, change]);
    }
    if rows.is_empty() {
        out.line("\nWhy\n  no part of memory or of a step changes");
    }
    out.table(Table::from_cells(["", "", now.name, then.name, "change"], rows).titled("Why"));
    out
}

/// Plans as rows, each with its name. Bars, shares and settings are columns of JSON and CSV only.
pub fn plans(plans: &[(&str, &View)]) -> Table {
    let topology = |view: &View| view.setup.topology.clone();
    Rows::new(plans)
        .column("plan", "plan", |(name, _)| *name)
        .json("program", |(_, v)| v.program)
        .json("hardware", |(_, v)| v.setup.hardware.name.clone())
        .column("GPUs", "gpus", |(_, v)| v.setup.ranks())
        .column("TP", "tensor", |(_, v)| topology(v).tensor)
        .column("PP", "pipeline", |(_, v)| topology(v).pipeline)
        .column("DP", "data", |(_, v)| topology(v).data)
        .json("context", |(_, v)| v.setup.degrees.context)
        .json("expert", |(_, v)| v.setup.degrees.expert)
        .column("ZeRO", "zero", |(_, v)| topology(v).zero)
        .column("micro", "micro_batch", |(_, v)| v.setup.micro)
        .column("batch", "global_batch", |(_, v)| v.setup.global)
        .json("seq_len", |(_, v)| v.setup.model.seq_len)
        .json("recompute", |(_, v)| topology(v).recompute.name())
        .json("parameters", |(_, v)| v.parameters)
        .column("GiB", "mem_gib", |(_, v)| Cell::fixed(v.reserved / GIB, 1))
        .json("mem_error", |(_, v)| v.reserved_error)
        .json("capacity_gib", |(_, v)| v.capacity / GIB)
        .column("fits", "fits", |(_, v)| v.verdict().answer())
        .json("verdict", |(_, v)| v.verdict().name())
        .json("share_beyond", |(_, v)| v.verdict().share_beyond())
        .column("s/step", "sec_per_iter", |(_, v)| words::step(v.seconds))
        .json("sec_error", |(_, v)| v.seconds_error)
        .json("tokens", |(_, v)| v.tokens())
        .column("time", "days", |(_, v)| v.terms.days_cell(&v.days, words::short_span))
        .json("gpu_hours", |(_, v)| v.terms.device_hours(&v.days))
        .column("cost", "money", |(_, v)| v.terms.cost_cell(&v.days))
        .table()
}

/// Figures of both plans.
fn figures(now: &Side, then: &Side) -> Table {
    let a = now.view;
    let b = then.view;
    let terms = &a.terms;
    let row = |name: &str, of: &dyn Fn(&View) -> f64, format: &dyn Fn(f64) -> String| {
        figure(name, of(a), of(b), format)
    };
    let largest = a.seconds.max(b.seconds);
    let mut rows = vec![
        row("devices", &|v| v.setup.ranks() as f64, &|count| Count(count as u64).to_string()),
        row("memory per device", &|v| v.reserved, &gib),
        row("time per step", &|v| v.seconds, &|seconds| seconds_in_unit_of(seconds, largest)),
        row("time of the run", &|v| v.terms.calendar_seconds(&v.days), &span),
        row("device-hours", &|v| v.days.device_hours(), &words::hours),
    ];
    if terms.has_price() {
        rows.push(row("cost", &|v| v.terms.cost(&v.days), &|sum| terms.money(sum)));
    }
    let [now_fits, then_fits] = [a, b].map(|view| view.verdict().answer());
    rows.push(["fits".into(), now_fits, then_fits, Cell::default()]);
    Table::from_cells(["", now.name, then.name, "change"], rows)
}

/// Cells of a figure: its name, both values and the change.
fn figure(name: &str, from: f64, to: f64, format: &dyn Fn(f64) -> String) -> [Cell; 4] {
    let cell = |value: f64| Cell::new(value, format(value));
    [name.into(), cell(from), cell(to), words::change(from, to)]
}

fn gib(bytes: f64) -> String {
    format!("{:.1} GiB", bytes / GIB)
}

/// Both values of each part, by name.
fn pairs(parts: &[(&str, f64, f64)]) -> Value {
    let pairs = parts
        .iter()
        .map(|(name, a, b)| (name.to_string(), json!([a, b])));
    Value::Object(pairs.collect())
}

/// Memory of the stage that needs most, by part.
fn peak_terms(view: &View) -> Vec<(&'static str, f64)> {
    view.stages[view.peak().0].terms.clone()
}

/// Parts of either that differ, largest difference first: name, of the first, of the second.
fn differences<'a>(
    a: &[(&'a str, f64)],
    b: &[(&'a str, f64)],
    whole: f64,
) -> Vec<(&'a str, f64, f64)> {
    let total = |parts: &[(&str, f64)], name: &str| {
        parts
            .iter()
            .filter(|(other, _)| *other == name)
            .map(|(_, x)| x)
            .sum::<f64>()
    };
    let mut names: Vec<&str> = a.iter().chain(b).map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    let parts = names
        .into_iter()
        .map(|name| (name, total(a, name), total(b, name)));
    let mut differing: Vec<_> = parts
        .filter(|(_, x, y)| (x - y).abs() > WORTH_SAYING * whole)
        .collect();
    differing.sort_by(|x, y| (y.1 - y.2).abs().total_cmp(&(x.1 - x.2).abs()));
    differing
}

/// Settings that differ, with both values; "–" where one has none.
fn changes(a: &str, b: &str) -> BTreeMap<String, [String; 2]> {
    let a = settings(a);
    let b = settings(b);
    let keys = a
        .keys()
        .chain(b.keys())
        .filter(|key| a.get(*key) != b.get(*key));
    let value = |settings: &BTreeMap<String, String>, key: &String| {
        settings
            .get(key)
            .cloned()
            .unwrap_or_else(|| "–".to_string())
    };
    keys.map(|key| (key.clone(), [value(&a, key), value(&b, key)]))
        .collect()
}

/// Settings of block-style YAML: keys such as "topology.tensor", and values as written.
fn settings(yaml: &str) -> BTreeMap<String, String> {
    let mut path: Vec<(usize, &str)> = Vec::new();
    let mut settings = BTreeMap::new();
    for line in yaml.lines() {
        let inner = line.trim_start();
        let Some((key, value)) = inner.split_once(':') else { continue };
        if inner.starts_with('#') || inner.starts_with('-') {
            continue;
        }
        let depth = line.len() - inner.len();
        path.retain(|(outer, _)| *outer < depth);
        path.push((depth, key));
        if !value.trim().is_empty() {
            let keys: Vec<&str> = path.iter().map(|(_, key)| *key).collect();
            settings.insert(keys.join("."), value.trim().to_string());
        }
    }
    settings
}

#[test]
fn settings_that_differ_are_found_at_any_depth() {
    let a = "name: x\ntopology:\n  tensor: 1\n  offload:\n    what: none\nbatch:\n  micro: 2\n";
    let b = "name: x\ntopology:\n  tensor: 2\n  offload:\n    what: full\nbatch:\n  micro: 2\n";
    let found = changes(a, b);
    let expected = [("topology.offload.what", ["none", "full"]), ("topology.tensor", ["1", "2"])];
    let expected = expected.map(|(key, both)| (key.to_string(), both.map(str::to_string)));
    assert_eq!(found, BTreeMap::from(expected));
}
