//! Token ranges of sample k of one dataset: Megatron's GPTDataset.
//!
//! The sequences of every epoch are shuffled and concatenated. The stream is cut into samples of
//! `seq_len` tokens (plus the one that is only predicted), and the samples are shuffled. `Cut` has
//! Megatron-Core's two other ways to cut. `DataRule` selects between two generations of Megatron
//! that treat the last epoch differently.

mod array;
mod cache;

pub use array::Array;
pub use cache::Cache;

use std::ops::Range;

use anyhow::{Context, Result};

use super::random::RandomState;
use base::{Bytes, Count, Problems, memory};
use manifest::DataRule;

/// Inputs of an order, besides the sequences' lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderSpec {
    pub rule: DataRule,
    pub seq_len: usize,
    /// Minimum number of samples, which sets the number of epochs; `None` means one epoch.
    pub samples: Option<u64>,
    /// Must be below 2^32, as numpy requires.
    pub seed: u64,
    pub cut: Cut,
}

/// Rule for cutting the stream of tokens into samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Whether a sample has one token more than `seq_len`, which is only predicted and begins the
    /// next sample (Megatron-Core's `add_extra_token_to_sequence`).
    pub extra_token: bool,
    /// Whether to drop tokens at the end that do not fill a sample; otherwise they form one.
    /// (Megatron-Core's `drop_last_partial_validation_sequence`, which counts them in float32:
    /// exact up to 2^24 tokens only.)
    pub drop_partial: bool,
}

impl Default for Cut {
    /// Megatron's defaults.
    fn default() -> Cut {
        Cut { extra_token: true, drop_partial: true }
    }
}

impl Cut {
    fn extra_token(self) -> u64 {
        self.extra_token.into()
    }

    /// Minimum number of tokens for a sample.
    pub fn min_tokens(self, seq_len: usize) -> u64 {
        self.extra_token() + if self.drop_partial { seq_len as u64 } else { 1 }
    }
}

/// Samples of one dataset, in the order in which a run reads them.
#[derive(Debug)]
pub struct Order {
    pub epochs: u64,
    /// Tokens per sample, and of the sample at the end of the stream.
    tokens: usize,
    last_tokens: usize,
    /// Sequence numbers in the order of the token stream, all epochs.
    pub sequences: Array<u32>,
    /// Start of each sample in the stream, and end of the last: index into `sequences`, token;
    /// [samples + 1].
    pub starts: Array<[u32; 2]>,
    /// Sample at each position of the run.
    pub shuffle: Array<u32>,
}

/// Part of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSlice {
    pub sequence: usize,
    pub offset: u32,
    pub count: usize,
}

/// Epochs and samples, before anything is built.
struct OrderSize {
    /// Entries of `sequences`.
    entries: u64,
    epochs: u64,
    samples: u64,
    /// Samples before the last epoch, if its samples are shuffled separately.
    before_last: Option<u64>,
    /// Tokens per sample, and of the sample at the end of the stream.
    tokens: usize,
    last_tokens: usize,
}

impl Order {
    /// Builds the order over `part` of a dataset whose sequences have these `lengths`. `place`
    /// names the dataset in errors: no tokens, or more samples than 2^32.
    pub fn build(
        spec: &OrderSpec,
        lengths: &[u32],
        part: Range<usize>,
        place: &str,
    ) -> Result<Order> {
        let size = OrderSize::new(spec, lengths, &part, place)?;
        size.check_room(memory::available(), place)?;
        Ok(Order::build_sized(&size, spec, lengths, part))
    }

    /// Finds the errors of `build` without building. The outer error is for orders that no machine can
    /// build, the inner one for orders that do not fit the memory of this machine.
    pub fn check(
        spec: &OrderSpec,
        lengths: &[u32],
        part: Range<usize>,
        place: &str,
    ) -> Result<Result<(), Problems>> {
        let size = OrderSize::new(spec, lengths, &part, place)?;
        Ok(size.check_room(memory::available(), place))
    }

