use std::fs::{self, File};
use std::time::Duration;

use regex_lite::Regex;

use super::line::validation;
use super::numbers::{Interval, StepRow};
use super::screen::time_left;
use super::tensorboard::crc32c;
use super::*;
use base::Seconds;
use base::svg::{Axis, Chart, Curve, Scale, Stroke, labels, short_number};
use launch::console::Form;
use plan::length::LengthRamp;
use plan::ramp::Ramp;
use plan::segments::MicroStages;

fn info() -> RunInfo {
    RunInfo {
        total_samples: 8000,
        schedule: BatchSchedule {
            ramp: Ramp::constant(16),
            micros: MicroStages::constant(1),
            lengths: LengthRamp::constant(2048),
        },
        seq_len: 2048,
        flops: TokenFlops { model: 6e9, hardware: 8e9 },
        shorter: Default::default(),
        simple_flops_per_token: None,
        devices: 1,
        peak_flops: None,
        total_steps: 500,
    }
}

fn row(step: u64, lm_loss: f64) -> StepRow {
    StepRow {
        step,
        consumed_samples: 16 * step,
        tokens: 16 * 2048 * step,
        lm_loss,
        grad_norm: 0.1738,
        lr: 5.969e-5,
        global_batch: 16,
        sec: 2.0,
        tokens_per_s: 16.0 * 2048.0 / 2.0,
        data_wait_s: 0.01,
        ..StepRow::default()
    }
}

#[test]
fn the_time_left_of_a_resumed_run_is_that_of_its_own_tokens() {
    // 159 of 200 steps are left, 1,000 tokens each, at 750 tokens/s.
    assert_eq!(time_left(200_000, 41_000, 750.0), Seconds(212.0));
    assert_eq!(time_left(200_000, 200_000, 750.0), Seconds(0.0));
    assert_eq!(time_left(200_000, 1, f64::NAN).to_string(), "unknown");
}

fn megatron(interval: &mut Interval, info: &RunInfo) -> String {
    let (interval, last) = interval.take().unwrap();
    line::steps(Form::Megatron, &interval, &last, info)
}

#[test]
fn short_lines_are_for_the_eye_and_quiet_is_quiet() {
    let folder = tempfile::tempdir().unwrap();
    for (form, says) in [
        (
            Form::Short,
            "step 1/500 · loss 2.0000 · grad norm 0.17 · lr 5.97e-5 · 16.4k tokens/s · 16 m 38 s \
             left\nstep 1: books loss 3.0000, perplexity 20.09\n",
        ),
        (Form::Quiet, ""),
    ] {
        let printed = folder.path().join("printed");
        let console = Console::new(Box::new(File::create(&printed).unwrap()));
        console.set_form(form);
        let storage = Storage::new(folder.path(), Duration::ZERO);
        let mut report =
            Report::open(&console, folder.path(), &storage, info(), 1, false, 0).unwrap();
        report.step(&row(1, 2.0)).unwrap();
        report.eval(1, 16, "books", 3.0).unwrap();
        assert_eq!(fs::read_to_string(printed).unwrap(), says);
    }
}

/// The line of BLOOM-176B's log, field by field, with this run's numbers; our own fields follow.
#[test]
fn the_log_line_is_megatrons() {
    let mut interval = Interval::default();
    interval.add(&StepRow { sec: 4.0, ..row(1, 2.0) });
    interval.add(&row(2, 2.927112));
    let info = RunInfo { peak_flops: Some(5e14), ..info() };
    assert_eq!(
        megatron(&mut interval, &info),
        " iteration        2/     500 | consumed samples:           32 | \
         elapsed time per iteration (s): 3.0000 | learning rate: 5.969E-05 | \
         global batch size:    16 | lm loss: 2.463556E+00 | grad norm: 0.174 | \
         number of skipped iterations:   0 | number of nan iterations:   0 | \
         samples per second: 5.333 | TFLOPs: 87.38 | consumed tokens:        65536 | \
         tokens per second: 10922.7 | data wait (s): 0.0100 | MFU (%): 13.11 |"
    );
    assert!(interval.take().is_none(), "an interval starts empty");
}

