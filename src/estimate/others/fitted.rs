//! What all measured runs together teach: the constants of the cost formulas, and what a program, a
//! machine, and a program on a machine take beside them. `constants.yaml` is the result for the
//! shipped runs; `UPDATE=1 cargo nextest run --test cli -E 'test(the_constants)'` writes it.

use super::cost;
use super::cost::constants::{Constants, MEMORY, Prior, TIME};
use super::learn::{Belief, Effects, Runs, fit};
use super::rows::Row;
use crate::setup::Setup;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::LazyLock;

/// Memory is printed in whole GB and differs little between days.
pub const MEMORY_SCATTER: f64 = 0.025;
/// What a run's formulas are off by beside its scatter, in the fit.
const FORMULAS: f64 = 0.07;
/// By how much programs, machines, and programs on machines differ, as the logarithm's standard
/// deviation. Among measured runs are clusters far from all others (Jean Zay's of 2022), which must
/// not bend the constants; what is asked for is likelier one like most.
const PROGRAM: f64 = 0.15;
const MACHINE: f64 = 0.1;
const CLUSTER: f64 = 0.3;
const USUAL: f64 = 0.3;

/// What of time or of memory runs share by who ran them and where, as logarithms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    programs: BTreeMap<String, f64>,
    machines: BTreeMap<String, f64>,
    /// "program on machine".
    clusters: BTreeMap<String, f64>,
}

/// Constants and shares.
#[derive(Clone, Debug)]
pub struct Fitted {
    pub constants: Constants,
    pub time: Shares,
    pub memory: Shares,
}

/// A run's program, its machine, and both.
fn keys(s: &Setup) -> [String; 3] {
    let (program, machine) = (s.program.name(), &s.hardware.name);
    [program.to_string(), machine.clone(), format!("{program} on {machine}")]
}

impl Shares {
    /// Of a run, what is known.
    pub fn of(&self, s: &Setup) -> f64 {
        let [program, machine, cluster] = keys(s);
        let known =
            [self.programs.get(&program), self.machines.get(&machine), self.clusters.get(&cluster)];
        known.into_iter().flatten().sum()
    }

    /// The standard deviation of what is not known. `own`: whoever asks has measured runs there, whose
    /// residuals tell.
    pub fn doubt(&self, s: &Setup, own: bool) -> f64 {
        let [program, machine, cluster] = keys(s);
        if own || self.clusters.contains_key(&cluster) {
            return 0.0;
        }
        let seen = |end: &dyn Fn(&str) -> bool| self.clusters.keys().filter(|key| end(key)).count();
        let of_program = seen(&|key| key.starts_with(&format!("{program} on ")));
        let of_machine = seen(&|key| key.ends_with(&format!(" on {machine}")));
        // Each cluster tells of its program, blurred by what is its own.
        let left = |spread: f64, clusters: usize| {
            spread.powi(2) / (1.0 + clusters as f64 * (spread / CLUSTER).powi(2))
        };
        let square = left(PROGRAM, of_program) + left(MACHINE, of_machine) + CLUSTER.powi(2);
        USUAL * square.sqrt()
    }

    /// Fits constants from `start`, and what is shared, to what is measured of these setups.
    fn fit(
        table: &[Prior],
        start: &[f64],
        setups: &[&Setup],
        scales: &[f64],
        residuals: &dyn Fn(&[f64]) -> Vec<f64>,
    ) -> (Vec<f64>, Shares) {
        let mut names: [BTreeMap<String, usize>; 3] = Default::default();
        let mut spreads = Vec::new();
        let mut index = |level: usize, key: String| {
            *names[level].entry(key).or_insert_with(|| {
                spreads.push([PROGRAM, MACHINE, CLUSTER][level]);
                spreads.len() - 1
            })
        };
        let each = |s: &&Setup| -> Vec<usize> {
            keys(s).into_iter().enumerate().map(|(level, key)| index(level, key)).collect()
        };
        let of = setups.iter().map(each).collect();
        let effects = Effects { spreads, of };
        let belief = |prior: &Prior| Belief { log: prior.value.ln(), spread: prior.spread };
        let beliefs: Vec<Belief> = table.iter().map(belief).collect();
        let (constants, shared) =
            fit(&beliefs, start, &Runs { residuals, scales, effects: &effects });
        let [programs, machines, clusters] = names.map(|names| {
            names.into_iter().map(|(name, at)| (name, shared[at])).collect::<BTreeMap<_, _>>()
        });
        (constants, Shares { programs, machines, clusters })
    }
}

