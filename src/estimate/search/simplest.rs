//! The simplest of the cuts that the plan cannot distinguish from the fastest.

use super::{Candidate, Evaluated, Planned, Ranking, Search};
use crate::setup::{Moments, Setup};
use crate::view::GIB;
use manifest::LayerSplit;
use rayon::prelude::*;
use std::cmp::Reverse;

/// Share of the error bar below which plans count as equally fast.
pub const TIE: f64 = 0.1;

/// Share of a device's memory that the simplest cut leaves free.
const FREE: f64 = 0.1;

/// Limits of the cuts that count as equally fast.
#[derive(Clone, Copy)]
struct Equal {
    /// Seconds of a step, and of the run.
    step: f64,
    run: f64,
    /// Bytes of a device.
    bytes: f64,
}

impl Equal {
    fn new(fastest: &Planned) -> Equal {
        let Candidate { seconds, seconds_error, ref setup, .. } = fastest.candidate;
        let near = 1.0 + TIE * seconds_error.min(1.0);
        Equal {
            step: near * seconds,
            run: near * fastest.days.seconds,
            bytes: (1.0 - FREE) * setup.hardware.memory_gib * GIB,
        }
    }

    fn includes(&self, planned: &Planned) -> bool {
        planned.days.seconds <= self.run
    }

    fn leaves_room(&self, candidate: &Candidate) -> bool {
        candidate.bytes <= self.bytes
    }
}

impl Search<'_> {
    /// Fastest cuts over the run, at most `most` of them, after the simplest of those that are equally
    /// fast. None if no cut fits.
    pub(super) fn rank_simplest_first(&self, cuts: &[Setup], most: usize) -> Option<Ranking> {
        let fastest = self.fastest_of(cuts, most).into_iter();
        let (numbers, mut best): (Vec<usize>, Vec<Planned>) = fastest
            .map(|evaluated| (evaluated.number, self.plan_run_of(evaluated)))
            .unzip();
        best.sort_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
        let equal = Equal::new(best.first()?);
        match self.find_simplest(cuts, &numbers, equal) {
            Some(other) => best.insert(0, other),
            None => {
                let ours = best
                    .iter()
                    .take_while(|planned| equal.includes(planned))
                    .enumerate();
                let simplest = ours
                    .min_by_key(|(_, planned)| {
                        let Planned { candidate, .. } = planned;
                        (!equal.leaves_room(candidate), splits_key(&candidate.setup))
                    })
                    .map_or(0, |(place, _)| place);
                best[..=simplest].rotate_right(1);
            }
        }
        best.truncate(most);
        let equal = best
            .iter()
            .filter(|planned| equal.includes(planned))
            .count();
        Some(Ranking { cuts: cuts.len(), only_smaller: false, equal, pareto: Vec::new(), best })
    }

    /// The simplest of the equally fast cuts that leave room, unless it is one of those evaluated so far.
    fn find_simplest(&self, cuts: &[Setup], evaluated: &[usize], equal: Equal) -> Option<Planned> {
        base::threads::init_rayon();
        let mut order: Vec<usize> = (0..cuts.len()).collect();
        order.sort_by_cached_key(|number| splits_key(&cuts[*number]));
        for some in order.chunks(4 * rayon::current_num_threads()) {
            let promising = some.par_iter().with_max_len(1).filter(|number| {
                let bound = self.bound(&cuts[**number]);
                bound.is_some_and(|b| b.seconds <= equal.step && b.bytes as f64 <= equal.bytes)
            });
            let found: Vec<Evaluated> = promising
                .filter_map(|number| self.planner.evaluate(&cuts[*number], *number))
                .filter(|evaluated| equal.leaves_room(&evaluated.candidate))
                .collect();
            let mut found = found
                .into_iter()
                .map(|one| (one.number, self.plan_run_of(one)));
            if let Some((number, planned)) = found.find(|(_, planned)| equal.includes(planned)) {
                return (!evaluated.contains(&number)).then_some(planned);
            }
        }
        None
    }
}

/// Order of cuts by what they split and save, the simplest first: states in the host's memory and other
/// extras, ZeRO above 1, ranks that share a replica, the rest, and smaller micro-batches.
pub(super) fn splits_key(s: &Setup) -> impl Ord + use<> {
    let t = &s.topology;
    let extras = (t.offload.what as usize, s.moments == Moments::Adam8bit, t.compression.is_some());
    let sharded = if t.zero > 1 { t.zero } else { 0 };
    let shape = (t.tensor * t.pipeline, t.pipeline, t.chunks, t.zero, t.sequence_parallel);
    let even = t.layer_split != LayerSplit::Uniform;
    (extras, sharded, shape, even, t.recompute as usize, Reverse(s.micro))
}
