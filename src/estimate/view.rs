//! Estimate in the form that all printers read: the table, the JSON, the page.

use super::days::{Days, plan_run};
use super::faults::Faults;
use super::gptrain::dry_run::{self, MemoryLimits};
use super::gptrain::prices::TRAFFIC;
use super::gptrain::shape_stages::ShapeStages;
use super::gptrain::stage_times::StageTimes;
use super::hardware::Hardware;
use super::setup::Setup;
use super::verdict::MemoryFit;
use super::words;
use base::Seconds;
use base::table::Cell;
use engine::orders;
use manifest::Manifest;
use model::parameters;
use plan::timeline::{self, Costs, Timeline};

/// A stage's rank.
#[derive(Clone, Debug)]
pub struct Stage {
    pub layers: usize,
    pub parameters: f64,
    /// Bytes, by purpose.
    pub terms: Vec<(&'static str, f64)>,
    /// Bytes that its first rank sends in a step, by `prices::TRAFFIC`; zero if not counted.
    pub sends: [f64; TRAFFIC.len()],
}

impl Stage {
    pub fn bytes(&self) -> f64 {
        self.terms.iter().map(|(_, bytes)| bytes).sum()
    }
}

#[derive(Clone, Debug)]
pub struct View {
    pub name: String,
    /// Name of the trainer.
    pub program: &'static str,
    pub setup: Setup,
    /// Parameters of the whole model.
    pub parameters: u64,
    pub stages: Vec<Stage>,
    /// Stages of gptrain's dry run; empty for another program.
    pub counted: Vec<dry_run::Stage>,
    /// Bytes of the stage that needs most: the sum of its terms, and as nvidia-smi shows it.
    pub needed: f64,
    pub reserved: f64,
    pub reserved_error: f64,
    /// Bytes of a device that a run leaves free.
    pub headroom: f64,
    pub capacity: f64,
    /// Bytes of a node's host that its ranks need.
    pub host_needed: f64,
    pub host_capacity: f64,
    /// Bytes of a node's memory for checkpoints (`checkpoint.memory_interval`), about.
    pub checkpoints_in_memory: f64,
    /// Whether it fits on the device.
    pub device_verdict: MemoryFit,
    /// Seconds of an iteration; the parts sum to it.
    pub parts: Vec<(&'static str, f64)>,
    pub seconds: f64,
    pub seconds_error: f64,
    /// Seconds of a micro-batch's forward and backward on each stage.
    pub stage_seconds: Vec<f64>,
    pub days: Days,
    pub terms: Terms,
    /// Seconds of a step that the plan expects, if those above follow from a TFLOP/s that the user gave.
    pub planned_seconds: Option<f64>,
}

pub const GIB: f64 = 1073741824.0;
/// MiB per GB in the logs of measured runs.
pub const GB: f64 = 1000.0 * 1048576.0;

impl View {
    /// The stage that needs most, and its largest term.
    pub fn peak(&self) -> (usize, &'static str) {
        let stage = (0..self.stages.len())
            .max_by(|a, b| {
                self.stages[*a]
                    .bytes()
                    .total_cmp(&self.stages[*b].bytes())
                    .then(b.cmp(a))
            })
            .expect("a pipeline has a stage");
        let terms = self.stages[stage].terms.iter();
        let term = terms
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .expect("a stage has terms");
        (stage, term.0)
    }

    /// TFLOP/s of a device: model's and hardware's.
    pub fn tflops(&self) -> (f64, f64) {
        let (model, hardware) = self.setup.flops();
        let per = self.seconds * self.setup.ranks() as f64 * 1e12;
        (model / per, hardware / per)
    }

    /// The same plan if a full step reached `tflops` of a device by the simple formula: all its times
    /// change by the same factor, so that a ramp-up keeps its bubbles, and there is no bar.
    pub fn at_tflops(mut self, tflops: f64) -> View {
        let factor = self.setup.simple_tflops(self.seconds) / tflops;
        self.planned_seconds = Some(self.seconds);
        self.seconds *= factor;
        self.seconds_error = 0.0;
        self.parts
            .iter_mut()
            .for_each(|(_, seconds)| *seconds *= factor);
        self.stage_seconds
            .iter_mut()
            .for_each(|seconds| *seconds *= factor);
        self.days.seconds *= factor;
        for segment in &mut self.days.segments {
            segment.seconds *= factor;
            segment.tflops /= factor;
        }
        self
    }

