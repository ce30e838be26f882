//! `gptrain estimate --search`, `--min-gpus`, `--max-params`

use crate::base::{Count, Problems};
use crate::estimate::days::days;
use crate::estimate::predict::Predictor;
use crate::estimate::search::{self, Candidate, Judged, Wish};
use crate::estimate::setup::Setup;
use crate::estimate::view::Terms;
use crate::manifest::{Manifest, Recompute, Schedule};
use crate::model::parameters;
use serde_json::{Value, json};
use std::fmt::Write;

#[derive(clap::Args)]
pub struct Search {
    /// Find the best way to cut the model over --gpus
    #[arg(long, requires = "gpus")]
    search: bool,
    /// Devices to use
    #[arg(long)]
    gpus: Option<usize>,
    /// Nodes of --gpus that are kept idle, for failures
    #[arg(long, default_value_t = 0)]
    nodes_spare: usize,
    /// What the search minimises: days, gpu-hours or money
    #[arg(long, default_value = "days", value_parser = ["days", "gpu-hours", "money"])]
    objective: String,
    /// The largest model of the manifest's proportions that --gpus hold
    #[arg(long, requires = "gpus")]
    max_params: bool,
    /// The fewest devices that hold the manifest's model
    #[arg(long)]
    min_gpus: bool,
}

impl Search {
    pub fn asked(&self) -> bool {
        self.search || self.max_params || self.min_gpus
    }
}

pub fn run(
    args: &Search,
    m: &Manifest,
    setup: &Setup,
    terms: &Terms,
    predictor: &Predictor,
) -> anyhow::Result<(String, Value)> {
    let wish = Wish { setup, ramp: m.batch.ramp() };
    let name = &setup.hardware.name;
    if args.min_gpus {
        let found = search::fewest(predictor, &wish, 65536 / setup.per_node * setup.per_node);
        let found = found.ok_or_else(|| none("no number of devices up to 65,536"))?;
        let text =
            format!("{}: at least {} × {name}: {}\n", m.name, found.setup.ranks(), way(&found));
        return Ok((text, json!({ "min_gpus": found.setup.ranks(), "way": way_json(&found) })));
    }
    let all = args.gpus.expect("clap asks for it");
    let devices = all.saturating_sub(args.nodes_spare * setup.per_node);
    if devices == 0 {
        let what = format!("{} spare nodes leave nothing of {all} devices", args.nodes_spare);
        return Err(Problems::one("--nodes-spare", what, "keep fewer, or give more --gpus").into());
    }
    if args.max_params {
        let found = search::largest(predictor, &wish, devices);
        let found = found.ok_or_else(|| none("no model of these proportions"))?;
        let model = &found.setup.model;
        let size = parameters(model);
        let text = format!(
            "{devices} × {name} hold {:.1} B parameters: {} layers, hidden {}, {} heads: {}\n",
            size as f64 / 1e9,
            model.layers,
            model.hidden,
            model.heads,
            way(&found)
        );
        let json = json!({
            "max_params": size, "layers": model.layers, "hidden": model.hidden,
            "heads": model.heads, "way": way_json(&found),
        });
        return Ok((text, json));
    }
    ranking(args, &wish, devices, terms, predictor)
}

fn none(what: &str) -> Problems {
    let remedy = "a smaller model, more devices, or batch sizes (ramp-up too) with more divisors";
    Problems::one("search", format!("{what} fits: memory, divisibility or heads forbid it"), remedy)
}

/// The best ways on these devices, and fewer devices where that saves.
fn ranking(
    args: &Search,
    wish: &Wish,
    devices: usize,
    terms: &Terms,
    predictor: &Predictor,
) -> anyhow::Result<(String, Value)> {
    let found = search::search(predictor, wish, devices);
    if found.is_empty() {
        return Err(none(&format!("no way to cut it over {devices} devices")).into());
    }
    let judge = |candidate: &Candidate| Judged {
        days: days(predictor, &candidate.setup, wish.ramp, terms.samples),
        candidate: candidate.clone(),
    };
    let mut best: Vec<Judged> = found.iter().take(12).map(judge).collect();
    best.sort_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
    let mut text = format!(
        "{} ways fit on {devices} × {}; the fastest through the whole run:\n",
        found.len(),
        wish.setup.hardware.name
    );
    text += &head();
    best.iter().for_each(|judged| text += &line(judged, terms));
    let pareto = pareto(wish, devices, terms, predictor, &best[0]);
    text +=
        "\nPareto: the best of each number of devices that is faster or cheaper than all others:\n";
    text += &head();
    pareto.iter().for_each(|judged| text += &line(judged, terms));
    let by_hours =
        |a: &&Judged, b: &&Judged| a.days.device_hours().total_cmp(&b.days.device_hours());
    let chosen = match args.objective.as_str() {
        "days" => &best[0],
        _ => pareto.iter().min_by(by_hours).unwrap_or(&best[0]),
    };
    let _ = writeln!(
        text,
        "\nBest by {}: {} devices, {}",
        args.objective,
        chosen.days.devices,
        way(&chosen.candidate)
    );
    for pair in sets(&chosen.candidate).chunks(2) {
        let _ = writeln!(text, "  {}", pair.join(" "));
    }
    let json = json!({
        "objective": args.objective,
        "best": judged_json(chosen, terms),
        "ways": best.iter().map(|j| judged_json(j, terms)).collect::<Vec<_>>(),
        "pareto": pareto.iter().map(|j| judged_json(j, terms)).collect::<Vec<_>>(),
    });
    Ok((text, json))
}

