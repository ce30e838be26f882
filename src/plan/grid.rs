//! Grid of ranks: its axes, the coordinates of a rank, and groups of ranks by axes.

use std::ops::Index;

/// Axis of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Shares of each matrix.
    Tensor,
    /// Shares of each sample's tokens. Always 1 so far.
    Context,
    /// Replicas, which read other samples.
    Data,
    /// Stages of layers.
    Pipeline,
}

/// Number of axes.
const AXES: usize = 4;

/// Order of a grid's axes, the one that varies fastest first.
pub type Order = [Axis; AXES];

/// Megatron's order.
pub const DATA_FIRST: Order = [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline];

/// The order in which the stages of a replica are adjacent.
pub const STAGES_FIRST: Order = [Axis::Tensor, Axis::Context, Axis::Pipeline, Axis::Data];

// Groups by the axes along which their ranks differ.

/// Ranks with the other shares of a rank's layers.
pub const SHARES: &[Axis] = &[Axis::Tensor];

/// Ranks with the other layers of a replica, by stage.
pub const STAGES: &[Axis] = &[Axis::Pipeline];

/// Ranks that hold the same weights and compute other tokens. They sum gradients, and shard the
/// optimizer's states.
pub const GRADIENT_AXES: &[Axis] = &[Axis::Context, Axis::Data];

/// Sizes of the grid and the numbering of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    order: Order,
    /// By axis.
    sizes: [usize; AXES],
}

/// Coordinates of a rank, by axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coord([usize; AXES]);

impl Grid {
    /// Grid of a single rank.
    pub const SOLO: Grid = Grid { order: DATA_FIRST, sizes: [1; AXES] };

    /// Grid with the given sizes; the other axes have size 1.
    pub fn new(order: Order, sizes: &[(Axis, usize)]) -> Grid {
        let mut grid = Grid { order, ..Grid::SOLO };
        for (axis, size) in sizes {
            grid.sizes[*axis as usize] = *size;
        }
        grid
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Number of ranks of a group.
    pub fn along(&self, axes: &[Axis]) -> usize {
        axes.iter().map(|axis| self[*axis]).product()
    }

    /// Coordinates of rank 0.
    pub fn first(&self) -> Coord {
        Coord([0; AXES])
    }

    pub fn coord(&self, rank: usize) -> Coord {
        assert!(rank < self.size(), "rank {rank} of {}", self.size());
        let mut at = self.first();
        let mut rest = rank;
        for axis in self.order {
            at.0[axis as usize] = rest % self[axis];
            rest /= self[axis];
        }
        at
    }

    pub fn rank(&self, at: Coord) -> usize {
        self.order
            .iter()
            .rev()
            .fold(0, |rank, axis| rank * self[*axis] + at[*axis])
    }

    /// Ranks whose coordinates differ from `at` at most along `axes`, in order.
    pub fn group(&self, at: Coord, axes: &[Axis]) -> Vec<usize> {
        (0..self.along(axes))
            .map(|number| {
                let mut coord = at;
                let mut rest = number;
                for axis in self.order.into_iter().filter(|axis| axes.contains(axis)) {
                    coord = coord.with(axis, rest % self[axis]);
                    rest /= self[axis];
                }
                self.rank(coord)
            })
            .collect()
    }
}

impl Index<Axis> for Grid {
    type Output = usize;

    /// Size of an axis.
    fn index(&self, axis: Axis) -> &usize {
        &self.sizes[axis as usize]
    }
}

impl Coord {
    /// The same coordinates with another value on one axis.
    pub fn with(mut self, axis: Axis, value: usize) -> Coord {
        self.0[axis as usize] = value;
        self
    }

    /// Short name, for example "TP1 PP3 DP0".
    pub fn name(&self) -> String {
        format!("TP{} PP{} DP{}", self[Axis::Tensor], self[Axis::Pipeline], self[Axis::Data])
    }
}

impl Index<Axis> for Coord {
    type Output = usize;

    fn index(&self, axis: Axis) -> &usize {
        &self.0[axis as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [(Axis, usize); AXES] =
        [(Axis::Tensor, 2), (Axis::Context, 2), (Axis::Pipeline, 3), (Axis::Data, 4)];

    #[test]
    fn every_rank_has_one_coord_and_is_in_its_groups() {
        for order in [DATA_FIRST, STAGES_FIRST] {
            let grid = Grid::new(order, &SIZES);
            assert_eq!(grid.size(), 48);
            for rank in 0..grid.size() {
                let at = grid.coord(rank);
                assert_eq!(grid.rank(at), rank);
                assert_eq!(grid.group(at, SHARES)[at[Axis::Tensor]], rank);
                assert_eq!(grid.group(at, STAGES)[at[Axis::Pipeline]], rank);
                assert_eq!(grid.group(at, &[Axis::Data])[at[Axis::Data]], rank);
                let gradients = grid.group(at, GRADIENT_AXES);
                assert_eq!(gradients.len(), grid.along(GRADIENT_AXES));
                assert!(gradients.contains(&rank));
                assert_eq!(grid.group(at, &order), (0..48).collect::<Vec<_>>());
            }
        }
    }

    /// Groups by the same axes are disjoint and contain every rank.
    #[test]
    fn groups_divide_the_grid() {
        let grid = Grid::new(STAGES_FIRST, &SIZES);
        for axes in [SHARES, STAGES, GRADIENT_AXES, &[]] {
            let mut seen = vec![0; grid.size()];
            for rank in 0..grid.size() {
                let group = grid.group(grid.coord(rank), axes);
                if group[0] == rank {
                    group.iter().for_each(|member| seen[*member] += 1);
                }
            }
            assert_eq!(seen, vec![1; grid.size()], "{axes:?}");
        }
    }

    #[test]
    fn ranks_are_ordered_as_in_megatron() {
        let sizes = [(Axis::Tensor, 2), (Axis::Pipeline, 2), (Axis::Data, 2)];
        let grid = Grid::new(DATA_FIRST, &sizes);
        assert_eq!(grid.group(grid.coord(0), GRADIENT_AXES), [0, 2]);
        assert_eq!(grid.group(grid.coord(0), STAGES), [0, 4]);
        assert_eq!(grid.coord(5).name(), "TP1 PP1 DP0");
    }
}
