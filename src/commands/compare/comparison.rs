//! Several runs side by side: losses at the same step and at the same tokens, speed, the first step that
//! differs, and settings that differ. The same rows as text, as JSON, and on a page with the curves drawn over each other.

use super::parting::{self, Parting};
use crate::report::curves::{self, XAxis};
use crate::report::page::{self, Run, figure};
use anyhow::Result;
use base::Count;
use base::svg::{Chart, Scale, escape, short_number};
use base::table::{Cell, Printout, Rows, Table};
use launch::events::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use train::report::numbers::{Format, Shown, StepRow, placed_numbers};

/// Settings that differ between any two runs: names and paths.
const OWN: [&str; 3] = ["name", "log.folder", "data.cache"];

/// Part of the longest run below which a run is too short to be compared with the others.
const SHORT: f64 = 0.25;

/// Columns of a terminal for the values of a setting.
const WIDTH: usize = 70;

/// Runs, each with the label that it has in tables and legends.
pub struct Comparison(Vec<(String, Run)>);

/// Quantity of every run.
struct ComparedRow {
    name: String,
    format: Format,
    /// Value of each run; NaN for a run that has none.
    values: Vec<f64>,
}

impl ComparedRow {
    fn show(&self, value: f64) -> String {
        if value.is_finite() { self.format.show(value) } else { "–".into() }
    }

    /// Second run's value relative to the first one's.
    fn difference(&self) -> Cell {
        let [first, second] = self.values[..] else { return Cell::default() };
        let difference = second - first;
        let text = match self.format {
            _ if !difference.is_finite() => String::new(),
            Format::Count => String::new(),
            Format::Digits => format!("{difference:+.4}"),
            Format::Percent => format!("{difference:+.1}"),
            _ if first == 0.0 => String::new(),
            _ => format!("{:+.1} %", 100.0 * (second / first - 1.0)),
        };
        Cell::new(difference, text)
    }
}

impl Comparison {
    /// Reads the runs in these folders.
    pub fn read(folders: &[PathBuf]) -> Result<Comparison> {
        let runs = folders
            .iter()
            .map(|folder| Run::read(folder))
            .collect::<Result<Vec<_>>>()?;
        Ok(Comparison(labels(folders).into_iter().zip(runs).collect()))
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.0.iter().map(|(_, run)| run)
    }

    fn row(
        &self,
        name: impl Into<String>,
        format: Format,
        value: impl Fn(&Run) -> f64,
    ) -> ComparedRow {
        ComparedRow { name: name.into(), format, values: self.runs().map(value).collect() }
    }

    /// Runs that are compared at a common step and token: those that are not far shorter than the longest;
    /// all, if these are not two.
    fn long_runs(&self) -> Vec<&Run> {
        let steps = |run: &Run| run.last().step as f64;
        let longest = self.runs().map(steps).fold(0.0, f64::max);
        let long: Vec<&Run> = self
            .runs()
            .filter(|run| steps(run) >= SHORT * longest)
            .collect();
        if long.len() > 1 { long } else { self.runs().collect() }
    }

    /// Last step or token that all runs to be compared there reached.
    fn common(&self, axis: XAxis) -> f64 {
        let ends = self
            .long_runs()
            .into_iter()
            .map(|run| axis.value(run.last()));
        ends.fold(f64::INFINITY, f64::min)
    }

    /// Notes about runs that end before the common step, or far before the others.
    fn notes(&self) -> Vec<String> {
        let common = self.common(XAxis::Step);
        let longest = self.runs().map(|run| run.last().step).max().unwrap_or(0);
        self.0
            .iter()
            .filter_map(|(label, run)| {
                let last = run.last().step;
                let ends = format!("{label} ends at step {}", Count(last));
                let at = Count(common as u64);
                if (last as f64) < common {
                    Some(format!("{ends}: it is not compared at step {at}"))
                } else if (last as f64) < SHORT * longest as f64 {
                    let longest = Count(longest);
                    Some(format!("{ends}: the others, up to step {longest}, are compared there"))
                } else {
                    None
                }
            })
            .collect()
    }

