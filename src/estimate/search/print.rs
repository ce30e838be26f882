//! Prints the results of a search as text and as JSON.

use super::simplest::TIE;
use super::{Answer, Candidate, Planned, Ranking};
use crate::change::{flag_lines, layer_split_name};
use crate::setup::{Moments, Program, Setup};
use crate::verdict::{self, MemoryFit};
use crate::view::{GIB, Terms};
use crate::words::{self, short_span, span};
use base::Count;
use base::table::{Cell, Printout, Rows, Table};
use manifest::{Adam8bit, LayerSplit, Manifest, Model, OffloadWhat, Optimizer, Schedule, Shard};
use model::parameters;
use serde_json::{Value, json};

/// The fewest devices.
pub fn print_fewest_devices(m: &Manifest, found: &Answer) -> Printout {
    let Answer { best, in_doubt } = found;
    let s = &best.setup;
    let ranks = |found: &Candidate| found.setup.ranks();
    let json = json!({
        "min_gpus": s.ranks(), "way": cut(m, best),
        "may_fit_gpus": in_doubt.as_ref().map(ranks),
        "may_fit_way": in_doubt.as_ref().map(|found| cut(m, found)),
    });
    let mut out = Printout::new(json);
    out.line(format!("{}: at least {} × {}: {}", m.name, s.ranks(), s.hardware.name, needs(best)));
    add_cut(m, s, &mut out);
    if let Some(found) = in_doubt {
        out.line(format!("{} of them may be enough: {}", ranks(found), needs(found)));
        add_cut(m, &found.setup, &mut out);
    }
    out
}

/// Adds a cut in words, and its flags.
fn add_cut(m: &Manifest, s: &Setup, out: &mut Printout) {
    out.line(format!("  {}", describe(s)));
    out.push_indented(flag_lines(&sets(m, s)));
}

/// The fewest devices on which the run ends within `days` of the calendar.
pub fn print_deadline(m: &Manifest, terms: &Terms, days: f64, found: &Planned) -> Printout {
    let Planned { candidate, days: run } = found;
    let setup = &candidate.setup;
    let way = plan_table(m, terms, [found]).object(0);
    let mut out = Printout::new(json!({ "within_days": days, "gpus": setup.ranks(), "way": way }));
    let duration = terms.calendar_seconds(run);
    let step = words::with_bar(candidate.seconds, candidate.seconds_error);
    out.line(format!(
        "{} within {days} days: {} × {}, {step} per step, {}{}",
        m.name,
        setup.ranks(),
        setup.hardware.name,
        span(duration),
        terms.paid(run),
    ));
    add_cut(m, setup, &mut out);
    let [_, latest] = words::range(duration, candidate.seconds_error);
    if latest > 86400.0 * days {
        out.line(format!(
            "  At the slow end of the bar it takes {}: --days {:.0} keeps that within {days} days.",
            span(latest),
            (days / (1.0 + candidate.seconds_error)).floor().max(1.0)
        ));
    }
    out.push_indented(setup.notes(duration));
    out
}

/// Memory of a device and time of a step: "39.8 GiB per device, 4.92 s ± 20 % per step".
fn needs(found: &Candidate) -> String {
    let step = words::with_bar(found.seconds, found.seconds_error);
    format!("{:.1} GiB per device{}, {step} per step", found.bytes / GIB, doubt(found))
}

/// ", may not fit (32 %)" of a cut that may not.
fn doubt(found: &Candidate) -> String {
    match found.verdict {
        MemoryFit::Fits => String::new(),
        other => format!(", {}", other.words()),
    }
}

/// The largest model.
pub fn largest(m: &Manifest, devices: usize, found: &Answer) -> Printout {
    let Answer { best, in_doubt } = found;
    let mut json = largest_json(m, best);
    json["may_fit"] = in_doubt
        .as_ref()
        .map_or(Value::Null, |found| largest_json(m, found));
    let mut out = Printout::new(json);
    for (found, hold) in [(Some(best), "hold"), (in_doubt.as_ref(), "may hold")] {
        let Some(found) = found else { continue };
        let model = &found.setup.model;
        out.line(format!(
            "{devices} × {} {hold} {:.1} B parameters: {} layers, hidden {}, feed-forward {}, {} heads;",
            found.setup.hardware.name,
            parameters(model) as f64 / 1e9,
            model.layers,
            model.hidden,
            model.ffn_hidden,
            model.heads,
        ));
        out.line(format!("  {}:\n  {}", needs(found), describe(&found.setup)));
        out.push_indented(flag_lines(&sized_sets(m, &found.setup)));
    }
    out
}

