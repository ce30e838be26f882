//! Chart of curves, with an optional second scale below the horizontal axis.

use super::{Axis, COLOURS, Drawing, labels, short_number, text_width};
use std::fmt::Write;

/// Curves over the same axis.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Drawn above the curves; empty for none.
    pub title: String,
    pub width: f64,
    pub height: f64,
    /// Names of the horizontal axis and of its second row of labels.
    pub names: [&'static str; 2],
    /// Value at the left edge.
    pub first: f64,
    /// Whether the horizontal axis is logarithmic.
    pub log: bool,
    pub scale: Scale,
    /// Whether the names of the curves are drawn above them.
    pub legend: bool,
    pub curves: Vec<Curve>,
    /// (axis value, second value), ascending. Without it there is no second row of labels.
    pub second: Vec<(f64, f64)>,
}

/// Vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Linear, starting at 0.
    FromZero,
    /// Logarithmic; linear if a value is not positive.
    Log,
}

/// Line of a chart.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name in the legend; empty to omit it.
    pub name: String,
    pub stroke: Stroke,
    /// Index of the colour.
    pub colour: usize,
    /// (step, value), ascending; a non-finite value interrupts the line.
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    Line,
    /// Thin and pale, for a background curve.
    Faint,
    /// Dot at each value.
    Dots,
    /// Constant until the next value.
    Stairs,
}

/// Margins and axes of a chart.
struct Layout {
    x: Axis,
    y: Axis,
    y_ticks: Vec<f64>,
    y_labels: Vec<String>,
    /// Left edge and baseline of each legend entry.
    legend: Vec<(f64, f64)>,
}

const LEGEND_ROW: f64 = 18.0;
/// Width of the line sample in the legend.
const SAMPLE: f64 = 22.0;

impl Chart {
    /// Horizontal and vertical axis, for mapping values to pixels.
    pub fn axes(&self) -> [Axis; 2] {
        let layout = self.layout();
        [layout.x, layout.y]
    }

    pub fn draw(&self) -> Drawing {
        let layout = self.layout();
        let mut to = Drawing::new(self.width, self.height);
        if !self.title.is_empty() {
            to.text("title", (14.0, 24.0), &self.title);
        }
        self.draw_legend(&layout, &mut to);
        draw_y(&layout, &mut to);
        self.draw_x(&layout, &mut to);
        for curve in &self.curves {
            draw_curve(curve, &layout, &mut to);
        }
        let top = layout.y.to;
        let bottom = layout.y.from;
        to.add(&format!("<line class=\"cursor\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>"));
        to
    }

    fn layout(&self) -> Layout {
        let title = if self.title.is_empty() { 0.0 } else { 30.0 };
        let (legend, rows) = self.legend(title + 16.0);
        let top = title + rows as f64 * LEGEND_ROW + if rows > 0 { 18.0 } else { 10.0 };
        let (low, high, log) = self.y_range();
        let y = Axis { low, high, log, from: self.height - 46.0, to: top };
        let y_ticks = y.ticks(34.0);
        let y_labels = labels(&y_ticks, y.log);
        let widest = y_labels
            .iter()
            .map(|label| text_width(label))
            .fold(60.0, f64::max);
        let from = widest + 16.0;
        let to = self.width - 36.0;
        let (low, high) = self.x_range();
        Layout { x: Axis { low, high, log: self.log, from, to }, y, y_ticks, y_labels, legend }
    }

    /// Positions of the legend entries of named curves, wrapped into rows above the plot area; and
    /// the number of rows.
    fn legend(&self, baseline: f64) -> (Vec<(f64, f64)>, usize) {
        let mut places = Vec::new();
        let mut x = 14.0;
        let mut row = 0;
        for curve in self.named_curves() {
            let width = SAMPLE + 6.0 + text_width(&self.legend_name(curve)) + 14.0;
            if x + width > self.width && x > 14.0 {
                (x, row) = (14.0, row + 1);
            }
            places.push((x, baseline + row as f64 * LEGEND_ROW));
            x += width;
        }
        let rows = if places.is_empty() { 0 } else { row + 1 };
        (places, rows)
    }

    fn named_curves(&self) -> impl Iterator<Item = &Curve> {
        self.curves
            .iter()
            .filter(|curve| self.legend && !curve.name.is_empty())
    }

    /// Name, truncated to the width of a row.
    fn legend_name(&self, curve: &Curve) -> String {
        let most = ((self.width - SAMPLE - 50.0) / text_width("n")) as usize;
        match curve.name.chars().count() {
            n if n > most => curve.name.chars().take(most - 1).chain(['…']).collect(),
            _ => curve.name.clone(),
        }
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.curves
            .iter()
            .flat_map(|c| &c.points)
            .copied()
            .filter(|(_, y)| y.is_finite())
    }

