//! Search over all topologies (here: cuts) of a model on a number of devices, evaluated by gptrain's
//! dry run, or by the predictor of other programs. Cuts are evaluated in the order of a lower bound of their time,
//! until no other can be among the best.

mod simplest;
mod other_programs;
mod sizes;
mod exclusions;
pub mod print;

use super::days::{Days, plan_run};
use super::gptrain::bounds::{Bound, Bounds};
use super::gptrain::cuts;
use super::gptrain::dry_run::{self, MemoryLimits};
use super::gptrain::stage_times::StageTimes;
use super::predict::{Needs, Predict};
use super::setup::{Extras, Setup};
use super::verdict::{MemoryFit, OFFERED};
use manifest::{Manifest, Recompute};
use plan::length::LengthRamp;
use plan::ramp::Ramp;
use plan::segments::{BatchSchedule, MicroStages};
use rayon::prelude::*;
use std::sync::Arc;

/// Planner that evaluates cuts of a manifest.
#[derive(Clone, Copy)]
pub struct Planner<'a> {
    manifest: &'a Manifest,
    means: Means<'a>,
    /// Largest share of a plan's bar that may be beyond the memory.
    most_beyond: f64,
}

#[derive(Clone, Copy)]
enum Means<'a> {
    /// Dry run of the engine with each cut; a rank may reserve so much memory.
    DryRun(MemoryLimits),
    /// Predictor of another program.
    Predictor(&'a dyn Predict),
}

/// Cut that fits, or that may not fit if the search permits that.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub setup: Setup,
    /// Seconds of a step.
    pub seconds: f64,
    /// Error bar: nine in ten measurements are within this share of `seconds`.
    pub seconds_error: f64,
    /// Peak memory of a device over all ranks, as nvidia-smi shows it.
    pub bytes: f64,
    pub verdict: MemoryFit,
}

/// Candidate, its index in the list of cuts, and the times of its stages if gptrain trains.
struct Evaluated {
    candidate: Candidate,
    number: usize,
    times: Option<StageTimes>,
}

impl<'a> Planner<'a> {
    /// Planner of an estimate on the setup's hardware. `other` predicts the needs of another program.
    pub fn new(
        manifest: &'a Manifest,
        setup: &Setup,
        other: Option<&'a dyn Predict>,
    ) -> Planner<'a> {
        match other {
            None => Planner::for_gptrain(manifest, MemoryLimits::new(manifest, setup.hardware)),
            Some(other) => Planner { manifest, means: Means::Predictor(other), most_beyond: 0.0 },
        }
    }

    /// Planner of gptrain's own cuts, a rank of which may reserve at most `limits`.
    pub fn for_gptrain(manifest: &'a Manifest, limits: MemoryLimits) -> Planner<'a> {
        Planner { manifest, means: Means::DryRun(limits), most_beyond: 0.0 }
    }

    fn is_own(&self) -> bool {
        matches!(self.means, Means::DryRun(_))
    }

    fn fits(&self, setup: &Setup) -> bool {
        match self.means {
            Means::DryRun(limits) => dry_run::fits(&cuts::manifest(self.manifest, setup), limits),
            Means::Predictor(predictor) => self.permits(predictor.verdict(setup)),
        }
    }

    fn permits(&self, verdict: MemoryFit) -> bool {
        verdict.share_beyond() <= self.most_beyond
    }

    /// None if it does not fit.
    fn evaluate(&self, setup: &Setup, number: usize) -> Option<Evaluated> {
        let setup = setup.clone();
        match self.means {
            Means::DryRun(limits) => {
                let stages =
                    dry_run::stages_within(&cuts::manifest(self.manifest, &setup), limits)?;
                let around = setup.hardware.context_mib * 1048576.0;
                let times = StageTimes::new(&stages, &setup);
                let candidate = Candidate {
                    seconds: times.seconds(setup.micros()),
                    seconds_error: dry_run::error(setup.hardware, setup.ranks()),
                    bytes: dry_run::peak(&stages).1.0 as f64 + around,
                    verdict: MemoryFit::Fits,
                    setup,
                };
                Some(Evaluated { candidate, number, times: Some(times) })
            }
            // Memory first: it is cheap, and most cuts need too much.
            Means::Predictor(predictor) => self.permits(predictor.verdict(&setup)).then(|| {
                let Needs { seconds, seconds_error, bytes, verdict } = predictor.needs(&setup);
                let candidate = Candidate { setup, seconds, seconds_error, bytes, verdict };
                Evaluated { candidate, number, times: None }
            }),
        }
    }
}

