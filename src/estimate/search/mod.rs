//! Every way to cut a model over so many devices, judged by the program's planner: gptrain's dry run,
//! or the predictor of other programs.

pub mod print;

use super::change::split;
use super::days::{Days, days, through};
use super::gptrain::cuts;
use super::gptrain::dry_run::{self, Room};
use super::others::predict::Predictor;
use super::setup::{Extras, Program, Setup};
use super::view::GB;
use manifest::{LayerSplit, Manifest, Model, Recompute, Schedule};
use plan::ramp::Ramp;
use rayon::prelude::*;

/// Knows what a cut needs.
#[derive(Clone, Copy)]
pub enum Planner<'a> {
    /// The engine runs dry for the manifest with each cut; a rank may reserve at most `room`.
    Gptrain {
        manifest: &'a Manifest,
        room: Room,
    },
    Other(&'a Predictor),
}

/// A cut that fits.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub setup: Setup,
    /// Of a step; nine in ten measurements are within this share of it.
    pub seconds: f64,
    pub seconds_error: f64,
    /// Of the device that needs most, as seen from outside.
    pub bytes: f64,
}

impl<'a> Planner<'a> {
    /// Of what is estimated on the setup's hardware.
    pub fn new(m: &'a Manifest, setup: &Setup, predictor: &'a Predictor) -> Planner<'a> {
        match setup.program {
            Program::Gptrain => Planner::Gptrain { manifest: m, room: Room::of(m, setup.hardware) },
            Program::Other(_) => Planner::Other(predictor),
        }
    }

    fn fits(&self, setup: &Setup) -> bool {
        match self {
            Planner::Gptrain { manifest, room } => {
                dry_run::fits(&cuts::manifest(manifest, setup), *room)
            }
            Planner::Other(predictor) => predictor.fits(setup),
        }
    }

    /// None where it does not fit.
    fn candidate(&self, setup: Setup) -> Option<Candidate> {
        match self {
            Planner::Gptrain { manifest, room } => {
                let stages = dry_run::stages_within(&cuts::manifest(manifest, &setup), *room)?;
                let around = setup.hardware.context_mib * 1048576.0;
                Some(Candidate {
                    seconds: dry_run::seconds(&stages, &setup),
                    seconds_error: dry_run::error(setup.hardware),
                    bytes: dry_run::peak(&stages).1.0 as f64 + around,
                    setup,
                })
            }
            // Memory first: it is cheap, and most cuts need too much.
            Planner::Other(predictor) => predictor.fits(&setup).then(|| {
                let p = predictor.predict(&setup);
                let (seconds, seconds_error) = (p.seconds, p.seconds_error);
                Candidate { setup, seconds, seconds_error, bytes: p.gigabytes * GB }
            }),
        }
    }

    fn days(&self, setup: &Setup, ramp: Ramp, samples: u64) -> Days {
        match self {
            Planner::Gptrain { manifest, .. } => {
                let stages = dry_run::stages(&cuts::manifest(manifest, setup));
                through(ramp, samples, setup, &mut |setup| dry_run::seconds(&stages, setup))
            }
            Planner::Other(predictor) => days(predictor, setup, ramp, samples),
        }
    }
}

/// What is searched for: the best cuts of the setup's model.
pub struct Search<'a> {
    pub planner: Planner<'a>,
    pub setup: &'a Setup,
    /// Every batch of it must divide.
    pub ramp: Ramp,
    /// Length of the run.
    pub samples: u64,
    /// Tried beside what the setup has.
    pub extras: Extras,
}

/// A candidate through its run.
#[derive(Clone, Debug)]
pub struct Planned {
    pub candidate: Candidate,
    pub days: Days,
}

/// The cuts of some devices, and of fewer devices where that saves.
pub struct Ranking {
    /// How many cuts fit.
    pub fitting: usize,
    /// Nothing fitted without `Extras::SMALLER`.
    pub only_smaller: bool,
    /// The fastest through the run.
    pub best: Vec<Planned>,
    /// The best of each number of devices that is faster or cheaper than all others.
    pub pareto: Vec<Planned>,
}

/// More devices than this are not tried.
pub const MOST_DEVICES: usize = 65536;

/// As many of the fastest steps are planned through the run.
const BEST: usize = 12;

