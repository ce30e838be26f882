//! Properties of the CPU only: its mathematics, its threads, its memory.

use super::Instructions;
use super::math;
use super::*;
use crate::{Gemm, op};
use base::DType;
use half::bf16;

#[test]
fn exp_is_exact_to_two_ulp_over_its_whole_range() {
    let mut worst = 0.0f64;
    for i in -103_000..88_700 {
        let x = i as f32 / 1000.0;
        let mut y = [x];
        math::exp_scaled(&mut y, 0.0, 1.0);
        let want = (x as f64).exp();
        // Below the normal numbers an ulp is absolute.
        let ulp = (want * 2f64.powi(-23)).max(2f64.powi(-149));
        worst = worst.max((y[0] as f64 - want).abs() / ulp);
    }
    assert!(worst < 2.0, "{worst} ulp");
    let mut ends = [f32::NEG_INFINITY, -1e30, 1e30, f32::INFINITY, f32::NAN];
    math::exp_scaled(&mut ends, 0.0, 1.0);
    assert_eq!(ends[..4], [0.0, 0.0, f32::INFINITY, f32::INFINITY]);
    assert!(ends[4].is_nan());
}

#[test]
fn bf16_is_rounded_as_half_rounds_it() {
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-40];
    let many = (0..u32::MAX).step_by(65_521).map(f32::from_bits);
    let x: Vec<f32> = special.into_iter().chain(many).collect();
    let mut ours = vec![0; x.len()];
    math::narrow(&x, &mut ours);
    for (x, ours) in x.iter().zip(&ours) {
        assert_eq!(*ours, bf16::from_f32(*x).to_bits(), "{x}");
    }
    let mut back = vec![0.0; ours.len()];
    math::widen(&ours, &mut back);
    for (ours, back) in ours.iter().zip(back) {
        assert_eq!(bf16::from_bits(*ours).to_f32().to_bits(), back.to_bits());
    }
}

#[test]
fn memory_is_zeroed_aligned_and_bounded() {
    let cpu = Cpu::new(Some(1));
    let base = cpu.reserve(1000).unwrap();
    assert_eq!(base % 256, 0);
    let tensor = Tensor::at(base, 1, 250, DType::F32);
    let mut bytes = vec![1; 1000];
    cpu.download(tensor, &mut bytes);
    assert!(bytes.iter().all(|b| *b == 0));
    // More than any machine has: refused at once, before a page is touched.
    let error = cpu.reserve(1 << 55).unwrap_err();
    assert!(error.to_string().contains("32.0 PiB"), "{error}");
    assert!(cpu.reserve(0).is_ok());
}

#[test]
fn the_workspace_does_not_grow_once_a_shape_was_seen() {
    let cpu = Cpu::new(Some(2));
    let at = |i: usize, rows, cols| Tensor::at(cpu.reserve(i).unwrap(), rows, cols, DType::BF16);
    let a = at(1 << 20, 64, 128);
    let b = at(1 << 20, 32, 128);
    let c = at(1 << 20, 64, 32);
    assert_eq!(cpu.workspace_bytes(), 0);
    let multiply = || cpu.host().run(op::Gemm::plain(Gemm::NT, a, b, c.set()));
    multiply();
    let bytes = cpu.workspace_bytes();
    assert!(bytes > 0);
    multiply();
    assert_eq!(cpu.workspace_bytes(), bytes);
}

#[test]
fn a_cpu_can_be_moved_to_the_thread_of_its_rank() {
    let cpu = Cpu::new(Some(2));
    std::thread::spawn(move || cpu.sync().unwrap())
        .join()
        .unwrap();
}

/// bf16 matrix of the given numbers.
fn matrix(cpu: &Cpu, rows: usize, cols: usize, number: fn(usize) -> f32) -> Tensor {
    let x = Tensor::at(cpu.reserve(2 * rows * cols).unwrap(), rows, cols, DType::BF16);
    let bits: Vec<u16> = (0..rows * cols)
        .map(|i| bf16::from_f32(number(i)).to_bits())
        .collect();
    cpu.upload(bytemuck::cast_slice(&bits), x);
    x
}

