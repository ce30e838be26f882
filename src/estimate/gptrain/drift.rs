//! Comparison of predicted and actual memory and time, after a run's first steps.

use super::{dry_run, here};
use crate::hardware::{self, CPU};
use crate::setup::{Program, Setup};
use base::{Bytes, Seconds};
use engine::model_dtype;
use manifest::{DeviceChoice, Manifest};

/// Deviation of time or memory that causes a warning.
const FAR: f64 = 1.5;

/// One line with planned and actual memory and time of a step, and a warning if they differ much.
/// `reserved` is the engine's memory plan on stage `stage`, `seconds` the median of a few steps of
/// `global` samples. None if the planner cannot plan this run.
pub fn line(
    m: &Manifest,
    stage: usize,
    reserved: Bytes,
    (global, seconds): (usize, f64),
) -> Option<String> {
    let named = m.plan.hardware.as_deref();
    let default = if m.train.device == DeviceChoice::Cuda { "h200-141g" } else { CPU };
    let row = hardware::find(named.unwrap_or(default), "plan.hardware").ok()?;
    let hw = match &*row.name {
        // A run says this once, and every copy of a setup points at its hardware.
        CPU => Box::leak(Box::new(here::measured(row, model_dtype(m.precision)))),
        _ => row,
    };
    let stages = dry_run::stages(m);
    let mut setup = Setup::of(m, Program::Gptrain, hw);
    setup.global = global;
    let planned = dry_run::seconds(&stages, &setup);
    let memory_plan = stages.get(stage)?.memory_plan.total();
    let memory = match memory_plan == reserved {
        true => format!("as planned: {reserved}"),
        false => format!("memory: {reserved} (planned {memory_plan}: please report this as a bug)"),
    };
    let (seconds_here, planned_here) = (Seconds(seconds), Seconds(planned));
    let mut line =
        format!("{memory}; a step took {seconds_here} (planned {planned_here} on {})", hw.name);
    let off = seconds / planned;
    // A processor is measured while others use it: being far off means nothing, unless it was asked for.
    let known = named.is_some() || m.train.device == DeviceChoice::Cuda;
    if known && !(1.0 / FAR..FAR).contains(&off) {
        let word = if off > 1.0 { "slower" } else { "faster" };
        line += &format!(" — {:.1} times {word} than {} should be", off.max(1.0 / off), hw.name);
    }
    Some(line)
}
