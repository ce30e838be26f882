//! `gptrain run`

mod example;
mod length;
mod probe;

use crate::completions::SETTINGS;
use base::{Problems, number, shell_word};
use launch::console::Form;
use launch::events::{self, Kind};
use launch::messages::Messages;
use manifest::Manifest;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use train::report::metrics::Metrics;
use train::trace::{Steps, TraceOptions};

#[derive(clap::Args)]
pub struct Run {
    /// Manifest, or folder of a run
    #[arg(required_unless_present = "example")]
    manifest: Option<PathBuf>,
    /// Train a small GPT on Jane Austen's novels, which this binary contains; writes ./gptrain-example
    #[arg(long, conflicts_with = "manifest")]
    example: bool,
    /// Change a setting of the manifest, as in `--set optimizer.adamw.beta2=0.95`
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    /// A new run: choose its length so that it takes about this many minutes on this machine (times a
    /// few steps first, and scales the warm-up with the length; `--example` uses 0.75). A run that has
    /// begun: keep its length; this start saves and ends within this many minutes, as at SIGTERM, and
    /// the same command continues
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
    #[command(flatten)]
    probe: probe::Probe,
}

impl Run {
    pub fn run(self, messages: &Messages) -> anyhow::Result<()> {
        launch::series::end_with_series();
        // Before the run, whose plan is made under a subscriber that enables every level.
        let is_verbose = tracing::enabled!(tracing::Level::INFO);
        let path = match &self.manifest {
            Some(path) => path.clone(),
            None => example::prepare()?,
        };
        let mut loaded = launch::load_manifest(&path, &self.set)?;
        let has_begun = length::has_begun(&loaded.manifest);
        let ends_after = self.minutes.filter(|_| has_begun);
        let minutes = self.minutes(has_begun)?;
        if let Some(steps) = self.probe.steps {
            return self.probe.run(steps, &loaded, &rank_words(&[]), messages);
        }
        // A run from a checkpoint of the user's choice does not restart: it would use the newest one.
        let once =
            self.resume_from.is_some() || self.reset_optimizer || self.verify_resume.is_some();
        if !once && train::supervise(&loaded)? {
            return Ok(());
        }
        let mut settings = Vec::new();
        if let Some(minutes) = minutes {
            let load =
                |more: &[String]| launch::load_manifest(&path, &[&self.set[..], more].concat());
            let fitted = if has_begun {
                length::keep_settings(&loaded.manifest, self.set_length().is_some())?
            } else {
                length::fit(&loaded, &load, minutes, messages)?
            };
            for line in fitted.lines {
                tracing::info!("{line}");
            }
            loaded = load(&fitted.sets)?;
            settings = fitted.sets;
        }
        if let Some(minutes) = ends_after {
            let time = base::Seconds(60.0 * minutes);
            tracing::info!("this start saves and ends within {time} (--minutes)");
        }
        let words = if has_begun { ranks_of_begun(&settings) } else { rank_words(&settings) };
        if train::start_processes(&loaded, &words)? {
            return Ok(());
        }
        let Run { resume_from, reset_optimizer, verify_resume, ops, .. } = self;
        let trace = self
            .trace
            .zip(self.trace_steps)
            .map(|(file, steps)| TraceOptions { file, steps });
        let keeps_nothing = false;
        let options = train::RunOptions {
            resume_from,
            reset_optimizer,
            verify_resume,
            trace,
            ops,
            keeps_nothing,
            ends_after: ends_after.map(|minutes| Duration::from_secs_f64(60.0 * minutes)),
        };
        let ended = train::run(&loaded, &options, messages)?;
        if messages.console().form() == Form::Quiet {
            return Ok(());
        }
        let folder = &loaded.manifest.log.folder;
        if let Some(ended) = ended {
            print_end(&loaded.manifest, ended, once);
        } // else the process of rank 0 prints it
        let complete = ended == Some(train::Ended::Complete)
            && describe_divergence(&loaded.manifest).is_none();
        if is_verbose && complete && is_first(folder) {
            print_next_commands(&loaded.manifest, self.example);
        }
        Ok(())
    }

