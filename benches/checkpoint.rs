//! Speed of saving and loading GPT-2 124M, compared with `dd` with direct I/O on the same disk in
//! the same run; and the time that training waits for a save.
//!
//!     cargo bench --bench checkpoint -- [FOLDER]
//!
//! About 3.5 GB are written to FOLDER (default: target).

use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{
    Checkpoint, Group, Optimizer, Progress, Rng, Snapshot, State, load, save,
};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups};
use gptrain::manifest::{self, Manifest};
use gptrain::model::{Layout, ModelShard};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const ROUNDS: usize = 3;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let folder = PathBuf::from(folder.unwrap_or("target".into())).join("checkpoint-bench");
    fs::create_dir_all(&folder)?;
    for precision in ["f32", "bf16"] {
        measure(precision, &folder)?;
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn measure(precision: &str, folder: &Path) -> anyhow::Result<()> {
    let text = "
model: {layers: 12, hidden: 768, heads: 12, vocab: 50257, seq_len: 1024}
data: {train: none}
batch: {micro: 1, global: 1}
lr: {peak: 1e-3, decay: constant}
train: {samples: 800}
";
    let sets = [format!("precision={precision}")];
    let m = manifest::parse(text, "bench", Path::new("."), &sets)?.manifest;
    let cpu = Cpu::new(None);
    let engine = Engine::new(&cpu, Groups::solo(), &m, true)?;
    engine.init();
    step_seconds(&engine, m.model.seq_len)?; // the first step touches the memory
    let step = step_seconds(&engine, m.model.seq_len)?;
    let mut snapshot = Snapshot::reserve(&engine);
    let stall = best(|| {
        snapshot.take(&engine);
        Ok(())
    })?;
    println!(
        "GPT-2 124M, {precision}, {} threads, snapshot of {}",
        cpu.threads(),
        snapshot.bytes()
    );
    println!("  a step of 1 × 1024 tokens   {step:8.3} s");
    println!(
        "  a save's stall              {stall:8.3} s  {:5.1} % of the step",
        100.0 * stall / step
    );

    let step = step_seconds(&engine, m.model.seq_len)?;
    let beside = std::thread::scope(|scope| {
        let save = scope.spawn(|| save(&Disk::default(), folder, &snapshot.shares(), &state(&m)));
        let beside = step_seconds(&engine, m.model.seq_len);
        fs::remove_dir_all(save.join().expect("a save does not panic")?)?;
        beside
    })?;
    println!("  a step, and one beside a save {step:6.3} s, {beside:.3} s");

    let (mut rates, mut bytes) = ([Vec::new(), Vec::new(), Vec::new(), Vec::new()], 0);
    let mut busy = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let saved = save(&Disk::default(), folder, &snapshot.shares(), &state(&m))?;
        let seconds = started.elapsed().as_secs_f64();
        bytes = fs::read_dir(&saved)?
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum::<u64>();
        let file = folder.join("dd.bin");
        let to = format!("of={}", file.display());
        let blocks = format!("count={}", bytes >> 23);
        let write = dd(&["if=/dev/zero", &to, "bs=8M", &blocks, "oflag=direct", "conv=fsync"])?;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        rates[0].push(rate(seconds));
        rates[1].push(rate(write));
        drop_cache(&saved)?;
        let started = Instant::now();
        let cpu = cpu_seconds()?;
        load(&Checkpoint::open(&saved)?, &engine)?;
        rates[2].push(rate(started.elapsed().as_secs_f64()));
        busy.push(cpu_seconds()? - cpu);
        let from = format!("if={}", file.display());
        rates[3].push(rate(dd(&[&from, "of=/dev/null", "bs=8M", "iflag=direct"])?));
        fs::remove_file(&file)?;
        fs::remove_dir_all(&saved)?;
    }
    let names = ["save, hashed and synced", "dd, direct, synced", "load, verified", "dd, direct"];
    println!(
        "  {:.2} GB in a checkpoint; GB/s, {ROUNDS} rounds and the median",
        bytes as f64 / 1e9
    );
    let medians = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates
    });
    for (name, rates) in names.iter().zip(&medians) {
        let all: Vec<_> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        println!("  {name:26}  {}  median {:.2}", all.join(" "), rates[ROUNDS / 2]);
    }
    println!("  a load keeps the processors busy for {busy:.2?} s");
    let of = |a: usize, b: usize| 100.0 * medians[a][ROUNDS / 2] / medians[b][ROUNDS / 2];
    println!("  save is {:.0} % of dd, load {:.0} %", of(0, 1), of(2, 3));
    Ok(())
}

/// Runs one step on one sample of 1024 tokens.
fn step_seconds(engine: &Engine, seq: usize) -> anyhow::Result<f64> {
    let tokens: Vec<i32> = (0..=seq as i32).collect();
    let batch = Batch::causal(&tokens, 1, 0, 1.0 / seq as f32);
    let started = Instant::now();
    let load = &mut |inputs: &gptrain::model::Inputs| {
        inputs.upload(engine.backend(), &batch);
        Ok(())
    };
    engine.step(load, 1, 1e-5)?;
    Ok(started.elapsed().as_secs_f64())
}

fn best(mut what: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        what()?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn dd(args: &[&str]) -> anyhow::Result<f64> {
    let started = Instant::now();
    let done = Command::new("dd").args(args).output()?;
    anyhow::ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(started.elapsed().as_secs_f64())
}

/// Drops the page cache, so that written data is read from the disk.
fn drop_cache(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let file = fs::File::open(entry?.path())?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

fn state(m: &Manifest) -> State {
    let whole = Layout::new(&m.model, ModelShard::whole(&m.model));
    let group = |decay: bool| Group {
        weight_decay: if decay { 0.1 } else { 0.0 },
        step: 1,
        tensors: whole
            .params()
            .filter(|s| s.spec.decay == decay)
            .map(|s| s.name.clone())
            .collect(),
    };
    let groups = vec![group(true), group(false)];
    let (generator, rule) = ("philox4x32-10".to_string(), "adamw".to_string());
    State {
        mixture: gptrain::data::MixturePlan { stages: Vec::new() },
        run: "bench".into(),
        progress: Progress { step: 1, consumed_samples: 1 },
        consumed_tokens: 1024,
        next_batch: 1,
        lr: 1e-3,
        loss_scale: None,
        skipped_updates: 0,
        pending: None,
        rng: Rng { generator, seed: 1, data_seed: 1, initial_seed: None },
        optimizer: Optimizer { rule, began: 0, ahead: 0, numbers: Default::default(), groups },
        history: Vec::new(),
        data: Vec::new(),
        spikes: None,
        imported: None,
        imported_types: Default::default(),
        manifest: "none".into(),
    }
}

/// Processor time of this process so far, on all cores.
fn cpu_seconds() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}
