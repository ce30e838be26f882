//! `gptrain estimate`

mod search;

use crate::base::Problems;
use crate::estimate::predict::{Prediction, Predictor};
use crate::estimate::rows::{self, logs};
use crate::estimate::setup::{Framework, Setup};
use crate::estimate::view::{self, Terms, View};
use crate::estimate::{change, doctor, hardware, plot, print, score};
use crate::manifest::{self, Manifest};
use crate::plan::timeline;
use anyhow::Context;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Ends with this where the plan does not fit.
pub const DOES_NOT_FIT: u8 = 4;

#[derive(clap::Args)]
pub struct Args {
    /// The experiment
    #[arg(required_unless_present_any = ["selftest", "score", "list_hardware"])]
    manifest: Option<PathBuf>,
    /// Change a setting of the manifest, as in `--set topology.tensor=4`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Predict another program's needs: megatron-deepspeed, megatron-lm, deepspeed-zero3,
    /// hf-deepspeed, ddp, fsdp
    #[arg(long = "as", value_name = "PROGRAM")]
    program: Option<String>,
    /// A row of the hardware table, in place of the manifest's plan.hardware
    #[arg(long, value_name = "NAME")]
    hardware: Option<String>,
    /// Print the hardware table
    #[arg(long)]
    list_hardware: bool,
    /// Length of the run, in place of the manifest's, such as 366e9
    #[arg(long)]
    tokens: Option<f64>,
    /// Price of a device and hour
    #[arg(long)]
    price: Option<f64>,
    /// Money for the run
    #[arg(long)]
    budget: Option<f64>,
    /// Share of the calendar in which the run makes progress
    #[arg(long)]
    availability: Option<f64>,
    /// Kernel launches do not wait (CUDA_LAUNCH_BLOCKING=0); the measured Megatron-DeepSpeed runs did
    #[arg(long)]
    async_launches: bool,
    #[command(flatten)]
    search: search::Search,
    /// Fit the constants to runs: a csv with the columns of `measured_runs.csv`, or a log
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Replay the shipped measured runs and print the errors
    #[arg(long)]
    selftest: bool,
    /// Predict every row of a csv of measured runs and print the errors
    #[arg(long, value_name = "FILE")]
    score: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write pictures and a page into this folder
    #[arg(long, value_name = "FOLDER")]
    plot: Option<PathBuf>,
    /// Draw the pipeline's schedule
    #[arg(long)]
    draw_schedule: bool,
}

/// Ok(false): the plan does not fit.
pub fn run(args: Args) -> anyhow::Result<bool> {
    if args.list_hardware {
        list_hardware();
        return Ok(true);
    }
    if args.selftest {
        let (text, json) = score::print::selftest();
        show(args.json, &text, &json);
        return Ok(true);
    }
    if let Some(path) = &args.score {
        let calibrated = args.calibrate.as_deref().map(|from| calibrate(from, None)).transpose()?;
        let predictor = calibrated.as_ref().unwrap_or_else(|| Predictor::shipped());
        let (text, json) = score::print::score(predictor, &runs(path)?);
        show(args.json, &text, &json);
        return Ok(true);
    }
    plan(&args)
}

/// What the manifest and the flags ask for.
struct Planned {
    manifest: Manifest,
    setup: Setup,
    terms: Terms,
    /// None is gptrain itself.
    framework: Option<Framework>,
}

fn plan(args: &Args) -> anyhow::Result<bool> {
    let planned = planned(args)?;
    let calibrated =
        args.calibrate.as_deref().map(|from| calibrate(from, Some(&planned.setup))).transpose()?;
    let predictor = calibrated.as_ref().unwrap_or_else(|| Predictor::shipped());
    let Planned { manifest: m, setup, terms, framework } = &planned;
    if args.search.asked() {
        let (text, json) = search::run(&args.search, m, setup, terms, predictor)?;
        show(args.json, &text, &json);
        return Ok(true);
    }
    let (view, prediction) = match framework {
        Some(_) => {
            let (view, p) = view::predicted(m, name(*framework), setup.clone(), predictor, terms);
            (view, Some(p))
        }
        None => (view::own(m, setup.clone(), terms)?, None),
    };
    let (mut text, mut json) = (print::text(&view), print::json(&view));
    if let Some(now) = &prediction {
        advise(&view, now, predictor, &mut text, &mut json);
    }
    let played = view.schedule();
    if args.draw_schedule {
        text += &format!("\nSchedule\n{}", timeline::draw(&played, 90));
    }
    if let Some(folder) = &args.plot {
        let points = match framework {
            Some(_) => search::scaling(m, setup, terms, predictor),
            None => Vec::new(),
        };
        plot::write(folder, &view, &text, &played, &points)?;
        text += &format!("\n{}\n", folder.join("estimate.html").display());
    }
    show(args.json, &text, &json);
    Ok(view.fits)
}

