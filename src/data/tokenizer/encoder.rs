//! Encodes many texts, with a cache of encoded pieces.

use std::collections::HashMap;

use anyhow::Result;

use super::added::Part;
use super::{Bpe, Rules, Tokenizer};

/// Encoder of one thread, with its cache of pieces.
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    /// Pieces of up to 15 bytes that became up to 3 ids; the length is a power of two.
    small: Box<[Entry]>,
    /// Other pieces.
    large: HashMap<Box<[u8]>, Box<[u32]>, xxhash_rust::xxh3::Xxh3DefaultBuilder>,
    /// Whether special tokens spelled out in text become their ids, as in Hugging Face's crate.
    parse_special: bool,
}

/// Half a cache line.
#[derive(Clone, Copy)]
struct Entry {
    /// Bytes of the piece, with their number in the top byte; 0 if empty.
    key: u128,
    ids: [u32; 3],
    count: u32,
}

impl Entry {
    #[inline(always)]
    fn append_to(&self, ids: &mut Vec<u32>) {
        match self.count {
            1 => ids.push(self.ids[0]),
            count => ids.extend_from_slice(&self.ids[..count as usize]),
        }
    }
}

const EMPTY: Entry = Entry { key: 0, ids: [0; 3], count: 0 };
/// Number of neighbouring entries in which a piece may be stored.
const PROBES: usize = 4;
/// Size at which the cache of longer pieces is cleared, so that it does not grow with the corpus.
const LARGE_LIMIT: usize = 1 << 16;
/// Maximum length of a cached piece.
const LONGEST: usize = 256;

