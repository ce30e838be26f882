//! How tokenizer files spell bytes: GPT-2's `bytes_to_unicode`. Printable bytes stand for
//! themselves, the others for the characters from U+0100 on, so that every token is printable.

/// The character that spells a byte.
pub fn spell(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte as char;
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count();
    char::from_u32(0x100 + before as u32).expect("at most 68 bytes are not printable")
}

/// Bytes as a tokenizer file writes them.
pub fn spelled(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| spell(*byte)).collect()
}

/// The way back.
pub struct Reading {
    bytes: std::collections::HashMap<char, u8>,
}

impl Reading {
    pub fn new() -> Reading {
        Reading { bytes: (0..=255).map(|byte| (spell(byte), byte)).collect() }
    }

    /// The bytes of a token as a file spells it, or the first character that spells none.
    pub fn read(&self, token: &str) -> Result<Box<[u8]>, char> {
        token.chars().map(|c| self.bytes.get(&c).copied().ok_or(c)).collect()
    }
}
