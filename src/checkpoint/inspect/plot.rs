//! A checkpoint as a picture: the norm of each kind of weight over the layers, and how large the
//! values of each kind are.

use super::{Inspection, Row, stats::FIRST_EXPONENT};
use std::collections::BTreeMap;
use std::fmt::Write;

const STYLE: &str = "\
svg{--ground:#fff;--ink:#1d232b;--quiet:#5f6b7a;--grid:#e6e9ee;--line:#2563c9;--fill:#2563c9}\
@media(prefers-color-scheme:dark){svg{--ground:#14181e;--ink:#e4e8ee;--quiet:#97a3b3;\
--grid:#252c36;--line:#6aa3f8;--fill:#6aa3f8}}\
text{font:11px system-ui,sans-serif;fill:var(--quiet)}text.name{fill:var(--ink)}\
.ground{fill:var(--ground)}.grid{stroke:var(--grid)}\
.line{stroke:var(--line);fill:none;stroke-width:1.6}.dot{fill:var(--line)}.bar{fill:var(--fill)}";

/// One row of the picture, in pixels.
const ROW: f64 = 92.0;
const WIDTH: f64 = 860.0;
/// Left edges and widths of the two columns.
const NORMS: (f64, f64) = (180.0, 300.0);
const SIZES: (f64, f64) = (540.0, 290.0);

/// One row for each kind of weight ("attn.qkv.weight"): left its root mean square at each layer,
/// right the histogram of log₂|value| over all layers.
pub fn svg(inspection: &Inspection) -> String {
    let mut kinds: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in &inspection.tensors {
        let kind = match row.name.strip_prefix("block.").and_then(|rest| rest.split_once('.')) {
            Some((_, kind)) => kind,
            None => &row.name,
        };
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, rows)) => rows.push(row),
            None => kinds.push((kind, vec![row])),
        }
    }
    let height = 50.0 + ROW * kinds.len() as f64;
    let (step, folder) = (inspection.overview.step, escape(&inspection.overview.folder));
    let mut to = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"name\" x=\"14\" y=\"20\">step {step} · {folder}</text>\n\
         <text x=\"{}\" y=\"38\">root mean square, by layer</text>\n\
         <text x=\"{}\" y=\"38\">values by size, log₂</text>\n",
        NORMS.0, SIZES.0
    );
    for (i, (kind, rows)) in kinds.iter().enumerate() {
        let top = 50.0 + ROW * i as f64;
        let _ = writeln!(
            to,
            "<text class=\"name\" x=\"14\" y=\"{:.1}\">{}</text>",
            top + ROW / 2.0,
            escape(kind)
        );
        norms(rows, top + 8.0, ROW - 30.0, &mut to);
        sizes(rows, top + 8.0, ROW - 30.0, &mut to);
    }
    to.push_str("</svg>\n");
    to
}

fn norms(rows: &[&Row], top: f64, height: f64, to: &mut String) {
    let rms = |row: &&Row| {
        let stats = row.master.as_ref()?;
        Some(stats.l2 / (stats.count.max(1) as f64).sqrt())
    };
    let values: Vec<f64> = rows.iter().filter_map(rms).filter(|v| v.is_finite()).collect();
    let high = values.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let (left, width) = NORMS;
    let bottom = top + height;
    frame(left, width, bottom, to);
    let x = |i: usize| left + width * (i as f64 + 0.5) / values.len().max(1) as f64;
    let y = |v: f64| bottom - height * v / high;
    let points: Vec<_> =
        values.iter().enumerate().map(|(i, v)| format!("{:.1},{:.1}", x(i), y(*v))).collect();
    let _ = writeln!(to, "<polyline class=\"line\" points=\"{}\"/>", points.join(" "));
    for (i, v) in values.iter().enumerate() {
        let (x, y) = (x(i), y(*v));
        let _ = writeln!(
            to,
            "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"><title>layer {i}: {v:.4e}\
             </title></circle>"
        );
    }
    let _ = writeln!(
        to,
        "<text text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{high:.2e}</text>\n\
         <text text-anchor=\"end\" x=\"{0:.1}\" y=\"{bottom:.1}\">0</text>",
        left - 6.0,
        top + 8.0
    );
    if let Some(last) = values.len().checked_sub(1).filter(|last| *last > 0) {
        let (right, below) = (left + width, bottom + 14.0);
        let _ = writeln!(
            to,
            "<text x=\"{left:.1}\" y=\"{below:.1}\">0</text>\n\
             <text text-anchor=\"end\" x=\"{right:.1}\" y=\"{below:.1}\">{last}</text>"
        );
    }
}

fn sizes(rows: &[&Row], top: f64, height: f64, to: &mut String) {
    let mut bins: BTreeMap<i32, u64> = BTreeMap::new();
    for stats in rows.iter().filter_map(|row| row.master.as_ref()) {
        for (i, count) in stats.exponents.iter().enumerate().filter(|(_, count)| **count > 0) {
            *bins.entry(FIRST_EXPONENT + i as i32).or_default() += count;
        }
    }
    let (first, last) = (-30, 10);
    let most = bins.values().copied().max().unwrap_or(1) as f64;
    let (left, width) = SIZES;
    let bottom = top + height;
    frame(left, width, bottom, to);
    let each = width / f64::from(last - first + 1);
    for (exponent, count) in &bins {
        let at = left + each * f64::from((*exponent).clamp(first, last) - first);
        let tall = (height * *count as f64 / most).max(0.7);
        let _ = writeln!(
            to,
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\">\
             <title>2^{exponent}: {count}</title></rect>",
            at + 0.5,
            bottom - tall,
            each - 1.0
        );
    }
    for exponent in (first..=last).step_by(10) {
        let at = left + each * (f64::from(exponent - first) + 0.5);
        let _ = writeln!(
            to,
            "<text text-anchor=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{exponent}</text>",
            bottom + 14.0
        );
    }
}

fn frame(left: f64, width: f64, bottom: f64, to: &mut String) {
    let _ = writeln!(
        to,
        "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>",
        left + width
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
