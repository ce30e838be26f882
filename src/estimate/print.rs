//! Prints an estimate as text of at most 100 columns, and as JSON.

use super::change::flag_lines;
use super::days::{Days, Segment};
use super::deepspeed::states;
use super::gptrain::advisor::{Advisor, Change};
use super::gptrain::compression;
use super::gptrain::prices::TRAFFIC;
use super::gptrain::{micro_sums, slow_rings};
use super::parts::LEVELS;
use super::rates::{simple_days, simple_factor};
use super::verdict::{self, MemoryFit};
use super::view::{GIB, Stage, Terms, View};
use super::words::{self, hours, size, span};
use base::table::{Cell, Printout, Rows, Table};
use base::{Count, Seconds};
use model::named_size_note;
use plan::segments::MicroShape;
use serde_json::{Map, Value, json};

const MIB: f64 = 1048576.0;

/// Bar of the time from which the summary says how to narrow it.
const DOUBTFUL: f64 = 0.5;

/// Width of a plan's text.
const COLUMNS: usize = 100;

/// The whole estimate.
pub fn printout(v: &View) -> Printout {
    let s = &v.setup;
    let t = &s.topology;
    let mut out = Printout::new(json(v));
    headline(v, &mut out);
    let states = if t.copies_states() { " with all states" } else { "" };
    let levels = if t.has_two_levels() {
        format!(" in shard groups of {}{states}", t.shard_size())
    } else {
        String::new()
    };
    out.line(format!(
        "\n{} as {} on {} × {}\nTP {} × PP {} × DP {}{}{}, ZeRO-{}{levels}, micro-batch {}, batch {}",
        v.name,
        v.program,
        s.ranks(),
        s.hardware.name,
        t.tensor,
        t.pipeline,
        t.data,
        s.degree_words(),
        t.schedule_words(),
        t.zero,
        s.micro,
        s.global
    ));
    let active = match s.mixture {
        Some(_) => format!("; a token uses {} of them", size(s.active_parameters())),
        None => String::new(),
    };
    out.line(format!(
        "\nParameters  {} ({}, {} in the layers); vocabulary padded to {}\n  {} × {}: hidden width per \
         layer (h/L) {:.0}{active}",
        Count(v.parameters),
        size(v.parameters as f64),
        size(s.layer_parameters()),
        Count(s.model.vocab_padded as u64),
        Count(s.model.layers as u64).with_noun("layer"),
        Count(s.model.hidden as u64),
        s.model.hidden as f64 / s.model.layers as f64,
    ));
    memory(v, &mut out);
    out.table(traffic(v));
    out.table(parts(v));
    if v.program == "gptrain" {
        out.line(
            "  without input, which is read ahead of the step, and saves, whose time depends on the disk",
        );
    }
    rates(v, &mut out);
    run(v, &mut out);
    out
}

/// Summary: "fits: 43.3 of 79.2 GiB; 4.9 s ± 20 % per step; 27.1 days, $145,875", and notes.
fn headline(v: &View, out: &mut Printout) {
    let host = match v.host_verdict() {
        MemoryFit::Fits => String::new(),
        _ => format!(
            ", {:.0} of {:.0} GiB of its node's",
            v.host_needed / GIB,
            v.host_capacity / GIB
        ),
    };
    let memory = |bytes: f64| match v.capacity {
        GIB.. => format!("{:.1}", bytes / GIB),
        _ => format!("{:.3}", bytes / GIB),
    };
    let duration = v.terms.calendar_seconds(&v.days);
    let needs = format!(
        "{}: {} of {} GiB{host}; {} per step;",
        v.verdict().words(),
        memory(v.reserved),
        memory(v.capacity),
        v.step_words()
    );
    let run =
        format!("{} for {} tokens{}", span(duration), size(v.tokens()), v.terms.paid(&v.days));
    let is_wide = needs.chars().count() + 1 + run.chars().count() > COLUMNS;
    out.line(needs + if is_wide { "\n  " } else { " " } + &run);
    if let MemoryFit::MayNotFit(share) = v.device_verdict {
        let [least, most] = words::range(v.reserved, v.reserved_error).map(memory);
        out.line(format!(
            "  {} of the bar of its memory, {least} to {most} GiB, is above the device's {}.",
            verdict::percent(share),
            memory(v.capacity)
        ));
    }
    let notes = match v.planned_seconds {
        None => v.setup.hardware.notes(v.program, duration),
        Some(planned) => {
            let given = v.setup.simple_tflops(v.seconds);
            let own = v.setup.simple_tflops(planned);
            vec![
                format!(
                    "All times follow from {given:.1} TFLOP/s per device (simple formula), as given;"
                ),
                format!("the plan's own figure is {own:.1}, with {} per step.", Seconds(planned)),
            ]
        }
    };
    out.push_indented(notes);
    out.push_indented(v.setup.foreign_notes());
    if v.setup.mixture.is_none() {
        out.push_indented(named_size_note(&v.name, &v.setup.model));
    }
    if v.planned_seconds.is_none() && v.seconds_error >= DOUBTFUL {
        out.line(format!(
            "  Measure two steps, then plan: --calibrate ({}) narrows this bar.",
            match v.program {
                "gptrain" => "`gptrain bench`, a run's metrics",
                _ => "a log, a table of runs",
            }
        ));
    }
}

