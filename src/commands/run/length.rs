//! Length of a run for a given time: times a few steps on this machine, with random tokens and
//! weights, and keeps no results. On a slow machine the model becomes smaller.

use base::{Problems, Seconds, rng};
use data::batch::Batch;
use engine::Engine;
use launch::messages::Messages;
use launch::{self, LocalRanks};
use manifest::{Loaded, Manifest};
use model::Inputs;
use plan::segments::MicroShape;
use std::time::Instant;
use train::loader::DataShard;

/// Number of timed steps, after a first one that also reserves and touches the memory.
const TIMED: usize = 4;
/// Minimum steps of a run, on any machine.
const FEWEST: u64 = 20;
/// Steps below which a model learns hardly more than which words are frequent: a smaller one learns
/// more in the same time.
const ENOUGH: u64 = 100;
/// Minimum steps of a warm-up: in fewer, a high learning rate raises the loss.
const WARMUP_STEPS: u64 = 10;
/// Smallest width, and shortest sample, that a model is reduced to.
const NARROWEST: usize = 64;
const SHORTEST: usize = 32;
/// Keys of `--set` that set a length explicitly.
pub const LENGTHS: [&str; 3] = ["train.steps", "train.samples", "train.tokens"];

/// Settings that fit a run to a time, and the lines that say so.
#[derive(Default)]
pub struct Fitted {
    pub sets: Vec<String>,
    pub lines: Vec<String>,
}

