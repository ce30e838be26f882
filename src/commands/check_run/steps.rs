//! The trainer's next steps, computed on this machine's CPU under a change.

use super::altered_update::{AlteredUpdate, StepFacts};
use super::change::{Change, StateChange};
use super::samples::{Recorded, Samples};
use super::trainer::{StateReader, Trainer};
use anyhow::{Context, anyhow};
use base::Problems;
use comm::World;
use engine::{Engine, Groups, ScaleState, lr};
use exchange::foreign::AdamState;
use launch::{Device, LocalRank};
use manifest::Manifest;
use model::{Layout, ModelShard};
use std::cell::Cell;
use std::rc::Rc;
use std::thread::{self, ScopedJoinHandle};

/// Computed steps, and notes from reading the state.
pub struct ComputedRun {
    pub steps: Vec<Computed>,
    pub remarks: Vec<String>,
}

/// Result of a computed step.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    pub loss: f64,
    pub grad_norm: f64,
}

/// Steps after a checkpoint.
pub struct NextSteps<'a> {
    pub trainer: &'a Trainer,
    pub steps: u64,
    /// Recorded samples; without them the manifest's datasets are read.
    pub batches: Option<&'a Recorded>,
}

/// Decides after a step whether the next one is computed.
type OnStep<'a> = &'a mut dyn FnMut(&Computed) -> bool;

impl NextSteps<'_> {
    /// Computes the steps under a change until `on_step` is false.
    pub fn compute(&self, change: &Change, on_step: OnStep) -> anyhow::Result<ComputedRun> {
        if change.state != StateChange::OwnCopies {
            return self.compute_on_rank(change, None, on_step);
        }
        // The ranks meet in collectives, so all compute every step.
        let ranks = self.trainer.tensor_ranks();
        let results: Vec<anyhow::Result<ComputedRun>> = thread::scope(|scope| {
            let start = |world: World| {
                base::threads::spawn_scoped(scope, &world.name(), move || {
                    let computed = self.compute_on_rank(change, Some(&world), &mut |_| true);
                    computed.inspect_err(|error| drop(world.fail(&format!("{error:#}"))))
                })
            };
            let threads: Vec<_> = comm::threads::world(ranks).into_iter().map(start).collect();
            let join = |thread: ScopedJoinHandle<_>| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("a rank panicked")))
            };
            threads.into_iter().map(|thread| join(thread?)).collect()
        });
        let ranks: Vec<ComputedRun> = results.into_iter().collect::<anyhow::Result<_>>()?;
        ranks.into_iter().next().context("there is a rank")
    }

    fn compute_on_rank(
        &self,
        change: &Change,
        world: Option<&World>,
        on_step: OnStep,
    ) -> anyhow::Result<ComputedRun> {
        let rank = world.map_or(0, World::rank);
        let (mut reader, m) = self.trainer.reader(change, rank)?;
        let samples = match self.batches {
            None => Samples::open(&m)?,
            Some(batches) => {
                let first = self.trainer.found.samples;
                Samples::Recorded { batches, first }
            }
        };
        let device = Device::open(&m, LocalRank::ONLY, m.train.threads)?;
        let be = device.backend();
        let facts = Rc::new(StepFacts { scale: Cell::new(1.0), norm: Cell::new(f64::NAN) });
        let causal = samples.causal(&m);
        let engine = match world {
            None => {
                let stages = engine::cuts(&m.model, &self.trainer.manifest.topology);
                let rule = AlteredUpdate::new(&m, change.update, stages, facts.clone());
                Engine::with_rule(be, Groups::solo(), &m, causal, Box::new(rule))?
            }
            Some(world) => Engine::new(be, Groups::new(world, &m.topology), &m, causal)?,
        };
        load_states(&engine, &mut reader, &m)?;
        self.restore_counts(&engine);
        let ramp = m.batch.ramp();
        let found = &self.trainer.found;
        let mut consumed = found.samples;
        let shift = change
            .first_sample
            .map_or(0, |first| first as i64 - consumed as i64);
        let mut computed = Vec::new();
        for step in found.step + 1..=found.step + self.steps {
            let global = ramp.batch_at(consumed) as u64;
            if consumed + global > m.train.samples {
                return Err(ends(&m, step).into());
            }
            let taken = consumed.saturating_add_signed(shift);
            let micro = m.schedule().micro(&(consumed..consumed + global));
            engine.set_micro(micro)?;
            let batches = samples.step(&m, taken, global, micro, change.mean)?;
            let late = consumed.saturating_add_signed(-change.rate_delay * global as i64);
            let rate = lr::for_step(&m.lr, &(late..late + global));
            facts.scale.set(engine.scale().scale);
            let mut next = batches.iter();
            let load = &mut |inputs: &model::Inputs| {
                inputs.upload(be, next.next().context("a micro-batch too many")?);
                Ok(())
            };
            let outcome = engine.step(load, batches.len(), rate)?;
            let norm = facts.norm.get();
            let grad_norm = if norm.is_nan() { outcome.grad_norm } else { norm };
            let result = Computed { loss: outcome.loss, grad_norm };
            computed.push(result);
            consumed += global;
            if !on_step(&result) {
                break;
            }
        }
        Ok(ComputedRun { steps: computed, remarks: reader.remarks() })
    }

    /// Sets the counts of steps and updates, and the loss scale.
    fn restore_counts(&self, engine: &Engine) {
        let found = &self.trainer.found;
        let skipped = found.step.saturating_sub(found.updates);
        engine.set_steps(found.step);
        let scale = found.loss_scale.map(|scale| ScaleState {
            scale: scale.scale,
            updates_in_a_row: scale.updates_in_a_row,
            overflows_left: scale.overflows_left,
            updates: found.updates,
            skipped,
        });
        engine.set_scale(scale, found.updates, skipped);
    }
}

fn ends(m: &Manifest, step: u64) -> Problems {
    Problems::one(
        "--steps",
        format!("the run ends after {} samples, before step {step}", m.train.samples),
        "compare fewer steps, or --set train.samples=NUMBER",
    )
}

/// Writes weights and moments into the engine, one state of one parameter at a time.
fn load_states(engine: &Engine, reader: &mut StateReader, m: &Manifest) -> anyhow::Result<()> {
    let store = engine.store();
    store.clear_padding();
    let slices = store.slices();
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    for (number, param) in layout.params().enumerate() {
        for state in AdamState::ALL {
            let name = state.saved_name();
            let own = slices
                .iter()
                .filter(|slice| slice.number == number && slice.state.name == name);
            let own: Vec<_> = own.collect();
            if own.is_empty() {
                continue;
            }
            let values = reader.read(param, state)?;
            for slice in own {
                let mut part: Vec<f32> = Vec::with_capacity(slice.numel());
                for row in values
                    .chunks(slice.shape[1])
                    .skip(slice.slice.at[0])
                    .take(slice.slice.size[0])
                {
                    part.extend(&row[slice.slice.cols()]);
                }
                store.write(slice, 0, bytemuck::cast_slice(&part));
            }
        }
    }
    store.cast_master_to_model();
    Ok(())
}
