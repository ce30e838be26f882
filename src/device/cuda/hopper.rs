//! What Hopper has and no other GPU: tensor maps, through which kernels have tiles of memory copied
//! for them, and the kernels of attention that multiply by `wgmma` (`kernels/attention_hopper.cu`).
//!
//! No real GPU has run these kernels yet, so attention uses them only where the user asks for it.

use super::attention::{Attention, Kernel, Kernels};
use super::driver::{Device, EncodeTiled};
use crate::base::Problems;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

/// The variable that picks the instructions of attention's products: mma (without it), or wgmma.
pub const CHOICE: &str = "GPTRAIN_ATTENTION";

/// Compute capability of Hopper, times ten.
const CAPABILITY: i32 = 90;

/// Rows that a copy brings, as in the kernels' source.
const BOX: u32 = 64;

/// What cuTensorMapEncodeTiled makes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
struct TensorMap([u64; 16]);

/// The tensors that maps are made of: heads of `d` columns, `parts` of them in a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Heads {
    addr: u64,
    d: u64,
    parts: u64,
    seq: u64,
    samples: u64,
}

/// The argument of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Mapped {
    qkv: TensorMap,
    dy: TensorMap,
    attention: Attention,
}

/// Maps made so far: the same tensors come back every step.
pub(super) struct Hopper {
    encode: EncodeTiled,
    maps: RefCell<HashMap<Heads, TensorMap>>,
}

impl Hopper {
    /// If the user chose wgmma; an error where the GPU or its driver lacks what it takes.
    pub fn chosen(
        choice: Option<&str>,
        device: &Device,
        capability: i32,
    ) -> Result<Option<Hopper>, Problems> {
        let refuse = |what: &str, remedy: &str| Err(Problems::one(CHOICE, what, remedy));
        match (choice, device.encode_tiled) {
            (None | Some("mma"), _) => Ok(None),
            (Some("wgmma"), _) if capability != CAPABILITY => {
                refuse("wgmma needs a GPU of compute capability 9.0 (H100, H200)", "leave it out")
            }
            (Some("wgmma"), None) => {
                refuse("the driver lacks cuTensorMapEncodeTiled", "update the NVIDIA driver")
            }
            (Some("wgmma"), Some(encode)) => Ok(Some(Hopper { encode, maps: RefCell::default() })),
            (Some(other), _) => refuse(&format!("it is {other}"), "set it to mma or wgmma"),
        }
    }

    /// What a kernel takes, with maps of the tensors in it.
    pub fn mapped(&self, device: &Device, attention: &Attention) -> Mapped {
        let heads = |addr: u64, each: u64| Heads {
            addr,
            d: attention.d.into(),
            parts: each * u64::from(attention.heads),
            seq: attention.seq.into(),
            samples: attention.rows / u64::from(attention.seq),
        };
        let map = |heads: Heads| match heads.addr {
            0 => TensorMap::default(),
            _ => *self.maps.borrow_mut().entry(heads).or_insert_with(|| self.encode(device, heads)),
        };
        let (qkv, dy) = (map(heads(attention.qkv, 3)), map(heads(attention.dy, 1)));
        Mapped { qkv, dy, attention: *attention }
    }

    /// A map in bf16: boxes of some columns of a head, of one part, some positions, one sample;
    /// zeros outside.
    fn encode(&self, device: &Device, heads: Heads) -> TensorMap {
        const BF16: i32 = 9;
        const PROMOTE_TO_256_BYTES: i32 = 3;
        let Heads { addr, d, parts, seq, samples } = heads;
        let piece = piece(d as usize);
        let sizes = [d, parts, seq, samples];
        let strides = [2 * d, 2 * d * parts, 2 * d * parts * seq];
        let boxes = [piece as u32, 1, BOX, 1];
        // CU_TENSOR_MAP_SWIZZLE_128B or 64B: a row of a box.
        let swizzle = if piece == 64 { 3 } else { 2 };
        let mut map = TensorMap::default();
        device.call("making a tensor map", |_| {
            let to = &mut map as *mut TensorMap as *mut c_void;
            let (sizes, strides, boxes) = (sizes.as_ptr(), strides.as_ptr(), boxes.as_ptr());
            let promote = PROMOTE_TO_256_BYTES;
            // SAFETY: the arrays have the rank's numbers, strides one fewer (cuda.h).
            unsafe {
                let steps = [1u32; 4].as_ptr();
                (self.encode)(
                    to, BF16, 4, addr, sizes, strides, boxes, steps, 0, swizzle, promote, 0,
                )
            }
        });
        map
    }
}

/// Columns of a head that lie together in shared memory, as in the kernels' source.
fn piece(d: usize) -> usize {
    if d.is_multiple_of(64) { 64 } else { 32 }
}

/// Kernels for heads of that width, where there are any in place of others.
pub(super) fn kernels(d: usize, others: Kernels) -> Kernels {
    macro_rules! names {
        ($what:literal: $($d:literal)*) => {
            match d {
                $($d => Some(concat!("attention", $what, "_wgmma_", $d)),)*
                _ => None,
            }
        };
    }
    // As in the kernels' source: two warpgroups of 64 rows, tiles of their own and those that pass by,
    // what else there is of queries, barriers, and what aligning the tiles may take.
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
        // Keys and values, or queries and dy; of what passes by two tiles of both.
        kv: kernel(names!("_kv": 64 80 96 128), 2 * own + 4 * 64, 2 * 16 * 65, others.kv),
        q: kernel(names!("_q": 64 80 96 128), 2 * own + 4 * 64, 8 * own, others.q),
    }
}
