//! Loss spikes of a run (defined in `plan::spikes`): the limits of each step, and the assessment of
//! its outcome.

use super::roll_back::{self, Diverged};
use super::watch::{Event, RunView, StepSpec, Watcher};
use checkpoint::{Progress, State};
use data::MixturePlan;
use device::StepLimits;
use launch::events;
use manifest::{Divergence, SpikeAction};
use plan::spikes::{Assessment, Limits, Rule, SpikeDetector, StepResult};
use std::ops::Range;

/// Steps after the start of a data stage that are compared with the previous stage.
const FIRST_STEPS: u64 = 4;

/// Spike detection of a run, equal on all ranks.
pub struct Spikes {
    rule: Rule,
    watch: SpikeDetector,
    /// Samples at which data stages begin. Losses before such a sample do not predict those after
    /// it.
    stages: Vec<u64>,
    /// Limits before a data stage that has just begun, and the last step to compare with them.
    begun: Option<(Limits, u64)>,
    /// Step after which the run must roll back, of which the host may learn only when the next one is
    /// queued.
    diverged: Option<Diverged>,
}

impl Spikes {
    /// None if `divergence` is off. `saved` is from the checkpoint of a resumed run.
    pub fn new(
        settings: &Divergence,
        saved: Option<SpikeDetector>,
        data: &MixturePlan,
    ) -> Option<Spikes> {
        let Divergence { action, sigmas, loss_rise, norm_rise, .. } = *settings;
        let Divergence { skips, roll_back, roll_backs, .. } = *settings;
        let acts = action == SpikeAction::Act;
        let rule = Rule { sigmas, loss_rise, norm_rise, acts, skips, roll_back, roll_backs };
        let watch = saved.unwrap_or_default();
        let looks = action != SpikeAction::Off;
        let stages = data
            .stages
            .iter()
            .map(|stage| stage.from)
            .filter(|at| *at > 0)
            .collect();
        looks.then_some(Spikes { rule, watch, stages, begun: None, diverged: None })
    }

    /// Limits under which the device applies the update of a step with these samples.
    pub fn limits(&self, step: u64, samples: &Range<u64>) -> Option<StepLimits> {
        // Losses from before a data stage would also judge the second step of the stage.
        let two = samples.start.saturating_sub(samples.end - samples.start)..samples.end;
        let judged = self.rule.acts && !self.stages.iter().any(|at| two.contains(at));
        let limits = self.watch.limits(step).filter(|_| judged)?;
        Some(StepLimits { loss: limits.loss, norm: limits.norm })
    }

    /// Adds a step's outcome, and warns if it is a spike. A step that was queued before the run rolls back
    /// changes nothing: whether there is one depends on the time at which the host waits for the device.
    pub fn observe(&mut self, taken: StepResult, samples: &Range<u64>) {
        if self.diverged.is_some() {
            return;
        }
        if self.stages.iter().any(|at| samples.contains(at)) {
            let limits = self.watch.limits(taken.step);
            self.begun = limits.map(|limits| (limits, taken.step + FIRST_STEPS));
            self.watch.clear_losses();
        }
        self.compare_stage(taken);
        match self.watch.observe(&self.rule, taken) {
            Assessment::Healthy => {}
            Assessment::Spike(what) => {
                tracing::warn!(target: events::DIVERGENCE, "step {}: {what}", taken.step);
            }
            Assessment::Diverged(why) => {
                let at = Progress { step: taken.step, consumed_samples: samples.end };
                self.diverged = Some(Diverged { at, why });
            }
        }
    }

    /// Warns if the first losses of a data stage are far above those before.
    fn compare_stage(&mut self, taken: StepResult) {
        let StepResult { step, loss, .. } = taken;
        let Some((limits, last)) = self.begun else { return };
        if loss > f64::from(limits.loss) {
            tracing::warn!(
                "step {step}: the loss {loss:.3} of a new data stage is above {:.3}, the limit of the \
                 stage before: look at its data (gptrain data samples)",
                limits.loss
            );
        }
        if loss > f64::from(limits.loss) || step >= last {
            self.begun = None;
        }
    }
}

/// None if `divergence` is off.
impl Watcher for Option<Spikes> {
    fn name(&self) -> &'static str {
        "spikes"
    }

    fn prepare(&mut self, run: &RunView, spec: &StepSpec) -> anyhow::Result<()> {
        run.engine.set_limits(match self {
            Some(spikes) => spikes.limits(spec.step, &spec.samples),
            None => None,
        });
        Ok(())
    }

    fn notice(&mut self, _: &RunView, event: &Event) -> anyhow::Result<()> {
        let Some(spikes) = self else { return Ok(()) };
        match event {
            Event::Step(done) => {
                let step = done.step;
                let outcome = done.outcome;
                let loss = outcome.loss;
                let norm = outcome.grad_norm;
                let skipped = outcome.skipped;
                spikes.observe(StepResult { step, loss, norm, skipped }, &done.samples);
            }
            Event::RolledBack(state) => spikes.watch = state.spikes.clone().unwrap_or_default(),
            _ => {}
        }
        Ok(())
    }

    fn store(&self, state: &mut State) {
        state.spikes = self.as_ref().map(|spikes| spikes.watch.clone());
    }

    fn must_roll_back(&self) -> bool {
        self.as_ref()
            .is_some_and(|spikes| spikes.diverged.is_some())
    }

    fn roll_back(&mut self, run: &RunView) -> anyhow::Result<Option<(State, String)>> {
        let Some(spikes) = self else { return Ok(None) };
        let Some(diverged) = spikes.diverged.take() else { return Ok(None) };
        roll_back::load(run, &spikes.rule, &spikes.watch, &diverged)
    }
}
