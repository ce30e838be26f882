//! Remedies in words if gptrain cannot reserve its memory: small changes of the manifest, or another
//! topology, each checked by a dry run.

use super::dry_run::Room;
use super::ladder::{Change, Ladder};
use crate::change::flags_of;
use crate::hardware::Hardware;
use crate::search::{MOST_DEVICES, Planner, Search, print};
use crate::setup::{Extras, Program, Setup};
use manifest::{Loaded, Manifest};

/// Maximum number of remedies.
const NAMED: usize = 5;

/// Changes with which a rank reserves at most `room`: small ones; else another topology.
pub fn advice(loaded: &Loaded, room: Room, hw: &'static Hardware) -> String {
    let (effective, manifest) = (&*loaded.effective, &loaded.manifest);
    let setup = &Setup::of(manifest, Program::Gptrain, hw);
    let small = Ladder { effective, manifest, setup, room }.remedies();
    if small.is_empty() {
        return another_topology(manifest, setup, room);
    }
    let step = |change: &Change| format!("{} ({})", flags_of(&change.sets), change.bytes);
    small.iter().take(NAMED).map(step).collect::<Vec<_>>().join("\n      or ")
}

/// Fastest topology over as many GPUs; else the fewest GPUs.
fn another_topology(m: &Manifest, setup: &Setup, room: Room) -> String {
    let search = search(m, setup, room);
    let ranks = setup.ranks();
    if let Some(found) = same_devices(m, setup, room) {
        return format!("no small change is enough; over {ranks} GPUs this topology fits: {found}");
    }
    match search.fewest(MOST_DEVICES) {
        Some(found) => format!(
            "no topology over {ranks} GPUs fits; {} GPUs hold it: {}",
            found.setup.ranks(),
            flags_of(&print::sets(m, &found.setup))
        ),
        None => "no topology over any number of such GPUs fits: make the model smaller".to_string(),
    }
}

/// The flags of the fastest cut over as many GPUs.
pub fn same_devices(m: &Manifest, setup: &Setup, room: Room) -> Option<String> {
    let found = search(m, setup, room).first(setup.ranks());
    found.map(|found| flags_of(&print::sets(m, &found.setup)))
}

fn search<'a>(m: &'a Manifest, setup: &'a Setup, room: Room) -> Search<'a> {
    let planner = Planner::Gptrain { manifest: m, room };
    let (ramp, samples) = (m.batch.ramp(), m.train.samples);
    Search::new(planner, setup, ramp, samples, Extras::default())
}
