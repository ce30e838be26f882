//! Work of a training step on a GPU, and the minimum time according to its data sheet.
//!
//! `cargo bench --bench roofline -- [HARDWARE] [f32|bf16|fp8] [--only NAME] [--accumulate N]
//! [--wgmma]`; defaults are `h200-141g`, bf16, one micro-batch per step, and attention by `mma`. The trainer's own engine runs a
//! step on the counting device, so the list of ops is that of the real step. For each kind of op it
//! has the calls, FLOPs and bytes, with each operand moved once. "least" is the longer of FLOPs at
//! the peak and bytes at the bandwidth of the data sheet. "planned" uses the shares of both that
//! `gptrain estimate` assumes, and adds launches. Nothing is measured and nothing runs on a GPU.

mod shapes;

use gptrain::device::{Tally, Work};
use gptrain::estimate::hardware::{self, Hardware, Shares, WGMMA};
use gptrain::model;
use shapes::{SHAPES, Shape};

fn main() -> anyhow::Result<()> {
    let (mut gpu, mut precision, mut only) =
        ("h200-141g".to_string(), "bf16".to_string(), String::new());
    let (mut micros, mut attention) = (1, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--bench" => (),
            "--wgmma" => attention = Some(WGMMA),
            "--only" => only = words.next().unwrap_or_default(),
            "--accumulate" => micros = words.next().unwrap_or_default().parse()?,
            "f32" | "bf16" | "fp8" => precision = word,
            _ => gpu = word,
        }
    }
    let mut gpu = hardware::find(&gpu, "the argument")?.clone();
    gpu.attention_shares = attention.unwrap_or(gpu.attention_shares);
    for shape in SHAPES.iter().filter(|s| s.device == "cuda" && s.is(&only)) {
        print(shape, &precision, &gpu, &shape.ops(&precision, micros)?, micros);
    }
    Ok(())
}

/// Milliseconds of an op's calls: by the data sheet, and by the planner.
fn times(name: &str, work: &Work, gpu: &Hardware) -> [f64; 2] {
    let planned = gpu.seconds(name, work, gpu.shares()) + work.calls * gpu.launch_us * 1e-6;
    [gpu.seconds(name, work, Shares::ALL), planned].map(|seconds| 1e3 * seconds)
}

fn print(shape: &Shape, precision: &str, gpu: &Hardware, ops: &Tally, micros: usize) {
    let tokens = micros * shape.samples * shape.seq;
    println!("{}, {precision}, {tokens} tokens, {}", shape.name, gpu.about);
    let head = ["calls", "GFLOP", "GB", "least ms", "planned ms"];
    println!("{:32} {}", "op", head.map(|title| format!("{title:>11}")).join(" "));
    let mut rows: Vec<(&str, &Work, [f64; 2])> = ops
        .iter()
        .map(|(name, work)| (*name, work, times(name, work, gpu)))
        .collect();
    rows.sort_by(|a, b| b.2[0].total_cmp(&a.2[0]));
    let row = |name: &str, work: &Work, [least, planned]: [f64; 2]| {
        let Work { calls, flops, bytes, .. } = work;
        let (flops, bytes) = (flops / 1e9, bytes / 1e9);
        println!(
            "{name:32} {calls:>11.0} {flops:>11.1} {bytes:>11.2} {least:>11.2} {planned:>11.2}"
        );
    };
    let (mut all, mut sums) = (Work::default(), [0.0; 2]);
    for (name, work, times) in rows {
        row(name, work, times);
        all += *work;
        sums = [sums[0] + times[0], sums[1] + times[1]];
    }
    row("all", &all, sums);
    let parameters = shape
        .manifest(precision)
        .map_or(0, |m| model::parameters(&m.model)) as f64;
    let flops = tokens as f64 * shape.flops_per_token(parameters);
    let mfu = sums.map(|ms| 100.0 * flops / (ms * 1e-3 * gpu.peak_tflops * 1e12));
    println!("MFU {:.1} % if every op is at its least, {:.1} % as planned\n", mfu[0], mfu[1]);
}
