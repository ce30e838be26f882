//! Bump allocation from regions reserved at start-up. Nothing is freed before the run ends.

use super::{Backend, MemoryKind, OutOfMemory, Tensor};
use base::DType;
use std::cell::Cell;

/// Alignment of every tensor: a multiple of a cache line, a 128-byte GPU transaction, and an AMX
/// tile.
const ALIGN: usize = 256;

/// Region of device or host memory, allocated from the bottom up.
pub struct Arena {
    memory: MemoryKind,
    base: usize,
    capacity: usize,
    top: Cell<usize>,
    peak: Cell<usize>,
}

impl Arena {
    /// Reserves `capacity` bytes of device memory.
    pub fn new(backend: &dyn Backend, capacity: usize) -> Result<Arena, OutOfMemory> {
        Ok(Arena::at(MemoryKind::Device, backend.reserve(capacity)?, capacity))
    }

    /// Reserves `capacity` bytes of host memory; nothing for an arena of 0 bytes.
    pub fn on_host(backend: &dyn Backend, capacity: usize) -> Result<Arena, OutOfMemory> {
        let base = if capacity == 0 { ALIGN } else { backend.reserve_host(capacity)? };
        Ok(Arena::at(MemoryKind::Host, base, capacity))
    }

    /// Arena without memory. After a layout in it, `peak` is the size to reserve.
    pub fn measuring() -> Arena {
        Arena::measuring_in(MemoryKind::Device)
    }

    /// Measuring arena for a given memory.
    pub fn measuring_in(memory: MemoryKind) -> Arena {
        Arena::at(memory, ALIGN, usize::MAX / 2)
    }

    /// Arena in the memory of a tensor.
    pub fn over(x: Tensor) -> Arena {
        Arena::at(x.memory(), x.addr(), x.bytes())
    }

    fn at(memory: MemoryKind, base: usize, capacity: usize) -> Arena {
        Arena { memory, base, capacity, top: Cell::new(0), peak: Cell::new(0) }
    }

    /// Bytes that a matrix of `numel` elements takes from an arena.
    pub fn reserved_bytes(numel: usize, dtype: DType) -> usize {
        (numel * dtype.size()).next_multiple_of(ALIGN)
    }

    /// A matrix of uninitialised elements.
    pub fn matrix(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let addr = self.top.get();
        let end = addr + Arena::reserved_bytes(rows * cols, dtype);
        assert!(end <= self.capacity, "arena is full: {end} > {}", self.capacity);
        self.top.set(end);
        self.peak.set(self.peak.get().max(end));
        Tensor::at(self.base + addr, rows, cols, dtype).in_memory(self.memory)
    }

    /// Runs `lay`, then frees its allocations: the next layout overlaps the same bytes.
    pub fn temporary<T>(&self, lay: impl FnOnce(&Arena) -> T) -> T {
        let mark = self.top.get();
        let laid = lay(self);
        self.top.set(mark);
        laid
    }

    /// Places several layouts over the same bytes. Only one of them may be in use at a time.
    pub fn overlay<T>(&self, lays: impl Iterator<Item = T>) -> Vec<T> {
        let start = self.top.get();
        let mut end = self.top.get();
        let laid = lays
            .inspect(|_| {
                end = end.max(self.top.get());
                self.top.set(start);
            })
            .collect();
        self.top.set(end);
        laid
    }

    /// Maximum number of bytes ever in use.
    pub fn peak(&self) -> usize {
        self.peak.get()
    }
}