    /// All rows: the losses at the last step and at the last token that the runs reached, and at the end
    /// of each.
    fn rows(&self) -> Vec<ComparedRow> {
        let points = [XAxis::Step, XAxis::Tokens].map(|axis| (axis, self.common(axis)));
        // Runs with the same batches reach the same tokens at the same step: one row says both.
        let steps = self.long_runs().into_iter().map(|run| &run.metrics.steps);
        let tokens =
            steps.filter_map(|steps| steps.iter().find(|row| row.step as f64 >= points[0].1));
        let tokens: BTreeSet<u64> = tokens.map(|row| row.tokens).collect();
        let points = if tokens.len() == 1 { &points[..1] } else { &points[..] };
        let mut rows = vec![
            self.row("steps", Format::Count, |run| run.last().step as f64),
            self.row("tokens", Format::Count, |run| run.last().tokens as f64),
        ];
        for (axis, most) in points {
            let name = format!("training loss {}", axis.place(*most));
            rows.push(self.row(name, Format::Digits, |run: &Run| match axis.value(run.last()) {
                end if end < *most => f64::NAN,
                _ => run.recent(|row| axis.value(row) <= *most, |row| row.lm_loss),
            }));
        }
        if self.runs().any(|run| run.last().step as f64 != points[0].1) {
            rows.push(self.row("training loss at each run's end", Format::Digits, |run: &Run| {
                run.recent(|_| true, |row| row.lm_loss)
            }));
        }
        for set in self.sets() {
            rows.extend(
                points
                    .iter()
                    .filter_map(|(axis, _)| self.valid(&set, *axis)),
            );
            rows.push(self.row(
                format!("best validation loss, {set}"),
                Format::Digits,
                |run: &Run| run.best(&set).map_or(f64::NAN, |best| best.lm_loss),
            ));
        }
        let medians = placed_numbers(|place| match place {
            Shown::Median(order, name, format) => Some((order, (name, format))),
            _ => None,
        });
        rows.extend(medians.map(|(number, (name, format))| {
            self.row(name, format, |run| run.recent(|_| true, |row| number.value_or_nan(row)))
        }));
        rows.push(self.row("time in steps", Format::Seconds, |run: &Run| {
            run.metrics.steps.iter().map(|row| row.sec).sum()
        }));
        rows.push(
            self.row("goodput", Format::Percent, |run: &Run| {
                100.0 * run.goodput.unwrap_or(f64::NAN)
            }),
        );
        rows
    }

    /// Validation sets that several runs have.
    fn sets(&self) -> Vec<String> {
        let mut count = BTreeMap::<&str, usize>::new();
        for set in self.runs().flat_map(|run| curves::valid_sets(&run.metrics)) {
            *count.entry(set).or_default() += 1;
        }
        count
            .iter()
            .filter(|(_, runs)| **runs > 1)
            .map(|(set, _)| set.to_string())
            .collect()
    }

    /// Loss on a validation set at the last point that all its runs reached, linearly interpolated
    /// between two evaluations.
    fn valid(&self, set: &str, axis: XAxis) -> Option<ComparedRow> {
        let losses = |run: &Run| curves::valid_losses(&run.metrics, set, axis);
        let long = self.long_runs().into_iter();
        let ends = long.filter_map(|run| losses(run).last().map(|point| point.0));
        let most = ends.fold(f64::INFINITY, f64::min);
        let name = format!("validation loss {}, {set}", axis.place(most));
        most.is_finite()
            .then(|| self.row(name, Format::Digits, |run| interpolate_at(&losses(run), most)))
    }

    /// Settings that differ: key, and the value of each run.
    fn settings(&self) -> Vec<(String, Vec<String>)> {
        let keys: BTreeSet<&String> = self.runs().flat_map(|run| run.settings.keys()).collect();
        let rows = keys
            .into_iter()
            .filter(|key| !OWN.contains(&key.as_str()))
            .map(|key: &String| {
                let values = self.runs().map(|run| describe_setting(run, key)).collect();
                (key.clone(), values)
            });
        rows.filter(|(_, values): &(_, Vec<String>)| values.iter().any(|v| *v != values[0]))
            .collect()
    }

