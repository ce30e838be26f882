//! Raw memory: regions, and the blocks through which ops access tensors.
//!
//! No reference to a tensor's memory outlives a call in this module (`with_block` runs the work
//! inside the call), so an output may overlap its input. The `unsafe` code below relies on a
//! promise of its callers, the ops:
//! * `Tensor` keeps its own promise (`crate::tensor`): aligned, mapped, initialised;
//! * concurrent tasks of an op write disjoint elements, and read none that another one writes;
//! * the slice that a call fills or stores is not part of the same elements.

use super::Cpu;
use super::math::{narrow, widen};
use crate::tensor::Element;
use crate::{MemoryKind, Out, OutOfMemory, Tensor};
use base::memory::available;
use base::{Bytes, DType, Moment};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use memmap2::MmapMut;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;

/// Elements that an op processes at a time: five blocks fit into the L1 cache.
pub(super) const BLOCK: usize = 512;

/// Block of f32 on the stack.
pub(super) type Block = [f32; BLOCK];

/// Calls `with` on elements of a tensor.
#[inline(always)]
fn read<T: Element, R>(x: Tensor, at: Range<usize>, with: impl FnOnce(&[T]) -> R) -> R {
    assert!(x.dtype == T::DTYPE && at.end <= x.numel(), "{} elements {at:?} of {x:?}", T::DTYPE);
    let start = (x.addr() as *const T).wrapping_add(at.start);
    // SAFETY: inside the tensor (above), which is aligned and mapped (`Tensor`); the slice ends with
    // the call, and no task writes these elements meanwhile (this module's promise).
    with(unsafe { std::slice::from_raw_parts(start, at.len()) })
}

/// Calls `with` on elements of a tensor, to be changed in place.
#[inline(always)]
fn change<T: Element, R>(x: Tensor, at: Range<usize>, with: impl FnOnce(&mut [T]) -> R) -> R {
    assert!(x.dtype == T::DTYPE && at.end <= x.numel(), "{} elements {at:?} of {x:?}", T::DTYPE);
    let start = (x.addr() as *mut T).wrapping_add(at.start);
    // SAFETY: inside the tensor (above), which is aligned and mapped (`Tensor`); the slice ends with
    // the call, and no other task accesses these elements meanwhile (this module's promise).
    with(unsafe { std::slice::from_raw_parts_mut(start, at.len()) })
}

/// Loads elements `at .. at + to.len()` of a float tensor.
pub(super) fn load(from: Tensor, at: usize, to: &mut [f32]) {
    let place = at..at + to.len();
    match from.dtype {
        DType::F32 => {
            if to.len() == BLOCK {
                prefetch(from.addr() + 4 * (at + 2 * BLOCK), 4 * BLOCK);
            }
            read(from, place, |x: &[f32]| to.copy_from_slice(x));
        }
        DType::BF16 => read(from, place, |x: &[bf16]| widen(x.reinterpret_cast(), to)),
        DType::F16 => read(from, place, |x: &[f16]| x.convert_to_f32_slice(to)),
        other => panic!("{other} where a float is expected"),
    }
}

/// Prefetches the cache lines of bytes that are read soon. The processor's own prefetching stops at
/// every page, so one stream alone does not saturate memory.
fn prefetch(addr: usize, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (addr..addr + bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, of SSE, which every x86-64 has; an unmapped address raises no fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line as *const i8) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (addr, bytes);
}

