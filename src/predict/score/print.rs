//! Prints scores as text and as JSON.

use super::physics;
use super::{
    Errors, Named, Outcomes, Scored, foreign, has_printed_seconds, held, is_known_cluster,
    memory_errors, outcomes, predict_left_out, regrets, score_all, sources_left_out, time_errors,
};
use crate::cost::constants::{MEMORY, Prior, TIME};
use crate::predictor::{Prediction, Predictor};
use crate::rows::{self, Row};
use base::table::{Cell, Printout, Rows, Table};
use estimate::setup::Setup;
use estimate::trainers::UNKNOWN_BAR;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

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
        ("time, Jean Zay, printed", time_errors(scored, &has_printed_seconds)),
        ("time, Jean Zay's A100", time_errors(scored, &is_known_cluster)),
        ("time, Megatron-LM", errors_of(&|program, _| program == "megatron-lm")),
        ("time, FSDP", errors_of(&|program, _| is_fsdp(program))),
        ("time, H100", errors_of(&|_, machine| machine.contains("h100"))),
        ("time, B200 to GB300", errors_of(&|_, machine| is_b200(machine))),
        ("memory, Jean Zay's A100", memory_errors(scored, &is_known_cluster)),
        ("memory, others", memory_errors(scored, &|row| !is_known_cluster(row))),
    ];
    all.map(|(name, errors)| (name.to_string(), errors)).into()
}

fn errors_table(rows: &[Named]) -> Table {
    Rows::new(rows)
        .text("", |(name, _)| name.clone())
        .text("rows", |(_, e)| e.rows)
        .text("mean", |(_, e)| Cell::percent(e.mean))
        .text("median", |(_, e)| Cell::percent(e.median))
        .text("p90", |(_, e)| Cell::percent(e.p90))
        .text("worst", |(_, e)| Cell::percent(e.worst))
        .text("within its bar", |(_, e)| e.within)
        .text("", |(_, e)| Cell::percent(e.within_bar))
        .text("bar", |(_, e)| Cell::percent(e.bar))
        .table()
}

/// Adds the summary of some rows.
fn add_summary(scored: &[Scored], title: &str, out: &mut Printout) {
    let mut rows = summary(scored);
    rows.retain(|(_, errors)| errors.rows > 0);
    out.table(errors_table(&rows).titled(title));
    for (name, of) in [("fits, Jean Zay's A100", true), ("fits, others", false)] {
        let found = outcomes(scored, &|row| is_known_cluster(row) == of);
        let Outcomes { rows, decided, right } = found;
        if rows > 0 {
            let open = match rows - decided {
                0 => String::new(),
                open => format!("; {open} more may not fit"),
            };
            let share = 100.0 * right as f64 / decided.max(1) as f64;
            out.line(format!("  {name}: right for {right} of {decided} rows, {share:.1} %{open}"));
        }
    }
}

/// Scores of the shipped rows: each configuration left out, then each source.
pub fn selftest() -> Printout {
    let rows = rows::shipped();
    let out_of_sight = predict_left_out(&rows);
    let prior = score_all(&Predictor::prior(), rows.iter().copied());
    let mut out = Printout::new(json!({}));
    out.json["left_out"] = summary_json(&out_of_sight);
    out.json["uncalibrated"] = summary_json(&prior);
    let title = "Rows that were not seen (whole configurations left out):";
    add_summary(&out_of_sight, title, &mut out);
    let mut goals = add_unseen_sources(&rows, &mut out);
    goals.push(Goal {
        name: "configurations on a measured cluster".to_string(),
        errors: time_errors(&out_of_sight, &|_| true),
        widest: None,
    });
    add_goals(&goals, &mut out);
    physics::add_relations(Predictor::shipped(), &mut out);
    let title = "Before any row is seen (round numbers from data sheets and the literature):";
    add_summary(&prior, title, &mut out);
    let title =
        "Published runs with context parallelism or experts (nothing is learned from them):";
    add_unlearned("foreign", &foreign::errors(), title, &mut out);
    let title =
        "Other published runs (nothing is learned from them), and after own rows of a cluster:";
    add_unlearned("held", &held::errors(), title, &mut out);
    let title = "The topology that it picks, left out, against the best measured:";
    out.table(sweeps_table(&out_of_sight).titled(title));
    let constants = Predictor::shipped().constants();
    out.table(constants_table(TIME, &constants.time).titled("Constants of time"));
    out.table(constants_table(MEMORY, &constants.memory).titled("Constants of memory"));
    out
}

/// Adds errors of rows from which nothing is learned.
fn add_unlearned(key: &str, named: &[Named], title: &str, out: &mut Printout) {
    let figures = named
        .iter()
        .map(|(name, errors)| (name.clone(), json!(errors)));
    out.json[key] = Value::Object(figures.collect());
    out.table(errors_table(named).titled(title));
}

/// Constants before and after the fit.
fn constants_table(table: &[Prior], values: &[f64]) -> Table {
    let rows: Vec<(&Prior, f64)> = table.iter().zip(values.iter().copied()).collect();
    Rows::new(&rows)
        .text("", |(prior, _)| prior.name)
        .text("before", |(prior, _)| Cell::fixed(prior.value, 3))
        .text("fitted", |(_, fitted)| Cell::fixed(*fitted, 3))
        .text("", |(prior, _)| prior.about)
        .table()
}

