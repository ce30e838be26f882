//! Prints scores as text and as JSON.

use super::{
    Errors, Scored, all, fits, known_cluster, left_out, memory_errors, printed, regrets,
    sources_left_out, time_errors,
};
use crate::cost::constants::{MEMORY, Prior, TIME};
use crate::predictor::{Prediction, Predictor};
use crate::rows::{self, Row};
use base::table::{Cell, Column, Printout, Table};
use estimate::setup::Setup;
use estimate::trainers::UNKNOWN_BAR;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Errors of rows with a common name.
type Named = (String, Errors);

/// Summarised errors, by name.
fn summary(scored: &[Scored]) -> Vec<Named> {
    let errors_of = |pick: &dyn Fn(&str, &str) -> bool| {
        time_errors(scored, &|row: &Row| {
            let setup = row.setup.as_ref();
            setup.is_ok_and(|s| pick(s.program.name(), &s.hardware.name))
        })
    };
    let is_fsdp = |program: &str| program == "fsdp" || program == "torchtitan";
    let is_b200 = |machine: &str| machine.contains("b200") || machine.contains("b300");
    let all = [
        ("time, all rows", time_errors(scored, &|_| true)),
        ("time, Jean Zay, printed", time_errors(scored, &printed)),
        ("time, Jean Zay's A100", time_errors(scored, &known_cluster)),
        ("time, Megatron-LM", errors_of(&|program, _| program == "megatron-lm")),
        ("time, FSDP", errors_of(&|program, _| is_fsdp(program))),
        ("time, H100", errors_of(&|_, machine| machine.contains("h100"))),
        ("time, B200 to GB300", errors_of(&|_, machine| is_b200(machine))),
        ("memory, Jean Zay's A100", memory_errors(scored, &known_cluster)),
        ("memory, others", memory_errors(scored, &|row| !known_cluster(row))),
    ];
    all.map(|(name, errors)| (name.to_string(), errors)).into()
}

fn percent(share: f64) -> Cell {
    Cell::new(share, format!("{:.1} %", 100.0 * share))
}

fn errors_table(rows: &[Named]) -> Table {
    let columns = [
        Column::text("", |(name, _): &Named| name.clone()),
        Column::text("rows", |(_, e): &Named| e.rows),
        Column::text("mean", |(_, e): &Named| percent(e.mean)),
        Column::text("median", |(_, e): &Named| percent(e.median)),
        Column::text("p90", |(_, e): &Named| percent(e.p90)),
        Column::text("worst", |(_, e): &Named| percent(e.worst)),
        Column::text("within its bar", |(_, e): &Named| e.within),
        Column::text("", |(_, e): &Named| percent(e.within_bar)),
        Column::text("bar", |(_, e): &Named| percent(e.bar)),
    ];
    Table::new(&columns, rows)
}

/// Adds the summary of some rows.
fn add_summary(scored: &[Scored], title: &str, out: &mut Printout) {
    let mut rows = summary(scored);
    rows.retain(|(_, errors)| errors.rows > 0);
    out.table(errors_table(&rows).titled(title));
    for (name, of) in [("fits, Jean Zay's A100", true), ("fits, others", false)] {
        let (right, known) = fits(scored, &|row| known_cluster(row) == of);
        if known > 0 {
            let share = 100.0 * right as f64 / known as f64;
            out.indented(format!("{name}: right for {right} of {known} rows, {share:.1} %"));
        }
    }
}

/// Scores of the shipped rows: each configuration left out, then each source.
pub fn selftest() -> Printout {
    let rows = rows::shipped();
    let out_of_sight = left_out(&rows);
    let prior = all(&Predictor::prior(), rows.iter().copied());
    let mut out = Printout::new(json!({}));
    out.json["left_out"] = summary_json(&out_of_sight);
    out.json["uncalibrated"] = summary_json(&prior);
    let title = "Rows that were not seen (whole configurations left out):";
    add_summary(&out_of_sight, title, &mut out);
    let mut goals = unseen_sources(&rows, &mut out);
    goals.push(Goal {
        name: "configurations on a measured cluster".to_string(),
        errors: time_errors(&out_of_sight, &|_| true),
        widest: None,
    });
    add_goals(&goals, &mut out);
    let title = "Before any row is seen (round numbers from data sheets and the literature):";
    add_summary(&prior, title, &mut out);
    let title = "The topology that it picks, left out, against the best measured:";
    out.table(sweeps(&out_of_sight).titled(title));
    let constants = Predictor::shipped().constants();
    out.table(fitted(TIME, &constants.time).titled("Constants of time"));
    out.table(fitted(MEMORY, &constants.memory).titled("Constants of memory"));
    out
}