impl<'a> Encoder<'a> {
    /// Encoder for a whole corpus, with a cache of 4 MiB.
    pub fn new(tokenizer: &'a Tokenizer) -> Encoder<'a> {
        Encoder::with_cache_size(tokenizer, 1 << 17)
    }

    /// Encoder for a sentence.
    pub fn small(tokenizer: &'a Tokenizer) -> Encoder<'a> {
        Encoder::with_cache_size(tokenizer, 64)
    }

    fn with_cache_size(tokenizer: &'a Tokenizer, entries: usize) -> Encoder<'a> {
        let small = vec![EMPTY; entries].into();
        Encoder { tokenizer, small, large: HashMap::default(), parse_special: false }
    }

    /// Converts special tokens spelled out in text to their ids. The text can then contain an end of
    /// document.
    pub fn parse_special(mut self) -> Encoder<'a> {
        self.parse_special = true;
        self
    }

    /// Appends the ids of a document, with those that the tokenizer's template adds. Byte-level BPE never
    /// fails; a Hugging Face tokenizer may have no token for a word.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.append(text, true, false, ids)
    }

    /// Appends the ids of text, without the ids of the template.
    pub fn encode_text(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.append(text, false, false, ids)
    }

    /// Appends the ids of text that continues the previous text: no space is put before it.
    pub fn encode_more(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.append(text, true, true, ids)
    }

    fn append(
        &mut self,
        text: &str,
        template: bool,
        continues: bool,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let bpe = match &self.tokenizer.rules {
            Rules::Bpe(bpe) => bpe,
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => return hf.encode(text, self.parse_special, template, ids),
        };
        let _ = template; // byte-level BPE here has none
        if !bpe.added.is_active(self.parse_special) {
            self.encode_ordinary(bpe, text, continues, ids);
            return Ok(());
        }
        bpe.added
            .split(text, self.parse_special, &mut |part| match part {
                Part::Token(id) => ids.push(id),
                Part::Text(range) => {
                    let continues = continues && range.start == 0;
                    self.encode_ordinary(bpe, &text[range], continues, ids);
                }
            });
        Ok(())
    }

    /// Encodes text without added tokens.
    fn encode_ordinary(&mut self, bpe: &Bpe, text: &str, continues: bool, ids: &mut Vec<u32>) {
        if bpe.prefix_space && !continues && !text.is_empty() && !text.starts_with(' ') {
            self.encode_pieces(bpe, &format!(" {text}"), ids);
        } else {
            self.encode_pieces(bpe, text, ids);
        }
    }

    fn encode_pieces(&mut self, bpe: &Bpe, text: &str, ids: &mut Vec<u32>) {
        let mut at = 0;
        while at < text.len() {
            let end = bpe.pre_tokenizer.end(text, at);
            self.piece(bpe, text.as_bytes(), at, end, ids);
            at = end;
        }
    }

    #[inline]
    fn piece(&mut self, bpe: &Bpe, text: &[u8], at: usize, end: usize, ids: &mut Vec<u32>) {
        if end - at > 15 {
            return self.large_piece(bpe, &text[at..end], ids);
        }
        let key = key(text, at, end);
        let home = hash(key) as usize;
        let mask = self.small.len() - 1;
        for probe in 0..PROBES {
            let entry = &self.small[(home + probe) & mask];
            if entry.key == key {
                return entry.append_to(ids);
            }
        }
        self.new_piece(bpe, key, &text[at..end], ids);
    }

    /// Merges a short piece and caches it: in an empty entry, or in place of another.
    #[inline(never)]
    fn new_piece(&mut self, bpe: &Bpe, key: u128, piece: &[u8], ids: &mut Vec<u32>) {
        if let Some(found) = self.large.get(piece) {
            return ids.extend_from_slice(found);
        }
        let from = ids.len();
        bpe.merge(piece, ids);
        let found = &ids[from..];
        if found.len() > 3 {
            return self.cache(piece, found);
        }
        let home = hash(key) as usize;
        let mask = self.small.len() - 1;
        let empty = (0..PROBES).find(|probe| self.small[(home + probe) & mask].key == 0);
        let probe = empty.unwrap_or((key as usize ^ from) % PROBES);
        let mut entry = Entry { key, ids: [0; 3], count: found.len() as u32 };
        entry.ids[..found.len()].copy_from_slice(found);
        self.small[(home + probe) & mask] = entry;
    }

    fn cache(&mut self, piece: &[u8], ids: &[u32]) {
        if self.large.len() >= LARGE_LIMIT {
            self.large.clear();
        }
        self.large.insert(piece.into(), ids.into());
    }

    #[inline(never)]
    fn large_piece(&mut self, bpe: &Bpe, piece: &[u8], ids: &mut Vec<u32>) {
        if piece.len() > LONGEST {
            return bpe.merge(piece, ids);
        }
        if let Some(found) = self.large.get(piece) {
            return ids.extend_from_slice(found);
        }
        let from = ids.len();
        bpe.merge(piece, ids);
        self.cache(piece, &ids[from..]);
    }
}

impl Bpe {
    /// Appends the ids of one piece.
    fn merge(&self, piece: &[u8], ids: &mut Vec<u32>) {
        if let Some(id) = self
            .whole_pieces
            .as_ref()
            .and_then(|whole| whole.get(piece))
        {
            return ids.push(*id);
        }
        let from = ids.len();
        ids.extend(piece.iter().map(|byte| self.byte_ids[*byte as usize]));
        self.merges.apply(ids, from);
    }
}

/// Up to 15 bytes and their number as one integer.
#[inline]
fn key(text: &[u8], at: usize, end: usize) -> u128 {
    let length = end - at;
    let raw = match text.get(at..at + 16) {
        Some(some) => u128::from_le_bytes(some.try_into().expect("16 bytes")),
        None => {
            let mut some = [0; 16];
            some[..length].copy_from_slice(&text[at..end]);
            u128::from_le_bytes(some)
        }
    };
    let mask = (1u128 << (8 * length)) - 1;
    raw & mask | (length as u128) << 120
}

#[inline]
fn hash(key: u128) -> u64 {
    let low = key as u64;
    let high = (key >> 64) as u64;
    let wide = (low ^ 0x9e37_79b9_7f4a_7c15) as u128 * (high ^ 0xd1b5_4a32_d192_ed03) as u128;
    (wide >> 64) as u64 ^ wide as u64
}
