//! Which tokens sample k of one dataset consists of: Megatron's GPTDataset.
//!
//! The sequences of every epoch are shuffled and laid end to end, the stream is cut into samples of
//! `seq_len` tokens (plus the one that is only predicted), and the samples are shuffled. `Cut` has
//! Megatron-Core's two other ways to cut.
//! `DataRule` picks between two generations of Megatron that treat the last epoch differently.

mod array;
mod cache;

pub use array::Array;
pub use cache::Cache;

use std::ops::Range;

use anyhow::{Context, Result};

use super::random::RandomState;
use base::{Bytes, Count, Problems, memory};
use manifest::DataRule;

/// What an order is made from, besides the sequences' lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderSpec {
    pub rule: DataRule,
    pub seq_len: usize,
    /// At least this many samples, over as many epochs as it takes; `None` is one epoch.
    pub samples: Option<u64>,
    /// Below 2^32, as numpy demands.
    pub seed: u64,
    pub cut: Cut,
}

/// How the stream of tokens is cut into samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// A sample has one token more than `seq_len`, which is only predicted and begins the next
    /// sample (Megatron-Core's `add_extra_token_to_sequence`).
    pub extra_token: bool,
    /// Tokens at the end that do not fill a sample are left out; else they are one (Megatron-Core's
    /// `drop_last_partial_validation_sequence`, which counts them in float32: exact up to 2^24
    /// tokens only).
    pub drop_partial: bool,
}

impl Default for Cut {
    /// Megatron's.
    fn default() -> Cut {
        Cut { extra_token: true, drop_partial: true }
    }
}

impl Cut {
    fn extra(self) -> u64 {
        self.extra_token.into()
    }

    /// The fewest tokens of which there is a sample.
    pub fn fewest(self, seq_len: usize) -> u64 {
        match self.drop_partial {
            true => seq_len as u64 + self.extra(),
            false => 1 + self.extra(),
        }
    }
}

/// The samples of one dataset, in the order a run reads them.
#[derive(Debug)]
pub struct Order {
    pub epochs: u64,
    /// Tokens of a sample, and of the one at the end of the stream.
    each: usize,
    last: usize,
    /// Sequence numbers in the order of the token stream, all epochs.
    pub sequences: Array<u32>,
    /// Where each sample starts in the stream, and where the last one ends: index into
    /// `sequences`, token; [samples + 1].
    pub starts: Array<[u32; 2]>,
    /// The sample at each position of the run.
    pub shuffle: Array<u32>,
}

/// A stretch of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSlice {
    pub sequence: usize,
    pub offset: u32,
    pub count: usize,
}

/// Epochs and samples, before anything is built.
struct Extent {
    /// Entries of `sequences`.
    entries: u64,
    epochs: u64,
    samples: u64,
    /// Samples that are shuffled apart from the last epoch's.
    apart: Option<u64>,
    /// Tokens of a sample, and of the one at the end of the stream.
    each: usize,
    last: usize,
}

impl Order {
    /// The order over `part` of a dataset whose sequences have these `lengths`. `place` names the
    /// dataset in errors: no tokens, or more samples than 2^32.
    pub fn build(
        spec: &OrderSpec,
        lengths: &[u32],
        part: Range<usize>,
        place: &str,
    ) -> Result<Order> {
        let extent = Extent::new(spec, lengths, &part, place)?;
        extent.has_room(memory::available(), place)?;
        Ok(Order::of_extent(&extent, spec, lengths, part))
    }

    /// What `build` would refuse, told before: what no machine can order, and where there is nothing
    /// of that, what the memory of this one has no room for.
    pub fn foresee(
        spec: &OrderSpec,
        lengths: &[u32],
        part: Range<usize>,
        place: &str,
    ) -> Result<Result<(), Problems>> {
        let extent = Extent::new(spec, lengths, &part, place)?;
        Ok(extent.has_room(memory::available(), place))
    }

