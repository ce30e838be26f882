//! fp8 products: of the same numbers in bf16, into sums that are then scaled.

use super::{Cpu, finish, gemm};
use crate::cpu::memory::{BLOCK, Block, Sums, load, load_bytes, store};
use crate::cpu::parallel::blocks;
use crate::{Gemm, Quantized, Tensor, op};
use base::DType;

/// Alignment, in elements, of each part of the scratch.
const LINE: usize = 16;

/// C (+)= A·Bᵀ, then the epilogue.
pub fn fp8(cpu: &Cpu, op: &op::Fp8Gemm) {
    let op::Fp8Gemm { a, b, c, then } = *op;
    let [m, n, k] = op.size();
    let [of_a, of_b] = [m, n].map(|rows| (rows * k).div_ceil(2).next_multiple_of(LINE));
    cpu.sums.with(1, of_a + of_b + m * n, |scratch| {
        let at = |skipped| scratch.tensor(0).addr() + skipped * size_of::<f32>();
        let wide_a = Tensor::at(at(0), m, k, DType::BF16);
        let wide_b = Tensor::at(at(of_a), n, k, DType::BF16);
        let sums = Tensor::at(at(of_a + of_b), m, n, DType::F32);
        widen(cpu, &a, wide_a);
        widen(cpu, &b, wide_b);
        gemm(cpu, &op::Gemm::plain(Gemm::NT, wide_a, wide_b, sums.set()));
        cpu.each_rows(m, n, |rows| {
            let mut sums = Sums::from_tensor(sums, rows.clone(), 0..n);
            for (i, row) in rows.clone().enumerate() {
                scale(a.scales, row, b.scales, sums.row(i));
            }
            finish(&mut sums, rows, 0..n, c, then, false);
        });
    });
}

/// Numbers of all codes, without their scales.
fn widen(cpu: &Cpu, x: &Quantized, to: Tensor) {
    let numbers: [f32; 256] = std::array::from_fn(|code| x.format.decode(code as u8));
    cpu.each_block(to.numel(), |block| {
        let (mut codes, mut buffer): (_, Block) = ([0; BLOCK], [0.0; BLOCK]);
        let codes = &mut codes[..block.len()];
        let buffer = &mut buffer[..block.len()];
        load_bytes(x.codes, block.start, codes);
        buffer
            .iter_mut()
            .zip(&*codes)
            .for_each(|(x, code)| *x = numbers[usize::from(*code)]);
        store(buffer, to, block.start);
    });
}

/// Multiplies a row of sums by the scale of its line of A and those of all lines of B.
fn scale(of_a: Tensor, row: usize, of_b: Tensor, sums: &mut [f32]) {
    let (mut factor, mut factors): ([f32; 1], Block) = ([0.0], [0.0; BLOCK]);
    load(of_a, row, &mut factor);
    for cols in blocks(0..sums.len()) {
        let factors = &mut factors[..cols.len()];
        load(of_b, cols.start, factors);
        let pairs = sums[cols].iter_mut().zip(factors);
        pairs.for_each(|(sum, by)| *sum = *sum * factor[0] * *by);
    }
}
