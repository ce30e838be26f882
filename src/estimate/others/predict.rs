//! Predictions with error bars: the cost formulas with fitted constants, corrected by what
//! neighbouring measured runs say.

use super::cost::constants::{MEMORY, Prior, TIME};
use super::cost::{self, Constants, Memory, Time};
use super::learn::{Belief, Kernel, Neighbours, Point, fit};
use super::rows::{self, Row};
use crate::setup::Setup;
use manifest::Recompute;
use std::sync::LazyLock;

/// Memory is printed in whole GB and differs little between days.
const MEMORY_SCATTER: f64 = 0.025;
const TIME_KERNEL: Kernel = Kernel { near: 0.04, reach: 0.7, family: 0.8 };
const MEMORY_KERNEL: Kernel = Kernel { near: 0.03, reach: 0.7, family: 0.4 };
/// Half the width of an interval that holds nine in ten, in standard deviations: of Student's t with
/// 4 degrees of freedom, which residuals were fitted by.
const NINE_IN_TEN: f64 = 2.13;

/// Knows measured runs.
pub struct Predictor {
    pub constants: Constants,
    time: Neighbours,
    memory: Neighbours,
    /// How many runs it learned time and memory from.
    pub learned: (usize, usize),
}

/// What a setup will take.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Before the neighbours' correction.
    pub time: Time,
    pub memory: Memory,
    /// Per iteration.
    pub seconds: f64,
    /// Of the device that needs most, in GB of 1000 MiB as nvidia-smi and logs have it.
    pub gigabytes: f64,
    /// Nine in ten measurements are within this share of the prediction.
    pub seconds_error: f64,
    pub gigabytes_error: f64,
    pub fits: bool,
}

static SHIPPED: LazyLock<Predictor> = LazyLock::new(|| {
    let rows = rows::read(rows::SHIPPED, "shipped").expect("the shipped rows are well-formed");
    Predictor::new(&Constants::prior(), &rows.iter().collect::<Vec<_>>())
});

/// A table of fewer runs than this refines the shipped constants; of more, it has its own.
const WHOLE_TABLE: usize = 20;

impl Predictor {
    /// Of the shipped measurements.
    pub fn shipped() -> &'static Predictor {
        &SHIPPED
    }

    /// Before anything is measured.
    pub fn prior() -> Predictor {
        Predictor::new(&Constants::prior(), &[])
    }

    /// Of somebody's own runs. What they do not measure, time or memory, stays as shipped.
    pub fn calibrated(rows: &[Row]) -> Predictor {
        let timed = rows.iter().filter(|row| row.timing().is_some()).count();
        let start = match timed < WHOLE_TABLE {
            true => Predictor::shipped().constants.clone(),
            false => Constants::prior(),
        };
        let mut own = Predictor::new(&start, &rows.iter().collect::<Vec<_>>());
        let shipped = Predictor::shipped();
        if own.learned.0 == 0 {
            (own.time, own.constants.time) = (shipped.time.clone(), shipped.constants.time.clone());
        }
        if own.learned.1 == 0 {
            (own.memory, own.constants.memory) =
                (shipped.memory.clone(), shipped.constants.memory.clone());
        }
        own
    }

    /// Of these rows, those that say they may be used; `start` is believed before.
    pub fn new(start: &Constants, rows: &[&Row]) -> Predictor {
        let timed: Vec<(&Setup, f64)> = rows.iter().filter_map(|row| row.timing()).collect();
        let weighed: Vec<(&Setup, f64)> = rows.iter().filter_map(|row| row.weight()).collect();
        let scales: Vec<f64> = timed.iter().map(|(s, _)| scatter(s)).collect();
        let time = |k: &[f64]| -> Vec<f64> {
            timed.iter().map(|(s, t)| (t / cost::time(s, k).total()).ln()).collect()
        };
        let memory = |k: &[f64]| -> Vec<f64> {
            weighed.iter().map(|(s, gb)| (gb / cost::memory(s, k).reserved()).ln()).collect()
        };
        let constants = Constants {
            time: fit(&beliefs(TIME, &start.time), &scales, &time),
            memory: fit(
                &beliefs(MEMORY, &start.memory),
                &vec![MEMORY_SCATTER; weighed.len()],
                &memory,
            ),
        };
        let points = |all: &[(&Setup, f64)], scatter: &dyn Fn(&Setup) -> f64| {
            all.iter().map(|(s, _)| point(s, scatter(s))).collect::<Vec<Point>>()
        };
        Predictor {
            time: Neighbours::new(TIME_KERNEL, points(&timed, &scatter), &time(&constants.time)),
            memory: Neighbours::new(
                MEMORY_KERNEL,
                points(&weighed, &|_| MEMORY_SCATTER),
                &memory(&constants.memory),
            ),
            constants,
            learned: (timed.len(), weighed.len()),
        }
    }

    /// Whether it fits, without all else.
    pub fn fits(&self, s: &Setup) -> bool {
        cost::memory(s, &self.constants.memory).fits()
    }

    pub fn predict(&self, s: &Setup) -> Prediction {
        let time = cost::time(s, &self.constants.time);
        let memory = cost::memory(s, &self.constants.memory);
        let (longer, unsure) = self.time.at(&point(s, scatter(s)));
        let (more, doubt) = self.memory.at(&point(s, MEMORY_SCATTER));
        Prediction {
            seconds: time.total() * longer.exp(),
            gigabytes: memory.reserved() * more.exp(),
            seconds_error: NINE_IN_TEN * unsure,
            gigabytes_error: NINE_IN_TEN * doubt,
            fits: memory.fits(),
            time,
            memory,
        }
    }
}

fn beliefs(priors: &[Prior], start: &[f64]) -> Vec<Belief> {
    let one = |(prior, value): (&Prior, &f64)| Belief { log: value.ln(), spread: prior.spread };
    priors.iter().zip(start).map(one).collect()
}

/// By what share a run's time differs from day to day. Op-by-op PyTorch's is known from days per
/// billion tokens, printed with two digits.
fn scatter(s: &Setup) -> f64 {
    s.hardware.scatter * if s.trainer().eager { 3.0 } else { 1.0 }
}

/// Where a setup stands among others.
fn point(s: &Setup, scatter: f64) -> Point {
    let (m, t) = (&s.model, &s.topology);
    let ln = |n: usize| (n as f64).ln();
    let step = |yes: bool| f64::from(u8::from(yes));
    let place = vec![
        ln(t.tensor),
        ln(t.pipeline),
        ln(t.data),
        ln(s.micro),
        0.5 * ln(s.global),
        0.5 * ln(m.layers),
        2.0 * ln(m.hidden),
        ln(m.heads),
        2.0 * ln(m.seq_len),
        step(s.odd_heads()),
        step(t.recompute == Recompute::Full),
        f64::from(t.zero),
        3.0 * s.trainer().place() as f64,
        3.0 * s.hardware.peak_tflops.ln(),
    ];
    let period = s.regime.clone().unwrap_or_default();
    Point { place, family: format!("{} {period}", s.hardware.name), scatter }
}
