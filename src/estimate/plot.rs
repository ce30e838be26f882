//! Pictures of an estimate: SVG files and one page that holds them all.

use super::view::{GB, View};
use crate::base::svg::{COLOURS, Chart, Curve, Drawing, STYLE, Scale, Stroke, escape, text_width};
use crate::plan::timeline::Timeline;
use anyhow::Context;
use std::path::Path;

/// Name, caption and drawing.
type Picture = (&'static str, &'static str, Drawing);

const WIDTH: f64 = 900.0;

fn fill(i: usize) -> String {
    format!("f{}", i % COLOURS)
}

fn legend(to: &mut Drawing, names: &[&str], y: f64) {
    let mut x = 60.0;
    for (i, name) in names.iter().enumerate() {
        to.rect(&fill(i), (x, y - 10.0), (12.0, 12.0), name);
        to.text("legend", (x + 17.0, y), name);
        x += 34.0 + text_width(name);
    }
}

/// A stacked bar a stage.
fn memory(v: &View) -> Drawing {
    let (height, left, top, foot) = (360.0, 60.0, 60.0, 40.0);
    let most = v.stages.iter().map(|s| s.bytes()).fold(v.capacity, f64::max) * 1.05;
    let scale = (height - top - foot) / most;
    let slot = (WIDTH - left - 20.0) / v.stages.len() as f64;
    let base = height - foot;
    let mut to = Drawing::new(WIDTH, height);
    let title = format!("Memory of each stage's rank, GB: {}", v.name);
    to.text("title", (left, 22.0), &title);
    let names: Vec<&str> = v.stages[0].terms.iter().map(|(name, _)| *name).collect();
    legend(&mut to, &names, 44.0);
    for (i, stage) in v.stages.iter().enumerate() {
        let (x, mut y) = (left + i as f64 * slot + slot * 0.1, base);
        for (j, (name, bytes)) in stage.terms.iter().enumerate() {
            let h = bytes * scale;
            y -= h;
            let tip = format!("stage {i}, {name}: {:.2} GB", bytes / GB);
            to.rect(&fill(j), (x, y), (slot * 0.8, h), &tip);
        }
        let middle = x + slot * 0.4;
        if v.stages.len() <= 24 {
            let sum = stage.bytes() / GB;
            let digits = if sum < 10.0 { 2 } else { 0 };
            to.text("middle", (middle, y - 4.0), &format!("{sum:.digits$}"));
        }
        to.text("middle", (middle, base + 16.0), &i.to_string());
    }
    to.text("middle", ((left + WIDTH) / 2.0, height - 6.0), "pipeline stage");
    let line = base - v.capacity * scale;
    to.path("limit", &format!("M{left} {line:.1}H{}", WIDTH - 20.0));
    to.text("end", (left - 6.0, line + 4.0), &format!("{:.0}", v.capacity / GB));
    to.text("end", (left - 6.0, base), "0");
    to
}

