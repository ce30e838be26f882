//! Pictures of an estimate: SVG files and one page that holds them all.

use super::view::{GB, View};
use crate::plan::timeline::Timeline;
use anyhow::Context;
use std::fmt::Write;
use std::path::Path;

/// Named pictures, each a whole SVG file.
pub type Pictures = Vec<(&'static str, &'static str, String)>;

const COLOURS: [&str; 10] = [
    "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb", "#004488",
    "#997700", "#994455",
];

fn svg(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn rect(to: &mut String, (x, y): (f64, f64), (w, h): (f64, f64), colour: &str, tip: &str) {
    let _ = writeln!(
        to,
        "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{w:.2}\" height=\"{h:.2}\" fill=\"{colour}\">\
         <title>{}</title></rect>",
        escape(tip)
    );
}

fn text(to: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let _ = writeln!(
        to,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(words)
    );
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn legend(to: &mut String, names: &[&str], y: f64) {
    let mut x = 60.0;
    for (i, name) in names.iter().enumerate() {
        rect(to, (x, y - 10.0), (12.0, 12.0), COLOURS[i % COLOURS.len()], name);
        text(to, (x + 17.0, y), "start", name);
        x += 34.0 + 7.0 * name.chars().count() as f64;
    }
}

/// A stacked bar a stage.
pub fn memory(v: &View) -> String {
    let (width, height, left, top, foot) = (900.0, 360.0, 60.0, 60.0, 40.0);
    let most = v.stages.iter().map(|s| s.bytes()).fold(v.capacity, f64::max) * 1.05;
    let scale = (height - top - foot) / most;
    let slot = (width - left - 20.0) / v.stages.len() as f64;
    let base = height - foot;
    let mut body = String::new();
    text(&mut body, (left, 20.0), "start", &format!("Memory of each stage's rank, GB: {}", v.name));
    let names: Vec<&str> = v.stages[0].terms.iter().map(|(name, _)| *name).collect();
    legend(&mut body, &names, 42.0);
    for (i, stage) in v.stages.iter().enumerate() {
        let (x, mut y) = (left + i as f64 * slot + slot * 0.1, base);
        for (j, (name, bytes)) in stage.terms.iter().enumerate() {
            let h = bytes * scale;
            y -= h;
            let tip = format!("stage {i}, {name}: {:.2} GB", bytes / GB);
            rect(&mut body, (x, y), (slot * 0.8, h), COLOURS[j % COLOURS.len()], &tip);
        }
        let middle = x + slot * 0.4;
        if v.stages.len() <= 24 {
            let sum = stage.bytes() / GB;
            let digits = if sum < 10.0 { 2 } else { 0 };
            text(&mut body, (middle, y - 4.0), "middle", &format!("{sum:.digits$}"));
        }
        text(&mut body, (middle, base + 16.0), "middle", &i.to_string());
    }
    text(&mut body, ((left + width) / 2.0, height - 6.0), "middle", "pipeline stage");
    let line = base - v.capacity * scale;
    let _ = writeln!(
        body,
        "<line x1=\"{left}\" x2=\"{}\" y1=\"{line:.1}\" y2=\"{line:.1}\" stroke=\"#c00\" \
         stroke-dasharray=\"5 4\"/>",
        width - 20.0
    );
    text(&mut body, (left - 6.0, line + 4.0), "end", &format!("{:.0}", v.capacity / GB));
    text(&mut body, (left - 6.0, base), "end", "0");
    svg(width, height, &body)
}

/// Each part of an iteration where the one before ends.
pub fn waterfall(v: &View) -> String {
    let parts: Vec<&(&'static str, f64)> = v.parts.iter().filter(|part| part.1 > 0.0).collect();
    let (width, left, top, row) = (900.0, 190.0, 40.0, 26.0);
    let height = top + row * (parts.len() + 1) as f64 + 16.0;
    let scale = (width - left - 150.0) / v.seconds;
    let mut body = String::new();
    text(&mut body, (20.0, 22.0), "start", &format!("Where an iteration's time goes: {}", v.name));
    let (mut x, mut y) = (left, top);
    for (i, (name, seconds)) in parts.iter().enumerate() {
        let w = seconds * scale;
        text(&mut body, (left - 8.0, y + 15.0), "end", name);
        rect(&mut body, (x, y + 3.0), (w.max(1.0), row - 8.0), COLOURS[i % COLOURS.len()], name);
        let label = format!("{seconds:.4} s, {:.1} %", 100.0 * seconds / v.seconds);
        text(&mut body, (x + w + 6.0, y + 15.0), "start", &label);
        (x, y) = (x + w, y + row);
    }
    text(&mut body, (left - 8.0, y + 15.0), "end", "sum");
    rect(&mut body, (left, y + 3.0), (v.seconds * scale, row - 8.0), "#444", "sum");
    let sum = format!("{:.4} s", v.seconds);
    text(&mut body, (left + v.seconds * scale + 6.0, y + 15.0), "start", &sum);
    svg(width, height, &body)
}

/// The schedule: forwards dark, backwards light, a row a stage.
pub fn schedule(v: &View, played: &Timeline) -> String {
    let (width, left, top) = (900.0, 60.0, 44.0);
    let row = (360.0 / played.ranks.len() as f64).clamp(8.0, 30.0);
    let height = top + row * played.ranks.len() as f64 + 30.0;
    let scale = (width - left - 20.0) / played.end();
    let mut body = String::new();
    let (end, waiting) = (played.end(), 100.0 * played.bubble());
    let title = format!("The pipeline's schedule, {end:.2} s, {waiting:.0} % waiting: {}", v.name);
    text(&mut body, (left, 18.0), "start", &title);
    text(&mut body, (left, 36.0), "start", "blue: forward, orange: backward, white: waiting");
    for (stage, spans) in played.ranks.iter().enumerate() {
        let y = top + row * stage as f64;
        text(&mut body, (left - 8.0, y + row * 0.7), "end", &stage.to_string());
        for span in spans {
            let (micro, even) = (span.pass.micro, span.pass.micro.is_multiple_of(2));
            let (name, colour) = match (span.forward, even) {
                (true, true) => ("forward", "#4477aa"),
                (true, false) => ("forward", "#6699cc"),
                (false, true) => ("backward", "#ee8866"),
                (false, false) => ("backward", "#f5b199"),
            };
            let (x, w) = (left + span.start * scale, (span.end - span.start) * scale);
            let (start, end) = (span.start, span.end);
            let tip = format!("stage {stage}, {name} {micro}: {start:.3}–{end:.3} s");
            rect(&mut body, (x, y + 1.0), (w, row - 2.0), colour, &tip);
            if w > 16.0 && row > 12.0 {
                text(&mut body, (x + w / 2.0, y + row * 0.7), "middle", &micro.to_string());
            }
        }
    }
    text(&mut body, ((left + width) / 2.0, height - 8.0), "middle", "time →");
    svg(width, height, &body)
}

/// Days of the run against devices, both logarithmic: (devices, days, how).
pub fn scaling(v: &View, points: &[(usize, f64, String)]) -> String {
    let (width, height, left, top, foot) = (900.0, 360.0, 70.0, 40.0, 50.0);
    let mut body = String::new();
    let title = format!("Days for {:.0} B tokens against devices: {}", v.tokens / 1e9, v.name);
    text(&mut body, (left, 22.0), "start", &title);
    let xs = points.iter().map(|p| (p.0 as f64).ln());
    let ys = points.iter().map(|p| p.1.ln());
    let range = |all: &mut dyn Iterator<Item = f64>| {
        all.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)))
    };
    let (x0, x1) = range(&mut xs.clone());
    let (y0, y1) = range(&mut ys.clone());
    let (x1, y1) = (x1.max(x0 + 0.1), y1.max(y0 + 0.1));
    let at = |p: &(usize, f64, String)| {
        let x = left + ((p.0 as f64).ln() - x0) / (x1 - x0) * (width - left - 60.0);
        let y = height - foot - (p.1.ln() - y0) / (y1 - y0) * (height - top - foot - 20.0);
        (x, y)
    };
    let path: Vec<String> = points
        .iter()
        .map(|p| {
            let (x, y) = at(p);
            format!("{x:.1},{y:.1}")
        })
        .collect();
    let _ = writeln!(
        body,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#4477aa\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for p in points {
        let (x, y) = at(p);
        let _ = writeln!(
            body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#4477aa\"><title>{} devices: {:.1} days, \
             {}</title></circle>",
            p.0,
            p.1,
            escape(&p.2)
        );
        let digits = if p.1 < 10.0 { 1 } else { 0 };
        text(&mut body, (x + 7.0, y - 7.0), "start", &format!("{:.digits$}", p.1));
        text(&mut body, (x, height - foot + 18.0), "middle", &p.0.to_string());
    }
    text(&mut body, ((left + width) / 2.0, height - 10.0), "middle", "devices");
    text(&mut body, (left - 10.0, top + 16.0), "end", "days");
    svg(width, height, &body)
}

