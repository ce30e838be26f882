//! A communicator of one rank. A run has none: its groups of one rank are `Solo`. By it a test meets
//! the library on a machine with one GPU, where NCCL before 2.30 refuses a second rank.

use super::Nccl;
use crate::{Group, World};

impl Nccl {
    /// Group of this rank alone, whose collectives are NCCL's. An error fails the whole process group.
    pub fn group_of_one(&self, world: &World) -> Box<dyn Group> {
        let id = self.new_id(world);
        let group = self.create_group(world, "one", &[world.rank()], id);
        self.reserve_buffers(&group, false);
        Box::new(group)
    }
}