    fn x_range(&self) -> (f64, f64) {
        let mut high = self.first;
        for (x, _) in self.curves.iter().flat_map(|curve| &curve.points) {
            high = high.max(*x);
        }
        (self.first, high.max(self.first + 1.0))
    }

    /// Range of the values with a margin, and whether the axis is logarithmic.
    fn y_range(&self) -> (f64, f64, bool) {
        let low = self.points().map(|(_, y)| y).fold(f64::INFINITY, f64::min);
        let high = self
            .points()
            .map(|(_, y)| y)
            .fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return (0.0, 1.0, false);
        }
        if self.scale == Scale::Log && low > 0.0 {
            let margin = (high / low).powf(0.04).max(1.02);
            return (low / margin, high * margin, true);
        }
        if self.scale == Scale::FromZero && low >= 0.0 {
            return (0.0, if high > 0.0 { high * 1.06 } else { 1.0 }, false);
        }
        let margin = if high > low { (high - low) * 0.05 } else { (high.abs() * 0.05).max(1e-3) };
        (low - margin, high + margin, false)
    }

    fn draw_legend(&self, layout: &Layout, to: &mut Drawing) {
        for (curve, &(x, y)) in self.named_curves().zip(&layout.legend) {
            let middle = y - 4.0;
            let end = x + SAMPLE;
            to.path(&stroke(curve), &format!("M{x} {middle}H{end}"));
            if curve.stroke == Stroke::Dots {
                to.dot(&fill(curve), (x + SAMPLE / 2.0, middle), "");
            }
            to.text("legend", (end + 6.0, y), &self.legend_name(curve));
        }
    }

    fn draw_x(&self, layout: &Layout, to: &mut Drawing) {
        let x = &layout.x;
        let bottom = layout.y.from;
        let first = bottom + 18.0;
        let second = bottom + 34.0;
        to.path("axis", &format!("M{:.1} {bottom:.1}H{:.1}", x.from, x.to));
        to.text("end", (x.from - 26.0, first), self.names[0]);
        to.text("end second", (x.from - 26.0, second), self.names[1]);
        let mut ticks = x.ticks(84.0);
        ticks.retain(|tick| tick.fract() == 0.0);
        for (tick, label) in ticks.iter().zip(labels(&ticks, self.log)) {
            let at = x.pixel(*tick);
            to.path("axis", &format!("M{at:.1} {bottom:.1}v5"));
            to.text("middle", (at, first), &label);
            if !self.second.is_empty() {
                to.text(
                    "middle second",
                    (at, second),
                    &short_number(interpolate(&self.second, *tick)),
                );
            }
        }
    }
}

fn draw_y(layout: &Layout, to: &mut Drawing) {
    let left = layout.x.from;
    let right = layout.x.to;
    for (tick, label) in layout.y_ticks.iter().zip(&layout.y_labels) {
        let y = layout.y.pixel(*tick);
        to.path("grid", &format!("M{left:.1} {y:.1}H{right:.1}"));
        to.text("end", (left - 8.0, y + 4.0), label);
    }
}

fn draw_curve(curve: &Curve, layout: &Layout, to: &mut Drawing) {
    let mut path = String::new();
    let mut pen_down = false;
    for (x, y) in &curve.points {
        if !y.is_finite() {
            pen_down = false;
            continue;
        }
        let x = layout.x.pixel(*x);
        let y = layout.y.pixel(*y);
        // A segment of one point is drawn too: a zero-length line has round caps.
        let _ = match (pen_down, curve.stroke) {
            (false, _) => write!(path, "M{x:.1} {y:.1}h0"),
            (true, Stroke::Stairs) => write!(path, "H{x:.1}V{y:.1}"),
            (true, _) => write!(path, "L{x:.1} {y:.1}"),
        };
        pen_down = true;
    }
    to.path(&stroke(curve), &path);
    if curve.stroke == Stroke::Dots {
        for (x, y) in curve.points.iter().filter(|(_, y)| y.is_finite()) {
            to.dot(&fill(curve), (layout.x.pixel(*x), layout.y.pixel(*y)), "");
        }
    }
}

/// CSS classes of a curve's line.
fn stroke(curve: &Curve) -> String {
    let faint = if curve.stroke == Stroke::Faint { " faint" } else { "" };
    format!("curve{faint} s{}", curve.colour % COLOURS)
}

fn fill(curve: &Curve) -> String {
    format!("f{}", curve.colour % COLOURS)
}

/// Linear interpolation of the second scale.
fn interpolate(known: &[(f64, f64)], first: f64) -> f64 {
    let after = known.partition_point(|(x, _)| *x < first);
    let (x1, y1) = *known.get(after).or(known.last()).unwrap_or(&(1.0, 0.0));
    let (x0, y0) = if after == 0 { (0.0, 0.0) } else { known[after - 1] };
    if x1 <= x0 { y1 } else { y0 + (y1 - y0) * ((first - x0) / (x1 - x0)).clamp(0.0, 1.0) }
}
