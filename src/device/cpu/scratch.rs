//! Scratch memory of ops, divided among their tasks.

use super::memory::allocate_huge_pages;
use crate::Tensor;
use crate::allocator::abort_refused;
use base::DType;
use memmap2::MmapMut;
use std::cell::RefCell;

/// Scratch shared by the ops of one backend, one op at a time: `with` borrows it, and panics if it
/// is in use.
#[derive(Default)]
pub(super) struct Workspace {
    map: RefCell<Option<MmapMut>>,
}

/// Alignment of scratch, in elements: a cache line.
const LINE: usize = 16;

impl Workspace {
    pub fn bytes(&self) -> usize {
        self.map.borrow().as_ref().map_or(0, |map| map.len())
    }

    /// Calls `with` on uninitialised scratch of `parts` times `len` f32, each part on its own cache
    /// lines.
    pub fn with<R>(&self, parts: usize, len: usize, with: impl FnOnce(&Scratch) -> R) -> R {
        let stride = len.next_multiple_of(LINE);
        let bytes = (parts * stride * size_of::<f32>()).max(1);
        let mut map = self.map.borrow_mut();
        if map.as_ref().is_none_or(|map| map.len() < bytes) {
            // Frees the smaller one first.
            *map = None;
            *map = Some(allocate_huge_pages(bytes).unwrap_or_else(|_| abort_refused(bytes)));
        }
        let base = map.as_mut().expect("just mapped").as_mut_ptr() as usize;
        with(&Scratch { base, parts, len, stride })
    }

    /// Calls `with` on two shared pieces of scratch, and on `parts` times `len` f32 more.
    pub fn with_shared<R>(
        &self,
        shared: [usize; 2],
        parts: usize,
        len: usize,
        with: impl FnOnce([&Shared; 2], &Scratch) -> R,
    ) -> R {
        let [first, second] = shared.map(|len| len.next_multiple_of(LINE));
        let stride = len.next_multiple_of(LINE);
        self.with(1, first + second + parts * stride, |all| {
            let place = |skipped| all.base + skipped * size_of::<f32>();
            let own = Scratch { base: place(first + second), parts, len, stride };
            let piece = |skipped, i: usize| Shared { base: place(skipped), len: shared[i] };
            with([&piece(0, 0), &piece(first, 1)], &own)
        })
    }
}

/// Piece of scratch of an op that its tasks share: `len` f32 at `base`, cut by `with_shared` from
/// the workspace's mapping.
pub(super) struct Shared {
    base: usize,
    len: usize,
}

impl Shared {
    /// # Safety
    /// No other task may write these elements while the slice is held, nor read them if it is
    /// written.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn range(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.len);
        // SAFETY: inside this piece (above), which is aligned, mapped and initialised (`Scratch`); the
        // caller's task alone writes these elements, and the workspace remains borrowed.
        unsafe { std::slice::from_raw_parts_mut((self.base as *mut f32).add(start), len) }
    }
}

/// Scratch of an op, divided into `parts` equal parts, `stride` f32 apart from `base` on.
///
/// Only `Workspace` makes these, inside its mapping: large enough for all parts, zeroed by the
/// system or holding f32 of earlier ops, and aligned to cache lines.
pub(super) struct Scratch {
    base: usize,
    parts: usize,
    len: usize,
    stride: usize,
}

impl Scratch {
    /// # Safety
    /// No other task may use part `i` while the slice is held.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, i: usize) -> &mut [f32] {
        assert!(i < self.parts);
        let start = self.base as *mut f32;
        // SAFETY: part `i` is one of those that `Workspace` made (above); parts do not overlap, as
        // `stride >= len`, and the caller's task alone uses this one.
        unsafe { std::slice::from_raw_parts_mut(start.add(i * self.stride), self.len) }
    }

    /// Part `i` as a tensor of one row.
    pub fn tensor(&self, i: usize) -> Tensor {
        assert!(i < self.parts);
        Tensor::at(self.base + i * self.stride * 4, 1, self.len, DType::F32)
    }
}
