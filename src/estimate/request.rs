//! Request of an estimate: a manifest, and the flags that override its settings.

use super::faults::Faults;
use super::gptrain::calibrate;
use super::gptrain::local_cpu::{self, Care};
use super::gptrain::tuned_cuts;
use super::hardware::{CPU, Hardware};
use super::logs;
use super::machine;
use super::measured::Measured;
use super::mixture::{self, Mixture};
use super::predict::Predict;
use super::search::{Planner, Search};
use super::setup::{Extras, Program, Setup};
use super::trainers;
use super::tuned::Tuned;
use super::view::{self, Terms, View};
use super::words::{self, Price};
use base::Problems;
use device::Dry;
use engine::{check_micro_batch, model_dtype};
use manifest::{Manifest, Precision, Shard, Topology};
use plan::segments::BatchSchedule;

/// Options that override the manifest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'a> {
    /// Name of a program.
    pub program: Option<&'a str>,
    /// A row of the hardware table, or a file.
    pub hardware: Option<&'a str>,
    /// Columns that replace the row's, `hardware.COLUMN=VALUE`, and degrees of parallelism that manifests do
    /// not have.
    pub columns: &'a [String],
    /// Experts of the layers, of which the manifest's model is the dense part.
    pub mixture: Option<Mixture>,
    pub tokens: Option<f64>,
    /// Price of one device for one hour.
    pub price: Option<Price>,
    pub budget: Option<words::Sum>,
    /// Share of the wall-clock time in which the run makes progress.
    pub availability: Option<f64>,
    /// Whether kernel launches are asynchronous.
    pub async_launches: bool,
    /// TFLOP/s of a device by the simple formula, instead of the plan's own.
    pub tflops: Option<f64>,
}

/// Manifest, as a program would train it on some hardware.
pub struct Request {
    pub manifest: Manifest,
    pub setup: Setup,
    pub terms: Terms,
    /// TFLOP/s of a device by the simple formula; None for the plan's own.
    pub tflops: Option<f64>,
}

impl Request {
    pub fn new(mut manifest: Manifest, flags: &Flags) -> Result<Request, Problems> {
        let m = &manifest;
        let program = program(m, flags)?;
        refuse_levels(m, program)?;
        let place = if flags.hardware.is_some() { "--hardware" } else { "plan.hardware" };
        let small = program == Program::Gptrain && m.topology.ranks() <= 8;
        let default = if small { CPU } else { "a100-80g" };
        let named = flags.hardware.or(m.plan.hardware.as_deref());
        let row = machine::find(named.unwrap_or(default), place)?;
        let (degrees, columns): (Vec<String>, Vec<String>) = flags
            .columns
            .iter()
            .cloned()
            .partition(|set| mixture::is_setting(set));
        let hw = machine::with_settings(row, &columns)?;
        let hw = match program {
            Program::Gptrain if hw.name == CPU => {
                local_cpu::measure(hw, model_dtype(m.precision), None, Care::Full).leak()
            }
            _ => hw,
        };
        refuse_numbers(m.precision, hw)?;
        if program == Program::Gptrain && hw.name != CPU {
            check_micro_batch(&Dry::gpu(), m)?;
        }
        manifest::resolve_shard(&mut manifest.topology, hw.per_node)?;
        let m = &manifest;
        let mut setup = Setup::new(m, program, hw);
        setup.blocking &= !flags.async_launches;
        setup.mixture = flags.mixture;
        let setup = setup.with_degree_settings(&degrees)?;
        let samples = match flags.tokens {
            Some(tokens) => whole_samples(&m.schedule(), tokens as u64),
            None => m.train.samples,
        };
        if m.batch.ramp().steps(samples) == 0 {
            return Err(Problems::one(
                "--tokens",
                format!("{} tokens are less than one step", flags.tokens.unwrap_or(0.0)),
                "give more, such as 366e9",
            ));
        }
        let price = flags.price.or(m.plan.price.map(Price::dollars));
        let price = price.unwrap_or(Price::dollars(if hw.name == CPU { 0.0 } else { hw.price }));
        check_currency(flags, price)?;
        let terms = Terms {
            price: price.sum,
            currency: price.sign,
            availability: flags.availability.or(m.plan.availability).unwrap_or(1.0),
            faults: m
                .plan
                .fault_hours
                .map(|hours| Faults::of(m, program == Program::Gptrain, hw, hours)),
            budget: flags.budget.map(|(_, sum)| sum).or(m.plan.budget),
            hours: m.plan.hours,
            samples,
            tokens: m.schedule().tokens(samples),
        };
        if !(terms.availability > 0.0 && terms.availability <= 1.0) {
            return Err(Problems::one(
                "--availability",
                format!("availability {} is not a share", terms.availability),
                "give a number above 0, up to 1",
            ));
        }
        check_tflops(flags.tflops, hw)?;
        Ok(Request { manifest, setup, terms, tflops: flags.tflops })
    }

