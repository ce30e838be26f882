//! Predictions with error bars: the cost formulas with fitted constants, what a program and a machine
//! do beside them, and what neighbouring measured runs correct. The further a run is from all that were
//! measured, the wider its bar.

use super::cost::constants::Constants;
use super::cost::{self, Memory, Time};
use super::fitted::{Fitted, MEMORY_SCATTER, Shares, scatter};
use super::learn::{Kernel, Neighbours, Point};
use super::rows::{self, Row};
use crate::setup::Setup;
use manifest::Recompute;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const TIME_KERNEL: Kernel =
    Kernel { near: (0.05, 0.7), wide: (0.14, 4.0), all: 0.15, family: 0.8, own: 0.25 };
const MEMORY_KERNEL: Kernel =
    Kernel { near: (0.03, 0.7), wide: (0.1, 4.0), all: 0.1, family: 0.4, own: 0.1 };
/// Half the width of an interval that holds nine in ten, in standard deviations: of Student's t with
/// 4 degrees of freedom, which residuals were fitted by.
const NINE_IN_TEN: f64 = 2.13;

/// Knows measured runs.
pub struct Predictor {
    fitted: Fitted,
    time: Residuals,
    memory: Residuals,
    /// Whoever asks has measured runs, and plans more of them.
    own: bool,
    /// How many runs of theirs it learned time and memory from.
    pub learned: (usize, usize),
}

/// What a setup will take.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// By the formulas alone.
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

static SHIPPED: LazyLock<Predictor> =
    LazyLock::new(|| Predictor::new(Fitted::shipped(), &rows::shipped(), &[]));

impl Predictor {
    /// Of the shipped measurements.
    pub fn shipped() -> &'static Predictor {
        &SHIPPED
    }

    /// Before anything is measured.
    pub fn prior() -> Predictor {
        Predictor::new(&Fitted::prior(), &[], &[])
    }

    /// Of somebody's own runs, beside the shipped ones.
    pub fn calibrated(own: &[Row]) -> Predictor {
        Predictor::new(Fitted::shipped(), &rows::shipped(), &own.iter().collect::<Vec<_>>())
    }

    /// With what is left of these rows by what is fitted; `own` are of whoever asks.
    pub fn new(fitted: &Fitted, rows: &[&Row], own: &[&Row]) -> Predictor {
        let of = |rows: &[&Row], own: bool| -> (Vec<Left>, Vec<Left>) {
            let time = rows.iter().filter_map(|row| row.timing()).map(|(s, seconds)| {
                let predicted = cost::time(s, &fitted.constants.time).total();
                let left = (seconds / predicted).ln() - fitted.time.of(s);
                (s.hardware.name.clone(), point(s, scatter(s), own), left)
            });
            let memory = rows.iter().filter_map(|row| row.weight()).map(|(s, gb)| {
                let predicted = cost::memory(s, &fitted.constants.memory).reserved();
                let left = (gb / predicted).ln() - fitted.memory.of(s);
                (s.hardware.name.clone(), point(s, MEMORY_SCATTER, own), left)
            });
            (time.collect(), memory.collect())
        };
        let ((time, memory), (own_time, own_memory)) = (of(rows, false), of(own, true));
        Predictor {
            learned: (own_time.len(), own_memory.len()),
            own: !own.is_empty(),
            time: Residuals::new(TIME_KERNEL, [time, own_time].concat()),
            memory: Residuals::new(MEMORY_KERNEL, [memory, own_memory].concat()),
            fitted: fitted.clone(),
        }
    }

    pub fn constants(&self) -> &Constants {
        &self.fitted.constants
    }

    /// Whether it fits, without all else.
    pub fn fits(&self, s: &Setup) -> bool {
        cost::memory(s, &self.constants().memory).fits()
    }

    pub fn predict(&self, s: &Setup) -> Prediction {
        let time = cost::time(s, &self.constants().time);
        let memory = cost::memory(s, &self.constants().memory);
        let (longer, unsure) = self.correction(s, scatter(s), &self.time, &self.fitted.time);
        let (more, doubt) = self.correction(s, MEMORY_SCATTER, &self.memory, &self.fitted.memory);
        Prediction {
            seconds: time.total() * longer.exp(),
            gigabytes: memory.reserved() * more.exp(),
            seconds_error: (NINE_IN_TEN * unsure).exp_m1(),
            gigabytes_error: (NINE_IN_TEN * doubt).exp_m1(),
            fits: memory.fits(),
            time,
            memory,
        }
    }

    /// What is added to the formulas' logarithm, and its standard deviation.
    fn correction(&self, s: &Setup, scatter: f64, left: &Residuals, known: &Shares) -> (f64, f64) {
        let (own, asked) = (left.own && self.own, s);
        let (mean, deviation) = left.at(&s.hardware.name, &point(asked, scatter, own));
        (known.of(s) + mean, deviation.hypot(known.doubt(s, own)))
    }
}

/// A run's machine and place, and the logarithm of what was measured by what was predicted.
type Left = (String, Point, f64);

/// What is left of the runs of each machine.
struct Residuals {
    kernel: Kernel,
    /// Some are of whoever asks.
    own: bool,
    machines: BTreeMap<String, Neighbours>,
}

impl Residuals {
    fn new(kernel: Kernel, all: Vec<Left>) -> Residuals {
        let own = all.iter().any(|(_, point, _)| point.own);
        let mut machines: BTreeMap<String, (Vec<Point>, Vec<f64>)> = BTreeMap::new();
        for (machine, point, left) in all {
            let (points, residuals) = machines.entry(machine).or_default();
            points.push(point);
            residuals.push(left);
        }
        let learned = |(machine, (points, residuals)): (String, (Vec<Point>, Vec<f64>))| {
            (machine, Neighbours::new(kernel, points, &residuals))
        };
        Residuals { kernel, own, machines: machines.into_iter().map(learned).collect() }
    }

    fn at(&self, machine: &str, point: &Point) -> (f64, f64) {
        let alone = || (0.0, self.kernel.alone(point));
        self.machines.get(machine).map_or_else(alone, |neighbours| neighbours.at(point))
    }
}

/// Where a setup stands among others.
fn point(s: &Setup, scatter: f64, own: bool) -> Point {
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
        3.0 * s.numbers.bits().ln(),
        step(s.blocking),
    ];
    let period = s.regime.clone().unwrap_or_default();
    let kind = s.program.name().to_string();
    Point { place, family: format!("{kind} {period}"), kind, own, scatter }
}
