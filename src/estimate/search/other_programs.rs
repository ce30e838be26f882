//! The cuts of a model that another program can train.

use crate::change::layer_split;
use crate::gptrain::cuts::is_permitted;
use crate::mixture::Degrees;
use crate::setup::Setup;
use manifest::{LayerSplit, Manifest, Schedule};
use plan::ramp::Ramp;

/// Every cut over exactly `devices` that the manifest permits.
pub fn cuts(m: &Manifest, setup: &Setup, ramp: Ramp, devices: usize) -> Vec<Setup> {
    let mut cuts = Vec::new();
    for (tensor, pipeline, data) in setup.grids(devices) {
        let split = layer_split(setup.model.layers, pipeline);
        // Other programs need equal stages; those with experts take any layout.
        if split == LayerSplit::Balanced && setup.mixture.is_none() {
            continue;
        }
        let base = setup.clone().with_topology(|t| {
            (t.tensor, t.pipeline, t.data) = (tensor, pipeline, data);
            t.layer_split = split;
            t.sequence_parallel &= tensor > 1;
        });
        for expert in base.expert_degrees() {
            let degrees = Degrees { expert, ..base.degrees };
            cuts.extend(choices(&base.clone().with_degrees(degrees), ramp));
        }
    }
    cuts.retain(|cut| is_permitted(m, cut));
    cuts
}

/// Micro-batch, ZeRO, recomputation and schedule of a grid.
fn choices(base: &Setup, ramp: Ramp) -> Vec<Setup> {
    let pipeline = base.topology.pipeline;
    let mut cuts = Vec::new();
    let micros = [1, 2, 4, 8, 16].into_iter().filter(|micro| {
        let at_once = micro * base.topology.data;
        let fused = (base.model.heads / base.topology.tensor * micro).is_multiple_of(4);
        fused && ramp.sizes().all(|size| size.is_multiple_of(at_once))
    });
    let mut schedules = vec![(Schedule::OneFOneB, 1)];
    for &chunks in base.program.chunks().iter().filter(|_| pipeline > 1) {
        if base.model.layers.is_multiple_of(chunks * pipeline) {
            schedules.push((Schedule::Interleaved, chunks));
        }
    }
    // One replica has no level.
    let levels = base.program.zero_levels(pipeline);
    let count = if base.replicas() == 1 { levels.len().min(1) } else { levels.len() };
    for micro in micros {
        for zero in &levels[..count] {
            for recompute in base.program.recomputes() {
                for (schedule, chunks) in &schedules {
                    let mut setup = Setup { micro, ..base.clone() };
                    setup.topology.zero = if base.replicas() == 1 { 0 } else { *zero };
                    setup.topology.recompute = *recompute;
                    (setup.topology.schedule, setup.topology.chunks) = (*schedule, *chunks);
                    cuts.push(setup);
                }
            }
        }
    }
    cuts
}