/// Days against GPU-hours over numbers of devices.
fn pareto(wish: &Wish, devices: usize, terms: &Terms, p: &Predictor, best: &Judged) -> Vec<Judged> {
    let node = wish.setup.per_node;
    let eighths = (1..8).map(|part| devices * part / 8 / node * node).filter(|n| *n > 0);
    let again = Judged { candidate: best.candidate.clone(), days: best.days.clone() };
    let mut all: Vec<Judged> =
        eighths.filter_map(|n| search::best(p, wish, n, terms.samples)).chain([again]).collect();
    all.sort_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
    let mut cheapest = f64::INFINITY;
    all.retain(|judged| {
        let better = judged.days.device_hours() < cheapest;
        cheapest = cheapest.min(judged.days.device_hours());
        better
    });
    all
}

/// Days of the best way for numbers of devices around the plan's.
pub fn scaling(
    m: &Manifest,
    setup: &Setup,
    terms: &Terms,
    predictor: &Predictor,
) -> Vec<(usize, f64, String)> {
    let wish = Wish { setup, ramp: m.batch.ramp() };
    let ranks = setup.ranks();
    let mut counts: Vec<usize> =
        [ranks / 8, ranks / 4, ranks / 2, ranks, 2 * ranks, 4 * ranks].to_vec();
    counts.retain(|n| *n > 0);
    counts.dedup();
    let judged =
        counts.into_iter().filter_map(|n| search::best(predictor, &wish, n, terms.samples));
    judged.map(|j| (j.days.devices, j.days.days(), way(&j.candidate))).collect()
}

fn head() -> String {
    format!(
        "  {:>6}{:>4}{:>4}{:>5}{:>6}{:>6}{:>11}{:>8}{:>9}{:>8}{:>8}{:>13}{:>11}\n",
        "GPUs",
        "TP",
        "PP",
        "DP",
        "micro",
        "ZeRO",
        "recompute",
        "GB",
        "s/step",
        "TFLOPs",
        "days",
        "GPU-hours",
        "money"
    )
}

fn line(j: &Judged, terms: &Terms) -> String {
    let (s, p) = (&j.candidate.setup, &j.candidate.prediction);
    let t = &s.topology;
    let hours = j.days.device_hours() / terms.availability;
    let tflops = s.flops().1 / (p.seconds * s.ranks() as f64 * 1e12);
    format!(
        "  {:>6}{:>4}{:>4}{:>5}{:>6}{:>6}{:>11}{:>8.1}{:>9.2}{:>8.1}{:>8.1}{:>13}{:>11}\n",
        s.ranks(),
        t.tensor,
        t.pipeline,
        t.data,
        s.micro,
        t.zero,
        recompute(s),
        p.gigabytes,
        p.seconds,
        tflops,
        j.days.days() / terms.availability,
        Count(hours as u64),
        Count((hours * terms.price) as u64)
    )
}

fn recompute(s: &Setup) -> &'static str {
    match s.topology.recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    }
}

fn way(c: &Candidate) -> String {
    let (s, t) = (&c.setup, &c.setup.topology);
    let chunks = match t.schedule {
        Schedule::Interleaved { chunks } => format!(", {chunks} chunks"),
        _ => String::new(),
    };
    format!(
        "TP {} × PP {} × DP {}, micro-batch {}, ZeRO-{}, recompute {}{chunks}",
        t.tensor,
        t.pipeline,
        t.data,
        s.micro,
        t.zero,
        recompute(s)
    )
}

/// What to give the manifest.
fn sets(c: &Candidate) -> Vec<String> {
    let (s, t) = (&c.setup, &c.setup.topology);
    let split = crate::estimate::change::word(&t.layer_split);
    let keys = [
        ("topology.tensor", t.tensor.to_string()),
        ("topology.pipeline", t.pipeline.to_string()),
        ("topology.data", t.data.to_string()),
        ("topology.zero", t.zero.to_string()),
        ("topology.recompute", recompute(s).to_string()),
        ("topology.layer_split", split.to_string()),
        ("batch.micro", s.micro.to_string()),
    ];
    keys.iter().map(|(key, value)| format!("--set {key}={value}")).collect()
}

fn way_json(c: &Candidate) -> Value {
    let (s, t) = (&c.setup, &c.setup.topology);
    json!({
        "tensor": t.tensor, "pipeline": t.pipeline, "data": t.data, "micro_batch": s.micro,
        "zero": t.zero, "recompute": recompute(s), "set": sets(c),
        "sec_per_iter": c.prediction.seconds, "sec_error": c.prediction.seconds_error,
        "mem_gb": c.prediction.gigabytes,
    })
}

fn judged_json(j: &Judged, terms: &Terms) -> Value {
    let mut way = way_json(&j.candidate);
    let hours = j.days.device_hours() / terms.availability;
    way["gpus"] = json!(j.days.devices);
    way["days"] = json!(j.days.days() / terms.availability);
    way["gpu_hours"] = json!(hours);
    way["money"] = json!(hours * terms.price);
    way
}
