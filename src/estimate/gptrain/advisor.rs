//! Changes of gptrain's own plan, in the order in which they are tried: accumulate more; recompute, shard
//! and change the topology; offload states; keep moments in 8 bits; compress gradients. Each is applied
//! like `--set`, and evaluated by a dry run.

use super::compression::CompressionGain;
use super::dry_run::{self, MemoryLimits};
use super::stage_times::{self, StageTimes};
use crate::change::{ChangeKind, Proposal, propose_faster, propose_smaller, set_flags};
use crate::search::{MOST_DEVICES, Planner, Search, print};
use crate::setup::{Extras, Setup};
use base::Bytes;
use manifest::{self, Adam8bit, Manifest, Optimizer};
use std::path::Path;

/// Changed plan.
#[derive(Clone, Debug)]
pub struct Change {
    pub kind: ChangeKind,
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
pub struct Advisor<'a> {
    pub effective: &'a str,
    pub manifest: &'a Manifest,
    pub setup: &'a Setup,
    pub limits: MemoryLimits,
}

/// Minimum gain of a printed change, as a share of a step.
const GAIN: f64 = 0.005;

/// Share of a step in sums of gradients above which larger steps are tried.
const SUMS: f64 = 0.1;

/// Factor of the tokens per step that is tried.
const TIMES: usize = 4;

/// Maximum number of remedies in words.
const NAMED: usize = 5;

impl Advisor<'_> {
    /// Smallest sets of changes that make every rank fit: single changes, else pairs; and the fastest
    /// topology over the same devices, if all of these put states on the host or in 8 bits. Grouped by kind,
    /// fastest first.
    pub fn remedies(&self) -> Vec<Change> {
        let fitting = |proposals: Vec<Proposal>| -> Vec<Change> {
            proposals
                .into_iter()
                .filter_map(|proposal| self.fitting(proposal))
                .collect()
        };
        let first = propose_less_memory(self.manifest, self.setup);
        let mut found = fitting(first.clone());
        if found.is_empty() {
            found = fitting(self.pair_with(first, propose_less_memory));
        }
        let needs_more = |change: &Change| change.kind >= ChangeKind::Offload;
        if found.iter().all(needs_more) {
            found.extend(self.fastest_topology());
        }
        sort_changes(found)
    }

    /// Remedies in words if gptrain cannot reserve its memory: small changes or another topology, else more
    /// GPUs.
    pub fn describe_remedies(&self) -> String {
        let remedies = self.remedies();
        if remedies.is_empty() {
            return self.suggest_more_gpus();
        }
        let changes = remedies.iter().take(NAMED);
        changes
            .map(|change| format!("{} ({})", set_flags(&change.sets), change.bytes))
            .collect::<Vec<_>>()
            .join("\n      or ")
    }

    /// The fewest GPUs.
    fn suggest_more_gpus(&self) -> String {
        let ranks = self.setup.ranks();
        match self.search().find_fewest_devices(MOST_DEVICES) {
            Some(found) => format!(
                "no topology over {ranks} GPUs fits; {} GPUs hold it: {}",
                found.best.setup.ranks(),
                set_flags(&print::sets(self.manifest, &found.best.setup))
            ),
            None => {
                "no topology over any number of such GPUs fits: make the model smaller".to_string()
            }
        }
    }

    /// Changes that are faster and fit, grouped by kind, fastest first. A change that is faster but does
    /// not fit is tried with 8-bit moments and with offloaded states. `stages` are those of the plan.
    pub fn speed_ups(&self, stages: &[dry_run::Stage]) -> Vec<Change> {
        let now = stage_times::seconds(stages, self.setup);
        let mut found = Vec::new();
        let mut too_large = Vec::new();
        for proposal in self
            .accumulate(stages)
            .into_iter()
            .chain(propose_faster_step(self.setup))
        {
            match self.fitting(proposal.clone()) {
                Some(change) => found.push(change),
                None => too_large.push(proposal),
            }
        }
        let pairs = self.pair_with(too_large, |m: &Manifest, setup: &Setup| -> Vec<Proposal> {
            let mut proposals = propose_less_memory(m, setup);
            proposals.retain(|p| matches!(p.kind, ChangeKind::Adam8bit | ChangeKind::Offload));
            proposals
        });
        found.extend(pairs.into_iter().filter_map(|pair| self.fitting(pair)));
        found.extend(self.compress(stages));
        found.retain(|change| change.seconds < (1.0 - GAIN) * now);
        sort_changes(found)
    }

    /// Fastest topology over as many devices, with the manifest's optimizer and states on the devices.
    fn fastest_topology(&self) -> Option<Change> {
        let found = self.search().first(self.setup.ranks())?.setup;
        self.fitting(Proposal {
            kind: ChangeKind::Shard,
            what: print::describe(&found),
            sets: print::sets(self.manifest, &found),
            setup: found,
        })
    }

    fn search(&self) -> Search<'_> {
        let Advisor { manifest: m, setup, limits, .. } = *self;
        let planner = Planner::for_gptrain(m, limits);
        Search::new(planner, setup, m.batch.ramp(), m.train.samples, Extras::default())
    }

    /// Each change of `first`, followed by each that `second` derives from it.
    fn pair_with(
        &self,
        first: Vec<Proposal>,
        second: impl Fn(&Manifest, &Setup) -> Vec<Proposal>,
    ) -> Vec<Proposal> {
        first
            .into_iter()
            .flat_map(|one| {
                let Some((m, setup)) = self.apply_sets(&one.sets) else { return Vec::new() };
                second(&m, &setup)
                    .into_iter()
                    .map(|two| one.and(two))
                    .collect::<Vec<Proposal>>()
            })
            .collect()
    }

    /// Manifest with these settings; None if it would be refused.
    fn apply_sets(&self, sets: &[String]) -> Option<(Manifest, Setup)> {
        let loaded = manifest::parse(self.effective, "the manifest", Path::new("."), sets).ok()?;
        let setup = self.setup.for_manifest(&loaded.manifest);
        Some((loaded.manifest, setup))
    }

    /// None if it is refused or does not fit.
    fn fitting(&self, proposal: Proposal) -> Option<Change> {
        let Proposal { kind, what, sets, .. } = proposal;
        let (m, setup) = self.apply_sets(&sets)?;
        let stages = dry_run::stages_within(&m, self.limits)?;
        let tokens = self.setup.global as f64 / setup.global as f64;
        Some(Change {
            kind,
            what,
            sets,
            bytes: dry_run::peak(&stages).1,
            host: dry_run::host_peak(&stages),
            seconds: tokens * stage_times::seconds(&stages, &setup),
            manifest: m,
            setup,
        })
    }

    /// Larger steps, if sums of gradients take a large share of one.
    fn accumulate(&self, stages: &[dry_run::Stage]) -> Option<Proposal> {
        let times = StageTimes::new(stages, self.setup);
        let parts = times.parts(self.setup.micros());
        let sums = parts
            .iter()
            .find(|(name, _)| *name == stage_times::SUMS)
            .map_or(0.0, |part| part.1);
        let large = sums >= SUMS * times.seconds(self.setup.micros());
        let old = self.setup.global;
        let new = TIMES * self.setup.global;
        let what = format!("global batch {old} → {new}: {TIMES} × the tokens a sum");
        let set = format!("batch.global={new}");
        (large && self.manifest.batch.ramp_up.is_none())
            .then(|| Proposal::new(ChangeKind::Accumulate, what, set, self.setup))
    }

    /// Compressed gradients, with the bandwidth below which they pay, if the plan has none.
    fn compress(&self, stages: &[dry_run::Stage]) -> Option<Change> {
        if self.manifest.topology.compression.is_some() {
            return None;
        }
        let gain = CompressionGain::new(self.manifest, self.setup, stages)?;
        let e = Some(gain).filter(CompressionGain::saves_bytes)?;
        let bandwidth = CompressionGain::bandwidth(self.setup);
        let set = "topology.compression=powersgd".to_string();
        self.fitting(Proposal::new(
            ChangeKind::Compress,
            format!("PowerSGD: pays below {:.0} Gb/s per rank, here {bandwidth:.0}", e.break_even),
            set,
            self.setup,
        ))
    }
}

