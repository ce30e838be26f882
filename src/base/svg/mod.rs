//! SVG pictures: shapes with classes of one style sheet (light and dark), and charts of curves.
//! Lengths are in pixels at a font size of 12 px.

mod axis;
mod chart;

pub use axis::{Axis, labels, short_number};
pub use chart::{Chart, Curve, Scale, Stroke};

/// Style sheet of all pictures.
pub const STYLE: &str = include_str!("style.css");

/// Style sheet of a page of figures, tiles and tables.
pub const PAGE: &str = include_str!("page.css");

/// Number of colours: classes `s0` (strokes) and `f0` (fills) up to one below this. Further series
/// reuse them.
pub const COLOURS: usize = 8;

/// Point or size in pixels: (x, y), y downwards.
pub type Point = (f64, f64);

/// Shapes on a canvas of fixed size.
pub struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

impl Drawing {
    pub fn new(width: f64, height: f64) -> Drawing {
        Drawing { width, height, body: String::new() }
    }

    /// Adds text at a baseline. The class sets the alignment (`end`, `middle`, default start).
    pub fn text(&mut self, class: &str, (x, y): Point, words: &str) {
        let words = escape(words);
        self.add(&format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>"));
    }

    /// Adds a rectangle with a tooltip.
    pub fn rect(&mut self, class: &str, (x, y): Point, (width, height): Point, tip: &str) {
        let tip = escape(tip);
        self.add(&format!(
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
             height=\"{height:.2}\"><title>{tip}</title></rect>"
        ));
    }

    /// Adds a dot, with a tooltip unless `tip` is empty.
    pub fn dot(&mut self, class: &str, (x, y): Point, tip: &str) {
        let title = match tip {
            "" => String::new(),
            tip => format!("<title>{}</title>", escape(tip)),
        };
        self.add(&format!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\">{title}</circle>"
        ));
    }

    /// Adds a path in SVG syntax.
    pub fn path(&mut self, class: &str, d: &str) {
        self.add(&format!("<path class=\"{class}\" d=\"{d}\"/>"));
    }

    /// Adds a polyline.
    pub fn line(&mut self, class: &str, points: &[Point]) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.add(&format!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }

    fn add(&mut self, element: &str) {
        self.body += element;
        self.body.push('\n');
    }

    /// Renders an `<svg>` element without style, for a page that includes `STYLE`.
    pub fn inline(&self) -> String {
        format!("<svg class=\"chart\" {}>\n{}</svg>\n", self.view_box(), self.body)
    }

    /// Renders a standalone file with its own style and background.
    pub fn file(&self) -> String {
        let Drawing { width, height, body } = self;
        let view_box = self.view_box();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" \
             width=\"{width}\" height=\"{height}\" {view_box}>\n<style>\n{STYLE}</style>\n\
             <rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{body}</svg>\n"
        )
    }

    fn view_box(&self) -> String {
        format!("viewBox=\"0 0 {} {}\" role=\"img\"", self.width, self.height)
    }
}

/// Width of a text in pixels at 12 px; never too small for digits and Latin letters.
pub fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.0
}

/// Escapes text for XML and HTML, including attributes.
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
