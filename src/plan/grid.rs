//! Which rank does what: the grid of tensor × pipeline × data parallel ranks.

/// Sizes of the grid, and which dimension lies next after the tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub tensor: usize,
    pub pipeline: usize,
    pub data: usize,
    /// Ranks are numbered tensor, data, pipeline (Megatron's order); else tensor, pipeline, data.
    pub data_first: bool,
}

/// A rank's coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub tensor: usize,
    pub pipeline: usize,
    pub data: usize,
}

impl Grid {
    /// One rank.
    pub const SOLO: Grid = Grid { tensor: 1, pipeline: 1, data: 1, data_first: true };

    pub fn size(&self) -> usize {
        self.tensor * self.pipeline * self.data
    }

    pub fn place(&self, rank: usize) -> Place {
        assert!(rank < self.size(), "rank {rank} of {}", self.size());
        let (tensor, rest) = (rank % self.tensor, rank / self.tensor);
        match self.data_first {
            true => Place { tensor, data: rest % self.data, pipeline: rest / self.data },
            false => Place { tensor, pipeline: rest % self.pipeline, data: rest / self.pipeline },
        }
    }

    pub fn rank(&self, place: Place) -> usize {
        let rest = match self.data_first {
            true => place.pipeline * self.data + place.data,
            false => place.data * self.pipeline + place.pipeline,
        };
        rest * self.tensor + place.tensor
    }

    /// Ranks that hold the other shares of this rank's layers.
    pub fn tensor_group(&self, at: Place) -> Vec<usize> {
        (0..self.tensor).map(|tensor| self.rank(Place { tensor, ..at })).collect()
    }

    /// Ranks that hold the other layers of the same replica, by stage.
    pub fn pipeline_group(&self, at: Place) -> Vec<usize> {
        (0..self.pipeline).map(|pipeline| self.rank(Place { pipeline, ..at })).collect()
    }

    /// Ranks that hold the same weights and see other samples.
    pub fn data_group(&self, at: Place) -> Vec<usize> {
        (0..self.data).map(|data| self.rank(Place { data, ..at })).collect()
    }
}

impl Place {
    /// "TP1 PP3 DP0".
    pub fn name(&self) -> String {
        format!("TP{} PP{} DP{}", self.tensor, self.pipeline, self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_place_and_is_in_its_groups() {
        for data_first in [true, false] {
            let grid = Grid { tensor: 2, pipeline: 3, data: 4, data_first };
            for rank in 0..grid.size() {
                let at = grid.place(rank);
                assert_eq!(grid.rank(at), rank);
                assert_eq!(grid.tensor_group(at)[at.tensor], rank);
                assert_eq!(grid.pipeline_group(at)[at.pipeline], rank);
                assert_eq!(grid.data_group(at)[at.data], rank);
            }
        }
    }

    #[test]
    fn neighbours_are_as_megatron_numbers_them() {
        let grid = Grid { tensor: 2, pipeline: 2, data: 2, data_first: true };
        assert_eq!(grid.data_group(grid.place(0)), [0, 2]);
        assert_eq!(grid.pipeline_group(grid.place(0)), [0, 4]);
        assert_eq!(grid.place(5).name(), "TP1 PP1 DP0");
    }
}
