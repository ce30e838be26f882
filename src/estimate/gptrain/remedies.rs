//! Remedies in words if gptrain cannot reserve its memory: small changes of the manifest, or another
//! topology, each checked by a dry run.

use super::advisor::Advisor;
use super::dry_run::MemoryLimits;
use crate::change::set_flags;
use crate::hardware::Hardware;
use crate::search::{MOST_DEVICES, Planner, Search, print};
use crate::setup::{Extras, Program, Setup};
use manifest::{Loaded, Manifest};

/// Maximum number of remedies.
const NAMED: usize = 5;

/// Changes with which a rank reserves at most `limits`: small ones or another topology; else more GPUs.
pub fn advice(loaded: &Loaded, limits: MemoryLimits, hw: &'static Hardware) -> String {
    let effective = &*loaded.effective;
    let manifest = &loaded.manifest;
    let setup = &Setup::new(manifest, Program::Gptrain, hw);
    let small = Advisor { effective, manifest, setup, limits }.remedies();
    if small.is_empty() {
        return suggest_more_gpus(manifest, setup, limits);
    }
    small
        .iter()
        .take(NAMED)
        .map(|change| format!("{} ({})", set_flags(&change.sets), change.bytes))
        .collect::<Vec<_>>()
        .join("\n      or ")
}

/// The fewest GPUs.
fn suggest_more_gpus(m: &Manifest, setup: &Setup, limits: MemoryLimits) -> String {
    let planner = Planner::for_gptrain(m, limits);
    let samples = m.train.samples;
    let search = Search::new(planner, setup, m.batch.ramp(), samples, Extras::default());
    let ranks = setup.ranks();
    match search.find_fewest_devices(MOST_DEVICES) {
        Some(found) => format!(
            "no topology over {ranks} GPUs fits; {} GPUs hold it: {}",
            found.best.setup.ranks(),
            set_flags(&print::sets(m, &found.best.setup))
        ),
        None => "no topology over any number of such GPUs fits: make the model smaller".to_string(),
    }
}
