//! Scores of the published runs with context parallelism or experts, from which nothing is learned.

use super::{Named, score_all, time_errors};
use crate::predictor::Predictor;
use crate::rows::{self, Row};
use estimate::setup::Setup;

/// Errors of the time of these runs, by program or machine.
pub fn errors() -> Vec<Named> {
    let rows = rows::foreign();
    let scored = score_all(Predictor::shipped(), &rows);
    let errors = |pick: &dyn Fn(&Setup) -> bool| {
        time_errors(&scored, &|row: &Row| row.setup.as_ref().is_ok_and(pick))
    };
    let is_dense = |s: &Setup| s.mixture.is_none();
    let mut named: Vec<Named> = vec![
        ("context parallelism, all".to_string(), errors(&is_dense)),
        ("experts, all".to_string(), errors(&|s| !is_dense(s))),
    ];
    for program in ["nemo", "megatron-bridge", "torchtitan"] {
        let pick = |s: &Setup| is_dense(s) && s.program.name() == program;
        named.push((format!("context parallelism, {program}"), errors(&pick)));
    }
    for family in ["h100", "b200", "gb"] {
        let pick = |s: &Setup| !is_dense(s) && s.hardware.name.starts_with(family);
        named.push((format!("experts, {family}"), errors(&pick)));
    }
    named.retain(|(_, errors)| errors.rows > 0);
    named
}
