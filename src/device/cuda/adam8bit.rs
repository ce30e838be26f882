//! AdamW with 8-bit moments.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector};
use crate::op;
use base::DType;
use std::ptr::null_mut;

/// Blocks that update moments in 8 bits: each copies the maps first.
const CODED_BLOCKS: usize = 1056;
/// Elements of a thread of those.
const CODED_WIDE: usize = 8;

pub(super) fn adam8bit(cuda: &Cuda, op: &op::Adam8bit) {
    let op::Adam8bit { rule, scalars, grad, master, m, v, weight: live } = *op;
    let addresses = [grad, master, live, m.codes, v.codes].map(|x| x.addr());
    assert!(vector(grad.numel(), DType::BF16, &addresses), "tensors begin on 16 bytes");
    let arguments = args::Adam8bit {
        grad: grad.addr() as _,
        master: master.addr() as _,
        m_codes: m.codes.addr() as _,
        m_scales: m.scales.addr() as _,
        v_codes: v.codes.addr() as _,
        v_scales: v.scales.addr() as _,
        live: if live == master { null_mut() } else { live.addr() as _ },
        scalars: scalars.addr() as _,
        numel: grad.numel() as u64,
        keep: rule.keep(),
        lr_scale: rule.lr_scale,
        beta1: rule.beta1,
        beta2: rule.beta2,
        eps: rule.eps,
        block: op.block() as u32,
    };
    let kernel = typed!("adam8bit", grad.dtype, live.dtype);
    let blocks = grad.numel().div_ceil(256 * CODED_WIDE).clamp(1, CODED_BLOCKS);
    cuda.launch(kernel, Grid::line(blocks, 256), arguments);
}
