//! The constants of the cost formulas, fitted to measured runs. `constants.yaml` is the result for the
//! shipped runs; `UPDATE=1 cargo nextest run --test cli -E 'test(the_constants)'` writes it.

use super::cost::constants::{Constants, MEMORY, Prior, TIME};
use super::cost::{self, Products};
use super::features;
use super::learn::{Belief, Features, Runs, fit};
use super::rows::Row;
use estimate::setup::Setup;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::LazyLock;

static SHIPPED: LazyLock<Constants> =
    LazyLock::new(|| read(include_str!("constants.yaml")).expect("constants.yaml"));

pub fn shipped() -> &'static Constants {
    &SHIPPED
}

/// Convergence thresholds of a fit, in ln of the probability: for the shipped constants, and for the
/// prediction of a row that was left out.
pub const CONVERGED: f64 = 1e-8;
pub const NEARLY_CONVERGED: f64 = 1e-2;

/// Fits constants to these rows, from `start` to convergence (`rest`). The similarity of runs uses their
/// parts by the prior constants, so that the probability of constants is well defined.
pub fn fit_constants(rows: &[&Row], start: &Constants, rest: f64) -> Constants {
    let timed: Vec<(&Setup, f64)> = rows.iter().filter_map(|row| row.timing()).collect();
    let measured: Vec<(&Setup, f64)> = rows.iter().filter_map(|row| row.memory()).collect();
    let products: Vec<Products> = timed.iter().map(|(s, _)| Products::new(s)).collect();
    let seconds = |k: &[f64]| -> Vec<f64> {
        let total =
            |s: &Setup, products: &Products| cost::time_of_products(s, *products, k).total();
        timed
            .iter()
            .zip(&products)
            .map(|((s, t), p)| (t / total(s, p)).ln())
            .collect()
    };
    let gigabytes = |k: &[f64]| -> Vec<f64> {
        measured
            .iter()
            .map(|(s, gb)| (gb / cost::memory(s, k).reserved()).ln())
            .collect()
    };
    let prior = Constants::prior();
    let times: Vec<Features> = timed
        .iter()
        .map(|(s, _)| features::for_time(s, &cost::time(s, &prior.time), false))
        .collect();
    let weights: Vec<Features> = measured
        .iter()
        .map(|(s, _)| features::for_memory(s, &cost::memory(s, &prior.memory), false))
        .collect();
    let time = Runs { residuals: &seconds, kernel: &features::TIME, points: &times };
    let memory = Runs { residuals: &gigabytes, kernel: &features::MEMORY_FIT, points: &weights };
    Constants {
        time: fit(&beliefs(TIME), &start.time, &time, rest),
        memory: fit(&beliefs(MEMORY), &start.memory, &memory, rest),
    }
}

fn beliefs(table: &[Prior]) -> Vec<Belief> {
    table
        .iter()
        .map(|prior| Belief { log: prior.value.ln(), spread: prior.spread })
        .collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    time: BTreeMap<String, f64>,
    memory: BTreeMap<String, f64>,
}

fn read(text: &str) -> Option<Constants> {
    let file: File = serde_saphyr::from_str(text).ok()?;
    let values = |table: &[Prior], of: &BTreeMap<String, f64>| -> Option<Vec<f64>> {
        table
            .iter()
            .map(|prior| of.get(prior.name).copied())
            .collect()
    };
    Some(Constants { time: values(TIME, &file.time)?, memory: values(MEMORY, &file.memory)? })
}

/// Constants in the format of `constants.yaml`.
pub fn to_yaml(constants: &Constants) -> String {
    let mut text = String::from(
        "# The constants of cost/constants.rs, fitted to the rows of data/ by fitted.rs,\n\
         # which says how to write it again.\n",
    );
    for (name, table, values) in
        [("time", TIME, &constants.time), ("memory", MEMORY, &constants.memory)]
    {
        let _ = writeln!(text, "{name}:");
        for (prior, value) in table.iter().zip(values) {
            let _ = writeln!(text, "  {}: {value:.5}", prior.name);
        }
    }
    text
}