/// Settings of a model that are reduced, with their values.
fn list_sizes(m: &Manifest) -> [(&'static str, usize); 5] {
    let model = &m.model;
    [
        ("model.layers", model.layers),
        ("model.hidden", model.hidden),
        ("model.heads", model.heads),
        ("model.ffn_hidden", model.ffn_hidden),
        ("model.seq_len", model.seq_len),
    ]
}

/// Settings that differ from those of `m`.
fn list_changed_sizes(m: &Manifest, to: &Manifest) -> Vec<String> {
    let both = list_sizes(m).into_iter().zip(list_sizes(to));
    let changed = both.filter(|((_, from), (_, to))| from != to);
    changed
        .map(|(_, (key, value))| format!("{key}={value}"))
        .collect()
}

/// Whether a run has begun. Its model and its schedule must not change then.
pub fn has_begun(m: &Manifest) -> bool {
    m.log.folder.join(manifest::IN_FOLDER).exists()
}

/// Fits a new run to about `minutes` on this machine. A model that would take too few steps is made
/// smaller. `load` reads the manifest with more settings.
pub fn fit(
    loaded: &Loaded,
    load: &dyn Fn(&[String]) -> anyhow::Result<Loaded>,
    minutes: f64,
    messages: &Messages,
) -> anyhow::Result<Fitted> {
    let folder = &loaded.manifest.log.folder;
    let mut fitted = Fitted::default();
    let mut now = loaded.clone();
    let mut seconds = seconds_per_step(&now, messages)?;
    let steps = |seconds: f64| (60.0 * minutes / seconds) as u64;
    let imported = checkpoint::latest(&folder.join("checkpoints"))?.is_some();
    while steps(seconds) < ENOUGH && !imported {
        let Some(smaller) = find_smaller(&now.manifest, &fitted.sets, load) else { break };
        now = smaller;
        fitted.sets = list_changed_sizes(&loaded.manifest, &now.manifest);
        seconds = seconds_per_step(&now, messages)?;
    }
    let m = &now.manifest;
    let steps = steps(seconds).max(FEWEST) / 10 * 10;
    let samples = m
        .batch
        .ramp()
        .samples_after(steps)
        .max(m.batch.global as u64);
    fitted
        .lines
        .push(format!("a step takes {} here: {steps} steps", Seconds(seconds)));
    if !fitted.sets.is_empty() {
        fitted.lines.push(format!(
            "the model is reduced, to take enough steps in {}: {}; --set train.steps=N, without \
             --minutes, trains the whole one",
            Seconds(60.0 * minutes),
            fitted.sets.join(", ")
        ));
    }
    if steps < ENOUGH {
        fitted
            .lines
            .push(format!("{steps} steps are too few to learn words: give it more --minutes"));
    }
    fitted
        .sets
        .extend(set_length(samples, choose_warmup(m, samples, steps)));
    Ok(fitted)
}

/// Settings of a run that has begun, as it has them; its length too, unless a setting changes it.
pub fn keep_settings(m: &Manifest, changes_length: bool) -> anyhow::Result<Fitted> {
    let folder = &m.log.folder;
    let begun = manifest::load(folder, &[])?.manifest;
    let steps = begun.batch.ramp().steps(begun.train.samples);
    let mut sets = list_changed_sizes(m, &begun);
    let reduced: String = sets.iter().map(|set| format!(", {set}")).collect();
    let line = format!("{} has begun with {steps} steps{reduced}: they stay", folder.display());
    if changes_length {
        return Ok(Fitted { sets, lines: Vec::new() });
    }
    sets.extend(set_length(begun.train.samples, begun.lr.warmup_samples));
    Ok(Fitted { sets, lines: vec![line] })
}

/// Warm-up of a run of `steps` steps: the share of the manifest's, and at least `WARMUP_STEPS`.
fn choose_warmup(m: &Manifest, samples: u64, steps: u64) -> u64 {
    let share = (m.lr.warmup_samples as f64 * samples as f64 / m.train.samples as f64) as u64;
    let fewest = m.batch.ramp().samples_after(WARMUP_STEPS.min(steps / 2));
    if m.lr.warmup_samples == 0 { 0 } else { share.max(fewest) }
}

fn set_length(samples: u64, warmup: u64) -> Vec<String> {
    vec![format!("train.samples={samples}"), format!("lr.warmup_samples={warmup}")]
}

/// The next smaller model: of half the layers and half the width, or with shorter samples. None if
/// there is none that the manifest allows.
fn find_smaller(
    m: &Manifest,
    sets: &[String],
    load: &dyn Fn(&[String]) -> anyhow::Result<Loaded>,
) -> Option<Loaded> {
    let narrower: &[&[&str]] = &[
        &["model.layers", "model.hidden", "model.heads"],
        &["model.layers", "model.hidden", "model.heads", "model.ffn_hidden"],
        &["model.layers", "model.hidden"],
    ];
    let narrower = if m.model.hidden >= 2 * NARROWEST { narrower } else { &[] };
    let shorter: &[&[&str]] =
        if m.model.seq_len >= 2 * SHORTEST { &[&["model.seq_len"]] } else { &[] };
    let candidates = narrower.iter().chain(shorter);
    candidates
        .filter_map(|keys| {
            let more: Vec<String> = keys
                .iter()
                .map(|key| {
                    let (key, value) = *list_sizes(m)
                        .iter()
                        .find(|(name, _)| name == key)
                        .expect("a size");
                    format!("{key}={}", value.div_ceil(2))
                })
                .collect();
            load(&[sets, &more[..]].concat()).ok()
        })
        .find(|smaller| halves_feed_forward(m, &smaller.manifest))
}

/// Whether a narrower model also has a narrower feed-forward layer, which may have an explicit width.
fn halves_feed_forward(m: &Manifest, smaller: &Manifest) -> bool {
    smaller.model.hidden == m.model.hidden || smaller.model.ffn_hidden < m.model.ffn_hidden
}

/// Median seconds of a step with the whole global batch.
fn seconds_per_step(loaded: &Loaded, messages: &Messages) -> anyhow::Result<f64> {
    let m = &loaded.manifest;
    #[cfg(feature = "testing")]
    if let Some(flops) = train::testing::machine_flops() {
        let tokens = (m.batch.global * m.model.seq_len) as f64;
        return Ok(model::flops_per_token(&m.model).model * tokens / flops);
    }
    if let Some(launched) = launch::launcher(m)?.filter(|launched| launched.world > 1) {
        return Err(Problems::one(
            "--minutes",
            format!("--minutes times one process, and this run has {}", launched.world),
            "--set train.steps=N",
        )
        .into());
    }
    let mut ranks = LocalRanks::rendezvous(loaded, "length")?;
    ranks.run(m, messages, |rank, device| {
        let be = device.backend();
        let groups = device.groups(rank.world(), m)?;
        let engine = Engine::new(be, groups, m, m.data.causal())?;
        engine.init();
        let whole = whole_micro(m);
        engine.set_micro(whole)?;
        let shard = DataShard::for_rank(rank, m).with_micro(whole.samples);
        let micros = shard.rounds(m.batch.global as u64) as usize;
        let mut seconds = Vec::new();
        for step in 0..=TIMED {
            let begun = Instant::now();
            let batch = batch(m, step as u64);
            engine.step(
                &mut |inputs: &Inputs| {
                    inputs.upload(be, &batch);
                    Ok(())
                },
                micros,
                0.0,
            )?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        Ok(plan::robust::median(seconds.into_iter().skip(1)))
    })
}

/// Micro-batch of the full batch, of whole samples.
fn whole_micro(m: &Manifest) -> MicroShape {
    MicroShape { samples: m.batch.micros().at(m.batch.global), tokens: m.model.seq_len }
}

/// Batch of random tokens.
fn batch(m: &Manifest, seed: u64) -> Batch {
    let MicroShape { samples, tokens: seq } = whole_micro(m);
    let tokens: Vec<i32> = (0..samples * (seq + 1))
        .map(|i| rng::below(seed, i as u64, m.model.vocab as u64) as i32)
        .collect();
    Batch::causal(&tokens, samples, 0, 1.0 / (m.batch.global * seq) as f32)
}
