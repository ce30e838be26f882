//! Training steps on a GPU against PyTorch in the same run: `make bench-gpu`.
//!
//! bf16 with f32 master weights and f32 gradient accumulation; PyTorch compiled, bf16 autocast with
//! f32 weights, flash attention, fused AdamW, at the same batch. MFU counts 6·N + 6·L·H·T a token
//! (N all parameters, attention as causal) against 989 TFLOP/s. `--only NAME` picks a shape,
//! `--steps N` how many are timed, `--ordinal N` the GPU. Without `PYTHON` with torch, no peer.

use gptrain::base::{Bytes, rng};
use gptrain::data::Batch;
use gptrain::device::Backend;
use gptrain::device::cuda::{Cuda, Options};
use gptrain::engine::{Engine, Groups};
use gptrain::{manifest, model};
use std::process::Command;
use std::time::Instant;

/// Dense bf16 of an H100 or H200 (SXM).
const PEAK: f64 = 989e12;

/// A model, and the batch of one optimizer step: one micro-batch.
struct Shape {
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    seq: usize,
    samples: usize,
    recompute: &'static str,
}

#[rustfmt::skip]
const SHAPES: [Shape; 3] = [
    Shape { name: "GPT-2 124M", layers: 12, hidden: 768,  heads: 12, seq: 1024, samples: 32, recompute: "none" },
    Shape { name: "GPT-2 1.5B", layers: 48, hidden: 1600, heads: 25, seq: 1024, samples: 16, recompute: "none" },
    Shape { name: "7B class",   layers: 32, hidden: 4096, heads: 32, seq: 2048, samples: 2,  recompute: "selective" },
];
const VOCAB: usize = 50_304;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1).cloned()
    };
    let number =
        |name, otherwise| option(name).map_or(otherwise, |n: String| n.parse().expect("a number"));
    let (steps, ordinal) = (number("--steps", 20), number("--ordinal", 0));
    println!(
        "{:12} {:>10} {:>9} {:>6} {:>10} {:>15} {:>6}",
        "shape", "tokens/s", "ms/step", "MFU", "memory", "torch tokens/s", "ratio"
    );
    for shape in SHAPES {
        if option("--only").is_some_and(|only| !shape.name.contains(&only)) {
            continue;
        }
        let (ours, line) = match measure(&shape, steps, ordinal) {
            Ok(measured) => measured,
            Err(why) => {
                println!("{:12} {why:#}", shape.name);
                continue;
            }
        };
        match peer(&shape, steps) {
            Some(theirs) => println!("{line} {theirs:>15.0} {:>6.2}", ours / theirs),
            None => println!("{line} {:>15} {:>6}", "no torch", "-"),
        }
    }
}

/// Tokens a second, and the beginning of the table's row.
fn measure(shape: &Shape, steps: usize, ordinal: usize) -> anyhow::Result<(f64, String)> {
    let Shape { layers, hidden, heads, seq, samples, recompute, .. } = shape;
    let text = format!(
        "model: {{layers: {layers}, hidden: {hidden}, heads: {heads}, vocab: {VOCAB}, seq_len: {seq}}}
precision: bf16
data: {{train: none}}
batch: {{micro: {samples}, global: {samples}}}
topology: {{recompute: {recompute}}}
lr: {{peak: 3e-4, decay: constant}}
train: {{steps: 100}}"
    );
    let manifest = manifest::parse(&text, "bench", std::path::Path::new("."), &[])?.manifest;
    let cuda = Cuda::open(&Options::of_machine(ordinal))?;
    eprintln!("{}", cuda.description());
    let engine = Engine::new(&cuda, Groups::solo(), &manifest, true)?;
    engine.init();
    let batch = random(shape);
    let mut load = |inputs: &model::Inputs| {
        inputs.upload(&cuda, &batch);
        Ok(())
    };
    let warm_up = 5;
    let mut seconds = Vec::new();
    for number in 1..=steps + warm_up {
        let started = Instant::now();
        let outcome = engine.step(&mut load, 1, 3e-4)?;
        anyhow::ensure!(outcome.is_finite(), "step {number} gave {outcome:?}");
        seconds.push(started.elapsed().as_secs_f64());
    }
    cuda.sync()?;
    seconds.drain(..warm_up);
    seconds.sort_by(f64::total_cmp);
    let (median, tokens) = (seconds[seconds.len() / 2], samples * seq);
    let n = model::parameters(&manifest.model) as f64;
    let per_token = 6.0 * n + 6.0 * (layers * hidden * seq) as f64;
    let rate = tokens as f64 / median;
    let line = format!(
        "{:12} {rate:>10.0} {:>9.2} {:>5.1}% {:>10}",
        shape.name,
        1e3 * median,
        100.0 * rate * per_token / PEAK,
        Bytes(engine.bill().total().0),
    );
    Ok((rate, line))
}

fn random(shape: &Shape) -> Batch {
    let n = shape.samples * shape.seq;
    let draw = |i: usize| rng::below(1, i as u64, VOCAB as u64) as i32;
    Batch {
        samples: shape.samples,
        seq_len: shape.seq,
        tokens: (0..n).map(draw).collect(),
        targets: (1..=n).map(draw).collect(),
        weights: vec![1.0 / n as f32; n],
        positions: (0..n).map(|i| (i % shape.seq) as i32).collect(),
        visible: Vec::new(),
        ..Batch::default()
    }
}

/// Tokens a second of the peer, if there is a Python with torch and a GPU.
fn peer(shape: &Shape, steps: usize) -> Option<f64> {
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let script = std::env::var("TORCH_BENCH").unwrap_or("benches/torch_gpt2_bench.py".into());
    let mut command = Command::new(python);
    command.arg(script).args(["--device", "cuda", "--dtype", "bf16", "--compile"]);
    for (name, number) in [
        ("--layers", shape.layers),
        ("--hidden", shape.hidden),
        ("--heads", shape.heads),
        ("--vocab", VOCAB),
        ("--seq", shape.seq),
        ("--batch", shape.samples),
        ("--steps", steps),
    ] {
        command.arg(name).arg(number.to_string());
    }
    let output = command.stderr(std::process::Stdio::null()).output().ok()?;
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    line["tokens_per_s_median"].as_f64()
}