fn largest_json(m: &Manifest, found: &Candidate) -> Value {
    let model = &found.setup.model;
    let mut way = cut(m, found);
    way["set"] = flags_json(&sized_sets(m, &found.setup));
    json!({
        "max_params": parameters(model), "layers": model.layers, "hidden": model.hidden,
        "ffn_hidden": model.ffn_hidden, "heads": model.heads, "way": way,
    })
}

/// The best cuts of `devices`, and of fewer where that saves. `objective` is days, gpu-hours or money.
pub fn ranking(
    m: &Manifest,
    found: &Ranking,
    devices: usize,
    objective: &str,
    terms: &Terms,
) -> Printout {
    let hours = |p: &Planned| p.days.device_hours();
    let cheapest = found
        .pareto
        .iter()
        .min_by(|a, b| hours(a).total_cmp(&hours(b)));
    let fastest = &found.best[0];
    let wanted = if objective == "days" { fastest } else { cheapest.unwrap_or(fastest) };
    let (chosen, over) = within_budget(found, wanted, terms);
    let in_doubt = found.in_doubt.as_ref();
    let simplest = found.simplest.as_ref();
    let json = json!({
        "objective": objective,
        "best": plan_table(m, terms, [chosen]).object(0),
        "only_smaller": found.only_smaller,
        "equal": found.equal,
        "simplest": simplest.map(|planned| plan_table(m, terms, [planned]).object(0)),
        "ways": plan_table(m, terms, &found.best).json(),
        "pareto": plan_table(m, terms, &found.pareto).json(),
        "in_doubt": in_doubt.map(|planned| plan_table(m, terms, [planned]).object(0)),
    });
    let mut out = Printout::new(json);
    let Candidate { setup, seconds, seconds_error, .. } = &chosen.candidate;
    let duration = terms.calendar_seconds(&chosen.days);
    out.line(format!(
        "best by {objective}{over}: {} × {}, {} per step, {} for {} tokens{}",
        chosen.days.devices,
        setup.hardware.name,
        words::with_bar(*seconds, *seconds_error),
        span(duration),
        words::size(terms.tokens as f64),
        terms.paid(&chosen.days),
    ));
    add_cut(m, setup, &mut out);
    if let MemoryFit::MayNotFit(share) = chosen.candidate.verdict {
        let share = verdict::percent(share);
        out.line(format!(
            "  No topology fits with its whole bar. {share} of this one's is above the memory."
        ));
    }
    out.push_indented(setup.notes(duration));
    let smaller =
        if found.only_smaller { ", none without 8-bit moments or states on the host" } else { "" };
    out.table(plan_table(m, terms, &found.best).titled(format!(
        "of {} topologies over {devices} × {}{smaller}, the fastest through the whole run:",
        Count(found.cuts as u64),
        setup.hardware.name
    )));
    if found.equal > 1 {
        out.line(format!(
            "{} of these take the same time within {:.0} %.",
            found.equal,
            100.0 * TIE
        ));
    }
    if let Some(planned) = &found.simplest {
        let setup = &planned.candidate.setup;
        let slower = planned.days.seconds / fastest.days.seconds - 1.0;
        out.line(format!(
            "The simplest of them that leaves a tenth of the memory free is {:.1} % slower:",
            100.0 * slower
        ));
        add_cut(m, setup, &mut out);
    }
    if let Some(planned) = in_doubt {
        let Candidate { setup, seconds, seconds_error, .. } = &planned.candidate;
        out.line(format!(
            "The fastest whose memory may not fit: {}{}",
            words::with_bar(*seconds, *seconds_error),
            doubt(&planned.candidate)
        ));
        add_cut(m, setup, &mut out);
    }
    out.table(plan_table(m, terms, &found.pareto).titled(
        "Pareto: the best of each number of devices that is faster or cheaper than all others:",
    ));
    out
}

