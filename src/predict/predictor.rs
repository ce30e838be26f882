//! Predictions with error bars: the cost formulas with fitted constants, corrected by the residuals of
//! measured runs of the same program or machine (`fitted`, `learn`). The further a run is from all
//! measured ones, the wider its bar.

use super::cost::constants::Constants;
use super::cost::{self, Memory, Time};
use super::features;
use super::fitted;
use super::learn::{Features, Kernel, Neighbours};
use super::rows::{self, Row};
use estimate::hardware::Hardware;
use estimate::setup::Setup;
use estimate::verdict::MemoryFit;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};

/// Predictor fitted to measured runs.
pub struct Predictor {
    constants: Constants,
    time: Residuals,
    memory: Residuals,
    /// Whether the user measured runs with experts, and with context parallelism.
    measured: [bool; 2],
    /// Number of the user's own runs from which it learned time and memory.
    pub learned: (usize, usize),
}

/// Doubt, beside the bar, about runs with experts and with context parallelism, from which nothing was
/// learned. With that of experts, their bar is about that of an unknown program; both hold nine in ten of
/// every second published row. Of memory there is hardly a row.
const TIME_DOUBT: [f64; 2] = [0.5, 0.15];
const MEMORY_DOUBT: [f64; 2] = [0.4, 0.3];

/// Predicted time and memory of a setup.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Values by the formulas only.
    pub time: Time,
    pub memory: Memory,
    /// Seconds per iteration.
    pub seconds: f64,
    /// Memory of the device that needs most, in GB of 1000 MiB as in nvidia-smi and logs.
    pub gigabytes: f64,
    /// Nine in ten measurements are at most `1 + error` times the prediction, and at least the prediction
    /// divided by that.
    pub seconds_error: f64,
    pub gigabytes_error: f64,
    pub verdict: MemoryFit,
}

static SHIPPED: LazyLock<Predictor> =
    LazyLock::new(|| Predictor::new(fitted::shipped(), &rows::shipped(), &[]));

impl Predictor {
    /// Predictor from the shipped measurements.
    pub fn shipped() -> &'static Predictor {
        &SHIPPED
    }

    /// Predictor without measurements.
    pub fn prior() -> Predictor {
        Predictor::new(&Constants::prior(), &[], &[])
    }

    /// Predictor from the user's own runs and the shipped ones.
    pub fn calibrated(own: &[Row]) -> Predictor {
        Predictor::new(fitted::shipped(), &rows::shipped(), &own.iter().collect::<Vec<_>>())
    }

    /// Fits the residuals of `rows` under the constants; `own` marks the user's rows.
    pub fn new(constants: &Constants, rows: &[&Row], own: &[&Row]) -> Predictor {
        let mut time = Residuals::new(features::TIME);
        let mut memory = Residuals::new(features::MEMORY);
        let all = rows
            .iter()
            .map(|row| (row, false))
            .chain(own.iter().map(|row| (row, true)));
        for (row, own) in all {
            if let Some((s, seconds)) = row.timing() {
                let by_formula = cost::time(s, &constants.time);
                let residual = (seconds / by_formula.total()).ln();
                time.add(features::for_time(s, &by_formula, own), residual);
            }
            if let Some((s, gb)) = row.memory() {
                let by_formula = cost::memory(s, &constants.memory);
                let residual = (gb / by_formula.reserved()).ln();
                memory.add(features::for_memory(s, &by_formula, own), residual);
            }
        }
        let learned = (time.own, memory.own);
        let setups = || own.iter().filter_map(|row| row.setup.as_ref().ok());
        let measured =
            [setups().any(|s| s.mixture.is_some()), setups().any(|s| s.degrees.context > 1)];
        Predictor { constants: constants.clone(), time, memory, measured, learned }
    }

    pub fn constants(&self) -> &Constants {
        &self.constants
    }

    /// Whether it fits, without other results.
    pub fn verdict(&self, s: &Setup) -> MemoryFit {
        let memory = cost::memory(s, &self.constants.memory);
        let (gigabytes, error) = self.correct_memory(s, &memory);
        MemoryFit::new(gigabytes, error, memory.capacity)
    }

    pub fn predict(&self, s: &Setup) -> Prediction {
        let time = cost::time(s, &self.constants.time);
        let memory = cost::memory(s, &self.constants.memory);
        let of_time = features::for_time(s, &time, self.time.own > 0);
        let (longer, half) = self.time.predict_for(s.hardware, of_time);
        let half = half.hypot(self.doubt(s, TIME_DOUBT));
        let (gigabytes, gigabytes_error) = self.correct_memory(s, &memory);
        Prediction {
            seconds: time.total() * longer.exp(),
            gigabytes,
            seconds_error: half.exp_m1(),
            gigabytes_error,
            verdict: MemoryFit::new(gigabytes, gigabytes_error, memory.capacity),
            time,
            memory,
        }
    }

    /// Logarithm by which nine in ten runs are off because no run with these parts was measured.
    fn doubt(&self, s: &Setup, [experts, context]: [f64; 2]) -> f64 {
        let [knows_experts, knows_context] = self.measured;
        let unless = |known: bool, doubt: f64| if known { 0.0 } else { doubt };
        let experts = s.mixture.map_or(0.0, |_| unless(knows_experts, experts));
        let is_cut = s.degrees.context > 1;
        experts.hypot(if is_cut { unless(knows_context, context) } else { 0.0 })
    }

    /// Memory by the formulas, corrected by the residuals: gigabytes, and their error.
    fn correct_memory(&self, s: &Setup, memory: &Memory) -> (f64, f64) {
        let point = features::for_memory(s, memory, self.memory.own > 0);
        let (more, width) = self.memory.predict_for(s.hardware, point);
        let width = width.hypot(self.doubt(s, MEMORY_DOUBT));
        (memory.beyond_capacity(memory.reserved() * more.exp()), width.exp_m1())
    }
}

