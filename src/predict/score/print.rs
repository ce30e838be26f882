//! Prints scores as text and as JSON.

use super::{
    Errors, Scored, all, fits, known_cluster, left_out, memory_errors, printed, regrets,
    sources_left_out, time_errors,
};
use crate::cost::constants::{MEMORY, Prior, TIME};
use crate::predictor::Predictor;
use crate::rows::{self, Row};
use estimate::trainers::UNKNOWN_BAR;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Summarised figures, by name.
fn summary(scored: &[Scored]) -> Vec<(&'static str, Errors)> {
    let errors_of = |pick: &dyn Fn(&str, &str) -> bool| {
        time_errors(scored, &|row: &Row| {
            let setup = row.setup.as_ref();
            setup.is_ok_and(|s| pick(s.program.name(), &s.hardware.name))
        })
    };
    vec![
        ("time, all rows", time_errors(scored, &|_| true)),
        ("time, Jean Zay, printed", time_errors(scored, &printed)),
        ("time, Jean Zay's A100", time_errors(scored, &known_cluster)),
        ("time, Megatron-LM", errors_of(&|program, _| program == "megatron-lm")),
        ("time, FSDP", errors_of(&|program, _| program == "fsdp" || program == "torchtitan")),
        ("time, H100", errors_of(&|_, machine| machine.contains("h100"))),
        (
            "time, B200 to GB300",
            errors_of(&|_, machine| machine.contains("b200") || machine.contains("b300")),
        ),
        ("memory, Jean Zay's A100", memory_errors(scored, &known_cluster)),
        ("memory, others", memory_errors(scored, &|row| !known_cluster(row))),
    ]
}

fn heads() -> String {
    format!(
        "  {:28}{:>6}{:>9}{:>9}{:>9}{:>9}{:>18}{:>9}\n",
        "", "rows", "mean", "median", "p90", "worst", "within its bar", "bar"
    )
}

fn line(name: &str, e: &Errors) -> String {
    let percent = |x: f64| format!("{:.1} %", 100.0 * x);
    let [mean, median, p90, worst, bar] = [e.mean, e.median, e.p90, e.worst, e.bar].map(percent);
    let rows = e.rows;
    let inside = format!("{} ({})", e.within, percent(e.within_bar));
    format!("  {name:28}{rows:>6}{mean:>9}{median:>9}{p90:>9}{worst:>9}{inside:>18}{bar:>9}\n")
}

fn table(scored: &[Scored]) -> String {
    let mut text = heads();
    for (name, e) in summary(scored).iter().filter(|(_, e)| e.rows > 0) {
        text += &line(name, e);
    }
    for (name, of) in [("fits, Jean Zay's A100", true), ("fits, others", false)] {
        let (right, known) = fits(scored, &|row| known_cluster(row) == of);
        if known > 0 {
            let share = 100.0 * right as f64 / known as f64;
            let _ = writeln!(text, "  {name:28}{known:>6}  right for {right}: {share:.1} %");
        }
    }
    text
}

/// Scores of the shipped rows: each configuration left out, then each source.
pub fn selftest() -> (String, Value) {
    let rows = rows::shipped();
    let out = left_out(&rows);
    let mut text = String::from("Rows that were not seen (whole configurations left out):\n");
    text += &table(&out);
    let (sources, sources_json, mut cases) = unseen_sources(&rows);
    text += &sources;
    let configurations = "configurations on a measured cluster".to_string();
    cases.push((configurations, time_errors(&out, &|_| true), None));
    let (goals, goals_json) = goals(&cases);
    text += &goals;
    text += "\nBefore any row is seen (round numbers from data sheets and the literature):\n";
    let prior = all(&Predictor::prior(), rows.iter().copied());
    text += &table(&prior);
    text += "\nThe topology that it picks, left out, against the best measured:\n";
    for (name, ways, regret) in regrets(&out) {
        let _ = writeln!(text, "  {name:48}{ways:>3} topologies  {:+.1} %", 100.0 * regret);
    }
    let constants = Predictor::shipped().constants();
    for (kind, table, values) in
        [("time", TIME, &constants.time), ("memory", MEMORY, &constants.memory)]
    {
        let _ = writeln!(text, "\nConstants of {kind}: {:>29}{:>9}", "before", "fitted");
        for (Prior { name, value, about, .. }, fitted) in table.iter().zip(values) {
            let _ = writeln!(text, "  {name:14}{value:>28.3}{fitted:>9.3}  {about}");
        }
    }
    let json = json!({ "left_out": summary_json(&out), "sources_left_out": sources_json,
        "uncalibrated": summary_json(&prior), "goals": goals_json });
    (text, json)
}

