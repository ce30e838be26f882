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

/// Changes with which a rank reserves at most `limits`: small ones; else another topology.
pub fn advice(loaded: &Loaded, limits: MemoryLimits, hw: &'static Hardware) -> String {
    let effective = &*loaded.effective;
    let manifest = &loaded.manifest;
    let setup = &Setup::new(manifest, Program::Gptrain, hw);
    let small = Advisor { effective, manifest, setup, limits }.remedies();
    if small.is_empty() {
        return suggest_topology(manifest, setup, limits);
    }
    small
        .iter()
        .take(NAMED)
        .map(|change| format!("{} ({})", set_flags(&change.sets), change.bytes))
        .collect::<Vec<_>>()
        .join("\n      or ")
}

/// Fastest topology over as many GPUs; else the fewest GPUs.
fn suggest_topology(m: &Manifest, setup: &Setup, limits: MemoryLimits) -> String {
    let search = search(m, setup, limits);
    let ranks = setup.ranks();
    if let Some(found) = flags_of_fastest_cut(m, setup, limits) {
        return format!("no small change is enough; over {ranks} GPUs this topology fits: {found}");
    }
    match search.find_fewest_devices(MOST_DEVICES) {
        Some(found) => format!(
            "no topology over {ranks} GPUs fits; {} GPUs hold it: {}",
            found.setup.ranks(),
            set_flags(&print::sets(m, &found.setup))
        ),
        None => "no topology over any number of such GPUs fits: make the model smaller".to_string(),
    }
}

/// The flags of the fastest cut over as many GPUs.
pub fn flags_of_fastest_cut(m: &Manifest, setup: &Setup, limits: MemoryLimits) -> Option<String> {
    let found = search(m, setup, limits).first(setup.ranks());
    found.map(|found| set_flags(&print::sets(m, &found.setup)))
}

fn search<'a>(m: &'a Manifest, setup: &'a Setup, limits: MemoryLimits) -> Search<'a> {
    let planner = Planner::for_gptrain(m, limits);
    let ramp = m.batch.ramp();
    let samples = m.train.samples;
    Search::new(planner, setup, ramp, samples, Extras::default())
}
