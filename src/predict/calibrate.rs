//! Fits constants to the user's own runs.

use super::predictor::Predictor;
use super::rows::{self, Given, Row};
use base::Problems;
use estimate::logs;
use estimate::setup::{Program, Setup};
use estimate::trainers;
use std::collections::BTreeSet;

/// Result of a calibration, and the ignored rows that contradict themselves (id and reason).
pub struct Calibrated {
    pub predictor: Predictor,
    pub refused: Vec<(String, String)>,
}

/// Reads a csv of runs, or a log of the run that `setup` plans. `name` is the file's. `asynchronous`
/// runs had asynchronous launches, even on a machine that is listed with synchronous ones. Rows of
/// programs that only `given` says something of are runs of the planned program.
pub fn calibrate(
    text: &str,
    name: &str,
    setup: Option<&Setup>,
    asynchronous: bool,
    given: Given,
) -> anyhow::Result<Calibrated> {
    let is_log = text.contains("elapsed time per iteration") || !name.ends_with(".csv");
    let (mut rows, refused) = match (is_log, setup) {
        (true, None) => {
            return Err(Problems::one(
                name,
                "a log says times, not what was run",
                "give the run's manifest, or a csv",
            )
            .into());
        }
        (true, Some(setup)) => {
            let log = logs::read(text, name, setup)?;
            (rows::from_log(log.medians, name, setup), log.outliers)
        }
        (false, _) => {
            let mut rows = rows::read_with(text, name, given)?;
            if let Some(plan) = setup {
                rows.iter_mut().for_each(|row| take_program_of(plan, row));
            }
            if asynchronous {
                rows = rows.into_iter().map(Row::with_async_launches).collect();
            }
            let refused = rows
                .iter()
                .flat_map(|row| -> Vec<(String, String)> {
                    row.problems()
                        .into_iter()
                        .map(|what| (row.id.clone(), what))
                        .collect()
                })
                .collect();
            (rows, refused)
        }
    };
    let left_out: BTreeSet<&str> = refused.iter().map(|(id, _)| id.as_str()).collect();
    rows.retain(|row| !left_out.contains(row.id.as_str()));
    Ok(Calibrated { predictor: Predictor::calibrated(&rows), refused })
}

/// Counts a row of a program that the table does not have as a run of the planned one.
fn take_program_of(plan: &Setup, row: &mut Row) {
    if let Ok(setup) = &mut row.setup
        && let Program::Other(trainer) = setup.program
        && trainers::lookup(&trainer.name).is_none()
    {
        setup.program = plan.program;
    }
}

impl Calibrated {
    /// Number of times and memories in the file of that name.
    pub fn learned_counts(&self, name: &str) -> Result<(usize, usize), Problems> {
        match self.predictor.learned {
            (0, 0) => Err(match self.refused.first() {
                Some((id, what)) => Problems::one(
                    name,
                    format!("no row can be learned from: {id}: {what}"),
                    "correct the rows, or the options that read them",
                ),
                None => Problems::one(
                    name,
                    "no row can be learned from",
                    "give runs with sec_per_iter or mem_gb",
                ),
            }),
            learned => Ok(learned),
        }
    }
}
