//! Report of a run as one self-contained HTML page.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::curves::{self, XAxis};
use base::calendar::date_and_minute;
use base::svg::{Chart, PAGE, STYLE, Scale, Stroke, escape, short_number};
use base::table::{Cell, Rows, Table};
use base::{Count, Seconds, input};
use checkpoint::inspect::settings_by_key;
use launch::events::{self, Event, Kind};
use serde_json::Value;
use std::collections::BTreeMap;
use train::changed_settings::SettingChange;
use train::report::metrics::{EvalRow, Metrics};
use train::report::numbers::{Format, Shown, StepRow, placed_numbers};
use train::status::Status;

/// Title of the loss chart, with its unit.
const LOSS: &str = "loss, nats a token";

/// Number of last steps whose median is shown.
const RECENT: usize = 50;

/// Inputs of a page.
pub struct Run {
    pub name: String,
    /// Text of `manifest.yaml` in the run's folder, if it exists.
    pub manifest: Option<String>,
    /// All settings by key, as the run last ran.
    pub settings: BTreeMap<String, Value>,
    /// Parameters of the model, if the manifest can be read.
    pub parameters: Option<u64>,
    /// Settings that changed between its starts.
    pub changes: Vec<SettingChange>,
    pub metrics: Metrics,
    /// Share of the run's time that went into steps, if its folder has a status.
    pub goodput: Option<f64>,
    /// Events, oldest first.
    pub events: Vec<Event>,
}

impl Run {
    /// Reads the run in `folder`.
    pub fn read(folder: &Path) -> Result<Run> {
        let metrics = Metrics::read(folder)?;
        let manifest = input::read(&folder.join("manifest.yaml"), input::SMALL)
            .ok()
            .and_then(|text| String::from_utf8(text).ok());
        let named = manifest.as_deref().and_then(manifest_name);
        // Without a readable manifest, the keys of its text.
        let loaded = ::manifest::load(folder, &[]).ok();
        let parameters = loaded
            .as_ref()
            .map(|loaded| model::parameters(&loaded.manifest.model));
        let effective = loaded.map(|loaded| loaded.effective);
        let settings = effective
            .as_ref()
            .or(manifest.as_ref())
            .map(|text| settings_by_key(text))
            .unwrap_or_default();
        let goodput = Status::read(folder).ok().map(|status| status.goodput());
        let name = named.unwrap_or_else(|| {
            let whole = folder
                .canonicalize()
                .unwrap_or_else(|_| folder.to_path_buf());
            whole
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        });
        let events = events::read(folder)?;
        let changes = events
            .iter()
            .filter(|event| event.kind == Kind::Setting)
            .filter_map(|event| SettingChange::parse(&event.text))
            .collect();
        Ok(Run { name, manifest, settings, parameters, changes, metrics, goodput, events })
    }

    /// Loss curves as an SVG picture, for a README.
    pub fn loss_svg(&self, scale: Scale) -> String {
        curves::loss(&self.metrics, &format!("{}: {LOSS}", self.name), scale)
            .draw()
            .file()
    }

    /// HTML of the page.
    pub fn html(&self, scale: Scale) -> String {
        let tiles = self.tiles();
        let sections = self.sections(scale);
        let table = self.last_step_table();
        let valid = self.valid_table() + &self.task_table() + &self.parts_table();
        let events = self.events_table();
        let manifest = self.manifest.as_deref().map_or(String::new(), |text| {
            format!(
                "<details><summary>manifest.yaml</summary><pre>{}</pre></details>",
                escape(text)
            )
        });
        let tables = format!("<div class=\"tables\">{valid}{table}</div>\n");
        let body = format!("{tiles}{sections}{tables}{events}{manifest}");
        document(&self.name, &self.origin(), &body)
    }

    /// Line below the title: parameters, machine, and the last start with its command.
    fn origin(&self) -> String {
        let parameters = self
            .parameters
            .map(|count| format!("{} parameters", Count(count)));
        let start = self
            .events
            .iter()
            .rfind(|event| event.kind == Kind::Start)
            .map(|event| format!("{}, {}", date_and_minute(event.at), escape(&event.text)));
        let parts = ["gptrain run report".to_string()]
            .into_iter()
            .chain(parameters)
            .chain(start);
        parts.collect::<Vec<_>>().join(" · ")
    }

    /// Table of the last events, with the time since the first one.
    fn events_table(&self) -> String {
        const SHOWN: usize = 200;
        let Some(first) = self.events.first() else { return String::new() };
        let mut to = String::from(
            "<section><h2>what happened</h2>\n<table>\n<tr><th>after</th><th></th><th></th></tr>\n",
        );
        let hidden = self.events.len().saturating_sub(SHOWN);
        for event in &self.events[hidden..] {
            let after = Seconds((event.at - first.at).max(0.0));
            let kind = event.kind;
            let text = escape(&event.text);
            let _ = writeln!(to, "<tr><td>{after}</td><td>{kind}</td><td>{text}</td></tr>");
        }
        to + "</table></section>\n"
    }

