//! The loop around the step: open everything, resume, train, evaluate, save, stop in good order.

mod feed;
mod guard;
pub mod generate;
pub mod import;
pub mod launch;
pub mod report;
pub mod replay;
mod resume;
mod saving;

use crate::base::Count;
use crate::checkpoint::{Past, Progress};
use crate::data::{Datasets, Source};
use crate::device::Backend;
use crate::engine::{Engine, Groups, lr};
use crate::manifest::{Loaded, Manifest, Objective};
use crate::model;
use crate::plan::ramp::Ramp;
use anyhow::Context;
use feed::Feed;
use report::{Report, RunInfo, StepLine};
use saving::Saver;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// By a signal, after saving.
    Stopped,
}

/// What the command line asks for beside the manifest.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name of a checkpoint to go on from, in place of the newest.
    pub resume_from: Option<PathBuf>,
    /// Recorded steps to take again first, to prove that resuming repeats them.
    pub verify_resume: Option<u64>,
}

/// Trains the manifest from where its folder stands to its end, or to a signal.
pub fn run(loaded: &Loaded, options: &Options) -> anyhow::Result<Ended> {
    let manifest = &loaded.manifest;
    manifest.runnable()?;
    let _lock = guard::FolderLock::take(&manifest.log.folder)?;
    let stop = guard::stop_flag()?;
    let (backend, device) = launch::backend(manifest)?;
    println!("device: {device}");
    let mut run = Run::open(loaded, options, &*backend, stop)?;
    let ended = run.train();
    run.report.finish();
    ended
}

/// A run under way.
struct Run<'a> {
    manifest: &'a Manifest,
    ramp: Ramp,
    engine: Engine<'a>,
    be: &'a dyn Backend,
    valid: Vec<(String, Arc<Source>)>,
    feed: Feed,
    report: Report,
    progress: Progress,
    saver: Saver,
    stop: Arc<AtomicBool>,
}

