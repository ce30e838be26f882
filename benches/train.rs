//! Training steps, compared with PyTorch in the same run: `make bench-cpu`, `make bench-gpu`.
//!
//! `cargo bench --bench train -- [--device cpu|cuda] [--precision f32|bf16] [--only NAME] [--steps
//! N] [--rounds N] [--threads N] [--recompute none|selective|full] [--accumulate N] [--profile
//! H100]`. gptrain and `torch_gpt2_bench.py` (if `PYTHON` can import torch) alternate, so that both
//! run under equal conditions. Prints medians over steps, the best of the rounds, and the ratio of
//! gptrain to the faster of the others. `--threads` (default 2) applies to the CPU; `--recompute`
//! to gptrain (default: that of the shape). A step of `--accumulate N` has N micro-batches and is
//! not compared with PyTorch.
//!
//! bf16 uses f32 master weights and f32 gradient accumulation. PyTorch uses autocast with f32
//! weights and fused AdamW: on the CPU eager and compiled, on a GPU compiled and with flash
//! attention. MFU counts 6·N + 6·L·H·T per token (N all parameters, attention as causal) relative
//! to 989 TFLOP/s. "first" is the time from the command to the end of the first step, including
//! initial weights. "peak" is the maximum host memory of the process, "plan" the memory that the
//! engine reserved on its device. "used" is the GPU's memory that the run took after CUDA was opened,
//! with the scratch that the plan counts, and how much that is above the plan. `--profile HARDWARE`, a GPU of `gptrain estimate
//! --list-hardware`, measures one step kernel by kernel instead. On the CPU each measurement is a
//! separate process; on a GPU it is this process, for profilers.

mod profile;
mod shapes;

use anyhow::Context;
use gptrain::base::{Bytes, Moment, rng};
use gptrain::data::Batch;
use gptrain::device::Backend;
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::{Cuda, Options};
use gptrain::engine::{Engine, Groups};
use gptrain::estimate::hardware;
use gptrain::model;
use shapes::{SHAPES, Shape};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Dense bf16 peak of an H100 or H200 (SXM).
const PEAK: f64 = 989e12;
/// Threads of the CPU for both, by default.
const THREADS: usize = 2;
/// First argument of a process that only measures, before the command line of its parent.
const CHILD: &str = "--measure";
/// Default steps per round, on the CPU and on a GPU.
const STEPS: [usize; 2] = [8, 20];

/// Command line.
struct Asked {
    device: String,
    precision: String,
    only: String,
    steps: Option<usize>,
    rounds: usize,
    threads: usize,
    /// Micro-batches per step.
    accumulate: usize,
    /// GPU with whose data sheet a step's kernels are compared.
    profile: Option<String>,
    /// Overrides the setting of the shape.
    recompute: Option<&'static str>,
}

fn main() {
    gptrain::device::cuda::set_environment(); // before any thread
    let args: Vec<String> = std::env::args().skip(1).collect();
    let asked = Asked::of(&args);
    let wanted = |s: &&Shape| s.device == asked.device && s.is(&asked.only);
    let mut shapes = SHAPES.iter().filter(wanted);
    if let Some(name) = args.iter().position(|a| a == CHILD).map(|at| &args[at + 1]) {
        let shape = shapes
            .find(|s| s.name == *name)
            .expect("a shape that the parent has");
        match measure(shape, &asked, || println!("first")) {
            Ok(measured) => println!("{}", measured.json()),
            Err(why) => println!("{why:#}"),
        }
        return;
    }
    if let Some(gpu) = &asked.profile {
        shapes.for_each(|shape| {
            profiled(shape, &asked, gpu).unwrap_or_else(|why| println!("{why:#}"))
        });
        return;
    }
    println!("{} on {}", asked.precision, asked.device);
    println!(
        "{:18} {:17} {:>9} {:>9} {:>6} {:>8} {:>9} {:>9} {:>16} {:>6}",
        "shape", "", "tokens/s", "ms/step", "MFU", "first", "peak", "plan", "used", "ratio"
    );
    shapes.for_each(|shape| compare(shape, &asked, &args));
}

impl Asked {
    fn of(args: &[String]) -> Asked {
        let option = |name: &str| {
            let at = args.iter().position(|a| a == name)?;
            args.get(at + 1).cloned()
        };
        let number = |name| option(name).map(|n| n.parse().expect("a number"));
        let device = option("--device").unwrap_or("cpu".into());
        let recompute = option("--recompute").map(|asked| {
            let known = ["none", "selective", "full"]
                .into_iter()
                .find(|known| *known == asked);
            known.unwrap_or_else(|| panic!("--recompute {asked}: none, selective or full"))
        });
        let usual = if device == "cpu" { ("f32", 2) } else { ("bf16", 1) };
        Asked {
            precision: option("--precision").unwrap_or(usual.0.into()),
            only: option("--only").unwrap_or_default(),
            steps: number("--steps"),
            rounds: number("--rounds").unwrap_or(usual.1),
            threads: number("--threads").unwrap_or(THREADS),
            accumulate: number("--accumulate").unwrap_or(1),
            profile: option("--profile"),
            recompute,
            device,
        }
    }
}