    pub fn last(&self) -> &StepRow {
        self.metrics
            .steps
            .last()
            .expect("a record without steps is refused when it is read")
    }

    /// Evaluation on `set` with the lowest loss.
    pub fn best(&self, set: &str) -> Option<&EvalRow> {
        let rows = self.metrics.evals.iter().filter(|row| row.eval == set);
        rows.filter(|row| row.lm_loss.is_finite())
            .min_by(|a, b| a.lm_loss.total_cmp(&b.lm_loss))
    }

    fn tiles(&self) -> String {
        let last = self.last();
        let mut to = String::from("<ul class=\"tiles\">\n");
        let mut tile = |name: &str, value: String, more: String| {
            let _ = writeln!(to, "<li><span>{name}</span><b>{value}</b><small>{more}</small></li>");
        };
        let samples = format!("{} samples", Count(last.consumed_samples));
        tile("tokens", short_number(last.tokens as f64), samples);
        let recent = |value: fn(&StepRow) -> f64| self.recent(|_| true, value);
        // The median of a short run would be a loss of its beginning.
        if self.metrics.steps.len() < RECENT {
            tile("training loss", number(last.lm_loss), format!("step {}", Count(last.step)));
        } else {
            let median = format!("median of the last {RECENT} steps");
            tile("training loss", number(recent(|row| row.lm_loss)), median);
        }
        // Losses on different sets do not compare: the tile is the first set's.
        let first = curves::valid_sets(&self.metrics)
            .first()
            .and_then(|set| self.best(set));
        if let Some(best) = first {
            let at = format!("step {}, {}", Count(best.step), escape(&best.eval));
            tile("best validation loss", number(best.lm_loss), at);
        }
        let typical = format!("{} a step", Seconds(recent(|row| row.sec)));
        tile("tokens a second", short_number(recent(|row| row.tokens_per_s)), typical);
        let total: f64 = self.metrics.steps.iter().map(|row| row.sec).sum();
        let steps = self.metrics.steps.len();
        if let Some(goodput) = self.goodput {
            let all = "time in steps, of that from starts to ends".to_string();
            tile("goodput", format!("{:.1} %", 100.0 * goodput), all);
        }
        let steps = Count(steps as u64).with_noun("step");
        tile("time in steps", Seconds(total).to_string(), steps);
        to + "</ul>\n"
    }

