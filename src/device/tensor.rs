//! Tensors: an address with shape and dtype.

use base::DType;
use half::{bf16, f16};

/// Memory in which a tensor is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// Device memory.
    #[default]
    Device,
    /// Host memory, for data that does not fit on the device.
    Host,
}

/// Row-major matrix in the memory of a device or its host. It does not own its memory; arenas do.
///
/// A tensor is a promise of the layout that made it, on which all `unsafe` code that follows its
/// address relies: `bytes` bytes at `addr` remain mapped while ops use them. Backends release their
/// memory only when they are dropped; its first content is the system's or the driver's, and any bits
/// are a number of any dtype. `at` checks the alignment; `row_range` and `span` keep it, and remain
/// inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    addr: usize,
    home: Home,
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
}

/// Destination of an op: overwritten (`set`) or accumulated into (`add`).
#[derive(Clone, Copy, Debug)]
pub struct Out<T = Tensor> {
    pub to: T,
    pub add: bool,
}

impl Tensor {
    /// Matrix at an address of the device. Only layouts (arena, parameters) know addresses.
    pub fn at(addr: usize, rows: usize, cols: usize, dtype: DType) -> Tensor {
        assert!(addr.is_multiple_of(dtype.size()), "{dtype} at address {addr:#x}");
        Tensor { addr, home: Home::Device, rows, cols, dtype }
    }

    /// The same address in another memory.
    pub fn in_memory(self, home: Home) -> Tensor {
        Tensor { home, ..self }
    }

    pub fn home(self) -> Home {
        self.home
    }

    pub fn addr(self) -> usize {
        self.addr
    }

    /// Overwrites: `=`.
    pub fn set(self) -> Out {
        Out { to: self, add: false }
    }

    /// Accumulates: `+=`.
    pub fn add(self) -> Out {
        Out { to: self, add: true }
    }

    /// Overwrites, unless this is `same`, which an op has already written.
    pub fn set_unless(self, same: Tensor) -> Option<Out> {
        (self.addr != same.addr).then_some(self.set())
    }

    pub fn numel(self) -> usize {
        self.rows * self.cols
    }

    pub fn bytes(self) -> usize {
        self.numel() * self.dtype.size()
    }

    /// Whether the two have bytes in common.
    pub fn overlaps(self, other: Tensor) -> bool {
        let end = (self.addr + self.bytes()).min(other.addr + other.bytes());
        self.addr.max(other.addr) < end
    }

    /// Rows `first .. first + rows`.
    pub fn row_range(self, first: usize, rows: usize) -> Tensor {
        assert!(first + rows <= self.rows, "rows {first}+{rows} of {}", self.rows);
        Tensor { addr: self.addr + first * self.cols * self.dtype.size(), rows, ..self }
    }

    /// Elements `first .. first + len` as one row.
    pub fn span(self, first: usize, len: usize) -> Tensor {
        assert!(first + len <= self.numel(), "elements {first}+{len} of {}", self.numel());
        Tensor { addr: self.addr + first * self.dtype.size(), rows: 1, cols: len, ..self }
    }

    /// Elements of the tensor. Only if device memory is host memory.
    ///
    /// # Safety
    /// The memory must be live, host-addressable, and not written while the slice is held.
    pub unsafe fn host<'a, T: Element>(self) -> &'a [T] {
        assert_eq!(self.dtype, T::DTYPE);
        // SAFETY: `numel` elements of this dtype, aligned (`at`); the caller keeps the memory live and
        // unwritten.
        unsafe { std::slice::from_raw_parts(self.addr as *const T, self.numel()) }
    }

    /// Mutable elements of the tensor. Only if device memory is host memory.
    ///
    /// # Safety
    /// As for `host`, and no other code may read or write them while the slice is held.
    pub unsafe fn host_mut<'a, T: Element>(self) -> &'a mut [T] {
        assert_eq!(self.dtype, T::DTYPE);
        // SAFETY: `numel` elements of this dtype, aligned (`at`); the caller keeps the memory live and
        // accesses it by this slice only.
        unsafe { std::slice::from_raw_parts_mut(self.addr as *mut T, self.numel()) }
    }
}

/// Rust type that corresponds to a dtype.
pub trait Element: bytemuck::Pod + Send + Sync {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => { $(impl Element for $type {
        const DTYPE: DType = DType::$dtype;
    })* };
}
elements!(f32 => F32, bf16 => BF16, f16 => F16, u8 => U8, i32 => I32, i64 => I64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_overlap_where_they_share_a_byte() {
        let x = Tensor::at(4096, 2, 8, DType::F32);
        let [first, second] = [0, 1].map(|row| x.row_range(row, 1));
        assert!(x.overlaps(x) && x.overlaps(second) && first.overlaps(x));
        assert!(!first.overlaps(second) && !second.overlaps(first));
        let byte = Tensor::at(4096 + 63, 1, 1, DType::U8);
        assert!(byte.overlaps(second) && !byte.overlaps(first));
        assert!(!Tensor::at(4100, 1, 0, DType::F32).overlaps(x), "it has no byte");
    }

    #[test]
    #[should_panic(expected = "f32 at address 0x1002")]
    fn an_address_is_aligned_to_its_dtype() {
        Tensor::at(4098, 1, 1, DType::F32);
    }
}
