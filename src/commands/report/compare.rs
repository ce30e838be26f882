//! Several runs side by side: losses at the same step and at the same tokens, speed, settings that
//! differ. The same rows as text, as JSON, and on a page with the curves drawn over each other.

use super::curves::{self, Over};
use super::page::{self, Run, figure};
use base::svg::{Scale, escape, short};
use base::{Count, columns};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use train::report::numbers::{Format, Shown, StepRow, shown};

/// Settings that differ between any two runs: names and paths.
const OWN: [&str; 3] = ["name", "log.folder", "data.cache"];

/// Runs, each with the label that it has in tables and legends.
pub struct Comparison(pub Vec<(String, Run)>);

/// Quantity of every run.
struct Row {
    name: String,
    format: Format,
    /// Value of each run; NaN for a run that has none.
    values: Vec<f64>,
}

impl Row {
    fn show(&self, value: f64) -> String {
        if value.is_finite() { self.format.show(value) } else { "–".into() }
    }

    /// Second run's value relative to the first one's.
    fn difference(&self) -> String {
        let [first, second] = self.values[..] else { return String::new() };
        match self.format {
            _ if !(second - first).is_finite() => String::new(),
            Format::Count => String::new(),
            Format::Digits => format!("{:+.4}", second - first),
            Format::Percent => format!("{:+.1}", second - first),
            _ if first == 0.0 => String::new(),
            _ => format!("{:+.1} %", 100.0 * (second / first - 1.0)),
        }
    }
}

