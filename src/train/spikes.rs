//! Loss spikes of a run (`plan::spikes` says what one is): each step's limits, and what its outcome
//! says.

use data::MixturePlan;
use device::StepLimits;
use manifest::{Divergence, SpikeAction};
use plan::spikes::{Found, Rule, SpikeWatch, Taken};
use std::ops::Range;

/// The watch of a run, the same on all ranks.
pub struct Spikes {
    rule: Rule,
    pub watch: SpikeWatch,
    /// Samples at which a data stage begins: losses of before say nothing of those after.
    stages: Vec<u64>,
    /// Why the run has to go back, as the last step said.
    diverged: Option<String>,
    /// The run went back and has not been saved since.
    pub unsaved: bool,
}

impl Spikes {
    /// None where nobody looks. `saved`: of the checkpoint that the run goes on from.
    pub fn new(
        settings: &Divergence,
        saved: Option<SpikeWatch>,
        data: &MixturePlan,
    ) -> Option<Spikes> {
        let Divergence { action, sigmas, loss_rise, norm_rise, update_rise, .. } = *settings;
        let Divergence { skips, roll_back, roll_backs, .. } = *settings;
        let acts = action == SpikeAction::Act;
        let rule =
            Rule { sigmas, loss_rise, norm_rise, update_rise, acts, skips, roll_back, roll_backs };
        let watch = saved.unwrap_or_default();
        let looks = action != SpikeAction::Off;
        let stages = data.stages.iter().map(|stage| stage.from).filter(|at| *at > 0).collect();
        looks.then_some(Spikes { rule, watch, stages, diverged: None, unsaved: false })
    }

    /// What the device lets the step of these samples update by.
    pub fn limits(&self, step: u64, samples: &Range<u64>) -> Option<StepLimits> {
        // The step after the first of a data stage would be judged by losses of before, too.
        let two = samples.start.saturating_sub(samples.end - samples.start)..samples.end;
        let judged = self.rule.acts && !self.stages.iter().any(|at| two.contains(at));
        let limits = self.watch.limits(step).filter(|_| judged)?;
        Some(StepLimits { loss: limits.loss, norm: limits.norm })
    }

    /// Takes in a step's outcome, and says so where it is a spike.
    pub fn see(&mut self, taken: Taken, samples: &Range<u64>) {
        if self.stages.iter().any(|at| samples.contains(at)) {
            self.watch.begin_anew();
        }
        match self.watch.see(&self.rule, taken) {
            Found::Healthy => {}
            Found::Spike(what) => tracing::warn!("step {}: {what}", taken.step),
            Found::Diverged(why) => self.diverged = Some(why),
        }
    }

    /// Takes in the norm of a step's update, and says so where it is unusual.
    pub fn see_update(&mut self, step: u64, norm: f64, lr: f64) {
        let unusual = || self.watch.see_update(&self.rule, norm, lr);
        if let Some(what) = (lr > 0.0).then(unusual).flatten() {
            tracing::warn!("step {step}: {what}");
        }
    }

    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Why the run has to go back, asked once.
    pub fn take_diverged(&mut self) -> Option<String> {
        self.diverged.take()
    }

    /// The run went back.
    pub fn go_on_with(&mut self, watch: SpikeWatch) {
        self.watch = watch;
        self.unsaved = true;
    }

    pub fn has_diverged(&self) -> bool {
        self.diverged.is_some()
    }
}
