//! Predicted against actual, once a run has made its first real steps.

use super::hardware;
use super::own;
use super::setup::{Framework, Setup};
use crate::base::{Bytes, Seconds};
use crate::manifest::{DeviceChoice, Manifest};

/// From so far off on, time or memory is worth a warning.
const FAR: f64 = 1.5;

/// One line: what the plan said of memory and of a step's time, what was seen, and a warning where
/// they are far apart. `reserved` is the engine's bill on stage `stage`, `seconds` the median of a few
/// steps of `global` samples. None where the planner cannot plan this run.
pub fn line(
    m: &Manifest,
    stage: usize,
    reserved: Bytes,
    (global, seconds): (usize, f64),
) -> Option<String> {
    let named = m.plan.hardware.as_deref();
    let default = if m.train.device == DeviceChoice::Cuda { "h200-141g" } else { "cpu" };
    let hw = hardware::find(named.unwrap_or(default), "plan.hardware").ok()?;
    let stages = own::stages(m, m.data.causal()).ok()?;
    let mut setup = Setup::of(m, Framework::MegatronLm, hw);
    setup.global = global;
    let planned: f64 = own::parts(&stages, &setup).iter().map(|part| part.1).sum();
    let bill = stages.get(stage)?.bill.total();
    let mut line = format!(
        "plan: memory {bill}, here {reserved}; a step {} on {}, here {}",
        Seconds(planned),
        hw.name,
        Seconds(seconds)
    );
    let off = seconds / planned;
    // One row stands for every CPU: being far from it means nothing, unless it was asked for.
    let known = named.is_some() || m.train.device == DeviceChoice::Cuda;
    if known && !(1.0 / FAR..FAR).contains(&off) {
        let word = if off > 1.0 { "slower" } else { "faster" };
        line += &format!(" — {:.1} times {word} than {} should be", off.max(1.0 / off), hw.name);
    }
    if bill != reserved {
        line += " — the plan is not what was reserved: please report this as a bug";
    }
    Some(line)
}
