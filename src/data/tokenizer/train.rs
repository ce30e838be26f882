//! Training of byte-level BPE: starts from single bytes and repeatedly makes a token of the most
//! frequent pair. Rule, order and ties are those of Hugging Face's `BpeTrainer` with the byte-level
//! alphabet.

use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::byte_alphabet::spell;
use super::json;
use super::pre_tokenizer::PreTokenizer;
use base::{Count, Problems};

/// Options of training.
#[derive(Clone, Debug)]
pub struct Training {
    /// Number of ids: special tokens, 256 bytes, and one for each merge.
    pub vocab: usize,
    /// Minimum occurrences of a merged pair.
    pub min_frequency: u64,
    /// Ids 0, 1, …; text never encodes to them.
    pub special: Vec<String>,
}

/// Counts the pieces of a corpus, text by text, then learns merges from the counts. Counters of
/// several threads can be added up; the result does not depend on the order.
#[derive(Clone, Debug, Default)]
pub struct Trainer {
    counts: HashMap<Box<[u8]>, u64>,
}

impl Trainer {
    pub fn new() -> Trainer {
        Trainer::default()
    }

    /// Counts the pieces of one text.
    pub fn count(&mut self, text: &str) {
        let mut at = 0;
        while at < text.len() {
            let end = PreTokenizer::Gpt2.end(text, at);
            let piece = &text.as_bytes()[at..end];
            match self.counts.get_mut(piece) {
                Some(count) => *count += 1,
                None => drop(self.counts.insert(piece.into(), 1)),
            }
            at = end;
        }
    }

    /// Adds another thread's counts.
    pub fn add(&mut self, other: Trainer) {
        for (piece, count) in other.counts {
            *self.counts.entry(piece).or_default() += count;
        }
    }

    /// Number of different pieces.
    pub fn pieces(&self) -> usize {
        self.counts.len()
    }

    /// Learns, and returns the content of a tokenizer.json and the number of ids in it, which is
    /// lower than requested if the text has too few pairs. Calls `progress` for each id.
    pub fn train(
        self,
        training: &Training,
        progress: impl FnMut(usize),
    ) -> Result<(String, usize), Problems> {
        let least = training.special.len() + 256;
        if training.vocab < least {
            return Err(Problems::one(
                "--vocab",
                format!("a vocabulary of {} ids", training.vocab),
                format!(
                    "ask for at least {least}: 256 bytes and {}",
                    Count(training.special.len() as u64).with_noun("special token")
                ),
            ));
        }
        let mut learner = Learner::new(self.counts, training);
        learner.learn(training, progress);
        let Learner { tokens, merges, .. } = learner;
        let count = tokens.len();
        Ok((json::write(&tokens, training.special.len(), &merges), count))
    }
}

type Pair = (u32, u32);

/// Pair that may be merged next. The greatest is the most frequent; of equals, the lowest pair.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    count: u64,
    pair: std::cmp::Reverse<Pair>,
}

struct Learner {
    /// Ids of each piece, and its number of occurrences.
    words: Vec<(Vec<u32>, u64)>,
    tokens: Vec<Box<[u8]>>,
    ids: HashMap<Box<[u8]>, u32>,
    merges: Vec<Pair>,
    counts: HashMap<Pair, i64>,
    /// Words in which each pair occurs or occurred.
    places: HashMap<Pair, HashSet<u32>>,
    queue: BinaryHeap<Candidate>,
}