    fn labels(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(label, _)| label.clone())
    }

    /// First difference of each later run from the first.
    fn partings(&self) -> Table {
        let mut partings = Vec::new();
        for (label, run) in &self.0[1..] {
            partings.push(Parting::find(&self.0[0].1.metrics, label, &run.metrics));
        }
        parting::table(&self.0[0].0, &partings)
    }

    /// Last start of each run: version and commit, machine, command.
    fn starts(&self) -> Table {
        let mut starts = Vec::new();
        for (label, run) in &self.0 {
            let start = run.events.iter().rfind(|event| event.kind == Kind::Start);
            starts.extend(start.map(|start| (label, &start.text)));
        }
        Rows::new(&starts)
            .column("run", "run", |(label, _)| label.to_string())
            .column("last start", "start", |(_, text)| text.to_string())
            .table()
    }

    /// Table of the numbers; of two runs with their difference.
    fn numbers(&self) -> Table {
        let rows = self.rows();
        let mut table = Rows::new(&rows).column("", "name", |row| row.name.clone());
        for (run, label) in self.labels().enumerate() {
            table = table.text(label, |row| Cell::new(row.values[run], row.show(row.values[run])));
        }
        if self.0.len() == 2 {
            table = table.text("difference", ComparedRow::difference);
        }
        table
            .json("values", |row| Cell::new(row.values.clone(), ""))
            .table()
    }

    /// Table of settings that differ.
    fn settings_table(&self, settings: &[(String, Vec<String>)]) -> Table {
        let mut table = Rows::new(settings).text("setting", |(key, _)| key.clone());
        for (run, label) in self.labels().enumerate() {
            table = table.text(label, |(_, values)| values[run].clone());
        }
        table.table()
    }

    /// Both tables with the notes between them. Truncates long values of settings; those in JSON, which
    /// would lose their meaning, are whole below the tables.
    pub fn printout(&self) -> Printout {
        let settings = self.settings();
        let numbers = self.numbers();
        let partings = self.partings();
        let starts = self.starts();
        let mut out = Printout::new(json!({
            "runs": self.labels().collect::<Vec<_>>(), "rows": numbers.json(),
            "notes": self.notes(), "partings": partings.json(), "starts": starts.json(),
            "settings": BTreeMap::from_iter(settings.clone()),
        }));
        out.table(numbers);
        out.line("");
        for note in self.notes() {
            out.line(note + "\n");
        }
        out.table(partings);
        out.line("");
        out.table(starts);
        out.line("");
        if settings.is_empty() {
            out.line("all settings are equal");
        }
        let longest = (WIDTH / self.0.len().max(1)).clamp(12, 32);
        let (whole, mut short): (Vec<_>, Vec<_>) = settings.into_iter().partition(|(_, values)| {
            let is_json = |value: &String| value.starts_with(['[', '{']);
            values
                .iter()
                .any(|value| is_json(value) && value.chars().count() > longest)
        });
        for value in short.iter_mut().flat_map(|(_, values)| values) {
            let length = value.chars().count();
            if length > longest {
                // The ends of two paths differ more often than their beginnings.
                *value = ['…']
                    .into_iter()
                    .chain(value.chars().skip(length + 1 - longest))
                    .collect();
            }
        }
        out.table(self.settings_table(&short));
        for (key, values) in whole {
            out.line(format!("\n{key}"));
            for (label, value) in self.labels().zip(values) {
                out.line(format!("  {label}: {value}"));
            }
        }
        out
    }

    /// Self-contained HTML page.
    pub fn html(&self, scale: Scale) -> String {
        let runs: Vec<_> = self
            .0
            .iter()
            .map(|(label, run)| (label.as_str(), &run.metrics))
            .collect();
        let loss = |row: &StepRow| row.lm_loss;
        let wide = curves::overlay(&runs, XAxis::Step, scale, true, loss);
        let narrow = Chart { width: 480.0, height: 360.0, ..wide.clone() };
        let title = "loss, nats a token (dots: validation)";
        let mut body = figure(title, &wide, "wide broad") + &figure(title, &narrow, "wide narrow");
        body += "<div class=\"grid\">\n";
        let longest = runs.iter().max_by_key(|(_, metrics)| metrics.steps.len());
        let late = longest.and_then(|(_, metrics)| curves::without_first_tenth(wide, metrics));
        if let Some(chart) = &late {
            body += &figure("loss without the first tenth, nats a token", chart, "");
        }
        if let Some(chart) = parting::chart(&runs) {
            let title = format!("loss less that of {}, nats a token", escape(runs[0].0));
            body += &figure(&title, &chart, "");
        }
        let by_tokens = curves::overlay(&runs, XAxis::Tokens, scale, false, loss);
        body += &figure("loss over tokens, nats a token", &by_tokens, "");
        let charts = placed_numbers(|place| match place {
            Shown::Overlay(order, title, scale) => Some((order, (title, scale))),
            _ => None,
        });
        for (number, (title, scale)) in charts {
            let chart =
                curves::overlay(&runs, XAxis::Step, scale, false, |row| number.value_or_nan(row));
            body += &figure(title, &chart, "");
        }
        body += "</div>\n<div class=\"tables\">";
        body += &page::section("numbers", &self.numbers(), true, "");
        let notes = self
            .notes()
            .into_iter()
            .map(|note| format!("<p>{}</p>\n", escape(&note)));
        body.extend(notes);
        body += &page::section("first difference", &self.partings(), false, "");
        body += &page::section("last start", &self.starts(), false, "");
        match &self.settings()[..] {
            [] => body += "<section><h2>all settings are equal</h2></section>\n",
            settings => {
                let table = self.settings_table(settings);
                body += &page::section("settings that differ", &table, true, "");
            }
        }
        page::document("runs compared", "gptrain compare", &(body + "</div>"))
    }
}

