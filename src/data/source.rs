//! What a run reads: datasets mixed into one endless-looking list of samples, for training and for
//! each validation set. A sample is a pure function of the manifest and its number.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::blend::{Blend, normalized};
use super::indexed::Indexed;
use super::mask::{self, Masks};
use super::order::{Order, Piece, Wish};
use super::split;
use crate::base::{Count, Problems, rng};
use crate::manifest::{Data, DataRule, Dataset, Part};

/// Everything a run reads.
#[derive(Debug)]
pub struct Datasets {
    pub train: Arc<Source>,
    /// Validation sets by name, in the manifest's order.
    pub valid: Vec<(String, Arc<Source>)>,
}

/// A list of samples.
#[derive(Debug)]
pub struct Source {
    parts: Vec<Member>,
    /// `None` where there is one member.
    blend: Option<Blend>,
    masks: Masks,
    seq_len: usize,
    vocab: usize,
}

/// One dataset of a mixture, with the order of its samples.
#[derive(Debug)]
struct Member {
    dataset: Arc<Indexed>,
    order: Order,
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
    /// Opens and checks all datasets, and builds the order of their samples in memory.
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
        let mut opener = Opener { data, seq_len, vocab, open: HashMap::new() };
        let mut problems = Problems::default();
        let train = opener.source("train", &data.train, train_samples, &mut problems)?;
        let mut valid = Vec::new();
        for set in &data.valid {
            let name = format!("valid {}", set.name);
            let source = opener.source(&name, &set.datasets, eval_samples, &mut problems)?;
            valid.push((set.name.clone(), source));
        }
        problems.or(())?;
        let valid = valid.into_iter().flat_map(|(name, source)| Some((name, source?))).collect();
        Ok(Datasets { train: train.context("no problem was reported, yet no source")?, valid })
    }
}

struct Opener<'a> {
    data: &'a Data,
    seq_len: usize,
    vocab: usize,
    /// Datasets open already: train and valid are mostly parts of the same ones.
    open: HashMap<PathBuf, Arc<Indexed>>,
}

impl Opener<'_> {
    /// A source, or `None` with what is wrong added to `problems`.
    fn source(
        &mut self,
        name: &str,
        datasets: &[Dataset],
        samples: u64,
        problems: &mut Problems,
    ) -> Result<Option<Arc<Source>>> {
        match self.try_source(name, datasets, samples) {
            Ok(source) => Ok(Some(Arc::new(source))),
            Err(error) => {
                problems.list.extend(error.downcast::<Problems>()?.list);
                Ok(None)
            }
        }
    }

    fn try_source(&mut self, name: &str, datasets: &[Dataset], samples: u64) -> Result<Source> {
        let place = |dataset: &Dataset| format!("data.{name}: {}", dataset.prefix.display());
        let mut problems = Problems::default();
        let mut parts = Vec::new();
        for (dataset, wanted) in datasets.iter().zip(shares(self.data.rule, datasets, samples)) {
            match self.member(dataset, wanted, &place(dataset)) {
                Ok(member) => parts.push(member),
                Err(error) => problems.list.extend(error.downcast::<Problems>()?.list),
            }
        }
        if datasets.is_empty() {
            problems.add(format!("data.{name}"), "no datasets", "name at least one");
        }
        problems.or(())?;
        let blend = self.blend(name, datasets, &parts, samples)?;
        let key = rng::key(self.data.seed, &format!("prefix {name}"));
        let masks = Masks { eod: self.data.eod, objective: self.data.objective, key };
        Ok(Source { parts, blend, masks, seq_len: self.seq_len, vocab: self.vocab })
    }

    fn member(&mut self, wanted: &Dataset, samples: u64, place: &str) -> Result<Member> {
        let dataset = match self.open.get(&wanted.prefix) {
            Some(dataset) => dataset.clone(),
            None => Arc::new(Indexed::open(&wanted.prefix)?),
        };
        self.open.insert(wanted.prefix.clone(), dataset.clone());
        let part = part(self.data.rule, &wanted.part, dataset.sequences())?;
        let tokens: u64 = dataset.lengths()[part.clone()].iter().map(|n| *n as u64).sum();
        if tokens <= self.seq_len as u64 {
            let what = format!(
                "{} holds {} of {} sequences, {} tokens; one sample takes {}",
                describe(&wanted.part),
                Count(part.len() as u64),
                Count(dataset.sequences() as u64),
                Count(tokens),
                Count(self.seq_len as u64 + 1)
            );
            let remedy = "give it a larger part, lower model.seq_len, or use a larger dataset";
            return Err(Problems::one(place, what, remedy).into());
        }
        let seed = self.data.seed;
        let (rule, seq_len) = (self.data.rule, self.seq_len);
        let wish = Wish { rule, seq_len, samples: Some(samples), seed };
        let order = Order::build(&wish, dataset.lengths(), part, place)?;
        Ok(Member { dataset, order })
    }

    /// The mixture, checked to stay within what each member has.
    fn blend(
        &self,
        name: &str,
        datasets: &[Dataset],
        parts: &[Member],
        samples: u64,
    ) -> Result<Option<Blend>> {
        if datasets.len() == 1 {
            return Ok(None);
        }
        let weights = normalized(&weights(datasets));
        let blend = Blend::weighted(&weights, samples as usize);
        let mut problems = Problems::default();
        for ((dataset, member), taken) in datasets.iter().zip(parts).zip(blend.totals()) {
            if *taken > member.order.len() {
                let what = format!(
                    "the mixture takes {} samples of it, Megatron's rule builds {}",
                    Count(*taken),
                    Count(member.order.len())
                );
                let place = format!("data.{name}: {}", dataset.prefix.display());
                problems.add(place, what, "use rule: mcore, or change the weights slightly");
            }
        }
        problems.or(Some(blend)).map_err(Into::into)
    }
}