/// Unit of the memory of a rank, and its name.
fn memory_unit(v: &View) -> (f64, &'static str) {
    if v.needed >= GIB { (GIB, "GiB") } else { (MIB, "MiB") }
}

/// Memory of each stage's ranks, by purpose.
fn stages(v: &View) -> Table {
    let (unit, name) = memory_unit(v);
    let (thousands, parameters) = if unit == GIB { ("params B", 1e9) } else { ("params M", 1e6) };
    let bytes = move |bytes: f64| Cell::new(bytes, format!("{:.2}", bytes / unit));
    let rows: Vec<(usize, &Stage)> = v.stages.iter().enumerate().collect();
    let mut table = Rows::new(&rows)
        .text("stage", |(number, _)| *number)
        .column("layers", "layers", |(_, stage)| stage.layers)
        .column(thousands, "parameters", |(_, stage)| {
            Cell::new(stage.parameters, format!("{:.3}", stage.parameters / parameters))
        });
    for (number, (term, _)) in v.stages[0].terms.iter().enumerate() {
        let title = if *term == "library workspace" { "library" } else { term };
        let key = format!("bytes.{term}");
        table = table.column(title, key, |(_, stage)| bytes(stage.terms[number].1));
    }
    table
        .text("sum", |(_, stage)| bytes(stage.bytes()))
        .titled(format!("Memory of a rank, {name}"))
}

/// Memory of each stage, and the peak against what devices and hosts have.
fn memory(v: &View, out: &mut Printout) {
    out.table(stages(v));
    deepspeed(v, out);
    let (unit, _) = memory_unit(v);
    let (stage, term) = v.peak();
    let [least, most] = words::range(v.reserved / unit, v.reserved_error);
    let bar = match v.reserved_error {
        0.0 => String::new(),
        error if words::is_wide(error) => format!(" ({least:.1} to {most:.1})"),
        error => format!(" {}", words::bar(error)),
    };
    // Its share is in the first line.
    let verdict = match v.device_verdict {
        doubt @ MemoryFit::MayNotFit(_) => doubt.name().to_string(),
        other => other.words(),
    };
    out.line(format!(
        "Stage {stage} sets the peak, by its {term}: needed {:.1}, reserved {:.1}{bar} of {:.1}: {}",
        v.needed / unit,
        v.reserved / unit,
        v.capacity / unit,
        verdict
    ));
    if v.headroom > 0.0 {
        let free = v.headroom / unit;
        out.line(format!("Reserve for what CUDA and NCCL allocate in the first steps: {free:.1}"));
    }
    if v.host_needed > 0.0 {
        out.line(format!(
            "Host memory of a node, GiB: needed {:.1} of {:.1}: {}",
            v.host_needed / GIB,
            v.host_capacity / GIB,
            v.host_verdict().words()
        ));
    }
    if v.checkpoints_in_memory > 0.0 {
        out.line(format!(
            "Checkpoints in memory of a node, GiB: about {:.1} of {:.1}",
            v.checkpoints_in_memory / GIB,
            v.host_capacity / GIB
        ));
    }
}

/// Memory of the states by DeepSpeed's own estimator, for programs that use DeepSpeed, if it has a rule.
fn deepspeed(v: &View, out: &mut Printout) {
    let s = &v.setup;
    let t = &s.topology;
    if t.zero < 2 || t.pipeline > 1 || !v.program.contains("deepspeed") {
        return;
    }
    let sizes = (v.stages[0].parameters, s.counts.tokens.max(s.counts.block));
    let gpus = (t.data as f64, s.per_node.min(t.data) as f64);
    let states = states(t.zero, sizes, gpus, s.offload, true);
    out.line(format!(
        "DeepSpeed's own rule for weights, gradients and optimizer: {:.2} GiB per GPU, {:.1} GiB \
         per node",
        states.gpu / GIB,
        states.host / GIB
    ));
}