impl Search<'_> {
    /// All that fit on exactly `devices`, fastest first.
    pub fn all(&self, devices: usize) -> Vec<Candidate> {
        base::threads::ready_rayon();
        let cuts = self.cuts(devices).into_par_iter();
        let mut found: Vec<Candidate> =
            cuts.filter_map(|cut| self.planner.candidate(cut)).collect();
        found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        found
    }

    /// Whether any cut fits: those that need least memory are asked first.
    fn any_fits(&self, devices: usize) -> bool {
        let mut cuts = self.cuts(devices);
        cuts.sort_by_key(|s| {
            let t = &s.topology;
            let saves = t.recompute != Recompute::Full;
            (s.micro, saves, !t.sequence_parallel, u8::MAX - t.zero, t.chunks)
        });
        cuts.par_iter().with_max_len(1).any(|cut| self.planner.fits(cut))
    }

    fn cuts(&self, devices: usize) -> Vec<Setup> {
        match self.planner {
            Planner::Gptrain { .. } => cuts::all(self.setup, self.ramp, devices, self.extras),
            Planner::Other(_) => cuts_of_others(self.setup, self.ramp, devices),
        }
    }

    /// The best of so many devices, through the whole run.
    fn best(&self, devices: usize) -> Option<Planned> {
        self.all(devices).into_iter().next().map(|candidate| self.planned(candidate))
    }

    fn planned(&self, candidate: Candidate) -> Planned {
        Planned { days: self.planner.days(&candidate.setup, self.ramp, self.samples), candidate }
    }

    fn of<'b>(&'b self, setup: &'b Setup) -> Search<'b> {
        Search { setup, ..*self }
    }

    /// The best cuts of `devices`, of gptrain with `Extras::SMALLER` where nothing else fits; None where
    /// nothing fits.
    pub fn rank(&self, devices: usize) -> Option<Ranking> {
        self.rank_as_asked(devices).or_else(|| {
            let own = matches!(self.planner, Planner::Gptrain { .. });
            let extras = Extras { powersgd: self.extras.powersgd, ..Extras::SMALLER };
            let wider = (own && extras != self.extras).then_some(Search { extras, ..*self })?;
            Some(Ranking { only_smaller: true, ..wider.rank_as_asked(devices)? })
        })
    }

    fn rank_as_asked(&self, devices: usize) -> Option<Ranking> {
        let found = self.all(devices);
        let fitting = found.len();
        let fastest = found.into_iter().take(BEST).map(|candidate| self.planned(candidate));
        let mut best: Vec<Planned> = fastest.collect();
        best.sort_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
        let first = best.first()?.clone();
        Some(Ranking { fitting, only_smaller: false, pareto: self.pareto(devices, first), best })
    }

    /// Days against GPU-hours over numbers of devices.
    fn pareto(&self, devices: usize, best: Planned) -> Vec<Planned> {
        let node = self.setup.per_node;
        let eighths = (1..8).map(|part| devices * part / 8 / node * node).filter(|n| *n > 0);
        let mut all: Vec<Planned> = eighths.filter_map(|n| self.best(n)).chain([best]).collect();
        all.sort_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
        let mut cheapest = f64::INFINITY;
        all.retain(|planned| {
            let better = planned.days.device_hours() < cheapest;
            cheapest = cheapest.min(planned.days.device_hours());
            better
        });
        all
    }

    /// Devices, days and cut of the best for numbers of devices around the plan's.
    pub fn scaling(&self) -> Vec<(usize, f64, String)> {
        let ranks = self.setup.ranks();
        let mut counts = vec![ranks / 8, ranks / 4, ranks / 2, ranks, 2 * ranks, 4 * ranks];
        counts.retain(|n| *n > 0);
        counts.dedup();
        let best = counts.into_iter().filter_map(|n| self.best(n));
        best.map(|p| (p.days.devices, p.days.days(), print::way(&p.candidate.setup))).collect()
    }

    /// The fewest whole nodes that hold the model, and how; part of a node where that is enough.
    pub fn fewest(&self, most: usize) -> Option<Candidate> {
        let node = self.setup.per_node;
        let part_of_node = (0..).map(|i| 1 << i).take_while(|n| *n < node);
        let nodes = (1..=most / node).map(|n| n * node);
        let devices = part_of_node.chain(nodes).find(|devices| self.any_fits(*devices))?;
        self.all(devices).into_iter().next()
    }

    /// The widest model of the setup's proportions that fits: layers, head dimension, heads a key-value
    /// head, and feed-forward width by hidden width. Layers are rounded to what a pipeline on these
    /// devices divides.
    pub fn largest(&self, devices: usize) -> Option<Candidate> {
        let sized = |width: usize, unit: usize| sized(self.setup, width, unit);
        let units: Vec<usize> =
            (1..=24).rev().filter(|unit| devices.is_multiple_of(*unit)).collect();
        let (mut found, mut misses) = (None, 0);
        for width in 1..=512 {
            let mut models = units.iter().map(|unit| sized(width, *unit));
            match models.find(|setup| self.of(setup).any_fits(devices)) {
                Some(setup) => (found, misses) = (Some(setup), 0),
                // Small models may be too few layers for many devices; large ones need too much.
                None if found.is_some() => misses += 1,
                None => {}
            }
            if misses == 4 {
                break;
            }
        }
        self.of(&found?).all(devices).into_iter().next()
    }
}

