//! Attention for Hopper only: kernels that multiply by `wgmma` (`kernels/attention_hopper.cu`), and
//! the tensor maps through which the tensor memory accelerator copies tiles for them.
//!
//! Attention uses them if the user selects them, or if they give the results of the other kernels in
//! less time (`choice`).

use super::choice::Chosen;
use super::kernels::{Kernel, Kernels};
use crate::cuda::args::{self, TensorMap};
use crate::cuda::device::Device;
use crate::cuda::library::{Symbol, call};
use base::Problems;
use cudarc::driver::sys;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

/// Variable with the instructions of attention's products: mma, wgmma, or wgmma-pingpong, in which
/// forward's two warpgroups issue products alternately. Default: the fastest, by time.
pub const CHOICE: &str = "GPTRAIN_ATTENTION";

/// Compute capability of Hopper, times ten.
const CAPABILITY: i32 = 90;

/// Map of a tensor that a kernel does not read.
const NO_MAP: TensorMap = TensorMap { opaque: [0; 16] };

/// Rows per copy, as in the kernels' source.
const BOX: u32 = 64;

/// Tensor as a tensor map sees it: heads of `d` columns, `parts` of them in a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Extents {
    addr: u64,
    d: u64,
    parts: u64,
    seq: u64,
    samples: u64,
}

/// Selection of attention's kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    Wgmma,
    PingPong,
    /// Fastest of these and mma, by time.
    Timed,
}

/// Selected kernels, and the maps and choices made so far: every step has the same tensors.
pub struct Hopper {
    encode_tiled: Symbol,
    pub selection: Selection,
    pub choices: Chosen,
    maps: RefCell<HashMap<Extents, TensorMap>>,
}

impl Hopper {
    /// None if attention uses mma. Without a choice by the user, all kernels are timed if `timed`. An
    /// error if the user's choice needs another GPU or driver.
    pub fn select(
        choice: Option<&str>,
        timed: bool,
        device: &Device,
        capability: i32,
    ) -> Result<Option<Hopper>, Problems> {
        let refuse = |what: &str, remedy: &str| Err(Problems::one(CHOICE, what, remedy));
        let hopper = |encode_tiled, selection| {
            let choices = RefCell::default();
            let maps = RefCell::default();
            Ok(Some(Hopper { encode_tiled, selection, choices, maps }))
        };
        match (choice, device.encode_tiled) {
            (None, Some(encode_tiled)) if timed && capability == CAPABILITY => {
                hopper(encode_tiled, Selection::Timed)
            }
            (None | Some("mma"), _) => Ok(None),
            (Some("wgmma" | "wgmma-pingpong"), _) if capability != CAPABILITY => {
                refuse("wgmma needs a GPU of compute capability 9.0 (H100, H200)", "leave it out")
            }
            (Some("wgmma" | "wgmma-pingpong"), None) => {
                refuse("the driver lacks cuTensorMapEncodeTiled", "update the NVIDIA driver")
            }
            (Some("wgmma"), Some(encode_tiled)) => hopper(encode_tiled, Selection::Wgmma),
            (Some("wgmma-pingpong"), Some(encode_tiled)) => {
                hopper(encode_tiled, Selection::PingPong)
            }
            (Some(other), _) => {
                refuse(&format!("it is {other}"), "set it to mma, wgmma or wgmma-pingpong")
            }
        }
    }

    /// Part of the GPU's description.
    pub fn description(&self) -> &'static str {
        match self.selection {
            Selection::Wgmma => "; attention by wgmma",
            Selection::PingPong => "; attention by wgmma in ping-pong",
            Selection::Timed => "; attention by mma or wgmma, as timed",
        }
    }

    /// Arguments of a kernel, with maps of their tensors.
    pub fn map_tensors(
        &self,
        device: &Device,
        attention: &args::Attention,
        ping_pong: bool,
    ) -> args::AttentionHopper {
        let heads = |addr: u64, parts: u32| Extents {
            addr,
            d: attention.d.into(),
            parts: parts.into(),
            seq: attention.seq.into(),
            samples: attention.rows / u64::from(attention.seq),
        };
        let map = |heads: Extents| match heads.addr {
            0 => NO_MAP,
            _ => *self
                .maps
                .borrow_mut()
                .entry(heads)
                .or_insert_with(|| self.encode(device, heads)),
        };
        let in_qkv = attention.heads + 2 * attention.kv;
        let qkv = map(heads(attention.qkv as u64, in_qkv));
        let dy = map(heads(attention.dy as u64, attention.heads));
        args::AttentionHopper { qkv, dy, attention: *attention, ping_pong: ping_pong.into() }
    }

    /// Encodes a bf16 map with boxes of some columns and positions of one part of one sample. Elements
    /// outside are read as zeros.
    fn encode(&self, device: &Device, heads: Extents) -> TensorMap {
        let Extents { addr, d, parts, seq, samples } = heads;
        let piece = piece(d as usize);
        let sizes = [d, parts, seq, samples];
        let strides = [2 * d, 2 * d * parts, 2 * d * parts * seq];
        let boxes = [piece as u32, 1, BOX, 1];
        // A row of a box.
        let swizzle = match piece {
            64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        };
        let mut map = NO_MAP;
        let steps = [1u32; 4];
        // SAFETY: the rank is 4: sizes, boxes and steps have four numbers, strides three (cuda.h). The
        // map is written to the live variable; the address is stored, not read.
        device.call("making a tensor map", |_| unsafe {
            call!(self.encode_tiled => cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                4,
                addr as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ))
        });
        map
    }
}

/// Columns of a head that are contiguous in shared memory, as in the kernels' source.
fn piece(d: usize) -> usize {
    if d.is_multiple_of(64) { 64 } else { 32 }
}

/// Kernels for heads of width `d`; `others` for which there is none.
pub fn kernels(d: usize, others: Kernels) -> Kernels {
    macro_rules! names {
        ($what:literal: $($d:literal)*) => {
            match d {
                $($d => Some(concat!("attention", $what, "_wgmma_", $d)),)*
                _ => None,
            }
        };
    }
    // As in the kernels' source: two warpgroups of 64 rows, their tiles and the streamed ones, other
    // data of queries, barriers, and the bytes for aligning the tiles.
    let own = 128;
    let row = 2 * d.next_multiple_of(piece(d));
    let kernel = |name: Option<&'static str>, rows: usize, other: usize, otherwise| match name {
        Some(name) => {
            let shared = rows * row + other + 128 + 1024;
            Kernel { name, tile: own, threads: 384, shared, mapped: true }
        }
        None => otherwise,
    };
    let keys = if d <= 128 { 128 } else { 64 };
    Kernels {
        // Queries, and two tiles of keys and values.
        forward: kernel(names!("": 64 80 96 128 160), own + 4 * keys, 8 * own, others.forward),
        // Keys and values, or queries and dy; of the streamed operands two tiles each.
        kv: kernel(names!("_kv": 64 80 96 128), 2 * own + 4 * 64, 2 * 16 * 65, others.kv),
        q: kernel(names!("_q": 64 80 96 128), 2 * own + 4 * 64, 8 * own, others.q),
    }
}
