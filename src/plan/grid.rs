//! Grid of tensor × pipeline × data-parallel ranks.

/// Sizes of the grid and the numbering of its ranks. The tensor coordinate always varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub tensor: usize,
    pub pipeline: usize,
    pub data: usize,
    /// Whether ranks are numbered tensor, data, pipeline (Megatron's order); otherwise tensor,
    /// pipeline, data.
    pub data_first: bool,
}

/// Coordinates of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coord {
    pub tensor: usize,
    pub pipeline: usize,
    pub data: usize,
}

impl Grid {
    /// Grid of a single rank.
    pub const SOLO: Grid = Grid { tensor: 1, pipeline: 1, data: 1, data_first: true };

    pub fn size(&self) -> usize {
        self.tensor * self.pipeline * self.data
    }

    pub fn coord(&self, rank: usize) -> Coord {
        assert!(rank < self.size(), "rank {rank} of {}", self.size());
        let (tensor, rest) = (rank % self.tensor, rank / self.tensor);
        match self.data_first {
            true => Coord { tensor, data: rest % self.data, pipeline: rest / self.data },
            false => Coord { tensor, pipeline: rest % self.pipeline, data: rest / self.pipeline },
        }
    }

    pub fn rank(&self, coord: Coord) -> usize {
        let rest = match self.data_first {
            true => coord.pipeline * self.data + coord.data,
            false => coord.data * self.pipeline + coord.pipeline,
        };
        rest * self.tensor + coord.tensor
    }

    /// Tensor-parallel group: ranks with the other shares of this rank's layers.
    pub fn tensor_group(&self, at: Coord) -> Vec<usize> {
        (0..self.tensor).map(|tensor| self.rank(Coord { tensor, ..at })).collect()
    }

    /// Pipeline group: ranks with the other layers of the same replica, by stage.
    pub fn pipeline_group(&self, at: Coord) -> Vec<usize> {
        (0..self.pipeline).map(|pipeline| self.rank(Coord { pipeline, ..at })).collect()
    }

    /// Data-parallel group: ranks with the same weights and other samples.
    pub fn data_group(&self, at: Coord) -> Vec<usize> {
        (0..self.data).map(|data| self.rank(Coord { data, ..at })).collect()
    }
}

impl Coord {
    /// Short name, for example "TP1 PP3 DP0".
    pub fn name(&self) -> String {
        format!("TP{} PP{} DP{}", self.tensor, self.pipeline, self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_coord_and_is_in_its_groups() {
        for data_first in [true, false] {
            let grid = Grid { tensor: 2, pipeline: 3, data: 4, data_first };
            for rank in 0..grid.size() {
                let at = grid.coord(rank);
                assert_eq!(grid.rank(at), rank);
                assert_eq!(grid.tensor_group(at)[at.tensor], rank);
                assert_eq!(grid.pipeline_group(at)[at.pipeline], rank);
                assert_eq!(grid.data_group(at)[at.data], rank);
            }
        }
    }

    #[test]
    fn ranks_are_ordered_as_in_megatron() {
        let grid = Grid { tensor: 2, pipeline: 2, data: 2, data_first: true };
        assert_eq!(grid.data_group(grid.coord(0)), [0, 2]);
        assert_eq!(grid.pipeline_group(grid.coord(0)), [0, 4]);
        assert_eq!(grid.coord(5).name(), "TP1 PP1 DP0");
    }
}
