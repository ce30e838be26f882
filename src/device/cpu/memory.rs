//! Raw memory: regions, scratch, and the blocks through which ops access tensors.
//!
//! No reference to a tensor's memory outlives a call in this module (`with_block` runs the work
//! inside the call), so an output may overlap its input. Ops must ensure that concurrent tasks
//! write disjoint elements.

use super::Cpu;
use super::math::{narrow, widen};
use crate::{Home, Out, OutOfMemory, Tensor};
use base::memory::available;
use base::{Bytes, DType};
use half::f16;
use half::slice::HalfFloatSliceExt;
use memmap2::MmapMut;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::Instant;

/// Elements that an op processes at a time: five blocks fit into the L1 cache.
pub(super) const BLOCK: usize = 512;

/// Block of f32 on the stack.
pub(super) type Block = [f32; BLOCK];

/// Loads elements `at .. at + to.len()` of a float tensor.
pub(super) fn load(from: Tensor, at: usize, to: &mut [f32]) {
    assert!(at + to.len() <= from.numel(), "element {at}+{} of {}", to.len(), from.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no task writes it now.
    unsafe {
        match from.dtype {
            DType::F32 => {
                let from = (from.addr() as *const f32).add(at);
                if to.len() == BLOCK {
                    prefetch(from as usize + 4 * BLOCK * 2, 4 * BLOCK);
                }
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
            }
            DType::BF16 => {
                let from = (from.addr() as *const u16).add(at);
                widen(std::slice::from_raw_parts(from, to.len()), to);
            }
            DType::F16 => {
                let from = (from.addr() as *const f16).add(at);
                std::slice::from_raw_parts(from, to.len()).convert_to_f32_slice(to);
            }
            other => panic!("{other} where a float is expected"),
        }
    }
}

/// Prefetches the cache lines of bytes that are read soon. The processor's own prefetching stops at
/// every page, so one stream alone does not saturate memory.
fn prefetch(addr: usize, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (addr..addr + bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; an address that cannot be read is passed over.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line as *const i8) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (addr, bytes);
}

/// Overwrites elements `at .. at + from.len()` of a float tensor, rounding to nearest even.
pub(super) fn store(from: &[f32], to: Tensor, at: usize) {
    assert!(at + from.len() <= to.numel(), "element {at}+{} of {}", from.len(), to.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no other task touches it.
    unsafe {
        match to.dtype {
            DType::F32 => {
                let to = (to.addr() as *mut f32).add(at);
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            }
            DType::BF16 => {
                let to = (to.addr() as *mut u16).add(at);
                narrow(from, std::slice::from_raw_parts_mut(to, from.len()));
            }
            DType::F16 => {
                let to = (to.addr() as *mut f16).add(at);
                std::slice::from_raw_parts_mut(to, from.len()).convert_from_f32_slice(from);
            }
            other => panic!("{other} where a float is expected"),
        }
    }
}

/// Calls `with` on a block of a float tensor: in place if it is f32, so that memory is read while
/// the processor computes; otherwise on widened elements.
pub(super) fn with_block(x: Tensor, at: Range<usize>, with: impl FnOnce(&[f32])) {
    match x.dtype {
        DType::F32 => with_block_in(x, at, &mut [], with),
        _ => with_block_in(x, at, &mut [0.0; BLOCK], with),
    }
}

/// Like `with_block`, with the buffer for widened elements.
pub(super) fn with_block_in(
    x: Tensor,
    at: Range<usize>,
    block: &mut [f32],
    with: impl FnOnce(&[f32]),
) {
    if x.dtype == DType::F32 {
        assert!(at.end <= x.numel(), "elements {at:?} of {}", x.numel());
        let start = x.addr() as *const f32;
        // SAFETY: inside the tensor (above), whose memory its arena keeps; no task writes it now.
        return with(unsafe { std::slice::from_raw_parts(start.add(at.start), at.len()) });
    }
    load(x, at.start, &mut block[..at.len()]);
    with(&block[..at.len()]);
}

/// Calls `with` on the same block of three disjoint f32 tensors, to be changed in place.
pub(super) fn with_blocks_mut(
    xs: [Tensor; 3],
    at: Range<usize>,
    with: impl FnOnce([&mut [f32]; 3]),
) {
    let place = |x: Tensor| {
        assert!(x.dtype == DType::F32 && at.end <= x.numel(), "f32 elements {at:?} of {x:?}");
        x.addr() + 4 * at.start
    };
    let places = xs.map(place);
    let apart = |a: usize, b: usize| places[a].abs_diff(places[b]) >= 4 * at.len();
    assert!(apart(0, 1) && apart(0, 2) && apart(1, 2), "the tensors overlap");
    // SAFETY: inside the tensors (above), which do not overlap (above), and whose memory their arenas
    // keep; no other task touches these elements.
    let slice = |place| unsafe { std::slice::from_raw_parts_mut(place as *mut f32, at.len()) };
    with(places.map(slice));
}

/// Calls `with` on `words` words of four bytes (an f32, or two bf16) from each of these elements
/// on, in place. Returns false if they are not aligned like f32.
pub(super) fn with_words<const N: usize>(
    x: Tensor,
    starts: [usize; N],
    words: usize,
    with: impl FnOnce([&[f32]; N]),
) -> bool {
    let size = x.dtype.size();
    let fits = starts.iter().all(|start| start * size + 4 * words <= x.bytes());
    assert!(fits, "{words} words from each of {starts:?} of {x:?}");
    let places = starts.map(|start| x.addr() + start * size);
    if places.iter().any(|place| place % align_of::<f32>() != 0) {
        return false;
    }
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no task writes it now.
    with(places.map(|place| unsafe { std::slice::from_raw_parts(place as *const f32, words) }));
    true
}

/// Rows of f32 that one task changes, part of a tensor or of scratch.
pub(super) struct Sums<'a> {
    start: *mut f32,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row to the next.
    pub width: usize,
    memory: PhantomData<&'a mut [f32]>,
}

impl<'a> Sums<'a> {
    /// Part of an f32 tensor. No other task may access it.
    pub fn of_tensor(x: Tensor, rows: Range<usize>, cols: Range<usize>) -> Sums<'a> {
        let inside = rows.end <= x.rows && cols.end <= x.cols;
        assert!(x.dtype == DType::F32 && inside, "f32 rows {rows:?}, columns {cols:?} of {x:?}");
        let start = (x.addr() as *mut f32).wrapping_add(rows.start * x.cols + cols.start);
        let (rows, cols) = (rows.len(), cols.len());
        Sums { start, rows, cols, width: x.cols, memory: PhantomData }
    }

    pub fn of_slice(x: &'a mut [f32], rows: usize, cols: usize, width: usize) -> Sums<'a> {
        assert!(cols <= width && x.len() >= rows * width, "{rows} rows of {width}");
        Sums { start: x.as_mut_ptr(), rows, cols, width, memory: PhantomData }
    }

    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows);
        // SAFETY: inside the memory (asserted where it was made), which this task alone changes.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(i * self.width), self.cols) }
    }

    /// Address of an element.
    pub fn at(&mut self, row: usize, col: usize) -> *mut f32 {
        assert!(row < self.rows && col < self.cols);
        self.start.wrapping_add(row * self.width + col)
    }
}