/// Traffic of each stage's first rank in a step, if it has a peer.
fn traffic(v: &View) -> Table {
    let sum = |stage: &Stage| stage.sends.iter().sum::<f64>();
    let mib = |bytes: f64| Cell::fixed(bytes / MIB, 1);
    let all = v.stages.iter().enumerate();
    let rows: Vec<(usize, &Stage)> = all.filter(|(_, stage)| sum(stage) > 0.0).collect();
    let mut table = Rows::new(&rows).text("stage", |(number, _)| *number);
    let has_levels = v.setup.topology.has_two_levels();
    let shown = if has_levels { TRAFFIC.len() } else { LEVELS };
    for (number, (name, _)) in TRAFFIC.iter().enumerate().take(shown) {
        table = table.text(*name, |(_, stage)| mib(stage.sends[number]));
    }
    table
        .text("sum", |(_, stage)| mib(sum(stage)))
        .titled("Sent by a rank in a step, MiB")
}

/// Waterfall of a step.
fn parts(v: &View) -> Table {
    let time = |seconds: f64| Cell::new(seconds, format!("{seconds:.4} s"));
    let mut rows: Vec<[Cell; 4]> = Vec::new();
    for (name, seconds) in v.parts.iter().filter(|(_, seconds)| *seconds != 0.0) {
        let share = seconds / v.seconds;
        let bar = "█".repeat((50.0 * share).round() as usize);
        rows.push([(*name).into(), time(*seconds), Cell::percent(share), bar.into()]);
    }
    rows.push(["sum".into(), time(v.seconds), Cell::default(), Cell::default()]);
    let bar = if v.planned_seconds.is_some() {
        String::new()
    } else if words::is_wide(v.seconds_error) {
        format!(", nine in ten {}", words::with_bar(v.seconds, v.seconds_error))
    } else {
        format!(" {} (nine in ten)", words::bar(v.seconds_error))
    };
    let title = format!("Time of a step  {:.4} s{bar}", v.seconds);
    Table::from_cells(["", "", "", ""], rows).titled(title)
}

fn rates(v: &View, out: &mut Printout) {
    let (model, hardware) = v.tflops();
    let peak = v.setup.hardware.peak_tflops;
    let simple = v.setup.simple_tflops(v.seconds);
    let tokens = (v.setup.global * v.setup.model.seq_len) as f64 / v.seconds;
    out.line(format!(
        "\nRates  {tokens:.0} tokens/s, {:.0} per device; {:.2} samples/s",
        tokens / v.setup.ranks() as f64,
        v.setup.global as f64 / v.seconds
    ));
    out.line(format!(
        "  TFLOP/s per device: {hardware:.2} executed, {model:.2} that the model needs (improved \
         formula),\n  {simple:.2} by 8 or 6 FLOPs per parameter (simple formula); HFU {:.1} %, MFU \
         {:.1} % of {peak} dense;\n  attention counted as if not causal",
        100.0 * hardware / peak,
        100.0 * model / peak
    ));
}

/// Steps with the same batch, or in text neighbouring batches of a ramp-up together.
#[derive(Clone)]
struct Phase {
    first: usize,
    last: usize,
    /// First and last shape of a micro-batch.
    micros: [MicroShape; 2],
    steps: u64,
    /// Seconds and TFLOP/s of a step, on average.
    step: f64,
    tflops: f64,
}

impl Phase {
    fn new(segments: &[Segment]) -> Phase {
        let micros = [segments[0].micro, segments[segments.len() - 1].micro];
        if let [Segment { global, steps, seconds, tflops, .. }] = *segments {
            return Phase { first: global, last: global, micros, steps, step: seconds, tflops };
        }
        let duration = |s: &Segment| s.steps as f64 * s.seconds;
        let steps = segments.iter().map(|s| s.steps).sum();
        let seconds: f64 = segments.iter().map(duration).sum();
        let work: f64 = segments.iter().map(|s| s.tflops * duration(s)).sum();
        Phase {
            first: segments[0].global,
            last: segments[segments.len() - 1].global,
            micros,
            steps,
            step: seconds / steps as f64,
            tflops: work / seconds,
        }
    }

    fn seconds(&self) -> f64 {
        self.steps as f64 * self.step
    }

    fn batch(&self) -> String {
        span_of([self.first, self.last])
    }
}

