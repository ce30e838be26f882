//! Byte-pair encoding proper (Sennrich et al. 2016): of all neighbours that were ever merged, the
//! pair learned first is merged first, the leftmost among equals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One learned merge: `left` and `right` become `id`. Their rank is their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    pub left: u32,
    pub right: u32,
    pub id: u32,
}

/// The merges as a hash table with open addressing: (pair, rank, id).
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

/// Pieces up to this many bytes are merged by plain search, longer ones with a heap.
const SHORT: usize = 64;

impl Merges {
    pub fn new(merges: &[Merge]) -> Merges {
        let size = (merges.len() * 2).next_power_of_two().max(16);
        let mut table = Merges { slots: vec![EMPTY; size].into(), mask: size - 1 };
        for (rank, merge) in merges.iter().enumerate() {
            let slot = table.find(merge.left, merge.right);
            let pair = pair(merge.left, merge.right);
            table.slots[slot] = Slot { pair, rank: rank as u32, id: merge.id };
        }
        table
    }

    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.rank == u32::MAX)
    }

    /// The slot that holds a pair, or the empty one where it would go.
    #[inline]
    fn find(&self, left: u32, right: u32) -> usize {
        let pair = pair(left, right);
        let mut at = (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & self.mask;
        while self.slots[at].pair != pair && self.slots[at].pair != u64::MAX {
            at = (at + 1) & self.mask;
        }
        at
    }

    #[inline]
    fn get(&self, left: u32, right: u32) -> Slot {
        self.slots[self.find(left, right)]
    }

    /// Merges the ids from `from` on as far as they go.
    pub fn apply(&self, ids: &mut Vec<u32>, from: usize) {
        if ids.len() - from <= SHORT { self.search(ids, from) } else { self.heap(ids, from) }
    }

    /// O(n²), and fastest for the few bytes of a word.
    fn search(&self, ids: &mut Vec<u32>, from: usize) {
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

    /// O(n log n): a piece may be very long. Positions form a doubly linked list; candidates that
    /// no longer hold when they come up are skipped. 20 bytes a position.
    fn heap(&self, ids: &mut Vec<u32>, from: usize) {
        const GONE: u32 = u32::MAX;
        let symbols = &mut ids[from..];
        let n = u32::try_from(symbols.len()).expect("texts are far shorter");
        let mut next: Vec<u32> = (1..=n).collect();
        let mut before: Vec<u32> = (0..n).map(|i| i.wrapping_sub(1)).collect();
        let candidate = |symbols: &[u32], at: u32, after: u32| {
            let slot = self.get(symbols[at as usize], symbols[after as usize]);
            (slot.rank != u32::MAX).then_some(Reverse((slot.rank, at)))
        };
        let mut queue: BinaryHeap<_> =
            (1..n).filter_map(|after| candidate(symbols, after - 1, after)).collect();
        while let Some(Reverse((rank, at))) = queue.pop() {
            let (left, after) = (at as usize, next[at as usize]);
            if symbols[left] == GONE || after == n {
                continue;
            }
            let slot = self.get(symbols[left], symbols[after as usize]);
            if slot.rank != rank {
                continue;
            }
            (symbols[left], symbols[after as usize]) = (slot.id, GONE);
            next[left] = next[after as usize];
            if next[left] < n {
                before[next[left] as usize] = at;
                queue.extend(candidate(symbols, at, next[left]));
            }
            if before[left] < n {
                queue.extend(candidate(symbols, before[left], at));
            }
        }
        let mut kept = from;
        for i in from..ids.len() {
            if ids[i] != GONE {
                ids[kept] = ids[i];
                kept += 1;
            }
        }
        ids.truncate(kept);
    }
}

fn pair(left: u32, right: u32) -> u64 {
    (left as u64) << 32 | right as u64
}