static SHIPPED: LazyLock<Fitted> =
    LazyLock::new(|| Fitted::read(include_str!("../constants.yaml")).expect("constants.yaml"));

impl Fitted {
    pub fn shipped() -> &'static Fitted {
        &SHIPPED
    }

    /// Before any row is seen.
    pub fn prior() -> Fitted {
        let (time, memory) = (Shares::default(), Shares::default());
        Fitted { constants: Constants::prior(), time, memory }
    }

    /// To these rows, beginning at `start`.
    pub fn to(rows: &[&Row], start: &Constants) -> Fitted {
        let timed: Vec<(&Setup, f64)> = rows.iter().filter_map(|row| row.timing()).collect();
        let weighed: Vec<(&Setup, f64)> = rows.iter().filter_map(|row| row.weight()).collect();
        let seconds = |k: &[f64]| -> Vec<f64> {
            timed.iter().map(|(s, t)| (t / cost::time(s, k).total()).ln()).collect()
        };
        let gigabytes = |k: &[f64]| -> Vec<f64> {
            weighed.iter().map(|(s, gb)| (gb / cost::memory(s, k).reserved()).ln()).collect()
        };
        let setups = |all: &[(&'_ Setup, f64)]| all.iter().map(|(s, _)| (*s).clone()).collect();
        let (times, weights): (Vec<Setup>, Vec<Setup>) = (setups(&timed), setups(&weighed));
        let scales: Vec<f64> = times.iter().map(|s| scatter(s).hypot(FORMULAS)).collect();
        let same = vec![MEMORY_SCATTER; weights.len()];
        let (times, weights): (Vec<&Setup>, Vec<&Setup>) =
            (times.iter().collect(), weights.iter().collect());
        let (time, of_time) = Shares::fit(TIME, &start.time, &times, &scales, &seconds);
        let (memory, of_memory) = Shares::fit(MEMORY, &start.memory, &weights, &same, &gigabytes);
        Fitted { constants: Constants { time, memory }, time: of_time, memory: of_memory }
    }

    fn read(text: &str) -> Option<Fitted> {
        let file: File = serde_saphyr::from_str(text).ok()?;
        let values = |table: &[Prior], of: &BTreeMap<String, f64>| -> Option<Vec<f64>> {
            table.iter().map(|prior| of.get(prior.name).copied()).collect()
        };
        let constants = Constants {
            time: values(TIME, &file.time.constants)?,
            memory: values(MEMORY, &file.memory.constants)?,
        };
        Some(Fitted { constants, time: file.time.shares, memory: file.memory.shares })
    }

    /// As `constants.yaml` has it.
    pub fn written(&self) -> String {
        let mut text = String::from(
            "# Fitted to the rows of data/ by others/fitted.rs, which says how to write it anew: the\n\
             # constants of others/cost/constants.rs, and what programs, machines and programs on machines\n\
             # take beside them (logarithms).\n",
        );
        let sides = [
            ("time", TIME, &self.constants.time, &self.time),
            ("memory", MEMORY, &self.constants.memory, &self.memory),
        ];
        for (name, table, values, shares) in sides {
            let _ = writeln!(text, "{name}:\n  constants:");
            for (prior, value) in table.iter().zip(values) {
                let _ = writeln!(text, "    {}: {value:.5}", prior.name);
            }
            let groups = [
                ("programs", &shares.programs),
                ("machines", &shares.machines),
                ("clusters", &shares.clusters),
            ];
            let _ = writeln!(text, "  shares:");
            for (group, of) in groups {
                let _ = writeln!(text, "    {group}:");
                for (name, value) in of {
                    let _ = writeln!(text, "      {name}: {value:.4}");
                }
            }
        }
        text
    }
}

#[derive(Deserialize)]
struct File {
    time: Side,
    memory: Side,
}

#[derive(Deserialize)]
struct Side {
    constants: BTreeMap<String, f64>,
    shares: Shares,
}

/// By what share a run's time differs from day to day. Op-by-op PyTorch's of those years is known
/// from days per billion tokens, printed with two digits.
pub fn scatter(s: &Setup) -> f64 {
    let coarse = s.trainer().eager && s.regime.is_some();
    s.hardware.scatter * if coarse { 3.0 } else { 1.0 }
}