/// One number, or two with a dash.
fn span_of([first, last]: [usize; 2]) -> String {
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

fn phases(phases: &[Phase]) -> Table {
    let varies = |part: fn(&MicroShape) -> usize| {
        let all: Vec<usize> = phases
            .iter()
            .flat_map(|p| p.micros.each_ref().map(part))
            .collect();
        all.iter().any(|one| *one != all[0])
    };
    let samples = |micro: &MicroShape| micro.samples;
    let tokens = |micro: &MicroShape| micro.tokens;
    let mut rows = Rows::new(phases).column("batch", "batch", |p| Cell::new(p.first, p.batch()));
    if varies(samples) {
        rows = rows.column("micro", "micro", move |p| {
            Cell::new(samples(&p.micros[0]), span_of(p.micros.each_ref().map(samples)))
        });
    }
    if varies(tokens) {
        rows = rows.column("tokens/sample", "seq_len", move |p| {
            Cell::new(tokens(&p.micros[0]), span_of(p.micros.each_ref().map(tokens)))
        });
    }
    rows.column("steps", "steps", |p| p.steps)
        .column("s/step", "seconds", |p| Cell::fixed(p.step, 3))
        .column("time", "hours", |p| Cell::new(p.seconds() / 3600.0, span(p.seconds())))
        .column("TFLOP/s", "tflops", |p| Cell::fixed(p.tflops, 1))
        .table()
}

/// At most eight rows of the batches of a run, the last one alone.
fn condense_segments(segments: &[Segment]) -> Vec<Phase> {
    let Some((last, ramp)) = segments.split_last() else { return Vec::new() };
    let rows = ramp.len().div_ceil(7).max(1);
    let last = std::slice::from_ref(last);
    ramp.chunks(rows).chain([last]).map(Phase::new).collect()
}

/// Duration of the run, its batches, and its cost.
fn run(v: &View, out: &mut Printout) {
    let d = &v.days;
    let terms = &v.terms;
    let calendar = span(terms.calendar_seconds(d));
    let calendar = match (terms.availability, terms.faults) {
        (1.0, None) => String::new(),
        (share, None) => {
            format!(" ({calendar} of the calendar at {:.0} % availability)", 100.0 * share)
        }
        _ => {
            format!(" ({calendar} of the calendar, {:.1} % of it useful)", 100.0 * terms.useful(d))
        }
    };
    out.table(phases(&condense_segments(&d.segments)).titled(format!(
        "Run of {} tokens: {}{calendar}; {} device-hours",
        size(v.tokens()),
        span(d.seconds),
        hours(terms.device_hours(d))
    )));
    let factor = simple_factor(v.setup.topology.recompute);
    let simple = v.setup.simple_tflops(v.seconds);
    let active = v.setup.active_parameters();
    let rule = simple_days(factor, active, v.tokens(), v.setup.ranks() as f64, simple);
    out.line(format!(
        "  {} if every step were a full one ({factor} FLOPs per parameter and token)",
        span(86400.0 * rule)
    ));
    match d.full_from {
        Some(batch) if v.setup.topology.pipeline > 1 => {
            out.line(format!("  The pipeline is first full at batch {batch}."));
        }
        None => out.line("  No batch fills the pipeline."),
        _ => {}
    }
    if let Some(budget) = terms.hours {
        let used = terms.device_hours(d);
        let rest = rest(budget - used, words::hours);
        out.line(format!(
            "  Device-hours: {} of plan.hours {}{rest}",
            words::hours(used),
            words::hours(budget)
        ));
    }
    for line in terms.faults.iter().flat_map(|faults| faults.describe(d)) {
        out.line(format!("  {line}"));
    }
    cost(d, terms, out);
}

/// "; left of the budget: 20", or by how much it is exceeded.
fn rest(left: f64, format: impl Fn(f64) -> String) -> String {
    let word = if left < 0.0 { "over the budget by" } else { "left of the budget:" };
    format!("; {word} {}", format(left.abs()))
}

/// Cost of a run, and the rest of its budget, if there is a price.
fn cost(d: &Days, terms: &Terms, out: &mut Printout) {
    if !terms.has_price() {
        return;
    }
    let cost = terms.cost(d);
    let budget = terms
        .budget
        .map_or(String::new(), |budget| rest(budget - cost, |sum| terms.money(sum)));
    let price = format!("{}{}", terms.currency, terms.price);
    out.line(format!("  Cost at {price} per device-hour: {}{budget}", terms.money(cost)));
}

/// Advice for gptrain's own plan: changes that make it fit if it does not, else faster plans, in the
/// order in which they are tried.
pub fn advise_own(v: &View, advisor: &Advisor, out: &mut Printout) {
    let rings = slow_rings::describe(v);
    let compressed = compression::describe(advisor.manifest, &v.setup, &v.counted);
    let sums = micro_sums::describe(advisor.manifest, &v.setup, &v.counted);
    for line in rings.into_iter().chain(compressed).chain(sums) {
        out.line(line);
    }
    let fits = v.verdict() == MemoryFit::Fits;
    let (title, key, list) = if fits {
        ("Changes that make it faster, simplest first", "faster", advisor.speed_ups(&v.counted))
    } else {
        ("Changes that make it fit, simplest first", "ladder", advisor.remedies())
    };
    out.json[key] = own_changes(&list, v).json();
    let kinds = list.chunk_by(|a, b| a.kind == b.kind);
    let first = kinds.flat_map(|kind| kind.iter().take(NAMED));
    out.table(own_changes(first, v).titled(title));
    if list.is_empty() && !fits {
        let devices = words::devices(v.setup.ranks());
        let other = format!(
            "and no topology over {devices}: --search tries the host and 8 bits, --min-gpus more"
        );
        out.line(format!("\nNo change of one or two steps fits:\n  {other}"));
        out.json["advice"] = json!(other);
    }
}

/// Maximum number of printed changes per kind.
const NAMED: usize = 3;

/// Changes of gptrain's own plan: the memory of each rank, the seconds for the tokens of a current step,
/// and the flags.
fn own_changes<'a>(list: impl IntoIterator<Item = &'a Change>, v: &View) -> Table {
    // Memory as nvidia-smi shows it.
    let context = v.setup.hardware.context_mib * MIB;
    Rows::new(list)
        .column("change", "change", |c| c.what.clone())
        .column("GiB", "mem_gib", |c| Cell::fixed((c.bytes.0 as f64 + context) / GIB, 1))
        .column("s/step", "seconds", |c| Cell::fixed(c.seconds, 3))
        .text("", |c| words::change(v.seconds, c.seconds))
        .json("cost_seconds", |c| c.seconds - v.seconds)
        .json("host_gib", |c| c.host.0 as f64 / GIB)
        .json("fits", |_| true)
        .line_below("set", |c| Cell::new(c.sets.clone(), flag_lines(&c.sets).join("\n")))
        .table()
}

