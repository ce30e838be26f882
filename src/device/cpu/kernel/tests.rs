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
    let any = sums(any_register);
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

unsafe fn any_register(p: Panels) {
    unsafe { cover_panels(p, &mut Registers::<[f32; 4], 4, 2>::new()) }
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
    assert_eq!(got, sums(Word::Float, &a, &sevenfold, any_register));
}

/// What `tdpbf16ps` leaves of two tiles of A and B with these pairs in C.
fn dot(mut tiles: impl tiles::Instructions, a: &[f32], b: &[f32], c: &[f32]) -> Vec<u32> {
    let side = tiles::SIDE;
    let mut sums = vec![0.0f32; side * side];
    assert!([a, b, c].iter().all(|x| x.len() == side * side));
    // SAFETY: a tile each; the caller has the instructions.
    unsafe {
        tiles.load::<1>(a.as_ptr(), side);
        tiles.load::<2>(b.as_ptr(), side);
        tiles.load::<0>(c.as_ptr(), side);
        tiles.dot::<0, 1, 2>();
        tiles.store::<0>(sums.as_mut_ptr(), side);
    }
    sums.into_iter().map(f32::to_bits).collect()
}

/// Two bf16 that a word holds.
fn word(low: f32, high: f32) -> f32 {
    f32::from_bits(low.to_bits() >> 16 | high.to_bits() & 0xffff_0000)
}

/// A row of A that starts with these pairs, the same in a column of B against ones, and C.
fn first_of_model(pairs: &[[f32; 2]], c: f32) -> f32 {
    let (mut a, one) = (vec![0.0; 256], vec![word(1.0, 1.0); 256]);
    for (to, [low, high]) in a.iter_mut().zip(pairs) {
        *to = word(*low, *high);
    }
    f32::from_bits(dot(tiles::Model::new(), &a, &one, &[c; 256])[0])
}

/// The manual's order of additions: first halves, second halves, both, then C; denormals are 0.
#[test]
fn the_model_of_tiles_adds_as_the_manual_says() {
    let (large, tiny) = (16_777_216.0, 1e-39);
    // One after the other, 1 would be lost each time.
    assert_eq!(first_of_model(&[[large, 1.0], [0.0, 1.0]], 0.0), large + 2.0);
    assert_eq!(first_of_model(&[[large, 0.0], [1.0, 0.0], [1.0, 0.0]], 0.0), large);
    assert_eq!(first_of_model(&[[1.0, 1.0]], large), large + 2.0);
    assert_eq!(first_of_model(&[[tiny, tiny], [0.0, -2.0]], tiny), -2.0);
    assert_eq!(first_of_model(&[[f32::MIN_POSITIVE, -1.5 * f32::MIN_POSITIVE]], 0.0), 0.0);
    assert!(first_of_model(&[[f32::NAN, 0.0]], 0.0).is_nan());
}

/// Where there is AMX: whole numbers, whose sums are exact, and what is flushed to 0.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_instruction_and_its_model_leave_the_same_bits() {
    if !crate::cpu::math::has_amx() {
        return;
    }
    let of = |x: &[f32]| -> Vec<f32> { x.chunks(2).map(|x| word(x[0], x[1])).collect() };
    let (mut a, mut b, c) = (of(&numbers(512)), of(&numbers(512)), numbers(256));
    a[3] = word(1e-39, -1e-39);
    b[7] = word(f32::MIN_POSITIVE, 1e-40);
    // SAFETY: there is AMX.
    let amx = unsafe { tiles::amx::Amx::begin() };
    assert_eq!(dot(amx, &a, &b, &c), dot(tiles::Model::new(), &a, &b, &c));
}
