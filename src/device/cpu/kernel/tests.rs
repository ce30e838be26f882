//! Every register that the processor has, compared with the definition.

use super::*;

/// Small whole numbers, whose sums are exact, so every register gives the same bits.
fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * i % 17) as f32 - 8.0).collect()
}

/// Packed words of depth.
const WHOLE: usize = 13;
/// First multiplied word.
const FIRST: usize = 2;
/// Number of multiplied words.
const DEPTH: usize = 10;

/// C (of whole numbers, ending inside a panel) plus the sums over part of the depth. Element (i, l)
/// of A is `a(i, l)`, element (l, j) of B `b(l, j)`.
fn sums(
    set: Instructions,
    a: &dyn Fn(usize, usize) -> f32,
    b: &dyn Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let panel = set.geometry();
    let rows = 2 * panel.rows - 3;
    let cols = 2 * panel.cols - 5;
    let width = 3 * panel.cols;
    let packed = |side: usize, element: &dyn Fn(usize, usize) -> f32| {
        let places = (0..2 * WHOLE * side).map(|at| (at / (side * WHOLE) * side + at % side, at));
        places
            .map(|(i, at)| element(i, at / side % WHOLE))
            .collect::<Vec<f32>>()
    };
    let a = packed(panel.rows, a);
    let b = packed(panel.cols, &|j, l| b(l, j));
    let mut c = numbers(rows * width);
    let a = &a;
    let b = &b;
    let sums = &mut Sums::from_slice(&mut c, rows, cols, width);
    Panels { set, a, b, whole: WHOLE, first: FIRST, depth: DEPTH, c: sums, add: true }.run();
    c
}

/// C of a product whose sides leave remainders.
fn product(run: unsafe fn(Product)) -> Vec<f32> {
    let m = 13;
    let n = 5 * COLUMNS;
    let k = 7;
    let a = numbers(m * k);
    let b = numbers(k * n);
    let mut c = numbers(m * n);
    let a_row = 1;
    let a_depth = m;
    let b_row = n;
    let c_row = n;
    let add = true;
    let a = &a;
    let b = &b;
    let c_ = &mut c;
    // SAFETY: the slices have the operands' sizes, and the caller's processor the features of `run`.
    unsafe { run(Product { m, n, k, a, a_row, a_depth, b, b_row, c: c_, c_row, add }) };
    c
}

#[test]
fn all_registers_give_the_same_sums() {
    let by_definition = {
        let m = 13;
        let n = 5 * COLUMNS;
        let k = 7;
        let a = numbers(m * k);
        let b = numbers(k * n);
        let mut c = numbers(m * n);
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            c[i * n + j] += (0..k).map(|l| a[i + l * m] * b[l * n + j]).sum::<f32>();
        }
        c
    };
    assert_eq!(product(cover::<[f32; 4], 4, 2>), by_definition);
    #[cfg(target_arch = "x86_64")]
    {
        if Instructions::best() >= Instructions::Avx2 {
            assert_eq!(product(x86::avx2), by_definition);
        }
        if Instructions::best() >= Instructions::Avx512 {
            assert_eq!(product(x86::avx512), by_definition);
        }
    }
}

/// Number of row or column `i` at depth `l`.
fn number(i: usize, l: usize) -> f32 {
    ((i * 7 + l * l * 3) % 11) as f32 - 5.0
}

/// C with the sums added, by definition: a product of the numbers, times `factor`.
fn defined(set: Instructions, factor: f32) -> Vec<f32> {
    let panel = set.geometry();
    let (rows, cols, width) = (2 * panel.rows - 3, 2 * panel.cols - 5, 3 * panel.cols);
    let mut c = numbers(rows * width);
    for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
        let products = (0..DEPTH).map(|l| number(i, FIRST + l) * number(j, FIRST + l));
        c[i * width + j] += factor * products.sum::<f32>();
    }
    c
}

#[test]
fn panels_of_f32_give_the_sums_by_definition() {
    let sets = [Instructions::Baseline, Instructions::Avx2, Instructions::Avx512];
    for set in sets.into_iter().filter(|set| *set <= Instructions::best()) {
        assert_eq!(sums(set, &number, &|l, j| number(j, l)), defined(set, 1.0), "{set}");
    }
}

