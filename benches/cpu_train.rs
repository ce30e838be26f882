//! Training steps on the CPU against PyTorch in the same run: `make bench-cpu`.
//!
//! Alternates gptrain and `torch_gpt2_bench.py` (if the `PYTHON` given can import torch), so that
//! both meet the same machine; prints medians and the ratio. `--only NAME` picks a shape,
//! `--precision bf16` the other precision, `--rounds N` how often each runs.

use gptrain::base::rng;
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups};
use gptrain::manifest;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A model and a batch.
struct Shape {
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    vocab: usize,
    seq: usize,
    samples: usize,
    timed_steps: usize,
}

#[rustfmt::skip]
const SHAPES: [Shape; 2] = [
    Shape { name: "tiny 6x384", layers: 6, hidden: 384, heads: 6, vocab: 8192, seq: 256, samples: 8, timed_steps: 10 },
    Shape { name: "GPT-2 124M", layers: 12, hidden: 768, heads: 12, vocab: 50304, seq: 256, samples: 4, timed_steps: 5 },
];

const THREADS: usize = 2;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1).cloned()
    };
    let precision = option("--precision").unwrap_or("f32".into());
    let rounds = option("--rounds").map_or(2, |n| n.parse().expect("--rounds takes a number"));
    println!(
        "{precision}, {THREADS} threads; tokens/s, median over steps, best of {rounds} rounds"
    );
    println!("{:12} {:>10} {:>14} {:>7}", "shape", "gptrain", "PyTorch eager", "ratio");
    for shape in SHAPES {
        if option("--only").is_some_and(|only| !shape.name.contains(&only)) {
            continue;
        }
        let (mut ours, mut theirs) = (0.0f64, None::<f64>);
        for _ in 0..rounds {
            ours = ours.max(gptrain_rate(&shape, &precision));
            theirs = torch_rate(&shape, &precision).map(|rate| rate.max(theirs.unwrap_or(0.0)));
        }
        match theirs {
            Some(theirs) => {
                println!("{:12} {ours:>10.0} {theirs:>14.0} {:>7.2}", shape.name, ours / theirs)
            }
            None => println!("{:12} {ours:>10.0} {:>14} {:>7}", shape.name, "no torch", "-"),
        }
    }
}

fn gptrain_rate(shape: &Shape, precision: &str) -> f64 {
    let Shape { layers, hidden, heads, vocab, seq, samples, .. } = shape;
    let text = format!(
        "model: {{layers: {layers}, hidden: {hidden}, heads: {heads}, vocab: {vocab}, seq_len: {seq}}}
precision: {precision}
data: {{train: none}}
batch: {{micro: {samples}, global: {samples}}}
lr: {{peak: 3e-4, decay: constant}}
train: {{steps: 100}}"
    );
    let loaded = manifest::parse(&text, "bench", Path::new("."), &[]);
    let manifest = loaded.unwrap_or_else(|problems| panic!("{problems}")).manifest;
    let cpu = Cpu::new(Some(THREADS));
    let engine = Engine::new(&cpu, Groups::solo(), &manifest, true).expect("memory");
    engine.init();
    let batch = random(shape);
    let mut load = |inputs: &gptrain::model::Inputs| {
        inputs.upload(&cpu, &batch);
        Ok(())
    };
    let warm_up = 2;
    let mut seconds: Vec<f64> = (1..=shape.timed_steps + warm_up)
        .map(|_| {
            let started = Instant::now();
            engine.step(&mut load, 1, 3e-4).expect("a step");
            started.elapsed().as_secs_f64()
        })
        .skip(warm_up)
        .collect();
    seconds.sort_by(f64::total_cmp);
    (samples * seq) as f64 / seconds[seconds.len() / 2]
}

fn random(shape: &Shape) -> Batch {
    let n = shape.samples * shape.seq;
    let draw = |i: usize| rng::below(1, i as u64, shape.vocab as u64) as i32;
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

/// Tokens a second of the peer, if there is a Python with torch.
fn torch_rate(shape: &Shape, precision: &str) -> Option<f64> {
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/torch_gpt2_bench.py");
    let mut command = Command::new(python);
    command.arg(script).args(["--dtype", precision]);
    for (name, number) in [
        ("--layers", shape.layers),
        ("--hidden", shape.hidden),
        ("--heads", shape.heads),
        ("--vocab", shape.vocab),
        ("--seq", shape.seq),
        ("--batch", shape.samples),
        ("--steps", shape.timed_steps),
        ("--threads", THREADS),
    ] {
        command.arg(name).arg(number.to_string());
    }
    let output = command.output().ok().filter(|output| output.status.success())?;
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    line["tokens_per_s_median"].as_f64()
}
