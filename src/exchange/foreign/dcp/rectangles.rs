//! A tensor of a distributed checkpoint as rectangles, or as flat pieces of ranks' shares, in files.

use super::super::run::Put;

/// Rectangles of a tensor that are compared pair by pair, at most.
const MAX_PAIRED: usize = 1 << 13;

/// A tensor of the whole model.
pub struct Entry {
    pub shape: Vec<usize>,
    pub chunks: Vec<Chunk>,
}

/// A rectangle of a tensor.
pub struct Chunk {
    pub offsets: Vec<usize>,
    pub sizes: Vec<usize>,
    pub item: Item,
}

/// Bytes of a file.
#[derive(Clone)]
pub struct Item {
    pub file: String,
    pub at: u64,
    pub len: u64,
}

impl Entry {
    /// Checks that the rectangles cover the tensor exactly once.
    pub fn check_tiles(&self) -> Result<(), String> {
        let mut covered = 0usize;
        for chunk in &self.chunks {
            let inside = chunk.offsets.len() == self.shape.len()
                && chunk.sizes.len() == self.shape.len()
                && chunk
                    .ends()
                    .zip(&self.shape)
                    .all(|(end, size)| end <= *size);
            if !inside {
                return Err(format!(
                    "the part {:?} at {:?} is outside of {:?}",
                    chunk.sizes, chunk.offsets, self.shape
                ));
            }
            covered = covered.saturating_add(volume(&chunk.sizes));
        }
        let filled = self.chunks.iter().filter(|chunk| volume(&chunk.sizes) > 0);
        let mut chunks: Vec<&Chunk> = filled.collect();
        if !is_grid(&mut chunks, 0) {
            overlaps(&chunks)?;
        }
        match volume(&self.shape) {
            all if all == covered => Ok(()),
            all => Err(format!("its parts have {covered} of {all} elements")),
        }
    }

    /// Whether it is a tensor of shape `whole`: in rectangles, or in flat pieces of ranks' shares.
    pub fn is_of(&self, whole: &[usize]) -> bool {
        self.shape == whole || self.share(whole, 0).is_some()
    }

    /// Shape of a rank's share of a tensor of shape `whole`, without its first `lead` axes, if the entry
    /// has flat pieces of such shares: its axes count the shares, the last one a share's elements.
    pub fn share(&self, whole: &[usize], lead: usize) -> Option<Vec<usize>> {
        let (elements, counts) = self.shape.split_last()?;
        let counts = counts
            .get(lead..)
            .filter(|counts| counts.len() == whole.len())?;
        let share = |(size, count): (&usize, &usize)| {
            (*count > 0 && size.is_multiple_of(*count)).then(|| size / count)
        };
        let share: Vec<usize> = whole.iter().zip(counts).map(share).collect::<Option<_>>()?;
        (volume(&share) == *elements).then_some(share)
    }
}

impl Chunk {
    /// Calls `each` with the rectangles of a flat piece of a rank's share: rows, and parts of rows.
    /// `values` are those from element `first` of the piece on.
    pub fn unfold(
        &self,
        share: &[usize],
        lead: usize,
        first: usize,
        values: &[f32],
        each: &mut Put,
    ) {
        let counts = &self.offsets[lead..self.offsets.len() - 1];
        let corner: Vec<usize> = counts.iter().zip(share).map(|(n, size)| n * size).collect();
        let [top, left] = matrix(&corner, 0);
        let width = matrix(share, 1)[1].max(1);
        let begin = self.offsets.last().copied().unwrap_or(0) + first;
        let mut done = 0;
        while done < values.len() {
            let row = (begin + done) / width;
            let col = (begin + done) % width;
            let rest = values.len() - done;
            let size = match col {
                0 if rest >= width => [rest / width, width],
                _ => [1, rest.min(width - col)],
            };
            let count = size[0] * size[1];
            each([top + row, left + col], size, &values[done..done + count]);
            done += count;
        }
    }

    fn ends(&self) -> impl Iterator<Item = usize> {
        self.offsets
            .iter()
            .zip(&self.sizes)
            .map(|(at, size)| at.saturating_add(*size))
    }

    fn overlaps(&self, other: &Chunk) -> bool {
        let starts = self.offsets.iter().zip(&other.offsets);
        let ends = self.ends().zip(other.ends());
        starts
            .zip(ends)
            .all(|((a, b), (a_end, b_end))| *a < b_end && *b < a_end)
    }
}

