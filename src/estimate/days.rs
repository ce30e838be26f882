//! Duration of a run, including the growth of its batch and of its samples, and its cost.

use super::setup::Setup;
use plan::segments::{BatchSchedule, MicroShape};

/// Steps with the same global batch and micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub global: usize,
    /// Samples and tokens of a micro-batch.
    pub micro: MicroShape,
    pub steps: u64,
    /// Seconds of one step.
    pub seconds: f64,
    /// TFLOP/s of a device, recomputation included.
    pub tflops: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Days {
    pub segments: Vec<Segment>,
    pub devices: usize,
    pub seconds: f64,
    /// The first batch that has a micro-batch for every stage.
    pub full_from: Option<usize>,
}

impl Days {
    pub fn days(&self) -> f64 {
        self.seconds / 86400.0
    }

    /// Number of steps.
    pub fn steps(&self) -> u64 {
        self.segments.iter().map(|segment| segment.steps).sum()
    }

    /// Mean seconds of a step.
    pub fn mean_step(&self) -> f64 {
        self.seconds / self.steps().max(1) as f64
    }

    pub fn device_hours(&self) -> f64 {
        self.seconds / 3600.0 * self.devices as f64
    }
}

/// Duration of a run of `samples` samples, with a function for the seconds of a step.
pub fn plan_run(
    schedule: &BatchSchedule,
    samples: u64,
    setup: &Setup,
    seconds: &mut dyn FnMut(&Setup) -> f64,
) -> Days {
    let devices = setup.ranks();
    let mut segments = Vec::new();
    for plan::segments::Segment { global, micro, steps, .. } in schedule.segments(samples) {
        let setup = Setup { global, micro: micro.samples, ..setup.clone() };
        let setup = if micro.tokens == setup.model.seq_len {
            setup
        } else {
            setup.with_length(micro.tokens)
        };
        let seconds = seconds(&setup);
        let tflops = setup.flops().1 / (seconds * devices as f64 * 1e12);
        segments.push(Segment { global, micro, steps, seconds, tflops });
    }
    let full = setup.topology.pipeline * setup.micro * setup.topology.data;
    Days {
        devices,
        seconds: segments.iter().map(|s| s.steps as f64 * s.seconds).sum(),
        full_from: segments
            .iter()
            .map(|s| s.global)
            .find(|global| *global >= full),
        segments,
    }
}
