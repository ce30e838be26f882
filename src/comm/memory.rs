//! Element access to host tensors: copies in and out, and sums.
//!
//! No reference to a tensor's memory outlives a call, so a part may overlap its whole. The `unsafe`
//! code below relies on `Tensor`'s promise, and on the callers, host groups: no other thread writes a
//! tensor while its collective reads it, or accesses one that its collective writes.

use base::DType;
use device::Tensor;
use half::{bf16, f16};
use parking_lot::Mutex;

/// Bytes of a frame, aligned for every dtype.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    words: Vec<u64>,
    len: usize,
}

impl Buffer {
    /// Reuses the memory for `len` bytes of unspecified content.
    fn resize(mut self, len: usize) -> Buffer {
        self.words.resize(len.div_ceil(8), 0);
        Buffer { len, ..self }
    }

    /// Bytes of allocated memory.
    fn capacity(&self) -> usize {
        self.words.capacity() * 8
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// Free buffers for reuse. Allocating memory costs more than copying into it.
#[derive(Default)]
pub struct Pool {
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    buffers: Vec<Buffer>,
    /// Their total capacity.
    bytes: usize,
}

impl Pool {
    /// Maximum bytes kept free: twice what may be in flight to a rank.
    const KEPT: usize = 16 << 20;

    /// Buffer of `len` bytes of unspecified content.
    pub fn take(&self, len: usize) -> Buffer {
        let mut free = self.free.lock();
        let buffer = free.buffers.pop().unwrap_or_default();
        free.bytes -= buffer.capacity();
        drop(free);
        buffer.resize(len)
    }

    /// Returns a buffer for reuse, unless enough are kept.
    pub fn give_back(&self, buffer: Buffer) {
        let mut free = self.free.lock();
        if free.bytes + buffer.capacity() <= Pool::KEPT {
            free.bytes += buffer.capacity();
            free.buffers.push(buffer);
        }
    }
}

/// Copies a tensor's elements to `to`, which has the same length.
pub fn read(from: Tensor, to: &mut Buffer) {
    // SAFETY: the tensor has `bytes` bytes, mapped as it promises; no thread writes them before the
    // slice ends, with this call.
    let bytes = unsafe { std::slice::from_raw_parts(from.addr() as *const u8, from.bytes()) };
    to.bytes_mut().copy_from_slice(bytes);
}

/// Overwrites a tensor's elements.
pub fn write(from: &Buffer, to: Tensor) {
    assert_eq!(from.len, to.bytes());
    // SAFETY: the tensor has as many bytes as the buffer (above), mapped as it promises. A buffer is
    // memory of its own, so the two do not overlap; no other thread accesses the tensor meanwhile.
    unsafe {
        std::ptr::copy_nonoverlapping(from.bytes().as_ptr(), to.addr() as *mut u8, from.len);
    }
}

/// Copies a tensor's elements. The two may overlap.
pub fn copy(from: Tensor, to: Tensor) {
    assert_eq!(from.bytes(), to.bytes());
    if from.addr() != to.addr() {
        // SAFETY: both tensors have as many bytes (above), mapped as they promise, and may overlap
        // (`ptr::copy`); no other thread accesses `to` or writes `from` meanwhile.
        unsafe {
            std::ptr::copy(from.addr() as *const u8, to.addr() as *mut u8, from.bytes());
        }
    }
}

/// x = Σ parts in order, where None means x itself.
pub fn sum(parts: &[Option<Buffer>], x: Tensor) {
    match x.dtype {
        DType::F32 => {
            // SAFETY: mapped as the tensor promises; the slice ends with this call, and no other
            // thread accesses the tensor before. The parts are buffers, memory of their own.
            let x = unsafe { x.host_mut::<f32>() };
            sum_as(parts, x, |v: f32| v as f64, |v| v as f32);
        }
        DType::BF16 => {
            // SAFETY: as above.
            let x = unsafe { x.host_mut::<bf16>() };
            sum_as(parts, x, bf16::to_f32, bf16::from_f32);
        }
        DType::F16 => {
            // SAFETY: as above.
            let x = unsafe { x.host_mut::<f16>() };
            sum_as(parts, x, f16::to_f32, f16::from_f32);
        }
        other => panic!("a sum of {other}"),
    }
}

/// Implementation of `sum` with accumulator A. Works in blocks, but adds the elements in the order
/// of `parts`, so the bits do not depend on how a tensor is split.
fn sum_as<T: bytemuck::Pod, A: Copy + Default + std::ops::AddAssign>(
    parts: &[Option<Buffer>],
    x: &mut [T],
    widen: impl Fn(T) -> A,
    round: impl Fn(A) -> T,
) {
    const BLOCK: usize = 512;
    for (number, block) in x.chunks_mut(BLOCK).enumerate() {
        let at = number * BLOCK;
        let mut sums = [A::default(); BLOCK];
        for (rank, part) in parts.iter().enumerate() {
            let values: &[T] = match part {
                Some(part) => &bytemuck::cast_slice(part.bytes())[at..at + block.len()],
                None => block,
            };
            match rank {
                0 => sums
                    .iter_mut()
                    .zip(values)
                    .for_each(|(sum, v)| *sum = widen(*v)),
                _ => sums
                    .iter_mut()
                    .zip(values)
                    .for_each(|(sum, v)| *sum += widen(*v)),
            }
        }
        block
            .iter_mut()
            .zip(&sums)
            .for_each(|(v, sum)| *v = round(*sum));
    }
}
