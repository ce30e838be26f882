//! Memory and time that the steps need on this machine.

use super::steps::NextSteps;
use base::memory::HostMemory;
use base::{Bytes, Count, Problems, Seconds};
use engine::{Engine, Groups};
use launch::{Device, LocalRank};
use std::thread::available_parallelism;

/// Floating-point operations of a CPU core per second: a round number for an estimate of days or minutes.
const CORE_SPEED: f64 = 2e10;

/// Floating-point operations for each parameter and token: forward and backward.
const PER_TOKEN: f64 = 6.0;

/// Seconds from which the time is printed.
const WORTH_SAYING: f64 = 5.0;

/// Prints memory and time of the computation, and fails if the memory is not free.
pub fn announce(next: &NextSteps) -> anyhow::Result<()> {
    let trainer = next.trainer;
    let (_, m) = trainer.reader(&trainer.base, 0)?;
    let device = Device::open(&m, LocalRank::ONLY, m.train.threads)?;
    let (plan, _) = Engine::plan(device.backend(), &Groups::solo(), &m, m.data.causal());
    let needed = Bytes(plan.total().0);
    let cores = available_parallelism().map_or(1, usize::from);
    let tokens = m.batch.ramp().batch_at(trainer.found.samples) * m.model.seq_len;
    let work = PER_TOKEN * model::parameters(&m.model) as f64 * tokens as f64 * next.steps as f64;
    let seconds = work / (CORE_SPEED * cores as f64);
    if seconds > WORTH_SAYING {
        tracing::info!(
            "{needed} of memory and roughly {} for {}; each known error that is tried takes up to as long",
            Seconds(seconds),
            Count(next.steps).with_noun("step")
        );
    }
    let free = HostMemory::detect().map_or(needed, |memory| memory.free);
    Ok(ensure_free(&trainer.found.folder, needed, free)?)
}

fn ensure_free(folder: &str, needed: Bytes, free: Bytes) -> Result<(), Problems> {
    if needed <= free {
        return Ok(());
    }
    Err(Problems::one(
        folder,
        format!("its steps need {needed} of memory, and {free} are free"),
        "--set topology.recompute=full, or a machine with more memory",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_do_not_fit_are_refused_with_both_sizes() {
        let gib = |count: u64| Bytes(count << 30);
        assert!(ensure_free("run", gib(2), gib(2)).is_ok());
        let refusal = ensure_free("run", gib(3), gib(2)).unwrap_err().to_string();
        for size in ["3.0 GiB", "2.0 GiB", "topology.recompute=full"] {
            assert!(refusal.contains(size), "{refusal}");
        }
    }
}
