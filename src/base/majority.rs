//! Most frequent value: of digests, programs, manifests.

use std::collections::BTreeMap;

/// Most frequent value; the first of several. None for no values.
pub fn majority<T: Ord + Copy>(values: &[T]) -> Option<T> {
    let mut votes = BTreeMap::<T, (usize, usize)>::new();
    for (place, value) in values.iter().enumerate() {
        votes.entry(*value).or_insert((0, place)).0 += 1;
    }
    let most = votes
        .into_iter()
        .max_by_key(|(_, (count, first))| (*count, usize::MAX - first));
    most.map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::cmp::Ordering;

    #[test]
    fn the_most_win_and_the_first_of_equals() {
        assert_eq!(majority(&[3, 1, 2, 1]), Some(1));
        assert_eq!(majority(&[2, 1, 1, 2]), Some(2));
        assert_eq!(majority::<u64>(&[]), None);
    }

    thread_local! { static COMPARED: Cell<usize> = const { Cell::new(0) }; }

    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Counted(usize);

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Counted) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Counted) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    /// Worst case, all ranks differ: each costs a logarithm, not a comparison with all others.
    #[test]
    fn ten_times_the_ranks_are_not_a_hundred_times_the_comparisons() {
        for ranks in [100, 1000, 10_000] {
            COMPARED.set(0);
            let all: Vec<Counted> = (0..ranks).map(|i| Counted(i * 7919 % ranks)).collect();
            assert_eq!(majority(&all).map(|one| one.0), Some(0));
            assert!(COMPARED.get() < 50 * ranks, "{} of {ranks}", COMPARED.get());
        }
    }
}