/// Rows of a shape: gptrain, and the variants of PyTorch.
fn compare(shape: &Shape, asked: &Asked, args: &[String]) {
    let names = ["gptrain", "PyTorch eager", "PyTorch compiled"];
    let mut best: [Option<Measured>; 3] = [None; 3];
    for _ in 0..asked.rounds {
        // A shape that does not fit here would cost the peer minutes.
        let Some(own) = own(shape, asked, args) else { return };
        let eager = (shape.device == "cpu")
            .then(|| peer(shape, asked, false))
            .flatten();
        for (best, now) in best
            .iter_mut()
            .zip([Some(own), eager, peer(shape, asked, true)])
        {
            *best = match (*best, now) {
                (Some(best), Some(now)) => Some(best.better(now)),
                (best, now) => best.or(now),
            };
        }
    }
    let tokens = asked.accumulate * shape.samples * shape.seq;
    let rate = |one: &Measured| tokens as f64 / one.seconds;
    let theirs = best[1..].iter().flatten().map(rate).reduce(f64::max);
    for (i, (name, one)) in names.into_iter().zip(&best).enumerate() {
        let Some(one) = one else { continue };
        let ratio = theirs.filter(|_| i == 0).map(|theirs| rate(one) / theirs);
        println!(
            "{}",
            one.line(if i == 0 { shape.name } else { "" }, name, rate(one), shape, ratio)
        );
    }
}

/// Measures gptrain, in a separate process on the CPU.
fn own(shape: &Shape, asked: &Asked, args: &[String]) -> Option<Measured> {
    let measured = match shape.device {
        "cpu" => in_process(shape, args),
        _ => measure(shape, asked, || ()),
    };
    measured
        .map_err(|why| println!("{:18} {why:#}", shape.name))
        .ok()
}

fn in_process(shape: &Shape, args: &[String]) -> anyhow::Result<Measured> {
    let begun = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args([CHILD, shape.name])
        .args(args)
        .stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let seconds = begun.elapsed().as_secs_f64();
    let rest = lines.collect::<Result<String, _>>()?;
    child.wait()?;
    anyhow::ensure!(first == "first", "{first}");
    let line: serde_json::Value = serde_json::from_str(&rest).with_context(|| rest.clone())?;
    let number = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    Ok(Measured {
        seconds: number("seconds"),
        first: seconds,
        peak: Some(number("peak") as u64),
        plan: Some(number("plan") as u64),
        used: None,
        parameters: number("parameters"),
    })
}

fn steps_of(shape: &Shape, asked: &Asked) -> usize {
    asked
        .steps
        .unwrap_or(STEPS[(shape.device == "cuda") as usize])
}

/// Round of one trainer.
#[derive(Clone, Copy)]
struct Measured {
    /// Median time of a step.
    seconds: f64,
    first: f64,
    /// Maximum bytes of the process, reserved bytes, and bytes that a GPU lost to the run.
    peak: Option<u64>,
    plan: Option<u64>,
    used: Option<u64>,
    parameters: f64,
}

impl Measured {
    /// Combines two rounds: the faster step and the faster start, and the larger memory.
    fn better(self, other: Measured) -> Measured {
        Measured {
            seconds: self.seconds.min(other.seconds),
            first: self.first.min(other.first),
            peak: self.peak.max(other.peak),
            ..self
        }
    }

    fn json(&self) -> serde_json::Value {
        let Measured { seconds, peak, plan, parameters, .. } = self;
        serde_json::json!({"seconds": seconds, "peak": peak, "plan": plan, "parameters": parameters})
    }

    fn line(&self, shape: &str, name: &str, rate: f64, s: &Shape, ratio: Option<f64>) -> String {
        let mfu = match s.device {
            "cpu" => "-".into(),
            _ => format!("{:.1}%", 100.0 * rate * s.flops_per_token(self.parameters) / PEAK),
        };
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let size = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| Bytes(bytes).to_string());
        let (ms, first, [peak, plan]) =
            (1e3 * self.seconds, self.first, [self.peak, self.plan].map(size));
        let used = self.used.zip(self.plan).map_or("-".into(), |(used, plan)| {
            format!("{} {:+.1}%", Bytes(used), 100.0 * (used as f64 / plan as f64 - 1.0))
        });
        format!(
            "{shape:18} {name:17} {rate:>9.0} {ms:>9.2} {mfu:>6} {first:>6.2} s {peak:>9} {plan:>9} {used:>16} {ratio:>6}"
        )
    }
}