/// Sweeps over topologies: how much slower the predicted best is than the measured best.
fn sweeps_table(scored: &[Scored]) -> Table {
    Rows::new(&regrets(scored))
        .column("", "sweep", |(name, ..)| name.clone())
        .column("topologies", "ways", |(_, ways, _)| *ways)
        .column("slower", "regret", |(.., regret)| Cell::percent(*regret))
        .table()
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
    let table = Rows::new(goals)
        .text("", |goal| goal.name.clone())
        .text("rows", |goal| goal.errors.rows)
        .text("within", |goal| Cell::percent(goal.errors.within_bar))
        .text("bar", |goal| Cell::percent(goal.errors.bar))
        .text("at most", |goal| Cell::optional(goal.widest.map(Cell::percent)))
        .text("", |goal| if goal.is_met() { "met" } else { "MISSED" });
    out.table(table.titled("Bars against their goals, nine in ten rows within:"));
}

/// Adds scores of every source from all others: without its rows, then with some of them.
fn add_unseen_sources(rows: &[&Row], out: &mut Printout) -> Vec<Goal> {
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
        let widest = (!name.contains("one other site")).then_some(UNKNOWN_BAR);
        goals.push(Goal { name, errors, widest });
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

/// Rows whose source was left out, by the number of sites at which other sources have their program.
fn cases(rows: &[&Row], unseen: &[Scored]) -> [(&'static str, Errors); 3] {
    let program = |row: &Row| row.setup.as_ref().ok().map(|setup| setup.program.name());
    let sites = |row: &Row| -> BTreeSet<&str> {
        rows.iter()
            .filter(|other| other.source != row.source && program(other) == program(row))
            .filter_map(|other| Some(other.timing()?.0.hardware.site()))
            .collect()
    };
    let is_at_home = |row: &Row| sites(row).len() == 1;
    [
        ("all, unknown program", time_errors(unseen, &|row| sites(row).is_empty())),
        ("all, program of one other site", time_errors(unseen, &is_at_home)),
        ("all, known program", time_errors(unseen, &|row| sites(row).len() > 1)),
    ]
}

/// Scores of a predictor on a file of runs.
pub fn score(predictor: &Predictor, rows: &[Row]) -> Printout {
    let scored = score_all(predictor, rows);
    let table = rows_table(&scored);
    let json = json!({ "rows": table.json(), "summary": summary_json(&scored) });
    let mut out = Printout::new(json);
    out.table(table);
    let refused = rows.iter().filter(|row| row.setup.is_err()).count();
    add_summary(&scored, &format!("{} rows, {refused} refused", rows.len()), &mut out);
    out
}

/// Cell of a prediction; None if there is none.
fn prediction_cell(s: &Scored, cell: fn(&Prediction, &Setup) -> Cell) -> Option<Cell> {
    Some(cell(s.prediction.as_ref()?, s.row.setup.as_ref().ok()?))
}

/// Measured and predicted needs of rows, with what is wrong with a row below it.
fn rows_table(scored: &[Scored]) -> Table {
    let setup = |s: &Scored| s.row.setup.clone().ok();
    let measured = |value: Option<f64>| Cell::optional(value.map(|value| Cell::fixed(value, 2)));
    let shown = |s: &Scored, cell| Cell::optional(prediction_cell(s, cell));
    let if_known = |s: &Scored, cell| prediction_cell(s, cell).unwrap_or_default();
    Rows::new(scored)
        .column("row", "id", |s| s.row.id.clone())
        .json("line", |s| s.row.line)
        .json("program", |s| setup(s).map_or("", |setup| setup.program.name()))
        .json("machine", |s| setup(s).map_or("", |setup| &setup.hardware.name))
        .column("s predicted", "sec_per_iter", |s| shown(s, |p, _| Cell::fixed(p.seconds, 2)))
        .column("measured", "measured_sec_per_iter", |s| measured(s.row.seconds))
        .text("÷ or ×", |s| shown(s, |p, _| Cell::fixed(1.0 + p.seconds_error, 2)))
        .json("time_bar", |s| shown(s, |p, _| p.seconds_error.into()))
        .column("GB predicted", "mem_gb", |s| shown(s, |p, _| Cell::fixed(p.gigabytes, 1)))
        .column("measured", "measured_mem_gb", |s| measured(s.row.memory_gb))
        .json("mem_bar", |s| shown(s, |p, _| p.gigabytes_error.into()))
        .column("fits", "fits", |s| shown(s, |p, _| p.verdict.answer()))
        .json("verdict", |s| shown(s, |p, _| p.verdict.name().into()))
        .json("share_beyond", |s| shown(s, |p, _| p.verdict.share_beyond().into()))
        .json("measured_fits", |s| Cell::new(s.row.fits, ""))
        .json("mem_needed_gb", |s| if_known(s, |p, _| p.memory.needed().into()))
        .json("tflops", |s| {
            if_known(s, |p, s| (s.flops().1 / (p.seconds * s.ranks() as f64 * 1e12)).into())
        })
        .json("tflops_simple", |s| if_known(s, |p, s| s.simple_tflops(p.seconds).into()))
        .line_below("refused", |s| match &s.row.setup {
            Err(why) => Cell::new(why.clone(), format!("refused: {why}")),
            Ok(_) => Cell::new(Value::Null, ""),
        })
        .line_below("odd", |s| {
            let problems = s.row.problems();
            let shown = if s.row.setup.is_ok() { &problems[..] } else { &[] };
            let lines: Vec<String> = shown
                .iter()
                .map(|problem| format!("odd: {problem}"))
                .collect();
            Cell::new(problems.clone(), lines.join("\n"))
        })
        .table()
}

fn summary_json(scored: &[Scored]) -> Value {
    let named = summary(scored)
        .into_iter()
        .map(|(name, e)| (name, json!(e)));
    let mut all: Map<String, Value> = named.collect();
    let found = outcomes(scored, &is_known_cluster);
    all.insert("fits, Jean Zay's A100".to_string(), json!(found));
    all.insert("sweeps".to_string(), sweeps_table(scored).json());
    all.into()
}
