//! A run's record on disk: what a kill, a resume and a damaged file leave of it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::events;
use gptrain::base::Problems;
use gptrain::base::svg::Scale;
use gptrain::commands::ReportPage as Run;
use gptrain::launch::console::Console;
use gptrain::launch::storage::Storage;
use gptrain::plan::length::LengthRamp;
use gptrain::plan::ramp::Ramp;
use gptrain::plan::segments::{BatchSchedule, MicroStages};
use gptrain::train::report::metrics::{Dropped, Metrics, MetricsFile};
use gptrain::train::report::numbers::{NUMBERS, Number, Shown, StepRow};
use gptrain::train::report::tensorboard::{Events, Position};
use gptrain::train::report::{Report, RunInfo, TokenFlops};
use std::sync::Arc;
use std::time::Duration;

fn storage(folder: &Path) -> Arc<Storage> {
    Storage::new(folder, Duration::ZERO)
}

fn info() -> RunInfo {
    RunInfo {
        total_samples: 320,
        schedule: BatchSchedule {
            ramp: Ramp::constant(16),
            micros: MicroStages::constant(1),
            lengths: LengthRamp::constant(128),
        },
        seq_len: 128,
        flops: TokenFlops { model: 1e6, hardware: 1e6 },
        shorter: Default::default(),
        simple_flops_per_token: None,
        devices: 1,
        peak_flops: None,
        total_steps: 20,
    }
}

/// A loss whose f32 bits need all their digits.
fn loss(step: u64) -> f64 {
    f64::from((11.0f32 / step as f32).sqrt())
}

/// Steps `from + 1 ..= to`, and an evaluation on two sets at every fifth.
fn train(folder: &Path, from: u64, to: u64) {
    let mut report =
        Report::open(&Console::default(), folder, &storage(folder), info(), 1000, true, from)
            .unwrap();
    for step in from + 1..=to {
        let row = StepRow {
            step,
            consumed_samples: 16 * step,
            tokens: 16 * 128 * step,
            lm_loss: loss(step),
            grad_norm: 0.1 * step as f64,
            lr: 3e-4 / step as f64,
            global_batch: 16,
            sec: 0.25,
            tokens_per_s: 16.0 * 128.0 / 0.25,
            data_wait_s: 0.001,
            ..StepRow::default()
        };
        report.step(&row).unwrap();
        if step % 5 == 0 {
            report
                .eval(step, 16 * step, "wiki", 1.5 * loss(step))
                .unwrap();
            report
                .eval(step, 16 * step, "code", 0.5 * loss(step))
                .unwrap();
        }
    }
}

fn record(folder: &Path) -> PathBuf {
    folder.join("metrics.jsonl")
}

fn text(folder: &Path) -> String {
    fs::read_to_string(record(folder)).unwrap()
}

fn append(folder: &Path, bytes: &[u8]) {
    let old = fs::read(record(folder)).unwrap();
    fs::write(record(folder), [&old, bytes].concat()).unwrap();
}

/// Points of the curves by steps, then of those by samples.
fn scalars(folder: &Path) -> Vec<(u64, String, f32)> {
    let folders = ["tensorboard", "tensorboard/by-samples"].map(|name| folder.join(name));
    folders
        .iter()
        .flat_map(|folder| events::scalars(folder))
        .collect()
}

#[test]
fn a_line_holds_the_step_to_the_last_bit() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), 0, 5);
    let text = text(folder.path());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[2],
        "{\"step\":3,\"consumed_samples\":48,\"tokens\":6144,\"lm_loss\":1.9148542881011963,\
         \"grad_norm\":0.30000000000000004,\"lr\":0.00009999999999999999,\"global_batch\":16,\
         \"sec\":0.25,\"tokens_per_s\":8192.0,\"data_wait_s\":0.001}"
    );
    assert!(
        lines[5].starts_with("{\"step\":5,\"consumed_samples\":80,\"eval\":\"wiki\",\"lm_loss\":")
    );
    for (step, line) in (1..).zip(&lines[..5]) {
        let digits = line
            .split("\"lm_loss\":")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap();
        assert_eq!(digits.parse::<f64>().unwrap().to_bits(), loss(step).to_bits());
    }
}

