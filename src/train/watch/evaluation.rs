//! Losses on the validation sets and accuracies on tasks (`train.eval_interval`).

use super::{Event, RunContext, RunView};
use crate::eval::Scoring;
use crate::loader::Loader;
use base::Moment;

/// Evaluates on all sets and tasks. A collective, on an idle device.
pub fn evaluate(run: &RunView) -> anyhow::Result<()> {
    let _span = tracing::trace_span!("evaluate").entered();
    let begun = Moment::now();
    let engine = run.engine;
    let progress = run.progress;
    let RunContext { manifest: m, rank, be, shard, data, tasks, .. } = run.cx;
    let samples = m.train.eval_samples;
    let shard = *shard;
    for (name, source) in &data.valid {
        rank.set_phase(&format!("evaluating {name}"));
        let mut loader = Loader::evaluation(source, shard, samples)?;
        let load = &mut |inputs: &_| loader.load(*be, inputs, samples);
        let loss = engine.evaluate(load, shard.rounds(samples))?;
        run.notice(&Event::Validated(progress, name, loss))?;
    }
    let seq_len = m.model.seq_len;
    let scoring = Scoring { rank, be: *be, model: engine, shard, seq_len, progress: None };
    for (name, task) in tasks.iter() {
        rank.set_phase(&format!("evaluating task {name}"));
        if let Some(accuracy) = scoring.score_task(task)? {
            run.notice(&Event::Scored(progress, name, accuracy))?;
        }
    }
    run.notice(&Event::Evaluated(begun.elapsed()))
}