/// Value of a setting in a run, with the values that it had in earlier starts: "0.001, 0.002 after step
/// 40".
fn describe_setting(run: &Run, key: &str) -> String {
    let mut changes = run
        .changes
        .iter()
        .filter(|change| change.key == key)
        .peekable();
    if let Some(first) = changes.peek() {
        let before = first.before.trim_matches('"').to_string();
        return changes.fold(before, |text, change| {
            format!("{text}, {} after step {}", change.after.trim_matches('"'), change.step)
        });
    }
    match run.settings.get(key) {
        None => "–".to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => {
            let datasets: Option<Vec<String>> = items.iter().map(dataset).collect();
            datasets.map_or_else(|| Value::from(items.clone()).to_string(), |all| all.join(", "))
        }
        Some(value) => value.to_string(),
    }
}

/// Dataset of a blend in words: its prefix, the part that is read, and a weight other than 1.
fn dataset(item: &Value) -> Option<String> {
    let text = |key: &str| item.get(key).and_then(Value::as_str);
    let part = match text("range") {
        Some(range) => range.to_string(),
        None => format!("{} of {}", text("part")?, text("split")?),
    };
    let weight = item
        .get("weight")
        .and_then(Value::as_f64)
        .filter(|weight| *weight != 1.0);
    let weight = weight.map_or(String::new(), |weight| format!(", weight {weight}"));
    Some(format!("{} ({part}{weight})", text("prefix")?))
}

/// Labels of the runs: the folders' last names if they differ, else the folders as given.
fn labels(runs: &[PathBuf]) -> Vec<String> {
    let short: Option<Vec<String>> = runs
        .iter()
        .map(|run| {
            run.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        })
        .collect();
    short
        .filter(|names| {
            let mut sorted = names.clone();
            sorted.sort();
            sorted.windows(2).all(|pair| pair[0] != pair[1])
        })
        .unwrap_or_else(|| runs.iter().map(|run| run.display().to_string()).collect())
}

impl XAxis {
    /// "at step 300", "at 1.2M tokens".
    fn place(self, value: f64) -> String {
        match self {
            XAxis::Step => format!("at step {}", Count(value as u64)),
            XAxis::Tokens => format!("at {} tokens", short_number(value)),
        }
    }
}

/// Linear interpolation between ascending points; NaN outside.
fn interpolate_at(points: &[(f64, f64)], x: f64) -> f64 {
    let after = points.partition_point(|point| point.0 < x);
    match (points.get(after.wrapping_sub(1)), points.get(after)) {
        (_, Some((x1, y1))) if *x1 == x => *y1,
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::{interpolate_at, labels};

    #[test]
    fn values_between_two_evaluations_are_on_their_line() {
        let points = [(10.0, 4.0), (20.0, 3.0), (30.0, 2.0)];
        assert_eq!(
            [10.0, 20.0, 25.0, 30.0].map(|x| interpolate_at(&points, x)),
            [4.0, 3.0, 2.5, 2.0]
        );
        assert!(interpolate_at(&points, 9.0).is_nan() && interpolate_at(&points, 31.0).is_nan());
        assert!(interpolate_at(&[], 1.0).is_nan());
    }

    #[test]
    fn labels_are_as_short_as_they_differ() {
        let of = |runs: &[&str]| labels(&runs.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(of(&["runs/a", "runs/b/"]), ["a", "b"]);
        assert_eq!(of(&["x/a", "y/a"]), ["x/a", "y/a"]);
        assert_eq!(of(&["..", "a"]), ["..", "a"]);
    }
}
