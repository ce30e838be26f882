//! Comparison of predicted and actual memory and time, after a run's first steps.

use super::dry_run::{self, Stage};
use super::prices;
use super::shape_stages::with_shape;
use super::stage_times::{self, StageTimes};
use crate::hardware::{self, CPU, Hardware};
use crate::parts::{Part, PartSeconds, PartTable};
use crate::setup::{Program, Setup};
use base::{Bytes, Seconds};
use manifest::Manifest;
use plan::segments::MicroShape;

/// Deviation of time or memory that causes a warning.
const FAR: f64 = 1.5;

/// GPU with which a run on unnamed GPUs is compared.
const DEFAULT_GPU: &str = "h200-141g";

/// First steps of a run.
pub struct FirstSteps {
    /// Samples of a step, and its micro-batches.
    pub batch: usize,
    pub micro: MicroShape,
    /// Median seconds of a step.
    pub seconds: f64,
    /// Number of the measured step, and the seconds of its parts. None if the device cannot time its
    /// ops.
    pub parts: Option<(u64, PartSeconds)>,
}

/// Comparison of a plan with a run's first steps.
pub struct Compared {
    /// Memory and a step's time, with a warning if they are far apart.
    pub line: String,
    pub table: Option<PartTable>,
}

/// Compares the plan on `hw`, or on the default GPU, with the first steps. `reserved` is the engine's
/// memory plan on stage `stage`. None if the planner cannot plan this run.
pub fn compare(
    m: &Manifest,
    hw: Option<&'static Hardware>,
    stage: usize,
    reserved: Bytes,
    first: &FirstSteps,
) -> Option<Compared> {
    let hw = hw.or_else(|| hardware::find(DEFAULT_GPU, "plan.hardware").ok())?;
    let all_shapes = dry_run::stages(m);
    let memory_plan = all_shapes.get(stage)?.memory_plan.total();
    let shaped = with_shape(m, first.micro, first.batch);
    let grows = m.batch.length_ramp_up.is_some() || !m.batch.micro_stages.is_empty();
    let stages = if grows { dry_run::stages(&shaped) } else { all_shapes };
    let setup = Setup::new(&shaped, Program::Gptrain, hw);
    let planned = stage_times::seconds(&stages, &setup);
    let memory = if memory_plan == reserved {
        format!("as planned: {reserved}")
    } else {
        format!("memory: {reserved} (planned {memory_plan}: please report this as a bug)")
    };
    let seconds_here = Seconds(first.seconds);
    let planned_here = Seconds(planned);
    let mut line =
        format!("{memory}; a step took {seconds_here} (planned {planned_here} on {})", hw.name);
    let off = first.seconds / planned;
    // A processor is measured while others use it: being far off means nothing, unless it was asked for.
    let known = hw.name != CPU || m.plan.hardware.as_deref() == Some(CPU);
    if known && !(1.0 / FAR..FAR).contains(&off) {
        let word = if off > 1.0 { "slower" } else { "faster" };
        line += &format!(" — {:.1} times {word} than {} should be", off.max(1.0 / off), hw.name);
    }
    let table = first.parts.as_ref().map(|(step, measured)| {
        PartTable::new(*step, first.batch, &by_part(&stages, &setup, stage), measured)
    });
    if let Some(table) = &table
        && let Some(part) = table.largest_deviation()
    {
        line += &format!("; {}", table.explain(part));
    }
    Some(Compared { line, table })
}

/// Planned seconds of each part, on the first rank of a stage.
pub fn by_part(stages: &[Stage], s: &Setup, stage: usize) -> PartSeconds {
    let times = StageTimes::new(stages, s);
    let mut parts = [0.0; Part::COUNT];
    for (name, seconds) in times.stage_parts(s.micros(), stage) {
        let part = match name {
            "matrix products" => Part::Products,
            "attention" => Part::Attention,
            "element-wise" => Part::Elements,
            "head and loss" => Part::Head,
            "tensor parallel" => Part::Tensor,
            "pipeline sends" | "pipeline bubble" => Part::Pipeline,
            prices::REPLICA_MESSAGES | stage_times::SUMS => Part::Data,
            stage_times::OVERLAPPED => continue,
            _ => Part::Optimizer,
        };
        parts[part as usize] += seconds;
    }
    for (row, hidden) in times.overlap_by_row(s.micros(), stage).iter().enumerate() {
        parts[Part::from_traffic(row) as usize] -= hidden;
    }
    parts
}