    /// Seconds of a step with their bar; without one if they follow from the user's TFLOP/s.
    pub fn step_words(&self) -> String {
        match self.planned_seconds {
            None => words::with_bar(self.seconds, self.seconds_error),
            Some(_) => Seconds(self.seconds).to_string(),
        }
    }

    /// At most as many micro-batches as are visible.
    pub fn schedule(&self) -> Timeline {
        let t = &self.setup.topology;
        let chunks = t.chunks;
        let micros = self.setup.micros().clamp(1, t.pipeline + 3);
        let micros = if chunks > 1 { micros.next_multiple_of(t.pipeline) } else { micros };
        let backward = self.setup.forward_passes() + 1.0;
        let forward = self
            .stage_seconds
            .iter()
            .map(|slot| slot / (1.0 + backward) / chunks as f64)
            .collect::<Vec<f64>>()
            .repeat(chunks);
        let backward = forward.iter().map(|seconds| backward * seconds).collect();
        let costs = Costs { forward, backward, message: 0.0 };
        timeline::simulate(&orders(t, micros), &costs).expect("no schedule of `plan` deadlocks")
    }

    /// Whether it fits on the device and on the host.
    pub fn verdict(&self) -> MemoryFit {
        self.device_verdict.and(self.host_verdict())
    }

    /// Tokens of the run.
    pub fn tokens(&self) -> f64 {
        self.terms.tokens as f64
    }

    /// Whether the host has memory for its ranks.
    pub fn host_verdict(&self) -> MemoryFit {
        MemoryFit::new(self.host_needed, 0.0, self.host_capacity)
    }
}

/// Settings of a manifest and its flags outside of the setup.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Price of one device for one hour.
    pub price: f64,
    /// The sign of the price's currency: dollars, unless the price says another.
    pub currency: &'static str,
    /// Share of the wall-clock time in which the run makes progress, if it has no faults.
    pub availability: f64,
    pub faults: Option<Faults>,
    pub budget: Option<f64>,
    /// Budget in device-hours.
    pub hours: Option<f64>,
    /// Length of the run.
    pub samples: u64,
    pub tokens: u64,
}

impl Terms {
    /// Share of the wall-clock time in which a run makes progress.
    pub fn useful(&self, days: &Days) -> f64 {
        let between_faults = self.faults.map_or(1.0, |faults| faults.shares(days).useful);
        self.availability * between_faults
    }

    /// Duration of a run in wall-clock time.
    pub fn calendar_seconds(&self, days: &Days) -> f64 {
        days.seconds / self.useful(days)
    }

    pub fn calendar_days(&self, days: &Days) -> f64 {
        days.days() / self.useful(days)
    }

    /// Hours for which devices are paid.
    pub fn device_hours(&self, days: &Days) -> f64 {
        days.device_hours() / self.useful(days)
    }

    /// Whether a price is known; the local CPU has none unless the user gives one.
    pub fn has_price(&self) -> bool {
        self.price > 0.0
    }

    /// ", $145,875"; empty without a price.
    pub fn paid(&self, days: &Days) -> String {
        if !self.has_price() {
            return String::new();
        }
        format!(", {}", self.money(self.cost(days)))
    }

    pub fn cost(&self, days: &Days) -> f64 {
        self.device_hours(days) * self.price
    }

    /// Whether a run is within both budgets.
    pub fn can_pay(&self, days: &Days) -> bool {
        self.budget.is_none_or(|budget| self.cost(days) <= budget)
            && self
                .hours
                .is_none_or(|hours| self.device_hours(days) <= hours)
    }

