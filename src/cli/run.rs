//! `gptrain run`

use std::path::PathBuf;
use train::messages::Messages;
use train::report::Form;
use train::trace::{Steps, TraceOptions};

#[derive(clap::Args)]
pub struct Args {
    /// The experiment, or the folder of a run
    #[arg(required_unless_present = "example")]
    manifest: Option<PathBuf>,
    /// Train a small GPT on Jane Austen's novels, made in ./gptrain-example from this binary alone
    #[arg(long, conflicts_with = "manifest")]
    example: bool,
    /// Change a setting of the manifest, as in `--set optimizer.adamw.beta2=0.95`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Resume from this checkpoint (step-00000040) in place of the newest, or from a copy
    /// (s3://BUCKET/PREFIX, file:///FOLDER), which is fetched into the run's folder
    #[arg(long, value_name = "STEP")]
    resume_from: Option<PathBuf>,
    /// At a resume keep the weights and begin the optimizer's states anew: for another optimizer
    #[arg(long)]
    reset_optimizer: bool,
    /// First repeat this many recorded steps from an older checkpoint; their losses must be equal
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    verify_resume: Option<u64>,
    /// Write the spans of `--trace-steps`, of all ranks, to this file; ui.perfetto.dev shows it
    #[arg(long, value_name = "FILE", requires = "trace_steps")]
    trace: Option<PathBuf>,
    /// Steps to trace, both ends included, as in `--trace-steps 10..12`
    #[arg(long, value_name = "A..B", requires = "trace", value_parser = Steps::parse)]
    trace_steps: Option<Steps>,
}

impl Args {
    /// Whether spans are recorded.
    pub fn traces(&self) -> bool {
        self.trace.is_some()
    }
}

pub fn run(args: Args, messages: &Messages) -> anyhow::Result<()> {
    let path = match &args.manifest {
        Some(path) => path.clone(),
        None => super::example::prepare()?,
    };
    let loaded = manifest::load(&path, &args.set)?;
    // From a checkpoint of the user's choice it starts once: the newest is not what was asked for.
    let once = args.resume_from.is_some() || args.reset_optimizer || args.verify_resume.is_some();
    if !once && train::supervise(&loaded)? {
        return Ok(());
    }
    let Args { resume_from, reset_optimizer, verify_resume, .. } = args;
    let trace = args.trace.zip(args.trace_steps).map(|(file, steps)| TraceOptions { file, steps });
    let options = train::Options { resume_from, reset_optimizer, verify_resume, trace };
    let ended = train::run(&loaded, &options, messages)?;
    let folder = loaded.manifest.log.folder.display();
    if messages.console().form() == Form::Quiet {
        return Ok(());
    }
    match ended {
        Some(train::Ended::Complete) => base::say!("complete: {folder}"),
        Some(train::Ended::Stopped) => base::say!("stopped and saved: the same command goes on"),
        Some(train::Ended::JobEnds) => {
            base::say!("stopped and saved, as the job ends: the same command goes on")
        }
        Some(train::Ended::Reached) => base::say!("saved: {folder}: train.stop_at_loss is reached"),
        None => {} // the process of rank 0 prints it
    }
    if args.example && ended == Some(train::Ended::Complete) {
        super::example::next(&loaded.manifest.log.folder);
    }
    Ok(())
}
