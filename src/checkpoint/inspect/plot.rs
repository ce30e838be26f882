//! Picture of a checkpoint: the norm of each kind of weight over the layers, and the distribution
//! of values of each kind.

use super::{Inspection, Row, stats::FIRST_EXPONENT};
use base::svg::Drawing;
use std::collections::BTreeMap;

/// Height of a row in pixels.
const ROW: f64 = 92.0;
const WIDTH: f64 = 860.0;
/// Left edges and widths of the two columns.
const NORMS: (f64, f64) = (180.0, 300.0);
const SIZES: (f64, f64) = (540.0, 290.0);

/// Draws one row for each kind of weight ("attn.qkv.weight"): left the root mean square per layer,
/// right the histogram of log₂|value| over all layers.
pub fn svg(inspection: &Inspection) -> String {
    let mut kinds: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in &inspection.tensors {
        let kind = match row
            .name
            .strip_prefix("block.")
            .and_then(|rest| rest.split_once('.'))
        {
            Some((_, kind)) => kind,
            None => &row.name,
        };
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, rows)) => rows.push(row),
            None => kinds.push((kind, vec![row])),
        }
    }
    let mut to = Drawing::new(WIDTH, 50.0 + ROW * kinds.len() as f64);
    let overview = &inspection.overview;
    to.text("legend", (14.0, 20.0), &format!("step {} · {}", overview.step, overview.folder));
    to.text("", (NORMS.0, 38.0), "root mean square, by layer");
    to.text("", (SIZES.0, 38.0), "values by size, log₂");
    for (i, (kind, rows)) in kinds.iter().enumerate() {
        let top = 50.0 + ROW * i as f64;
        to.text("legend", (14.0, top + ROW / 2.0), kind);
        norms(rows, top + 8.0, ROW - 30.0, &mut to);
        sizes(rows, top + 8.0, ROW - 30.0, &mut to);
    }
    to.file()
}

fn norms(rows: &[&Row], top: f64, height: f64, to: &mut Drawing) {
    let values: Vec<f64> = rows
        .iter()
        .filter_map(|row| {
            let stats = row.master()?;
            Some(stats.l2 / (stats.count.max(1) as f64).sqrt())
        })
        .filter(|v| v.is_finite())
        .collect();
    let high = values
        .iter()
        .copied()
        .fold(0.0, f64::max)
        .max(f64::MIN_POSITIVE);
    let (left, width) = NORMS;
    let bottom = top + height;
    frame(left, width, bottom, to);
    let each = width / values.len().max(1) as f64;
    let points: Vec<(f64, f64)> = values
        .iter()
        .enumerate()
        .map(|(i, v)| (left + each * (i as f64 + 0.5), bottom - height * v / high))
        .collect();
    to.line("curve s0", &points);
    for (i, (point, value)) in points.iter().zip(&values).enumerate() {
        to.dot("f0", *point, &format!("layer {i}: {value:.4e}"));
    }
    to.text("end", (left - 6.0, top + 8.0), &format!("{high:.2e}"));
    to.text("end", (left - 6.0, bottom), "0");
    if values.len() > 1 {
        to.text("", (left, bottom + 14.0), "0");
        to.text("end", (left + width, bottom + 14.0), &(values.len() - 1).to_string());
    }
}

fn sizes(rows: &[&Row], top: f64, height: f64, to: &mut Drawing) {
    let mut bins: BTreeMap<i32, u64> = BTreeMap::new();
    for stats in rows.iter().filter_map(|row| row.master()) {
        for (i, count) in stats
            .exponents
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            *bins.entry(FIRST_EXPONENT + i as i32).or_default() += count;
        }
    }
    let first = -30;
    let last = 10;
    let most = bins.values().copied().max().unwrap_or(1) as f64;
    let (left, width) = SIZES;
    let bottom = top + height;
    frame(left, width, bottom, to);
    let each = width / f64::from(last - first + 1);
    for (exponent, count) in &bins {
        let at = left + each * f64::from((*exponent).clamp(first, last) - first);
        let tall = (height * *count as f64 / most).max(0.7);
        let tip = format!("2^{exponent}: {count}");
        to.rect("f0", (at + 0.5, bottom - tall), (each - 1.0, tall), &tip);
    }
    for exponent in (first..=last).step_by(10) {
        let at = left + each * (f64::from(exponent - first) + 0.5);
        to.text("middle", (at, bottom + 14.0), &exponent.to_string());
    }
}

fn frame(left: f64, width: f64, bottom: f64, to: &mut Drawing) {
    to.path("grid", &format!("M{left:.1} {bottom:.1}H{:.1}", left + width));
}