/// Case of the goals of error bars: name, errors, and the widest median bar, if that has a goal.
type Goal = (String, Errors, Option<f64>);

/// Share of rows that should be within their bars.
const WITHIN: f64 = 0.9;

/// Bars against their goals.
fn goals(all: &[Goal]) -> (String, Value) {
    let mut text = String::from("\nBars against their goals, nine in ten rows within:\n");
    let mut json = serde_json::Map::new();
    for (name, e, widest) in all {
        let met = e.within_bar >= WITHIN && widest.is_none_or(|widest| e.bar <= widest);
        let most =
            widest.map_or(String::new(), |widest| format!(" (at most {:.0} %)", 100.0 * widest));
        let _ = writeln!(
            text,
            "  {name:50}{:>5} rows {:>6.1} % within, bar {:>3.0} %{most}: {}",
            e.rows,
            100.0 * e.within_bar,
            100.0 * e.bar,
            if met { "met" } else { "MISSED" }
        );
        let mut figures = json!(e);
        (figures["widest"], figures["met"]) = (json!(widest), json!(met));
        json.insert(name.clone(), figures);
    }
    (text, Value::Object(json))
}

/// Scores of every source from all others: without its rows, then with some of them.
fn unseen_sources(rows: &[&Row]) -> (String, Value, Vec<Goal>) {
    let mut text =
        String::from("\nTime of rows of sources of which no row was seen, and after some were:\n");
    text += &heads();
    let mut every: Vec<Scored> = Vec::new();
    let mut goals: Vec<Goal> = Vec::new();
    let mut known: BTreeMap<usize, Vec<Scored>> = BTreeMap::new();
    let mut json = serde_json::Map::new();
    for left_out in sources_left_out(rows) {
        let unseen = time_errors(&left_out.scored, &|_| true);
        text += &line(left_out.source, &unseen);
        let rows_json: Vec<Value> = left_out.scored.iter().map(row_json).collect();
        let mut figures = json!({ "unseen": unseen, "rows": rows_json });
        for (count, scored) in left_out.after {
            let after = time_errors(&scored, &|_| true);
            text += &line(&format!("    after {count} rows"), &after);
            figures[format!("after_{count}")] = json!(after);
            let rows_json: Vec<Value> = scored.iter().map(row_json).collect();
            figures[format!("rows_after_{count}")] = json!(rows_json);
            known.entry(count).or_default().extend(scored);
        }
        json.insert(left_out.source.to_string(), figures);
        every.extend(left_out.scored);
    }
    for (name, errors) in cases(rows, &every) {
        text += &line(name, &errors);
        json.insert(name.to_string(), json!({ "unseen": errors }));
        goals.push((format!("{name}, no row of its source seen"), errors, Some(UNKNOWN_BAR)));
    }
    for (count, scored) in &known {
        let errors = time_errors(scored, &|_| true);
        text += &line(&format!("all, after {count} rows"), &errors);
        goals.push((format!("after {count} own rows"), errors, None));
    }
    let together = time_errors(&every, &|_| true);
    text += &line("all, unseen", &together);
    json.insert("all".to_string(), json!({ "unseen": together }));
    text += "\nMemory of rows of sources of which no row was seen:\n";
    text += &heads();
    let memory = memory_errors(&every, &|_| true);
    text += &line("all, unseen", &memory);
    goals.push(("memory, no row of its source seen".to_string(), memory, None));
    (text, Value::Object(json), goals)
}

