//! Predictions with error bars: the cost formulas with fitted constants, corrected by the residuals of
//! measured runs of the same program or machine (`fitted`, `learn`). The further a run is from all
//! measured ones, the wider its bar.

use super::cost::constants::Constants;
use super::cost::{self, Memory, Time};
use super::features;
use super::fitted;
use super::learn::{Features, Kernel, Neighbours};
use super::rows::{self, Row};
use estimate::hardware::{self, Hardware};
use estimate::setup::Setup;
use estimate::verdict::MemoryFit;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};

/// Predictor fitted to measured runs.
pub struct Predictor {
    constants: Constants,
    time: Arc<Residuals>,
    memory: Arc<Residuals>,
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
    /// The only cluster that measured the program, if this is another.
    pub only_site: Option<&'static str>,
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
        Predictor::shipped().with_own(&own.iter().collect::<Vec<_>>())
    }

    /// Fits the residuals of `rows` under the constants; `own` marks the user's rows.
    pub fn new(constants: &Constants, rows: &[&Row], own: &[&Row]) -> Predictor {
        let mut time = Residuals::new(features::TIME);
        let mut memory = Residuals::new(features::MEMORY);
        add_rows(constants, rows, false, [&mut time, &mut memory]);
        let others = Predictor {
            constants: constants.clone(),
            time: Arc::new(time),
            memory: Arc::new(memory),
            measured: [false; 2],
            learned: (0, 0),
        };
        if own.is_empty() { others } else { others.with_own(own) }
    }

    /// Learns from the user's rows too. This predictor has none yet.
    pub fn with_own(&self, own: &[&Row]) -> Predictor {
        let mut time = Residuals::after(&self.time);
        let mut memory = Residuals::after(&self.memory);
        add_rows(&self.constants, own, true, [&mut time, &mut memory]);
        let setups = || own.iter().filter_map(|row| row.setup.as_ref().ok());
        Predictor {
            constants: self.constants.clone(),
            learned: (time.own, memory.own),
            time: Arc::new(time),
            memory: Arc::new(memory),
            measured: [
                setups().any(|s| s.mixture.is_some()),
                setups().any(|s| s.degrees.context > 1),
            ],
        }
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
        let has_own = self.time.own_machines.contains(&*s.hardware.name);
        let base = if has_own { s.clone() } else { measured_setup(s) };
        let as_measured = cost::time(&base, &self.constants.time);
        let of_time = features::for_time(&base, &as_measured, self.time.own > 0);
        let only_site = self.time.only_site(&of_time);
        let (longer, half) = self.time.predict_for(s.hardware, of_time);
        let half = half.hypot(self.doubt(s, TIME_DOUBT));
        let (gigabytes, gigabytes_error) = self.correct_memory(s, &memory);
        Prediction {
            seconds: self.between_measured(s, time.total() * longer.exp()),
            gigabytes,
            seconds_error: half.exp_m1(),
            gigabytes_error,
            verdict: MemoryFit::new(gigabytes, gigabytes_error, memory.capacity),
            only_site,
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

    /// Seconds on a machine whose family did not measure the program: not less than on a better machine of a
    /// family that did, and not more than on a worse one.
    fn between_measured(&self, s: &Setup, seconds: f64) -> f64 {
        let families = self.time.families_of(s.program.name());
        if families.is_empty() || families.contains(&*s.hardware.family) {
            return seconds;
        }
        let measured = hardware::table()
            .iter()
            .filter(|hw| families.contains(&*hw.family));
        let on = |hardware: &'static Hardware| {
            let other = Setup { hardware, blocking: hardware.blocking, ..s.clone() };
            let time = cost::time(&other, &self.constants.time);
            let point = features::for_time(&other, &time, self.time.own > 0);
            time.total() * self.time.predict_at(point).0.exp()
        };
        measured.fold(seconds, |seconds, hw| {
            if s.hardware.is_exceeded_by(hw) {
                seconds.max(on(hw))
            } else if hw.is_exceeded_by(s.hardware) {
                seconds.min(on(hw))
            } else {
                seconds
            }
        })
    }

    /// Memory by the formulas, corrected by the residuals: gigabytes, and their error.
    fn correct_memory(&self, s: &Setup, memory: &Memory) -> (f64, f64) {
        let point = features::for_memory(s, memory, self.memory.own > 0);
        let (more, width) = self.memory.predict_for(s.hardware, point);
        let width = width.hypot(self.doubt(s, MEMORY_DOUBT));
        (memory.beyond_capacity(memory.reserved() * more.exp()), width.exp_m1())
    }
}