/// In fp16, with NVIDIA's `loss scale` where Megatron has it: skipped steps count for everything
/// but the loss.
#[test]
fn skipped_steps_are_counted_in_the_line() {
    let mut interval = Interval::default();
    let fp16 = |step, lm_loss, scale, skipped| {
        let grad_norm = if skipped { f64::NAN } else { 0.5 };
        StepRow { loss_scale: Some(scale), skipped, grad_norm, ..row(step, lm_loss) }
    };
    interval.add(&fp16(1, 9.0, 131072.0, true));
    interval.add(&fp16(2, f64::NAN, 65536.0, true));
    interval.add(&fp16(3, 3.0, 65536.0, false));
    interval.add(&fp16(4, 2.0, 65536.0, false));
    let text = megatron(&mut interval, &info());
    let part = "| lm loss: 2.500000E+00 | loss scale: 65536.0 | grad norm: 0.500 | \
                number of skipped iterations:   2 | number of nan iterations:   1 | ";
    assert!(text.contains(part), "{text}");
    interval.add(&fp16(5, 9.0, 32768.0, true));
    let text = megatron(&mut interval, &info());
    let part = "batch size:    16 | loss scale: 32768.0 | grad norm: nan | number of skipped";
    assert!(text.contains(part), "{text}");
}

#[test]
fn a_public_log_parser_reads_the_line() {
    let mut interval = Interval::default();
    interval.add(&row(40, 0.5));
    let text = megatron(&mut interval, &info());
    let all = Regex::new(concat!(
        r"iteration\s+(?P<iteration>\d+)\s*/\s*(?P<total>\d+)\s*\|\s*",
        r"consumed samples:\s*(?P<samples>\d+)\s*\|\s*",
        r"elapsed time per iteration \(s\):\s*(?P<seconds>[0-9.]+)\s*\|",
        r".*?learning rate:\s*(?P<lr>[0-9.Ee+-]+)\s*\|",
        r".*?global batch size:\s*(?P<batch>\d+)\s*\|",
        r".*?lm loss:\s*(?P<loss>[0-9.Ee+-]+)\s*\|",
        r".*?grad norm:\s*(?P<norm>[0-9.Ee+-]+)\s*\|",
        r".*?number of nan iterations:\s*(?P<nan>\d+)\s*\|",
        r".*?TFLOPs:\s*(?P<tflops>[0-9.]+)\s*\|",
    ));
    let found = all.unwrap().captures(&text).expect("the pattern matches");
    let read = |name| found.name(name).unwrap().as_str().parse::<f64>().unwrap();
    let names = ["iteration", "total", "samples", "seconds", "lr", "batch", "loss", "norm", "nan"];
    let values = [40.0, 500.0, 640.0, 2.0, 5.969e-5, 16.0, 0.5, 0.174, 0.0];
    assert_eq!(names.map(read), values);
    assert_eq!(read("tflops"), 131.07);
    assert!(!text.contains("MFU"), "no peak is known: {text}");
}

/// Numbers on request are after the gradient norm, where Megatron has them. TFLOPs are those of one
/// device.
#[test]
fn a_parser_with_num_zeros_reads_the_line() {
    let mut interval = Interval::default();
    let asked = StepRow { num_zeros: Some(960_902_016), params_norm: Some(311.4), ..row(40, 0.5) };
    interval.add(&asked);
    let info = RunInfo { devices: 4, simple_flops_per_token: Some(4e9), ..info() };
    let text = megatron(&mut interval, &info);
    let all = Regex::new(concat!(
        r"global batch size:\s+(\d+) \| lm loss: (\S+) \| grad norm: (\S+) \| ",
        r"num zeros: (\d+\.\d) \| params norm: (\d+\.\d+) \| ",
        r"number of skipped iterations:\s+(\d+) \| number of nan iterations:\s+(\d+) \| ",
        r"samples per second: (\S+) \| TFLOPs: (\S+) \| TFLOPs \(simple\): (\S+) \|",
    ));
    let found = all.unwrap().captures(&text).expect(&text);
    let read = |field: usize| found[field].parse::<f64>().unwrap();
    assert_eq!((read(4), read(5)), (960_902_016.0, 311.4));
    assert_eq!((read(9), read(10)), (32.77, 16.38), "16,384 tokens/s on four devices");
}

