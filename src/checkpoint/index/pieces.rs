//! Overlap test for the pieces of a state.

use engine::TensorSlice;
use std::collections::{BTreeMap, BTreeSet};

/// Returns a slice that overlaps another, and the number of compared pairs. A slice is compared
/// only with its neighbours in the same rows, because a checkpoint of 10,000 ranks has as many
/// slices of a tensor.
pub fn find_overlap(slices: &[&TensorSlice]) -> (Option<usize>, usize) {
    let mut by_row: Vec<usize> = (0..slices.len()).collect();
    by_row.sort_unstable_by_key(|i| (slices[*i].at, *i));
    // Slices that extend into the current row, by first column. They do not overlap.
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    let mut ends: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut compared = 0;
    for i in by_row {
        let TensorSlice { at: [row, col], size: [rows, cols] } = *slices[i];
        while let Some((end, ended)) = ends.first().copied().filter(|(end, _)| *end <= row) {
            ends.remove(&(end, ended));
            open.remove(&slices[ended].at[1]);
        }
        compared += 1;
        let left = open.range(..col + cols).next_back();
        if left.is_some_and(|(first, other)| first + slices[*other].size[1] > col) {
            return (Some(i), compared);
        }
        open.insert(col, i);
        ends.insert((row + rows, i));
    }
    (None, compared)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrix of 64 columns in `rows` × 4 pieces.
    fn pieces(rows: usize) -> Vec<TensorSlice> {
        (0..4 * rows)
            .rev()
            .map(|i| TensorSlice { at: [3 * (i / 4), 16 * (i % 4)], size: [3, 16] })
            .collect()
    }

    fn found(slices: &[TensorSlice]) -> (Option<usize>, usize) {
        find_overlap(&slices.iter().collect::<Vec<_>>())
    }

    /// Same result as comparing every pair, for many ways to split.
    #[test]
    fn a_piece_over_another_is_found_wherever_it_lies() {
        let pieces = pieces(5);
        for moved in 0..pieces.len() {
            for (row, col, rows, cols) in
                [(0, 0, 3, 16), (1, 0, 3, 16), (0, 7, 3, 1), (2, 15, 9, 9)]
            {
                let mut pieces = pieces.clone();
                let TensorSlice { at, .. } = pieces[moved];
                pieces[(moved + 7) % 20] =
                    TensorSlice { at: [at[0] + row, at[1] + col], size: [rows, cols] };
                let apart = |a: &TensorSlice, b: &TensorSlice| {
                    a.overlap(&b.rows(), &b.cols())
                        .iter()
                        .any(|range| range.is_empty())
                };
                let mut pairs = (0..20).flat_map(|i| (0..i).map(move |j| (i, j)));
                let over = pairs.any(|(i, j)| !apart(&pieces[i], &pieces[j]));
                assert_eq!(found(&pieces).0.is_some(), over, "{moved}: {pieces:?}");
            }
        }
    }

    #[test]
    fn ten_times_the_ranks_are_ten_times_the_comparisons() {
        let compared = [10, 100, 1000].map(|rows| found(&pieces(rows)));
        assert_eq!(compared, [(None, 40), (None, 400), (None, 4000)]);
    }
}
