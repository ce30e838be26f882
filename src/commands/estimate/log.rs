//! `gptrain estimate --log`: rates of a training, from its own log.

use super::config::Planned;
use super::{Estimate, records};
use base::Problems;
use base::table::{Cell, Printout, Rows};
use estimate::logs::{self, LogEnd};
use estimate::machine::split_settings;
use estimate::rates;
use estimate::request::{Flags, Request};
use estimate::setup::Setup;
use estimate::words;
use exchange::script::{self, ScriptChoices};
use plan::robust::median;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Batch sizes that are listed: the last ones of a ramp.
const MAX_ROWS: usize = 12;

/// Steps of one batch size.
struct Rate {
    batch: usize,
    steps: usize,
    /// Median.
    seconds: f64,
    tokens_per_s: f64,
    /// TFLOP/s of a device by the formula of Narayanan et al. (2021), with recomputation.
    tflops: f64,
    /// The same by 6 FLOPs per parameter and token, 8 with full recomputation.
    simple: f64,
    /// The log's own figure.
    logged: Option<f64>,
    mfu: Option<f64>,
}

impl Estimate {
    /// Prints the rates of the log `path`.
    pub(super) fn print_log(&self, path: &Path) -> anyhow::Result<()> {
        let text = records::read(path)?;
        let name = path.display().to_string();
        let planned = self.run_of_log(&text, &name)?;
        let mixture = planned.mixture();
        let manifest = planned.loaded.manifest;
        let named = self.hardware.is_some() || manifest.plan.hardware.is_some();
        let (_, columns) = split_settings(&self.set);
        let flags = Flags { columns: &columns, mixture, ..self.flags() };
        let request = Request::new(manifest, &flags)?;
        let Request { manifest: m, setup, terms, .. } = &request;
        let log = logs::read(&text, &name, setup)?;
        let mut steps: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (batch, seconds) in &log.steps {
            steps.entry(*batch).or_default().push(*seconds);
        }
        let rates: Vec<Rate> = steps
            .iter()
            .map(|(batch, seconds)| {
                let logged = log.medians.iter().filter(|row| row.batch == *batch);
                let logged = median(logged.filter_map(|row| row.tflops));
                let peak = named.then_some(setup.hardware.peak_tflops);
                rate(setup, *batch, seconds, logged, peak)
            })
            .collect();
        let listed = &rates[rates.len().saturating_sub(MAX_ROWS)..];
        let ranks = setup.ranks();
        let table = Rows::new(listed)
            .column("batch", "batch", |r| r.batch)
            .column("steps", "steps", |r| r.steps)
            .column("s/step", "seconds", |r| Cell::fixed(r.seconds, 3))
            .column("tokens/s", "tokens_per_s", |r| Cell::fixed(r.tokens_per_s, 0))
            .column("TFLOPs", "tflops", |r| Cell::fixed(r.tflops, 1))
            .column("simple", "tflops_simple", |r| Cell::fixed(r.simple, 1))
            .column("in the log", "tflops_logged", |r| {
                Cell::optional(r.logged.map(|tflops| Cell::fixed(tflops, 1)))
            })
            .column("MFU", "mfu", |r| Cell::optional(r.mfu.map(Cell::percent)))
            .table();
        let parameters = setup.parameters();
        let end = logs::end(&text).unwrap_or_default();
        let last = log.steps.last().map(|(batch, _)| *batch);
        let rate = rates.iter().find(|rate| Some(rate.batch) == last);
        let left = rate.and_then(|rate| seconds_left(&end, terms.samples, rate));
        let mut out = Printout::new(json!({
            "log": name, "parameters": parameters, "ranks": ranks, "rates": table.json(),
            "step": end.step, "samples": end.samples, "run_samples": terms.samples,
            "days_left": left.map(|seconds| seconds / 86400.0),
            "hardware": named.then_some(&setup.hardware.name),
        }));
        let size = words::size(parameters as f64);
        let length = m.model.seq_len;
        out.line(format!("{name}: {size} parameters, {length} tokens per sample, {ranks} ranks"));
        out.table(table);
        if listed.len() < rates.len() {
            out.line(format!("{} smaller batches are left out", rates.len() - listed.len()));
        }
        out.line(
            "TFLOPs per device: with attention and recomputation (Narayanan et al. 2021); simple: \
                  6 per parameter and token, 8 with full recomputation",
        );
        if !named {
            out.line("MFU: name the GPU, such as --hardware h100");
        }
        out.line(progress_line(&end, terms.samples, left));
        out.say(self.json);
        Ok(())
    }

    /// Run that is given, or that the log's own arguments make.
    fn run_of_log(&self, text: &str, name: &str) -> anyhow::Result<Planned> {
        if let Some(manifest) = &self.manifest {
            return self.load(manifest, &self.set);
        }
        if let Some(script) = &self.args {
            return Ok(self.script.planned_run(script, &self.set)?.into());
        }
        let choices = ScriptChoices { sets: self.set.clone(), ..ScriptChoices::default() };
        match script::read_log(text, name, &choices)? {
            Some(run) => Ok(run.loaded.into()),
            None => Err(Problems::one(
                name,
                "has no arguments of Megatron, which say the model and the ranks",
                "give the run's manifest, or its script: --args SCRIPT",
            )
            .into()),
        }
    }
}

fn rate(setup: &Setup, batch: usize, seconds: &[f64], logged: f64, peak: Option<f64>) -> Rate {
    let steps = seconds.len();
    let seconds = median(seconds.iter().copied());
    let ranks = setup.ranks() as f64;
    let tokens = (batch * setup.model.seq_len) as f64;
    let (model, hardware) = Setup { global: batch, ..setup.clone() }.flops();
    let by_device = |flops: f64| flops / (seconds * ranks * 1e12);
    let factor = rates::simple_factor(setup.topology.recompute);
    let parameters = setup.active_parameters();
    Rate {
        batch,
        steps,
        seconds,
        tokens_per_s: tokens / seconds,
        tflops: by_device(hardware),
        simple: rates::simple_tflops(factor, parameters, tokens, seconds, ranks),
        logged: logged.is_finite().then_some(logged),
        mfu: peak.map(|peak| by_device(model) / peak),
    }
}

/// Seconds of the remaining samples at a rate; None if the log does not say which are done.
fn seconds_left(end: &LogEnd, samples: u64, rate: &Rate) -> Option<f64> {
    let remaining = samples.saturating_sub(end.samples?);
    Some(remaining as f64 / rate.batch as f64 * rate.seconds)
}

fn progress_line(end: &LogEnd, samples: u64, left: Option<f64>) -> String {
    let step = end.step;
    match (end.samples, left) {
        (Some(done), Some(left)) => format!(
            "step {step}, {done} of {samples} samples ({:.1} %): {} left at the last batch's speed",
            100.0 * done as f64 / samples.max(1) as f64,
            words::span(left)
        ),
        _ => format!("step {step}: the log does not say how many samples are done"),
    }
}