/// The fields of Megatron-LM's `training_log` with `--log-throughput`, `--log-num-zeros-in-grad` and
/// `--log-params-norm`, in its order and with nothing between.
#[test]
fn parsers_of_megatron_lm_read_its_line() {
    let mut interval = Interval::default();
    interval.add(&StepRow { num_zeros: Some(7), params_norm: Some(3.25), ..row(40, 0.5) });
    let (interval, last) = interval.take().unwrap();
    let info = RunInfo { devices: 4, ..info() };
    let now = Duration::from_micros(1_735_689_599_250_001);
    assert_eq!(
        line::megatron_lm(&interval, &last, &info, now),
        " [2024-12-31 23:59:59.250001] iteration       40/     500 | consumed samples:          640 | \
         elapsed time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 32.8 | \
         learning rate: 5.969000E-05 | global batch size:    16 | lm loss: 5.000000E-01 | \
         loss scale: 1.0 | grad norm: 0.174 | num zeros: 7.0 | params norm: 3.250 | \
         number of skipped iterations:   0 | number of nan iterations:   0 |"
    );
}

#[test]
fn the_validation_line_is_megatrons() {
    let text = validation(Form::Megatron, 1000, "wiki", 2.5);
    let pattern =
        r"validation loss at iteration (\d+).*?lm loss value:\s*([\d.eE+-]+).*?PPL:\s*([\d.eE+-]+)";
    let found = Regex::new(pattern).unwrap().captures(&text).unwrap();
    assert_eq!(&found[1], "1000");
    assert_eq!((&found[2], &found[3]), ("2.500000E+00", "1.218249E+01"));
    // Megatron's cap: exp(20).
    assert!(validation(Form::Megatron, 1, "v", 99.0).contains("lm loss PPL: 4.851652E+08 |"));
    assert!(validation(Form::Megatron, 1, "v", f64::NAN).contains("lm loss value: NAN |"));
}

/// In a pipe there are plain lines only: one per interval, and the rest at the end.
#[test]
fn lines_come_at_intervals_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let printed = folder.path().join("printed");
    let console = Console::new(Box::new(File::create(&printed).unwrap()));
    let storage = Storage::new(folder.path(), Duration::ZERO);
    let mut report = Report::open(&console, folder.path(), &storage, info(), 3, false, 0).unwrap();
    for step in 1..=7 {
        report.step(&row(step, step as f64)).unwrap();
        if step == 4 {
            console.print("saved checkpoint step-4");
        }
    }
    report.finish();
    let text = fs::read_to_string(printed).unwrap();
    assert!(!text.contains('\x1b'), "no escape codes: {text}");
    let lines: Vec<_> = text
        .lines()
        .map(|line| {
            line.split("lm loss: ")
                .nth(1)
                .map_or(line.into(), |l| l[..8].to_string())
        })
        .collect();
    assert_eq!(lines, ["2.000000", "saved checkpoint step-4", "5.000000", "7.000000"]);
}

/// RFC 3720 appendix B.4, and the check value of CRC catalogues.
#[test]
fn crc32c_gives_known_answers() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    let rising: Vec<u8> = (0..32).collect();
    assert_eq!(crc32c(&rising), 0x46dd_794e);
}

fn axis(low: f64, high: f64, log: bool) -> Axis {
    Axis { low, high, log, from: 0.0, to: 300.0 }
}

