//! What only the CPU promises: its own mathematics, its threads, its memory.

use super::kernel::Word;
use super::math;
use super::*;
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
    // More than any machine has: said at once, before a page is touched.
    let error = cpu.reserve(1 << 55).unwrap_err();
    assert!(error.to_string().contains("32.0 PiB"), "{error}");
    assert!(cpu.reserve(0).is_ok());
}

#[test]
fn the_workspace_does_not_grow_once_a_shape_was_seen() {
    let cpu = Cpu::new(Some(2));
    let at = |i: usize, rows, cols| Tensor::at(cpu.reserve(i).unwrap(), rows, cols, DType::BF16);
    let (a, b, c) = (at(1 << 20, 64, 128), at(1 << 20, 32, 128), at(1 << 20, 64, 32));
    assert_eq!(cpu.workspace_bytes(), 0);
    cpu.gemm(Gemm::NT, a, b, c.set(), Epilogue::Nothing);
    let bytes = cpu.workspace_bytes();
    assert!(bytes > 0);
    cpu.gemm(Gemm::NT, a, b, c.set(), Epilogue::Nothing);
    assert_eq!(cpu.workspace_bytes(), bytes);
}

#[test]
fn a_cpu_can_be_moved_to_the_thread_of_its_rank() {
    let cpu = Cpu::new(Some(2));
    std::thread::spawn(move || cpu.sync().unwrap()).join().unwrap();
}

/// A matrix of bf16 with such numbers.
fn matrix(cpu: &Cpu, rows: usize, cols: usize, number: fn(usize) -> f32) -> Tensor {
    let x = Tensor::at(cpu.reserve(2 * rows * cols).unwrap(), rows, cols, DType::BF16);
    let bits: Vec<u16> = (0..rows * cols).map(|i| bf16::from_f32(number(i)).to_bits()).collect();
    cpu.upload(bytemuck::cast_slice(&bits), x);
    x
}

/// A product of bf16 by words of one kind, in f32.
fn product(
    cpu: &Cpu,
    word: Word,
    kind: Gemm,
    [m, n, k]: [usize; 3],
    of: fn(usize) -> f32,
) -> Vec<f32> {
    let operand = |rows, cols, turned| match turned {
        true => matrix(cpu, cols, rows, of),
        false => matrix(cpu, rows, cols, of),
    };
    let operands = [operand(m, k, kind == Gemm::TN), operand(k, n, kind == Gemm::NT)];
    let c = Tensor::at(cpu.reserve(4 * m * n).unwrap(), m, n, DType::F32);
    gemm::product(cpu, kind, operands, word, c.set(), Epilogue::Nothing);
    let mut sums = vec![0.0f32; m * n];
    cpu.download(c, bytemuck::cast_slice_mut(&mut sums));
    sums
}

/// Sizes that leave a remainder everywhere, a depth of several parts, and sizes that leave none.
const PRODUCTS: [(Gemm, [usize; 3]); 7] = [
    (Gemm::NT, [19, 70, 31]),
    (Gemm::NN, [9, 50, 33]),
    (Gemm::TN, [17, 49, 29]),
    (Gemm::NT, [33, 97, 4500]),
    (Gemm::TN, [40, 33, 610]),
    (Gemm::NN, [64, 96, 512]),
    (Gemm::TN, [64, 96, 512]),
];

/// Small whole numbers: sums are exact, so they do not depend on what the operands are packed into
/// nor on what multiplies them. Tiles are those of AMX, or their model.
#[test]
fn products_of_pairs_of_tiles_and_of_widened_bf16_agree() {
    let cpu = Cpu::new(Some(2));
    let number = |i: usize| (i * i % 17) as f32 - 8.0;
    for (kind, sizes) in PRODUCTS {
        let floats = product(&cpu, Word::Float, kind, sizes, number);
        assert!(floats.iter().any(|x| *x != 0.0));
        assert!(
            product(&cpu, Word::Tile, kind, sizes, number) == floats,
            "tiles, {kind:?} {sizes:?}"
        );
        if math::has_dot_bf16() {
            assert!(product(&cpu, Word::Pair, kind, sizes, number) == floats, "{kind:?} {sizes:?}");
        }
    }
}

/// Sums that round: how many threads share a product does not show, whatever multiplies.
#[test]
fn products_of_bf16_are_the_same_bits_on_any_number_of_threads() {
    let number = |i: usize| ((i * 7919 % 1009) as f32 / 1009.0 - 0.5) / 3.0;
    let words = [Word::Float, Word::Tile, Word::of_bf16()];
    for (word, (kind, sizes)) in words.into_iter().flat_map(|word| PRODUCTS.map(|p| (word, p))) {
        let [one, three] =
            [1, 3].map(|threads| product(&Cpu::new(Some(threads)), word, kind, sizes, number));
        assert!(one == three, "{word:?}, {kind:?} {sizes:?}");
    }
}
