//! Description, identity and free memory of an opened GPU.

use super::device::Device;
use super::{Cuda, Launched};
use crate::{Identity, Tensor};
use base::{Bytes, DType};
use std::sync::Arc;

impl Cuda {
    /// Description of GPU, driver and library, for messages.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Number of products whose algorithms were timed since the GPU was opened.
    pub fn timed(&self) -> usize {
        self.products.timed()
    }

    /// Identity of the GPU.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Free and total memory.
    pub fn free_memory(&self) -> (Bytes, Bytes) {
        let (free, total) = self.device.memory();
        (Bytes(free as u64), Bytes(total as u64))
    }

    /// Device, for groups of ranks. Their collectives are in order with the ops.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// f32 [1, n] in the scratch of ops, for callers that run no op meanwhile. Panics if the scratch
    /// is smaller.
    pub fn scratch_tensor(&self, n: usize) -> Tensor {
        Tensor::at(self.scratch(n * size_of::<f32>()), 1, n, DType::F32)
    }

    /// Work enqueued so far.
    pub fn launched(&self) -> Launched {
        self.device.launched()
    }
}
