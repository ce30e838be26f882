//! Charts as SVG: curves over steps, with tokens as a second reading of the same axis.
//!
//! Knows nothing of training but those two words. Lengths are in pixels at 12 px type; the colours
//! and the type are in `chart.css`, light and dark.

use std::fmt::Write;

use super::axis::{Axis, labels, short};

/// Style of all charts.
pub const STYLE: &str = include_str!("chart.css");

/// How many colours there are; curves beyond use them again.
pub const COLOURS: usize = 8;

/// A set of curves over the same steps.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Drawn above the curves unless empty.
    pub title: String,
    pub width: f64,
    pub height: f64,
    /// The step at the left edge.
    pub first: f64,
    pub scale: Scale,
    /// Whether the curves' names stand above them.
    pub legend: bool,
    pub curves: Vec<Curve>,
    /// (step, tokens consumed), ascending; what the second row of labels is read from.
    pub tokens: Vec<(f64, f64)>,
}

/// The vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Linear, and 0 is on it.
    FromZero,
    /// Logarithmic; falls back to linear where a value is not positive.
    Log,
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Curve {
    /// For the legend; a curve without a name is not in it.
    pub name: String,
    pub stroke: Stroke,
    /// Index of a colour.
    pub colour: usize,
    /// (step, value), ascending; a value that is not finite breaks the line.
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    Line,
    /// Thin and pale, to lie behind another.
    Faint,
    /// A dot at each value.
    Dots,
    /// Constant until the next value.
    Stairs,
}

/// The room around the curves of one chart, and its axes.
struct Layout {
    x: Axis,
    y: Axis,
    y_ticks: Vec<f64>,
    y_labels: Vec<String>,
    /// Left edge and baseline of each legend entry.
    legend: Vec<(f64, f64)>,
}

/// Pixels of a text at 12 px, never too few for digits and Latin letters.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.0
}

const LEGEND_ROW: f64 = 18.0;
/// The legend's sample of a line, and the gap to its name.
const SAMPLE: f64 = 22.0;

impl Chart {
    /// The horizontal axis, for a script that finds the step under a pointer.
    pub fn x_axis(&self) -> Axis {
        self.layout().x
    }

    /// The chart as an `<svg>` element whose style is elsewhere in the page.
    pub fn inline(&self) -> String {
        format!("<svg class=\"chart\" {}>\n{}</svg>\n", self.view_box(), self.body())
    }

    /// The chart as a file of its own, on its own ground.
    pub fn file(&self) -> String {
        let (width, height, view_box) = (self.width, self.height, self.view_box());
        let body = self.body();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" \
             width=\"{width}\" height=\"{height}\" {view_box}>\n<style>\n{STYLE}</style>\n\
             <rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{body}</svg>\n"
        )
    }

    fn view_box(&self) -> String {
        format!("viewBox=\"0 0 {} {}\" role=\"img\"", self.width, self.height)
    }

    fn body(&self) -> String {
        let layout = self.layout();
        let mut to = String::new();
        if !self.title.is_empty() {
            let _ = writeln!(
                to,
                "<text class=\"title\" x=\"14\" y=\"24\">{}</text>",
                escape(&self.title)
            );
        }
        self.draw_legend(&layout, &mut to);
        draw_y(&layout, &mut to);
        self.draw_x(&layout, &mut to);
        for curve in &self.curves {
            draw_curve(curve, &layout, &mut to);
        }
        let (top, bottom) = (layout.y.to, layout.y.from);
        let _ = writeln!(to, "<line class=\"cursor\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>");
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
        let widest = y_labels.iter().map(|label| text_width(label)).fold(60.0, f64::max);
        let (from, to) = (widest + 16.0, self.width - 36.0);
        let (low, high) = self.x_range();
        Layout { x: Axis { low, high, log: false, from, to }, y, y_ticks, y_labels, legend }
    }

    /// Places of the named curves' legend entries, wrapped into rows above the curves, where no
    /// curve can run into them; and the number of rows.
    fn legend(&self, baseline: f64) -> (Vec<(f64, f64)>, usize) {
        let (mut places, mut x, mut row) = (Vec::new(), 14.0, 0);
        for curve in self.named() {
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

    fn named(&self) -> impl Iterator<Item = &Curve> {
        self.curves.iter().filter(|curve| self.legend && !curve.name.is_empty())
    }

    /// The name, cut to what fits on a row.
    fn legend_name(&self, curve: &Curve) -> String {
        let room = ((self.width - SAMPLE - 50.0) / text_width("n")) as usize;
        match curve.name.chars().count() {
            n if n > room => curve.name.chars().take(room - 1).chain(['…']).collect(),
            _ => curve.name.clone(),
        }
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.curves.iter().flat_map(|c| &c.points).copied().filter(|(_, y)| y.is_finite())
    }

    fn x_range(&self) -> (f64, f64) {
        let steps = || self.curves.iter().flat_map(|c| &c.points).map(|(x, _)| *x);
        let high = steps().fold(self.first, f64::max);
        (self.first, high.max(self.first + 1.0))
    }

    /// From the lowest to the highest value, with a little air; and whether it is logarithmic.
    fn y_range(&self) -> (f64, f64, bool) {
        let low = self.points().map(|(_, y)| y).fold(f64::INFINITY, f64::min);
        let high = self.points().map(|(_, y)| y).fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return (0.0, 1.0, false);
        }
        if self.scale == Scale::Log && low > 0.0 {
            let air = (high / low).powf(0.04).max(1.02);
            return (low / air, high * air, true);
        }
        if self.scale == Scale::FromZero && low >= 0.0 {
            return (0.0, if high > 0.0 { high * 1.06 } else { 1.0 }, false);
        }
        let air = if high > low { (high - low) * 0.05 } else { (high.abs() * 0.05).max(1e-3) };
        (low - air, high + air, false)
    }

    fn draw_legend(&self, layout: &Layout, to: &mut String) {
        for (curve, (x, y)) in self.named().zip(&layout.legend) {
            let (colour, name) = (curve.colour % COLOURS, escape(&self.legend_name(curve)));
            let middle = y - 4.0;
            let end = x + SAMPLE;
            let _ = writeln!(
                to,
                "<path class=\"curve {} s{colour}\" d=\"M{x} {middle}H{end}\"/>",
                faint(curve.stroke)
            );
            if curve.stroke == Stroke::Dots {
                draw_dot(colour, x + SAMPLE / 2.0, middle, to);
            }
            let _ =
                writeln!(to, "<text class=\"legend\" x=\"{}\" y=\"{y}\">{name}</text>", end + 6.0);
        }
    }

    fn draw_x(&self, layout: &Layout, to: &mut String) {
        let (x, bottom) = (&layout.x, layout.y.from);
        let (first, second) = (bottom + 18.0, bottom + 34.0);
        let _ = writeln!(
            to,
            "<path class=\"axis\" d=\"M{:.1} {bottom:.1}H{:.1}\"/>\n\
             <text class=\"end\" x=\"{2:.1}\" y=\"{first:.1}\">step</text>\n\
             <text class=\"end second\" x=\"{2:.1}\" y=\"{second:.1}\">tokens</text>",
            x.from,
            x.to,
            x.from - 26.0
        );
        let mut ticks = x.ticks(84.0);
        ticks.retain(|tick| tick.fract() == 0.0);
        for (tick, label) in ticks.iter().zip(labels(&ticks, false)) {
            let (at, tokens) = (x.at(*tick), short(interpolate(&self.tokens, *tick)));
            let _ = writeln!(
                to,
                "<path class=\"axis\" d=\"M{at:.1} {bottom:.1}v5\"/>\n\
                 <text class=\"middle\" x=\"{at:.1}\" y=\"{first:.1}\">{label}</text>\n\
                 <text class=\"middle second\" x=\"{at:.1}\" y=\"{second:.1}\">{tokens}</text>"
            );
        }
    }
}