/// Program on a machine.
type Cluster = (&'static str, &'static str);

/// Residuals of measured runs under the formulas, as logarithms.
struct Residuals {
    kernel: Kernel,
    runs: Vec<(Features, f64)>,
    /// Number of the user's own runs.
    own: usize,
    /// Runs learned from, for each requested cluster.
    learned: Mutex<BTreeMap<Cluster, Arc<Learned>>>,
}

/// Runs related to a cluster.
struct Learned {
    all: Neighbours,
    /// Without the user's own runs, if there are some that do not contradict the prediction: a bar with
    /// them is not wider than the one before.
    before: Option<Neighbours>,
}

impl Residuals {
    fn new(kernel: Kernel) -> Residuals {
        Residuals { kernel, runs: Vec::new(), own: 0, learned: Mutex::default() }
    }

    fn add(&mut self, point: Features, residual: f64) {
        self.own += usize::from(point.own);
        self.runs.push((point, residual));
    }

    /// `predict_at` for a machine. One that differs from a measured one in some columns has that one's
    /// correction, so that a changed column changes nothing else, and at least the bar of an unknown machine.
    fn predict_for(&self, hardware: &'static Hardware, point: Features) -> (f64, f64) {
        let (mean, half) = self.predict_at(point.clone());
        if hardware.measured_as.is_none() {
            return (mean, half);
        }
        let unknown = Features { machine: &hardware.name, ..point };
        (mean, half.max(self.predict_at(unknown).1))
    }

    /// Correction of the formulas' logarithm, and the error that nine in ten do not exceed.
    fn predict_at(&self, point: Features) -> (f64, f64) {
        let learned = self.learned_for((point.program, point.machine));
        let (mean, half) = learned.all.predict_at(&point);
        let unseen = learned
            .before
            .as_ref()
            .map(|before| before.predict_at(&as_measured_by_others(&point)).1);
        (mean, unseen.map_or(half, |unseen| half.min(unseen)))
    }

    fn learned_for(&self, cluster: Cluster) -> Arc<Learned> {
        let mut learned = self.learned.lock().expect("no panic while learning");
        Arc::clone(learned.entry(cluster).or_insert_with(|| {
            let all = self.neighbours(cluster, &|_| true);
            let before = (self.own > 0).then(|| self.neighbours(cluster, &|point| !point.own));
            let before = before.filter(|before| !self.contradict(before, cluster));
            Arc::new(Learned { all, before })
        }))
    }

    /// From the runs of a program or a machine that `pick` takes.
    fn neighbours(
        &self,
        (program, machine): Cluster,
        pick: &dyn Fn(&Features) -> bool,
    ) -> Neighbours {
        let (points, residuals): (Vec<Features>, Vec<f64>) = self
            .runs
            .iter()
            .filter(|run| (run.0.program == program || run.0.machine == machine) && pick(&run.0))
            .cloned()
            .unzip();
        let programs: BTreeSet<&str> = self.runs.iter().map(|(point, _)| point.program).collect();
        Neighbours::new(self.kernel, points, &residuals).with_programs(programs.len())
    }

    /// Whether more than a fifth of one's own runs are outside the bars that they had before.
    fn contradict(&self, before: &Neighbours, (program, machine): Cluster) -> bool {
        let of_cluster = |(point, _): &&(Features, f64)| {
            point.own && point.program == program && point.machine == machine
        };
        let own: Vec<&(Features, f64)> = self.runs.iter().filter(of_cluster).collect();
        5 * own
            .iter()
            .filter(|(point, residual)| {
                let (mean, half) = before.predict_at(&as_measured_by_others(point));
                (residual - mean).abs() > half
            })
            .count()
            > own.len()
    }
}

/// A run as if others had measured it.
fn as_measured_by_others(point: &Features) -> Features {
    Features { own: false, ..point.clone() }
}
