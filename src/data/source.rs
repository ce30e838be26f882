//! Samples of a run, for training and for each validation set. A sample is a pure function of the
//! manifest and its number.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::batch::Sample;
use super::mask::Masks;
use super::mixture::{Cursor, Mixture};
use super::open::MixtureBuilder;
use super::order::Cut;
use super::plan::MixturePlan;
use base::{Bytes, Count, Problems, rng};
use manifest::Data;

/// All data that a run reads.
#[derive(Debug)]
pub struct Datasets {
    pub train: Arc<Source>,
    /// Validation sets by name, in the manifest's order.
    pub valid: Vec<(String, Arc<Source>)>,
    /// Plan that the checkpoint stores, for `resume`.
    pub plan: MixturePlan,
}

/// List of samples, with their masks.
#[derive(Debug)]
pub struct Source {
    mixture: Mixture,
    /// Masks by the first sample for which they are made: another seed has other prefixes.
    masks: Vec<(u64, Masks)>,
    vocab: usize,
}

impl Datasets {
    /// Opens and checks all datasets, and orders their samples by the plan of a run.
    ///
    /// `eval_samples` is the length of one evaluation. All user errors are reported together: damaged
    /// files, empty parts of a split, datasets too short to fill one sample.
    pub fn open(
        data: &Data,
        plan: MixturePlan,
        seq_len: usize,
        vocab: usize,
        eval_samples: u64,
    ) -> Result<Datasets> {
        let first_seed = plan.first_seed().unwrap_or(data.seed);
        let mut opening = Opening::new(data, first_seed, seq_len, vocab);
        let train = opening.open_source("train".into(), &plan, true)?;
        let valid = opening.open_validation_sets(eval_samples)?;
        opening.problems.or(())?;
        let train = train.context("no problem was reported, yet no source")?;
        Ok(Datasets { train, valid, plan })
    }
}

/// The validation sets of a run by name, without its training data. Their order is that of `data.seed`.
pub fn validation(
    data: &Data,
    seq_len: usize,
    vocab: usize,
    samples: u64,
) -> Result<Vec<(String, Arc<Source>)>> {
    let mut opening = Opening::new(data, data.seed, seq_len, vocab);
    let valid = opening.open_validation_sets(samples)?;
    Ok(opening.problems.or(valid)?)
}

/// Opens sources one after the other, and collects what is wrong with them.
struct Opening<'d> {
    data: &'d Data,
    /// Seed of plans without one.
    seed: u64,
    vocab: usize,
    builder: MixtureBuilder,
    problems: Problems,
}

impl Opening<'_> {
    fn new(data: &Data, seed: u64, seq_len: usize, vocab: usize) -> Opening<'_> {
        let builder = MixtureBuilder::new(data, seed, seq_len);
        Opening { data, seed, vocab, builder, problems: Problems::default() }
    }

    /// Opens one source; None if a problem was found.
    fn open_source(
        &mut self,
        name: String,
        plan: &MixturePlan,
        drop_partial: bool,
    ) -> Result<Option<Arc<Source>>> {
        let Opening { data, seed, vocab, .. } = *self;
        let cut = Cut { extra_token: data.add_extra_token_to_sequence, drop_partial };
        let mixture = self
            .problems
            .collect(self.builder.mixture(&name, plan, cut))?;
        let by_sequence = data.inter_document_masking;
        let masks = plan.stages.iter().enumerate().map(|(i, stage)| {
            let key = rng::key(plan.seed(i).unwrap_or(seed), &format!("prefix {name}"));
            (stage.from, Masks { eod: data.eod, by_sequence, objective: data.objective, key })
        });
        let masks = masks.collect();
        Ok(mixture.map(|mixture| Arc::new(Source { mixture, masks, vocab })))
    }

    fn open_validation_sets(&mut self, samples: u64) -> Result<Vec<(String, Arc<Source>)>> {
        let mut valid = Vec::new();
        for set in &self.data.valid {
            let once = MixturePlan::new(&set.datasets, samples);
            let drop_partial = self.data.drop_last_partial_validation_sequence;
            let source = self.open_source(format!("valid {}", set.name), &once, drop_partial)?;
            valid.extend(source.map(|source| (set.name.clone(), source)));
        }
        Ok(valid)
    }
}

/// Checks for the errors of `Datasets::open` without ordering samples. Orders that do not fit this
/// machine's memory are returned.
pub fn check(
    data: &Data,
    seq_len: usize,
    train_samples: u64,
    eval_samples: u64,
) -> Result<Problems> {
    let mut builder = MixtureBuilder::new(data, data.seed, seq_len);
    let mut wrong = Problems::default();
    let mut too_large = Problems::default();
    let cut = |drop_partial| Cut { extra_token: data.add_extra_token_to_sequence, drop_partial };
    let mut plans = vec![("train".into(), MixturePlan::from_data(data, train_samples), cut(true))];
    for set in &data.valid {
        let plan = MixturePlan::new(&set.datasets, eval_samples);
        let cut = cut(data.drop_last_partial_validation_sequence);
        plans.push((format!("valid {}", set.name), plan, cut));
    }
    for (name, plan, cut) in plans {
        let found = wrong.collect(builder.check(&name, &plan, cut))?;
        too_large.list.extend(found.unwrap_or_default().list);
    }
    wrong.or(())?;
    Ok(too_large)
}

impl Datasets {
    /// Memory of the sample order in a process.
    pub fn order_bytes(&self) -> Bytes {
        let valid = self.valid.iter().map(|(_, source)| source);
        Bytes(
            valid
                .chain([&self.train])
                .map(|source| source.mixture.bytes())
                .sum(),
        )
    }
}

impl Source {
    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.mixture.samples()
    }

    /// Tokens of one sample's input.
    pub fn seq_len(&self) -> usize {
        self.mixture.seq_len()
    }

    /// Progress of each dataset after `consumed` samples.
    pub fn cursors(&self, consumed: u64) -> Vec<Cursor> {
        self.mixture.cursors(consumed)
    }

    /// Fills one sample of a batch, which is cut to the batch's length. Fails if there is no such sample, if it has a token that is not
    /// below the vocabulary size, or if the file has changed.
    pub fn read(&self, number: u64, sample: &mut Sample<'_>) -> Result<()> {
        let shape = self.mixture.read(number, sample.tokens)?;
        for token in sample.tokens.iter().chain(&shape.last) {
            if *token < 0 || *token as usize >= self.vocab {
                return Err(self.token_outside_error(number, *token));
            }
        }
        let last = sample.tokens.len() - 1;
        sample.targets[..last].copy_from_slice(&sample.tokens[1..]);
        sample.targets[last] = shape.last.unwrap_or(0);
        let masks = self.masks.iter().rfind(|(from, _)| *from <= number);
        masks
            .map(|(_, masks)| masks)
            .context("a plan begins at sample 0")?
            .fill(number, sample, &shape.ends, shape.tokens.saturating_sub(1));
        Ok(())
    }

    /// Prefetches a sample's bytes into memory; returns at once.
    pub fn prefetch(&self, sample: u64) {
        self.mixture.prefetch(sample);
    }

    #[cold]
    fn token_outside_error(&self, sample: u64, token: i32) -> anyhow::Error {
        let place = match self.mixture.dataset(sample) {
            Ok(dataset) => dataset.prefix().display().to_string(),
            Err(error) => return error,
        };
        Problems::one(
            place,
            format!(
                "sample {sample} holds token id {token}; the model's vocabulary has {} ids",
                Count(self.vocab as u64)
            ),
            "set model.vocab to that of the dataset's tokenizer, or use the right dataset",
        )
        .into()
    }
}