fn planned(args: &Args) -> anyhow::Result<Planned> {
    let path = args.manifest.as_ref().expect("clap asks for it");
    let m = manifest::load(path, &args.set)?.manifest;
    let asked = match &args.program {
        Some(name) => Some(serde_json::from_value(json!(name)).map_err(|_| {
            let what = format!("unknown program `{name}`");
            let known = "gptrain, megatron-deepspeed, megatron-lm, deepspeed-zero3, hf-deepspeed, \
                         ddp, fsdp";
            Problems::one("--as", what, format!("take one of {known}"))
        })?),
        None => m.plan.framework,
    };
    let framework = asked.and_then(Framework::planned);
    let wished = args.hardware.clone().or(m.plan.hardware.clone());
    let place = if args.hardware.is_some() { "--hardware" } else { "plan.hardware" };
    let default = if framework.is_some() || m.topology.ranks() > 8 { "a100-80g" } else { "cpu" };
    let hw = hardware::find(wished.as_deref().unwrap_or(default), place)?;
    let mut setup = Setup::of(&m, framework.unwrap_or(Framework::MegatronLm), hw);
    setup.blocking &= !args.async_launches;
    let samples = match args.tokens {
        Some(tokens) => (tokens / m.model.seq_len as f64) as u64,
        None => m.train.samples,
    };
    if m.batch.ramp().steps(samples) == 0 {
        let what = format!("{} tokens are less than one step", args.tokens.unwrap_or(0.0));
        return Err(Problems::one("--tokens", what, "give more, such as 366e9").into());
    }
    let terms = Terms {
        price: args.price.or(m.plan.price).unwrap_or(hw.price),
        availability: args.availability.or(m.plan.availability).unwrap_or(1.0),
        budget: args.budget.or(m.plan.budget),
        samples,
    };
    if !(terms.availability > 0.0 && terms.availability <= 1.0) {
        let what = format!("availability {} is no share", terms.availability);
        return Err(Problems::one("--availability", what, "give a number above 0, up to 1").into());
    }
    Ok(Planned { manifest: m, setup, terms, framework })
}

fn name(framework: Option<Framework>) -> &'static str {
    let found = Framework::NAMES.iter().find(|(_, f)| Some(*f) == framework);
    found.map_or("gptrain", |(name, _)| name)
}

/// The ladder where it does not fit, else what would be faster; and the shape's awkwardness.
fn advise(
    v: &View,
    now: &Prediction,
    p: &Predictor,
    text: &mut String,
    json: &mut serde_json::Value,
) {
    let notes = doctor::doctor(&v.setup);
    *text += &print::notes(&notes);
    json["shape"] = json!(notes);
    if v.fits {
        let list = change::faster(p, &v.setup, now);
        *text += &print::changes("Faster, by seconds of a step", &list, v, now, 6);
        json["faster"] = print::changes_json(&list, v, now);
    } else {
        let list = change::ladder(p, &v.setup);
        let none =
            "\nNo change of one or two steps fits: more devices (--min-gpus) or a smaller model.\n";
        let ladder = print::changes("Would fit, and what it costs a step", &list, v, now, 8);
        *text += if list.is_empty() { none } else { &ladder };
        json["ladder"] = print::changes_json(&list, v, now);
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn runs(path: &Path) -> anyhow::Result<Vec<rows::Row>> {
    Ok(rows::read(&read(path)?, &path.display().to_string())?)
}

/// From a csv of runs, or from a log of the run that `setup` plans. Odd rows are named on stderr, and
/// left out.
fn calibrate(path: &Path, setup: Option<&Setup>) -> anyhow::Result<Predictor> {
    let (text, name) = (read(path)?, path.display().to_string());
    let is_log =
        text.contains("elapsed time per iteration") || path.extension().is_none_or(|e| e != "csv");
    let (mut rows, odd) = if is_log {
        let Some(setup) = setup else {
            let what = "a log says times, not what was run";
            return Err(Problems::one(name, what, "give the run's manifest, or a csv").into());
        };
        let rows = logs::read(&text, &name, setup)?;
        let odd = logs::odd(&rows);
        (rows, odd)
    } else {
        let rows = rows::read(&text, &name)?;
        let named =
            |row: &rows::Row| row.odd().into_iter().map(|what| (row.id.clone(), what)).collect();
        let odd = rows.iter().flat_map(|row| -> Vec<(String, String)> { named(row) }).collect();
        (rows, odd)
    };
    for (id, what) in &odd {
        eprintln!("{name}: {id}: {what}");
    }
    rows.retain(|row| odd.iter().all(|(id, _)| *id != row.id));
    let predictor = Predictor::calibrated(&rows);
    let (times, weights) = predictor.learned;
    if times + weights == 0 {
        let what = "no row can be learned from";
        return Err(Problems::one(name, what, "give runs with sec_per_iter or mem_gb").into());
    }
    eprintln!("{name}: learned from {times} times and {weights} memories");
    Ok(predictor)
}

fn list_hardware() {
    for h in hardware::table() {
        println!(
            "{:12} {:>6} TFLOP/s {:>6} GB/s {:>6} GiB {:>5}/h  {}",
            h.name, h.peak_tflops, h.hbm_gb_s, h.memory_gib, h.price, h.about
        );
    }
}

fn show(json: bool, text: &str, value: &serde_json::Value) {
    if json {
        println!("{value:#}");
    } else {
        print!("{text}");
    }
}
