//! `gptrain tune`: cuts of a manifest, each run for a few steps, as one table of planned and measured
//! figures.

mod cuts;
mod launcher;

use crate::completions::{HARDWARE, SETTINGS};
use anyhow::{Context, Result};
use base::output::{self, Existing};
use base::table::Printout;
use base::{Count, Problems, Seconds, escape_control, number};
use cuts::{Cut, Cuts};
use estimate::tuned::{CutResult, FORMAT, Tuned};
use launch::series::{Progress, Series, Task};
use launcher::Launcher;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use train::probe::Probe;

/// Measure several topologies of a manifest, each for a few steps of the real run, in one table
///
/// Takes the first cuts of `estimate --search`, or every combination of the values of --over. Each runs
/// by itself, with all its ranks: on this machine, or with one srun each in an allocation of Slurm. A cut
/// that does not fit, fails or hangs is a row with its result. The same command continues after an
/// interruption, and measures no row twice.
#[derive(clap::Args)]
pub struct Tune {
    /// Manifest
    manifest: PathBuf,
    /// Change a setting of the manifest, in all cuts
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    /// Settings with their values, all of which are combined: "topology.tensor=1,2; batch.micro=1,2,4".
    /// topology.data keeps the number of ranks, unless it is given
    #[arg(long, value_name = "KEY=VALUE,VALUE; …")]
    over: Option<String>,
    /// Measure so many of the fastest cuts by the plan [default: 6, without --over]
    #[arg(long, value_name = "CUTS", value_parser = number::count, conflicts_with = "over")]
    best: Option<NonZeroUsize>,
    /// Ranks [default: those of the manifest's topology]
    #[arg(long, value_name = "RANKS", value_parser = number::count)]
    gpus: Option<NonZeroUsize>,
    /// Row of the hardware table for the plan, instead of the manifest's plan.hardware
    #[arg(long, value_name = "NAME", value_parser = HARDWARE, hide_possible_values = true)]
    hardware: Option<String>,
    /// Steps of each cut, the first of which is not counted
    #[arg(long, value_name = "STEPS", default_value = "5", value_parser = number::whole_in(1..=u64::MAX))]
    steps: u64,
    /// Measure the steps after this many samples of the run
    #[arg(long, value_name = "SAMPLES", default_value = "0", value_parser = number::whole::<u64>)]
    at_samples: u64,
    /// Seconds after which a cut is ended
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = number::real_in(1.0..=1e6))]
    limit: f64,
    /// Measure again what failed or reached its time limit
    #[arg(long)]
    retry: bool,
    /// Folder of the records and the output of the cuts [default: the manifest's log.folder with `-tune`]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Also write the table to this file: FILE.json, which `estimate --calibrate` reads, FILE.csv or
    /// FILE.md
    #[arg(short, long, value_name = "FILE", value_parser = check_name)]
    output: Option<PathBuf>,
    /// Print JSON, which `estimate --calibrate` reads
    #[arg(long)]
    json: bool,
}

impl Tune {
    pub fn run(self) -> Result<()> {
        let launcher = Launcher::detect()?;
        if let Some(path) = &self.output {
            refuse_other_file(path)?;
        }
        let cuts = self.cuts(&launcher)?;
        let folder = &cuts.folder;
        let open = cuts
            .all
            .iter()
            .filter(|cut| cut.planned.result == CutResult::Open);
        let tasks: Vec<Task> = open.map(|cut| self.task(folder, cut, &launcher)).collect();
        let mut series = Series::open(folder, &tasks)?.keeping_failures(self.retry);
        let mut failures = BTreeMap::new();
        let mut done = 0;
        for task in &tasks {
            if series.is_done(task) {
                done += 1;
                failures.extend(
                    series
                        .failure(task)
                        .map(|why| (task.name.clone(), why.to_string())),
                );
            } else {
                // Of other settings or steps.
                output::remove(&task.leaves)?;
            }
        }
        let number = Count(cuts.all.len() as u64).with_noun("cut");
        let left = tasks.len() - done;
        tracing::info!("{}: {number}, {left} to measure", folder.display());
        let outcome = series.run(
            &[Vec::new()],
            &|task: &Task| task.leaves.exists(),
            &mut |task, progress| {
                match progress {
                    Progress::Started => {
                        tracing::info!("{}: started, {}", task.name, task.output.display());
                        return;
                    }
                    Progress::Stopped => return,
                    Progress::Done(seconds) => {
                        tracing::info!("{}: measured, in {}", task.name, Seconds(seconds));
                    }
                    Progress::Failed(why) => {
                        tracing::warn!("{}: {}", task.name, escape_control(why));
                        failures.insert(task.name.clone(), why.to_string());
                    }
                }
                if let Err(error) = self.write(&self.tuned(&cuts, &failures)) {
                    tracing::warn!("{error:#}");
                }
            },
        )?;
        let tuned = self.tuned(&cuts, &failures);
        self.write(&tuned)?;
        let mut out = Printout::new(&tuned);
        out.table(tuned.table());
        out.say(self.json);
        if outcome.stopped {
            base::warn!("stopped: the same command continues");
        }
        Ok(())
    }

