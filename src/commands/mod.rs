//! The command line: one file per command, or a folder. A command is a struct with its options and a
//! method `run`.

mod cli;
mod options;
mod completions;
mod unknown;
mod interrupt;

mod run;
mod sample;
mod eval;
mod average;
mod report;
mod compare;
mod track;
mod status;
mod inspect_ckpt;
mod check_run;
mod prune;
mod export;
mod convert;
mod import;
mod diagnose;
mod manifest;
mod nodes;
mod job;
mod sweep;
mod tune;
mod data;
mod estimate;
mod bench;

// Shared by commands that read or write checkpoints.
mod local_checkpoint;
mod model_place;
mod new_checkpoint;
mod new_run;

pub use cli::{main, understands};
#[cfg(any(test, feature = "testing"))]
pub use report::page::Run as ReportPage;
