//! `gptrain estimate`

mod campaign;
pub mod config;
mod log;
#[cfg(feature = "predict")]
mod others;
mod progress;
pub mod records;
pub mod search;
mod unused_flags;

use crate::completions::{HARDWARE, PROGRAMS, SETTINGS};
use crate::import::foreign;
use crate::import::script::ScriptArgs;
use crate::manifest::new::{New, parse_family};
use crate::options::Overwrite;
use base::table::Printout;
use base::{Problems, number};
use config::Planned;
use estimate::gptrain::advisor::Advisor;
use estimate::gptrain::dry_run::MemoryLimits;
use estimate::machine::split_settings;
use estimate::predict::Predict;
use estimate::request::{Flags, Request};
use estimate::setup::{Extras, Program};
use estimate::trainers;
use estimate::verdict::MemoryFit;
use estimate::view::View;
use estimate::{plot, print, shapes, words};
use launch::exit::{self, AlreadyPrinted};
use manifest::{Family, Loaded, Ranks};
use plan::timeline;
use progress::Bar;
use records::{learn, list_hardware};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Estimate {
    /// Manifest; or a config.json of Hugging Face or its folder, for a run of that model; or a size such as
    /// 7B: then the shape of the published model of that size
    #[arg(required_unless_present_any = [
        "selftest", "score", "list_hardware", "list_shapes", "from", "args", "log",
    ])]
    manifest: Option<PathBuf>,
    /// In place of a manifest, a checkpoint that `gptrain import` reads: the run that it would
    /// become
    #[arg(long, value_name = "DIR", conflicts_with_all = ["manifest", "family", "what_if", "sizes"])]
    from: Option<PathBuf>,
    /// In place of a manifest, a launch script or the command line of another trainer: the run that
    /// `gptrain import --args` makes of it
    #[arg(long, value_name = "SCRIPT")]
    #[arg(conflicts_with_all = ["manifest", "from", "family", "what_if", "sizes"])]
    args: Option<String>,
    #[command(flatten)]
    script: ScriptArgs,
    /// Print the rates of a training from its log: TFLOPs by both formulas, MFU, tokens per second, days
    /// left. A log of Megatron says the model itself; for others name a manifest, or --args
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["from", "what_if", "sizes", "search", "min_gpus", "max_params", "calibrate"])]
    #[arg(conflicts_with_all = ["selftest", "score", "list_hardware", "plot", "draw_schedule", "gpus"])]
    log: Option<PathBuf>,
    /// Change a setting of the manifest, as in `--set topology.tensor=4`
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    #[arg(long = "as", value_name = "PROGRAM", help = list_programs())]
    #[arg(value_parser = PROGRAMS, hide_possible_values = true)]
    program: Option<String>,
    /// Family of the model, for a size instead of a manifest: gpt2 or llama [default: that of the
    /// published model]
    #[arg(long, value_parser = parse_family)]
    family: Option<Family>,
    /// Row of the hardware table, instead of the manifest's plan.hardware, or a YAML file with the columns
    /// of your machine (docs/estimate.md). --set hardware.COLUMN=VALUE changes a column; h100 is h100-80g
    #[arg(long, value_name = "NAME|FILE", value_parser = HARDWARE, hide_possible_values = true)]
    hardware: Option<String>,
    /// Print the hardware table
    #[arg(long)]
    list_hardware: bool,
    /// Print the shapes of published models: layers, hidden width, their ratio h/L, heads, parameters
    #[arg(long)]
    list_shapes: bool,
    /// Length of the run in tokens, instead of the manifest's, such as 366e9 or 300B
    #[arg(long, value_parser = words::tokens)]
    tokens: Option<f64>,
    /// Price of one device for one hour, in dollars or with a currency: 2.10, €2.10, "2.10 CHF"
    #[arg(long, value_parser = words::price)]
    price: Option<words::Price>,
    /// Budget of the run, in the price's currency: 90000, €90000
    #[arg(long, value_parser = words::budget)]
    budget: Option<words::Sum>,
    /// TFLOP/s that a device reaches, by 8 FLOPs per parameter and token with full recomputation,
    /// else 6 (simple formula): the plan's times follow from it, instead of from the hardware
    #[arg(long, value_parser = number::real)]
    tflops: Option<f64>,
    /// Share of the wall-clock time in which the run makes progress. `--set plan.fault_hours=8` counts it
    /// from faults, saves and restarts
    #[arg(long, value_parser = number::real)]
    availability: Option<f64>,
    /// Assume asynchronous kernel launches (CUDA_LAUNCH_BLOCKING=0): in a plan for a machine whose
    /// measured launches were synchronous, such as jean-zay-a100, and in all rows of --score and
    /// --calibrate
    #[arg(long)]
    async_launches: bool,
    #[command(flatten)]
    search: search::Search,
    #[command(flatten)]
    campaign: campaign::Campaign,
    /// Fit the constants of the estimate to measurements. For gptrain: the output of `gptrain bench
    /// --json` or `gptrain tune --json`, or a run: its folder, its metrics.jsonl or its log. For other programs: a log, or a
    /// csv with the columns of `measured_runs.csv`
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Predict the shipped measured runs and print the errors
    #[arg(long)]
    selftest: bool,
    /// Predict every row of a csv of measured runs and print the errors
    #[arg(long, value_name = "FILE")]
    score: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write charts and an HTML page into this folder
    #[arg(long, value_name = "FOLDER")]
    plot: Option<PathBuf>,
    /// Programs whose days over devices --plot draws beside those of the plan, such as
    /// hf-deepspeed,fsdp
    #[arg(long, value_name = "PROGRAM,…", value_delimiter = ',', value_parser = PROGRAMS)]
    #[arg(hide_possible_values = true)]
    beside: Vec<String>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Draw the pipeline's schedule
    #[arg(long)]
    draw_schedule: bool,
}