    /// Cuts to measure, and those of which the plan says that they cannot run.
    fn cuts(&self, launcher: &Launcher) -> Result<Cuts> {
        Cuts::read(&cuts::Request {
            manifest: &self.manifest,
            sets: &self.set,
            over: self.over.as_deref(),
            best: self.best.map_or(6, usize::from),
            ranks: self.gpus.map(usize::from),
            hardware: self.hardware.as_deref(),
            at_samples: self.at_samples,
            folder: self.folder.as_deref(),
            is_here: launcher.is_here(),
        })
    }

    /// Command that probes a cut.
    fn task(&self, folder: &Path, cut: &Cut, launcher: &Launcher) -> Task {
        let leaves = folder.join(format!("{}.json", cut.name));
        let mut words = vec!["run".into(), self.manifest.clone().into_os_string()];
        for set in self.set.iter().chain(&cut.planned.set) {
            words.extend(["--set".into(), set.into()]);
        }
        words.extend(["--probe".into(), self.steps.to_string().into()]);
        words.extend(["--at-samples".into(), self.at_samples.to_string().into()]);
        words.extend(["--probe-output".into(), leaves.clone().into_os_string()]);
        let Tune { steps, at_samples, .. } = self;
        Task {
            name: cut.name.clone(),
            input: format!("{steps} steps after {at_samples} samples\n{}", cut.effective),
            launcher: launcher.words(cut.ranks(), cut.per_node, self.limit),
            words,
            limit: Some(Duration::from_secs_f64(self.limit)),
            output: folder.join(format!("{}.log", cut.name)),
            leaves,
        }
    }

    /// Document of the present results.
    fn tuned(&self, cuts: &Cuts, failures: &BTreeMap<String, String>) -> Tuned {
        let mut rows = Vec::new();
        for cut in &cuts.all {
            let path = cuts.folder.join(format!("{}.json", cut.name));
            let measured = std::fs::read(path).ok();
            let measured = measured.and_then(|text| serde_json::from_slice::<Probe>(&text).ok());
            rows.push(match (measured, failures.get(&cut.name)) {
                (_, Some(why)) => cut.failed(why),
                (Some(probe), None) => cut.measured(&probe),
                (None, None) => cut.planned.clone(),
            });
        }
        Tuned {
            format: FORMAT.into(),
            name: cuts.base.manifest.name.clone(),
            manifest: cuts.base.effective.clone(),
            precision: cuts.base.manifest.precision,
            hardware: cuts.hardware.clone(),
            steps: self.steps,
            rows,
        }
    }

    /// Writes the table to the file of --output.
    fn write(&self, tuned: &Tuned) -> Result<()> {
        let Some(path) = &self.output else { return Ok(()) };
        let text = match ending(path) {
            "csv" => tuned.table().csv(),
            "md" => tuned.table().markdown(),
            _ => serde_json::to_string_pretty(tuned)? + "\n",
        };
        output::write(path, Existing::Replaced, text.as_bytes())
    }
}

fn ending(path: &Path) -> &str {
    path.extension().and_then(|end| end.to_str()).unwrap_or("")
}

fn check_name(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match ending(&path) {
        "json" | "csv" | "md" => Ok(path),
        _ => Err("name a file that ends with .json, .csv or .md".to_string()),
    }
}

/// Fails if a file has the name of the output and is not a table of this command.
fn refuse_other_file(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let text = base::input::read(path, base::input::SMALL)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&text);
    let empty = Tuned {
        format: FORMAT.into(),
        name: String::new(),
        manifest: String::new(),
        precision: manifest::Precision::F32,
        hardware: String::new(),
        steps: 1,
        rows: Vec::new(),
    };
    let is_ours = match ending(path) {
        "csv" => text.starts_with(&empty.table().csv()),
        "md" => text.starts_with("| nodes | size | DP |"),
        _ => text.contains(FORMAT),
    };
    if is_ours {
        return Ok(());
    }
    let place = path.display().to_string();
    let remedy = "give --output another name, or remove it";
    Err(Problems::one(place, "exists, and is not a table of gptrain tune", remedy).into())
}