    fn build_sized(
        size: &OrderSize,
        spec: &OrderSpec,
        lengths: &[u32],
        part: Range<usize>,
    ) -> Order {
        let mut random = RandomState::new(spec.seed as u32);
        let sequences = sequences(size, part, &mut random);
        let starts = find_sample_starts(spec, size, &sequences, lengths);
        let mut shuffle: Vec<u32> = (0..size.samples as u32).collect();
        let (first, last) = shuffle.split_at_mut(size.before_last.unwrap_or(size.samples) as usize);
        random.shuffle(first);
        random.shuffle(last);
        let sequences = sequences.into();
        let starts = starts.into();
        let shuffle = shuffle.into();
        let OrderSize { epochs, tokens, last_tokens, .. } = *size;
        Order { epochs, tokens, last_tokens, sequences, starts, shuffle }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.sequences.bytes() + self.starts.bytes() + self.shuffle.bytes()
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.shuffle.count() as u64
    }

    /// Parts of sequences that make up the sample at position k: seq_len + 1 tokens, unless `Cut` says
    /// otherwise.
    pub fn slices<'a>(&'a self, k: u64, lengths: &'a [u32]) -> Result<SequenceSlices<'a>> {
        let sample = self.shuffle.at(k as usize)?;
        let [index, offset] = self.starts.at(sample as usize)?;
        let is_last = u64::from(sample) + 1 == self.samples();
        let remaining = if is_last { self.last_tokens } else { self.tokens };
        let sequences = &self.sequences;
        let index = index as usize;
        Ok(SequenceSlices { sequences, lengths, index, offset, remaining })
    }
}

/// Remaining sequence parts of one sample.
pub struct SequenceSlices<'a> {
    sequences: &'a Array<u32>,
    lengths: &'a [u32],
    /// Index into `sequences`.
    index: usize,
    offset: u32,
    /// Tokens.
    remaining: usize,
}

impl SequenceSlices<'_> {
    /// Next part. Fails only if a cached order was changed while it was read.
    #[expect(clippy::should_implement_trait, reason = "it can fail, unlike an Iterator")]
    pub fn next(&mut self) -> Result<Option<SequenceSlice>> {
        while self.remaining > 0 {
            let sequence = self.sequences.at(self.index)? as usize;
            let length = self.lengths.get(sequence);
            let rest = length
                .and_then(|length| length.checked_sub(self.offset))
                .context("the cached order of samples changed while it was read")?;
            let slice = SequenceSlice {
                sequence,
                offset: self.offset,
                count: self.remaining.min(rest as usize),
            };
            (self.index, self.offset) = (self.index + 1, 0);
            self.remaining -= slice.count;
            if slice.count > 0 {
                return Ok(Some(slice));
            }
        }
        Ok(None)
    }
}

/// Limit from which Megatron's shuffle uses 64-bit numbers, which draw other random bits: 8.8 T
/// tokens at 2,048 per sample.
const MOST: u128 = u32::MAX as u128 - 1;

impl OrderSize {
    fn new(
        spec: &OrderSpec,
        lengths: &[u32],
        part: &Range<usize>,
        place: &str,
    ) -> Result<OrderSize> {
        let tokens = lengths[part.clone()]
            .iter()
            .map(|length| *length as u64)
            .sum();
        order_size(spec, tokens, part, place)
    }

    /// Bytes of the order.
    fn bytes(&self) -> u64 {
        4 * self.entries + 8 * (self.samples + 1) + 4 * self.samples
    }

    /// Fails if the order, which is built in memory, does not fit.
    fn check_room(&self, left: Option<Bytes>, place: &str) -> Result<(), Problems> {
        let Some(left) = left.filter(|left| left.0 < self.bytes()) else { return Ok(()) };
        let samples = Count(self.samples);
        let bytes = Bytes(self.bytes());
        Err(Problems::one(
            place,
            format!("the order of its {samples} samples takes {bytes}, and {left} is free"),
            "ask for fewer samples (train.steps, train.samples, train.tokens), or start \
             fewer runs here",
        ))
    }
}