/// Help of `--as`.
fn list_programs() -> String {
    let names = trainers::names().join(", ");
    format!(
        "Estimate for another trainer, or rows of unknown ones in --score by its formulas: {names}"
    )
}

impl Estimate {
    pub fn run(mut self) -> anyhow::Result<()> {
        let fills_gpus = self.fills_gpus();
        self.imply_search(fills_gpus);
        self.refuse_unused(fills_gpus)?;
        if self.list_hardware {
            list_hardware().say(self.json);
            return Ok(());
        }
        if self.list_shapes {
            shapes::list().say(self.json);
            return Ok(());
        }
        if self.selftest || self.score.is_some() {
            return print_scores(&self);
        }
        if let Some(log) = &self.log {
            return self.print_log(log);
        }
        let fits = self.print_plan()?;
        if fits { Ok(()) } else { Err(AlreadyPrinted { code: exit::DOES_NOT_FIT }.into()) }
    }

    /// Prints the plan. Ok(false) if it does not fit, by its whole bar.
    fn print_plan(&self) -> anyhow::Result<bool> {
        let (settings, columns) = split_settings(&self.set);
        let planned = match (&self.from, &self.args, &self.manifest) {
            (Some(from), ..) => foreign::planned_run(from, &settings)?,
            (None, Some(script), _) => self.script.planned_run(script, &settings)?.into(),
            (None, None, manifest) => {
                self.load(manifest.as_ref().expect("clap asks for it"), &self.set)?
            }
        };
        let mixture = planned.mixture();
        self.refuse_for_mixture(mixture)?;
        if let Some(path) = &self.manifest {
            if let Some(file) = &planned.file {
                self.say_defaults(file);
            }
            if !self.campaign.what_if.is_empty() {
                return campaign::print_changes(self, path, planned);
            }
            if !self.campaign.sizes.is_empty() {
                return campaign::print_sizes(self, path, &planned.loaded.manifest);
            }
        }
        let loaded = planned.loaded;
        let until = self.campaign.tokens_until_loss(&loaded.manifest.model)?;
        let tokens = until.or(self.tokens);
        let flags = Flags { tokens, columns: &columns, mixture, ..self.flags() };
        let mut request = Request::new(loaded.manifest, &flags)?;
        self.refuse_unused_for(request.setup.program)?;
        if request.setup.program == Program::Gptrain
            && let Some(path) = &self.calibrate
        {
            request = learn(path, request)?;
        }
        let other = find_predictor(self, &request)?;
        if self.search.is_asked() {
            return search::run(self, &request, other);
        }
        request.check_program()?;
        let (view, mut out) = advise(&request, &loaded.effective, other);
        if let (Some(loss), Some(tokens)) = (self.campaign.until_loss, until) {
            let tokens = words::size(tokens);
            out.line(format!(
                "\nBy the law, the model has a loss of {loss} after {tokens} tokens."
            ));
            out.json["until_loss"] = loss.into();
        }
        add_charts(self, &request, other, &view, &mut out)?;
        out.say(self.json);
        Ok(view.verdict() != MemoryFit::DoesNotFit)
    }

