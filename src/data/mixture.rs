//! Mixture of datasets as one list of samples, in stages.
//!
//! A dataset's own samples are numbered through all stages, so a new mixture continues after the
//! previous one. If a later stage needs more of a dataset than was planned, another *epoch segment*
//! is appended to its order.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::blend::Blend;
use super::indexed::Indexed;
use super::order::{Order, SequenceSlice};
use super::reshuffle::Reshuffle;
use base::Count;

/// List of samples.
#[derive(Debug)]
pub struct Mixture {
    members: Vec<Member>,
    stages: Vec<MixtureStage>,
    seq_len: usize,
}

/// Dataset of a mixture, with the order of its samples: one segment, or several in sequence.
#[derive(Debug)]
pub struct Member {
    pub dataset: Arc<Indexed>,
    pub segments: Vec<Order>,
    /// Changes of the seed, oldest first.
    pub reshuffles: Vec<Reshuffle>,
}

/// Part of the list with one set of weights.
#[derive(Debug)]
pub struct MixtureStage {
    /// First sample, and one past the last.
    pub from: u64,
    pub until: u64,
    /// `None` if there is only one member.
    pub blend: Option<Blend>,
    /// Blended members, as indices.
    pub members: Vec<usize>,
    /// Samples that each of them provides to the stages before.
    pub cursors: Vec<u64>,
}

/// Properties of a sample besides its input tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleShape {
    /// Number of tokens: one more than those that were read, unless the cut is another (`order::Cut`).
    pub tokens: usize,
    /// Last token, if the inputs do not include it.
    pub last: Option<i32>,
    /// Ends of its sequences as positions of the input: ascending, the last is its length.
    pub ends: Vec<usize>,
}

/// Progress of reading a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub prefix: PathBuf,
    /// Hash of its index; a different value means a different dataset under the same name.
    pub identity: u64,
    /// Samples of it that the run has read.
    pub samples: u64,
    /// Samples per epoch of the part that is read, rounded down.
    pub per_epoch: u64,
}

impl Member {
    /// Samples in all segments.
    pub fn samples(&self) -> u64 {
        self.segments.iter().map(Order::samples).sum()
    }

    /// Shuffles the samples from `used` on again, those of each segment among themselves.
    pub fn reshuffle(&mut self, used: u64, seed: u64) {
        let mut end = 0;
        for segment in &self.segments {
            let first = used.max(end);
            end += segment.samples();
            self.reshuffles.extend(Reshuffle::new(first..end, seed));
        }
    }

    /// Segment of sample `k`, and its position in it.
    fn locate(&self, k: u64) -> Option<(&Order, u64)> {
        let changes = self.reshuffles.iter().rev();
        let mut k = changes.fold(k, |k, change| change.position(k));
        for segment in &self.segments {
            if k < segment.samples() {
                return Some((segment, k));
            }
            k -= segment.samples();
        }
        None
    }
}

impl MixtureStage {
    /// Member that provides sample `k` of the list, and the number of the member's sample.
    fn locate(&self, k: u64) -> (usize, u64) {
        let (which, number) = match &self.blend {
            Some(blend) => blend.sample(k - self.from),
            None => (0, k - self.from),
        };
        (self.members[which], self.cursors[which] + number)
    }

    /// Number of samples of each member before sample `k` of the list, in all stages.
    pub fn samples_before(&self, k: u64) -> Vec<u64> {
        let since = match &self.blend {
            Some(blend) => blend.samples_before(k - self.from),
            None => vec![k - self.from],
        };
        self.cursors
            .iter()
            .zip(since)
            .map(|(before, since)| before + since)
            .collect()
    }
}

impl Mixture {
    /// Creates a mixture. Stages must be contiguous from sample 0 on.
    pub fn new(members: Vec<Member>, stages: Vec<MixtureStage>, seq_len: usize) -> Mixture {
        assert!(stages.windows(2).all(|two| two[0].until == two[1].from) && stages[0].from == 0);
        Mixture { members, stages, seq_len }
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.stages.last().map_or(0, |stage| stage.until)
    }

