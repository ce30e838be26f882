//! The work of commands other than `run`: sampling, scoring, imports, means, lists and reports of runs,
//! datasets, first manifests and job scripts.
//!
//! Independent of the command line: receives parsed options.

pub mod example;
pub mod recipe;
pub mod length;
pub mod job_script;

pub mod data;

pub mod generate;
pub mod eval;
pub mod replay;

pub mod import;
pub mod bring;
pub mod average;
mod divergence;
mod fresh;

pub mod runs;
pub mod report;