/// Pairs of bf16: each element from `low` on with the one from `high` on, or with 0.
pub(super) fn load_pairs(from: Tensor, low: usize, high: Option<usize>, to: &mut [f32]) {
    assert!(from.dtype == DType::BF16 && low.max(high.unwrap_or(0)) + to.len() <= from.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no task writes it now.
    let line =
        |at| unsafe { std::slice::from_raw_parts((from.addr() as *const u16).add(at), to.len()) };
    match high {
        Some(high) => super::math::pair(line(low), line(high), to),
        None => line(low).iter().zip(to).for_each(|(x, to)| *to = f32::from_bits(*x as u32)),
    }
}

/// Rounds the numbers of a block to a dtype.
pub(super) fn round(dtype: DType, x: &mut [f32]) {
    match dtype {
        DType::F32 => {}
        DType::BF16 => {
            let mut bits = [0; BLOCK];
            let bits = &mut bits[..x.len()];
            narrow(x, bits);
            widen(bits, x);
        }
        DType::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let halves = &mut halves[..x.len()];
            halves.convert_from_f32_slice(x);
            halves.convert_to_f32_slice(x);
        }
        other => panic!("{other} where a float is expected"),
    }
}

/// Stores a block (at most `BLOCK` elements): overwrites or accumulates, according to its `Out`.
pub(super) fn put(from: &mut [f32], to: Out, at: usize) {
    if to.add && to.to.dtype == DType::F32 {
        assert!(at + from.len() <= to.to.numel(), "elements {at}+{} of {:?}", from.len(), to.to);
        let start = (to.to.addr() as *mut f32).wrapping_add(at);
        // SAFETY: inside the tensor (above), whose memory its arena keeps; no other task touches it.
        return super::math::add(from, unsafe {
            std::slice::from_raw_parts_mut(start, from.len())
        });
    }
    if to.add {
        let mut old = [0.0; BLOCK];
        let old = &mut old[..from.len()];
        load(to.to, at, old);
        super::math::add(old, from);
    }
    store(from, to.to, at);
}