impl<'a> Run<'a> {
    fn open(
        loaded: &'a Loaded,
        options: &Options,
        be: &'a dyn Backend,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Run<'a>> {
        let m = &loaded.manifest;
        let ramp = m.batch.ramp();
        let asked = options.resume_from.as_deref();
        let found = resume::find(m, asked)?;
        let ids = resume::data_ids(m);
        let there = ids.as_deref().unwrap_or_default();
        let mixture = resume::mixture(found.as_ref(), m, there)?;
        let eval_samples = eval_micros(m) * m.batch.micro as u64;
        let (seq_len, vocab) = (m.model.seq_len, m.model.vocab);
        let data = Datasets::resume(&m.data, mixture, seq_len, vocab, eval_samples)?;
        let ids = ids?;
        let engine = Engine::new(be, Groups::solo(), m, causal(m))?;
        announce(m, &engine, ramp);
        if let Some(steps) = options.verify_resume {
            println!("{}", replay::verify(steps, loaded, &ids, &engine, be, &data.train)?);
        }
        let mut state = match &found {
            Some(found) => resume::resume(found, asked.is_some(), loaded, &ids, &engine)?,
            None => {
                engine.init();
                saving::blank(loaded, engine.slots(), ids)
            }
        };
        state.mixture = data.plan;
        let progress = state.progress;
        let saver = Saver::open(m, &engine, state)?;
        println!("checkpoints: {} of host memory for snapshots", saver.bytes());
        let path = m.log.folder.join("manifest.yaml");
        fs::write(&path, &loaded.effective)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let (folder, every, events) = (&m.log.folder, m.log.interval, m.log.tensorboard);
        let report = Report::open(folder, run_info(m, ramp), every, events, progress.step)?;
        let consumed = progress.consumed_samples;
        Ok(Run {
            manifest: m,
            ramp,
            engine,
            be,
            feed: Feed::training(&data.train, ramp, m.batch.micro, consumed, m.train.samples)?,
            valid: data.valid,
            report,
            progress,
            saver,
            stop,
        })
    }

    fn train(&mut self) -> anyhow::Result<Ended> {
        let m = self.manifest;
        let due = |every: u64, step: u64| every > 0 && step.is_multiple_of(every);
        loop {
            let global = self.ramp.batch_at(self.progress.consumed_samples);
            let complete = self.progress.consumed_samples + global as u64 > m.train.samples;
            if complete || guard::stopping(&self.stop) {
                self.save()?;
                self.saver.finish()?.iter().for_each(|note| self.report.note(note));
                return Ok(if complete { Ended::Complete } else { Ended::Stopped });
            }
            self.step(global)?;
            self.saver.poll()?.iter().for_each(|note| self.report.note(note));
            let step = self.progress.step;
            let last = self.progress.consumed_samples + global as u64 > m.train.samples;
            if m.train.eval_interval.is_some_and(|every| last || due(every, step)) {
                self.evaluate()?;
            }
            if due(m.checkpoint.interval, step) || self.saver.asked() {
                self.save()?;
            }
        }
    }

    fn step(&mut self, global: usize) -> anyhow::Result<()> {
        let started = Instant::now();
        let waited = self.feed.wait();
        let m = self.manifest;
        let first = self.progress.consumed_samples;
        let (step, consumed) = (self.progress.step + 1, first + global as u64);
        let rate = lr::at(&m.lr, consumed);
        let (feed, be) = (&mut self.feed, self.be);
        let outcome = self.engine.step(
            &mut |inputs| feed.load(be, inputs, global as u64, u64::MAX),
            global / m.batch.micro,
            rate,
            step,
        )?;
        guard::check_finite(&outcome, &self.engine, step, first..consumed)?;
        self.progress = Progress { step, consumed_samples: consumed };
        self.saver.step(Past { step, loss: outcome.loss, grad_norm: outcome.grad_norm }, rate);
        self.report.step(&StepLine {
            step,
            consumed_samples: consumed,
            lm_loss: outcome.loss,
            grad_norm: outcome.grad_norm,
            lr: rate,
            global_batch: global,
            seconds: started.elapsed().as_secs_f64(),
            data_wait_seconds: (self.feed.wait() - waited).as_secs_f64(),
        })
    }

    fn evaluate(&mut self) -> anyhow::Result<()> {
        let (m, be) = (self.manifest, self.be);
        let (samples, micros) = (m.train.eval_samples, eval_micros(m));
        for (name, source) in &self.valid {
            let mut feed = Feed::evaluation(source, m.batch.micro, micros)?;
            let mut load = |i: &model::Inputs| feed.load(be, i, samples, samples);
            let loss = self.engine.evaluate(&mut load, micros)?;
            self.report.eval(self.progress.step, self.progress.consumed_samples, name, loss)?;
        }
        Ok(())
    }

    fn save(&mut self) -> anyhow::Result<()> {
        let next_batch = self.ramp.batch_at(self.progress.consumed_samples) as u64;
        let seq_len = self.manifest.model.seq_len;
        let done = self.saver.save(&self.engine, self.progress, next_batch, seq_len)?;
        done.iter().for_each(|note| self.report.note(note));
        Ok(())
    }
}

/// Micro-batches that cover the samples of an evaluation.
fn eval_micros(m: &Manifest) -> u64 {
    m.train.eval_samples.div_ceil(m.batch.micro as u64)
}

/// Whether every sample's mask is plainly causal.
fn causal(m: &Manifest) -> bool {
    m.data.objective == Objective::Causal && m.data.eod.is_none_or(|eod| !eod.reset_attention)
}

fn run_info(m: &Manifest, ramp: Ramp) -> RunInfo {
    let flops = model::flops_per_token(&m.model);
    RunInfo {
        name: m.name.clone(),
        params: model::parameters(&m.model),
        total_samples: m.train.samples,
        total_steps: ramp.steps(m.train.samples),
        seq_len: m.model.seq_len,
        model_flops_per_token: flops.model,
        hardware_flops_per_token: flops.hardware(m.topology.recompute),
        peak_flops: m.log.peak_tflops.map(|peak| peak * 1e12),
    }
}

fn announce(m: &Manifest, engine: &Engine, ramp: Ramp) {
    let tokens = m.train.samples * m.model.seq_len as u64;
    println!(
        "{}: {} parameters, {} steps, {} tokens, {}",
        m.name,
        Count(model::parameters(&m.model)),
        Count(ramp.steps(m.train.samples)),
        Count(tokens),
        engine.live_dtype(),
    );
    println!("memory: {}", engine.bill());
}
