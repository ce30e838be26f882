//! Memory of the ranks while they train: of the device by its own allocator and by the GPU's monitor,
//! and of the process by the system.

use base::memory::resident;
use device::{DeviceMemory, Monitor};
use engine::Engine;
use launch::rank::Rank;
use plan::grid::Axis;
use serde::{Deserialize, Serialize};

/// Memory of a rank, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// Device memory that the allocator has reserved, and the part of it that tensors use.
    pub reserved: u64,
    pub in_use: u64,
    /// Readings of the GPU's monitor.
    pub gpu: DeviceMemory,
    /// Memory of the rank's process on its host. Ranks that are threads share it.
    pub host: Option<u64>,
}

/// Memory of the rank that uses most of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FullestRank {
    pub rank: usize,
    pub stage: usize,
    pub memory: RankMemory,
}

impl RankMemory {
    /// Reads the present memory; some milliseconds with a GPU's monitor.
    pub fn read(engine: &Engine, monitor: Option<&dyn Monitor>) -> RankMemory {
        RankMemory {
            reserved: engine.backend().reserved().0,
            in_use: engine.memory_plan().total().0,
            gpu: monitor.map(|monitor| monitor.memory()).unwrap_or_default(),
            host: resident().map(|bytes| bytes.0),
        }
    }

    /// Device memory of the rank's process.
    pub fn on_device(&self) -> u64 {
        self.gpu.process.unwrap_or(self.reserved)
    }
}

/// Fullest rank, on rank 0; None on the others. A collective.
pub fn find_fullest(rank: &Rank, mine: &RankMemory) -> anyhow::Result<Option<FullestRank>> {
    Ok(pick_fullest(rank, rank.gather(mine)?))
}

/// Fullest of all ranks, given by rank. None if there are none.
pub fn pick_fullest(rank: &Rank, all: Vec<RankMemory>) -> Option<FullestRank> {
    let fullest = all
        .into_iter()
        .enumerate()
        .max_by_key(|(number, memory)| (memory.on_device(), usize::MAX - number));
    fullest.map(|(number, memory)| {
        let stage = rank.grid.coord(number)[Axis::Pipeline];
        FullestRank { rank: number, stage, memory }
    })
}
