//! Element types of tensors.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    F32,
    BF16,
    F16,
    U8,
    I32,
    I64,
}

impl DType {
    /// All types, in the order in which messages between ranks number them.
    pub const ALL: [DType; 6] =
        [DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U8];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::BF16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }

    /// Bits of values rounded to this type; None unless the type has 16 bits.
    pub fn halves(self, values: &[f32]) -> Option<Vec<u16>> {
        match self {
            DType::BF16 => Some(
                values
                    .iter()
                    .map(|v| bf16::from_f32(*v).to_bits())
                    .collect(),
            ),
            DType::F16 => Some(values.iter().map(|v| f16::from_f32(*v).to_bits()).collect()),
            DType::F32 | DType::U8 | DType::I32 | DType::I64 => None,
        }
    }

    /// Converts values from their bytes to f32.
    pub fn widen(self, bytes: &[u8]) -> Vec<f32> {
        let halves = bytes
            .chunks_exact(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]));
        let words = bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        match self {
            DType::F32 => words.map(f32::from_le_bytes).collect(),
            DType::BF16 => halves.map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            DType::F16 => halves.map(|bits| f16::from_bits(bits).to_f32()).collect(),
            DType::U8 => bytes.iter().map(|byte| f32::from(*byte)).collect(),
            DType::I32 => words.map(|word| i32::from_le_bytes(word) as f32).collect(),
            DType::I64 => panic!("i64 as f32"),
        }
    }

    /// Whether all values in memory are finite. Tests the largest magnitude, since magnitudes
    /// compare as integers.
    pub fn finite(self, bytes: &[u8]) -> bool {
        let largest16 = || {
            let bits = bytes
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]) & 0x7fff);
            bits.fold(0, u16::max)
        };
        match self {
            DType::F32 => {
                let bits = bytes
                    .chunks_exact(4)
                    .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                bits.map(|bits| bits & 0x7fff_ffff).fold(0, i32::max) < 0x7f80_0000
            }
            DType::BF16 => largest16() < 0x7f80,
            DType::F16 => largest16() < 0x7c00,
            DType::U8 | DType::I32 | DType::I64 => true,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::I64 => "i64",
        })
    }
}