fn order_size(
    spec: &OrderSpec,
    tokens: u64,
    part: &Range<usize>,
    place: &str,
) -> Result<OrderSize> {
    let refuse = |what: String, remedy: &str| Err(Problems::one(place, what, remedy).into());
    if spec.seed > u32::MAX as u64 {
        return refuse(
            format!("the data seed {} is not below 2^32", spec.seed),
            "choose a smaller data.seed",
        );
    }
    if tokens == 0 {
        return refuse(
            format!(
                "{} sequences with 0 tokens in all: nothing to sample",
                Count(part.len() as u64)
            ),
            "give this part of the split a larger share, or use a larger dataset",
        );
    }
    let seq_len = spec.seq_len as u128;
    let extra = u128::from(spec.cut.extra_token());
    let tokens = tokens as u128;
    let wanted = spec
        .samples
        .map_or(0, |samples| samples as u128 * seq_len + extra);
    let epochs = wanted.div_ceil(tokens).max(1);
    let inputs = epochs * tokens - extra;
    let partial = if spec.cut.drop_partial { 0 } else { inputs % seq_len };
    let samples = inputs / seq_len + u128::from(partial > 0);
    let entries = epochs * part.len() as u128;
    if samples >= MOST || entries >= MOST || part.end as u128 >= MOST {
        return refuse(
            format!(
                "{} sequences, of which {entries} in {epochs} epochs give {samples} samples; the order \
                 of one dataset holds below 2^32 - 2 of each",
                part.end
            ),
            "cut the dataset in several and blend them, or ask for fewer samples",
        );
    }
    let mut before_last = None;
    if epochs > 1 {
        let before = ((epochs - 1) * tokens - extra) / seq_len;
        let last = spec.samples.unwrap_or(0) as u128 - before;
        let per_epoch = (tokens - extra) / seq_len;
        let share = match spec.rule {
            DataRule::MegatronCore => 0.80,
            DataRule::MegatronDeepSpeed => 0.95,
        };
        if last < (share * per_epoch as f64) as u128 {
            before_last = Some(before as u64);
        }
    }
    let [entries, epochs, samples] = [entries, epochs, samples].map(|count| count as u64);
    let per_sample = (seq_len + extra) as usize;
    let last_tokens = if partial > 0 { (partial + extra) as usize } else { per_sample };
    Ok(OrderSize { entries, epochs, samples, before_last, tokens: per_sample, last_tokens })
}

/// Sequences of all epochs: shuffled together, or with the last epoch separate.
fn sequences(size: &OrderSize, part: Range<usize>, random: &mut RandomState) -> Vec<u32> {
    let once = part.start as u32..part.end as u32;
    let mut sequences = Vec::with_capacity(part.len() * size.epochs as usize);
    for _ in 0..size.epochs {
        sequences.extend(once.clone());
    }
    let apart = if size.before_last.is_some() { part.len() } else { 0 };
    let together = sequences.len() - apart;
    let (first, last) = sequences.split_at_mut(together);
    random.shuffle(first);
    random.shuffle(last);
    sequences
}

/// Start of each sample. If a sample ends exactly at the end of a sequence, the next one starts at
/// that sequence's last token, which both share; without an extra token, after it.
fn find_sample_starts(
    spec: &OrderSpec,
    size: &OrderSize,
    sequences: &[u32],
    lengths: &[u32],
) -> Vec<[u32; 2]> {
    let mut starts = Vec::with_capacity(size.samples as usize + 1);
    starts.push([0, 0]);
    let mut at = 0usize;
    let mut offset = 0u64;
    for sample in 1..=size.samples {
        let last = sample == size.samples;
        let mut left = if last { size.last_tokens } else { size.tokens } as u64;
        loop {
            let rest = lengths[sequences[at] as usize] as u64 - offset;
            if left <= rest {
                offset += left - spec.cut.extra_token();
                break;
            }
            left -= rest;
            (at, offset) = (at + 1, 0);
        }
        starts.push([at as u32, offset as u32]);
    }
    starts
}
