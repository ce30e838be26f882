//! The fastest cuts over the run, and the simplest of those that are about as fast.

use super::{Candidate, Evaluated, Planned, Ranking, Search};
use crate::setup::{Moments, Setup};
use crate::view::GIB;
use manifest::LayerSplit;
use rayon::prelude::*;
use std::cmp::Reverse;

/// Share by which cuts of one model that count as equally fast may differ. The error bar is mostly common
/// to them, so it says nothing of their order.
pub const TIE: f64 = 0.02;

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
        let Candidate { seconds, ref setup, .. } = fastest.candidate;
        let near = 1.0 + TIE;
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
    /// Fastest cuts over the run, at most `most` of them, the fastest first. None if no cut fits.
    pub(super) fn rank_fastest(&self, cuts: &[Setup], most: usize) -> Option<Ranking> {
        let fastest = self.fastest_of(cuts, most).into_iter();
        let mut best: Vec<Planned> = fastest.map(|cut| self.plan_candidate(cut)).collect();
        best.sort_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
        let equal = Equal::new(best.first()?);
        let equal = best.iter().filter(|planned| equal.includes(planned));
        Some(Ranking {
            cuts: cuts.len(),
            only_smaller: false,
            equal: equal.count(),
            simplest: None,
            pareto: Vec::new(),
            in_doubt: None,
            best,
        })
    }

    /// The same, with the simplest of the equally fast cuts if that is not the first.
    pub(super) fn rank_with_simplest(&self, cuts: &[Setup], most: usize) -> Option<Ranking> {
        let mut found = self.rank_fastest(cuts, most)?;
        let first = &found.best[0];
        let equal = Equal::new(first);
        found.simplest = self
            .find_simplest(cuts, equal)
            .filter(|simplest| is_simpler(simplest, first) || !equal.leaves_room(&first.candidate));
        Some(found)
    }

    /// The simplest of the equally fast cuts that leave room.
    fn find_simplest(&self, cuts: &[Setup], equal: Equal) -> Option<Planned> {
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
            let mut found = found.into_iter().map(|one| self.plan_candidate(one));
            if let Some(planned) = found.find(|planned| equal.includes(planned)) {
                return Some(planned);
            }
        }
        None
    }
}

fn is_simpler(a: &Planned, b: &Planned) -> bool {
    splits_key(&a.candidate.setup) < splits_key(&b.candidate.setup)
}

/// Order of cuts by what they split and save, the simplest first: states in the host's memory and other
/// extras, ZeRO above 1, ranks that share a replica, the rest, and smaller micro-batches.
pub(super) fn splits_key(s: &Setup) -> impl Ord + use<> {
    let t = &s.topology;
    let extras = (t.offload.what as usize, s.moments == Moments::Adam8bit, t.compression.is_some());
    let sharded = if t.zero > 1 { t.zero } else { 0 };
    let shape = (t.tensor * t.pipeline, t.pipeline, t.chunks, t.zero, t.sequence_parallel);
    let even = t.layer_split != LayerSplit::Uniform;
    (extras, (sharded, t.has_two_levels()), shape, even, t.recompute as usize, Reverse(s.micro))
}