#[test]
fn ticks_are_round_and_few() {
    assert_eq!(axis(0.0, 10.3, false).ticks(60.0), [0.0, 2.5, 5.0, 7.5, 10.0]);
    assert_eq!(axis(2.31, 2.94, false).ticks(60.0).len(), 3);
    assert_eq!(axis(0.0, 6e-4, false).ticks(60.0), [0.0, 2e-4, 4e-4, 6.000000000000001e-4]);
    assert_eq!(axis(-1.0, 1.0, false).ticks(60.0), [-1.0, -0.5, 0.0, 0.5, 1.0]);
    assert_eq!(axis(0.5, 40.0, true).ticks(60.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
    assert_eq!(axis(1e-8, 1e4, true).ticks(60.0), [1e-6, 1e-3, 1.0, 1e3]);
    for scale in [1e-9, 1e-3, 1.0, 7e5, 3e13] {
        for width in [1.0, 1.7, 2.2, 4.9, 9.99] {
            let ticks = axis(scale, scale * (1.0 + width), false).ticks(60.0);
            assert!((2..=6).contains(&ticks.len()), "{scale} {width}: {ticks:?}");
        }
    }
}

#[test]
fn labels_tell_ticks_apart() {
    assert_eq!(labels(&[0.0, 2.5, 5.0], false), ["0.0", "2.5", "5.0"]);
    assert_eq!(labels(&[2.3, 2.4, 2.5], false), ["2.3", "2.4", "2.5"]);
    assert_eq!(labels(&[0.0, 2e-4, 6.000000000000001e-4], false), ["0", "2e-4", "6e-4"]);
    assert_eq!(labels(&[0.0, 5000.0, 10_000.0], false), ["0", "5000", "10,000"]);
    assert_eq!(labels(&[0.0, 5e5, 1e6, 1.5e6], false), ["0", "500,000", "1M", "1.5M"]);
    assert_eq!(labels(&[0.5, 1.0, 200.0], true), ["0.5", "1", "200"]);
    let shown = [0.0, 999.0, 999.7, 1234.0, 38_300_000.0, 2e9, 3.5e12].map(short_number);
    assert_eq!(shown, ["0", "999", "1k", "1.23k", "38.3M", "2B", "3.5T"]);
}

/// Each entry starts beyond the end of the one before it, or on a lower row; all above the curves.
#[test]
fn the_legend_never_overlaps() {
    let chart = Chart {
        title: "t".into(),
        width: 560.0,
        height: 300.0,
        names: ["step", "tokens"],
        first: 0.0,
        log: false,
        scale: Scale::Linear,
        legend: true,
        curves: (0..7)
            .map(|i| Curve {
                name: format!("validation: {}", "name ".repeat(i * 4)),
                stroke: Stroke::Dots,
                colour: i,
                points: vec![(1.0, 1.0), (9.0, 2.0)],
            })
            .collect(),
        second: vec![],
    };
    let svg = chart.draw().file();
    let entry = Regex::new(r#"<text class="legend" x="([\d.]+)" y="([\d.]+)">([^<]*)<"#).unwrap();
    let number = |text: &str| text.parse::<f64>().unwrap();
    let entries: Vec<_> = entry
        .captures_iter(&svg)
        .map(|c| (number(&c[1]), number(&c[2]), number(&c[1]) + 7.0 * c[3].chars().count() as f64))
        .collect();
    assert_eq!(entries.len(), 7);
    assert!(entries.iter().all(|(_, _, end)| *end <= 560.0), "{entries:?}");
    for pair in entries.windows(2) {
        let ((_, y0, end), (x1, y1, _)) = (pair[0], pair[1]);
        assert!(if y1 == y0 { x1 > end } else { y1 > y0 + 12.0 }, "{pair:?}");
    }
    let top = Regex::new(r#"class="cursor" y1="([\d.]+)""#).unwrap();
    assert!(number(&top.captures(&svg).unwrap()[1]) > entries[6].1 + 4.0);
}

#[test]
fn tensorboard_has_every_step_of_a_short_run_and_fewer_of_a_long_one() {
    let written = |steps: std::ops::Range<u64>| {
        steps
            .filter(|step| super::tensorboard::is_written(*step))
            .count()
    };
    assert_eq!(written(0..65_536), 65_536);
    assert_eq!(written(65_536..131_072), 32_768);
    assert_eq!(written(524_288..1_048_576), 32_768, "of each doubling");
}
