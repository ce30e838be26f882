//! Rollback to a checkpoint, if skipping the updates of loss spikes does not help.

use super::loader::Loader;
use super::resume::{self, Asked};
use super::run::Run;
use super::saving;
use super::watch::{Event, RunContext};
use anyhow::anyhow;
use checkpoint::{Found as Checkpoint, Progress};
use plan::spikes::RollBack;
use std::time::Instant;

impl Run<'_> {
    /// Rolls back to the newest checkpoint that is old enough, and continues with later samples.
    /// The samples from there to the spike, and as many beyond, are left out. They count as
    /// consumed, also for the learning rate and the end of the run. A collective. Fails after too
    /// many rollbacks.
    pub fn roll_back(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        let (m, rank) = (self.cx.manifest, self.cx.rank);
        self.write_report()?;
        let Some(spikes) = &mut self.spikes else { return Ok(()) };
        let Some(why) = spikes.take_diverged() else { return Ok(()) };
        let (mut watch, rule) = (spikes.watch.clone(), spikes.rule());
        let Progress { step: at, consumed_samples: now } = self.progress;
        rank.set_phase("going back to a checkpoint");
        self.saver.finish(rank)?;
        let back = rank.on_first(|| {
            Ok(checkpoint::published(&saving::folder(m))?
                .into_iter()
                .rfind(|found| found.step + rule.roll_back <= at))
        })?;
        let global = self.cx.ramp.batch_at(now) as u64;
        let from = now + rule.roll_back * global;
        let found: Checkpoint = match (watch.may_roll_back(&rule, at), back) {
            (Err(before), _) => return self.give_up(&why, &before),
            (_, None) => {
                let none = format!("there is no checkpoint {} steps before", rule.roll_back);
                return self.give_up(&why, &none);
            }
            _ if from + global > m.train.samples => {
                return self.give_up(&why, "the run has no samples left to continue with");
            }
            (_, Some(found)) => found,
        };
        let asked = Asked { checkpoint: true, reset_optimizer: false };
        let (loaded, ids) = (self.cx.loaded, &self.saver.state().data);
        let mut state = resume::resume(rank, &found, asked, loaded, ids, &self.engine)?;
        let samples = [state.progress.consumed_samples, from];
        let before = std::mem::replace(&mut watch, state.spikes.take().unwrap_or_default());
        watch.roll_backs = before.roll_backs;
        watch.roll_backs.push(RollBack { at, to: found.step, samples });
        state.progress.consumed_samples = from;
        state.mixture = self.cx.data.plan.clone();
        self.progress = state.progress;
        self.saver.go_on_from(state);
        spikes.go_on_with(watch);
        let RunContext { data, ramp, shard, .. } = &self.cx;
        self.loader = rank.phase("starting the data loader", || {
            Loader::training(&data.train, *ramp, *shard, from, m.train.samples)
        })?;
        self.watchers.notice(&self.cx, &Event::RolledBack(found.step))?;
        self.in_flight.last_ended = Instant::now();
        tracing::warn!(
            "step {at}: {why}. Went back to step {}; samples {}..{} are left out",
            found.step,
            samples[0],
            samples[1]
        );
        Ok(())
    }

    fn give_up(&self, why: &str, tried: &str) -> anyhow::Result<()> {
        let rank = self.cx.rank;
        rank.agree(match rank.is_first() {
            false => Ok(()),
            true => Err(anyhow!(
                "step {}: the run has diverged: {why}; {tried}. Look at the samples with `gptrain data \
                 samples`, lower lr.peak, or continue unchanged with --set divergence=warn",
                self.progress.step
            )),
        })
    }
}
