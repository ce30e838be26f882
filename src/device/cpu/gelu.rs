//! GELU apart from a product, and SwiGLU.

use super::Cpu;
use super::math;
use super::memory::{BLOCK, Block, load, put, store};
use crate::op;
use std::ops::Range;

pub(super) fn gelu(cpu: &Cpu, &op::Gelu { x, gelu, y }: &op::Gelu) {
    cpu.each_loaded([x], |at, [x]| {
        math::gelu(gelu, x);
        put(x, y, at);
    });
}

pub(super) fn swiglu(cpu: &Cpu, &op::Swiglu { x, y }: &op::Swiglu) {
    cpu.each_block(y.to.numel(), |block| {
        for block in halves(block) {
            let (mut pairs, mut out): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            let pairs = &mut pairs[..2 * block.len()];
            let out = &mut out[..block.len()];
            load(x, 2 * block.start, pairs);
            math::swiglu(pairs, out);
            put(out, y, block.start);
        }
    });
}

pub(super) fn swiglu_backward(cpu: &Cpu, op: &op::SwigluBackward) {
    let op::SwigluBackward { dy, x, dx } = *op;
    cpu.each_block(dy.numel(), |block| {
        for block in halves(block) {
            let (mut pairs, mut d): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            let pairs = &mut pairs[..2 * block.len()];
            let d = &mut d[..block.len()];
            load(x, 2 * block.start, pairs);
            load(dy, block.start, d);
            math::swiglu_backward(d, pairs);
            store(pairs, dx.to, 2 * block.start);
        }
    });
}

/// Splits a block into pieces whose pairs fill a block.
fn halves(block: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = block.end;
    block
        .step_by(BLOCK / 2)
        .map(move |at| at..end.min(at + BLOCK / 2))
}