    /// Loads the manifest, or makes one for a size.
    fn load(&self, path: &Path, sets: &[String]) -> anyhow::Result<Planned> {
        let (sets, _) = &split_settings(sets);
        if self.family.is_none()
            && let Some(file) = config::read(path)?
        {
            return config::planned_run(file, sets);
        }
        let size = path.to_str().filter(|_| !path.exists()).map(words::tokens);
        let Some(Ok(size)) = size else {
            if self.family.is_some() {
                return Err(Problems::one(
                    "--family",
                    "is for a size such as 7B instead of a manifest",
                    "set model.family in the manifest",
                )
                .into());
            }
            return Ok(self.load_manifest(path, sets)?.into());
        };
        let name = path.display().to_string();
        let new = New { params: Some(size as u64), family: self.family, ..New::default() };
        Ok(manifest::parse(&new.text(&name)?, &name, Path::new("."), sets)?.into())
    }

    /// Whether --gpus is the number of ranks of a manifest with `topology.data: auto`.
    fn fills_gpus(&self) -> bool {
        let searches = self.search.is_asked() || !self.campaign.sizes.is_empty();
        let path = self.manifest.as_deref().filter(|path| path.exists());
        let Some(path) = path.filter(|_| self.search.gpus.is_some() && !searches) else {
            return false;
        };
        let (sets, _) = split_settings(&self.set);
        let loaded = manifest::load_for(path, &sets, Ranks::OneReplica);
        loaded.is_ok_and(|loaded| loaded.replicas_are_auto)
    }

    /// Loads a manifest. A plan with `topology.data: auto` needs --gpus; a search tries all numbers of
    /// replicas.
    fn load_manifest(&self, path: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
        let loaded = manifest::load_for(path, sets, Ranks::OneReplica)?;
        let searches = self.search.is_asked() || !self.campaign.sizes.is_empty();
        if !loaded.replicas_are_auto || searches {
            return Ok(loaded);
        }
        let Some(gpus) = self.search.gpus else {
            return Err(Problems::one(
                "topology.data",
                "topology.data is auto: a plan needs the number of devices",
                "give --gpus 64 (with --search for the best topology over them)",
            )
            .into());
        };
        manifest::load_for(path, sets, Ranks::Number(gpus))
    }

    fn flags(&self) -> Flags<'_> {
        Flags {
            program: self.program.as_deref(),
            hardware: self.hardware.as_deref(),
            columns: &[],
            mixture: None,
            tokens: self.tokens,
            price: self.price,
            budget: self.budget,
            availability: self.availability,
            async_launches: self.async_launches,
            tflops: self.tflops,
        }
    }
}

