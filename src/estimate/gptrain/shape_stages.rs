//! Stages of a pipeline by the shape of their micro-batches, for runs whose micro-batches or samples grow.

use super::dry_run::{self, Stage};
use super::stage_times::StageTimes;
use crate::setup::Setup;
use manifest::{Batch, Manifest, Model};
use plan::segments::MicroShape;
use std::collections::BTreeMap;

/// Lengths of samples that are counted, at equal distances; between two of them a step's time is
/// interpolated.
const LENGTHS: usize = 9;

/// Stages of a manifest, counted for the shapes that are asked for, and their times on one machine.
pub struct ShapeStages<'m> {
    m: &'m Manifest,
    /// Stages that are counted already.
    whole: (MicroShape, Vec<Stage>),
    times: BTreeMap<MicroShape, StageTimes>,
    /// Ascending.
    lengths: Vec<usize>,
}

impl<'m> ShapeStages<'m> {
    /// `stages` are those of whole samples and the final micro-batch, as `dry_run::stages` counts them.
    pub fn new(m: &'m Manifest, stages: Vec<Stage>) -> ShapeStages<'m> {
        let samples = m.batch.micros().at(m.batch.global);
        let whole = MicroShape { samples, tokens: m.model.seq_len };
        let all: Vec<usize> = m.schedule().lengths.lengths().collect();
        let last = all.len() - 1;
        let mut lengths: Vec<usize> = (0..LENGTHS)
            .map(|i| all[i * last / (LENGTHS - 1)])
            .collect();
        lengths.dedup();
        ShapeStages { m, whole: (whole, stages), times: BTreeMap::new(), lengths }
    }

    /// Seconds of a step of the setup, which is that of the first call but for its batch and length.
    pub fn seconds(&mut self, setup: &Setup) -> f64 {
        let tokens = setup.model.seq_len;
        let above = self.lengths.iter().position(|length| *length >= tokens);
        let above = above.unwrap_or(self.lengths.len() - 1);
        let to = self.lengths[above];
        if to == tokens || above == 0 {
            return self.counted_seconds(setup, to);
        }
        let from = self.lengths[above - 1];
        let share = (tokens - from) as f64 / (to - from) as f64;
        let [from, to] = [from, to].map(|length| self.counted_seconds(setup, length));
        from + share * (to - from)
    }

    fn counted_seconds(&mut self, setup: &Setup, tokens: usize) -> f64 {
        let shape = MicroShape { samples: setup.micro, tokens };
        let (whole, stages) = &self.whole;
        let m = self.m;
        let times = self.times.entry(shape).or_insert_with(|| {
            if shape == *whole {
                return StageTimes::new(stages, setup);
            }
            let counted = dry_run::stages(&with_shape(m, shape, setup.global));
            StageTimes::new(&counted, setup)
        });
        times.seconds(setup.micros())
    }
}

/// The manifest with steps of one shape.
pub fn with_shape(m: &Manifest, shape: MicroShape, global: usize) -> Manifest {
    let positions = m.model.positions.or(Some(m.model.seq_len));
    let model = Model { seq_len: shape.tokens, positions, ..m.model.clone() };
    let batch = Batch::constant(shape.samples, global);
    Manifest { model, batch, ..m.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::days::plan_run;
    use crate::hardware::{self, CPU};
    use crate::setup::Program;

    const RUN: &str = "
model: {layers: 4, hidden: 256, heads: 4, vocab: 512, seq_len: 512}
data: {train: none}
batch: {micro: 1, global: 16, ramp_up: 4 4 64, length_ramp_up: 64 8 600,
  micro_stages: [{from_global: 8, micro: 4}]}
lr: {peak: 1e-3}
train: {samples: 1000}
";

    fn days(sets: &[&str]) -> crate::days::Days {
        let m = manifest::for_test(RUN, sets);
        let setup = Setup::new(&m, Program::Gptrain, hardware::find(CPU, "test").unwrap());
        let mut shapes = ShapeStages::new(&m, dry_run::stages(&m));
        plan_run(&m.schedule(), m.train.samples, &setup, &mut |s| shapes.seconds(s))
    }

    /// Each segment takes the time of a run that has nothing but such steps.
    #[test]
    fn a_segment_is_planned_as_a_run_of_its_shape() {
        let whole = days(&[]);
        let shapes: Vec<_> = whole.segments.iter().map(|s| (s.global, s.micro)).collect();
        assert!(shapes.len() > 30, "{shapes:?}");
        for segment in [0, shapes.len() / 2, shapes.len() - 1].map(|i| &whole.segments[i]) {
            let MicroShape { samples, tokens } = segment.micro;
            let sets = [
                format!("batch={{micro: {samples}, global: {}}}", segment.global),
                format!("model.seq_len={tokens}"),
            ];
            let alone = days(&sets.each_ref().map(String::as_str));
            let share = segment.seconds / alone.segments[0].seconds;
            assert!((share - 1.0).abs() < 0.02, "{segment:?}: {share}");
        }
        assert!(whole.seconds < days(&["batch.length_ramp_up=null"]).seconds);
        assert!(whole.segments[0].micro == MicroShape { samples: 1, tokens: 64 });
    }
}