/// Progress of a search.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// Numbers of evaluated and of all cuts; seconds per step of the fastest.
    Cuts {
        evaluated: usize,
        cuts: usize,
        fastest: Option<f64>,
    },
    /// No cut fits on this number of devices.
    TooFew(usize),
    /// A model with this number of parameters fits, or no model of its width does.
    Fits(u64),
    FitsNot(u64),
}

/// Receives the progress of a search.
pub type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

/// Search for the best cuts of the setup's model.
#[derive(Clone)]
pub struct Search<'a> {
    planner: Planner<'a>,
    setup: &'a Setup,
    /// Batches of the run, all of which must be divisible.
    ramp: Ramp,
    /// Length of the run.
    samples: u64,
    /// Extras to try in addition to the setup's settings.
    extras: Extras,
    /// Bounds of gptrain's cuts of this model.
    bounds: Option<Arc<Bounds<'a>>>,
    watch: Option<Watch<'a>>,
}

/// Candidate, evaluated over its whole run.
#[derive(Clone, Debug)]
pub struct Planned {
    pub candidate: Candidate,
    pub days: Days,
}

/// Cut of the fewest devices, or of the largest model.
#[derive(Clone, Debug)]
pub struct Answer {
    /// It fits, or its verdict says how much of its bar does not.
    pub best: Candidate,
    /// Cut over fewer devices, or of a larger model, whose figure of memory fits, but not its whole bar.
    pub in_doubt: Option<Candidate>,
}

impl Answer {
    fn without_doubt(best: Candidate) -> Answer {
        Answer { best, in_doubt: None }
    }
}

/// Best cuts over some devices, and over fewer devices if that saves money.
#[derive(Debug)]
pub struct Ranking {
    /// Number of all cuts.
    pub cuts: usize,
    /// Whether no cut fitted without `Extras::SMALLER`.
    pub only_smaller: bool,
    /// Fastest cuts over the run, the fastest first.
    pub best: Vec<Planned>,
    /// Number of `best` that are about as fast as the first.
    pub equal: usize,
    /// Simplest cut that is about as fast as the first and leaves room, if that is another.
    pub simplest: Option<Planned>,
    /// Best cut of each number of devices that is faster or cheaper than all others.
    pub pareto: Vec<Planned>,
    /// Fastest cut that is faster than all these, and whose figure of memory fits, but not its whole bar.
    pub in_doubt: Option<Planned>,
}

/// Maximum number of devices.
pub const MOST_DEVICES: usize = 65536;

/// Factor of devices up to which a plan without doubt about its memory is tried.
const MORE: usize = 8;

/// Number of cuts with the fastest steps that are evaluated over the whole run.
const BEST: usize = 12;

/// Numbers of nodes between two others that a search for a deadline tries at once.
const STEPS: usize = 8;

/// Number of cuts whose whole bounds are computed at once.
const BOUNDED: usize = 512;

