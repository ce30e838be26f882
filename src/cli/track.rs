//! `gptrain wandb`, `gptrain mlflow`: the clients of these services, in Python, follow a run.

use anyhow::Result;
use base::Problems;
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use train::report::compare::settings_of;
use train::report::page::Run;
use train::status::Status;

/// The program that the client runs.
const SCRIPT: &str = include_str!("track.py");

/// Seconds between two looks at the run.
const POLL_S: f64 = 1.0;

#[derive(clap::Args)]
pub struct Args {
    /// The run's folder: `log.folder` of its manifest
    run: PathBuf,
    /// The project (W&B) or experiment (MLflow)
    #[arg(long, default_value = "gptrain")]
    project: String,
    /// The run's name there [default: the manifest's]
    #[arg(long)]
    name: Option<String>,
    /// The Python that has the client
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
}

/// Becomes the client: `client` is the name of its module. It ends when the run ends.
pub fn run(args: Args, client: &str) -> Result<()> {
    Status::read(&args.run)?;
    let run = Run::read(&args.run)?;
    let config = run.manifest.as_deref().map(settings_of).unwrap_or_default();
    let job = json!({
        "client": client, "folder": args.run, "project": args.project,
        "name": args.name.unwrap_or(run.name), "config": config, "poll_s": POLL_S,
    });
    let error = Command::new(&args.python).args(["-c", SCRIPT, &job.to_string()]).exec();
    let what = format!("cannot start {}: {error}", args.python.display());
    let remedy = "install Python 3.8 or newer, or name one with --python";
    Err(Problems::one("--python", what, remedy).into())
}