/// Rows whose source was left out, by whether other sources have their program.
fn cases(rows: &[&Row], unseen: &[Scored]) -> [(&'static str, Errors); 2] {
    let program = |row: &Row| row.setup.as_ref().ok().map(|setup| setup.program.name());
    let is_known = |row: &Row| {
        rows.iter()
            .any(|other| other.source != row.source && program(other) == program(row))
    };
    [
        ("all, unknown program", time_errors(unseen, &|row| !is_known(row))),
        ("all, known program", time_errors(unseen, &is_known)),
    ]
}

/// Scores of a predictor on a file of runs.
pub fn score(predictor: &Predictor, rows: &[Row]) -> (String, Value) {
    let scored = all(predictor, rows);
    let mut text = format!(
        "{:12}{:>12}{:>12}{:>9}{:>10}{:>10}  fits\n",
        "row", "s predicted", "measured", "÷ or ×", "GB pred.", "measured"
    );
    let dash = |x: Option<f64>| x.map_or("–".to_string(), |x| format!("{x:.2}"));
    for s in &scored {
        if let Some(p) = &s.prediction {
            let _ = writeln!(
                text,
                "{:12}{:>12.2}{:>12}{:>9.2}{:>10.1}{:>10}  {}",
                s.row.id,
                p.seconds,
                dash(s.row.seconds),
                1.0 + p.seconds_error,
                p.gigabytes,
                dash(s.row.memory_gb),
                if p.fits { "yes" } else { "no" }
            );
        }
        match &s.row.setup {
            Err(why) => {
                let _ = writeln!(text, "{:12}  refused: {why}", s.row.id);
            }
            Ok(_) => s.row.problems().iter().for_each(|odd| {
                let _ = writeln!(text, "{:12}  odd: {odd}", s.row.id);
            }),
        }
    }
    let refused = rows.iter().filter(|row| row.setup.is_err()).count();
    let _ = writeln!(text, "\n{} rows, {refused} refused", rows.len());
    text += &table(&scored);
    let rows: Vec<Value> = scored.iter().map(row_json).collect();
    (text, json!({ "rows": rows, "summary": summary_json(&scored) }))
}

fn row_json(s: &Scored) -> Value {
    let mut row = json!({
        "id": s.row.id,
        "line": s.row.line,
        "program": s.row.setup.as_ref().map_or("", |setup| setup.program.name()),
        "machine": s.row.setup.as_ref().map_or("", |setup| &*setup.hardware.name),
        "measured_sec_per_iter": s.row.seconds,
        "measured_mem_gb": s.row.memory_gb,
        "measured_fits": s.row.fits,
        "odd": s.row.problems(),
        "refused": s.row.setup.as_ref().err(),
    });
    let predicted = match (&s.prediction, &s.row.setup) {
        (Some(p), Ok(setup)) => json!({
            "sec_per_iter": p.seconds,
            "time_bar": p.seconds_error,
            "mem_gb": p.gigabytes,
            "mem_bar": p.gigabytes_error,
            "mem_needed_gb": p.memory.needed(),
            "fits": p.fits,
            "tflops": setup.flops().1 / (p.seconds * setup.ranks() as f64 * 1e12),
            "tflops_simple": setup.simple_tflops(p.seconds),
        }),
        _ => json!({ "sec_per_iter": null, "time_bar": null, "mem_gb": null, "mem_bar": null,
            "fits": null }),
    };
    if let (Value::Object(row), Value::Object(predicted)) = (&mut row, predicted) {
        row.extend(predicted);
    }
    row
}

fn summary_json(scored: &[Scored]) -> Value {
    let named = summary(scored)
        .into_iter()
        .map(|(name, e)| (name.to_string(), json!(e)));
    let mut all: serde_json::Map<String, Value> = named.collect();
    let (right, known) = fits(scored, &known_cluster);
    all.insert("fits, Jean Zay's A100".to_string(), json!({ "rows": known, "right": right }));
    let sweeps: Vec<Value> = regrets(scored)
        .into_iter()
        .map(|(name, ways, regret)| json!({ "sweep": name, "ways": ways, "regret": regret }))
        .collect();
    all.insert("sweeps".to_string(), json!(sweeps));
    Value::Object(all)
}