impl<'a> Search<'a> {
    pub fn new(
        planner: Planner<'a>,
        setup: &'a Setup,
        ramp: Ramp,
        samples: u64,
        extras: Extras,
    ) -> Search<'a> {
        let search = Search { planner, setup, ramp, samples, extras, bounds: None, watch: None };
        search.with_new_bounds()
    }

    /// Reports its progress to `watch`.
    pub fn with_watch(self, watch: Watch<'a>) -> Search<'a> {
        Search { watch: Some(watch), ..self }
    }

    /// The same search without cached results of its model.
    fn with_new_bounds(&self) -> Search<'a> {
        let bounds = match self.planner.means {
            Means::DryRun(limits) => {
                Some(Arc::new(Bounds::new(self.planner.manifest, self.ramp, limits)))
            }
            Means::Predictor(_) => None,
        };
        Search { bounds, ..self.clone() }
    }

    /// Search for a model with layers of the same width.
    fn for_model<'b>(&self, setup: &'b Setup) -> Search<'b>
    where
        'a: 'b,
    {
        Search { setup, ..self.clone() }
    }

    /// All cuts that fit on exactly `devices`, the fastest first.
    pub fn all(&self, devices: usize) -> Vec<Candidate> {
        let all = self.find_fastest(devices, usize::MAX).into_iter();
        all.map(|evaluated| evaluated.candidate).collect()
    }

    /// Cuts with the fastest steps over exactly `devices`, at most `most` of them.
    fn find_fastest(&self, devices: usize, most: usize) -> Vec<Evaluated> {
        self.fastest_of(&self.cuts(devices), most)
    }

    fn fastest_of(&self, cuts: &[Setup], most: usize) -> Vec<Evaluated> {
        base::threads::init_rayon();
        let sorted = |mut order: Vec<(usize, f64)>| {
            order.sort_by(|a, b| a.1.total_cmp(&b.1));
            order
        };
        let passes = cuts.par_iter().enumerate();
        let order = sorted(passes.map(|(i, cut)| (i, self.passes_bound(cut))).collect());
        let slowest = |best: &[Evaluated]| {
            best.get(most - 1)
                .map_or(f64::INFINITY, |last| last.candidate.seconds)
        };
        let (mut best, mut evaluated): (Vec<Evaluated>, usize) = (Vec::new(), 0);
        for group in order.chunks(BOUNDED) {
            // All others take at least as long as this one.
            if group[0].1 > slowest(&best) {
                break;
            }
            let bounded = group
                .par_iter()
                .with_max_len(1)
                .filter_map(|(i, _)| Some((*i, self.bound(&cuts[*i])?.seconds)));
            for some in sorted(bounded.collect()).chunks(4 * rayon::current_num_threads()) {
                if some[0].1 > slowest(&best) {
                    break;
                }
                let some = some.par_iter().with_max_len(1);
                let found: Vec<Evaluated> = some
                    .filter_map(|(i, _)| self.planner.evaluate(&cuts[*i], *i))
                    .collect();
                best.extend(found);
                let key = |evaluated: &Evaluated| (evaluated.candidate.seconds, evaluated.number);
                best.sort_by(|a, b| key(a).partial_cmp(&key(b)).expect("seconds are numbers"));
                best.truncate(most);
            }
            evaluated += group.len();
            let fastest = best.first().map(|evaluated| evaluated.candidate.seconds);
            self.report(Progress::Cuts { evaluated, cuts: order.len(), fastest });
        }
        best
    }

    fn report(&self, progress: Progress) {
        if let Some(watch) = self.watch {
            watch(progress);
        }
    }

    /// Lower bound of a cut's seconds that needs few dry runs.
    fn passes_bound(&self, cut: &Setup) -> f64 {
        self.bounds
            .as_ref()
            .map_or(0.0, |bounds| bounds.passes_seconds(cut))
    }

    /// None if the cut needs too much memory.
    fn bound(&self, cut: &Setup) -> Option<Bound> {
        match &self.bounds {
            Some(bounds) => bounds.bound(cut),
            None => Some(Bound { seconds: 0.0, bytes: 0 }),
        }
    }

    /// Whether any cut fits; those that need least memory are evaluated first.
    fn any_fits(&self, devices: usize) -> bool {
        let mut cuts = self.cuts(devices);
        cuts.sort_by_key(|s| {
            let t = &s.topology;
            let saves = t.recompute != Recompute::Full;
            (s.micro, saves, !t.sequence_parallel, u8::MAX - t.zero, t.chunks)
        });
        cuts.par_iter()
            .with_max_len(1)
            .filter(|cut| {
                self.bounds
                    .as_ref()
                    .is_none_or(|bounds| bounds.may_fit(cut))
            })
            .any(|cut| self.planner.fits(cut))
    }

    fn cuts(&self, devices: usize) -> Vec<Setup> {
        let m = self.planner.manifest;
        match self.planner.means {
            Means::DryRun(_) => cuts::list(m, self.setup, self.ramp, devices, self.extras),
            Means::Predictor(_) => other_programs::cuts(m, self.setup, self.ramp, devices),
        }
    }

    /// The search with each permitted doubt about memory, from none. gptrain's own memory is exact.
    fn with_doubts(&self) -> impl Iterator<Item = Search<'a>> {
        let doubts = if self.planner.is_own() { &OFFERED[..1] } else { &OFFERED[..] };
        doubts.iter().map(|most| self.with_doubt(*most))
    }

    fn with_doubt(&self, most_beyond: f64) -> Search<'a> {
        Search { planner: Planner { most_beyond, ..self.planner }, ..self.clone() }
    }

    /// Best cut of `devices` over the whole run.
    fn find_best(&self, devices: usize) -> Option<Planned> {
        let cuts = self.cuts(devices);
        let mut found = self
            .with_doubts()
            .filter_map(|search| search.rank_fastest(&cuts, 1));
        Some(found.next()?.best.swap_remove(0))
    }

    /// Fastest cut of `devices`.
    pub fn first(&self, devices: usize) -> Option<Candidate> {
        self.find_fastest(devices, 1)
            .pop()
            .map(|evaluated| evaluated.candidate)
    }

    fn plan_candidate(&self, evaluated: Evaluated) -> Planned {
        let Evaluated { candidate, times, .. } = evaluated;
        let mut seconds = |setup: &Setup| match self.planner.means {
            Means::DryRun(_) => times.as_ref().expect("a dry run").seconds(setup.micros()),
            Means::Predictor(predictor) => predictor.needs(setup).seconds,
        };
        // Whole samples: a warm-up of their length is planned for one cut, by `estimate` without a search.
        let lengths = LengthRamp::constant(candidate.setup.model.seq_len);
        let micros = MicroStages::constant(candidate.setup.micro);
        let schedule = BatchSchedule { ramp: self.ramp, micros, lengths };
        let days = plan_run(&schedule, self.samples, &candidate.setup, &mut seconds);
        Planned { days, candidate }
    }

    /// Best cuts of `devices` and of fewer, for gptrain with `Extras::SMALLER` if no other cut fits; None
    /// if no cut fits.
    pub fn rank(&self, devices: usize) -> Option<Ranking> {
        let mut found = self.ranked(devices)?;
        let wider = found.only_smaller.then(|| self.with_memory_extras());
        let search = wider.as_ref().unwrap_or(self);
        found.pareto = search.pareto(devices, found.best[0].clone());
        found.in_doubt = self.find_faster_in_doubt(devices, &found);
        Some(found)
    }

    /// Fastest cut whose figure of memory fits, but not its whole bar, if it is faster than the best.
    fn find_faster_in_doubt(&self, devices: usize, found: &Ranking) -> Option<Planned> {
        let [none, some, _] = OFFERED;
        let best = &found.best[0];
        if self.planner.is_own() || best.candidate.verdict.share_beyond() > none {
            return None;
        }
        let search = self.with_doubt(some);
        let faster = search
            .rank_fastest(&search.cuts(devices), 1)?
            .best
            .swap_remove(0);
        (faster.days.seconds < (1.0 - simplest::TIE) * best.days.seconds).then_some(faster)
    }

    /// Best cuts of exactly `devices`.
    pub fn ranked(&self, devices: usize) -> Option<Ranking> {
        self.ranked_as_asked(devices).or_else(|| {
            let wider = self.with_memory_extras();
            let wanted = self.planner.is_own() && wider.extras != self.extras;
            let found = wanted.then(|| wider.ranked_as_asked(devices));
            Some(Ranking { only_smaller: true, ..found?? })
        })
    }

    /// The first `most` cuts of `ranked`, which may be more than it has.
    pub fn best_cuts(&self, devices: usize, most: usize) -> Vec<Candidate> {
        let ranked = |search: &Search| search.rank_fastest(&search.cuts(devices), most);
        let found = ranked(self).or_else(|| ranked(&self.with_memory_extras()));
        let best = found.map_or(Vec::new(), |found| found.best);
        best.into_iter().map(|planned| planned.candidate).collect()
    }

    /// Search with extras that need less memory.
    fn with_memory_extras(&self) -> Search<'a> {
        let extras = Extras { powersgd: self.extras.powersgd, ..Extras::SMALLER };
        Search { extras, ..self.clone() }
    }

    fn ranked_as_asked(&self, devices: usize) -> Option<Ranking> {
        let cuts = self.cuts(devices);
        let mut found = self
            .with_doubts()
            .filter_map(|search| search.rank_with_simplest(&cuts, BEST));
        found.next()
    }

    /// Days and GPU-hours for numbers of devices.
    fn pareto(&self, devices: usize, best: Planned) -> Vec<Planned> {
        let node = self.setup.per_node;
        let eighths = (1..8)
            .map(|part| devices * part / 8 / node * node)
            .filter(|n| *n > 0);
        let mut plans: Vec<Planned> = eighths
            .filter_map(|n| self.find_best(n))
            .chain([best])
            .collect();
        plans.sort_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
        let mut cheapest = f64::INFINITY;
        plans.retain(|planned| {
            let better = planned.days.device_hours() < cheapest;
            cheapest = cheapest.min(planned.days.device_hours());
            better
        });
        plans
    }

    /// Devices, days and cut of the best for numbers of devices around the plan's.
    pub fn scaling(&self) -> Vec<(usize, f64, String)> {
        let ranks = self.setup.ranks();
        let mut counts = vec![ranks / 8, ranks / 4, ranks / 2, ranks, 2 * ranks, 4 * ranks];
        counts.retain(|n| *n > 0);
        counts.dedup();
        let best = counts.into_iter().filter_map(|n| self.find_best(n));
        best.map(|p| (p.days.devices, p.days.days(), print::describe(&p.candidate.setup)))
            .collect()
    }

    /// Fewest whole nodes on which the model fits, with the cut; part of a node if that is enough.
    pub fn find_fewest_devices(&self, most: usize) -> Option<Answer> {
        let [none, some, all] = OFFERED;
        if self.planner.is_own() {
            return self.find_fewest_between(1, most).map(Answer::without_doubt);
        }
        let fewest = |doubt: f64, least: usize, most: usize| {
            self.with_doubt(doubt).find_fewest_between(least, most)
        };
        let found = fewest(some, 1, most).or_else(|| fewest(all, 1, most))?;
        let devices = found.setup.ranks();
        Some(match fewest(none, devices, most.min(MORE * devices)) {
            Some(sure) if sure.setup.ranks() == devices => Answer::without_doubt(sure),
            Some(sure) => Answer { best: sure, in_doubt: Some(found) },
            None => Answer::without_doubt(found),
        })
    }

    fn find_fewest_between(&self, least: usize, most: usize) -> Option<Candidate> {
        let node = self.setup.per_node;
        let part_of_node = (0..).map(|i| 1 << i).take_while(|n| *n < node);
        let nodes = (1..=most / node).map(|n| n * node);
        let mut numbers = part_of_node
            .chain(nodes)
            .filter(|devices| *devices >= least);
        let devices = numbers.find(|devices| {
            let fits = self.any_fits(*devices);
            if !fits {
                self.report(Progress::TooFew(*devices));
            }
            fits
        })?;
        self.first(devices)
    }

    /// Best plan over the fewest whole nodes, or part of a node, with which the run is `in_time`.
    /// Doubles the nodes until it is, and then tries at most `STEPS` numbers between the last two at a
    /// time. It does not try every number, so fewer nodes may also do if they divide the batch better.
    pub fn find_fewest_in_time(
        &self,
        most: usize,
        in_time: &dyn Fn(&Days) -> bool,
    ) -> Option<Planned> {
        let mut found = self
            .with_doubts()
            .filter_map(|search| search.find_fewest_in_time_as_permitted(most, in_time));
        found.next()
    }

    fn find_fewest_in_time_as_permitted(
        &self,
        most: usize,
        in_time: &dyn Fn(&Days) -> bool,
    ) -> Option<Planned> {
        let node = self.setup.per_node;
        let best = |devices: usize| {
            let ranked = self.rank_fastest(&self.cuts(devices), BEST);
            let mut plans = ranked.into_iter().flat_map(|ranked| ranked.best);
            let found = plans.find(|plan| in_time(&plan.days));
            if found.is_none() {
                self.report(Progress::TooFew(devices));
            }
            found
        };
        let part_of_node = (0..).map(|i| 1 << i).take_while(|n| *n < node);
        let nodes = (0..).map(|i| node << i).take_while(|n| *n < most);
        let mut below = 0;
        let mut found = None;
        for devices in part_of_node
            .chain(nodes)
            .filter(|n| *n < most)
            .chain([most])
        {
            found = best(devices);
            if found.is_some() {
                break;
            }
            below = devices;
        }
        let mut found = found?;
        loop {
            let between = found.days.devices.saturating_sub(below).saturating_sub(1) / node;
            if below < node || between == 0 {
                return Some(found);
            }
            let stride = between.div_ceil(STEPS) * node;
            let upper = found.days.devices;
            let mut fewer = None;
            for devices in (below + stride..upper).step_by(stride) {
                fewer = best(devices);
                if fewer.is_some() {
                    break;
                }
                below = devices;
            }
            match fewer {
                Some(fewer) => found = fewer,
                None if stride == node => return Some(found),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
