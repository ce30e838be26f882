//! Digests. Bytes in a file are hashed by chunk (xxh3), so that damage has a byte range; the values
//! of a tensor are hashed by place, so that the digest does not depend on who holds which part.

use crate::base::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes hashed together in a file: 4 MiB.
pub const CHUNK: usize = 4 << 20;

/// 64 bits, written as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Digest {
    /// Of bytes in a file.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(xxh3_64(bytes))
    }

    /// Of values, the first of which is number `first` of the whole tensor. Digests of the parts of
    /// a tensor add up to that of the whole: each value is mixed with its number, and the results
    /// are summed (mod 2⁶⁴), so a changed, moved or missing value changes the sum.
    pub fn of_values(first: u64, values: Values) -> Digest {
        match values {
            Values::F32(values) => Digest(sum(first, values.iter().map(|v| v.to_bits()))),
            Values::Bf16(values) | Values::F16(values) => {
                Digest(sum(first, values.iter().map(|v| u32::from(*v))))
            }
        }
    }

    /// Of a rectangle of a matrix [_, cols], its values row by row, its corner at `at`.
    pub fn of_rectangle(cols: usize, at: [usize; 2], width: usize, values: Values) -> Digest {
        let first = |row: usize| ((at[0] + row) * cols + at[1]) as u64;
        if width == cols {
            return Digest::of_values(first(0), values);
        }
        let rows = (0..values.len() / width.max(1))
            .map(|row| Digest::of_values(first(row), values.range(row * width..(row + 1) * width)));
        rows.fold(Digest::default(), Digest::and)
    }

    /// Of two parts of a tensor together.
    pub fn and(self, other: Digest) -> Digest {
        Digest(self.0.wrapping_add(other.0))
    }
}

/// Values as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    F32(&'a [f32]),
    /// bf16, as bits.
    Bf16(&'a [u16]),
    /// f16, as bits.
    F16(&'a [u16]),
}

impl<'a> Values<'a> {
    /// The bits of a 16-bit type.
    pub fn halves(dtype: DType, bits: &'a [u16]) -> Values<'a> {
        match dtype {
            DType::BF16 => Values::Bf16(bits),
            DType::F16 => Values::F16(bits),
            other => panic!("{other} has not 16 bits"),
        }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Values::F32(_) => DType::F32,
            Values::Bf16(_) => DType::BF16,
            Values::F16(_) => DType::F16,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::Bf16(values) | Values::F16(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn range(self, range: std::ops::Range<usize>) -> Values<'a> {
        match self {
            Values::F32(values) => Values::F32(&values[range]),
            Values::Bf16(values) => Values::Bf16(&values[range]),
            Values::F16(values) => Values::F16(&values[range]),
        }
    }
}

/// One multiplication a value, as this is done to every value at every save and start. Each value's
/// term is a bijection of its bits, so no single change can go unseen; of several changes that
/// cancel in the products, the folded halves still differ but for a chance of 2⁻³².
fn sum(first: u64, bits: impl Iterator<Item = u32>) -> u64 {
    let mut place = (first + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut sum = 0u64;
    for bits in bits {
        let x = (u64::from(bits) ^ place).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        sum = sum.wrapping_add(x ^ x >> 32);
        place = place.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
    sum
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::str::FromStr for Digest {
    type Err = String;
    fn from_str(text: &str) -> Result<Digest, String> {
        let hex = text.len() == 16 && text.bytes().all(|b| b"0123456789abcdef".contains(&b));
        match u64::from_str_radix(text, 16) {
            Ok(value) if hex => Ok(Digest(value)),
            _ => Err("a digest is 16 hexadecimal digits".to_string()),
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// A list of digests as one string: a checkpoint of a large model has a million chunks.
pub mod list {
    use super::*;

    pub fn serialize<S: Serializer>(digests: &[Digest], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&digests.iter().map(Digest::to_string).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Digest>, D::Error> {
        let text = String::deserialize(from)?;
        let digests = text.as_bytes().chunks(16).map(|hex| {
            let hex = std::str::from_utf8(hex).map_err(de::Error::custom)?;
            hex.parse().map_err(de::Error::custom)
        });
        digests.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_shape_add_up_to_the_whole() {
        let (rows, cols) = (6, 10);
        let whole: Vec<f32> = (0..rows * cols).map(|i| i as f32 * 0.1).collect();
        let digest = Digest::of_values(0, Values::F32(&whole));
        let rectangle = |r0: usize, r1: usize, c0: usize, c1: usize| {
            let values: Vec<f32> =
                (r0..r1).flat_map(|r| whole[r * cols + c0..r * cols + c1].to_vec()).collect();
            Digest::of_rectangle(cols, [r0, c0], c1 - c0, Values::F32(&values))
        };
        assert_eq!(rectangle(0, 6, 0, 10), digest);
        let parts = [rectangle(0, 2, 0, 10), rectangle(2, 6, 0, 3), rectangle(2, 6, 3, 10)];
        assert_eq!(parts.into_iter().fold(Digest::default(), Digest::and), digest);
    }

    #[test]
    fn every_bit_and_every_place_counts() {
        let values: Vec<f32> = (0..64).map(|i| (i % 7) as f32).collect();
        let digest = Digest::of_values(0, Values::F32(&values));
        for i in 0..64 {
            for bit in 0..32 {
                let mut flipped = values.clone();
                flipped[i] = f32::from_bits(flipped[i].to_bits() ^ 1 << bit);
                assert_ne!(Digest::of_values(0, Values::F32(&flipped)), digest);
            }
        }
        let mut swapped = values.clone();
        swapped.swap(3, 11);
        assert_ne!(Digest::of_values(0, Values::F32(&swapped)), digest);
    }

    #[test]
    fn lists_are_read_as_they_were_written() {
        #[derive(Serialize, Deserialize, PartialEq, Debug)]
        struct Holder(#[serde(with = "list")] Vec<Digest>);
        let digests = Holder(vec![Digest(1), Digest(u64::MAX), Digest(0xab << 56)]);
        let json = serde_json::to_string(&digests).unwrap();
        assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), digests);
        for bad in ["\"123\"", "\"000000000000000+\"", "\"00000000000000é\""] {
            assert!(serde_json::from_str::<Holder>(bad).is_err(), "{bad}");
        }
    }
}