    /// Calibrates gptrain's own plan by `text`: the document of `gptrain bench --json` or `gptrain tune
    /// --json`, or the steps of a run (`metrics.jsonl`, or the lines of its log): of `run`, or else of
    /// this manifest. `name` is the file's. Also returns a summary in one line.
    pub fn learn(
        self,
        text: &str,
        name: &str,
        run: Option<&Manifest>,
    ) -> Result<(Request, String), Problems> {
        if let Some(tuned) = Tuned::read(text, name)? {
            let (setup, line) = tuned_cuts::learn(&tuned, name, &self.manifest, self.setup)?;
            return Ok((Request { setup, ..self }, line));
        }
        if !Measured::is_document(text) {
            let run = run.unwrap_or(&self.manifest);
            if run.precision != self.manifest.precision {
                let [its, ours] = [run.precision, self.manifest.precision].map(Precision::name);
                return Err(Problems::one(
                    name,
                    format!("was run in {its}, and the plan is in {ours}"),
                    format!("--set precision={its}"),
                ));
            }
            let setup = self.setup.for_manifest(run);
            let log = logs::read(text, name, &setup)?;
            let (learned, line) = calibrate::slowdown(&log, name, run, setup)?;
            let setup = Setup { hardware: learned.hardware, ..self.setup };
            return Ok((Request { setup, ..self }, line));
        }
        let found = Measured::read(text, name)?;
        let setup = calibrate::learn(&found, name, &self.manifest, self.setup)?;
        let line = calibrate::line(&found, &setup);
        Ok((Request { setup, ..self }, line))
    }

    /// Fails if the plan has tensor or pipeline parallelism that its program lacks, or a pipeline with a ZeRO
    /// level that the program refuses there.
    pub fn check_program(&self) -> Result<(), Problems> {
        let Topology { tensor, pipeline, zero, .. } = self.setup.topology;
        let Program::Other(trainer) = self.setup.program else { return Ok(()) };
        let name = &trainer.name;
        let mut problems = Problems::default();
        for (key, degree, lacks) in [
            ("tensor", tensor, trainer.replicas_only),
            ("pipeline", pipeline, trainer.piped.is_empty()),
        ] {
            if degree > 1 && lacks {
                let what = format!("is {degree}, and {name} has no {key} parallelism");
                let ranks = self.setup.ranks();
                let search = format!("take {name}'s best topology: --search --gpus {ranks}");
                let remedy = format!("set it to 1, or {search}");
                problems.add(format!("topology.{key}"), what, remedy);
            }
        }
        problems.or(())?;
        if pipeline == 1 || trainer.piped.contains(&zero) {
            return Ok(());
        }
        let mut levels = trainer.piped.clone();
        levels.sort_unstable();
        let levels: Vec<String> = levels.iter().map(u8::to_string).collect();
        let engine = if trainer.deepspeed { "DeepSpeed's pipeline engine" } else { name };
        let without = if trainer.zero.contains(&zero) {
            format!(", or topology.pipeline to 1, where it has ZeRO-{zero}")
        } else {
            String::new()
        };
        Err(Problems::one(
            "topology.zero",
            format!("ZeRO-{zero} in a pipeline of {pipeline} stages: {engine} does not have it"),
            format!("set topology.zero to {}{without}", levels.join(" or ")),
        ))
    }

