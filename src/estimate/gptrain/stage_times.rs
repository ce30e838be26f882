//! Seconds of a step on the stages of a pipeline. The order of a stage's events is timed once; steps of any
//! number of micro-batches follow from that.

use super::dry_run::{self, Stage, Work};
use super::overlap::Overlap;
use super::prices::{self, Prices, TRAFFIC};
use crate::setup::Setup;
use manifest::Schedule;
use std::sync::Arc;

/// The part of a step in which replicas sum up gradients and gather weights.
pub const SUMS: &str = "once a step: sums";

/// Time of messages that is hidden behind computation, as a negative number.
pub const OVERLAPPED: &str = "overlapped";

/// Seconds of an iteration of the setup's batch.
pub fn seconds(stages: &[Stage], s: &Setup) -> f64 {
    StageTimes::new(stages, s).seconds(s.micros())
}

/// Seconds of the stages' work on a setup's device and links. Of the setup's batch, only the micro-batch
/// matters.
#[derive(Clone, Debug)]
pub struct StageTimes {
    /// Stages of the same work share an entry.
    stages: Vec<Arc<WorkTimes>>,
    /// Chunks of layers of a rank, and the order of its passes.
    chunks: f64,
    schedule: Schedule,
}

/// Seconds of a rank's work.
#[derive(Debug)]
struct WorkTimes {
    /// Ops and messages of a micro-batch one after the other, by purpose.
    micro: Vec<(&'static str, f64)>,
    /// Part of these that overlaps computation: of a micro-batch, and once a step.
    overlap: [Overlap; 2],
    /// Once a step: messages between replicas, the rest, and the host's work.
    sums: f64,
    optimizer: f64,
    host: f64,
    /// Copies between host and device for a micro-batch.
    copies: f64,
}

impl WorkTimes {
    fn new(work: &Work, s: &Setup, prices: &Prices) -> WorkTimes {
        let step = work.step.seconds(&prices.once());
        let sums = step
            .iter()
            .filter(|(name, _)| *name == prices::REPLICA_MESSAGES)
            .map(|part| part.1)
            .sum();
        WorkTimes {
            micro: work.micro.seconds(prices),
            overlap: work.overlap(prices),
            sums,
            optimizer: total(&step) - sums,
            host: dry_run::host_seconds(&work.step.host, s),
            copies: dry_run::host_seconds(&work.micro.host, s),
        }
    }

    /// A micro-batch's forward and backward.
    fn seconds(&self) -> f64 {
        total(&self.micro) - self.overlap[0].all
    }
}

impl StageTimes {
    /// Times of the stages on the setup's links.
    pub fn new(stages: &[Stage], s: &Setup) -> StageTimes {
        StageTimes::with_prices(stages, s, &Prices::new(s))
    }

    /// The same with other links than the setup's.
    pub fn with_prices(stages: &[Stage], s: &Setup, prices: &Prices) -> StageTimes {
        let mut times: Vec<Arc<WorkTimes>> = Vec::new();
        for (index, stage) in stages.iter().enumerate() {
            let alike = stages[..index]
                .iter()
                .position(|other| other.work.is_copy_of(&stage.work));
            times.push(match alike {
                Some(earlier) => times[earlier].clone(),
                None => Arc::new(WorkTimes::new(&stage.work, s, prices)),
            });
        }
        let chunks = s.topology.chunks as f64;
        StageTimes { stages: times, chunks, schedule: s.topology.schedule }
    }

    /// Seconds of a micro-batch's forward and backward on each stage.
    pub fn micro_seconds(&self) -> Vec<f64> {
        self.stages.iter().map(|stage| stage.seconds()).collect()
    }

    /// Seconds of an iteration of so many micro-batches, on the slowest stage.
    pub fn seconds(&self, micros: usize) -> f64 {
        total(&self.parts(micros))
    }

    /// Seconds of an iteration, by purpose, on the slowest stage. Chunks of layers shorten the pipeline's
    /// bubble (Narayanan et al. 2021). While the pipe fills and drains, messages hide behind nothing: that
    /// takes as long as those of one micro-batch through all stages and back (`plan::timeline`'s tests),
    /// each of which two ranks count.
    pub fn parts(&self, micros: usize) -> Vec<(&'static str, f64)> {
        self.stage_parts(micros, slowest(&self.micro_seconds()))
    }

    /// Waits for the first micro-batch to come around the ring of a breadth-first order with fewer
    /// micro-batches than stages, in micro-batches (`plan::timeline`'s tests).
    fn around_ring(&self, micros: usize) -> f64 {
        match self.schedule {
            Schedule::BreadthFirst => {
                let missing = self.stages.len().saturating_sub(micros);
                (self.chunks - 1.0) * missing as f64 / self.chunks
            }
            Schedule::OneFOneB | Schedule::Interleaved | Schedule::GPipe => 0.0,
        }
    }

    /// Seconds of an iteration by purpose, as one stage spends them: it waits for slower ones.
    pub fn stage_parts(&self, micros: usize, stage: usize) -> Vec<(&'static str, f64)> {
        let each = self.micro_seconds();
        let slowest = slowest(&each);
        let around = self.around_ring(micros) * each[slowest];
        let micros = micros as f64;
        let messages = self.stages.iter().map(|stage| stage.overlap[0].messages);
        let bare = messages.sum::<f64>() / 2.0;
        let bubble = (each.iter().sum::<f64>() - each[slowest]) / self.chunks + bare + around;
        let bubble = bubble + (each[slowest] - each[stage]) * micros;
        let work = &self.stages[stage];
        let in_micros = work.micro.iter().map(|(name, t)| (*name, t * micros));
        let mut parts: Vec<(&'static str, f64)> = in_micros.collect();
        parts.push(("pipeline bubble", bubble));
        parts.push((SUMS, work.sums));
        parts.push(("once a step: optimizer", work.optimizer));
        let [micro, once] = work.overlap;
        parts.push((OVERLAPPED, 0.0 - (micros * micro.all + once.all)));
        parts.extend((work.host > 0.0).then_some(("once a step: host", work.host)));
        let copies = work.copies - each[stage];
        parts.extend((copies > 0.0).then_some(("waiting for copies", copies * micros)));
        parts
    }

    /// Seconds of a stage's messages that overlap computation in an iteration, by rows of `TRAFFIC`.
    pub fn overlap_by_row(&self, micros: usize, stage: usize) -> [f64; TRAFFIC.len()] {
        let [micro, once] = self.stages[stage].overlap.map(|hidden| hidden.rows);
        std::array::from_fn(|row| micros as f64 * micro[row] + once[row])
    }

    /// Seconds of each stage's messages between replicas for a micro-batch, and of the part that
    /// computation hides.
    pub fn replica_messages(&self) -> impl Iterator<Item = (f64, f64)> {
        self.stages.iter().map(|stage| {
            let sent = stage.micro.iter();
            let sent = sent.filter(|(purpose, _)| *purpose == prices::REPLICA_MESSAGES);
            let hidden = prices::REPLICAS.map(|row| stage.overlap[0].rows[row]);
            (sent.map(|(_, seconds)| seconds).sum(), hidden.iter().sum())
        })
    }
}

fn slowest(each: &[f64]) -> usize {
    (0..each.len())
        .max_by(|a, b| each[*a].total_cmp(&each[*b]))
        .expect("a pipeline has a stage")
}

fn total(parts: &[(&'static str, f64)]) -> f64 {
    parts.iter().map(|(_, seconds)| seconds).sum()
}
