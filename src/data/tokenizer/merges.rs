//! Byte-pair encoding (Sennrich et al. 2016): of all neighbouring pairs with a merge, the pair learned
//! first is merged first, and the leftmost of equal pairs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Learned merge: `left` and `right` become `id`. Its position in the list is its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    pub left: u32,
    pub right: u32,
    pub id: u32,
}

/// Merges as a hash table with open addressing: (pair, rank, id).
#[derive(Clone, Debug)]
pub struct Merges {
    slots: Box<[Slot]>,
    mask: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    pair: u64,
    rank: u32,
    id: u32,
}

/// No pair: ids are below 2^31.
const EMPTY: Slot = Slot { pair: u64::MAX, rank: u32::MAX, id: 0 };

/// Maximum bytes of a piece that is merged by plain search; longer ones use a queue.
const SHORT: usize = 64;

impl Merges {
    pub fn new(merges: &[Merge]) -> Merges {
        let size = (merges.len() * 2).next_power_of_two().max(16);
        let mut table = Merges { slots: vec![EMPTY; size].into(), mask: size - 1 };
        for (rank, merge) in merges.iter().enumerate() {
            let slot = table.find_slot(merge.left, merge.right);
            let pair = pack_pair(merge.left, merge.right);
            table.slots[slot] = Slot { pair, rank: rank as u32, id: merge.id };
        }
        table
    }

    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.rank == u32::MAX)
    }

    /// Slot that holds a pair, or the empty one for it.
    #[inline]
    fn find_slot(&self, left: u32, right: u32) -> usize {
        let pair = pack_pair(left, right);
        let mut at = (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & self.mask;
        while self.slots[at].pair != pair && self.slots[at].pair != u64::MAX {
            at = (at + 1) & self.mask;
        }
        at
    }

    #[inline]
    fn get(&self, left: u32, right: u32) -> Slot {
        self.slots[self.find_slot(left, right)]
    }

    /// Merges the ids from `from` on until no pair is left.
    pub fn apply(&self, ids: &mut Vec<u32>, from: usize) {
        if ids.len() - from <= SHORT {
            self.merge_by_search(ids, from)
        } else {
            self.merge_by_queue(ids, from)
        }
    }

    /// Merges by search: O(n²), and fastest for the few bytes of a word.
    fn merge_by_search(&self, ids: &mut Vec<u32>, from: usize) {
        let mut ranks = [EMPTY; SHORT];
        for (slot, two) in ranks.iter_mut().zip(ids[from..].windows(2)) {
            *slot = self.get(two[0], two[1]);
        }
        let mut pairs = (ids.len() - from).saturating_sub(1);
        while let Some(at) = (0..pairs).min_by_key(|at| ranks[*at].rank) {
            let best = ranks[at];
            if best.rank == u32::MAX {
                break;
            }
            let i = from + at;
            ids[i] = best.id;
            ids.remove(i + 1);
            pairs -= 1;
            ranks.copy_within(at + 1..pairs + 1, at);
            if at < pairs {
                ranks[at] = self.get(ids[i], ids[i + 1]);
            }
            if at > 0 {
                ranks[at - 1] = self.get(ids[i - 1], ids[i]);
            }
        }
    }

    /// Merges with a queue: at most O(n log n), and O(n) for a run of one character. Positions form a
    /// doubly linked list. Candidates that are out of date when they are taken are skipped. 16 bytes
    /// per position.
    fn merge_by_queue(&self, ids: &mut Vec<u32>, from: usize) {
        const GONE: u32 = u32::MAX;
        let symbols = &mut ids[from..];
        let n = u32::try_from(symbols.len()).expect("texts are far shorter");
        let mut next: Vec<u32> = (1..=n).collect();
        let mut previous: Vec<u32> = (0..n).map(|i| i.wrapping_sub(1)).collect();
        let rank = |symbols: &[u32], at: u32, after: u32| {
            self.get(symbols[at as usize], symbols[after as usize]).rank
        };
        let mut queue = Candidates::default();
        (1..n).for_each(|after| queue.push(rank(symbols, after - 1, after), after - 1));
        while let Some((wanted, at)) = queue.pop() {
            let left = at as usize;
            let after = next[at as usize];
            if symbols[left] == GONE || after == n {
                continue;
            }
            let slot = self.get(symbols[left], symbols[after as usize]);
            if slot.rank != wanted {
                continue;
            }
            (symbols[left], symbols[after as usize]) = (slot.id, GONE);
            next[left] = next[after as usize];
            if next[left] < n {
                previous[next[left] as usize] = at;
                queue.push(rank(symbols, at, next[left]), at);
            }
            if previous[left] < n {
                queue.push(rank(symbols, previous[left], at), previous[left]);
            }
        }
        ids.retain(|id| *id != GONE);
    }
}