fn draw_y(layout: &Layout, to: &mut String) {
    let (left, right) = (layout.x.from, layout.x.to);
    for (tick, label) in layout.y_ticks.iter().zip(&layout.y_labels) {
        let y = layout.y.at(*tick);
        let _ = writeln!(
            to,
            "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>\n\
             <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            left - 8.0,
            y + 4.0
        );
    }
}

fn draw_curve(curve: &Curve, layout: &Layout, to: &mut String) {
    let (colour, mut path, mut pen_down) = (curve.colour % COLOURS, String::new(), false);
    for (x, y) in &curve.points {
        if !y.is_finite() {
            pen_down = false;
            continue;
        }
        let (x, y) = (layout.x.at(*x), layout.y.at(*y));
        // A piece of one point is drawn too: a line of no length has round caps.
        let _ = match (pen_down, curve.stroke) {
            (false, _) => write!(path, "M{x:.1} {y:.1}h0"),
            (true, Stroke::Stairs) => write!(path, "H{x:.1}V{y:.1}"),
            (true, _) => write!(path, "L{x:.1} {y:.1}"),
        };
        pen_down = true;
    }
    let _ = writeln!(to, "<path class=\"curve {} s{colour}\" d=\"{path}\"/>", faint(curve.stroke));
    if curve.stroke == Stroke::Dots {
        for (x, y) in curve.points.iter().filter(|(_, y)| y.is_finite()) {
            draw_dot(colour, layout.x.at(*x), layout.y.at(*y), to);
        }
    }
}

fn draw_dot(colour: usize, x: f64, y: f64, to: &mut String) {
    let _ = writeln!(to, "<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>");
}

fn faint(stroke: Stroke) -> &'static str {
    if stroke == Stroke::Faint { "faint" } else { "" }
}

/// Tokens at a step, on the line between the two known steps around it.
fn interpolate(known: &[(f64, f64)], step: f64) -> f64 {
    let after = known.partition_point(|(x, _)| *x < step);
    let (x1, y1) = *known.get(after).or(known.last()).unwrap_or(&(1.0, 0.0));
    let (x0, y0) = if after == 0 { (0.0, 0.0) } else { known[after - 1] };
    if x1 <= x0 { y1 } else { y0 + (y1 - y0) * ((step - x0) / (x1 - x0)).clamp(0.0, 1.0) }
}

/// Text that is safe in XML and HTML, attributes included.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() && c != '\n' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