/// Maximum memory of this process in bytes, if the system reports it.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Runs steps, and calls `after_first` when the first one has ended.
fn measure(shape: &Shape, asked: &Asked, after_first: impl Fn()) -> anyhow::Result<Measured> {
    let recompute = asked.recompute.unwrap_or(shape.recompute);
    let mut manifest = Shape { recompute, ..*shape }.manifest(&asked.precision)?;
    manifest.batch.global *= asked.accumulate;
    let opened = Instant::now();
    let cuda = (shape.device == "cuda")
        .then(|| Cuda::open(&Options::from_environment(0)))
        .transpose()?;
    let cpu = cuda.is_none().then(|| Cpu::new(Some(asked.threads)));
    let gpu = cuda.as_ref().map(|cuda| cuda as &dyn Backend);
    let be = gpu
        .or(cpu.as_ref().map(|cpu| cpu as _))
        .expect("one of them");
    let free = || cuda.as_ref().map(|cuda| cuda.free_memory().0.0);
    let free_at_start = free();
    let engine = Engine::new(be, Groups::solo(), &manifest, true)?;
    engine.init();
    let (batch, micros) = (random(shape, asked.accumulate), asked.accumulate);
    let mut load = |inputs: &model::Inputs| {
        inputs.upload(be, &batch);
        Ok(())
    };
    engine.step(&mut load, micros, 3e-4)?;
    let first = opened.elapsed().as_secs_f64();
    after_first();
    // Like `run`: a step is queued before the outcome of the previous one is read. The first steps
    // are captured as graphs.
    let (warm_up, mut ended, mut seconds) = (3, Moment::now(), Vec::new());
    let steps = steps_of(shape, asked) + warm_up;
    engine.queue(&mut load, micros, 3e-4)?;
    for number in 1..=steps {
        if number < steps {
            engine.queue(&mut load, micros, 3e-4)?;
        }
        let (outcome, now) = engine.outcome()?;
        anyhow::ensure!(outcome.is_finite(), "step {number} gave {outcome:?}");
        seconds.push(now.since(ended).as_secs_f64());
        ended = now;
    }
    seconds.drain(..warm_up);
    seconds.sort_by(f64::total_cmp);
    Ok(Measured {
        seconds: seconds[seconds.len() / 2],
        first,
        peak: peak(),
        plan: Some(engine.memory_plan().total().0),
        used: free_at_start
            .zip(free())
            .map(|(before, now)| (before + be.workspace().0).saturating_sub(now)),
        parameters: model::parameters(&manifest.model) as f64,
    })
}

/// Kernels of a step after those in which algorithms are selected.
fn profiled(shape: &Shape, asked: &Asked, gpu: &str) -> anyhow::Result<()> {
    let gpu = hardware::find(gpu, "--profile")?;
    let recompute = asked.recompute.unwrap_or(shape.recompute);
    let (shape, micros) = (&Shape { recompute, ..*shape }, asked.accumulate);
    let mut manifest = shape.manifest(&asked.precision)?;
    manifest.batch.global *= micros;
    let cuda = Cuda::open(&Options::from_environment(0))?;
    let engine = Engine::new(&cuda, Groups::solo(), &manifest, true)?;
    engine.init();
    let batch = random(shape, micros);
    let step = || {
        let mut load = |inputs: &model::Inputs| {
            inputs.upload(&cuda, &batch);
            Ok(())
        };
        engine.step(&mut load, micros, 3e-4).map(|_| ())
    };
    step()?;
    let mut done = Ok(());
    let kernels = cuda.profile(&mut || done = step());
    done?;
    profile::print(shape, &kernels, &shape.ops(&asked.precision, micros)?, gpu);
    Ok(())
}

/// Micro-batch whose tokens have the weights of a step with that many micro-batches.
fn random(shape: &Shape, micros: usize) -> Batch {
    let n = shape.samples * shape.seq;
    let draw = |i: usize| rng::below(1, i as u64, shape.vocab as u64) as i32;
    let tokens: Vec<i32> = (0..n + shape.samples).map(draw).collect();
    Batch::causal(&tokens, shape.samples, 0, 1.0 / (micros * n) as f32)
}

/// Measures PyTorch, if there is a Python with torch and the device.
fn peer(shape: &Shape, asked: &Asked, compiled: bool) -> Option<Measured> {
    // The script is GPT-2's.
    if asked.accumulate > 1 || !shape.more.is_empty() {
        return None;
    }
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let script = std::env::var("TORCH_BENCH").unwrap_or("benches/torch_gpt2_bench.py".into());
    let mut command = Command::new(python);
    command
        .arg(script)
        .args(["--device", shape.device, "--dtype", &asked.precision]);
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
        ("--threads", asked.threads),
    ] {
        command.arg(name).arg(number.to_string());
    }
    let output = command.output().ok()?;
    let Ok(line) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
        let said = String::from_utf8_lossy(&output.stderr);
        println!("PyTorch, {}: {}", shape.name, said.trim().lines().last().unwrap_or("no output"));
        return None;
    };
    Some(Measured {
        seconds: line["step_ms_median"].as_f64()? / 1e3,
        first: line["startup_first_step_s"].as_f64()?,
        peak: Some((line["peak_rss_mb"].as_f64()? * f64::from(1 << 20)) as u64),
        plan: None,
        used: None,
        parameters: line["params"].as_f64()?,
    })
}