/// Constants before and after the fit.
fn fitted(table: &[Prior], values: &[f64]) -> Table {
    let columns = [
        Column::text("", |(prior, _): &(&Prior, f64)| prior.name),
        Column::text("before", |(prior, _): &(&Prior, f64)| Cell::fixed(prior.value, 3)),
        Column::text("fitted", |(_, fitted): &(&Prior, f64)| Cell::fixed(*fitted, 3)),
        Column::text("", |(prior, _): &(&Prior, f64)| prior.about),
    ];
    let rows: Vec<(&Prior, f64)> = table.iter().zip(values.iter().copied()).collect();
    Table::new(&columns, &rows)
}

/// Sweeps over topologies: how much slower the predicted best is than the measured best.
fn sweeps(scored: &[Scored]) -> Table {
    let columns = [
        Column::new("", "sweep", |(name, ..): &(String, usize, f64)| name.clone()),
        Column::new("topologies", "ways", |(_, ways, _): &(String, usize, f64)| *ways),
        Column::new("slower", "regret", |(.., regret): &(String, usize, f64)| {
            Cell::new(*regret, format!("{:+.1} %", 100.0 * regret))
        }),
    ];
    Table::new(&columns, &regrets(scored))
}

/// Case of the goals of error bars.
struct Goal {
    name: String,
    errors: Errors,
    /// Widest median bar, if that has a goal.
    widest: Option<f64>,
}

/// Share of rows that should be within their bars.
const WITHIN: f64 = 0.9;

impl Goal {
    fn is_met(&self) -> bool {
        let is_narrow = self.widest.is_none_or(|widest| self.errors.bar <= widest);
        self.errors.within_bar >= WITHIN && is_narrow
    }
}

/// Adds bars against their goals.
fn add_goals(goals: &[Goal], out: &mut Printout) {
    let mut json = Map::new();
    for goal in goals {
        let mut figures = json!(goal.errors);
        figures["widest"] = json!(goal.widest);
        figures["met"] = json!(goal.is_met());
        json.insert(goal.name.clone(), figures);
    }
    out.json["goals"] = json.into();
    let columns = [
        Column::text("", |goal: &Goal| goal.name.clone()),
        Column::text("rows", |goal: &Goal| goal.errors.rows),
        Column::text("within", |goal: &Goal| percent(goal.errors.within_bar)),
        Column::text("bar", |goal: &Goal| percent(goal.errors.bar)),
        Column::text("at most", |goal: &Goal| Cell::optional(goal.widest.map(percent))),
        Column::text("", |goal: &Goal| if goal.is_met() { "met" } else { "MISSED" }),
    ];
    let title = "Bars against their goals, nine in ten rows within:";
    out.table(Table::new(&columns, goals).titled(title));
}

