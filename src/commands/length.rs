//! Length of a run for a given time: times a few steps on this machine, with random tokens and
//! weights, and keeps no results.

use base::{Problems, Seconds, rng};
use data::batch::Batch;
use engine::Engine;
use launch::messages::Messages;
use launch::{self, LocalRanks};
use manifest::{Loaded, Manifest};
use model::Inputs;
use std::time::Instant;
use train::loader::DataShard;

/// Number of timed steps, after a first one that also reserves and touches the memory.
const TIMED: usize = 4;
/// Minimum steps of a run, on any machine.
const FEWEST: u64 = 20;
/// Keys of `--set` that set a length explicitly.
pub const LENGTHS: [&str; 3] = ["train.steps", "train.samples", "train.tokens"];

/// Settings with which a run takes about `minutes` on this machine, and a line that says so. A run
/// that has begun keeps its settings, because its schedule must not change.
pub fn settings(
    loaded: &Loaded,
    minutes: f64,
    messages: &Messages,
) -> anyhow::Result<(Vec<String>, String)> {
    let m = &loaded.manifest;
    if m.log.folder.join(manifest::IN_FOLDER).exists() {
        let begun = manifest::load(&m.log.folder, &[])?.manifest;
        let steps = begun.batch.ramp().steps(begun.train.samples);
        let line = format!("{} has begun with {steps} steps: they stay", m.log.folder.display());
        return Ok((lengths(begun.train.samples, begun.lr.warmup_samples), line));
    }
    let seconds = seconds_per_step(loaded, messages)?;
    let global = m.batch.global as u64;
    let steps = ((60.0 * minutes / seconds) as u64).max(FEWEST) / 10 * 10;
    let samples = m.batch.ramp().samples_after(steps).max(global);
    let warmup = (m.lr.warmup_samples as f64 * samples as f64 / m.train.samples as f64) as u64;
    let line = format!("a step takes {} here: {steps} steps", Seconds(seconds));
    Ok((lengths(samples, warmup), line))
}

fn lengths(samples: u64, warmup: u64) -> Vec<String> {
    vec![format!("train.samples={samples}"), format!("lr.warmup_samples={warmup}")]
}

/// Median seconds of a step with the whole global batch.
fn seconds_per_step(loaded: &Loaded, messages: &Messages) -> anyhow::Result<f64> {
    let m = &loaded.manifest;
    if let Some(launched) = launch::launcher(m)?.filter(|launched| launched.world > 1) {
        let what = format!("--minutes times one process, and this run has {}", launched.world);
        return Err(Problems::one("--minutes", what, "--set train.steps=N").into());
    }
    let mut ranks = LocalRanks::rendezvous(loaded, "length")?;
    ranks.run(m, messages, |rank, device| {
        let be = device.backend();
        let groups = device.groups(rank.world(), m)?;
        let engine = Engine::new(be, groups, m, m.data.causal())?;
        engine.init();
        let micros = DataShard::for_rank(rank, m).rounds(m.batch.global as u64) as usize;
        let mut seconds = Vec::new();
        for step in 0..=TIMED {
            let begun = Instant::now();
            let batch = batch(m, step as u64);
            let mut load = |inputs: &Inputs| {
                inputs.upload(be, &batch);
                Ok(())
            };
            engine.step(&mut load, micros, 0.0)?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        Ok(plan::robust::median(seconds.into_iter().skip(1)))
    })
}

/// Batch of random tokens.
fn batch(m: &Manifest, seed: u64) -> Batch {
    let (samples, seq) = (m.batch.micro, m.model.seq_len);
    let draw = |i: usize| rng::below(seed, i as u64, m.model.vocab as u64) as i32;
    let tokens: Vec<i32> = (0..samples * (seq + 1)).map(draw).collect();
    Batch::causal(&tokens, samples, 0, 1.0 / (m.batch.global * seq) as f32)
}
