//! `gptrain wandb`, `gptrain mlflow`: send a run's metrics by the services' own Python clients.

use crate::report::page::Run;
use anyhow::{Context, Result};
use base::{Problems, redact};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use train::status::Status;

/// Python program that follows the run.
const SCRIPT: &str = include_str!("track.py");

/// Poll interval, in seconds.
const POLL_S: f64 = 1.0;

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the run: `log.folder` of its manifest
    run: PathBuf,
    /// Project (W&B) or experiment (MLflow)
    #[arg(long, default_value = "gptrain")]
    project: String,
    /// Name of the run at the service [default: the manifest's]
    #[arg(long)]
    name: Option<String>,
    /// Python interpreter that has the client installed
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
}

/// Replaces this process by the client, whose Python module is `client`. It ends when the run ends.
pub fn run(args: Args, client: &str) -> Result<()> {
    Status::read(&args.run)?;
    let run = Run::read(&args.run)?;
    let config = run.settings;
    let job = json!({
        "client": client, "folder": args.run, "project": args.project,
        "name": args.name.unwrap_or(run.name), "config": config, "poll_s": POLL_S,
    });
    let file = in_memory(&redact(&job.to_string())).context("cannot pass the run's settings on")?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let error = Command::new(&args.python)
        .args(["-c", SCRIPT, &path])
        .exec();
    Err(Problems::one(
        "--python",
        format!("cannot start {}: {error}", args.python.display()),
        "install Python 3.8 or newer, or name one with --python",
    )
    .into())
}

/// File with a text, which the program that replaces this one inherits. An argument may have 128 KiB
/// at most, and standard input is the terminal, at which the client may ask for a key.
fn in_memory(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("gptrain", MemfdFlags::empty())?);
    file.write_all(text.as_bytes())?;
    Ok(file)
}
