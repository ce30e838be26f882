//! Training steps against PyTorch in the same run: `make bench-cpu`, `make bench-gpu`.
//!
//! `cargo bench --bench train -- [--device cpu|cuda] [--precision f32|bf16] [--only NAME] [--steps N]
//! [--rounds N]`. gptrain and `torch_gpt2_bench.py` (if the `PYTHON` given can import torch) take
//! turns, so that both meet the same machine; medians over steps, the best of the rounds, the ratio.
//!
//! bf16 is with f32 master weights and f32 gradient accumulation; PyTorch's is autocast with f32
//! weights and fused AdamW: on the CPU eager and compiled, the ratio being to the faster one, on a GPU
//! compiled and with flash attention. MFU counts
//! 6·N + 6·L·H·T a token (N all parameters, attention as causal) against 989 TFLOP/s. "first" is the
//! time from opening the device to the end of the first step, weights drawn and all.

mod shapes;

use gptrain::base::{Bytes, rng};
use gptrain::data::Batch;
use gptrain::device::Backend;
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::{Cuda, Options};
use gptrain::engine::{Engine, Groups};
use gptrain::model;
use shapes::{SHAPES, Shape};
use std::process::Command;
use std::time::Instant;

/// Dense bf16 of an H100 or H200 (SXM).
const PEAK: f64 = 989e12;
/// Of the CPU, for both.
const THREADS: usize = 2;
/// Steps of a round, where the command line does not say, on the CPU and on a GPU.
const STEPS: [usize; 2] = [8, 20];

/// What the command line asks for.
struct Asked {
    device: String,
    precision: String,
    only: String,
    steps: Option<usize>,
    rounds: usize,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1).cloned()
    };
    let number = |name| option(name).map(|n| n.parse().expect("a number"));
    let device = option("--device").unwrap_or("cpu".into());
    let usual = if device == "cpu" { ("f32", 2) } else { ("bf16", 1) };
    let asked = Asked {
        precision: option("--precision").unwrap_or(usual.0.into()),
        only: option("--only").unwrap_or_default(),
        steps: number("--steps"),
        rounds: number("--rounds").unwrap_or(usual.1),
        device,
    };
    println!("{} on {}", asked.precision, asked.device);
    println!(
        "{:20} {:>10} {:>9} {:>6} {:>8} {:>10} {:>13} {:>13} {:>6}",
        "shape",
        "tokens/s",
        "ms/step",
        "MFU",
        "first",
        "memory",
        "PyTorch eager",
        "compiled",
        "ratio"
    );
    let wanted = |s: &&Shape| s.device == asked.device && s.is(&asked.only);
    for shape in SHAPES.iter().filter(wanted) {
        let (mut ours, mut theirs) = (None::<Measured>, [None::<f64>; 2]);
        for _ in 0..asked.rounds {
            match measure(shape, &asked) {
                Ok(now) => ours = ours.filter(|o| o.seconds < now.seconds).or(Some(now)),
                Err(why) => println!("{:20} {why:#}", shape.name),
            }
            for (compiled, best) in [false, true].into_iter().zip(&mut theirs) {
                if compiled || shape.device == "cpu" {
                    *best = peer(shape, &asked, compiled).into_iter().chain(*best).reduce(f64::max);
                }
            }
        }
        if let Some(ours) = ours {
            println!("{}", ours.line(shape, theirs));
        }
    }
}

fn steps_of(shape: &Shape, asked: &Asked) -> usize {
    asked.steps.unwrap_or(STEPS[(shape.device == "cuda") as usize])
}

/// A round of ours.
struct Measured {
    /// Median of a step.
    seconds: f64,
    first: f64,
    memory: Bytes,
    parameters: f64,
}

