//! Digests. Bytes in a file are hashed by chunk (xxh3), so damage is located to a byte range.
//! Values of a tensor are hashed by index, so the digest does not depend on which rank holds which
//! part.

use base::DType;
use engine::TensorSlice;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes per chunk of a file: 4 MiB.
pub const CHUNK: usize = 4 << 20;

/// 64-bit digest, written as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Digest {
    /// Digest of bytes in a file.
    pub fn from_bytes(bytes: &[u8]) -> Digest {
        Digest(xxh3_64(bytes))
    }

    /// Digest of values in memory, the first of which is number `first` of the whole tensor.
    /// Digests of the parts of a tensor add up to that of the whole. Each value is mixed with its
    /// number, and the results are summed (mod 2⁶⁴), so a changed, moved or missing value changes
    /// the sum.
    pub fn from_values(first: u64, dtype: DType, bytes: &[u8]) -> Digest {
        Digest(device::digest_of_bytes(first, dtype, bytes))
    }

    /// Digest of a rectangle of a matrix [_, cols], whose values are stored row by row.
    pub fn from_slice(cols: usize, slice: &TensorSlice, dtype: DType, bytes: &[u8]) -> Digest {
        let first = |row: usize| ((slice.at[0] + row) * cols + slice.at[1]) as u64;
        let width = slice.size[1];
        if width == cols {
            return Digest::from_values(first(0), dtype, bytes);
        }
        let rows = bytes
            .chunks(width * dtype.size())
            .enumerate()
            .map(|(row, bytes)| Digest::from_values(first(row), dtype, bytes));
        rows.fold(Digest::default(), Digest::and)
    }

    /// Digest of two parts of a tensor together.
    pub fn and(self, other: Digest) -> Digest {
        Digest(self.0.wrapping_add(other.0))
    }
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
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// Serialises a list of digests as one string, because a checkpoint of a large model has a million
/// chunks.
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

    fn of(first: u64, values: &[f32]) -> Digest {
        Digest::from_values(first, DType::F32, bytemuck::cast_slice(values))
    }

    #[test]
    fn parts_of_any_shape_add_up_to_the_whole() {
        let rows = 6;
        let cols = 10;
        let whole: Vec<f32> = (0..rows * cols).map(|i| i as f32 * 0.1).collect();
        let rectangle = |r0: usize, r1: usize, c0: usize, c1: usize| {
            let values: Vec<f32> = (r0..r1)
                .flat_map(|r| whole[r * cols + c0..r * cols + c1].to_vec())
                .collect();
            let slice = TensorSlice { at: [r0, c0], size: [r1 - r0, c1 - c0] };
            Digest::from_slice(cols, &slice, DType::F32, bytemuck::cast_slice(&values))
        };
        assert_eq!(rectangle(0, 6, 0, 10), of(0, &whole));
        let parts = [rectangle(0, 2, 0, 10), rectangle(2, 6, 0, 3), rectangle(2, 6, 3, 10)];
        assert_eq!(parts.into_iter().fold(Digest::default(), Digest::and), of(0, &whole));
    }

    #[test]
    fn every_bit_and_every_place_counts() {
        let values: Vec<f32> = (0..64).map(|i| (i % 7) as f32).collect();
        let digest = of(0, &values);
        for i in 0..64 {
            for bit in 0..32 {
                let mut flipped = values.clone();
                flipped[i] = f32::from_bits(flipped[i].to_bits() ^ 1 << bit);
                assert_ne!(of(0, &flipped), digest);
            }
        }
        let mut swapped = values.clone();
        swapped.swap(3, 11);
        assert_ne!(of(0, &swapped), digest);
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