#[test]
fn a_resumed_run_has_the_record_of_an_uninterrupted_one() {
    let (whole, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(whole.path(), 0, 20);
    train(cut.path(), 0, 13);
    append(cut.path(), b"{\"step\":14,\"consumed_samp"); // the kill
    train(cut.path(), 10, 20);
    assert_eq!(text(cut.path()), text(whole.path()));
    assert_eq!(scalars(cut.path()), scalars(whole.path()));

    train(cut.path(), 0, 4); // from the start again: no earlier point is shown
    assert_eq!(text(cut.path()).lines().count(), 4);
    assert_eq!(scalars(cut.path()).len(), 4 * 7 * 2);
    let left: Vec<_> = fs::read_dir(cut.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// A kill may tear the last line, a full disk any line: a resume drops invalid lines and reports it.
#[test]
fn opening_drops_torn_lines_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), 0, 4);
    append(
        folder.path(),
        b"{\"step\":5,\"cons\n\xff\xfe\n{\"step\":6}\n{\"step\":7,\"consumed_samples\":1",
    );
    let (_, dropped) = MetricsFile::open(folder.path(), 3, &storage(folder.path())).unwrap();
    assert_eq!(dropped, Dropped { after_resume: 1, unreadable: vec![5, 6, 7, 8] });
    let steps: Vec<_> = Metrics::read(folder.path())
        .unwrap()
        .steps
        .iter()
        .map(|s| s.step)
        .collect();
    assert_eq!(steps, [1, 2, 3]);
    let (_, dropped) = MetricsFile::open(folder.path(), 3, &storage(folder.path())).unwrap();
    assert_eq!(dropped, Dropped::default());
}

/// `file_version` as TensorBoard's own writer frames it: its bytes, apart from the time.
#[test]
fn an_event_file_is_tfrecords_of_events() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = Events::open(folder.path(), &storage(folder.path())).unwrap();
    let at = Position { step: 300, samples: 4800, tokens: 9_830_400 };
    events.scalars(at, &[("a", 1.5), ("b/c", -0.25)]).unwrap();
    events.scalars(at, &[("lm-loss-x", 2.0)]).unwrap();
    drop(events);
    let bytes = fs::read(&events::files(folder.path())[0]).unwrap();

    assert_eq!(bytes[..8], 26u64.to_le_bytes());
    // The masked CRC-32C of those eight bytes, as the tensorboard package gives it.
    assert_eq!(bytes[8..12], 0x2dd8_9b12_u32.to_le_bytes());
    assert_eq!(bytes[12], 0x09);
    assert_eq!(bytes[21..38], *b"\x10\x00\x1a\x0dbrain.Event:2");
    let second = &bytes[42..];
    assert_eq!(second[21..24], [0x10, 0xac, 0x02], "step 300 as a varint");
    // As the tensorboard package serialises SessionLog(status=START).
    assert_eq!(second[24..28], *b"\x3a\x02\x08\x01");
    let third = &second[32..];
    assert_eq!(third[21..24], [0x10, 0xac, 0x02]);
    // As the tensorboard package serialises this summary.
    let summary = b"\x2a\x16\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x3f\
                    \x0a\x0a\x0a\x03b/c\x15\x00\x00\x80\xbe";
    assert_eq!(third[24..48], *summary);

    let read = events::read(&bytes);
    let scalar = |tag: &str, value| (tag.to_string(), value);
    assert_eq!(read[0].file_version, "brain.Event:2");
    assert!(read[1].start && read[1].step == 300 && read[1].scalars.is_empty());
    assert_eq!(read[2].scalars, [scalar("a", 1.5), scalar("b/c", -0.25)]);
    let bytes = fs::read(&events::files(&folder.path().join("by-samples"))[0]).unwrap();
    let read = events::read(&bytes);
    assert!(read[1].start && read[1].step == 4800);
    assert_eq!(read[2].step, 4800);
    assert_eq!(read[2].scalars[1], scalar("b/c vs samples", -0.25));
    let bytes = fs::read(&events::files(&folder.path().join("by-tokens"))[0]).unwrap();
    let read = events::read(&bytes);
    assert_eq!((read.len(), read[2].step), (3, 9_830_400), "losses alone: {read:?}");
    assert_eq!(read[2].scalars, [scalar("lm-loss-x vs tokens", 2.0)]);
}

#[test]
fn a_page_needs_nothing_but_itself() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), 0, 20);
    fs::write(folder.path().join("manifest.yaml"), "name: small <one>\nmodel: {layers: 2}\n")
        .unwrap();
    let run = Run::read(folder.path()).unwrap();
    let page = run.html(Scale::Linear);
    // On a phone the loss chart is another one, as wide as the window.
    assert!(page.contains("<figure class=\"wide broad\">"), "{page}");
    let (_, narrow) = page.split_once("<figure class=\"wide narrow\">").unwrap();
    assert!(narrow.contains("viewBox=\"0 0 480 360\""), "{page}");
    assert!(page.contains("figure.narrow svg { min-width: 0; }"), "{page}");
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("<h1>small &lt;one&gt;</h1>"));
    assert!(page.contains("model: {layers: 2}"));
    // 20 steps have no median of 50; the batch is constant, the wait for data is not drawn either.
    let tile = format!("<b>{:.4}</b><small>step 20</small>", loss(20));
    assert!(page.contains(&tile) && !page.contains("median"), "{page}");
    assert!(
        page.contains("<h2>loss, nats a token</h2>") && page.contains("<h2>learning rate</h2>")
    );
    assert!(!page.contains("<h2>batch, samples") && !page.contains("<h2>data wait"), "{page}");
    assert!(page.contains("validation: wiki") && page.contains("validation: code"));
    assert!(!page.contains("NaN"), "no chart ran off its axes");
    let best = format!(
        "<th scope=\"row\">wiki</th><td>{0:.4}</td><td>{0:.4}</td><td>20</td>",
        1.5 * loss(20)
    );
    assert!(page.contains(&best), "{page}");
    let picture = run.loss_svg(Scale::Log);
    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert!(picture.contains("small &lt;one&gt;: loss, nats a token") && !picture.contains("NaN"));
}

