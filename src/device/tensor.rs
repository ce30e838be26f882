//! A tensor is an address.

use base::DType;
use half::{bf16, f16};

/// Which memory a tensor lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// The device's.
    #[default]
    Device,
    /// Its host's: for what the device has no room for.
    Host,
}

/// A row-major matrix somewhere in a device's memory, or its host's. An address, not an owner:
/// arenas own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    addr: usize,
    home: Home,
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
}

/// Where an op writes, and whether it overwrites (`set`) or accumulates (`add`).
#[derive(Clone, Copy, Debug)]
pub struct Out {
    pub to: Tensor,
    pub add: bool,
}

impl Tensor {
    /// The matrix at an address of the device. Only layouts (arena, parameters) know addresses.
    pub fn at(addr: usize, rows: usize, cols: usize, dtype: DType) -> Tensor {
        Tensor { addr, home: Home::Device, rows, cols, dtype }
    }

    /// The same address in a memory.
    pub fn in_memory(self, home: Home) -> Tensor {
        Tensor { home, ..self }
    }

    pub fn home(self) -> Home {
        self.home
    }

    pub fn addr(self) -> usize {
        self.addr
    }

    /// Overwrite: `=`.
    pub fn set(self) -> Out {
        Out { to: self, add: false }
    }

    /// Accumulate: `+=`.
    pub fn add(self) -> Out {
        Out { to: self, add: true }
    }

    pub fn numel(self) -> usize {
        self.rows * self.cols
    }

    pub fn bytes(self) -> usize {
        self.numel() * self.dtype.size()
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

    /// The elements, where the device's memory is the host's.
    ///
    /// # Safety
    /// The memory must be live, host-addressable, and not written while the slice is held.
    pub unsafe fn host<'a, T: Element>(self) -> &'a [T] {
        assert_eq!(self.dtype, T::DTYPE);
        unsafe { std::slice::from_raw_parts(self.addr as *const T, self.numel()) }
    }

    /// The elements, to be written, where the device's memory is the host's.
    ///
    /// # Safety
    /// As `host`, and nobody else may read or write them while the slice is held.
    pub unsafe fn host_mut<'a, T: Element>(self) -> &'a mut [T] {
        assert_eq!(self.dtype, T::DTYPE);
        unsafe { std::slice::from_raw_parts_mut(self.addr as *mut T, self.numel()) }
    }
}

/// A Rust type that is a dtype.
pub trait Element: bytemuck::Pod + Send + Sync {
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
}
impl Element for f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
