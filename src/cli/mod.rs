//! The command line: one file per subcommand, no logic of its own.
//!
//! Exit codes: 0 done (or stopped by a signal after saving), 1 the world failed (disk, numbers,
//! device), 2 the user's input is wrong, 3 the ranks cannot go on together (one line names the one
//! at fault), 4 the plan does not fit (`estimate`).

mod run;
mod sample;
mod report;
mod inspect;
mod export;
mod import;
mod diagnose;
mod manifest;
mod data;
mod estimate;

use crate::base::Problems;
use crate::comm::Failed;
use crate::train::Followed;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Pretrains GPT models, from a laptop's CPU to a GPU cluster
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a manifest; goes on from its last checkpoint if there is one
    Run(run::Args),
    /// Generate text with a trained model
    Sample(sample::Args),
    /// Make a self-contained HTML page of a run's curves
    Report(report::Args),
    /// Look into a checkpoint, verify it, or compare two
    InspectCkpt(inspect::Args),
    /// Write a checkpoint as a Hugging Face folder (GPT-2 or BLOOM)
    Export(export::Args),
    /// Begin a run from a Hugging Face folder (GPT-2 or BLOOM)
    Import(import::Args),
    /// Say who held up a run whose ranks failed, from the folder they wrote
    Diagnose(diagnose::Args),
    /// Say what a run will need: memory, time, days, and what to change
    Estimate(estimate::Args),
    /// Check, show or describe manifests
    #[command(subcommand)]
    Manifest(manifest::Command),
    /// Make, join and look into datasets and tokenizers
    #[command(subcommand)]
    Data(data::Command),
}

pub fn main() -> ExitCode {
    let mut fits = true;
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Sample(args) => sample::run(args),
        Command::Report(args) => report::run(args),
        Command::InspectCkpt(args) => inspect::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Diagnose(args) => diagnose::run(args),
        Command::Estimate(args) => estimate::run(args).map(|fit| fits = fit),
        Command::Manifest(command) => manifest::run(command),
        Command::Data(command) => data::run(command),
    };
    match done {
        Ok(()) if !fits => ExitCode::from(estimate::DOES_NOT_FIT),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Problems>() => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
        Err(error) if error.is::<Failed>() => {
            if error.downcast_ref::<Failed>().is_some_and(|failed| failed.speak) {
                eprintln!("gptrain: {error}");
            }
            ExitCode::from(Failed::EXIT_CODE)
        }
        Err(error) if error.is::<Followed>() => {
            ExitCode::from(error.downcast_ref::<Followed>().map_or(1, |followed| followed.code))
        }
        Err(error) => {
            eprintln!("gptrain: {error:#}");
            ExitCode::FAILURE
        }
    }
}