#[test]
fn a_live_runs_torn_last_line_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), 0, 6);
    append(folder.path(), b"{\"step\":7,\"consumed_samples\":112,\"tok");
    let metrics = Metrics::read(folder.path()).unwrap();
    assert!(metrics.torn);
    assert_eq!((metrics.steps.len(), metrics.evals.len()), (6, 2));
}

/// The problems of reading `folder`, as the user sees them.
fn problems(folder: &Path) -> String {
    let error = Metrics::read(folder).unwrap_err();
    error
        .downcast::<Problems>()
        .expect("the user's mistake, not the world's")
        .to_string()
}

#[test]
fn what_cannot_be_reported_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let missing = problems(folder.path());
    assert!(
        missing.contains("metrics.jsonl: there is no such file\n    → give the folder of a run")
    );

    fs::write(record(folder.path()), "").unwrap();
    assert!(problems(folder.path()).contains("holds no step yet"));

    fs::write(record(folder.path()), "").unwrap();
    train(folder.path(), 0, 3);
    append(folder.path(), b"{\"step\":4,\"consumed\n");
    append(folder.path(), b"PK\x03\x04 not ours\n");
    let torn = problems(folder.path());
    assert!(
        torn.contains("metrics.jsonl:4: not a line of metrics: \"{\\\"step\\\":4,\\\"consumed\"")
    );
    assert!(torn.contains("metrics.jsonl:5:"), "all at once: {torn}");
}

/// Place that shows a number, as the docs name it.
fn place(shown: &Shown) -> String {
    match shown {
        Shown::Line(..) | Shown::LmLine(..) => "log line".to_string(),
        Shown::Short(..) => "short line".to_string(),
        Shown::Curve(tag) => format!("TensorBoard `{tag}`"),
        Shown::Chart(..) | Shown::Last(..) => "page".to_string(),
        Shown::Overlay(..) | Shown::Median(..) => "`gptrain compare`".to_string(),
        Shown::Status => "`status.json`".to_string(),
        Shown::Text(..) => "`gptrain status`".to_string(),
        Shown::Prometheus(name, ..) => format!("`gptrain_{name}`"),
    }
}

/// `UPDATE=1` writes the table.
#[test]
fn the_docs_list_every_number() {
    const PAGE: &str = "docs/runs.md";
    const AROUND: [&str; 2] = ["<!-- numbers -->\n", "<!-- end -->\n"];
    let row = |number: &Number| {
        let mut places: Vec<String> = number.shown.iter().map(place).collect();
        places.dedup();
        let (key, unit, about) = (number.key, number.unit, number.about.trim());
        format!("| `{key}` | {unit} | {} | {} |\n", about.trim_end_matches('.'), places.join(", "))
    };
    let head = "| key | unit | meaning | also shown as |\n|---|---|---|---|\n".to_string();
    let table = head + &NUMBERS.iter().map(row).collect::<String>();
    let page = fs::read_to_string(PAGE).unwrap();
    let [before, rest] = page.split(AROUND[0]).collect::<Vec<_>>()[..] else { panic!("{PAGE}") };
    let (there, after) = rest.split_once(AROUND[1]).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        let page = format!("{before}{}{table}{}{after}", AROUND[0], AROUND[1]);
        return fs::write(PAGE, page).unwrap();
    }
    assert!(there == table, "{PAGE} is not what the rows say: run this test with UPDATE=1");
}

/// Orders are free of doubt, and no two numbers share a name in one place.
#[test]
fn places_of_one_kind_differ() {
    let mut seen = std::collections::BTreeSet::new();
    for shown in NUMBERS.iter().flat_map(|number| number.shown) {
        let id = match shown {
            Shown::Line(at, ..) => format!("line {at}"),
            Shown::LmLine(at, ..) => format!("Megatron-LM's line {at}"),
            Shown::Short(at, ..) => format!("short {at}"),
            Shown::Curve(tag) => format!("curve {tag}"),
            Shown::Chart(at, ..) => format!("chart {at}"),
            Shown::Overlay(at, ..) => format!("overlay {at}"),
            Shown::Median(at, ..) => format!("median {at}"),
            Shown::Prometheus(name, ..) => format!("metric {name}"),
            Shown::Last(name, _) | Shown::Text(name, _) => format!("last or text {name}"),
            Shown::Status => continue,
        };
        assert!(seen.insert(id.clone()), "{id} is there twice");
    }
}
