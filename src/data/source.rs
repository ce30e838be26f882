//! What a run reads, for training and for each validation set. A sample is a pure function of the
//! manifest and its number.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::mask::{self, Masks};
use super::mixture::{Cursor, Mixture};
use super::open::Opener;
use super::plan::Plan;
use crate::base::{Count, Problems, rng};
use crate::manifest::Data;

/// Everything a run reads.
#[derive(Debug)]
pub struct Datasets {
    pub train: Arc<Source>,
    /// Validation sets by name, in the manifest's order.
    pub valid: Vec<(String, Arc<Source>)>,
    /// What the checkpoint must keep, for `resume`.
    pub plan: Plan,
}

/// A list of samples, with their masks.
#[derive(Debug)]
pub struct Source {
    mixture: Mixture,
    masks: Masks,
    vocab: usize,
}

/// Where one sample goes: each [seq_len], `visible` [seq_len, 2]; see `Batch`.
pub struct Slot<'a> {
    pub tokens: &'a mut [i32],
    pub targets: &'a mut [i32],
    pub weights: &'a mut [f32],
    pub positions: &'a mut [i32],
    pub visible: &'a mut [i32],
}

impl Datasets {
    /// Opens and checks all datasets, and puts their samples in order.
    ///
    /// `train_samples` is the length of the run, `eval_samples` that of one evaluation. All the
    /// user's mistakes are reported together: damaged files, empty parts of a split, datasets too
    /// short to fill one sample.
    pub fn open(
        data: &Data,
        seq_len: usize,
        vocab: usize,
        train_samples: u64,
        eval_samples: u64,
    ) -> Result<Datasets> {
        let plan = Plan::of(data, train_samples);
        Datasets::resume(data, plan, seq_len, vocab, eval_samples)
    }

    /// Opens a run's datasets as its checkpoint's plan has them, usually after `Plan::continued`.
    pub fn resume(
        data: &Data,
        plan: Plan,
        seq_len: usize,
        vocab: usize,
        eval_samples: u64,
    ) -> Result<Datasets> {
        let mut opener = Opener::new(data, seq_len);
        let mut problems = Problems::default();
        let mut source = |name: String, plan: &Plan| {
            let mixture = collect(opener.mixture(&name, plan), &mut problems)?;
            let key = rng::key(data.seed, &format!("prefix {name}"));
            let masks = Masks { eod: data.eod, objective: data.objective, key };
            anyhow::Ok(mixture.map(|mixture| Arc::new(Source { mixture, masks, vocab })))
        };
        let train = source("train".into(), &plan)?;
        let mut valid = Vec::new();
        for set in &data.valid {
            let once = Plan::new(&set.datasets, eval_samples);
            valid.push((set.name.clone(), source(format!("valid {}", set.name), &once)?));
        }
        problems.or(())?;
        let train = train.context("no problem was reported, yet no source")?;
        let valid = valid.into_iter().flat_map(|(name, source)| Some((name, source?))).collect();
        Ok(Datasets { train, valid, plan })
    }
}

/// The user's mistakes go to the list; other errors are returned at once.
pub fn collect<T>(result: Result<T>, problems: &mut Problems) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            problems.list.extend(error.downcast::<Problems>()?.list);
            Ok(None)
        }
    }
}

impl Source {
    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.mixture.samples()
    }

    /// Tokens of one sample's input.
    pub fn seq_len(&self) -> usize {
        self.mixture.seq_len()
    }

    /// How far each dataset has been read after `consumed` samples.
    pub fn cursors(&self, consumed: u64) -> Vec<Cursor> {
        self.mixture.cursors(consumed)
    }

    /// Fills one sample of a batch. Fails if there is no such sample, if it holds a token that is
    /// not below the vocabulary size, or if the file has changed underneath.
    pub fn read(&self, sample: u64, slot: &mut Slot<'_>) -> Result<()> {
        let last = self.mixture.read(sample, slot.tokens)?;
        for token in slot.tokens.iter().chain([&last]) {
            if *token < 0 || *token as usize >= self.vocab {
                return Err(self.outside(sample, *token));
            }
        }
        let (seq_len, targets) = (self.seq_len(), &mut slot.targets);
        targets[..seq_len - 1].copy_from_slice(&slot.tokens[1..]);
        targets[seq_len - 1] = last;
        let Slot { tokens, weights, positions, visible, .. } = slot;
        self.masks.fill(sample, tokens, &mut mask::Slot { weights, positions, visible });
        Ok(())
    }

    /// Asks for a sample's bytes to be in memory soon; returns at once.
    pub fn prefetch(&self, sample: u64) {
        self.mixture.prefetch(sample);
    }

    #[cold]
    fn outside(&self, sample: u64, token: i32) -> anyhow::Error {
        let what = format!(
            "sample {sample} holds token id {token}; the model's vocabulary has {} ids",
            Count(self.vocab as u64)
        );
        let place = match self.mixture.dataset(sample) {
            Ok(dataset) => dataset.prefix().display().to_string(),
            Err(error) => return error,
        };
        let remedy = "set model.vocab to that of the dataset's tokenizer, or use the right dataset";
        Problems::one(place, what, remedy).into()
    }
}
