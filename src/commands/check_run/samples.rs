//! Samples of the trainer's next steps: by the rule of its data's order, or from a file of batches.

use super::change::LossMean;
use anyhow::ensure;
use base::{Count, Problems};
use checkpoint::safetensors::Reader;
use data::batch::Batch;
use data::{CutRequest, Datasets, MixturePlan, Request, Source};
use manifest::{Manifest, Objective};
use plan::segments::MicroShape;
use std::path::Path;
use std::sync::Arc;

/// Samples by number.
pub enum Samples<'a> {
    /// Datasets in Megatron's format.
    Ordered(Arc<Source>),
    /// Batches that the user recorded; `first` is the number of their first sample.
    Recorded { batches: &'a Recorded, first: u64 },
}

/// Samples as a trainer read them.
#[derive(Debug)]
pub struct Recorded {
    samples: usize,
    tokens: usize,
    inputs: Vec<i32>,
    /// Negative without a loss.
    targets: Vec<i32>,
}

impl Recorded {
    /// Reads `input_ids` [samples, seq_len + 1], or [samples, seq_len] with `targets` [samples, seq_len].
    pub fn read(path: &Path) -> anyhow::Result<Recorded> {
        let reader = Reader::open(path)?;
        let refuse = |what: String| {
            Problems::one(
                path.display().to_string(),
                what,
                "give safetensors with input_ids [samples, tokens + 1], or input_ids and targets \
                 [samples, tokens]",
            )
        };
        let shape = |name: &str| reader.entries.get(name).map(|entry| entry.shape.clone());
        let Some(ids) = shape("input_ids") else {
            return Err(refuse("has no tensor input_ids".into()).into());
        };
        let [samples, width] = ids[..] else {
            return Err(refuse(format!("input_ids is {ids:?}")).into());
        };
        let whole = |name: &str| -> anyhow::Result<Vec<i32>> {
            Ok(reader
                .numbers(name)?
                .into_iter()
                .map(|id| id as i32)
                .collect())
        };
        let read = whole("input_ids")?;
        if let Some(targets) = shape("targets") {
            if targets != ids {
                return Err(refuse(format!("targets is {targets:?}, input_ids {ids:?}")).into());
            }
            let targets = whole("targets")?;
            return Ok(Recorded { samples, tokens: width, inputs: read, targets });
        }
        if samples * width.saturating_sub(1) == 0 {
            return Err(refuse(format!("input_ids is {ids:?}")).into());
        }
        let mut inputs = Vec::new();
        let mut targets = Vec::new();
        for row in read.chunks(width) {
            inputs.extend(&row[..width - 1]);
            targets.extend(&row[1..]);
        }
        Ok(Recorded { samples, tokens: width - 1, inputs, targets })
    }

    fn fill(&self, batch: &mut Batch, at: usize, count: usize, vocab: usize) -> anyhow::Result<()> {
        batch.reshape(at as u64, count, self.tokens);
        for (number, sample) in (at..).zip(batch.samples_mut()) {
            let row = number * self.tokens..(number + 1) * self.tokens;
            sample.tokens.copy_from_slice(&self.inputs[row.clone()]);
            for (position, target) in self.targets[row].iter().enumerate() {
                sample.targets[position] = (*target).max(0);
                sample.weights[position] = if *target < 0 { 0.0 } else { 1.0 };
                sample.positions[position] = position as i32;
                sample.visible[2 * position] = 0;
                sample.visible[2 * position + 1] = position as i32 + 1;
            }
            let ids = sample.tokens.iter().chain(sample.targets.iter());
            let outside = ids.into_iter().find(|id| !(0..vocab as i32).contains(*id));
            ensure!(outside.is_none(), "sample {number} of the batches holds token {outside:?}");
        }
        Ok(())
    }
}

impl Samples<'_> {
    /// Opens the datasets of the manifest.
    pub fn open(m: &Manifest) -> anyhow::Result<Samples<'static>> {
        let plan = MixturePlan::from_data(&m.data, m.train.samples);
        let model = &m.model;
        let micro = m.batch.micro as u64;
        let datasets = Datasets::open(&m.data, plan, model.seq_len, model.vocab, micro)?;
        Ok(Samples::Ordered(datasets.train))
    }

    /// Micro-batches of a step, with weights whose sum over the step is 1.
    pub fn step(
        &self,
        m: &Manifest,
        first: u64,
        global: u64,
        shape: MicroShape,
        mean: LossMean,
    ) -> anyhow::Result<Vec<Batch>> {
        let MicroShape { samples: micro, tokens } = shape;
        let mut batches = Vec::new();
        for number in 0..global / micro as u64 {
            let mut batch = Batch::default();
            let first_sample = first + number * micro as u64;
            match self {
                Samples::Ordered(source) => {
                    let request = Request { first_sample, samples: micro };
                    batch.fill(source, CutRequest { request, tokens: Some(tokens) })?;
                }
                Samples::Recorded { batches, first } => {
                    let at = first_sample
                        .checked_sub(*first)
                        .map_or(usize::MAX, |at| at as usize);
                    if at.saturating_add(micro) > batches.samples {
                        return Err(too_few(batches, first_sample, *first).into());
                    }
                    ensure!(
                        batches.tokens == tokens,
                        "the batches have {} tokens a sample, the run {tokens}",
                        batches.tokens,
                    );
                    batches.fill(&mut batch, at, micro, m.model.vocab)?;
                }
            }
            batches.push(batch);
        }
        weigh(&mut batches, mean, m.data.objective == Objective::Causal);
        Ok(batches)
    }

    /// Whether every sample has a plain causal mask.
    pub fn causal(&self, m: &Manifest) -> bool {
        matches!(self, Samples::Recorded { .. }) || m.data.causal()
    }
}

fn too_few(batches: &Recorded, sample: u64, first: u64) -> Problems {
    Problems::one(
        "--batches",
        format!(
            "has {} from sample {first} on, and sample {sample} is needed",
            Count(batches.samples as u64).with_noun("sample")
        ),
        "record more batches, or compare fewer steps: --steps",
    )
}

/// Turns the weights of samples into shares of the step's loss. Those of another objective than next
/// tokens keep their own normaliser.
fn weigh(batches: &mut [Batch], mean: LossMean, causal: bool) {
    let micros = batches.len() as f32;
    let global: usize = batches.iter().map(Batch::samples).sum();
    let mean = if causal { mean } else { LossMean::Samples };
    let counts: Vec<f32> = batches.iter_mut().map(count_targets).collect();
    let whole: f32 = counts.iter().sum();
    for (batch, count) in batches.iter_mut().zip(counts) {
        for sample in batch.samples_mut() {
            for weight in sample.weights.iter_mut().filter(|weight| **weight > 0.0) {
                *weight = match mean {
                    LossMean::Samples => *weight / global as f32,
                    LossMean::MicroBatches => 1.0 / (count * micros),
                    LossMean::Tokens => 1.0 / whole,
                };
            }
        }
    }
}

fn count_targets(batch: &mut Batch) -> f32 {
    let count = |weights: &[f32]| weights.iter().filter(|weight| **weight > 0.0).count();
    let targets: usize = batch
        .samples_mut()
        .map(|sample| count(sample.weights))
        .sum();
    targets.max(1) as f32
}