/// Product of bf16 with an instruction set, in f32.
fn product(
    cpu: &Cpu,
    set: Instructions,
    kind: Gemm,
    [m, n, k]: [usize; 3],
    of: fn(usize) -> f32,
) -> Vec<f32> {
    let operand = |rows, cols, transposed| {
        if transposed { matrix(cpu, cols, rows, of) } else { matrix(cpu, rows, cols, of) }
    };
    let a = operand(m, k, kind == Gemm::TN);
    let b = operand(k, n, kind == Gemm::NT);
    let c = Tensor::at(cpu.reserve(4 * m * n).unwrap(), m, n, DType::F32);
    gemm::product(cpu, &op::Gemm::plain(kind, a, b, c.set()), set);
    let mut sums = vec![0.0f32; m * n];
    cpu.download(c, bytemuck::cast_slice_mut(&mut sums));
    sums
}

/// Sizes with remainders in every dimension, a depth of several parts, and sizes without
/// remainders.
const PRODUCTS: [(Gemm, [usize; 3]); 9] = [
    (Gemm::NT, [19, 70, 31]),
    (Gemm::NN, [9, 50, 33]),
    (Gemm::TN, [17, 49, 29]),
    (Gemm::NT, [33, 97, 4500]),
    (Gemm::TN, [40, 33, 610]),
    (Gemm::NN, [64, 96, 512]),
    (Gemm::NN, [70, 1700, 40]),
    (Gemm::NT, [530, 900, 1100]),
    (Gemm::TN, [64, 96, 512]),
];

/// Instruction sets that can run here. AMX always can, on its model if the processor has none.
fn sets() -> impl Iterator<Item = Instructions> {
    Instructions::ALL
        .into_iter()
        .filter(|set| *set <= Instructions::best() || *set == Instructions::Amx)
}

/// Small whole numbers, whose sums are exact and do not depend on the instruction set.
#[test]
fn all_instruction_sets_agree_on_products_of_bf16() {
    let cpu = Cpu::new(Some(2));
    let number = |i: usize| (i * i % 17) as f32 - 8.0;
    for (kind, sizes) in PRODUCTS {
        let floats = product(&cpu, Instructions::Baseline, kind, sizes, number);
        assert!(floats.iter().any(|x| *x != 0.0));
        for set in sets() {
            let same = product(&cpu, set, kind, sizes, number) == floats;
            assert!(same, "{set}, {kind:?} {sizes:?}");
        }
    }
}

/// Sums that round: the bits do not depend on the number of threads, for any instruction set.
#[test]
fn products_of_bf16_are_the_same_bits_on_any_number_of_threads() {
    for (set, (kind, sizes)) in sets().flat_map(|set| PRODUCTS.map(|p| (set, p))) {
        let [one, three] = [1, 3].map(|threads| {
            product(&Cpu::new(Some(threads)), set, kind, sizes, |i: usize| {
                ((i * 7919 % 1009) as f32 / 1009.0 - 0.5) / 3.0
            })
        });
        assert!(one == three, "{set}, {kind:?} {sizes:?}");
    }
}

/// With FMA the bits do not depend on the register width: each element is the same chain of sums.
#[test]
fn avx2_and_avx512_give_the_same_bits() {
    if Instructions::best() < Instructions::Avx512 {
        return;
    }
    for (kind, sizes) in PRODUCTS {
        let [narrow, wide] = [Instructions::Avx2, Instructions::Avx512].map(|set| {
            product(&Cpu::new(Some(2)), set, kind, sizes, |i: usize| {
                ((i * 7919 % 1009) as f32 / 1009.0 - 0.5) / 3.0
            })
        });
        assert!(narrow == wide, "{kind:?} {sizes:?}");
    }
}
