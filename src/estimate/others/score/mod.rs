//! How far predictions are from measurements.

pub mod print;

use super::cost::Constants;
use super::predict::{Prediction, Predictor};
use super::rows::Row;
use std::collections::{BTreeMap, BTreeSet};

/// A row and what was predicted for it.
pub struct Scored<'a> {
    pub row: &'a Row,
    pub prediction: Option<Prediction>,
}

/// Every row predicted by what all others say, those of its own configuration left out.
pub fn left_out(rows: &[Row]) -> Vec<Scored<'_>> {
    without(rows, &|row| row.group.clone())
}

/// Every row predicted by what other periods say: other machines, network or software.
pub fn period_left_out(rows: &[Row]) -> Vec<Scored<'_>> {
    let period = |row: &Row| row.setup.as_ref().ok().and_then(|s| s.regime.clone());
    without(rows, &|row| period(row).unwrap_or_default())
}

fn without<'a>(rows: &'a [Row], of: &dyn Fn(&Row) -> String) -> Vec<Scored<'a>> {
    let groups: BTreeSet<String> = rows.iter().map(of).collect();
    let mut scored: Vec<Scored> = Vec::new();
    for group in groups {
        let others: Vec<&Row> = rows.iter().filter(|row| of(row) != group).collect();
        let predictor = Predictor::new(&Constants::prior(), &others);
        let inside = rows.iter().filter(|row| of(row) == group);
        scored.extend(inside.map(|row| one(&predictor, row)));
    }
    scored
}

pub fn all<'a>(predictor: &Predictor, rows: &'a [Row]) -> Vec<Scored<'a>> {
    rows.iter().map(|row| one(predictor, row)).collect()
}

fn one<'a>(predictor: &Predictor, row: &'a Row) -> Scored<'a> {
    let setup = row.setup.as_ref().ok();
    Scored { row, prediction: setup.map(|setup| predictor.predict(setup)) }
}

/// Errors as shares of what was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    pub rows: usize,
    pub mean: f64,
    pub median: f64,
    pub p90: f64,
    pub worst: f64,
    /// Rows within their error bar.
    pub within: usize,
}

impl Errors {
    /// Of (predicted, measured, error bar).
    pub fn of(all: &[(f64, f64, f64)]) -> Errors {
        if all.is_empty() {
            return Errors::default();
        }
        let mut errors: Vec<f64> = all.iter().map(|(p, m, _)| (p / m - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let (n, last) = (errors.len(), errors.len() - 1);
        let at = |share: f64| errors[((share * last as f64).round() as usize).min(last)];
        let inside = all.iter().filter(|(p, m, bar)| (m / p - 1.0).abs() <= *bar).count();
        Errors {
            rows: n,
            mean: errors.iter().sum::<f64>() / n as f64,
            median: at(0.5),
            p90: at(0.9),
            worst: errors[last],
            within: inside,
        }
    }

    /// Their share.
    pub fn within_bar(&self) -> f64 {
        self.within as f64 / self.rows.max(1) as f64
    }
}

/// Time of the rows that `of` picks.
pub fn time_errors(scored: &[Scored], of: &dyn Fn(&Row) -> bool) -> Errors {
    let pair = |s: &Scored| {
        let (_, seconds) = s.row.timing().filter(|_| of(s.row))?;
        let p = s.prediction.as_ref()?;
        Some((p.seconds, seconds, p.seconds_error))
    };
    Errors::of(&scored.iter().filter_map(pair).collect::<Vec<_>>())
}

pub fn memory_errors(scored: &[Scored], of: &dyn Fn(&Row) -> bool) -> Errors {
    let pair = |s: &Scored| {
        let (_, gb) = s.row.weight().filter(|_| of(s.row))?;
        let p = s.prediction.as_ref()?;
        Some((p.gigabytes, gb, p.gigabytes_error))
    };
    Errors::of(&scored.iter().filter_map(pair).collect::<Vec<_>>())
}

/// The same by the formulas alone, without what neighbouring runs correct.
pub fn formulas_alone(mut scored: Vec<Scored>) -> Vec<Scored> {
    for p in scored.iter_mut().filter_map(|s| s.prediction.as_mut()) {
        (p.seconds, p.gigabytes) = (p.time.total(), p.memory.reserved());
    }
    scored
}

/// (right, known): whether it fits.
pub fn fits(scored: &[Scored], of: &dyn Fn(&Row) -> bool) -> (usize, usize) {
    let pair = |s: &Scored| {
        let fits = s.row.fits.filter(|_| of(s.row))?;
        Some(fits == s.prediction.as_ref()?.fits)
    };
    let all: Vec<bool> = scored.iter().filter_map(pair).collect();
    (all.iter().filter(|right| **right).count(), all.len())
}

/// Rows a headline counts: 3D and all programs on A100, whose times repeat from day to day.
pub fn steady(row: &Row) -> bool {
    row.setup.as_ref().is_ok_and(|s| s.hardware.scatter < 0.03)
}

/// Of those, the ones whose seconds were printed, not derived from TFLOPs or days.
pub fn printed(row: &Row) -> bool {
    steady(row) && row.seconds_printed
}

/// How much slower the way predicted fastest was than the fastest, in each sweep of ways to cut one
/// model over the same devices in one period.
pub fn regrets(scored: &[Scored]) -> Vec<(String, usize, f64)> {
    let mut sweeps: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for s in scored.iter().filter(|s| printed(s.row)) {
        let (Some((setup, seconds)), Some(p)) = (s.row.timing(), &s.prediction) else { continue };
        let m = &setup.model;
        let period = setup.regime.as_deref().unwrap_or("");
        let name = format!("{}x{}, {} GPUs, {period}", m.hidden, m.layers, setup.ranks());
        let tokens = setup.global as f64;
        if m.heads().dim % 8 == 0 && setup.global > 1500 && m.heads == 64 {
            sweeps.entry(name).or_default().push((p.seconds / tokens, seconds / tokens));
        }
    }
    let judged = sweeps.into_iter().filter(|(_, ways)| ways.len() > 2).map(|(name, ways)| {
        let pick = ways.iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("a sweep has ways").1;
        let best = ways.iter().map(|way| way.1).fold(f64::INFINITY, f64::min);
        (name, ways.len(), pick / best - 1.0)
    });
    judged.collect()
}
