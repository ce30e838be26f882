//! Digest of a tensor's bits, equal for device memory and for bytes in a file.

use base::DType;

/// Term of element `at` in a tensor's digest, on a device and in a checkpoint. `bits` has the width
/// of the dtype. For one index it is a bijection of the bits, so every single change is detected.
/// Several changes that cancel in the product still differ in the folded halves, except with a
/// probability of 2⁻³².
#[inline(always)]
pub fn digest_term(at: u64, bits: u32) -> u64 {
    let place = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (u64::from(bits) ^ place).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// Sum of the terms (mod 2⁶⁴) of values in memory, the first of which is element `first` of its
/// tensor.
pub fn digest_of_bytes(first: u64, dtype: DType, bytes: &[u8]) -> u64 {
    match dtype.size() {
        1 => sum(first, bytes.iter().map(|byte| u32::from(*byte))),
        2 => sum(
            first,
            bytes
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]).into()),
        ),
        4 => sum(
            first,
            bytes
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        ),
        _ => panic!("no state is of {dtype}"),
    }
}

fn sum(first: u64, bits: impl Iterator<Item = u32>) -> u64 {
    let terms = bits.zip(first..).map(|(bits, at)| digest_term(at, bits));
    terms.fold(0, u64::wrapping_add)
}
