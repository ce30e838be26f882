//! What to do where gptrain's memory cannot be reserved: small changes of the manifest, or another
//! cut, which its own engine was run dry for.

use super::dry_run::{self, Room};
use crate::base::Bytes;
use crate::estimate::change::smaller_steps;
use crate::estimate::hardware::Hardware;
use crate::estimate::search::{Candidate, MOST_DEVICES, Planner, Search, print};
use crate::estimate::setup::{Program, Setup};
use crate::manifest::{self, Loaded, Manifest};
use std::path::Path;

/// A changed manifest.
#[derive(Clone, Debug)]
struct Remedy {
    /// As `--set` takes them.
    sets: Vec<String>,
    /// Of the rank that reserves most.
    bytes: Bytes,
    /// Of the rank that reserves most on its host.
    host: Bytes,
    /// Of a step.
    seconds: f64,
    manifest: Manifest,
}

/// As many remedies are named.
const NAMED: usize = 5;

/// In words, what fits where a rank may reserve at most `room`: small changes; else the fastest cut
/// over as many GPUs; else the fewest GPUs.
pub fn advice(loaded: &Loaded, room: Room, hw: &'static Hardware) -> String {
    let small = remedies(loaded, room, hw);
    if !small.is_empty() {
        let step = |remedy: &Remedy| format!("{} ({})", flags(&remedy.sets), remedy.bytes);
        return small.iter().take(NAMED).map(step).collect::<Vec<_>>().join("\n      or ");
    }
    let m = &loaded.manifest;
    let setup = Setup::of(m, Program::Gptrain, hw);
    let planner = Planner::Gptrain { manifest: m, room };
    let search = Search { planner, setup: &setup, ramp: m.batch.ramp(), samples: m.train.samples };
    let ranks = setup.ranks();
    let sets = |found: &Candidate| flags(&print::sets(&found.setup));
    if let Some(found) = search.all(ranks).first() {
        return format!(
            "no small change is enough; over {ranks} GPUs this cut fits: {}",
            sets(found)
        );
    }
    match search.fewest(MOST_DEVICES) {
        Some(found) => format!(
            "no cut over {ranks} GPUs fits; {} GPUs hold it: {}",
            found.setup.ranks(),
            sets(&found)
        ),
        None => "no cut over any number of such GPUs fits: make the model smaller".to_string(),
    }
}

fn flags(sets: &[String]) -> String {
    sets.iter().map(|set| format!("--set {set}")).collect::<Vec<_>>().join(" ")
}

/// The smallest changes with which every rank reserves at most `room`, cheapest first: single ones,
/// or pairs where no single one is enough.
fn remedies(loaded: &Loaded, room: Room, hw: &'static Hardware) -> Vec<Remedy> {
    let smaller = |m: &Manifest, sets: &[String]| smaller_manifests(m, sets, &loaded.effective, hw);
    let first = smaller(&loaded.manifest, &[]);
    let fitting = |changes: Vec<Remedy>| -> Vec<Remedy> {
        changes
            .into_iter()
            .filter(|change| change.bytes <= room.device && change.host <= room.host)
            .collect()
    };
    let mut found = fitting(first.clone());
    if found.is_empty() {
        found = fitting(first.iter().flat_map(|one| smaller(&one.manifest, &one.sets)).collect());
    }
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    found.dedup_by(|a, b| (a.bytes, a.seconds) == (b.bytes, b.seconds));
    found
}

/// Changes of `m`, which is the text with `sets`, that are valid and reserve less.
fn smaller_manifests(
    m: &Manifest,
    sets: &[String],
    effective: &str,
    hw: &'static Hardware,
) -> Vec<Remedy> {
    let now = dry_run::peak(&dry_run::stages(m)).1;
    let change = |more: Vec<String>| {
        let sets = [sets, &more].concat();
        let loaded = manifest::parse(effective, "the manifest", Path::new("."), &sets).ok()?;
        let m = loaded.manifest;
        let stages = dry_run::stages(&m);
        let setup = Setup::of(&m, Program::Gptrain, hw);
        let seconds = dry_run::seconds(&stages, &setup);
        let (bytes, host) = (dry_run::peak(&stages).1, dry_run::host_peak(&stages));
        Some(Remedy { sets, bytes, host, seconds, manifest: m })
    };
    let steps = smaller_steps(&Setup::of(m, Program::Gptrain, hw));
    let found = steps.into_iter().filter_map(|step| change(step.sets));
    found.filter(|change| change.bytes.0 < now.0).collect()
}