    fn of_extent(extent: &Extent, spec: &OrderSpec, lengths: &[u32], part: Range<usize>) -> Order {
        let mut random = RandomState::new(spec.seed as u32);
        let sequences = sequences(extent, part, &mut random);
        let starts = starts(spec, extent, &sequences, lengths);
        let mut shuffle: Vec<u32> = (0..extent.samples as u32).collect();
        let (first, last) = shuffle.split_at_mut(extent.apart.unwrap_or(extent.samples) as usize);
        random.shuffle(first);
        if extent.apart.is_some() {
            random.shuffle(last);
        }
        let (sequences, starts, shuffle) = (sequences.into(), starts.into(), shuffle.into());
        let Extent { epochs, each, last, .. } = *extent;
        Order { epochs, each, last, sequences, starts, shuffle }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.sequences.bytes() + self.starts.bytes() + self.shuffle.bytes()
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.shuffle.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stretches that make up the sample at position k, seq_len + 1 tokens in all but where
    /// `Cut` says otherwise.
    pub fn slices<'a>(&'a self, k: u64, lengths: &'a [u32]) -> Result<SequenceSlices<'a>> {
        let sample = self.shuffle.at(k as usize)?;
        let [at, offset] = self.starts.at(sample as usize)?;
        let at_end = u64::from(sample) + 1 == self.len();
        let (sequences, left) = (&self.sequences, if at_end { self.last } else { self.each });
        Ok(SequenceSlices { sequences, lengths, at: at as usize, offset, left })
    }
}

/// The stretches of one sample that are still to come.
pub struct SequenceSlices<'a> {
    sequences: &'a Array<u32>,
    lengths: &'a [u32],
    at: usize,
    offset: u32,
    left: usize,
}

impl SequenceSlices<'_> {
    /// The next stretch. Fails only where a cached order was changed while it was being read.
    #[expect(clippy::should_implement_trait, reason = "failing, it is no Iterator")]
    pub fn next(&mut self) -> Result<Option<SequenceSlice>> {
        while self.left > 0 {
            let sequence = self.sequences.at(self.at)? as usize;
            let length = self.lengths.get(sequence);
            let rest = length.and_then(|length| length.checked_sub(self.offset));
            let rest = rest.context("the cached order of samples changed while it was read")?;
            let slice = SequenceSlice {
                sequence,
                offset: self.offset,
                count: self.left.min(rest as usize),
            };
            (self.at, self.offset, self.left) = (self.at + 1, 0, self.left - slice.count);
            if slice.count > 0 {
                return Ok(Some(slice));
            }
        }
        Ok(None)
    }
}

/// From here on Megatron's shuffle takes 64-bit numbers, which draw other random bits: 8.8 T tokens
/// at 2,048 a sample.
const MOST: u128 = u32::MAX as u128 - 1;

impl Extent {
    fn new(spec: &OrderSpec, lengths: &[u32], part: &Range<usize>, place: &str) -> Result<Extent> {
        let tokens = lengths[part.clone()].iter().map(|length| *length as u64).sum();
        extent(spec, tokens, part, place)
    }

    /// Bytes of the order.
    fn bytes(&self) -> u64 {
        4 * self.entries + 8 * (self.samples + 1) + 4 * self.samples
    }

    /// An error where the order has no room in memory, in which it is made.
    fn has_room(&self, left: Option<Bytes>, place: &str) -> Result<(), Problems> {
        let Some(left) = left.filter(|left| left.0 < self.bytes()) else { return Ok(()) };
        let (samples, bytes) = (Count(self.samples), Bytes(self.bytes()));
        let what = format!("the order of its {samples} samples takes {bytes}, and {left} is free");
        let remedy = "ask for fewer samples (train.steps, train.samples, train.tokens), or start \
                      fewer runs here";
        Err(Problems::one(place, what, remedy))
    }
}

