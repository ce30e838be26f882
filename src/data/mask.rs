//! Masks of a sample: visible keys, loss weight and position number of each position. Megatron's
//! `get_ltor_masks_and_position_ids`, for causal and prefix language models.

use std::ops::Range;

use super::batch::Sample;
use base::rng;
use manifest::{Eod, Objective, PrefixLm};

/// Mask rules of one source of samples.
#[derive(Clone, Debug)]
pub struct Masks {
    pub eod: Option<Eod>,
    /// Whether each sequence of the index is a document: `inter_document_masking`.
    pub by_sequence: bool,
    pub objective: Objective,
    /// Random key of the prefix lengths.
    pub key: u64,
}

impl Masks {
    /// Fills weights, positions and visible ranges of sample `number` from its tokens. Its
    /// sequences end at positions `ends`, and the first `targets` positions have a target. Prefixes
    /// are a function of the key, the sample and the document's number within it, so a resumed run
    /// repeats them.
    pub fn fill(&self, number: u64, sample: &mut Sample<'_>, ends: &[usize], targets: usize) {
        let words = rng::philox(self.key, number as u128);
        let key = (words[0] as u64) << 32 | words[1] as u64;
        self.fill_with(
            |document, choices| rng::below(key, document, choices),
            sample,
            ends,
            targets,
        );
    }

    /// Fills the masks with prefixes chosen by `draw(document number, choices)`. Choice 0 is the
    /// shortest prefix, one position.
    pub fn fill_with(
        &self,
        mut draw: impl FnMut(u64, u64) -> u64,
        out: &mut Sample<'_>,
        ends: &[usize],
        targets: usize,
    ) {
        let Sample { tokens, weights, positions, visible, .. } = out;
        let tokens = &**tokens;
        weights.fill(1.0);
        let ends = if self.by_sequence { ends } else { &[] };
        let mut documents = Documents { ends, eod: self.eod.map(|eod| eod.token), tokens, from: 0 };
        let resets_attention = self.resets_attention();
        let resets_positions = self.by_sequence || self.eod.is_some_and(|eod| eod.reset_positions);
        let mut number = 0;
        while let Some((start, end)) = documents.next() {
            let seen_from = if resets_attention { start } else { 0 };
            let counted_from = if resets_positions { start } else { 0 };
            for t in start..end {
                positions[t] = (t - counted_from) as i32;
                visible[2 * t] = seen_from as i32;
                visible[2 * t + 1] = t as i32 + 1;
            }
            if resets_attention {
                self.show_prefix(
                    tokens,
                    start..end,
                    |choices| draw(number, choices),
                    weights,
                    visible,
                );
            }
            number += 1;
        }
        if !resets_attention {
            self.show_prefix(tokens, 0..tokens.len(), |choices| draw(0, choices), weights, visible);
        }
        weights[targets.min(tokens.len())..].fill(0.0);
        self.weigh_tokens(tokens, weights);
    }

    /// Makes a prefix of `span` visible to all positions of the prefix.
    fn show_prefix(
        &self,
        tokens: &[i32],
        span: Range<usize>,
        draw: impl FnOnce(u64) -> u64,
        weights: &mut [f32],
        visible: &mut [i32],
    ) {
        let Objective::PrefixLm(PrefixLm { loss_on_targets_only }) = self.objective else { return };
        // Last position at which a prefix may end: before the EOD if the document has one here.
        let ended = self.resets_attention() && self.is_eod(tokens[span.end - 1]);
        let last = if ended { span.end - 1 } else { span.end };
        let choices = (last - span.start) as u64; // prefix ends at start + 1 ..= last
        if choices == 0 {
            return; // an EOD alone, for which Megatron-DeepSpeed raises an error
        }
        let end = span.start + 1 + draw(choices) as usize;
        for t in span.start..end {
            visible[2 * t + 1] = end as i32;
        }
        if loss_on_targets_only {
            weights[span.start..end - 1].fill(0.0);
        }
    }

    fn resets_attention(&self) -> bool {
        self.by_sequence || self.eod.is_some_and(|eod| eod.reset_attention)
    }

    fn is_eod(&self, token: i32) -> bool {
        self.eod.is_some_and(|eod| eod.token as i32 == token)
    }

    /// Turns the loss mask (0 or 1) into weights. Causal: they sum to 1, so that a sample has the
    /// same weight in any micro-batch. Prefix LM: divides by Megatron-DeepSpeed's fixed normaliser,
    /// the expected number of targets.
    fn weigh_tokens(&self, tokens: &[i32], weights: &mut [f32]) {
        if self.eod.is_some_and(|eod| eod.mask_loss) {
            for (weight, token) in weights.iter_mut().zip(tokens) {
                if self.is_eod(*token) {
                    *weight = 0.0;
                }
            }
        }
        let count = tokens.len() as f64;
        let unit = match self.objective {
            Objective::Causal => {
                let counted = weights.iter().filter(|weight| **weight > 0.0).count();
                1.0 / counted.max(1) as f64
            }
            Objective::PrefixLm(PrefixLm { loss_on_targets_only: true }) => 2.0 / (count + 1.0),
            Objective::PrefixLm(PrefixLm { loss_on_targets_only: false }) => 1.0 / count,
        } as f32;
        weights.iter_mut().for_each(|weight| *weight *= unit);
    }
}

/// Documents within one sample: each ends at the next of `ends` or, without those, at its EOD; the
/// last ends with the sample.
struct Documents<'a> {
    ends: &'a [usize],
    eod: Option<u32>,
    tokens: &'a [i32],
    from: usize,
}

impl Documents<'_> {
    fn next(&mut self) -> Option<(usize, usize)> {
        let start = self.from;
        let rest = self.tokens.get(start..).filter(|rest| !rest.is_empty())?;
        if let Some((end, later)) = self.ends.split_first() {
            (self.ends, self.from) = (later, *end);
            return Some((start, *end));
        }
        let end = self
            .eod
            .and_then(|eod| rest.iter().position(|token| *token == eod as i32));
        self.from = end.map_or(self.tokens.len(), |end| start + end + 1);
        Some((start, self.from))
    }
}