/// Reads one f32 of a tensor.
pub(super) fn scalar(from: Tensor, at: usize) -> f32 {
    let mut one = [0.0];
    load(from, at, &mut one);
    one[0]
}

/// Reads one i32 of a tensor.
pub(super) fn integer(from: Tensor, at: usize) -> i32 {
    assert!(from.dtype == DType::I32 && at < from.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no op writes integers.
    unsafe { (from.addr() as *const i32).add(at).read() }
}

/// Reads an i64 [1, 1] tensor.
pub(super) fn long(from: Tensor) -> i64 {
    assert!(from.dtype == DType::I64 && from.numel() == 1);
    // SAFETY: as in `integer`.
    unsafe { (from.addr() as *const i64).read() }
}

/// Loads the bits of elements `at .. at + to.len()` of a float tensor.
pub(super) fn load_bits(from: Tensor, at: usize, to: &mut [u32]) {
    assert!(at + to.len() <= from.numel(), "element {at}+{} of {}", to.len(), from.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no task writes it now.
    unsafe {
        match from.dtype {
            DType::F32 => {
                let from = (from.addr() as *const u32).add(at);
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
            }
            DType::BF16 | DType::F16 => {
                let from = (from.addr() as *const u16).add(at);
                let from = std::slice::from_raw_parts(from, to.len());
                to.iter_mut().zip(from).for_each(|(to, bits)| *to = *bits as u32);
            }
            DType::U8 => {
                let from = (from.addr() as *const u8).add(at);
                let from = std::slice::from_raw_parts(from, to.len());
                to.iter_mut().zip(from).for_each(|(to, byte)| *to = *byte as u32);
            }
            other => panic!("{other} where a float is expected"),
        }
    }
}

/// Loads bytes `at .. at + to.len()` of a byte tensor.
pub(super) fn load_bytes(from: Tensor, at: usize, to: &mut [u8]) {
    assert!(from.dtype == DType::U8 && at + to.len() <= from.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no task writes it now.
    unsafe {
        std::ptr::copy_nonoverlapping((from.addr() as *const u8).add(at), to.as_mut_ptr(), to.len())
    }
}

/// Overwrites bytes `at .. at + from.len()` of a byte tensor.
pub(super) fn store_bytes(from: &[u8], to: Tensor, at: usize) {
    assert!(to.dtype == DType::U8 && at + from.len() <= to.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no other task touches it.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), (to.addr() as *mut u8).add(at), from.len())
    }
}

/// Overwrites one i64 of a tensor.
pub(super) fn store_long(value: i64, to: Tensor, at: usize) {
    assert!(to.dtype == DType::I64 && at < to.numel());
    // SAFETY: inside the tensor (above), whose memory its arena keeps; no task touches it now.
    unsafe { (to.addr() as *mut i64).add(at).write(value) }
}

/// Fills `len` elements of a tensor with zero bytes, starting at element `at`.
pub(super) fn clear(x: Tensor, at: usize, len: usize) {
    assert!(at + len <= x.numel());
    let size = x.dtype.size();
    // SAFETY: inside the tensor (above); no other task touches these elements.
    unsafe { std::ptr::write_bytes((x.addr() as *mut u8).add(at * size), 0, len * size) }
}

pub(super) fn upload(from: &[u8], to: Tensor) {
    assert_eq!(from.len(), to.bytes(), "bytes uploaded");
    // SAFETY: the tensor has as many bytes, and its arena keeps them; no task touches them now.
    unsafe { std::ptr::copy(from.as_ptr(), to.addr() as *mut u8, from.len()) }
}

/// Bytes that a thread copies at a time: a huge page, so that two threads do not wait for the same
/// page on first touch.
const PIECE: usize = 2 << 20;

/// Like `upload`, with all threads.
pub(super) fn upload_in_pieces(cpu: &Cpu, from: &[u8], to: Tensor) {
    assert_eq!(from.len(), to.bytes(), "bytes uploaded");
    let each = PIECE / to.dtype.size();
    cpu.each(to.numel().div_ceil(each), |i| {
        let part = to.span(i * each, each.min(to.numel() - i * each));
        upload(&from[i * PIECE..][..part.bytes()], part);
    });
}

pub(super) fn download(from: Tensor, to: &mut [u8]) {
    assert_eq!(to.len(), from.bytes(), "bytes downloaded");
    // SAFETY: as in `upload`.
    unsafe { std::ptr::copy(from.addr() as *const u8, to.as_mut_ptr(), to.len()) }
}

/// Copies a tensor of any dtype to one of equal size, in pieces with one thread each.
pub(super) fn copy_bytes(cpu: &Cpu, from: Tensor, to: Tensor) {
    assert_eq!((from.bytes(), from.dtype), (to.bytes(), to.dtype), "bytes copied");
    cpu.each(from.bytes().div_ceil(PIECE), |i| {
        let (at, len) = (i * PIECE, PIECE.min(from.bytes() - i * PIECE));
        let (from, to) = (from.addr() as *const u8, to.addr() as *mut u8);
        // SAFETY: inside both tensors, whose memory their arenas keep; the piece is this task's.
        unsafe { std::ptr::copy(from.add(at), to.add(at), len) }
    });
}

/// Downloads in flight, oldest first. On the CPU they complete at once.
#[derive(Default)]
pub(super) struct Downloads(RefCell<VecDeque<(Vec<u8>, Instant)>>);

impl Downloads {
    pub fn download_async(&self, from: Tensor) {
        let mut bytes = vec![0; from.bytes()];
        download(from, &mut bytes);
        self.0.borrow_mut().push_back((bytes, Instant::now()));
    }

    pub fn finish_download(&self, to: &mut [u8]) -> Instant {
        let (bytes, arrived) = self.0.borrow_mut().pop_front().expect("something was sent");
        to.copy_from_slice(&bytes);
        arrived
    }
}

/// Zeroed memory, in huge pages if the kernel has them: fewer page faults and TLB misses.
fn in_huge_pages(bytes: usize) -> std::io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Memory mapped for arenas. Untouched pages remain free.
#[derive(Default)]
pub(super) struct Regions {
    maps: RefCell<Vec<MmapMut>>,
    /// Bytes free at the first reservation, minus those reserved since (touched or not).
    left: Cell<Option<u64>>,
}

impl Regions {
    pub fn reserve(&self, bytes: usize, home: Home) -> Result<usize, OutOfMemory> {
        let left = self.left.get().or_else(|| available().map(|left| left.0));
        let asked = Bytes(bytes as u64);
        if left.is_some_and(|left| left < asked.0) {
            return Err(OutOfMemory { home, asked, available: left.map(Bytes) });
        }
        let mut map = in_huge_pages(bytes.max(1)).map_err(|_| OutOfMemory {
            home,
            asked,
            available: left.map(Bytes),
        })?;
        self.left.set(left.map(|left| left - asked.0));
        let base = map.as_mut_ptr() as usize;
        self.maps.borrow_mut().push(map);
        Ok(base)
    }
}

/// Scratch shared by the ops of one backend, one op at a time.
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
            *map = Some(in_huge_pages(bytes).expect("memory for an op's scratch"));
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

/// Scratch of an op that its tasks share.
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
        unsafe { std::slice::from_raw_parts_mut((self.base as *mut f32).add(start), len) }
    }
}

/// Scratch of an op, divided into equal parts.
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
        unsafe { std::slice::from_raw_parts_mut(start.add(i * self.stride), self.len) }
    }

    /// Part `i` as a tensor of one row.
    pub fn tensor(&self, i: usize) -> Tensor {
        assert!(i < self.parts);
        Tensor::at(self.base + i * self.stride * 4, 1, self.len, DType::F32)
    }
}