fn extent(spec: &OrderSpec, tokens: u64, part: &Range<usize>, place: &str) -> Result<Extent> {
    let refuse = |what: String, remedy: &str| Err(Problems::one(place, what, remedy).into());
    if spec.seed > u32::MAX as u64 {
        let what = format!("the data seed {} is not below 2^32", spec.seed);
        return refuse(what, "choose a smaller data.seed");
    }
    if tokens == 0 {
        let what = format!(
            "{} sequences with 0 tokens in all: nothing to sample",
            Count(part.len() as u64)
        );
        return refuse(what, "give this part of the split a larger share, or use a larger dataset");
    }
    let (seq_len, extra) = (spec.seq_len as u128, u128::from(spec.cut.extra()));
    let tokens = tokens as u128;
    let wanted = spec.samples.map_or(0, |samples| samples as u128 * seq_len + extra);
    let epochs = wanted.div_ceil(tokens).max(1);
    let inputs = epochs * tokens - extra;
    let partial = if spec.cut.drop_partial { 0 } else { inputs % seq_len };
    let samples = inputs / seq_len + u128::from(partial > 0);
    let entries = epochs * part.len() as u128;
    if samples >= MOST || entries >= MOST || part.end as u128 >= MOST {
        let what = format!(
            "{} sequences, of which {entries} in {epochs} epochs give {samples} samples; the order \
             of one dataset holds below 2^32 - 2 of each",
            part.end
        );
        return refuse(what, "cut the dataset in several and blend them, or ask for fewer samples");
    }
    let mut apart = None;
    if epochs > 1 {
        let before = ((epochs - 1) * tokens - extra) / seq_len;
        let last = spec.samples.unwrap_or(0) as u128 - before;
        let per_epoch = (tokens - extra) / seq_len;
        let share = match spec.rule {
            DataRule::MegatronCore => 0.80,
            DataRule::MegatronDeepSpeed => 0.95,
        };
        if last < (share * per_epoch as f64) as u128 {
            apart = Some(before as u64);
        }
    }
    let [entries, epochs, samples] = [entries, epochs, samples].map(|count| count as u64);
    let each = (seq_len + extra) as usize;
    let last = if partial > 0 { (partial + extra) as usize } else { each };
    Ok(Extent { entries, epochs, samples, apart, each, last })
}

/// All epochs' sequences: shuffled as one, or the last epoch by itself.
fn sequences(extent: &Extent, part: Range<usize>, random: &mut RandomState) -> Vec<u32> {
    let once = part.start as u32..part.end as u32;
    let mut all = Vec::with_capacity(part.len() * extent.epochs as usize);
    for _ in 0..extent.epochs {
        all.extend(once.clone());
    }
    let together = match extent.apart {
        Some(_) => all.len() - part.len(),
        None => all.len(),
    };
    let (first, last) = all.split_at_mut(together);
    random.shuffle(first);
    if extent.apart.is_some() {
        random.shuffle(last);
    }
    all
}

/// Where each sample starts. A sample that ends exactly at the end of a sequence leaves the next
/// one starting on that sequence's last token, which is the one both share; without an extra token,
/// behind it.
fn starts(spec: &OrderSpec, extent: &Extent, sequences: &[u32], lengths: &[u32]) -> Vec<[u32; 2]> {
    let mut starts = Vec::with_capacity(extent.samples as usize + 1);
    starts.push([0, 0]);
    let (mut at, mut offset) = (0usize, 0u64);
    for sample in 1..=extent.samples {
        let mut left = if sample < extent.samples { extent.each } else { extent.last } as u64;
        loop {
            let rest = lengths[sequences[at] as usize] as u64 - offset;
            if left <= rest {
                offset += left - spec.cut.extra();
                break;
            }
            left -= rest;
            (at, offset) = (at + 1, 0);
        }
        starts.push([at as u32, offset as u32]);
    }
    starts
}
