//! Charts of an estimate: SVG files, and one page with all of them.

use super::hardware::Hardware;
use super::search::{Candidate, Planned, Ranking, print};
use super::view::{GIB, Terms, View};
use super::words;
use anyhow::Context;
use base::output::{self, Existing};
use base::svg::{COLOURS, Chart, Curve, Drawing, PAGE, STYLE, Scale, Stroke, escape, text_width};
use base::{Count, Problems, Seconds};
use manifest::{Manifest, Topology};
use plan::timeline::Timeline;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Name, caption, and the drawing in each of `WIDTHS`.
type Picture = (&'static str, &'static str, [Drawing; 2]);

/// Widths of a drawing: of a file and a screen, and of a phone.
const WIDTHS: [f64; 2] = [900.0, 480.0];

fn fill(i: usize) -> String {
    format!("f{}", i % COLOURS)
}

/// Height of a line of the legend.
const LEGEND: f64 = 18.0;

/// Places of a legend's names within a width, the first line at `y`; and the last line's `y`.
fn places<'a>(names: &[&'a str], y: f64, width: f64) -> (Vec<(&'a str, f64, f64)>, f64) {
    let left = 60.0;
    let mut x = left;
    let mut y = y;
    let all = names
        .iter()
        .map(|name| {
            let needed = 17.0 + text_width(name);
            if x > left && x + needed > width {
                (x, y) = (left, y + LEGEND);
            }
            let place = (*name, x, y);
            x += 17.0 + needed;
            place
        })
        .collect();
    (all, y)
}

fn legend(to: &mut Drawing, names: &[&str], y: f64, width: f64) {
    for (i, (name, x, y)) in places(names, y, width).0.into_iter().enumerate() {
        to.rect(&fill(i), (x, y - 10.0), (12.0, 12.0), name);
        to.text("legend", (x + 17.0, y), name);
    }
}

/// Share of the limit below which bars have their own scale.
const FAR: f64 = 0.2;

/// Stacked bar per stage.
fn memory(v: &View, width: f64) -> Drawing {
    let names: Vec<&str> = v.stages[0].terms.iter().map(|(name, _)| *name).collect();
    let left = 60.0;
    let top = places(&names, 44.0, width).1 + 16.0;
    let foot = 40.0;
    let height = 300.0 + top;
    let used = v.stages.iter().map(|s| s.bytes()).fold(0.0, f64::max);
    // Bars far below the limit would not be visible at its scale.
    let far = used < FAR * v.capacity;
    let most = if far { 1.2 * used } else { 1.05 * used.max(v.capacity) };
    let scale = (height - top - foot) / most;
    let slot = (width - left - 20.0) / v.stages.len() as f64;
    let base = height - foot;
    let mut to = Drawing::new(width, height);
    to.text("title", (left, 22.0), &titled("Memory of each stage's rank, GiB", &v.name, width));
    legend(&mut to, &names, 44.0, width);
    for (i, stage) in v.stages.iter().enumerate() {
        let x = left + i as f64 * slot + slot * 0.1;
        let mut y = base;
        for (j, (name, bytes)) in stage.terms.iter().enumerate() {
            let h = bytes * scale;
            y -= h;
            let tip = format!("stage {i}, {name}: {:.2} GiB", bytes / GIB);
            to.rect(&fill(j), (x, y), (slot * 0.8, h), &tip);
        }
        let middle = x + slot * 0.4;
        if slot >= 32.0 {
            let sum = stage.bytes() / GIB;
            let digits = if sum < 10.0 { 2 } else { 0 };
            to.text("middle", (middle, y - 4.0), &format!("{sum:.digits$}"));
        }
        if slot >= 16.0 || i % 8 == 0 {
            to.text("middle", (middle, base + 16.0), &i.to_string());
        }
    }
    to.text("middle", ((left + width) / 2.0, height - 6.0), "pipeline stage");
    if far {
        let limit = format!("limit: {:.0} GiB, above the picture", v.capacity / GIB);
        to.text("end", (width - 20.0, height - 6.0), &limit);
    } else {
        let line = base - v.capacity * scale;
        to.path("limit", &format!("M{left} {line:.1}H{}", width - 20.0));
        to.text("end", (left - 6.0, line + 4.0), &format!("{:.0}", v.capacity / GIB));
    }
    to.text("end", (left - 6.0, base), "0");
    to
}

/// Waterfall of an iteration: each part starts at the end of the previous one; overlap is negative.
fn waterfall(v: &View, width: f64) -> Drawing {
    let parts: Vec<&(&'static str, f64)> = v.parts.iter().filter(|part| part.1 != 0.0).collect();
    let left = 190.0;
    let top = 40.0;
    let row = 26.0;
    let scale = (width - left - 150.0) / v.seconds;
    let mut to = Drawing::new(width, top + row * (parts.len() + 1) as f64 + 16.0);
    let title = titled("Where an iteration's time goes", &v.name, width);
    to.text("title", (20.0, 22.0), &title);
    let mut x = left;
    let mut y = top;
    for (i, (name, seconds)) in parts.iter().enumerate() {
        let w = seconds * scale;
        to.text("legend end", (left - 8.0, y + 15.0), name);
        let from = x.min(x + w);
        let to_x = x.max(x + w);
        to.rect(&fill(i), (from, y + 3.0), ((to_x - from).max(1.0), row - 8.0), name);
        let label = format!("{seconds:.4} s, {:.1} %", 100.0 * seconds / v.seconds);
        to.text("", (to_x + 6.0, y + 15.0), &label);
        (x, y) = (x + w, y + row);
    }
    to.text("legend end", (left - 8.0, y + 15.0), "sum");
    to.rect("sum", (left, y + 3.0), (v.seconds * scale, row - 8.0), "sum");
    to.text("", (left + v.seconds * scale + 6.0, y + 15.0), &format!("{:.4} s", v.seconds));
    to
}

/// Schedule, a row per stage; every other micro-batch is pale.
fn schedule(v: &View, played: &Timeline, width: f64) -> Drawing {
    let left = 60.0;
    let top = 48.0;
    let row = (360.0 / played.ranks.len() as f64).clamp(8.0, 30.0);
    let height = top + row * played.ranks.len() as f64 + 30.0;
    let scale = (width - left - 20.0) / played.end();
    let mut to = Drawing::new(width, height);
    let end = played.end();
    let waiting = 100.0 * played.bubble();
    let title = format!("The pipeline's schedule, {end:.2} s, {waiting:.0} % waiting");
    to.text("title", (left, 20.0), &titled(&title, &v.name, width));
    legend(&mut to, &["forward", "backward"], 40.0, width);
    for (stage, spans) in played.ranks.iter().enumerate() {
        let y = top + row * stage as f64;
        to.text("end", (left - 8.0, y + row * 0.7), &stage.to_string());
        for span in spans {
            let micro = span.pass.micro;
            let (name, colour) = if span.forward { ("forward", 0) } else { ("backward", 1) };
            let pale = if micro.is_multiple_of(2) { "" } else { " pale" };
            let x = left + span.start * scale;
            let w = (span.end - span.start) * scale;
            let tip = format!("stage {stage}, {name} {micro}: {:.3}–{:.3} s", span.start, span.end);
            to.rect(&(fill(colour) + pale), (x, y + 1.0), (w, row - 2.0), &tip);
            if w > 16.0 && row > 12.0 {
                to.text("on middle", (x + w / 2.0, y + row * 0.7), &micro.to_string());
            }
        }
    }
    to.text("middle", ((left + width) / 2.0, height - 8.0), "time →");
    to
}

/// "Memory of each stage's rank, GiB: gpt2-124m"; without the name if it does not fit.
fn titled(what: &str, name: &str, width: f64) -> String {
    let whole = format!("{what}: {name}");
    // Titles are 15 px high, texts of `text_width` 12.
    if 80.0 + 1.25 * text_width(&whole) <= width { whole } else { what.to_string() }
}

/// Point of a chart over devices: their number, the value, and a tooltip.
pub type Point = (usize, f64, String);

/// Points of a program over devices: its name, and the points.
pub type Line = (&'static str, Vec<Point>);

/// Chart of lines over devices with logarithmic axes, and the plan's own point. Several lines have a
/// legend.
fn draw_over_devices(title: &str, lines: &[Line], own: Option<&Point>, width: f64) -> Drawing {
    let first = lines
        .iter()
        .flat_map(|(_, points)| points)
        .chain(own)
        .map(|point| point.0)
        .min()
        .expect("a point at least");
    let mut curves = Vec::new();
    for (colour, (name, points)) in lines.iter().enumerate() {
        let points = points
            .iter()
            .map(|(devices, value, _)| (*devices as f64, *value));
        curves.push(Curve {
            name: name.to_string(),
            stroke: Stroke::Line,
            colour,
            points: points.collect(),
        });
    }
    // The scale includes the marked point.
    curves.extend(own.iter().map(|(devices, value, _)| Curve {
        name: "this plan".to_string(),
        stroke: Stroke::Line,
        colour: lines.len(),
        points: vec![(*devices as f64, *value)],
    }));
    let chart = Chart {
        title: title.to_string(),
        width,
        height: 360.0,
        names: ["devices", ""],
        first: first as f64,
        log: true,
        scale: Scale::Log,
        legend: lines.len() > 1,
        curves,
        second: Vec::new(),
    };
    let (mut to, [across, up]) = (chart.draw(), chart.axes());
    // A number that would lie upon another is left to the dot's tooltip.
    let mut written: Vec<(f64, f64)> = Vec::new();
    let mut mark = |class: &str, (devices, value, tip): &Point, below: f64, word: &str| {
        let x = across.pixel(*devices as f64);
        let y = up.pixel(*value);
        to.dot(class, (x, y), tip);
        let label = y + below;
        let covers = |(x0, y0): &(f64, f64)| (x - x0).abs() < 40.0 && (label - y0).abs() < 12.0;
        if !written.iter().any(covers) {
            to.text("middle", (x, label), &(short(*value) + word));
            written.push((x, label));
        }
    };
    // The best of as many devices may lie on it: it is named on the other side, unless the axis is there.
    let near_axis = |point: &Point| up.pixel(point.1) > 360.0 - 70.0;
    if let Some(point) = own {
        let below = if near_axis(point) { -26.0 } else { 20.0 };
        mark(&fill(lines.len()), point, below, " this plan");
    }
    for (colour, (_, points)) in lines.iter().enumerate() {
        for point in points {
            mark(&fill(colour), point, -10.0, "");
        }
    }
    to
}

/// Short number ("0.052", "2.8", "133", "2.77M"), no wider than the margin beside the last point.
fn short(value: f64) -> String {
    match value {
        ..0.1 => format!("{value:.3}"),
        ..1.0 => format!("{value:.2}"),
        ..10.0 => format!("{value:.1}"),
        ..1e4 => format!("{value:.0}"),
        ..1e6 => format!("{:.0}k", value / 1e3),
        _ => format!("{:.2}M", value / 1e6),
    }
}

/// Tile: name, value in large letters, and its composition.
type Tile = (&'static str, String, String);

/// Page with tiles, all charts and the table.
fn page(name: &str, tiles: &[Tile], pictures: &[Picture], table: &str) -> String {
    let name = escape(name);
    let tiles: String = tiles
        .iter()
        .map(|(name, value, more)| {
            let value = escape(value);
            let more = escape(more);
            format!("<li><span>{name}</span><b>{value}</b><small>{more}</small></li>\n")
        })
        .collect();
    let figures: String = pictures
        .iter()
        .map(|(_, caption, drawings)| {
            drawings
                .iter()
                .zip(["broad", "narrow"])
                .map(|(drawing, class)| {
                    let svg = drawing.inline();
                    format!(
                        "<figure class=\"wide {class}\">{svg}<figcaption><small>{caption}</small>\
                         </figcaption></figure>\n"
                    )
                })
                .collect::<String>()
        })
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{name} – gptrain estimate</title>\n\
         <style>\n{STYLE}{PAGE}</style></head>\n<body><main>\n<header><h1>{name}</h1>\
         <p>gptrain estimate</p></header>\n<ul class=\"tiles\">\n{tiles}</ul>\n{figures}\
         <section><pre>{}</pre></section>\n</main></body></html>\n",
        escape(table)
    )
}

/// Text short enough for a tile.
fn grid(t: &Topology) -> String {
    format!("TP{} PP{} DP{}", t.tensor, t.pipeline, t.data)
}

/// Time of a step, and its error bar: "± 20 %, nine in ten", or the basis of the estimate.
fn step_tile(seconds: f64, error: f64, program: &str, hw: &Hardware) -> Tile {
    let name = "time per step";
    let unmeasured = program == "gptrain" && hw.is_unmeasured();
    let rests = if unmeasured { "forecast, not measured" } else { "nine in ten" };
    if words::is_wide(error) {
        return (name, words::with_bar(seconds, error), rests.to_string());
    }
    (name, Seconds(seconds).to_string(), format!("{}, {rests}", words::bar(error)))
}

/// Unit in which the longest of some runs is at least one, and its number per day.
fn unit(days: impl Iterator<Item = f64>) -> (&'static str, f64) {
    match days.fold(0.0, f64::max) {
        2.0.. => ("Days", 1.0),
        longest if longest * 24.0 >= 2.0 => ("Hours", 24.0),
        _ => ("Minutes", 1440.0),
    }
}

fn tiles(v: &View) -> Vec<Tile> {
    let t = &v.setup.topology;
    let model = v.tflops().0;
    let memory = format!("{:.1} GiB", v.reserved / GIB);
    let room = format!("of {:.1}: {}", v.capacity / GIB, v.verdict().words());
    let step = step_tile(v.seconds, v.seconds_error, v.program, v.setup.hardware);
    let mfu = 100.0 * model / v.setup.hardware.peak_tflops;
    let devices = words::devices(v.setup.ranks());
    let digits = if model < 10.0 { 2 } else { 0 };
    let grid = format!("{}{}, ZeRO {}", grid(t), t.schedule_words(), t.zero);
    let paid = v.terms.money(v.terms.cost(&v.days));
    let hours = words::hours(v.terms.device_hours(&v.days));
    let mut tiles: Vec<Tile> = vec![
        (&v.setup.hardware.name, devices, grid),
        ("memory per device", memory, room),
        step,
        (
            "model FLOPs utilisation",
            format!("{mfu:.0} %"),
            format!("{model:.digits$} TFLOP/s per device"),
        ),
        (
            "the run",
            words::span(v.terms.calendar_seconds(&v.days)),
            format!("{} tokens", words::size(v.tokens())),
        ),
    ];
    if v.terms.has_price() {
        tiles.push(("cost", paid, format!("{hours} device-hours")));
    }
    tiles
}

/// Writes all charts and the page into a folder.
pub fn write(
    folder: &Path,
    existing: Existing,
    v: &View,
    table: &str,
    played: &Timeline,
    lines: &[Line],
) -> anyhow::Result<()> {
    let mut pictures: Vec<Picture> = vec![
        ("memory", "Memory of each stage's first rank.", WIDTHS.map(|width| memory(v, width))),
        (
            "waterfall",
            "An iteration on the slowest stage.",
            WIDTHS.map(|width| waterfall(v, width)),
        ),
        (
            "schedule",
            "The schedule's first micro-batches, all stages.",
            WIDTHS.map(|width| schedule(v, played, width)),
        ),
    ];
    let counts = lines.iter().flat_map(|(_, points)| points);
    let counts: BTreeSet<usize> = counts.map(|point| point.0).collect();
    if counts.len() > 1 {
        let caption = "The best topology for each number of devices.";
        let days = v.days.days();
        let all = lines.iter().flat_map(|(_, points)| points);
        let (unit, each) = unit(all.map(|point| point.1).chain([days]));
        let tokens = words::size(v.tokens());
        let title = format!("{unit} for {tokens} tokens against devices");
        let own =
            (v.setup.ranks(), days * each, format!("this plan: {}", words::span(v.days.seconds)));
        let mut scaled = lines.to_vec();
        for (_, value, _) in scaled.iter_mut().flat_map(|(_, points)| points) {
            *value *= each;
        }
        let draw =
            |width| draw_over_devices(&titled(&title, &v.name, width), &scaled, Some(&own), width);
        pictures.push(("days", caption, WIDTHS.map(draw)));
    }
    files(folder, existing, &pictures, &page(&v.name, &tiles(v), &pictures, table))
}

/// Writes the charts of a search (days and money over devices) and the page into a folder.
pub fn write_search(
    folder: &Path,
    existing: Existing,
    m: &Manifest,
    found: &Ranking,
    terms: &Terms,
    table: &str,
) -> anyhow::Result<()> {
    let days = |p: &Planned| terms.calendar_days(&p.days);
    let money = |p: &Planned| terms.cost(&p.days);
    let points = |value_of: &dyn Fn(&Planned) -> f64, say: &dyn Fn(f64) -> String| {
        let mut points: Vec<Point> = found
            .pareto
            .iter()
            .map(|p| {
                let value = value_of(p);
                let cut = print::describe(&p.candidate.setup);
                let devices = p.days.devices;
                (devices, value, format!("{devices} devices: {}, {cut}", say(value)))
            })
            .collect();
        points.sort_by_key(|point| point.0);
        points
    };
    let caption =
        "The best topology for each number of devices that is faster or cheaper than all others.";
    let chart = |title: &str, points: &[Point]| {
        let title = format!("{title} against devices");
        let lines = [("", points.to_vec())];
        WIDTHS.map(|width| draw_over_devices(&titled(&title, &m.name, width), &lines, None, width))
    };
    let (unit, each) = unit(found.pareto.iter().map(days));
    let calendar = |p: &Planned| each * days(p);
    let pictures: Vec<Picture> = vec![
        (
            "days",
            caption,
            chart(unit, &points(&calendar, &|time| format!("{time:.1} {}", unit.to_lowercase()))),
        ),
        ("money", caption, chart("Cost", &points(&money, &|sum| terms.money(sum)))),
    ];
    let best = &found.best[0];
    let devices = words::devices(best.days.devices);
    let setup = &best.candidate.setup;
    let Candidate { seconds, seconds_error, .. } = best.candidate;
    let program = setup.program.name();
    let step = step_tile(seconds, seconds_error, program, setup.hardware);
    let span = words::span(terms.calendar_seconds(&best.days));
    let mut tiles: Vec<Tile> = vec![
        (&setup.hardware.name, devices, format!("best of {} topologies", Count(found.cuts as u64))),
        step,
        ("the run", span, format!("{}, micro {}", grid(&setup.topology), setup.micro)),
    ];
    if terms.has_price() {
        tiles.push(("cost", terms.money(money(best)), "of this plan".to_string()));
    }
    files(folder, existing, &pictures, &page(&m.name, &tiles, &pictures, table))
}

/// Fails if a file with the name exists.
fn is_free(place: &Path) -> Result<(), Problems> {
    output::is_free(place).map_err(|_| {
        let shown = place.display().to_string();
        let what = format!("{shown} exists");
        Problems::one(shown, what, "choose another folder, or replace its files with --overwrite")
    })
}

/// Writes all files, or none if one exists that must not be replaced.
fn files(
    folder: &Path,
    existing: Existing,
    pictures: &[Picture],
    page: &str,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let drawn = pictures
        .iter()
        .map(|(name, _, [wide, _])| (format!("{name}.svg"), wide.file()));
    let page = [("estimate.html".to_string(), page.to_string())];
    let files: Vec<(PathBuf, String)> = drawn
        .chain(page)
        .map(|(name, content)| (folder.join(name), content))
        .collect();
    if existing == Existing::Refused {
        files.iter().try_for_each(|(place, _)| is_free(place))?;
    }
    files
        .iter()
        .try_for_each(|(place, content)| output::write(place, existing, content.as_bytes()))
}