/// A model of the setup's proportions with 8 heads for each `width`, or as many more as whole groups
/// take, and a multiple of `unit` layers.
fn sized(setup: &Setup, width: usize, unit: usize) -> Setup {
    let m = &setup.model;
    let group = m.heads / m.heads().kv;
    let heads = (8 * width).next_multiple_of(group);
    let hidden = match m.head_dim {
        Some(_) => (heads * m.hidden / m.heads).next_multiple_of(64),
        None => heads * m.heads().dim.next_multiple_of(8),
    };
    // Widths that are no multiple of the hidden width are rounded as Llama's.
    let ffn_hidden = match m.ffn_hidden.is_multiple_of(m.hidden) {
        true => m.ffn_hidden / m.hidden * hidden,
        false => (m.ffn_hidden * hidden / m.hidden).next_multiple_of(256),
    };
    let ratio = m.hidden as f64 / m.layers as f64;
    let layers = ((hidden as f64 / ratio).round() as usize).next_multiple_of(unit);
    let kv_heads = m.kv_heads.map(|_| heads / group);
    let model = Model { heads, kv_heads, hidden, ffn_hidden, layers, ..m.clone() };
    Setup { model, ..setup.clone() }.cut(|_| ())
}

/// Every cut of another program over exactly `devices`.
fn cuts_of_others(setup: &Setup, ramp: Ramp, devices: usize) -> Vec<Setup> {
    let mut all = Vec::new();
    for (tensor, pipeline, data) in setup.grids(devices) {
        let cut = split(setup.model.layers, pipeline);
        if cut == LayerSplit::Balanced {
            continue;
        }
        let base = setup.clone().cut(|t| {
            (t.tensor, t.pipeline, t.data) = (tensor, pipeline, data);
            t.layer_split = cut;
            t.sequence_parallel &= tensor > 1;
        });
        all.extend(choices(&base, ramp));
    }
    all
}

/// Micro-batch, ZeRO, recomputation and schedule of a grid, of another program.
fn choices(base: &Setup, ramp: Ramp) -> Vec<Setup> {
    let pipeline = base.topology.pipeline;
    let mut all = Vec::new();
    let micros = [1, 2, 4, 8, 16].into_iter().filter(|micro| {
        let at_once = micro * base.topology.data;
        let fused = (base.model.heads / base.topology.tensor * micro).is_multiple_of(4);
        fused && ramp.sizes().all(|size| size.is_multiple_of(at_once))
    });
    let mut schedules = vec![(Schedule::OneFOneB, 1)];
    for &chunks in base.program.chunks().iter().filter(|_| pipeline > 1) {
        if base.model.layers.is_multiple_of(chunks * pipeline) {
            schedules.push((Schedule::Interleaved, chunks));
        }
    }
    for micro in micros {
        for zero in base.program.zeros(pipeline) {
            for recompute in base.program.recomputes() {
                for (schedule, chunks) in &schedules {
                    let mut setup = Setup { micro, ..base.clone() };
                    setup.topology.zero = if base.topology.data == 1 { 0 } else { *zero };
                    setup.topology.recompute = *recompute;
                    (setup.topology.schedule, setup.topology.chunks) = (*schedule, *chunks);
                    all.push(setup);
                }
            }
        }
    }
    all
}