/// Overwrites elements `at .. at + from.len()` of a float tensor, rounding to nearest even.
pub(super) fn store(from: &[f32], to: Tensor, at: usize) {
    let place = at..at + from.len();
    match to.dtype {
        DType::F32 => change(to, place, |x: &mut [f32]| x.copy_from_slice(from)),
        DType::BF16 => change(to, place, |x: &mut [bf16]| narrow(from, x.reinterpret_cast_mut())),
        DType::F16 => change(to, place, |x: &mut [f16]| x.convert_from_f32_slice(from)),
        other => panic!("{other} where a float is expected"),
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
        return read(x, at, with);
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
    let places = xs.map(|x| x.addr() + 4 * at.start);
    let apart = |a: usize, b: usize| places[a].abs_diff(places[b]) >= 4 * at.len();
    assert!(apart(0, 1) && apart(0, 2) && apart(1, 2), "the tensors overlap");
    let [a, b, c] = xs;
    change(a, at.clone(), |a| {
        change(b, at.clone(), |b| change(c, at.clone(), |c| with([a, b, c])))
    });
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
    let fits = starts
        .iter()
        .all(|start| start * size + 4 * words <= x.bytes());
    assert!(fits, "{words} words from each of {starts:?} of {x:?}");
    let places = starts.map(|start| x.addr() + start * size);
    if places.iter().any(|place| place % align_of::<f32>() != 0) {
        return false;
    }
    // SAFETY: inside the tensor and aligned for f32 (above), of which every bit pattern is one; the
    // slices end with the call, and no task writes these elements meanwhile (this module's promise).
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
    /// Part of an f32 tensor. No other task may access it while the sums exist.
    pub fn from_tensor(x: Tensor, rows: Range<usize>, cols: Range<usize>) -> Sums<'a> {
        let inside = rows.end <= x.rows && cols.end <= x.cols;
        assert!(x.dtype == DType::F32 && inside, "f32 rows {rows:?}, columns {cols:?} of {x:?}");
        let start = (x.addr() as *mut f32).wrapping_add(rows.start * x.cols + cols.start);
        let rows = rows.len();
        let cols = cols.len();
        Sums { start, rows, cols, width: x.cols, memory: PhantomData }
    }

    pub fn from_slice(x: &'a mut [f32], rows: usize, cols: usize, width: usize) -> Sums<'a> {
        assert!(cols <= width && x.len() >= rows * width, "{rows} rows of {width}");
        Sums { start: x.as_mut_ptr(), rows, cols, width, memory: PhantomData }
    }

    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows);
        // SAFETY: row `i` is inside the tensor or slice (asserted where this was made), which is this
        // task's alone; the borrow of `self` keeps a second row from being held.
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
    read(from, low..low + to.len(), |low: &[bf16]| {
        let low = low.reinterpret_cast();
        let Some(high) = high else {
            return low
                .iter()
                .zip(to)
                .for_each(|(x, to)| *to = f32::from_bits(*x as u32));
        };
        read(from, high..high + to.len(), |high: &[bf16]| {
            super::math::pair(low, high.reinterpret_cast(), to);
        });
    });
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
        return change(to.to, at..at + from.len(), |x: &mut [f32]| super::math::add(from, x));
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
    read(from, at..at + 1, |x: &[i32]| x[0])
}

/// Reads an i64 [1, 1] tensor.
pub(super) fn long(from: Tensor) -> i64 {
    assert_eq!(from.numel(), 1, "one i64");
    read(from, 0..1, |x: &[i64]| x[0])
}

/// Loads the bits of elements `at .. at + to.len()` of a float tensor.
pub(super) fn load_bits(from: Tensor, at: usize, to: &mut [u32]) {
    let place = at..at + to.len();
    match from.dtype {
        DType::F32 => read(from, place, |x: &[f32]| to.copy_from_slice(bytemuck::cast_slice(x))),
        DType::BF16 => read(from, place, |x: &[bf16]| widen_bits(x.reinterpret_cast(), to)),
        DType::F16 => read(from, place, |x: &[f16]| widen_bits(x.reinterpret_cast(), to)),
        DType::U8 => read(from, place, |x: &[u8]| widen_bits(x, to)),
        other => panic!("{other} where a float is expected"),
    }
}

fn widen_bits<T: Copy + Into<u32>>(from: &[T], to: &mut [u32]) {
    to.iter_mut()
        .zip(from)
        .for_each(|(to, bits)| *to = (*bits).into());
}

/// Loads bytes `at .. at + to.len()` of a byte tensor.
pub(super) fn load_bytes(from: Tensor, at: usize, to: &mut [u8]) {
    read(from, at..at + to.len(), |x: &[u8]| to.copy_from_slice(x));
}

/// Overwrites bytes `at .. at + from.len()` of a byte tensor.
pub(super) fn store_bytes(from: &[u8], to: Tensor, at: usize) {
    change(to, at..at + from.len(), |x: &mut [u8]| x.copy_from_slice(from));
}

