//! AdamW with 8-bit moments.

use super::Cuda;
use super::args::arguments;
use super::launch::{Grid, typed, vector};
use crate::{AdamW, InPlace, op};
use base::DType;

/// Maximum blocks; each first copies the maps.
const CODED_BLOCKS: usize = 1056;
/// Elements per thread.
const CODED_WIDE: usize = 8;

pub(super) fn adam8bit(cuda: &Cuda, op: &op::Adam8bit) {
    let op::Adam8bit { rule, scalars, grad, weight, .. } = *op;
    let InPlace(master) = op.master;
    let InPlace(m) = op.m;
    let InPlace(v) = op.v;
    let rounded = weight.map_or(master, |out| out.to);
    let tensors = [grad, master, rounded, m.codes, v.codes];
    let numel = grad.numel();
    assert!(vector(numel, DType::BF16, tensors), "tensors begin on 16 bytes");
    let AdamW { lr_scale, beta1, beta2, eps, .. } = rule;
    let arguments = arguments!(Adam8bit {
        grad,
        master,
        m_codes: m.codes,
        m_scales: m.scales,
        v_codes: v.codes,
        v_scales: v.scales,
        weight,
        scalars,
        numel,
        keep: rule.keep(),
        lr_scale,
        beta1,
        beta2,
        eps,
        block: op.block(),
    });
    let kernel = typed!("adam8bit", grad.dtype, rounded.dtype);
    let blocks = numel.div_ceil(256 * CODED_WIDE).clamp(1, CODED_BLOCKS);
    cuda.launch(kernel, Grid::line(blocks, 256), arguments);
}