    /// Bytes of memory of the sample order.
    pub fn bytes(&self) -> u64 {
        let segments = self.members.iter().flat_map(|member| &member.segments);
        let blends = self.stages.iter().filter_map(|stage| stage.blend.as_ref());
        segments.map(Order::bytes).sum::<u64>() + blends.map(Blend::bytes).sum::<u64>()
    }

    /// Tokens of one sample's input.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Progress of each dataset after `consumed` samples of the list.
    pub fn cursors(&self, consumed: u64) -> Vec<Cursor> {
        let mut read = vec![0; self.members.len()];
        for stage in self.stages.iter().filter(|stage| stage.from <= consumed) {
            let counts = stage.samples_before(consumed.min(stage.until));
            for (member, count) in stage.members.iter().zip(counts) {
                read[*member] = count;
            }
        }
        self.members
            .iter()
            .zip(read)
            .map(|(member, samples)| {
                let first = &member.segments[0];
                let per_epoch = first.samples() / first.epochs;
                let dataset = &member.dataset;
                let prefix = dataset.prefix().into();
                let identity = dataset.identity();
                Cursor { prefix, identity, samples, per_epoch }
            })
            .collect()
    }

    /// Dataset of a sample.
    pub fn dataset(&self, sample: u64) -> Result<&Indexed> {
        Ok(&self.locate(sample)?.0.dataset)
    }

    /// Reads the sample's first input tokens, at most seq_len, into `tokens`, padded with zeros.
    pub fn read(&self, sample: u64, tokens: &mut [i32]) -> Result<SampleShape> {
        let (member, order, k) = self.locate(sample)?;
        let dataset = &member.dataset;
        let mut last = [0];
        let mut at = 0;
        let mut shape = SampleShape::default();
        let mut slices = order.slices(k, dataset.lengths())?;
        let length = tokens.len();
        while shape.last.is_none()
            && let Some(SequenceSlice { sequence, offset, count }) = slices.next()?
        {
            let fits = count.min(length - at);
            let count = count.min(fits + 1);
            let within = &mut tokens[at..at + fits];
            let beyond = &mut last[..count - fits];
            dataset
                .read(sequence, offset, within)
                .and_then(|()| dataset.read(sequence, offset + fits as u32, beyond))
                .with_context(|| {
                    format!("dataset {}, sample {sample}", dataset.prefix().display())
                })?;
            (at, shape.tokens) = (at + fits, shape.tokens + count);
            shape.last = (fits < count).then_some(last[0]);
            if fits > 0 {
                shape.ends.push(at);
            }
        }
        tokens[at..].fill(0);
        // Padding belongs to the last sequence, as in Megatron-Core.
        if let Some(end) = shape.ends.last_mut() {
            *end = length;
        }
        Ok(shape)
    }

    /// Prefetches a sample's bytes into memory; returns at once.
    pub fn prefetch(&self, sample: u64) {
        let Ok((member, order, k)) = self.locate(sample) else { return };
        let Ok(mut slices) = order.slices(k, member.dataset.lengths()) else { return };
        while let Ok(Some(SequenceSlice { sequence, offset, count })) = slices.next() {
            member.dataset.will_need(sequence, offset, count);
        }
    }

    fn locate(&self, sample: u64) -> Result<(&Member, &Order, u64)> {
        let stage = self.stages.iter().rfind(|stage| stage.from <= sample);
        let Some(stage) = stage.filter(|stage| sample < stage.until) else {
            bail!("sample {sample} does not exist: the list has {}", Count(self.samples()));
        };
        let (member, number) = stage.locate(sample);
        let member = &self.members[member];
        match member.locate(number) {
            Some((order, k)) => Ok((member, order, k)),
            None => bail!(
                "sample {sample} is number {number} of {}, whose order has {}",
                member.dataset.prefix().display(),
                Count(member.samples())
            ),
        }
    }
}
