//! Comparison of two estimates: the changed settings, the effect, and the parts of memory and time
//! that cause it.

use super::print;
use super::view::{GIB, View};
use super::words::{alike, span};
use base::Count;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Minimum change of a part, as a share of the whole, to be printed.
const WORTH_SAYING: f64 = 0.005;

/// Estimate, with its settings.
pub struct Side<'a> {
    pub name: &'a str,
    pub view: &'a View,
    /// YAML with every setting.
    pub effective: &'a str,
}

/// Figure: its name, both values, and their format.
type Figure<'a> = (&'a str, f64, f64, &'a dyn Fn(f64) -> String);

/// As text of at most 100 columns, and as JSON.
pub fn compared(now: &Side, then: &Side) -> (String, Value) {
    let a = now.view;
    let b = then.view;
    let changed = changes(now.effective, then.effective);
    let mut text = format!("{:24}{:>18}{:>18}{:>12}\n", "", now.name, then.name, "change");
    let gib = |bytes: f64| format!("{:.1} GiB", bytes / GIB);
    let largest = a.seconds.max(b.seconds);
    let seconds = |seconds: f64| alike(seconds, largest);
    let count = |count: f64| Count(count as u64).to_string();
    let paid = |sum: f64| a.terms.money(sum);
    let calendar = |view: &View| view.terms.calendar_seconds(&view.days);
    let cost = |view: &View| view.terms.cost(&view.days);
    let [ours, theirs] = [a, b].map(|view| view.setup.ranks() as f64);
    let figures: [Figure; 6] = [
        ("devices", ours, theirs, &count),
        ("memory of a device", a.reserved, b.reserved, &gib),
        ("a step", a.seconds, b.seconds, &seconds),
        ("the run", calendar(a), calendar(b), &span),
        ("device hours", a.days.device_hours(), b.days.device_hours(), &super::words::hours),
        ("money", cost(a), cost(b), &paid),
    ];
    let shown = figures.len() - usize::from(!a.terms.has_price());
    for (name, a, b, say) in figures.into_iter().take(shown) {
        let _ = writeln!(text, "{name:24}{:>18}{:>18}{:>12}", say(a), say(b), share(a, b));
    }
    let fits = |view: &View| if view.fits_all() { "yes" } else { "NO" };
    let _ = writeln!(text, "{:24}{:>18}{:>18}", "fits", fits(a), fits(b));
    text += "\nChanged\n";
    for (key, [from, to]) in &changed {
        let _ = writeln!(text, "  {key}: {from} → {to}");
    }
    if changed.is_empty() {
        text += "  nothing\n";
    }
    text += "\nWhy\n";
    let memory = differences(&peak_terms(a), &peak_terms(b), a.reserved.max(b.reserved));
    let time = differences(&a.parts, &b.parts, a.seconds.max(b.seconds));
    for (of, say, parts) in
        [("memory", &gib as &dyn Fn(f64) -> String, &memory), ("a step", &seconds, &time)]
    {
        for (name, from, to) in parts {
            let _ = writeln!(
                text,
                "  {of:8}{name:24}{:>12} → {:>10}{:>12}",
                say(*from),
                say(*to),
                share(*from, *to)
            );
        }
    }
    if memory.is_empty() && time.is_empty() {
        text += "  no part of memory or of a step changes\n";
    }
    let parts = |parts: &[(&str, f64, f64)]| {
        let each = parts
            .iter()
            .map(|(name, a, b)| (name.to_string(), json!([a, b])));
        Value::Object(each.collect())
    };
    let json = json!({ "now": print::json(a), "what_if": print::json(b), "changed": changed,
        "memory_bytes": parts(&memory), "seconds": parts(&time) });
    (text, json)
}

/// "+3.1 %"; "new" where there was nothing.
fn share(from: f64, to: f64) -> String {
    match from {
        _ if from == to => "–".to_string(),
        0.0 => "new".to_string(),
        _ => format!("{:+.1} %", 100.0 * (to / from - 1.0)),
    }
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