/// Pairs that may be merged, as (rank, position of the left one), taken in this order. Positions of a
/// rank are added nearly sorted, so each is moved once and no heap of all is needed.
#[derive(Default)]
struct Candidates {
    /// Candidates of ranks above the present one, in the order in which they were added.
    later: BTreeMap<u32, Vec<u32>>,
    /// Candidates of the present rank, last first.
    rank: u32,
    now: Vec<u32>,
    /// Candidates of ranks already passed: none if every token is learned after its parts.
    early: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Candidates {
    fn push(&mut self, rank: u32, at: u32) {
        match rank {
            u32::MAX => {} // no such merge
            rank if rank <= self.rank && !(self.now.is_empty() && self.early.is_empty()) => {
                self.early.push(Reverse((rank, at)))
            }
            rank => self.later.entry(rank).or_default().push(at),
        }
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        let early = self.early.peek().map(|Reverse(first)| *first);
        if early.is_some_and(|first| self.now.last().is_none_or(|at| first < (self.rank, *at))) {
            return self.early.pop().map(|Reverse(first)| first);
        }
        if self.now.is_empty() {
            (self.rank, self.now) = self.later.pop_first()?;
            self.now.sort_unstable_by(|a, b| b.cmp(a));
        }
        self.now.pop().map(|at| (self.rank, at))
    }
}

fn pack_pair(left: u32, right: u32) -> u64 {
    (left as u64) << 32 | right as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng;

    /// Merges by the definition: repeatedly the leftmost pair of the lowest rank.
    fn by_definition(merges: &Merges, ids: &mut Vec<u32>) {
        let rank = |ids: &[u32], at: usize| merges.get(ids[at], ids[at + 1]).rank;
        loop {
            let best = (1..ids.len())
                .map(|after| (rank(ids, after - 1), after - 1))
                .min();
            let Some((_, at)) = best.filter(|(rank, _)| *rank != u32::MAX) else { return };
            ids[at] = merges.get(ids[at], ids[at + 1]).id;
            ids.remove(at + 1);
        }
    }

    /// Also for tables that no training makes, where a pair's rank is below that of its parts.
    #[test]
    fn the_queue_merges_in_the_order_of_the_definition() {
        for case in 0..2000u64 {
            let dice = |at: u64, below: u64| rng::below(case, at, below) as u32;
            let symbols = 2 + u64::from(dice(0, 6));
            let all: Vec<Merge> = (1..=u64::from(dice(1, 30)))
                .map(|i| {
                    let [left, right, id] = [1, 2, 3].map(|k| dice(10 * i + k, symbols));
                    Merge { left, right, id: if case % 2 == 0 { id } else { symbols as u32 + id } }
                })
                .collect();
            let merges = Merges::new(&all);
            let ids: Vec<u32> = (0..1 + u64::from(dice(2, 90)))
                .map(|i| dice(1000 + i, symbols))
                .collect();
            let mut found = ids.clone();
            let mut wanted = ids.clone();
            let mut short = ids;
            merges.merge_by_queue(&mut found, 0);
            by_definition(&merges, &mut wanted);
            assert_eq!(found, wanted, "case {case}");
            if short.len() <= SHORT {
                merges.merge_by_search(&mut short, 0);
                assert_eq!(short, wanted, "case {case}");
            }
        }
    }
}