fn sort_changes(mut found: Vec<Change>) -> Vec<Change> {
    found.sort_by(|a, b| {
        (a.kind, a.seconds)
            .partial_cmp(&(b.kind, b.seconds))
            .expect("seconds")
    });
    found.dedup_by(|a, b| (a.kind, a.bytes, a.seconds) == (b.kind, b.bytes, b.seconds));
    found
}

/// Changes that need less memory.
fn propose_less_memory(m: &Manifest, setup: &Setup) -> Vec<Proposal> {
    let mut proposals = propose_smaller(setup);
    if let Optimizer::AdamW(rule) = m.optimizer {
        let set = Adam8bit::from_adamw(rule).to_set();
        let what = "Adam's moments in 8 bits".to_string();
        proposals.push(Proposal::new(ChangeKind::Adam8bit, what, set, setup));
    }
    proposals
}

/// Changes that may be faster.
fn propose_faster_step(setup: &Setup) -> Vec<Proposal> {
    let zeros = setup
        .program
        .zero_levels(setup.topology.pipeline)
        .iter()
        .filter(|zero| **zero != setup.topology.zero && setup.topology.data > 1);
    let proposals = propose_faster(setup).into_iter();
    proposals
        .filter(|proposal| !proposal.sets.is_empty())
        .chain(zeros.map(|zero| {
            let set = format!("topology.zero={zero}");
            Proposal::new(ChangeKind::Shard, format!("ZeRO-{zero}"), set, setup)
        }))
        .collect()
}
