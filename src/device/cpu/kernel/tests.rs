//! Every register, where the processor has it, against the definition.

use super::*;

/// Small whole numbers: sums are exact, so every register gives the same bits.
fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * i % 17) as f32 - 8.0).collect()
}

/// What `run` leaves in C, for a sum over part of the depth and a C that ends inside a panel.
fn sums(word: Word, a: &[f32], b: &[f32], run: unsafe fn(Panels)) -> Vec<f32> {
    let [whole, first, depth, rows, cols] = SIZES;
    let width = 3 * PANEL_COLS;
    let mut c = numbers(rows * width);
    let p = Panels { word, a, b, whole, first, depth, c: &mut c, rows, cols, width, add: true };
    // SAFETY: the sizes above agree, and the caller saw to the features.
    unsafe { run(p) };
    c
}

const SIZES: [usize; 5] = [9, 2, 5, PANEL_ROWS + 3, PANEL_COLS + 21];

/// Panels of whole numbers: of A, and of B.
fn operands() -> [Vec<f32>; 2] {
    [numbers(2 * PANEL_ROWS * SIZES[2]), numbers(2 * PANEL_COLS * SIZES[0])]
}

/// As above, of a product whose sides leave remainders.
fn product(run: unsafe fn(Product)) -> Vec<f32> {
    let (m, n, k) = (13, 5 * COLUMNS, 7);
    let (a, b) = (numbers(m * k), numbers(k * n));
    let mut c = numbers(m * n);
    let (a_row, a_depth, b_row, c_row, add) = (1, m, n, n, true);
    let (a, b, c_) = (&a, &b, &mut c);
    // SAFETY: as above.
    unsafe { run(Product { m, n, k, a, a_row, a_depth, b, b_row, c: c_, c_row, add }) };
    c
}

#[test]
fn all_registers_give_the_same_sums() {
    let by_definition = {
        let (m, n, k) = (13, 5 * COLUMNS, 7);
        let (a, b, mut c) = (numbers(m * k), numbers(k * n), numbers(m * n));
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            c[i * n + j] += (0..k).map(|l| a[i + l * m] * b[l * n + j]).sum::<f32>();
        }
        c
    };
    assert_eq!(product(cover::<[f32; 4], 4, 2>), by_definition);
    let [a, b] = operands();
    let sums = |run| sums(Word::Float, &a, &b, run);
    let any = sums(cover_panels::<[f32; 4], 4, 2>);
    #[cfg(target_arch = "x86_64")]
    {
        if crate::cpu::math::has_avx2() {
            assert_eq!(sums(x86::panels_avx2), any);
            assert_eq!(product(x86::avx2), by_definition);
        }
        if crate::cpu::math::has_avx512() {
            assert_eq!(sums(x86::panels_avx512), any);
            assert_eq!(product(x86::avx512), by_definition);
        }
    }
    assert_ne!(any, numbers(any.len()));
}
/// A pair of x and of y gives what two columns x and y of A with two equal rows of B give.
#[test]
#[cfg(target_arch = "x86_64")]
fn pairs_of_bf16_give_the_sums_of_their_products() {
    if !crate::cpu::math::has_dot_bf16() {
        return;
    }
    let [a, b] = operands();
    let pair = |low: f32, high: f32| f32::from_bits(low.to_bits() >> 16 | high.to_bits());
    let apart = |x: &[f32], low: f32, high: f32| -> Vec<f32> {
        x.iter().map(|x| pair(low * x, high * x)).collect()
    };
    let got = sums(Word::Pair, &apart(&a, 1.0, 3.0), &apart(&b, 1.0, 2.0), x86::panels_dot_bf16);
    // 1·1 + 3·2 of each product.
    let sevenfold: Vec<f32> = b.iter().map(|x| 7.0 * x).collect();
    assert_eq!(got, sums(Word::Float, &a, &sevenfold, cover_panels::<[f32; 4], 4, 2>));
}
