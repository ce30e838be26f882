//! `gptrain run`

use super::shell::SETTINGS;
use base::{Problems, number};
use commands::length;
use launch::console::Form;
use launch::events::{self, Event, Kind};
use launch::messages::Messages;
use manifest::Manifest;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use train::trace::{Steps, TraceOptions};

#[derive(clap::Args)]
pub struct Args {
    /// Manifest, or folder of a run
    #[arg(required_unless_present = "example")]
    manifest: Option<PathBuf>,
    /// Train a small GPT on Jane Austen's novels, which this binary contains; writes ./gptrain-example
    #[arg(long, conflicts_with = "manifest")]
    example: bool,
    /// Change a setting of the manifest, as in `--set optimizer.adamw.beta2=0.95`
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    /// Choose the run's length so that it takes about this many minutes on this machine: times a few
    /// steps first, and scales the warm-up with the length. `--example` uses 0.75
    #[arg(long, value_name = "MINUTES", value_parser = number::real_in(0.01..=1e6))]
    minutes: Option<f64>,
    /// Resume from this checkpoint (step-00000040) instead of the newest, or from a mirror
    /// (s3://BUCKET/PREFIX, file:///FOLDER), which is fetched into the run's folder
    #[arg(long, value_name = "STEP")]
    resume_from: Option<PathBuf>,
    /// Keep the weights at a resume and reset the optimizer's states: for another optimizer
    #[arg(long)]
    reset_optimizer: bool,
    /// Repeat this many recorded steps from an older checkpoint first; their losses must be equal
    #[arg(long, value_name = "STEPS", value_parser = number::whole_in(1..=u64::MAX))]
    verify_resume: Option<u64>,
    /// Write the spans of all ranks in `--trace-steps` to this file, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", requires = "trace_steps")]
    pub trace: Option<PathBuf>,
    /// Steps to trace, both ends included, as in `--trace-steps 10..12`
    #[arg(long, value_name = "A..B", requires = "trace", value_parser = Steps::parse)]
    trace_steps: Option<Steps>,
    /// Write the ops of a step of rank 0 to this file, as CSV: shapes, FLOPs, bytes and, on a CPU,
    /// seconds
    #[arg(long, value_name = "FILE")]
    ops: Option<PathBuf>,
}

pub fn run(args: Args, messages: &Messages) -> anyhow::Result<()> {
    let path = match &args.manifest {
        Some(path) => path.clone(),
        None => commands::example::prepare()?,
    };
    let minutes = minutes_of(&args)?;
    let mut loaded = manifest::load(&path, &args.set)?;
    // A run from a checkpoint of the user's choice does not restart: it would use the newest one.
    let once = args.resume_from.is_some() || args.reset_optimizer || args.verify_resume.is_some();
    if !once && train::supervise(&loaded)? {
        return Ok(());
    }
    let mut settings = Vec::new();
    if let Some(minutes) = minutes {
        let (set, line) = length::settings(&loaded, minutes, messages)?;
        tracing::info!("{line}");
        loaded = manifest::load(&path, &[&args.set[..], &set].concat())?;
        settings = set;
    }
    if train::start_processes(&loaded, &rank_words(&settings))? {
        return Ok(());
    }
    let Args { resume_from, reset_optimizer, verify_resume, ops, .. } = args;
    let trace = args.trace.zip(args.trace_steps).map(|(file, steps)| TraceOptions { file, steps });
    let options = train::RunOptions { resume_from, reset_optimizer, verify_resume, trace, ops };
    let ended = train::run(&loaded, &options, messages)?;
    let folder = loaded.manifest.log.folder.display();
    if messages.console().form() == Form::Quiet {
        return Ok(());
    }
    match ended {
        Some(train::Ended::Complete) => base::say!("complete: {folder}"),
        Some(train::Ended::NothingLeft) => {
            let m = &loaded.manifest;
            let steps = base::Count(m.batch.ramp().steps(m.train.samples));
            base::say!(
                "nothing left to do: {steps} of {steps} steps; --set train.steps=N continues"
            );
        }
        Some(train::Ended::Stopped) => base::say!("stopped and saved: the same command continues"),
        Some(train::Ended::JobEnds) => {
            base::say!("stopped and saved before the job's end: the same command continues")
        }
        Some(train::Ended::Reached) => base::say!("saved: {folder}: train.stop_at_loss is reached"),
        None => {} // the process of rank 0 prints it
    }
    let is_verbose = tracing::enabled!(tracing::Level::INFO);
    if is_verbose && ended == Some(train::Ended::Complete) && is_first(&loaded.manifest.log.folder)
    {
        next(&loaded.manifest, args.example);
    }
    Ok(())
}

/// Whether the run was completed before.
fn is_first(folder: &Path) -> bool {
    let events = events::read(folder).unwrap_or_default();
    let completed = |event: &&Event| event.kind == Kind::End && event.text.ends_with(": complete");
    events.iter().filter(completed).count() == 1
}

/// Prints the commands that use the trained model.
fn next(m: &Manifest, example: bool) {
    let folder = m.log.folder.display();
    base::say!("\nNow:");
    if m.data.tokenizer.is_some() {
        let prompt = if example { commands::example::PROMPT } else { "Once upon a time" };
        base::say!("  gptrain sample {folder} --prompt \"{prompt}\"");
    }
    base::say!("  gptrain report {folder}  # writes its curves, {folder}/report.html");
    base::say!("  gptrain export {folder} --output {}-hf  # for Hugging Face's library", m.name);
    let steps = 2 * m.batch.ramp().steps(m.train.samples);
    base::say!("  gptrain run {folder} --set train.steps={steps}  # continues");
    if example {
        base::say!("  gptrain manifest new --help  # for a text of your own");
    }
}

/// Arguments of the ranks that this process starts: its own, with the length that it has chosen.
fn rank_words(settings: &[String]) -> Vec<OsString> {
    let (mut words, mut given) = (Vec::new(), std::env::args_os().skip(1));
    while let Some(word) = given.next() {
        match word.to_str() {
            Some("--minutes") => drop(given.next()),
            Some(text) if text.starts_with("--minutes=") => {}
            _ => words.push(word),
        }
    }
    words.extend(settings.iter().flat_map(|set| ["--set".into(), set.into()]));
    words
}

/// Minutes that set the length. The example has a default, unless a setting sets the length.
fn minutes_of(args: &Args) -> Result<Option<f64>, Problems> {
    let sets = |key: &&str| args.set.iter().any(|set| set.starts_with(&format!("{key}=")));
    match (args.minutes, length::LENGTHS.into_iter().find(sets)) {
        (Some(_), Some(key)) => {
            let what = format!("--minutes and {key} both set the run's length");
            Err(Problems::one("--minutes", what, "keep one of them"))
        }
        (None, None) => Ok(args.example.then_some(commands::example::MINUTES)),
        (minutes, _) => Ok(minutes),
    }
}