/// Each part of an iteration where the one before ends.
fn waterfall(v: &View) -> Drawing {
    let parts: Vec<&(&'static str, f64)> = v.parts.iter().filter(|part| part.1 > 0.0).collect();
    let (left, top, row) = (190.0, 40.0, 26.0);
    let scale = (WIDTH - left - 150.0) / v.seconds;
    let mut to = Drawing::new(WIDTH, top + row * (parts.len() + 1) as f64 + 16.0);
    to.text("title", (20.0, 22.0), &format!("Where an iteration's time goes: {}", v.name));
    let (mut x, mut y) = (left, top);
    for (i, (name, seconds)) in parts.iter().enumerate() {
        let w = seconds * scale;
        to.text("legend end", (left - 8.0, y + 15.0), name);
        to.rect(&fill(i), (x, y + 3.0), (w.max(1.0), row - 8.0), name);
        let label = format!("{seconds:.4} s, {:.1} %", 100.0 * seconds / v.seconds);
        to.text("", (x + w + 6.0, y + 15.0), &label);
        (x, y) = (x + w, y + row);
    }
    to.text("legend end", (left - 8.0, y + 15.0), "sum");
    to.rect("sum", (left, y + 3.0), (v.seconds * scale, row - 8.0), "sum");
    to.text("", (left + v.seconds * scale + 6.0, y + 15.0), &format!("{:.4} s", v.seconds));
    to
}

/// The schedule, a row a stage; every other micro-batch is pale.
fn schedule(v: &View, played: &Timeline) -> Drawing {
    let (left, top) = (60.0, 48.0);
    let row = (360.0 / played.ranks.len() as f64).clamp(8.0, 30.0);
    let height = top + row * played.ranks.len() as f64 + 30.0;
    let scale = (WIDTH - left - 20.0) / played.end();
    let mut to = Drawing::new(WIDTH, height);
    let (end, waiting) = (played.end(), 100.0 * played.bubble());
    let title = format!("The pipeline's schedule, {end:.2} s, {waiting:.0} % waiting: {}", v.name);
    to.text("title", (left, 20.0), &title);
    legend(&mut to, &["forward", "backward"], 40.0);
    for (stage, spans) in played.ranks.iter().enumerate() {
        let y = top + row * stage as f64;
        to.text("end", (left - 8.0, y + row * 0.7), &stage.to_string());
        for span in spans {
            let micro = span.pass.micro;
            let (name, colour) = if span.forward { ("forward", 0) } else { ("backward", 1) };
            let pale = if micro.is_multiple_of(2) { "" } else { " pale" };
            let (x, w) = (left + span.start * scale, (span.end - span.start) * scale);
            let tip = format!("stage {stage}, {name} {micro}: {:.3}–{:.3} s", span.start, span.end);
            to.rect(&(fill(colour) + pale), (x, y + 1.0), (w, row - 2.0), &tip);
            if w > 16.0 && row > 12.0 {
                to.text("on middle", (x + w / 2.0, y + row * 0.7), &micro.to_string());
            }
        }
    }
    to.text("middle", ((left + WIDTH) / 2.0, height - 8.0), "time →");
    to
}

/// Days of the run against devices, both logarithmic: (devices, days, how).
fn scaling(v: &View, points: &[(usize, f64, String)]) -> Drawing {
    let curve = points.iter().map(|(devices, days, _)| (*devices as f64, *days));
    let chart = Chart {
        title: format!("Days for {:.0} B tokens against devices: {}", v.tokens / 1e9, v.name),
        width: WIDTH,
        height: 360.0,
        names: ["devices", ""],
        first: points[0].0 as f64,
        log: true,
        scale: Scale::Log,
        legend: false,
        curves: vec![Curve {
            name: String::new(),
            stroke: Stroke::Line,
            colour: 0,
            points: curve.collect(),
        }],
        second: Vec::new(),
    };
    let (mut to, [across, up]) = (chart.draw(), chart.axes());
    for (devices, days, how) in points {
        let (x, y) = (across.at(*devices as f64), up.at(*days));
        to.dot("f0", (x, y), &format!("{devices} devices: {days:.1} days, {how}"));
        let digits = if *days < 10.0 { 1 } else { 0 };
        to.text("", (x + 7.0, y - 7.0), &format!("{days:.digits$}"));
    }
    to
}

/// One page with every picture and the table.
fn page(v: &View, table: &str, pictures: &[Picture]) -> String {
    let figure = |(_, caption, drawing): &Picture| {
        let svg = drawing.inline();
        format!("<figure>{svg}<figcaption>{caption}</figcaption></figure>\n")
    };
    let figures: String = pictures.iter().map(figure).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Estimate: {name}</title>\n\
         <style>\n{STYLE}body{{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;\
         padding:0 1em}}pre{{font-size:12.5px;line-height:1.35;overflow-x:auto;\
         background:#8881;padding:1em}}figure{{margin:2em 0}}svg{{max-width:100%;height:auto}}\
         figcaption{{opacity:.7}}</style></head>\n<body><h1>{name}</h1>\n{figures}<pre>{}</pre>\
         </body></html>\n",
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
    let mut pictures: Vec<Picture> = vec![
        ("memory", "Memory of each stage's first rank.", memory(v)),
        ("waterfall", "An iteration on the slowest stage.", waterfall(v)),
        ("schedule", "The schedule's first micro-batches, all stages.", schedule(v, played)),
    ];
    if points.len() > 1 {
        let caption = "The best way to cut the model over each number of devices.";
        pictures.push(("days", caption, scaling(v, points)));
    }
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let files = pictures.iter().map(|(name, _, drawing)| (format!("{name}.svg"), drawing.file()));
    let page = ("estimate.html".to_string(), page(v, table, &pictures));
    for (name, content) in files.chain([page]) {
        let path = folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
