//! `gptrain sweep`

pub mod variants;

use crate::compare::comparison::Comparison;
use crate::job::Resources;
use anyhow::{Context, Result, bail};
use base::output::{self, Existing};
use base::svg::Scale;
use base::{Count, Seconds, escape_control, number};
use launch::series::{Progress, Series, Task};
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use variants::Variants;

/// Run a manifest with every combination of several values, and compare the runs
///
/// Each variant has its own folder. The same command continues after an interruption, does not repeat
/// what is complete, tries failed variants again, and compares all of them at the end.
#[derive(clap::Args)]
pub struct Sweep {
    /// Manifest
    manifest: PathBuf,
    /// Setting with its values, as in `--set lr.peak=1e-4,3e-4,1e-3`; may be repeated. A comma in
    /// brackets or quotes belongs to a value
    #[arg(long, required = true, value_name = "KEY=VALUE,VALUE")]
    set: Vec<String>,
    /// Folder of the variants' folders [default: the manifest's log.folder with `-sweep`]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Variants that run at the same time, each on its own GPUs
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::count)]
    parallel: NonZeroUsize,
    /// Only list the variants, after checking them
    #[arg(long)]
    dry: bool,
    /// Write a job for each variant and submit it to Slurm, instead of running here
    #[arg(long, conflicts_with = "parallel")]
    slurm: bool,
    #[command(flatten)]
    resources: Resources,
}

impl Sweep {
    pub fn run(self) -> Result<()> {
        let sweep = Variants::read(&self.manifest, &self.set, self.output.as_deref())?;
        let tasks = sweep.tasks();
        let mut series = Series::open(&sweep.folder, &tasks)?;
        let done = sweep
            .all
            .iter()
            .filter(|variant| variant.is_complete())
            .count();
        let variants = Count(tasks.len() as u64).with_noun("variant");
        base::say!("{}: {variants}, {done} complete", sweep.folder.display());
        if self.dry {
            for variant in &sweep.all {
                let state = if variant.is_complete() { "complete" } else { "open" };
                base::say!("  {}: {state}", variant.folder().display());
            }
            return Ok(());
        }
        let folder = sweep.folder.display();
        std::fs::create_dir_all(&sweep.folder).with_context(|| format!("cannot make {folder}"))?;
        if self.slurm {
            submit_jobs(&sweep, &self.resources)?;
            return print_comparison(&sweep);
        }
        let environments = sweep.environments(self.parallel.get())?;
        let outcome = series.run(
            &environments,
            &|task: &Task| sweep.is_complete(task),
            &mut |task, progress| match progress {
                Progress::Started => {
                    base::say!("{}: started, {}", task.name, task.output.display())
                }
                Progress::Done(seconds) => {
                    base::say!("{}: complete, {}", task.name, Seconds(seconds))
                }
                Progress::Failed(why) => base::warn!("{}: {}", task.name, escape_control(why)),
                Progress::Stopped => {}
            },
        )?;
        if outcome.stopped {
            base::say!("stopped: the same command continues");
            return Ok(());
        }
        print_comparison(&sweep)?;
        let failed = outcome.failed.len();
        if failed > 0 {
            bail!("{failed} of {variants} failed; the same command tries them again");
        }
        Ok(())
    }
}

/// Prints the comparison of the variants that have made a step, and writes its page.
fn print_comparison(sweep: &Variants) -> Result<()> {
    let started = sweep.started_folders();
    if started.len() < 2 {
        return Ok(());
    }
    let compared = Comparison::read(&started)?;
    base::say!("");
    compared.printout().say(false);
    let page = sweep.folder.join("compare.html");
    output::write(&page, Existing::Replaced, compared.html(Scale::Linear).as_bytes())?;
    base::say!("wrote {}", page.display());
    Ok(())
}

/// Writes the job of every variant that is not complete, and submits those that are not in the queue.
fn submit_jobs(sweep: &Variants, resources: &Resources) -> Result<()> {
    for variant in sweep.all.iter().filter(|variant| !variant.is_complete()) {
        let file = |end: &str| sweep.folder.join(format!("{}.{end}", variant.name));
        let [script, job] = [file("sh"), file("job")];
        if let Some(id) = find_queued_job(&job) {
            base::say!("{}: is job {id}", variant.name);
            continue;
        }
        let text = resources.script(&variant.loaded, &variant.sets)?;
        output::write(&script, Existing::Replaced, text.as_bytes())?;
        match Command::new("sbatch")
            .arg("--parsable")
            .arg(&script)
            .output()
        {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                base::say!(
                    "{}: there is no sbatch here: sbatch {}",
                    variant.name,
                    script.display()
                );
            }
            Err(error) => return Err(error).context("cannot start sbatch"),
            Ok(done) if !done.status.success() => {
                let why = String::from_utf8_lossy(&done.stderr).trim().to_string();
                bail!("sbatch {} failed: {why}", script.display());
            }
            Ok(done) => {
                let id = String::from_utf8_lossy(&done.stdout).trim().to_string();
                output::write(&job, Existing::Replaced, id.as_bytes())?;
                base::say!("{}: submitted as job {id}", variant.name);
            }
        }
    }
    Ok(())
}

/// Job that a file names, if Slurm still has it.
fn find_queued_job(file: &Path) -> Option<String> {
    let id = std::fs::read_to_string(file).ok()?;
    let number = id.split(';').next()?.trim().to_string();
    let listed = Command::new("squeue")
        .args(["--noheader", "--jobs", &number])
        .output()
        .ok()?;
    let is_listed = listed.status.success() && !listed.stdout.trim_ascii().is_empty();
    is_listed.then_some(number)
}
