//! Several matrices stored in one.

/// Matrices interleaved by rows (of a vector: by elements): `widths[0]` rows of the first, then
/// `widths[1]` of the second, and so on; then again. Used for queries, keys and values of attention
/// heads, and for gates and values of SwiGLU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fused {
    widths: [usize; Fused::MOST],
}

impl Fused {
    /// Maximum number of fused matrices.
    pub const MOST: usize = 3;
    /// A single matrix.
    pub const ONE: Fused = Fused { widths: [1, 0, 0] };

    pub const fn new(widths: [usize; Fused::MOST]) -> Fused {
        Fused { widths }
    }

    /// Rows of each matrix per period; 0 for unused places.
    pub fn widths(self) -> [usize; Fused::MOST] {
        self.widths
    }

    /// Number of matrices.
    pub fn count(self) -> usize {
        self.widths.iter().filter(|width| **width > 0).count()
    }

    /// Rows per period.
    pub fn period(self) -> usize {
        self.widths.iter().sum()
    }

    /// Index of the matrix that a row belongs to.
    pub fn matrix_of(self, row: usize) -> usize {
        let [first, second, _] = self.widths;
        let at = row % self.period();
        usize::from(at >= first) + usize::from(at >= first + second)
    }

    /// First row after this one that belongs to another matrix.
    pub fn next(self, row: usize) -> usize {
        if self.count() == 1 {
            return usize::MAX;
        }
        let until: usize = self.widths[..=self.matrix_of(row)].iter().sum();
        row - row % self.period() + until
    }

    /// Row of the fused matrix that holds row `row` of matrix `number`.
    pub fn place(self, number: usize, row: usize) -> usize {
        let width = self.widths[number];
        let before = &self.widths[..number];
        row / width * self.period() + before.iter().sum::<usize>() + row % width
    }

    /// Number of rows, out of `rows`, that belong to a matrix. Whole periods only.
    pub fn rows(self, number: usize, rows: usize) -> usize {
        super::div_exact(rows, self.period()) * self.widths[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_belongs_to_one_matrix() {
        let fused = Fused::new([4, 2, 2]);
        let of: Vec<usize> = (0..12).map(|row| fused.matrix_of(row)).collect();
        assert_eq!(of, [0, 0, 0, 0, 1, 1, 2, 2, 0, 0, 0, 0]);
        let next: Vec<usize> = (0..9).map(|row| fused.next(row)).collect();
        assert_eq!(next, [4, 4, 4, 4, 6, 6, 8, 8, 12]);
        assert_eq!([0, 1, 2].map(|number| fused.rows(number, 24)), [12, 6, 6]);
        assert_eq!(
            (Fused::ONE.count(), Fused::ONE.matrix_of(7), Fused::ONE.next(7)),
            (1, 0, usize::MAX)
        );
        assert_eq!(Fused::ONE.rows(0, 7), 7);
    }

    #[test]
    fn rows_of_a_matrix_lie_in_their_order() {
        for fused in [Fused::new([4, 2, 2]), Fused::new([1, 1, 0]), Fused::ONE] {
            for number in 0..fused.count() {
                let own: Vec<usize> = (0..16)
                    .filter(|row| fused.matrix_of(*row) == number)
                    .collect();
                let placed: Vec<usize> = (0..own.len()).map(|i| fused.place(number, i)).collect();
                assert_eq!(placed, own, "{number} of {fused:?}");
            }
        }
    }
}