/// A pair of x and 3·x with one of y and 2·y gives seven times their product.
#[test]
fn pairs_of_bf16_give_the_sums_of_their_products() {
    let set = Instructions::Avx512Bf16;
    if set <= Instructions::best() {
        let pair = |x: f32, factor: f32| word(x, factor * x);
        let got = sums(set, &|i, l| pair(number(i, l), 3.0), &|l, j| pair(number(j, l), 2.0));
        assert_eq!(got, defined(set, 7.0));
    }
}

/// Result of `tdpbf16ps` for tiles of A and B with these pairs, and C.
fn dot(mut tiles: impl tiles::TileOps, a: &[f32], b: &[f32], c: &[f32]) -> Vec<u32> {
    let side = tiles::SIDE;
    let mut sums = vec![0.0f32; side * side];
    assert!([a, b, c].iter().all(|x| x.len() == side * side));
    // SAFETY: each slice has 16 rows of 16 words (above); the tiles are this thread's.
    unsafe {
        tiles.load::<1>(a.as_ptr(), side);
        tiles.load::<2>(b.as_ptr(), side);
        tiles.load::<0>(c.as_ptr(), side);
        tiles.dot::<0, 1, 2>();
        tiles.store::<0>(sums.as_mut_ptr(), side);
    }
    sums.into_iter().map(f32::to_bits).collect()
}

/// Word of two bf16.
fn word(low: f32, high: f32) -> f32 {
    f32::from_bits(low.to_bits() >> 16 | high.to_bits() & 0xffff_0000)
}

/// Result for a row of A that starts with these pairs, the same in a column of B against ones, and
/// C.
fn first_of_model(pairs: &[[f32; 2]], c: f32) -> f32 {
    let mut a = vec![0.0; 256];
    let one = vec![word(1.0, 1.0); 256];
    for (to, [low, high]) in a.iter_mut().zip(pairs) {
        *to = word(*low, *high);
    }
    f32::from_bits(dot(tiles::Model::new(), &a, &one, &[c; 256])[0])
}

/// Order of additions in the manual: first halves, second halves, both, then C; denormals are 0.
#[test]
fn the_model_of_tiles_adds_as_the_manual_says() {
    let large = 16_777_216.0;
    let tiny = 1e-39;
    // Added one after the other, 1 would be lost each time.
    assert_eq!(first_of_model(&[[large, 1.0], [0.0, 1.0]], 0.0), large + 2.0);
    assert_eq!(first_of_model(&[[large, 0.0], [1.0, 0.0], [1.0, 0.0]], 0.0), large);
    assert_eq!(first_of_model(&[[1.0, 1.0]], large), large + 2.0);
    assert_eq!(first_of_model(&[[tiny, tiny], [0.0, -2.0]], tiny), -2.0);
    assert_eq!(first_of_model(&[[f32::MIN_POSITIVE, -1.5 * f32::MIN_POSITIVE]], 0.0), 0.0);
    assert!(first_of_model(&[[f32::NAN, 0.0]], 0.0).is_nan());
}

/// On processors with AMX: whole numbers, whose sums are exact, and numbers flushed to 0.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_instruction_and_its_model_leave_the_same_bits() {
    if Instructions::best() < Instructions::Amx {
        return;
    }
    let of = |x: &[f32]| -> Vec<f32> { x.chunks(2).map(|x| word(x[0], x[1])).collect() };
    let mut a = of(&numbers(512));
    let mut b = of(&numbers(512));
    let c = numbers(256);
    a[3] = word(1e-39, -1e-39);
    b[7] = word(f32::MIN_POSITIVE, 1e-40);
    // SAFETY: `best` is AMX (above): the processor has it, and Linux permits its use.
    let amx = unsafe { tiles::amx::Amx::begin() };
    assert_eq!(dot(amx, &a, &b, &c), dot(tiles::Model::new(), &a, &b, &c));
}
