//! The work of commands other than `run`: sampling, scoring, imports, means, lists and reports of runs,
//! datasets, first manifests and job scripts.
//!
//! Independent of the command line: receives parsed options.

pub mod example;
pub mod new_manifest;
pub mod manifest_check;
pub mod estimate;
pub mod length;
pub mod job_script;
pub mod sweep;

pub mod data;

pub mod generate;
pub mod eval;
pub mod local_checkpoint;
pub mod model_place;
pub mod replay;

pub mod import;
pub mod average;
mod divergence;
mod new_checkpoint;
pub mod prune;

pub mod status;
pub mod runs;
pub mod nodes;
pub mod diagnose;
pub mod report;