/// Overwrites one i64 of a tensor.
pub(super) fn store_long(value: i64, to: Tensor, at: usize) {
    change(to, at..at + 1, |x: &mut [i64]| x[0] = value);
}

/// Fills `len` elements of a tensor with zero bytes, starting at element `at`.
pub(super) fn clear(x: Tensor, at: usize, len: usize) {
    assert!(at + len <= x.numel());
    let size = x.dtype.size();
    // SAFETY: inside the tensor (above), in bytes, of which zeros are a value of every dtype; no other
    // task accesses these elements meanwhile (this module's promise).
    unsafe { std::ptr::write_bytes((x.addr() as *mut u8).add(at * size), 0, len * size) }
}

pub(super) fn upload(from: &[u8], to: Tensor) {
    assert_eq!(from.len(), to.bytes(), "bytes uploaded");
    // SAFETY: the tensor has as many bytes (above), mapped as `Tensor` promises. `copy` lets `from` be
    // host memory of another tensor; no other task accesses the destination meanwhile.
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
    // SAFETY: the tensor has as many bytes (above), mapped as `Tensor` promises, and no task writes them
    // meanwhile; `copy` lets `to` be host memory of another tensor.
    unsafe { std::ptr::copy(from.addr() as *const u8, to.as_mut_ptr(), to.len()) }
}

/// Copies a tensor of any dtype to one of equal size, in pieces with one thread each.
pub(super) fn copy_bytes(cpu: &Cpu, from: Tensor, to: Tensor) {
    assert_eq!((from.bytes(), from.dtype), (to.bytes(), to.dtype), "bytes copied");
    assert!(from.addr() == to.addr() || !from.overlaps(to), "{from:?} overlaps {to:?}");
    cpu.each(from.bytes().div_ceil(PIECE), |i| {
        let at = i * PIECE;
        let len = PIECE.min(from.bytes() - i * PIECE);
        let from = from.addr() as *const u8;
        let to = to.addr() as *mut u8;
        // SAFETY: piece `i` is inside both tensors, which have equal sizes (above). Only this task
        // accesses it: the tensors are apart, or the same, which `copy` permits.
        unsafe { std::ptr::copy(from.add(at), to.add(at), len) }
    });
}

/// Downloads in flight, oldest first. On the CPU they complete at once.
#[derive(Default)]
pub(super) struct Downloads(RefCell<VecDeque<(Vec<u8>, Moment)>>);

impl Downloads {
    pub fn download_async(&self, from: Tensor) {
        let mut bytes = vec![0; from.bytes()];
        download(from, &mut bytes);
        self.0.borrow_mut().push_back((bytes, Moment::now()));
    }

    pub fn finish_download(&self, to: &mut [u8]) -> Moment {
        let (bytes, arrived) = self.0.borrow_mut().pop_front().expect("something was sent");
        to.copy_from_slice(&bytes);
        arrived
    }
}

/// Zeroed memory, in huge pages if the kernel has them: fewer page faults and TLB misses.
pub(super) fn in_huge_pages(bytes: usize) -> std::io::Result<MmapMut> {
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
    /// Bytes reserved as device memory.
    on_device: Cell<u64>,
}

impl Regions {
    pub fn reserved(&self) -> Bytes {
        Bytes(self.on_device.get())
    }

    pub fn reserve(&self, bytes: usize, memory: MemoryKind) -> Result<usize, OutOfMemory> {
        let left = self.left.get().or_else(|| available().map(|left| left.0));
        let asked = Bytes(bytes as u64);
        if left.is_some_and(|left| left < asked.0) {
            return Err(OutOfMemory { memory, asked, available: left.map(Bytes) });
        }
        let mut map = in_huge_pages(bytes.max(1)).map_err(|_| OutOfMemory {
            memory,
            asked,
            available: left.map(Bytes),
        })?;
        self.left.set(left.map(|left| left - asked.0));
        if memory == MemoryKind::Device {
            self.on_device.set(self.on_device.get() + asked.0);
        }
        let base = map.as_mut_ptr() as usize;
        self.maps.borrow_mut().push(map);
        Ok(base)
    }
}
