//! Megatron's indexed datasets: `PREFIX.bin`, a bare stream of tokens, and `PREFIX.idx`, the
//! position of each sequence in it. Little-endian, the arrays unaligned:
//!
//! ```text
//! MMIDIDX\0\0 · version u64 = 1 · dtype u8 · S u64 · D u64
//! lengths i32[S] · offsets i64[S] · documents i64[D] · modes i8[S] (only in multimodal datasets)
//! ```
//!
//! S sequences; D − 1 documents, document d being the sequences `documents[d] .. documents[d + 1]`.
//!
//! Independent of samples, and of the meaning of a token.

pub mod digest;
mod missing;
mod read;
mod write;

mod map;

pub(super) use map::{Access, Mapped};
pub use read::Indexed;
pub use write::Writer;

use std::fmt;
use std::path::{Path, PathBuf};

/// First bytes of an index.
const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// Bytes before the arrays.
const HEADER: usize = 34;

/// Type of a dataset's elements, by its code in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenType {
    U8 = 1,
    I8 = 2,
    I16 = 3,
    I32 = 4,
    I64 = 5,
    /// Not used for tokens.
    F64 = 6,
    /// f32 by Megatron-Core, f64 by Megatron-DeepSpeed. Not used for tokens.
    Float = 7,
    U16 = 8,
}

/// Types in the order of their codes: name, bytes per element, and largest id (0 if it cannot hold
/// tokens).
const TYPES: [(TokenType, &str, usize, u64); 8] = [
    (TokenType::U8, "uint8", 1, u8::MAX as u64),
    (TokenType::I8, "int8", 1, i8::MAX as u64),
    (TokenType::I16, "int16", 2, i16::MAX as u64),
    (TokenType::I32, "int32", 4, i32::MAX as u64),
    (TokenType::I64, "int64", 8, i64::MAX as u64),
    (TokenType::F64, "float64", 8, 0),
    (TokenType::Float, "float", 4, 0),
    (TokenType::U16, "uint16", 2, u16::MAX as u64),
];

impl TokenType {
    /// Smallest type that Megatron's preprocessing would choose for ids below `vocab`: u16 below
    /// 65,500, otherwise i32.
    pub fn for_vocab(vocab: usize) -> TokenType {
        if vocab < 65_500 { TokenType::U16 } else { TokenType::I32 }
    }

    pub fn from_code(code: u8) -> Option<TokenType> {
        TYPES
            .iter()
            .map(|(token_type, ..)| *token_type)
            .find(|found| found.code() == code)
    }

    pub fn code(self) -> u8 {
        self as u8
    }

    /// Bytes per element, for types that can hold tokens.
    pub fn size(self) -> usize {
        TYPES[self as usize - 1].2
    }

    /// Largest id of the type.
    pub fn max(self) -> u64 {
        TYPES[self as usize - 1].3
    }
}

impl fmt::Display for TokenType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(TYPES[*self as usize - 1].1)
    }
}

/// Path `PREFIX.idx`. A prefix may contain dots, so the ending is appended.
pub fn index_path(prefix: &Path) -> PathBuf {
    append_ending(prefix, ".idx")
}

/// Path `PREFIX.bin`.
pub fn tokens_path(prefix: &Path) -> PathBuf {
    append_ending(prefix, ".bin")
}

/// Path `PREFIX.tokenizer`, of the tokenizer's record.
pub fn record_path(prefix: &Path) -> PathBuf {
    append_ending(prefix, ".tokenizer")
}

/// A path with an ending appended: a prefix may contain dots.
fn append_ending(prefix: &Path, ending: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(ending);
    path.into()
}