    /// Key of a setting that sets the length.
    fn set_length(&self) -> Option<&'static str> {
        let is_set = |key: &str| {
            let start = format!("{key}=");
            self.set.iter().any(|set| set.starts_with(&start))
        };
        length::LENGTHS.into_iter().find(|key| is_set(key))
    }

    /// Minutes that set the length of a new run. The example has a default, unless a setting sets the
    /// length.
    fn minutes(&self, has_begun: bool) -> Result<Option<f64>, Problems> {
        match (self.minutes, self.set_length()) {
            (Some(_), Some(key)) if !has_begun => Err(Problems::one(
                "--minutes",
                format!("--minutes and {key} both set the run's length"),
                "keep one of them",
            )),
            (None, None) => Ok(self.example.then_some(example::MINUTES)),
            (minutes, _) => Ok(minutes),
        }
    }
}

/// Prints how the run ended. A start from a checkpoint of the user's choice (`once`) would begin there
/// again: the run's folder continues it.
fn print_end(m: &Manifest, ended: train::Ended, once: bool) {
    let folder = m.log.folder.display();
    let again = if once {
        format!("gptrain run {} continues", shell_word(&folder.to_string()))
    } else {
        "the same command continues".to_string()
    };
    match ended {
        train::Ended::Complete => {
            base::say!("complete: {folder}");
            if let Some(line) = describe_divergence(m) {
                base::warn!("{line}");
            }
        }
        train::Ended::NothingLeft => {
            let steps = base::Count(m.batch.ramp().steps(m.train.samples));
            base::say!(
                "nothing left to do: {steps} of {steps} steps; --set train.steps=N, with N above \
                 {steps}, continues"
            );
        }
        train::Ended::Stopped => base::say!("stopped and saved: {again}"),
        train::Ended::JobEnds => base::say!("stopped and saved before the job's end: {again}"),
        train::Ended::Reached => base::say!("saved: {folder}: train.stop_at_loss is reached"),
    }
}

/// Rise of the loss above its minimum that is not noise, in nats.
const RISE: f64 = 0.5;

/// Message for a run whose loss has risen above that of a model without any knowledge: the median of
/// its last steps, at most ten.
fn describe_divergence(m: &Manifest) -> Option<String> {
    let steps = Metrics::read(&m.log.folder).ok()?.steps;
    let last = plan::robust::median(steps.iter().rev().take(10).map(|row| row.lm_loss));
    let least = steps
        .iter()
        .map(|row| row.lm_loss)
        .fold(f64::INFINITY, f64::min);
    let uniform = (m.model.vocab as f64).ln();
    (last > uniform && last > least + RISE).then(|| {
        format!(
            "diverged: the loss is {last:.2}, above ln(vocabulary) = {uniform:.2}, that of equally \
             probable tokens\n    → start again with a lower lr.peak (now {}) or a longer warm-up: \
             --set log.folder=DIR",
            m.lr.peak
        )
    })
}

/// Whether the run was completed before.
fn is_first(folder: &Path) -> bool {
    let events = events::read(folder).unwrap_or_default();
    events
        .iter()
        .filter(|event| event.kind == Kind::End && event.text.ends_with(": complete"))
        .count()
        == 1
}

/// Prints the commands that use the trained model.
fn print_next_commands(m: &Manifest, example: bool) {
    let folder = &shell_word(&m.log.folder.display().to_string());
    base::say!("\nNow:");
    if m.data.tokenizer.is_some() {
        let prompt = if example { example::PROMPT } else { "Once upon a time" };
        base::say!("  gptrain sample {folder} --prompt \"{prompt}\"");
    }
    base::say!("  gptrain report {folder}  # writes its curves, {folder}/report.html");
    let export = format!("{}-hf", m.name);
    let replaces = if Path::new(&export).exists() { " --overwrite" } else { "" };
    let export = shell_word(&export);
    base::say!(
        "  gptrain export {folder} --output {export}{replaces}  # for Hugging Face's library"
    );
    let steps = 2 * m.batch.ramp().steps(m.train.samples);
    base::say!("  gptrain run {folder} --set train.steps={steps}  # continues");
    if example {
        base::say!("  gptrain manifest new --help  # for a text of your own");
    }
}

/// Arguments of the ranks of a run that has begun: this process's own, and the run's length.
fn ranks_of_begun(settings: &[String]) -> Vec<OsString> {
    let own = std::env::args_os().skip(1);
    let sets = settings.iter().flat_map(|set| ["--set".into(), set.into()]);
    own.chain(sets).collect()
}

/// Arguments of the ranks that this process starts: its own, with the length that it has chosen.
fn rank_words(settings: &[String]) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut given = std::env::args_os().skip(1);
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