impl Comparison {
    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.0.iter().map(|(_, run)| run)
    }

    fn row(&self, name: impl Into<String>, format: Format, value: impl Fn(&Run) -> f64) -> Row {
        Row { name: name.into(), format, values: self.runs().map(value).collect() }
    }

    /// All rows: the losses at the last step and at the last token that all runs reached.
    fn rows(&self) -> Vec<Row> {
        let least =
            |over: Over| self.runs().map(|run| over.of(run.last())).fold(f64::INFINITY, f64::min);
        let at = [Over::Step, Over::Tokens].map(|over| (over, least(over)));
        // Runs with the same batches reach the same tokens at the same step: one row says both.
        let steps = self.runs().map(|run| &run.metrics.steps);
        let tokens = steps.filter_map(|steps| steps.iter().find(|row| row.step as f64 >= at[0].1));
        let tokens: BTreeSet<u64> = tokens.map(|row| row.tokens).collect();
        let at = if tokens.len() == 1 { &at[..1] } else { &at[..] };
        let mut rows = vec![
            self.row("steps", Format::Count, |run| run.last().step as f64),
            self.row("tokens", Format::Count, |run| run.last().tokens as f64),
        ];
        for (over, most) in at {
            let name = format!("training loss {}", over.at(*most));
            let losses = |run: &Run| run.recent(|row| over.of(row) <= *most, |row| row.lm_loss);
            rows.push(self.row(name, Format::Digits, losses));
        }
        for set in self.sets() {
            rows.extend(at.iter().filter_map(|(over, _)| self.valid(&set, *over)));
            let best = |run: &Run| run.best(&set).map_or(f64::NAN, |best| best.lm_loss);
            rows.push(self.row(format!("best validation loss, {set}"), Format::Digits, best));
        }
        let medians = shown(|place| match place {
            Shown::Median(at, name, format) => Some((at, (name, format))),
            _ => None,
        });
        rows.extend(medians.map(|(number, (name, format))| {
            self.row(name, format, |run| run.recent(|_| true, |row| number.or_nan(row)))
        }));
        let seconds = |run: &Run| run.metrics.steps.iter().map(|row| row.sec).sum();
        rows.push(self.row("time in steps", Format::Seconds, seconds));
        let goodput = |run: &Run| 100.0 * run.goodput.unwrap_or(f64::NAN);
        rows.push(self.row("goodput", Format::Percent, goodput));
        rows
    }

    /// Validation sets that several runs have.
    fn sets(&self) -> Vec<String> {
        let mut count = BTreeMap::<&str, usize>::new();
        for set in self.runs().flat_map(|run| curves::valid_sets(&run.metrics)) {
            *count.entry(set).or_default() += 1;
        }
        count.iter().filter(|(_, runs)| **runs > 1).map(|(set, _)| set.to_string()).collect()
    }

    /// Loss on a validation set at the last point that all its runs reached, linearly interpolated
    /// between two evaluations.
    fn valid(&self, set: &str, over: Over) -> Option<Row> {
        let of = |run: &Run| curves::valid_over(&run.metrics, set, over);
        let ends = self.runs().filter_map(|run| of(run).last().map(|point| point.0));
        let most = ends.fold(f64::INFINITY, f64::min);
        let name = format!("validation loss {}, {set}", over.at(most));
        most.is_finite().then(|| self.row(name, Format::Digits, |run| between(&of(run), most)))
    }

    /// Settings that differ: key, and the value of each run.
    fn settings(&self) -> Vec<(String, Vec<String>)> {
        let read = |run: &Run| run.manifest.as_deref().map(settings_of).unwrap_or_default();
        let all: Vec<BTreeMap<String, Value>> = self.runs().map(read).collect();
        let keys: BTreeSet<&String> = all.iter().flat_map(|settings| settings.keys()).collect();
        let shown = |value: Option<&Value>| match value {
            None => "–".to_string(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let row = |key: &String| {
            let values = all.iter().map(|settings| shown(settings.get(key))).collect();
            (key.clone(), values)
        };
        let rows = keys.into_iter().filter(|key| !OWN.contains(&key.as_str())).map(row);
        rows.filter(|(_, values): &(_, Vec<String>)| values.iter().any(|v| *v != values[0]))
            .collect()
    }

    fn labels(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(label, _)| label.clone())
    }

    /// Cells of the table of numbers, its head first; for two runs with their difference.
    fn cells(&self) -> Vec<Vec<String>> {
        let pair = self.0.len() == 2;
        let head = [String::new()].into_iter().chain(self.labels());
        let head: Vec<String> = head.chain(pair.then(|| "difference".to_string())).collect();
        let cells = |row: Row| {
            let difference = pair.then(|| row.difference());
            let values = row.values.iter().map(|value| row.show(*value));
            [row.name.clone()].into_iter().chain(values).chain(difference).collect()
        };
        [head].into_iter().chain(self.rows().into_iter().map(cells)).collect()
    }

    /// Cells of the table of settings, its head first.
    fn setting_cells(&self) -> Vec<Vec<String>> {
        let head = ["setting".to_string()].into_iter().chain(self.labels()).collect();
        let cells = |(key, values): (String, Vec<String>)| [vec![key], values].concat();
        [head].into_iter().chain(self.settings().into_iter().map(cells)).collect()
    }

    /// Two tables. Truncates long values of settings.
    pub fn text(&self) -> String {
        const LONGEST: usize = 32;
        let cut = |cell: String| match cell.chars().count() {
            0..=LONGEST => cell,
            _ => cell.chars().take(LONGEST - 1).chain(['…']).collect(),
        };
        let settings = self.setting_cells();
        let settings: Vec<Vec<String>> =
            settings.into_iter().map(|row| row.into_iter().map(cut).collect()).collect();
        let below = match settings.len() {
            1 => "all settings are equal".to_string(),
            _ => columns(&settings, 1),
        };
        format!("{}\n\n{below}", columns(&self.cells(), 1))
    }

    pub fn object(&self) -> Value {
        let known = |value: &f64| Some(*value).filter(|value| value.is_finite());
        let row = |row: Row| {
            let values: Vec<Option<f64>> = row.values.iter().map(known).collect();
            json!({ "name": row.name, "values": values })
        };
        let rows: Vec<Value> = self.rows().into_iter().map(row).collect();
        let settings: BTreeMap<_, _> = self.settings().into_iter().collect();
        json!({ "runs": self.labels().collect::<Vec<_>>(), "rows": rows, "settings": settings })
    }

    /// Self-contained HTML page.
    pub fn html(&self, scale: Scale) -> String {
        let runs: Vec<_> =
            self.0.iter().map(|(label, run)| (label.as_str(), &run.metrics)).collect();
        let loss = |row: &StepRow| row.lm_loss;
        let wide = curves::overlay(&runs, Over::Step, scale, true, loss);
        let mut body = figure("loss (dots: validation)", &wide, "wide");
        body += "<div class=\"grid\">\n";
        let by_tokens = curves::overlay(&runs, Over::Tokens, scale, false, loss);
        body += &figure("loss over tokens", &by_tokens, "");
        let charts = shown(|place| match place {
            Shown::Overlay(at, title, scale) => Some((at, (title, scale))),
            _ => None,
        });
        for (number, (title, scale)) in charts {
            let chart = curves::overlay(&runs, Over::Step, scale, false, |row| number.or_nan(row));
            body += &figure(title, &chart, "");
        }
        body += "</div>\n<div class=\"tables\">";
        body += &section("numbers", &self.cells());
        match &self.setting_cells()[..] {
            [_] => body += "<section><h2>all settings are equal</h2></section>\n",
            rows => body += &section("settings that differ", rows),
        }
        page::document("runs compared", "gptrain compare", &(body + "</div>"))
    }
}