/// Whether rectangles are cut at the same places along each axis, and none is there twice: then none overlap.
fn is_grid(chunks: &mut [&Chunk], axis: usize) -> bool {
    let Some(first) = chunks.first() else { return true };
    if axis == first.sizes.len() {
        return chunks.len() == 1;
    }
    let range = |chunk: &Chunk| (chunk.offsets[axis], chunk.offsets[axis] + chunk.sizes[axis]);
    chunks.sort_by_key(|chunk| range(chunk));
    let mut end = 0;
    chunks
        .chunk_by_mut(|a, b| range(a) == range(b))
        .all(|group| {
            let (begin, last) = range(group[0]);
            let apart = begin >= end;
            end = last;
            apart && is_grid(group, axis + 1)
        })
}

/// An error if two rectangles overlap, or if there are too many to compare all pairs.
fn overlaps(chunks: &[&Chunk]) -> Result<(), String> {
    if chunks.len() > MAX_PAIRED {
        return Err(format!("its {} parts are not a grid", chunks.len()));
    }
    for (i, chunk) in chunks.iter().enumerate() {
        if let Some(other) = chunks[..i].iter().find(|other| chunk.overlaps(other)) {
            let [a, b] = [&other.offsets, &chunk.offsets];
            return Err(format!("its parts at {a:?} and {b:?} overlap"));
        }
    }
    Ok(())
}

/// Rows and columns of offsets or sizes; `default` is the value of a missing axis.
pub fn matrix(axes: &[usize], default: usize) -> [usize; 2] {
    [0, 1].map(|axis| axes.get(axis).copied().unwrap_or(default))
}

/// Elements of a shape; `usize::MAX` if they overflow.
pub fn volume(sizes: &[usize]) -> usize {
    sizes
        .iter()
        .try_fold(1usize, |n, size| n.checked_mul(*size))
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiles(shape: &[usize], parts: &[([usize; 2], [usize; 2])]) -> Result<(), String> {
        let entry = Entry {
            shape: shape.to_vec(),
            chunks: parts
                .iter()
                .map(|(offsets, sizes)| {
                    let item = Item { file: "__0_0.distcp".into(), at: 0, len: 0 };
                    Chunk { offsets: offsets.to_vec(), sizes: sizes.to_vec(), item }
                })
                .collect(),
        };
        entry.check_tiles()
    }

    #[test]
    fn rectangles_that_overlap_leave_gaps_or_reach_beyond_are_found() {
        let grid = [([0, 0], [2, 3]), ([2, 0], [2, 3]), ([0, 3], [2, 1]), ([2, 3], [2, 1])];
        assert_eq!(tiles(&[4, 4], &grid), Ok(()));
        assert!(tiles(&[4, 4], &grid[..3]).unwrap_err().contains("14 of 16"));
        assert!(
            tiles(&[3, 4], &grid)
                .unwrap_err()
                .contains("outside of [3, 4]")
        );
        // Around a square in the middle: not a grid.
        let wheel = [
            ([0, 0], [1, 2]),
            ([0, 2], [2, 1]),
            ([2, 1], [1, 2]),
            ([1, 0], [2, 1]),
            ([1, 1], [1, 1]),
        ];
        assert_eq!(tiles(&[3, 3], &wheel), Ok(()));
        let twice = [([0, 0], [2, 2]), ([0, 0], [2, 2])];
        assert!(tiles(&[2, 4], &twice).unwrap_err().contains("overlap"));
        let shifted = [([0, 0], [2, 2]), ([1, 1], [2, 2])];
        assert!(tiles(&[4, 2], &shifted).unwrap_err().contains("outside"));
        assert!(
            tiles(&[4, 4], &shifted)
                .unwrap_err()
                .contains("[0, 0] and [1, 1] overlap")
        );
    }

    #[test]
    fn a_flat_piece_is_cut_into_rows_and_parts_of_rows() {
        // Rank [1, 0] of [2, 2] has rows 2 and 3, columns 0 to 2; the piece has its elements 1 to 5.
        let item = Item { file: "__0_0.distcp".into(), at: 0, len: 0 };
        let chunk = Chunk { offsets: vec![1, 0, 1], sizes: vec![1, 1, 5], item };
        let mut found = Vec::new();
        let mut add = |at, size, values: &[f32]| found.push((at, size, values.to_vec()));
        chunk.unfold(&[2, 3], 0, 0, &[1.0], &mut add);
        chunk.unfold(&[2, 3], 0, 1, &[2.0, 3.0, 4.0, 5.0], &mut add);
        assert_eq!(
            found,
            [
                ([2, 1], [1, 1], vec![1.0]),
                ([2, 2], [1, 1], vec![2.0]),
                ([3, 0], [1, 3], vec![3.0, 4.0, 5.0])
            ]
        );
        let entry = Entry { shape: vec![2, 2, 6], chunks: Vec::new() };
        assert_eq!(entry.share(&[4, 6], 0), Some(vec![2, 3]));
        assert!(entry.is_of(&[4, 6]) && !entry.is_of(&[4, 4]) && !entry.is_of(&[5, 6]));
    }
}
