//! `gptrain job`

mod script;

use crate::options::Overwrite;
use anyhow::{Context, Result};
use base::number;
use manifest::Loaded;
use script::JobRequest;
use std::num::NonZeroUsize;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Manifest, or folder of a run
    manifest: PathBuf,
    /// Change a setting of the manifest, here and in the job
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    resources: Resources,
    /// Write the script to this file instead of printing it
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
}

/// Resources that a job requests from Slurm.
#[derive(clap::Args, Clone, Debug)]
pub struct Resources {
    /// GPUs per node [default: those of plan.hardware; without it the ranks compute on CPUs]
    #[arg(long, value_name = "GPUS", value_parser = number::count)]
    gpus_per_node: Option<NonZeroUsize>,
    /// Nodes [default: with GPUs the fewest that hold all ranks, else chosen by Slurm]
    #[arg(long, value_parser = number::count)]
    nodes: Option<NonZeroUsize>,
    /// CPUs per rank [default: train.threads, else 8]
    #[arg(long, value_name = "CPUS", value_parser = number::count)]
    cpus_per_task: Option<NonZeroUsize>,
    /// Time limit in sbatch's format; the job requeues itself before it is reached
    #[arg(long, default_value = "24:00:00", value_parser = time)]
    time: String,
    /// Partition
    #[arg(long, value_parser = word)]
    partition: Option<String>,
    /// Account
    #[arg(long, value_parser = word)]
    account: Option<String>,
}

impl Resources {
    /// Request for a job with the settings `sets`.
    pub fn request(&self, sets: Vec<String>) -> JobRequest {
        JobRequest {
            nodes: self.nodes.map(usize::from),
            gpus_per_node: self.gpus_per_node.map(usize::from),
            cpus_per_task: self.cpus_per_task.map(usize::from),
            time: self.time.clone(),
            partition: self.partition.clone(),
            account: self.account.clone(),
            sets,
        }
    }
}

/// Script of a job that starts in the working directory.
pub fn script(loaded: &Loaded, request: &JobRequest) -> Result<String> {
    let folder = std::env::current_dir().context("cannot find the working directory")?;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let programs = program.parent().unwrap_or(&folder);
    Ok(script::script(loaded, request, &folder, programs)?)
}

pub fn run(args: Args) -> Result<()> {
    let loaded = manifest::load(&args.manifest, &args.set)?;
    let script = script(&loaded, &args.resources.request(args.set))?;
    match &args.output {
        Some(path) => {
            base::output::write(path, args.overwrite.existing(), script.as_bytes())?;
            base::say!("wrote {0}: sbatch {0}", path.display());
        }
        None => base::say!("{}", script.trim_end()),
    }
    Ok(())
}

/// Checks a time in Slurm's formats: 90, 24:00:00, 2-12:00:00.
fn time(text: &str) -> Result<String, String> {
    if text.is_empty()
        || !text
            .chars()
            .all(|c| c.is_ascii_digit() || c == ':' || c == '-')
    {
        return Err("write minutes (90), hours (24:00:00) or days (2-12:00:00)".to_string());
    }
    Ok(text.to_string())
}

fn word(text: &str) -> Result<String, String> {
    if text.is_empty() || !text.chars().all(|c| !c.is_whitespace() && !c.is_control()) {
        return Err("write one word without spaces".to_string());
    }
    Ok(text.to_string())
}