pub fn json(v: &View) -> Value {
    let s = &v.setup;
    let t = &v.setup.topology;
    let d = &v.days;
    let (stage, term) = v.peak();
    let (model, hardware) = v.tflops();
    let parts: Map<String, Value> = v
        .parts
        .iter()
        .map(|(name, seconds)| (name.to_string(), json!(seconds)))
        .collect();
    let segments: Vec<Phase> = d.segments.chunks(1).map(Phase::new).collect();
    let mut host = json!({ "needed_bytes": v.host_needed, "capacity_bytes": v.host_capacity });
    v.host_verdict().add_to(&mut host);
    if v.checkpoints_in_memory > 0.0 {
        host["checkpoint_bytes"] = json!(v.checkpoints_in_memory);
    }
    let mut memory = json!({ "stages": stages(v).json(), "peak_stage": stage, "peak_term": term,
        "needed_bytes": v.needed, "reserved_bytes": v.reserved, "error": v.reserved_error,
        "headroom_bytes": v.headroom, "capacity_bytes": v.capacity, "host": host });
    v.device_verdict.add_to(&mut memory);
    json!({
        "name": v.name, "framework": v.program, "hardware": s.hardware.name, "devices": s.ranks(),
        "topology": { "tensor": t.tensor, "pipeline": t.pipeline, "data": t.data, "zero": t.zero,
            "shard": t.shard_size(), "states": t.states.name(),
            "context": s.degrees.context, "expert": s.degrees.expert,
            "micro_batch": s.micro, "global_batch": s.global },
        "parameters": v.parameters, "active_parameters": s.active_parameters() as u64,
        "width_per_layer": s.model.hidden as f64 / s.model.layers as f64,
        "memory": memory,
        "time": { "seconds": v.seconds, "error": v.seconds_error,
            "planned_seconds": v.planned_seconds.unwrap_or(v.seconds), "parts": parts },
        "tflops": { "hardware": hardware, "model": model, "simple": s.simple_tflops(v.seconds),
            "mfu": model / s.hardware.peak_tflops, "hfu": hardware / s.hardware.peak_tflops },
        "run": { "tokens": v.tokens(), "days": d.days(), "calendar_days": v.terms.calendar_days(d),
            "gpu_hours": v.terms.device_hours(d), "money": v.terms.cost(d),
            "budget_left": v.terms.budget.map(|b| b - v.terms.cost(d)),
            "hours_left": v.terms.hours.map(|hours| hours - v.terms.device_hours(d)),
            "pipe_full_from": d.full_from, "faults": v.terms.faults.map(|faults| faults.json(d)),
            "segments": phases(&segments).json() },
    })
}
