//! Spelling of bytes in tokenizer files: GPT-2's `bytes_to_unicode`. Printable bytes are themselves, the
//! others are characters from U+0100, so that every token is printable.

/// Character that spells a byte.
pub fn spell(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte as char;
    }
    let rank = (0..byte).filter(|byte| !printable(*byte)).count();
    char::from_u32(0x100 + rank as u32).expect("at most 68 bytes are not printable")
}

/// Spelling of bytes in a tokenizer file.
pub fn spell_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| spell(*byte)).collect()
}

/// Reverse mapping, from characters to bytes.
pub struct ByteDecoder {
    bytes: std::collections::HashMap<char, u8>,
}

impl ByteDecoder {
    pub fn new() -> ByteDecoder {
        ByteDecoder { bytes: (0..=255).map(|byte| (spell(byte), byte)).collect() }
    }

    /// Bytes of a token's spelling, or the first invalid character.
    pub fn decode(&self, token: &str) -> Result<Box<[u8]>, char> {
        token
            .chars()
            .map(|c| self.bytes.get(&c).copied().ok_or(c))
            .collect()
    }
}