fn section(title: &str, rows: &[Vec<String>]) -> String {
    let mut to = format!("<section><h2>{title}</h2>\n<table>\n");
    for (number, row) in rows.iter().enumerate() {
        let cell = |(column, text): (usize, &String)| match number == 0 || column == 0 {
            true => format!("<th>{}</th>", escape(text)),
            false => format!("<td>{}</td>", escape(text)),
        };
        let _ = writeln!(to, "<tr>{}</tr>", row.iter().enumerate().map(cell).collect::<String>());
    }
    to + "</table></section>\n"
}

impl Over {
    /// "at step 300", "at 1.2M tokens".
    fn at(self, value: f64) -> String {
        match self {
            Over::Step => format!("at step {}", Count(value as u64)),
            Over::Tokens => format!("at {} tokens", short(value)),
        }
    }
}

/// Linear interpolation between ascending points; NaN outside.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let after = points.partition_point(|point| point.0 < x);
    match (points.get(after.wrapping_sub(1)), points.get(after)) {
        (_, Some((x1, y1))) if *x1 == x => *y1,
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        _ => f64::NAN,
    }
}

/// Settings of a manifest by full key (`batch.global`); a list is one value.
pub fn settings_of(manifest: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    if let Ok(tree) = serde_saphyr::from_str::<Value>(manifest) {
        flatten("", tree, &mut all);
    }
    all
}

fn flatten(key: &str, value: Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(below) if !below.is_empty() => {
            for (name, value) in below {
                let whole = if key.is_empty() { name } else { format!("{key}.{name}") };
                flatten(&whole, value, all);
            }
        }
        value => {
            all.insert(key.to_string(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{between, settings_of};

    #[test]
    fn values_between_two_evaluations_are_on_their_line() {
        let points = [(10.0, 4.0), (20.0, 3.0), (30.0, 2.0)];
        assert_eq!([10.0, 20.0, 25.0, 30.0].map(|x| between(&points, x)), [4.0, 3.0, 2.5, 2.0]);
        assert!(between(&points, 9.0).is_nan() && between(&points, 31.0).is_nan());
        assert!(between(&[], 1.0).is_nan());
    }

    #[test]
    fn settings_have_their_whole_keys() {
        let settings = settings_of("batch: {micro: 1, global: 8}\ndata: {stages: []}\nname: a\n");
        let keys: Vec<&String> = settings.keys().collect();
        assert_eq!(keys, ["batch.global", "batch.micro", "data.stages", "name"]);
    }
}