/// Predictor of the request's program; None for gptrain.
fn find_predictor(
    args: &Estimate,
    request: &Request,
) -> anyhow::Result<Option<&'static dyn Predict>> {
    match request.setup.program {
        Program::Gptrain => Ok(None),
        #[cfg(feature = "predict")]
        Program::Other(_) => Ok(Some(others::load_predictor(args, Some(&request.setup))?)),
        #[cfg(not(feature = "predict"))]
        Program::Other(_) => Err(refuse_other_programs(args).into()),
    }
}

/// Errors of predictions of measured runs.
fn print_scores(args: &Estimate) -> anyhow::Result<()> {
    #[cfg(feature = "predict")]
    return others::print_scores(args);
    #[cfg(not(feature = "predict"))]
    Err(refuse_other_programs(args).into())
}

/// Error for the option that needs the planner of other programs.
#[cfg(any(test, not(feature = "predict")))]
fn refuse_other_programs(args: &Estimate) -> Problems {
    let option = match args {
        Estimate { selftest: true, .. } => "--selftest",
        Estimate { score: Some(_), .. } => "--score",
        Estimate { program: Some(_), .. } => "--as",
        _ => "plan.framework",
    };
    Problems::without(option, "plans of other programs", ", or plan for gptrain: --as gptrain")
}

/// Plan with advice.
fn advise(request: &Request, effective: &str, other: Option<&dyn Predict>) -> (View, Printout) {
    let view = request.view(other);
    let mut out = print::printout(&view);
    let Request { manifest, setup, .. } = request;
    // Changes are timed by the plan, whose seconds are not those of `--tflops`.
    if request.tflops.is_some() {
        return (view, out);
    }
    match other {
        Some(other) => other.advise(manifest, &view, &mut out),
        None => {
            let limits = MemoryLimits::new(manifest, setup.hardware);
            let advisor = Advisor { effective, manifest, setup, limits };
            print::advise_own(&view, &advisor, &mut out);
        }
    }
    (view, out)
}

/// Adds the schedule and writes the charts, as the options say.
fn add_charts(
    args: &Estimate,
    request: &Request,
    other: Option<&dyn Predict>,
    view: &View,
    out: &mut Printout,
) -> anyhow::Result<()> {
    let played = view.schedule();
    if args.draw_schedule {
        out.line(format!("\nSchedule\n{}", timeline::draw(&played, 90).trim_end()));
    }
    if let Some(folder) = &args.plot {
        let bar = Bar::new();
        let watch = |progress| bar.show(progress);
        let search = request.search(other, Extras::default()).with_watch(&watch);
        let (_, columns) = split_settings(&args.set);
        let mut lines = vec![(request.setup.program.name(), search.scaling())];
        for name in &args.beside {
            let flags = Flags {
                program: Some(name),
                columns: &columns,
                mixture: request.setup.mixture,
                tokens: Some(view.tokens()),
                ..args.flags()
            };
            let request = Request::new(request.manifest.clone(), &flags)?;
            let other = find_predictor(args, &request)?;
            let search = request.search(other, Extras::default()).with_watch(&watch);
            lines.push((request.setup.program.name(), search.scaling()));
        }
        bar.finish();
        let text = out.text(usize::MAX);
        plot::write(folder, args.overwrite.existing(), view, &text, &played, &lines)?;
        out.line(format!("\n{}", folder.join("estimate.html").display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Estimate,
    }

    #[test]
    fn plans_of_other_programs_are_refused_with_the_remedy() {
        let cases: [(&[&str], &str); 5] = [
            (&["7B", "--as", "megatron-lm"], "--as"),
            (&["run.yaml"], "plan.framework"),
            (&["--selftest"], "--selftest"),
            (&["--score", "runs.csv"], "--score"),
            (&["--score", "runs.csv", "--as", "megatron-lm"], "--score"),
        ];
        for (words, place) in cases {
            let args = Cli::parse_from([&["estimate"], words].concat()).args;
            let said = refuse_other_programs(&args).to_string();
            let parts = [place, "without plans of other programs", "cargo build --release"];
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
    }
}