/// Adds scores of every source from all others: without its rows, then with some of them.
fn unseen_sources(rows: &[&Row], out: &mut Printout) -> Vec<Goal> {
    let mut table: Vec<Named> = Vec::new();
    let mut every: Vec<Scored> = Vec::new();
    let mut goals: Vec<Goal> = Vec::new();
    let mut known: BTreeMap<usize, Vec<Scored>> = BTreeMap::new();
    let mut json = Map::new();
    for left_out in sources_left_out(rows) {
        let unseen = time_errors(&left_out.scored, &|_| true);
        let mut figures = json!({ "unseen": unseen, "rows": rows_table(&left_out.scored).json() });
        table.push((left_out.source.to_string(), unseen));
        for (count, scored) in left_out.after {
            let after = time_errors(&scored, &|_| true);
            figures[format!("after_{count}")] = json!(after);
            figures[format!("rows_after_{count}")] = rows_table(&scored).json();
            table.push((format!("    after {count} rows"), after));
            known.entry(count).or_default().extend(scored);
        }
        json.insert(left_out.source.to_string(), figures);
        every.extend(left_out.scored);
    }
    for (name, errors) in cases(rows, &every) {
        json.insert(name.to_string(), json!({ "unseen": errors }));
        table.push((name.to_string(), errors.clone()));
        let name = format!("{name}, no row of its source seen");
        goals.push(Goal { name, errors, widest: Some(UNKNOWN_BAR) });
    }
    for (count, scored) in &known {
        let errors = time_errors(scored, &|_| true);
        table.push((format!("all, after {count} rows"), errors.clone()));
        goals.push(Goal { name: format!("after {count} own rows"), errors, widest: None });
    }
    let together = time_errors(&every, &|_| true);
    json.insert("all".to_string(), json!({ "unseen": together }));
    table.push(("all, unseen".to_string(), together));
    let title = "Time of rows of sources of which no row was seen, and after some were:";
    out.table(errors_table(&table).titled(title));
    let memory = memory_errors(&every, &|_| true);
    let row = [("all, unseen".to_string(), memory.clone())];
    let title = "Memory of rows of sources of which no row was seen:";
    out.table(errors_table(&row).titled(title));
    let name = "memory, no row of its source seen".to_string();
    goals.push(Goal { name, errors: memory, widest: None });
    out.json["sources_left_out"] = json.into();
    goals
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
pub fn score(predictor: &Predictor, rows: &[Row]) -> Printout {
    let scored = all(predictor, rows);
    let table = rows_table(&scored);
    let json = json!({ "rows": table.json(), "summary": summary_json(&scored) });
    let mut out = Printout::new(json);
    out.table(table);
    let refused = rows.iter().filter(|row| row.setup.is_err()).count();
    add_summary(&scored, &format!("{} rows, {refused} refused", rows.len()), &mut out);
    out
}

/// Function that gives the cell of a prediction; `none` if there is none.
fn predicted(none: Cell, cell: fn(&Prediction, &Setup) -> Cell) -> impl Fn(&Scored) -> Cell {
    move |s| match (&s.prediction, &s.row.setup) {
        (Some(prediction), Ok(setup)) => cell(prediction, setup),
        _ => none.clone(),
    }
}

/// Measured and predicted needs of rows, with what is wrong with a row below it.
fn rows_table(scored: &[Scored]) -> Table {
    let dash = || Cell::optional(None::<Cell>);
    let optional = |value: Option<f64>| Cell::optional(value.map(|value| Cell::fixed(value, 2)));
    let columns = [
        Column::new("row", "id", |s: &Scored| s.row.id.clone()),
        Column::json("line", |s: &Scored| s.row.line),
        Column::json("program", |s: &Scored| {
            s.row
                .setup
                .as_ref()
                .map_or("", |setup| setup.program.name())
        }),
        Column::json("machine", |s: &Scored| {
            s.row
                .setup
                .as_ref()
                .map_or(String::new(), |setup| setup.hardware.name.clone())
        }),
        Column::new(
            "s predicted",
            "sec_per_iter",
            predicted(dash(), |p, _| Cell::fixed(p.seconds, 2)),
        ),
        Column::new("measured", "measured_sec_per_iter", |s: &Scored| optional(s.row.seconds)),
        Column::text("÷ or ×", predicted(dash(), |p, _| Cell::fixed(1.0 + p.seconds_error, 2))),
        Column::json("time_bar", predicted(dash(), |p, _| p.seconds_error.into())),
        Column::new(
            "GB predicted",
            "mem_gb",
            predicted(dash(), |p, _| Cell::fixed(p.gigabytes, 1)),
        ),
        Column::new("measured", "measured_mem_gb", |s: &Scored| optional(s.row.memory_gb)),
        Column::json("mem_bar", predicted(dash(), |p, _| p.gigabytes_error.into())),
        Column::new(
            "fits",
            "fits",
            predicted(dash(), |p, _| Cell::new(p.fits, if p.fits { "yes" } else { "no" })),
        ),
        Column::json("measured_fits", |s: &Scored| Cell::new(s.row.fits, "")),
        Column::json("mem_needed_gb", predicted(Cell::default(), |p, _| p.memory.needed().into())),
        Column::json(
            "tflops",
            predicted(Cell::default(), |p, setup| {
                (setup.flops().1 / (p.seconds * setup.ranks() as f64 * 1e12)).into()
            }),
        ),
        Column::json(
            "tflops_simple",
            predicted(Cell::default(), |p, setup| setup.simple_tflops(p.seconds).into()),
        ),
        Column::new("", "refused", |s: &Scored| match s.row.setup.as_ref().err() {
            Some(why) => Cell::new(why.clone(), format!("refused: {why}")),
            None => Cell::new(Value::Null, ""),
        })
        .below(),
        Column::new("", "odd", |s: &Scored| {
            let problems = s.row.problems();
            let is_refused = s.row.setup.is_err();
            let lines = problems
                .iter()
                .filter(|_| !is_refused)
                .map(|odd| format!("odd: {odd}\n"));
            let text = lines.collect::<String>();
            Cell::new(problems, text)
        })
        .below(),
    ];
    Table::new(&columns, scored)
}

fn summary_json(scored: &[Scored]) -> Value {
    let named = summary(scored)
        .into_iter()
        .map(|(name, e)| (name, json!(e)));
    let mut all: Map<String, Value> = named.collect();
    let (right, known) = fits(scored, &known_cluster);
    all.insert("fits, Jean Zay's A100".to_string(), json!({ "rows": known, "right": right }));
    all.insert("sweeps".to_string(), sweeps(scored).json());
    all.into()
}