impl Measured {
    /// `theirs` is PyTorch's rate, eager and compiled.
    fn line(&self, s: &Shape, theirs: [Option<f64>; 2]) -> String {
        let rate = (s.samples * s.seq) as f64 / self.seconds;
        let per_token = s.flops_per_token(self.parameters);
        let mfu = match s.device {
            "cpu" => "-".into(),
            _ => format!("{:.1}%", 100.0 * rate * per_token / PEAK),
        };
        let best = theirs.into_iter().flatten().reduce(f64::max);
        let ratio = best.map_or("-".into(), |theirs| format!("{:.2}", rate / theirs));
        let [eager, compiled] = theirs.map(|rate| rate.map_or("-".into(), |r| format!("{r:.0}")));
        let (ms, first, memory) = (1e3 * self.seconds, self.first, self.memory);
        format!(
            "{:20} {rate:>10.0} {ms:>9.2} {mfu:>6} {first:>6.2} s {memory:>10} {eager:>13} {compiled:>13} \
             {ratio:>6}",
            s.name
        )
    }
}

fn measure(shape: &Shape, asked: &Asked) -> anyhow::Result<Measured> {
    let manifest = shape.manifest(&asked.precision)?;
    let opened = Instant::now();
    let device: Box<dyn Backend> = match shape.device {
        "cpu" => Box::new(Cpu::new(Some(THREADS))),
        _ => Box::new(Cuda::open(&Options::of_machine(0))?),
    };
    let be = &*device;
    let engine = Engine::new(be, Groups::solo(), &manifest, true)?;
    engine.init();
    let batch = random(shape);
    let mut load = |inputs: &model::Inputs| {
        inputs.upload(be, &batch);
        Ok(())
    };
    engine.step(&mut load, 1, 3e-4)?;
    let first = opened.elapsed().as_secs_f64();
    // As `run` does: a step is asked for before the outcome of the one before is seen. The first
    // ones become graphs.
    let (warm_up, mut ended, mut seconds) = (3, Instant::now(), Vec::new());
    let steps = steps_of(shape, asked) + warm_up;
    engine.queue(&mut load, 1, 3e-4)?;
    for number in 1..=steps {
        if number < steps {
            engine.queue(&mut load, 1, 3e-4)?;
        }
        let (outcome, now) = engine.outcome()?;
        anyhow::ensure!(outcome.is_finite(), "step {number} gave {outcome:?}");
        seconds.push((now - ended).as_secs_f64());
        ended = now;
    }
    seconds.drain(..warm_up);
    seconds.sort_by(f64::total_cmp);
    Ok(Measured {
        seconds: seconds[seconds.len() / 2],
        first,
        memory: Bytes(engine.memory_plan().total().0),
        parameters: model::parameters(&manifest.model) as f64,
    })
}

fn random(shape: &Shape) -> Batch {
    let n = shape.samples * shape.seq;
    let draw = |i: usize| rng::below(1, i as u64, shape.vocab as u64) as i32;
    let tokens: Vec<i32> = (0..n + shape.samples).map(draw).collect();
    Batch::causal(&tokens, shape.samples, 0, 1.0 / n as f32)
}

/// Tokens a second of the peer, if there is a Python with torch and the device.
fn peer(shape: &Shape, asked: &Asked, compiled: bool) -> Option<f64> {
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let script = std::env::var("TORCH_BENCH").unwrap_or("benches/torch_gpt2_bench.py".into());
    let mut command = Command::new(python);
    command.arg(script).args(["--device", shape.device, "--dtype", &asked.precision]);
    if compiled {
        command.arg("--compile");
    }
    for (name, number) in [
        ("--layers", shape.layers),
        ("--hidden", shape.hidden),
        ("--heads", shape.heads),
        ("--vocab", shape.vocab),
        ("--seq", shape.seq),
        ("--batch", shape.samples),
        ("--steps", steps_of(shape, asked)),
        ("--threads", THREADS),
    ] {
        command.arg(name).arg(number.to_string());
    }
    let output = command.stderr(std::process::Stdio::null()).output().ok()?;
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    line["tokens_per_s_median"].as_f64()
}