    /// Search for the best topologies of its model, also with the extras. `other` predicts the needs of
    /// another program.
    pub fn search<'a>(&'a self, other: Option<&'a dyn Predict>, extras: Extras) -> Search<'a> {
        let Request { manifest, setup, terms, .. } = self;
        let planner = Planner::new(manifest, setup, other);
        Search::new(planner, setup, manifest.batch.ramp(), terms.samples, extras)
    }

    /// Estimate. `other` predicts the needs of another program.
    pub fn view(&self, other: Option<&dyn Predict>) -> View {
        let Request { manifest, setup, terms, tflops } = self;
        let view = match other {
            None => view::for_gptrain(manifest, setup.clone(), *terms),
            Some(other) => other.view(manifest, setup.clone(), *terms),
        };
        match tflops {
            None => view,
            Some(tflops) => view.at_tflops(*tflops),
        }
    }
}

/// Fails if replicas have two levels in a plan of another program.
fn refuse_levels(m: &Manifest, program: Program) -> Result<(), Problems> {
    let Program::Other(trainer) = program else { return Ok(()) };
    if m.topology.shard == Shard::All {
        return Ok(());
    }
    Err(Problems::one(
        "topology.shard",
        format!("plans of {} have one level of replicas", trainer.name),
        "set topology.shard to all, or plan for gptrain: --as gptrain",
    ))
}

/// Fails if the device does not support this element type.
fn refuse_numbers(precision: Precision, hw: &Hardware) -> Result<(), Problems> {
    let remedy = if hw.bf16 { "--set precision=bf16" } else { "--set precision=fp16" };
    let what = match precision {
        Precision::Fp8 if hw.fp8_tflops == 0.0 && hw.name != CPU => "8-bit floats",
        Precision::Bf16 if !hw.bf16 => "bf16 in its matrix units",
        _ => return Ok(()),
    };
    Err(Problems::one("precision", format!("{} has no {what}", hw.name), remedy))
}

/// A budget with a currency and a price in another cannot be compared.
fn check_currency(flags: &Flags, price: Price) -> Result<(), Problems> {
    match flags.budget {
        Some((Some(sign), _)) if sign != price.sign => Err(Problems::one(
            "--budget",
            format!("a budget in {sign}, and the price of a device-hour is in {}", price.sign),
            format!("give the price in that currency too, such as --price {sign}2.10"),
        )),
        _ => Ok(()),
    }
}

/// Fails if a device cannot reach what `--tflops` says.
fn check_tflops(tflops: Option<f64>, hw: &Hardware) -> Result<(), Problems> {
    let Some(tflops) = tflops else { return Ok(()) };
    let peak = hw.peak_tflops.max(hw.fp8_tflops).max(hw.fp4_tflops);
    if tflops > 0.0 && tflops <= peak {
        return Ok(());
    }
    Err(Problems::one(
        "--tflops",
        format!("{tflops} TFLOP/s of a device, and the peak of {} is {peak}", hw.name),
        "give what one device reaches, such as a third of its peak, or name its --hardware",
    ))
}

/// Program of `--as`, else that of the manifest, else gptrain, or the usual one of a model with experts.
fn program(m: &Manifest, flags: &Flags) -> Result<Program, Problems> {
    let usual = flags.mixture.map(|_| mixture::USUAL);
    let Some(name) = flags.program.or(usual) else {
        return Ok(m
            .plan
            .framework
            .map_or(Program::Gptrain, Program::from_framework));
    };
    match name {
        "gptrain" => Ok(Program::Gptrain),
        name => trainers::find(name, "--as").map(Program::Other),
    }
}

/// Whole samples of so many tokens.
fn whole_samples(schedule: &BatchSchedule, tokens: u64) -> u64 {
    let samples = schedule.samples_of_tokens(tokens);
    if schedule.tokens(samples) > tokens { samples - 1 } else { samples }
}