/// One page with every picture and the table.
pub fn page(v: &View, table: &str, pictures: &Pictures) -> String {
    let figures: Vec<String> = pictures
        .iter()
        .map(|(_, caption, svg)| {
            format!("<figure>{svg}<figcaption>{caption}</figcaption></figure>\n")
        })
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Estimate: {name}</title>\n\
         <style>body{{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;\
         color:#222;background:#fff}}pre{{font-size:12.5px;line-height:1.35;overflow-x:auto;\
         background:#f6f6f6;padding:1em}}figure{{margin:2em 0}}svg{{max-width:100%;height:auto}}\
         figcaption{{color:#666}}</style></head>\n<body><h1>{name}</h1>\n{}<pre>{}</pre></body></html>\n",
        figures.concat(),
        escape(table),
        name = escape(&v.name)
    )
}

/// Every picture, and the page, into a folder.
pub fn write(
    folder: &Path,
    v: &View,
    table: &str,
    played: &Timeline,
    points: &[(usize, f64, String)],
) -> anyhow::Result<()> {
    let mut pictures = vec![
        ("memory", "Memory of each stage's first rank.", memory(v)),
        ("waterfall", "An iteration on the stage that sets the pace.", waterfall(v)),
    ];
    let caption = "The schedule's first micro-batches, all stages.";
    pictures.push(("schedule", caption, schedule(v, played)));
    if points.len() > 1 {
        let caption = "The best way to cut the model over each number of devices.";
        pictures.push(("days", caption, scaling(v, points)));
    }
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let files = pictures.iter().map(|(name, _, svg)| (format!("{name}.svg"), svg.clone()));
    let page = ("estimate.html".to_string(), page(v, table, &pictures));
    for (name, content) in files.chain([page]) {
        let path = folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
