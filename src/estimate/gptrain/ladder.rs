//! Changes of gptrain's own plan, in the order in which they are tried: accumulate more; recompute, shard
//! and change the topology; offload states; keep moments in 8 bits; compress gradients. Each is applied
//! like `--set`, and evaluated by a dry run.

use super::dry_run::{self, Room};
use super::exchange::Exchange;
use crate::change::{Rung, Step, faster_steps, smaller_steps};
use crate::setup::Setup;
use base::Bytes;
use manifest::{self, Adam8bit, Manifest, Optimizer};
use std::path::Path;

/// Changed plan.
#[derive(Clone, Debug)]
pub struct Change {
    pub rung: Rung,
    /// Description, such as "micro-batch 2 → 1".
    pub what: String,
    /// Settings, as for `--set`.
    pub sets: Vec<String>,
    pub manifest: Manifest,
    pub setup: Setup,
    /// Memory of the rank that reserves most, and of the one that reserves most on its host.
    pub bytes: Bytes,
    pub host: Bytes,
    /// Seconds for the tokens of one step of the original plan.
    pub seconds: f64,
}

/// Plan to change: its effective YAML, and the memory that a rank may reserve.
pub struct Ladder<'a> {
    pub effective: &'a str,
    pub manifest: &'a Manifest,
    pub setup: &'a Setup,
    pub room: Room,
}

/// Minimum gain of a printed change, as a share of a step.
const GAIN: f64 = 0.005;

/// Share of a step in sums of gradients above which larger steps are tried.
const SUMS: f64 = 0.1;

/// Factor of the tokens per step that is tried.
const TIMES: usize = 4;