/// Chosen plan, or the fastest within the budget if that differs; and a note about it.
fn within_budget<'a>(
    found: &'a Ranking,
    chosen: &'a Planned,
    terms: &Terms,
) -> (&'a Planned, String) {
    let Some(limit) = terms.budgets() else { return (chosen, String::new()) };
    let paid = |p: &&Planned| terms.can_pay(&p.days);
    let plans = std::iter::once(chosen)
        .chain(&found.best)
        .chain(&found.pareto);
    let fastest = plans
        .filter(paid)
        .min_by(|a, b| a.days.seconds.total_cmp(&b.days.seconds));
    match fastest {
        _ if paid(&chosen) => (chosen, format!(" for at most {limit}")),
        Some(cheaper) => (cheaper, format!(" for at most {limit}")),
        None => (chosen, format!(", above the budget of {limit}")),
    }
}

/// Adds the columns of a cut to a table of rows that have one.
fn cut_columns<'r, R>(
    m: &Manifest,
    rows: Rows<'r, R>,
    cut: impl Fn(&R) -> &Candidate,
) -> Rows<'r, R> {
    let topology = |row: &R| cut(row).setup.topology.clone();
    rows.text("GPUs", |row| cut(row).setup.ranks())
        .column("TP", "tensor", |row| topology(row).tensor)
        .column("PP", "pipeline", |row| topology(row).pipeline)
        .column("DP", "data", |row| topology(row).data)
        .column("micro", "micro_batch", |row| cut(row).setup.micro)
        .column("ZeRO", "zero", |row| topology(row).zero)
        .column("recompute", "recompute", |row| topology(row).recompute.name())
        .json("context", |row| cut(row).setup.degrees.context)
        .json("expert", |row| cut(row).setup.degrees.expert)
        .json("set", |row| flags_json(&sets(m, &cut(row).setup)))
        .json("offload", |row| topology(row).offload.what.name())
        .json("adam8bit", |row| cut(row).setup.moments == Moments::Adam8bit)
        .json("powersgd", |row| topology(row).compression.is_some())
        .column("GiB", "mem_gib", |row| Cell::fixed(cut(row).bytes / GIB, 1))
        .json("fits", |row| cut(row).verdict == MemoryFit::Fits)
        .json("share_beyond", |row| cut(row).verdict.share_beyond())
        .column("s/step", "sec_per_iter", |row| words::step(cut(row).seconds))
        .json("sec_error", |row| cut(row).seconds_error)
        .text("TFLOP/s", |row| {
            let Candidate { setup, seconds, .. } = cut(row);
            Cell::fixed(setup.flops().1 / (seconds * setup.ranks() as f64 * 1e12), 1)
        })
}

/// A cut in JSON.
fn cut(m: &Manifest, found: &Candidate) -> Value {
    cut_columns(m, Rows::new([found]), |found| found)
        .table()
        .object(0)
}

/// Cuts with the duration and cost of the run.
fn plan_table<'a>(
    m: &Manifest,
    terms: &Terms,
    plans: impl IntoIterator<Item = &'a Planned>,
) -> Table {
    cut_columns(m, Rows::new(plans), |planned| &planned.candidate)
        .json("gpus", |p| p.days.devices)
        .column("time", "days", |p| terms.days_cell(&p.days, short_span))
        .column("GPU-hours", "gpu_hours", |p| {
            let hours = terms.device_hours(&p.days);
            Cell::new(hours, Count(hours as u64).to_string())
        })
        .column("cost", "money", |p| terms.cost_cell(&p.days))
        .text("", |p| {
            let s = &p.candidate.setup;
            let rest = s.degree_words() + &extras(s).unwrap_or_default() + &doubt(&p.candidate);
            rest.trim_start_matches([',', ' ', '×']).to_string()
        })
        .table()
}

