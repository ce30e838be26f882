//! The command line: one file per subcommand, no logic of its own.

use std::process::ExitCode;

use clap::Parser;

use crate::base::Problems;

pub mod data;

#[derive(Debug, Parser)]
#[command(name = "gptrain", version, about)]
enum Command {
    /// Make datasets and look into them
    #[command(subcommand)]
    Data(data::Command),
}

pub fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Data(command) => data::run(command),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::from(if error.is::<Problems>() { 2 } else { 1 })
}