/// Adds residuals of time and memory of some rows; `own` marks the user's.
fn add_rows(constants: &Constants, rows: &[&Row], own: bool, [time, memory]: [&mut Residuals; 2]) {
    for row in rows {
        if let Some((s, seconds)) = row.timing() {
            let by_formula = cost::time(s, &constants.time);
            let residual = (seconds / by_formula.total()).ln();
            time.add(s.hardware, features::for_time(s, &by_formula, own), residual);
        }
        if let Some((s, gb)) = row.memory() {
            let by_formula = cost::memory(s, &constants.memory);
            let residual = (gb / by_formula.reserved()).ln();
            memory.add(s.hardware, features::for_memory(s, &by_formula, own), residual);
        }
    }
}

/// The setup on the row whose machine it is with columns of its own: that one's correction applies, so
/// that a changed column changes nothing else.
fn measured_setup(s: &Setup) -> Setup {
    let row = s.hardware.measured_as.as_deref();
    let row = row.and_then(|row| hardware::find(row, "a row of the table").ok());
    let Some(hardware) = row else { return s.clone() };
    // Launches as on that row, unless the run's differ from its machine's.
    let blocking = if s.blocking == s.hardware.blocking { hardware.blocking } else { s.blocking };
    Setup { hardware, blocking, ..s.clone() }
}

/// Program on a family of machines.
type Cluster = (&'static str, &'static str);

/// Residuals of measured runs under the formulas, as logarithms.
struct Residuals {
    /// Those without the user's own runs, if there are some.
    before: Option<Arc<Residuals>>,
    kernel: Kernel,
    runs: Vec<(Features, f64)>,
    /// Number of the user's own runs.
    own: usize,
    /// Machines of the user's own on which some of these ran.
    own_machines: BTreeSet<&'static str>,
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
        Residuals {
            before: None,
            kernel,
            runs: Vec::new(),
            own: 0,
            own_machines: BTreeSet::new(),
            learned: Mutex::default(),
        }
    }

    /// The same runs, to which the user's own are added.
    fn after(before: &Arc<Residuals>) -> Residuals {
        let runs = before.runs.clone();
        Residuals { before: Some(before.clone()), runs, ..Residuals::new(before.kernel) }
    }

    fn add(&mut self, hardware: &'static Hardware, point: Features, residual: f64) {
        if point.own && hardware.measured_as.is_some() {
            self.own_machines.insert(&hardware.name);
        }
        self.own += usize::from(point.own);
        self.runs.push((point, residual));
    }

    /// The only cluster that measured the program of this run, if that is another.
    fn only_site(&self, point: &Features) -> Option<&'static str> {
        self.learned_for((point.program, point.machine))
            .all
            .only_site(point)
    }

    /// Families of machines on which a program was measured.
    fn families_of(&self, program: &str) -> BTreeSet<&'static str> {
        let of_program = self.runs.iter().filter(|run| run.0.program == program);
        of_program.map(|run| run.0.machine).collect()
    }

    /// `predict_at` for a machine. One that differs from a measured one in some columns has at least the bar
    /// of an unknown machine, unless the user's own runs were there.
    fn predict_for(&self, hardware: &'static Hardware, point: Features) -> (f64, f64) {
        let (mean, half) = self.predict_at(point.clone());
        if hardware.measured_as.is_none() || self.own_machines.contains(&*hardware.name) {
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
            let all = self.neighbours(cluster);
            let before = self.before.as_ref().filter(|_| self.own > 0);
            let before = before.map(|before| {
                let others = before.learned_for(cluster);
                others.all.clone().with_programs(self.programs())
            });
            let before = before.filter(|before| !self.contradict(before, cluster));
            Arc::new(Learned { all, before })
        }))
    }

    /// Number of programs of all runs.
    fn programs(&self) -> usize {
        let programs: BTreeSet<&str> = self.runs.iter().map(|(point, _)| point.program).collect();
        programs.len()
    }

    /// From the runs of a program or a machine.
    fn neighbours(&self, (program, machine): Cluster) -> Neighbours {
        let (points, residuals): (Vec<Features>, Vec<f64>) = self
            .runs
            .iter()
            .filter(|run| run.0.program == program || run.0.machine == machine)
            .cloned()
            .unzip();
        Neighbours::new(self.kernel, points, &residuals).with_programs(self.programs())
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
