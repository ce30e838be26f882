//! Stateless random numbers: each is a function of a key and a counter, so any rank, thread and
//! restart draws the same value for the same element.
//!
//! Philox 4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

/// Four random words for one counter under one key.
#[inline(always)]
pub fn philox(key: u64, counter: u128) -> [u32; 4] {
    let mut x =
        [counter as u32, (counter >> 32) as u32, (counter >> 64) as u32, (counter >> 96) as u32];
    let mut k = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let a = x[0] as u64 * 0xD251_1F53;
        let b = x[2] as u64 * 0xCD9E_8D57;
        x = [(b >> 32) as u32 ^ x[1] ^ k[0], b as u32, (a >> 32) as u32 ^ x[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    x
}

/// Key for a purpose: hash of the seed and a name (FNV-1a, then the SplitMix64 finalizer).
pub fn key(seed: u64, name: &str) -> u64 {
    let fnv = |h: u64, b: u8| (h ^ b as u64).wrapping_mul(0x100_0000_01b3);
    let mut z = name.bytes().fold(
        seed.to_le_bytes()
            .into_iter()
            .fold(0xcbf2_9ce4_8422_2325, fnv),
        fnv,
    );
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Standard normals `first .. first + out.len()` of the stream `key` (Box–Muller, in f64).
pub fn normals(key: u64, first: u64, out: &mut [f32]) {
    let mut block = u64::MAX;
    let mut values = [0.0; 4];
    for (i, value) in out.iter_mut().enumerate() {
        let index = first + i as u64;
        if index / 4 != block {
            block = index / 4;
            let words = philox(key, block as u128);
            (values[0], values[1]) = box_muller(words[0], words[1]);
            (values[2], values[3]) = box_muller(words[2], words[3]);
        }
        *value = values[(index % 4) as usize];
    }
}

fn box_muller(a: u32, b: u32) -> (f32, f32) {
    let u = (a as f64 + 0.5) / 4_294_967_296.0; // in (0, 1), so the logarithm is finite
    let angle = std::f64::consts::TAU * (b as f64 / 4_294_967_296.0);
    let radius = (-2.0 * u.ln()).sqrt();
    ((radius * angle.cos()) as f32, (radius * angle.sin()) as f32)
}

/// Uniform integer in `0..n` from one counter (multiply-shift on 64 bits; bias below n / 2^64).
pub fn below(key: u64, counter: u64, n: u64) -> u64 {
    let words = philox(key, counter as u128);
    let wide = (words[0] as u64) << 32 | words[1] as u64;
    ((wide as u128 * n as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors of the authors' Random123 library (kat_vectors, philox4x32 10).
    #[test]
    fn philox_gives_the_authors_answers() {
        assert_eq!(philox(0, 0), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox(u64::MAX, u128::MAX), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let counter = 0x0370_7344_1319_8a2e_85a3_08d3_243f_6a88;
        assert_eq!(
            philox(0x299f_31d0_a409_3822, counter),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn a_stream_cut_anywhere_is_the_same_stream() {
        let mut whole = [0.0; 50];
        normals(7, 3, &mut whole);
        let mut part = [0.0; 11];
        normals(7, 3 + 20, &mut part);
        assert_eq!(whole[20..31], part);
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let mut x = vec![0.0; 100_000];
        normals(key(1, "test"), 0, &mut x);
        let mean = x.iter().map(|v| *v as f64).sum::<f64>() / x.len() as f64;
        let square = x.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / x.len() as f64;
        assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02, "mean {mean}, square {square}");
    }
}
