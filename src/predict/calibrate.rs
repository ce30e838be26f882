//! Fits constants to the user's own runs.

use super::predictor::Predictor;
use super::rows::{self, Row};
use base::Problems;
use estimate::logs;
use estimate::setup::Setup;
use std::collections::BTreeSet;

/// Result of a calibration, and the ignored rows that contradict themselves (id and reason).
pub struct Calibrated {
    pub predictor: Predictor,
    pub odd: Vec<(String, String)>,
}

/// Reads a csv of runs, or a log of the run that `setup` plans. `name` is the file's. `asynchronous`
/// runs had asynchronous launches, even on a machine that is listed with synchronous ones.
pub fn calibrate(
    text: &str,
    name: &str,
    setup: Option<&Setup>,
    asynchronous: bool,
) -> anyhow::Result<Calibrated> {
    let is_log = text.contains("elapsed time per iteration") || !name.ends_with(".csv");
    let (mut rows, odd) = match (is_log, setup) {
        (true, None) => {
            let what = "a log says times, not what was run";
            return Err(Problems::one(name, what, "give the run's manifest, or a csv").into());
        }
        (true, Some(setup)) => {
            let log = logs::read(text, name, setup)?;
            (rows::of_log(log.stretches, name, setup), log.odd)
        }
        (false, _) => {
            let mut rows = rows::read(text, name)?;
            if asynchronous {
                rows = rows.into_iter().map(Row::asynchronous).collect();
            }
            let named = |row: &Row| -> Vec<(String, String)> {
                row.odd().into_iter().map(|what| (row.id.clone(), what)).collect()
            };
            let odd = rows.iter().flat_map(named).collect();
            (rows, odd)
        }
    };
    let left_out: BTreeSet<&str> = odd.iter().map(|(id, _)| id.as_str()).collect();
    rows.retain(|row| !left_out.contains(row.id.as_str()));
    Ok(Calibrated { predictor: Predictor::calibrated(&rows), odd })
}

impl Calibrated {
    /// Number of times and memories in the file of that name.
    pub fn learned(&self, name: &str) -> Result<(usize, usize), Problems> {
        match self.predictor.learned {
            (0, 0) => {
                let what = "no row can be learned from";
                Err(Problems::one(name, what, "give runs with sec_per_iter or mem_gb"))
            }
            learned => Ok(learned),
        }
    }
}