/// Settings of gptrain's cut without their own column.
fn extras(s: &Setup) -> Option<String> {
    let t = &s.topology;
    let words = [
        t.sequence_parallel.then(|| "sequence parallel".to_string()),
        t.has_two_levels()
            .then(|| format!("shard groups of {}", t.shard_size())),
        t.copies_states().then(|| "all states in each".to_string()),
        (t.chunks > 1).then(|| format!("{} chunks", t.chunks)),
        (t.schedule == Schedule::BreadthFirst).then(|| "breadth first".to_string()),
        (t.zero_every > 1).then(|| format!("sums of {} micro-batches", t.zero_every)),
        (t.layer_split != LayerSplit::Uniform)
            .then(|| layer_split_name(&t.layer_split).replace('_', " ")),
        (t.offload.what != OffloadWhat::None).then(|| format!("offload {}", t.offload.what.name())),
        (s.moments == Moments::Adam8bit).then(|| "8-bit moments".to_string()),
        t.compression.map(|_| "PowerSGD".to_string()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (s.program == Program::Gptrain && !words.is_empty()).then(|| words.join(", "))
}

/// A cut in words.
pub fn describe(s: &Setup) -> String {
    let t = &s.topology;
    format!(
        "TP {} × PP {} × DP {}{}, micro-batch {}, {}",
        t.tensor,
        t.pipeline,
        t.data,
        s.degree_words(),
        s.micro,
        describe_rest(s)
    )
}

/// A cut in words, without its grid and micro-batch.
pub fn describe_rest(s: &Setup) -> String {
    let t = &s.topology;
    let more = match extras(s) {
        Some(extras) => format!(", {extras}"),
        None if t.chunks > 1 => format!(", {} chunks", t.chunks),
        None => String::new(),
    };
    format!("ZeRO-{}, recompute {}{more}", t.zero, t.recompute.name())
}

/// Settings of `m` for a cut of it, as for `--set`.
pub fn sets(m: &Manifest, s: &Setup) -> Vec<String> {
    let t = &s.topology;
    let keys = [
        ("topology.tensor", t.tensor.to_string()),
        ("topology.pipeline", t.pipeline.to_string()),
        ("topology.data", t.data.to_string()),
        ("topology.zero", t.zero.to_string()),
        ("topology.recompute", t.recompute.name().to_string()),
        ("topology.layer_split", layer_split_name(&t.layer_split).to_string()),
        ("batch.micro", s.micro.to_string()),
        ("topology.sequence_parallel", (s.splits_sequence() && t.tensor > 1).to_string()),
        ("topology.schedule", t.schedule.name().to_string()),
    ];
    let mut sets: Vec<String> = keys
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    sets.extend(s.degree_sets());
    if !m.batch.micro_stages.is_empty() {
        sets.push("batch.micro_stages=[]".to_string());
    }
    match (m.topology.schedule, t.schedule) {
        (_, schedule) if schedule.has_chunks() => {
            sets.push(format!("topology.chunks={}", t.chunks))
        }
        (schedule, _) if schedule.has_chunks() => sets.push("topology.chunks=null".to_string()),
        _ => {}
    }
    if s.program == Program::Gptrain {
        if t.offload.what != m.topology.offload.what {
            sets.push(format!("topology.offload.what={}", t.offload.what.name()));
        }
        if t.zero_every != m.topology.zero_every {
            sets.push(format!("topology.zero_every={}", t.zero_every));
        }
        if t.has_two_levels() {
            sets.push(format!("topology.shard={}", t.shard_size()));
        } else if m.topology.shard != Shard::All {
            sets.push("topology.shard=all".to_string());
        }
        if t.states != m.topology.states {
            sets.push(format!("topology.states={}", t.states.name()));
        }
        if t.compression != m.topology.compression {
            sets.push("topology.compression=powersgd".to_string());
        }
        if let (Optimizer::AdamW(rule), Moments::Adam8bit) = (&m.optimizer, s.moments) {
            sets.push(Adam8bit::from_adamw(*rule).to_set());
        }
    }
    sets
}

/// Settings of `m` for a model of another size and a cut of it.
pub fn sized_sets(m: &Manifest, s: &Setup) -> Vec<String> {
    let mut all = shape_sets(&s.model);
    for (key, before) in [("kv_heads", m.model.kv_heads), ("head_dim", m.model.head_dim)] {
        if before.is_none() {
            all.retain(|set| *set != format!("model.{key}=null"));
        }
    }
    all.extend(sets(m, s));
    all
}

/// Settings of a model's layers, widths and heads.
pub fn shape_sets(model: &Model) -> Vec<String> {
    let Model { layers, hidden, heads, ffn_hidden, kv_heads, head_dim, .. } = *model;
    let or_null = |size: Option<usize>| size.map_or("null".to_string(), |size| size.to_string());
    vec![
        format!("model.layers={layers}"),
        format!("model.hidden={hidden}"),
        format!("model.heads={heads}"),
        format!("model.ffn_hidden={ffn_hidden}"),
        format!("model.kv_heads={}", or_null(kv_heads)),
        format!("model.head_dim={}", or_null(head_dim)),
    ]
}

/// Settings as flags.
pub fn flags_json(sets: &[String]) -> Value {
    sets.iter().map(|set| format!("--set {set}")).collect()
}