impl Learner {
    fn new(counts: HashMap<Box<[u8]>, u64>, training: &Training) -> Learner {
        let mut tokens: Vec<Box<[u8]>> = training
            .special
            .iter()
            .map(|token| token.as_bytes().into())
            .collect();
        let mut alphabet: Vec<u8> = (0..=255).collect();
        alphabet.sort_by_key(|byte| spell(*byte)); // Hugging Face's order
        let first = tokens.len();
        let mut byte_ids = [0; 256];
        for (i, byte) in alphabet.iter().enumerate() {
            byte_ids[*byte as usize] = (first + i) as u32;
            tokens.push([*byte].into());
        }
        let ids = tokens.iter().cloned().zip(0..).skip(first).collect();
        let mut words: Vec<(Vec<u32>, u64)> = counts
            .into_iter()
            .map(|(piece, n)| (piece.iter().map(|byte| byte_ids[*byte as usize]).collect(), n))
            .collect();
        words.sort_unstable(); // so that two runs do the same work
        let (counts, places, queue) = Default::default();
        let mut learner = Learner { words, tokens, ids, merges: Vec::new(), counts, places, queue };
        learner.count_pairs();
        learner
    }

    fn count_pairs(&mut self) {
        for ((ids, count), word) in self.words.iter().zip(0..) {
            for two in ids.windows(2) {
                let pair = (two[0], two[1]);
                *self.counts.entry(pair).or_default() += *count as i64;
                self.places.entry(pair).or_default().insert(word);
            }
        }
        let counts = self.counts.iter().filter(|(_, count)| **count > 0);
        self.queue.extend(counts.map(|(pair, count)| Candidate {
            count: *count as u64,
            pair: std::cmp::Reverse(*pair),
        }));
    }

    fn learn(&mut self, training: &Training, mut progress: impl FnMut(usize)) {
        while self.tokens.len() < training.vocab {
            let Some(Candidate { count, pair }) = self.queue.pop() else { break };
            let pair = pair.0;
            let now = self.counts[&pair].max(0) as u64;
            if now != count {
                // The count fell since the pair was queued: queue it again with the new count.
                self.queue
                    .push(Candidate { count: now, pair: std::cmp::Reverse(pair) });
                continue;
            }
            if now < training.min_frequency.max(1) {
                break;
            }
            let id = self.add_token(pair);
            self.merges.push(pair);
            self.apply_merge(pair, id);
            progress(self.tokens.len());
        }
    }

    /// Adds the token that joins two others. Returns its id; two pairs can make the same token.
    fn add_token(&mut self, pair: Pair) -> u32 {
        let left = &self.tokens[pair.0 as usize];
        let right = &self.tokens[pair.1 as usize];
        let joined: Box<[u8]> = [&left[..], &right[..]].concat().into();
        match self.ids.entry(joined) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let id = self.tokens.len() as u32;
                self.tokens.push(new.key().clone());
                *new.insert(id)
            }
        }
    }

    fn apply_merge(&mut self, pair: Pair, id: u32) {
        let mut changed = HashSet::new();
        for word in self.places.remove(&pair).unwrap_or_default() {
            let (ids, times) = &mut self.words[word as usize];
            for (near, change) in merge_word(ids, pair, id) {
                *self.counts.entry(near).or_default() += change * *times as i64;
                if change > 0 {
                    self.places.entry(near).or_default().insert(word);
                    changed.insert(near);
                }
            }
        }
        for pair in changed {
            let count = self.counts[&pair];
            if count > 0 {
                let pair = std::cmp::Reverse(pair);
                self.queue.push(Candidate { count: count as u64, pair });
            }
        }
    }
}

/// Merges a pair everywhere in one word; returns the change of each neighbouring pair's count.
fn merge_word(ids: &mut Vec<u32>, pair: Pair, id: u32) -> Vec<(Pair, i64)> {
    let mut changes = Vec::new();
    let mut at = 0;
    let mut kept = 0;
    while at < ids.len() {
        if ids[at..].starts_with(&[pair.0, pair.1]) {
            if kept > 0 {
                changes.push(((ids[kept - 1], pair.0), -1));
                changes.push(((ids[kept - 1], id), 1));
            }
            if at + 2 < ids.len() {
                changes.push(((pair.1, ids[at + 2]), -1));
                changes.push(((id, ids[at + 2]), 1));
            }
            (ids[kept], at) = (id, at + 2);
        } else {
            (ids[kept], at) = (ids[at], at + 1);
        }
        kept += 1;
    }
    ids.truncate(kept);
    changes
}