fn weights(datasets: &[Dataset]) -> Vec<f64> {
    datasets.iter().map(|dataset| dataset.weight).collect()
}

/// How many samples are ordered of each dataset, for `samples` of the mixture: its share, and 0.5 %
/// more because the mixture is not perfectly even.
fn shares(rule: DataRule, datasets: &[Dataset], samples: u64) -> Vec<u64> {
    if datasets.len() == 1 {
        return vec![samples];
    }
    let share = |weight: &f64| match rule {
        DataRule::MegatronCore => ((samples as f64 * weight).ceil() * (1.0 + 0.005)).ceil(),
        DataRule::MegatronDeepSpeed => (samples as f64 * weight * 1.005).ceil(),
    };
    normalized(&weights(datasets)).iter().map(|weight| share(weight) as u64).collect()
}

fn part(rule: DataRule, part: &Part, sequences: usize) -> Result<Range<usize>> {
    match part {
        Part::Split { weights, which } => {
            Ok(split::split(rule, weights, sequences)?[*which].clone())
        }
        Part::Range(from, to) => Ok(split::range(*from, *to, sequences)),
    }
}

fn describe(part: &Part) -> String {
    match part {
        Part::Split { weights, which } => {
            format!("its {} part of the split {weights}", split::PARTS[*which])
        }
        Part::Range(from, to) => format!("its range {from}..{to}"),
    }
}

impl Source {
    /// How many samples there are: at least as many as were asked for at open.
    pub fn samples(&self) -> u64 {
        self.blend.as_ref().map_or(self.parts[0].order.len(), Blend::len)
    }

    /// Tokens of one sample's input.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Epochs of each member that the whole list goes through.
    pub fn epochs(&self) -> Vec<u64> {
        self.parts.iter().map(|part| part.order.epochs).collect()
    }

    /// Fills one sample of a batch. Fails if there is no such sample, if it holds a token that is
    /// not below the vocabulary size, or if the file has changed underneath.
    pub fn read(&self, sample: u64, slot: &mut Slot<'_>) -> Result<()> {
        let last = self.read_tokens(sample, slot.tokens)?;
        slot.targets[..self.seq_len - 1].copy_from_slice(&slot.tokens[1..]);
        slot.targets[self.seq_len - 1] = last;
        let Slot { tokens, weights, positions, visible, .. } = slot;
        self.masks.fill(sample, tokens, &mut mask::Slot { weights, positions, visible });
        Ok(())
    }

    /// The sample's seq_len input tokens into `tokens`; returns the token that follows them.
    fn read_tokens(&self, sample: u64, tokens: &mut [i32]) -> Result<i32> {
        let (member, k) = self.locate(sample)?;
        let dataset = &member.dataset;
        let mut last = [0];
        let mut at = 0;
        for Piece { sequence, offset, count } in member.order.pieces(k, dataset.lengths()) {
            let here = count.min(self.seq_len - at);
            let read = dataset.read(sequence, offset, &mut tokens[at..at + here]).and_then(|()| {
                let more = &mut last[..count - here];
                dataset.read(sequence, offset + here as u32, more)
            });
            read.with_context(|| {
                format!("dataset {}, sample {sample}", dataset.prefix().display())
            })?;
            at += here;
        }
        for token in tokens.iter().chain(&last) {
            if *token < 0 || *token as usize >= self.vocab {
                return Err(self.outside(member, sample, *token));
            }
        }
        Ok(last[0])
    }

    #[cold]
    fn outside(&self, member: &Member, sample: u64, token: i32) -> anyhow::Error {
        let what = format!(
            "sample {sample} holds token id {token}; the model's vocabulary has {} ids",
            Count(self.vocab as u64)
        );
        let remedy = "set model.vocab to that of the dataset's tokenizer, or use the right dataset";
        Problems::one(member.dataset.prefix().display().to_string(), what, remedy).into()
    }

    /// Asks for a sample's bytes to be in memory soon; returns at once.
    pub fn prefetch(&self, sample: u64) {
        let Ok((member, k)) = self.locate(sample) else { return };
        for Piece { sequence, offset, count } in member.order.pieces(k, member.dataset.lengths()) {
            member.dataset.will_need(sequence, offset, count);
        }
    }

    fn locate(&self, sample: u64) -> Result<(&Member, u64)> {
        if sample >= self.samples() {
            bail!("sample {sample} was asked for; there are {}", Count(self.samples()));
        }
        let (member, k) = match &self.blend {
            Some(blend) => blend.sample(sample),
            None => (0, sample),
        };
        Ok((&self.parts[member], k))
    }
}
