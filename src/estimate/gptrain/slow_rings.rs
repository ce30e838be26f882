//! Effect of a network whose rings of replicas are slower than its adapters (`ring_share`).

use super::prices;
use super::stage_times;
use crate::hardware::Hardware;
use crate::setup::Setup;
use crate::view::View;
use base::Seconds;

/// Share of a step by which slow rings make it longer, above which they are described.
const SEEN: f64 = 0.01;

/// Speed of the rings, and a step's time with and without them. None if all replicas are on one node, or
/// slow rings hardly matter.
pub fn describe(v: &View) -> Option<String> {
    let s = &v.setup;
    let hw = s.hardware;
    if s.topology.data == 1 || !hw.has_slow_rings() {
        return None;
    }
    let fast: &'static Hardware = Hardware { ring_share: 1.0, ..hw.clone() }.leak();
    let fast = Setup { hardware: fast, ..s.clone() };
    let [ring, adapters] = [s, &fast].map(|s| 8.0 * prices::replica_link(s).gb_s);
    if ring >= adapters {
        return None;
    }
    let [ours, without] = [s, &fast].map(|s| stage_times::seconds(&v.counted, s));
    let matters = ours > (1.0 + SEEN) * without;
    matters.then(|| {
        format!(
            "\nReplicas on several nodes: rings of {} reach {ring:.1} Gb/s per rank\n  \
         (ring_share {}), not {adapters:.1}; with those a step would take {}, not {}",
            hw.name,
            hw.ring_share,
            Seconds(without),
            Seconds(ours),
        )
    })
}
