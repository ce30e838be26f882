//! The command line: one file per subcommand, no logic of its own.
//!
//! Exit codes: 0 done (or stopped by a signal after saving), 1 the world failed (disk, numbers,
//! device), 2 the user's input is wrong.

mod data;
mod export;
mod import;
mod inspect;
mod manifest;
mod report;
mod run;
mod sample;

use crate::base::Problems;
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
    /// Begin a run from a Hugging Face folder (GPT-2 or BLOOM)
    Import(import::Args),
    /// Write a checkpoint as a Hugging Face folder (GPT-2 or BLOOM)
    Export(export::Args),
    /// Look into a checkpoint, verify it, or compare two
    InspectCkpt(inspect::Args),
    /// Check, show or describe manifests
    #[command(subcommand)]
    Manifest(manifest::Command),
    /// Make, join and look into datasets and tokenizers
    #[command(subcommand)]
    Data(data::Command),
}

pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Sample(args) => sample::run(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::InspectCkpt(args) => inspect::run(args),
        Command::Report(args) => report::run(args),
        Command::Manifest(command) => manifest::run(command),
        Command::Data(command) => data::run(command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Problems>() => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("gptrain: {error:#}");
            ExitCode::FAILURE
        }
    }
}