impl Ladder<'_> {
    /// Smallest changes with which every rank fits, by kind, then the fastest first: single ones, or
    /// pairs if no single one is enough.
    pub fn remedies(&self) -> Vec<Change> {
        let judged = |steps: Vec<Step>| -> Vec<Change> {
            steps.into_iter().filter_map(|step| self.fitting(step)).collect()
        };
        let first = smaller(self.manifest, self.setup);
        let mut found = judged(first);
        if found.is_empty() {
            found = judged(self.pairs(smaller(self.manifest, self.setup), smaller));
        }
        sorted(found)
    }

    /// Changes that are faster and fit, by kind, then the fastest first. A change that is faster but does
    /// not fit is tried with 8-bit moments and with offloaded states.
    pub fn speed_ups(&self) -> Vec<Change> {
        let stages = dry_run::stages(self.manifest);
        let now = dry_run::seconds(&stages, self.setup);
        let faster = || [self.accumulate(&stages), faster(self.setup)].concat();
        let gains = |change: &Change| change.seconds < (1.0 - GAIN) * now;
        let (mut found, mut too_large) = (Vec::new(), Vec::new());
        for step in faster() {
            match self.fitting(step.clone()) {
                Some(change) => found.push(change),
                None => too_large.push(step),
            }
        }
        let saving = |m: &Manifest, setup: &Setup| -> Vec<Step> {
            let steps = smaller(m, setup).into_iter();
            steps.filter(|step| step.rung == Rung::Code || step.rung == Rung::Offload).collect()
        };
        let pairs = self.pairs(too_large, saving);
        found.extend(pairs.into_iter().filter_map(|step| self.fitting(step)));
        found.extend(self.compress());
        found.retain(gains);
        sorted(found)
    }

    /// Each change of `first`, followed by each that `second` derives from it.
    fn pairs(
        &self,
        first: Vec<Step>,
        second: impl Fn(&Manifest, &Setup) -> Vec<Step>,
    ) -> Vec<Step> {
        let and = |one: Step| {
            let Some((m, setup)) = self.changed(&one.sets) else { return Vec::new() };
            let join = |two: Step| Step {
                rung: one.rung.max(two.rung),
                what: format!("{} and {}", one.what, two.what),
                sets: [one.sets.clone(), two.sets].concat(),
                setup: two.setup,
            };
            second(&m, &setup).into_iter().map(join).collect::<Vec<Step>>()
        };
        first.into_iter().flat_map(and).collect()
    }

    /// Manifest with these settings; None if it would be refused.
    fn changed(&self, sets: &[String]) -> Option<(Manifest, Setup)> {
        let loaded = manifest::parse(self.effective, "the manifest", Path::new("."), sets).ok()?;
        let setup = self.setup.of_cut(&loaded.manifest);
        Some((loaded.manifest, setup))
    }

    /// None if it is refused or does not fit.
    fn fitting(&self, step: Step) -> Option<Change> {
        let (m, setup) = self.changed(&step.sets)?;
        let stages = dry_run::stages_within(&m, self.room)?;
        let tokens = self.setup.global as f64 / setup.global as f64;
        Some(Change {
            rung: step.rung,
            what: step.what,
            sets: step.sets,
            bytes: dry_run::peak(&stages).1,
            host: dry_run::host_peak(&stages),
            seconds: tokens * dry_run::seconds(&stages, &setup),
            manifest: m,
            setup,
        })
    }

    /// Larger steps, if sums of gradients take a large share of one.
    fn accumulate(&self, stages: &[dry_run::Stage]) -> Vec<Step> {
        let parts = dry_run::parts(stages, self.setup);
        let sums = parts.iter().find(|(name, _)| *name == dry_run::SUMS).map_or(0.0, |part| part.1);
        if sums < SUMS * dry_run::seconds(stages, self.setup)
            || self.manifest.batch.ramp_up.is_some()
        {
            return Vec::new();
        }
        let global = TIMES * self.setup.global;
        vec![Step {
            rung: Rung::Accumulate,
            what: format!(
                "global batch {} → {global}: {TIMES} × the tokens a sum",
                self.setup.global
            ),
            sets: vec![format!("batch.global={global}")],
            setup: self.setup.clone(),
        }]
    }

    /// Compressed gradients, with the bandwidth below which they pay.
    fn compress(&self) -> Option<Change> {
        let none = self.manifest.topology.compression.is_none();
        let e = Exchange::of(self.manifest, self.setup).filter(|e| none && e.saves())?;
        let here = Exchange::here(self.setup);
        let what = format!("PowerSGD: pays below {:.0} Gb/s a rank, here {here:.0}", e.break_even);
        self.fitting(Step {
            rung: Rung::Compress,
            what,
            sets: vec!["topology.compression=powersgd".to_string()],
            setup: self.setup.clone(),
        })
    }
}

fn sorted(mut found: Vec<Change>) -> Vec<Change> {
    found.sort_by(|a, b| (a.rung, a.seconds).partial_cmp(&(b.rung, b.seconds)).expect("seconds"));
    found.dedup_by(|a, b| (a.rung, a.bytes, a.seconds) == (b.rung, b.bytes, b.seconds));
    found
}

/// Steps that need less memory.
fn smaller(m: &Manifest, setup: &Setup) -> Vec<Step> {
    let mut steps = smaller_steps(setup);
    if let Optimizer::AdamW(rule) = m.optimizer {
        steps.push(Step {
            rung: Rung::Code,
            what: "Adam's moments in 8 bits".to_string(),
            sets: vec![Adam8bit::of(rule).set()],
            setup: setup.clone(),
        });
    }
    steps
}

/// Steps that may be faster.
fn faster(setup: &Setup) -> Vec<Step> {
    let others = |zero: &&u8| **zero != setup.topology.zero && setup.topology.data > 1;
    let zeros = setup.program.zeros(setup.topology.pipeline).iter().filter(others);
    let shard = |zero: &u8| Step {
        rung: Rung::Shard,
        what: format!("ZeRO-{zero}"),
        sets: vec![format!("topology.zero={zero}")],
        setup: setup.clone(),
    };
    let steps = faster_steps(setup).into_iter();
    steps.filter(|step| !step.sets.is_empty()).chain(zeros.map(shard)).collect()
}