    /// The budgets: "$2,000,000 and 3,000,000 device-hours"; None without one.
    pub fn budgets(&self) -> Option<String> {
        let money = self.budget.map(|budget| self.money(budget));
        let hours = self
            .hours
            .map(|hours| format!("{} device-hours", words::hours(hours)));
        let both: Vec<String> = money.into_iter().chain(hours).collect();
        (!both.is_empty()).then(|| both.join(" and "))
    }

    /// Calendar days of a run, whose seconds `format` shows.
    pub fn days_cell(&self, days: &Days, format: fn(f64) -> String) -> Cell {
        Cell::new(self.calendar_days(days), format(self.calendar_seconds(days)))
    }

    /// Cost of a run, shown as a dash without a price.
    pub fn cost_cell(&self, days: &Days) -> Cell {
        let cost = self.cost(days);
        Cell::new(cost, if self.has_price() { self.money(cost) } else { "–".to_string() })
    }

    /// "$145,875"
    pub fn money(&self, sum: f64) -> String {
        words::money(self.currency, sum)
    }
}

/// View of gptrain's own estimate: the memory and work of its engine.
pub fn for_gptrain(m: &Manifest, setup: Setup, terms: Terms) -> View {
    let m = &dry_run::place_gradients(m, MemoryLimits::new(m, setup.hardware));
    let counted = dry_run::stages(m);
    let stages: Vec<Stage> = counted
        .iter()
        .map(|stage| Stage {
            layers: stage.layers,
            parameters: stage.parameters as f64,
            terms: stage
                .memory_plan
                .rows
                .iter()
                .map(|(name, b)| (*name, b.0 as f64))
                .collect(),
            sends: stage.sends(setup.micros()),
        })
        .collect();
    let (peak, bytes) = dry_run::peak(&counted);
    let needed = bytes.0 as f64;
    debug_assert_eq!(needed, stages[peak].bytes());
    let capacity = setup.hardware.memory_gib * GIB;
    let ranks = setup.hardware.per_node.min(setup.ranks());
    let on_host = dry_run::host_peak(&counted).0 as f64 * ranks as f64;
    let around = setup.hardware.context_mib * 1048576.0;
    let times = StageTimes::new(&counted, &setup);
    let mut shapes = ShapeStages::new(m, counted.clone());
    View {
        name: m.name.clone(),
        program: "gptrain",
        parameters: parameters(&setup.model),
        stages,
        counted,
        needed,
        reserved: needed + around,
        reserved_error: 0.0,
        headroom: dry_run::headroom(m, setup.hardware).0 as f64,
        capacity,
        host_needed: on_host,
        host_capacity: setup.hardware.host_gib * GIB,
        checkpoints_in_memory: checkpoints_in_memory(m, setup.hardware),
        device_verdict: MemoryFit::new(
            needed,
            0.0,
            MemoryLimits::new(m, setup.hardware).device.0 as f64,
        ),
        parts: times.parts(setup.micros()),
        seconds: times.seconds(setup.micros()),
        stage_seconds: times.micro_seconds(),
        seconds_error: dry_run::error(setup.hardware, setup.ranks()),
        days: plan_run(&m.schedule(), terms.samples, &setup, &mut |s| shapes.seconds(s)),
        terms,
        setup,
        planned_seconds: None,
    }
}

/// Bytes of checkpoints in the memory of the node that has most: two steps of its ranks' states, as many
/// of a neighbour node's if there is one, and a snapshot of its ranks. States are taken to be spread
/// evenly over the ranks that save them.
fn checkpoints_in_memory(m: &Manifest, hardware: &Hardware) -> f64 {
    if m.checkpoint.memory_interval.is_none() {
        return 0.0;
    }
    let t = &m.topology;
    let replicas = if t.zero > 0 { t.levels(0).pieces() } else { 1 };
    let saving = t.tensor * t.pipeline * replicas;
    let on_node = hardware.per_node.min(saving) as f64 / saving as f64;
    let copies = if t.ranks() > hardware.per_node { 2.0 } else { 1.0 };
    (2.0 * copies + 1.0) * on_node * engine::saved_bytes(m) as f64
}
