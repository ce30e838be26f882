//! The first step at which two runs part, and in which number and digit: another machine, another version
//! or another seed is seen long before the curves show it.

use crate::report::curves;
use base::Count;
use base::svg::{COLOURS, Chart, Curve, Scale, Stroke};
use base::table::{Cell, Rows, Table};
use std::collections::BTreeMap;
use train::report::metrics::Metrics;
use train::report::numbers::StepRow;

/// Number in a step's record.
type Value = fn(&StepRow) -> f64;

/// Numbers of a step in the order in which one follows from the other: the update of a step shows in
/// the loss of the next one.
const NUMBERS: [(&str, Value); 4] = [
    ("consumed samples", |row| row.consumed_samples as f64),
    ("learning rate", |row| row.lr),
    ("training loss", |row| row.lm_loss),
    ("gradient norm", |row| row.grad_norm),
];

/// Steps of two runs, from the first.
pub struct Parting {
    /// Label of the second run.
    label: String,
    /// Steps that both have.
    steps: usize,
    /// None if all of them are equal.
    first: Option<Difference>,
}

/// First number that differs.
struct Difference {
    step: u64,
    number: &'static str,
    values: [f64; 2],
}

impl Parting {
    pub fn find(first: &Metrics, label: &str, second: &Metrics) -> Parting {
        let pairs = common_steps(first, second);
        let difference = pairs.iter().find_map(|[first, second]| {
            let (number, value) = NUMBERS
                .into_iter()
                .find(|(_, value)| value(first).to_bits() != value(second).to_bits())?;
            Some(Difference { step: first.step, number, values: [value(first), value(second)] })
        });
        Parting { label: label.to_string(), steps: pairs.len(), first: difference }
    }

    fn describe(&self, first: &str) -> String {
        let label = &self.label;
        let steps = Count(self.steps as u64);
        match &self.first {
            _ if self.steps == 0 => format!("{label} has no step that {first} has"),
            None => format!("{label} equals {first} to the last bit in all {steps} common steps"),
            Some(Difference { step, number, values: [ours, theirs] }) => format!(
                "{label} parts from {first} at step {}: {number} {theirs}, not {ours} ({})",
                Count(*step),
                describe_digits(*ours, *theirs)
            ),
        }
    }
}

/// One line for each run after the first.
pub fn table(first: &str, partings: &[Parting]) -> Table {
    let value = |take: fn(&Difference) -> f64| {
        move |parting: &Parting| Cell::new(parting.first.as_ref().map(take), "")
    };
    Rows::new(partings)
        .text("first difference", |parting| parting.describe(first))
        .json("run", |parting| Cell::new(parting.label.clone(), ""))
        .json("common_steps", |parting| Cell::new(parting.steps, ""))
        .json("step", |parting| Cell::new(parting.first.as_ref().map(|first| first.step), ""))
        .json("number", |parting| Cell::new(parting.first.as_ref().map(|first| first.number), ""))
        .json("first", value(|first| first.values[0]))
        .json("second", value(|first| first.values[1]))
        .table()
}

/// "equal to 5 digits", by the relative difference.
fn describe_digits(first: f64, second: f64) -> String {
    let relative = (first - second).abs() / first.abs().max(second.abs());
    if !relative.is_finite() {
        return "not a finite number".to_string();
    }
    match -relative.log10().ceil() {
        digits if digits < 1.0 => "other from the first digit".to_string(),
        1.0 => "equal to 1 digit".to_string(),
        digits => format!("equal to {digits} digits"),
    }
}

/// Steps that both runs have.
fn common_steps<'m>(first: &'m Metrics, second: &'m Metrics) -> Vec<[&'m StepRow; 2]> {
    let by_step: BTreeMap<u64, &StepRow> = second.steps.iter().map(|row| (row.step, row)).collect();
    first
        .steps
        .iter()
        .filter_map(|row| Some([row, *by_step.get(&row.step)?]))
        .collect()
}

/// Loss of each later run less that of the first, over common steps. None without a difference.
pub fn chart(runs: &[(&str, &Metrics)]) -> Option<Chart> {
    let (_, first) = runs.first()?;
    let mut lines = Vec::new();
    for (run, (label, metrics)) in runs.iter().enumerate().skip(1) {
        let points: Vec<(f64, f64)> = common_steps(first, metrics)
            .into_iter()
            .map(|[first, second]| (first.step as f64, second.lm_loss - first.lm_loss))
            .collect();
        if points.iter().any(|(_, difference)| *difference != 0.0) {
            let points = curves::thin(&points);
            let colour = run % COLOURS;
            lines.push(Curve { name: label.to_string(), stroke: Stroke::Line, colour, points });
        }
    }
    if lines.is_empty() {
        return None;
    }
    Some(Chart {
        title: String::new(),
        width: 560.0,
        height: 260.0,
        names: ["step", ""],
        first: 0.0,
        log: false,
        scale: Scale::Linear,
        legend: lines.len() > 1,
        curves: lines,
        second: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(losses: &[f64]) -> Metrics {
        let rows = losses.iter().zip(1..).map(|(loss, step)| StepRow {
            step,
            lm_loss: *loss,
            ..StepRow::default()
        });
        Metrics { steps: rows.collect(), ..Metrics::default() }
    }

    #[test]
    fn the_first_difference_has_its_step_number_and_digit() {
        let first = metrics(&[5.0, 4.0, 3.0]);
        let second = metrics(&[5.0, 4.00004, 2.0, 1.0]);
        let found = Parting::find(&first, "b", &second);
        assert_eq!(
            found.describe("a"),
            "b parts from a at step 2: training loss 4.00004, not 4 (equal to 5 digits)"
        );
        let same = Parting::find(&first, "b", &metrics(&[5.0, 4.0]));
        assert_eq!(same.describe("a"), "b equals a to the last bit in all 2 common steps");
        assert!(chart(&[("a", &first), ("b", &metrics(&[5.0, 4.0]))]).is_none());
        let drawn = chart(&[("a", &first), ("b", &second)]).unwrap();
        assert_eq!(drawn.curves[0].points.last(), Some(&(3.0, -1.0)));
    }

    #[test]
    fn digits_are_those_that_are_equal() {
        assert_eq!(describe_digits(1.0, 2.0), "other from the first digit");
        assert_eq!(describe_digits(1.0, 1.04), "equal to 1 digit");
        assert_eq!(describe_digits(6.123456, 6.123457), "equal to 6 digits");
        assert_eq!(describe_digits(f64::NAN, 1.0), "not a finite number");
    }
}