    /// Median of a quantity over the last `RECENT` steps; NaN without steps.
    pub fn recent(&self, these: impl Fn(&StepRow) -> bool, value: impl Fn(&StepRow) -> f64) -> f64 {
        let steps = self.metrics.steps.iter().rev().filter(|row| these(row));
        let mut values: Vec<f64> = steps.take(RECENT).map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn sections(&self, scale: Scale) -> String {
        let metrics = &self.metrics;
        let charts = placed_numbers(|place| match place {
            Shown::Chart(order, title, stroke, scale, value) => {
                Some((order, (title, stroke, scale, value)))
            }
            _ => None,
        });
        // A constant is a row of the table of the last step.
        let charts = charts
            .filter(|(_, (.., value))| curves::varies(metrics, value))
            .map(|(_, (title, stroke, scale, value))| {
                let scale = scale.unwrap_or_else(|| curves::fitting_scale(metrics, value));
                (title, curves::small(metrics, stroke, scale, value))
            });
        let late = curves::late_loss(metrics, scale);
        let loss = curves::loss(metrics, "", scale);
        let narrow = Chart { width: 480.0, height: 360.0, ..loss.clone() };
        let mut to = figure(LOSS, &loss, "wide broad") + &figure(LOSS, &narrow, "wide narrow");
        to += "<div class=\"grid\">\n";
        if let Some(chart) = &late {
            to += &figure("loss without the first tenth, nats a token", chart, "");
        }
        if let Some(chart) = &curves::tasks(metrics) {
            to += &figure("accuracy on tasks, normalised by length", chart, "");
        }
        for (title, chart) in charts {
            to += &figure(title, &chart, "");
        }
        to + "</div>\n"
    }

    fn last_step_table(&self) -> String {
        let last = self.last();
        let numbers = placed_numbers(|place| match place {
            Shown::Last(name, format) => Some((0, (name, format))),
            _ => None,
        });
        let mut facts = Vec::new();
        for (number, (name, format)) in numbers {
            facts.extend((number.value)(last).map(|value| (name, format.show(value))));
        }
        section("last step", &Table::facts(facts), false, "")
    }

    fn valid_table(&self) -> String {
        let best = |set: &str| self.best(set);
        let loss = |set: &str| best(set).map_or(f64::NAN, |best| best.lm_loss);
        let sets = curves::valid_sets(&self.metrics);
        let table = Rows::new(&sets)
            .text("set", |set| *set)
            .text("last", |set| {
                let losses = curves::valid_losses(&self.metrics, set, XAxis::Step);
                number(losses.last().map_or(f64::NAN, |point| point.1))
            })
            .text("best", |set| number(loss(set)))
            .text("at step", |set| {
                Cell::optional(best(set).map(|best| Count(best.step).to_string()))
            })
            .text("perplexity", |set| number(loss(set).exp()));
        section("validation", &table.table(), false, "")
    }

    /// Table of the newest accuracies.
    fn task_table(&self) -> String {
        let score = |score: Option<f64>| Cell::optional(score.map(|score| Cell::fixed(score, 4)));
        let mut rows = Vec::new();
        for name in curves::task_names(&self.metrics) {
            rows.extend(curves::task_rows(&self.metrics, name).last());
        }
        let table = Rows::new(rows)
            .text("task", |row| row.task.clone())
            .text("acc", |row| score(row.accuracy.acc))
            .text("acc_norm", |row| score(row.accuracy.acc_norm))
            .text("perplexity", |row| score(row.accuracy.perplexity))
            .text("at step", |row| Count(row.step).to_string())
            .text("questions", |row| Count(row.accuracy.questions).to_string());
        section("tasks", &table.table(), false, "")
    }

    /// Table of the parts of a step, planned and measured.
    fn parts_table(&self) -> String {
        let Some(parts) = &self.metrics.parts else { return String::new() };
        let summary = format!("\n<p>{}</p>", escape(&parts.summary()));
        section("plan and step", &parts.table(), false, &summary)
    }
}

/// Section with a table, and HTML `below` it; empty without rows.
pub fn section(title: &str, table: &Table, may_wrap: bool, below: &str) -> String {
    if table.is_empty() {
        return String::new();
    }
    let table = table.html(may_wrap);
    format!("<section><h2>{title}</h2>\n{table}{below}</section>\n")
}

/// Self-contained HTML page.
pub fn document(title: &str, about: &str, body: &str) -> String {
    let title = escape(title);
    let style = PAGE;
    let script = include_str!("page.js");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title} – gptrain</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n\
         <main>\n<header><h1>{title}</h1><p>{about}</p></header>\n{body}\n</main>\n\
         <script>\n{script}</script>\n</body>\n</html>\n"
    )
}

/// Chart with its heading, a line for the values under the pointer, and the data for it.
pub fn figure(title: &str, chart: &Chart, class: &str) -> String {
    let [axis, _] = chart.axes();
    let tokens: Vec<_> = chart
        .second
        .iter()
        .map(|(x, y)| format!("[{x},{y}]"))
        .collect();
    let points = |points: &[(f64, f64)]| {
        let pairs: Vec<_> = points
            .iter()
            .map(|(x, y)| format!("[{x},{}]", json(*y)))
            .collect();
        format!("[{}]", pairs.join(","))
    };
    let named = |name: &str| serde_json::to_string(name).expect("text is always JSON");
    let curves: Vec<_> = chart
        .curves
        .iter()
        .map(|c| {
            let name = named(&c.name);
            let line = c.stroke != Stroke::Dots;
            format!("{{\"name\":{name},\"line\":{line},\"points\":{}}}", points(&c.points))
        })
        .collect();
    let data = format!(
        "{{\"unit\":{},\"legend\":{},\"axis\":[{},{},{},{}],\"tokens\":[{}],\"curves\":[{}]}}",
        named(chart.names[0]),
        chart.legend,
        axis.low,
        axis.high,
        axis.from,
        axis.to,
        tokens.join(","),
        curves.join(",")
    );
    // `</script>` in a set's name would end the element.
    let data = data.replace('<', "\\u003c");
    format!(
        "<figure class=\"{class}\"><figcaption><h2>{title}</h2><output></output></figcaption>\n\
         {}<script type=\"application/json\">{data}</script></figure>\n",
        chart.draw().inline()
    )
}

/// Value with five significant digits.
fn number(value: f64) -> String {
    Format::Digits.show(value)
}

/// Value with six digits, which is all that the readout shows.
fn json(value: f64) -> String {
    if !value.is_finite() {
        return "null".into();
    }
    let rounded: f64 = format!("{value:.5e}")
        .parse()
        .expect("a printed number parses");
    format!("{rounded:?}")
}

/// Name of the run in its manifest.
fn manifest_name(manifest: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        name: Option<String>,
    }
    serde_saphyr::from_str::<Named>(manifest).ok()?.name
}
