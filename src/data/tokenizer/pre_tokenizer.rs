//! Cuts text into the pieces that are encoded one by one, by hand-written equivalents of the regular
//! expressions that define tokenizers.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// Rule that cuts text into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreTokenizer {
    /// No cuts.
    Whole,
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// ` ?[^(\s|[.,!?…。，、।۔،])]+`, and the text between its matches.
    Bloom,
}

/// Pattern in BLOOM's tokenizer.json.
pub const BLOOM: &str = " ?[^(\\s|[.,!?…。，、।۔،])]+";
/// Pattern of GPT-2, for tokenizers that spell it out instead of naming ByteLevel.
pub const GPT2: &str =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/// Pattern of Qwen2's tokenizers, by Hugging Face's crate.
pub const QWEN2: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| \
                         ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

impl PreTokenizer {
    /// End of the piece that starts at `at`, a character boundary before the end of the text.
    #[inline]
    pub fn end(self, text: &str, at: usize) -> usize {
        match self {
            PreTokenizer::Whole => text.len(),
            PreTokenizer::Gpt2 => gpt2_end(text, at),
            PreTokenizer::Bloom => bloom_end(text, at),
        }
    }
}

/// Character classes of the patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Other,
    Letter,
    Number,
    Space,
}

/// Kind of every character: 1 MB, computed once per process.
static KINDS: LazyLock<Box<[Kind]>> = LazyLock::new(|| {
    let mut kinds = vec![Kind::Other; char::MAX as usize + 1];
    for (pattern, kind) in
        [("\\p{L}", Kind::Letter), ("\\p{N}", Kind::Number), ("\\p{White_Space}", Kind::Space)]
    {
        let hir = regex_syntax::parse(pattern).expect("a fixed pattern");
        let HirKind::Class(Class::Unicode(class)) = hir.kind() else { unreachable!("a class") };
        for range in class.ranges() {
            kinds[range.start() as usize..=range.end() as usize].fill(kind);
        }
    }
    kinds.into()
});

/// Kinds of ASCII characters, so that `KINDS` is not needed for them.
static ASCII: [Kind; 128] = {
    let mut kinds = [Kind::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        kinds[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Kind::Letter,
            b'0'..=b'9' => Kind::Number,
            b' ' | b'\t'..=b'\r' => Kind::Space,
            _ => Kind::Other,
        };
        byte += 1;
    }
    kinds
};

/// Kind and width of the character at `at`.
#[inline(always)]
fn classify(text: &str, at: usize) -> (Kind, usize) {
    let byte = text.as_bytes()[at];
    if byte < 128 { (ASCII[byte as usize], 1) } else { classify_wide(text, at) }
}

/// Kind and width of a character that is not ASCII.
#[cold]
#[inline(never)]
fn classify_wide(text: &str, at: usize) -> (Kind, usize) {
    let c = text[at..]
        .chars()
        .next()
        .expect("a boundary before the end");
    (KINDS[c as usize], c.len_utf8())
}

/// End of the run of one kind that contains `at`.
#[inline(always)]
fn end_of_run(text: &str, mut at: usize, wanted: Kind) -> usize {
    while at < text.len() {
        let (kind, width) = classify(text, at);
        if kind != wanted {
            break;
        }
        at += width;
    }
    at
}

#[inline(always)]
fn gpt2_end(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let (first, width) = classify(text, at);
    if first != Kind::Space {
        if bytes[at] == b'\'' {
            match bytes[at + 1..] {
                [b's' | b't' | b'm' | b'd', ..] => return at + 2,
                [b'r', b'e', ..] | [b'v', b'e', ..] | [b'l', b'l', ..] => return at + 3,
                _ => {}
            }
        }
        return end_of_run(text, at + width, first);
    }
    if bytes[at] == b' ' && at + 1 < text.len() {
        let (second, width) = classify(text, at + 1);
        if second != Kind::Space {
            return end_of_run(text, at + 1 + width, second);
        }
    }
    end_of_spaces(text, at, width)
}

/// End of the spaces at `at`: all of them at the end of the text, otherwise all but the last.
fn end_of_spaces(text: &str, at: usize, width: usize) -> usize {
    let mut last = at;
    let mut end = at + width;
    while end < text.len() {
        let (kind, width) = classify(text, end);
        if kind != Kind::Space {
            return if last > at { last } else { end };
        }
        (last, end) = (end, end + width);
    }
    end
}

fn bloom_end(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let next = |at: usize| text[at..].chars().next();
    let word = |at: usize| next(at).is_some_and(|c| !ends_word(c));
    let starts = |at: usize| word(at) || (bytes[at] == b' ' && word(at + 1));
    let mut end = at;
    if starts(at) {
        end += (bytes[at] == b' ') as usize;
        while let Some(c) = next(end).filter(|c| !ends_word(*c)) {
            end += c.len_utf8();
        }
    } else {
        while let Some(c) = next(end) {
            if starts(end) {
                break;
            }
            end += c.len_utf8();
        }
    }
    end
}

/// Whether a character is not in the class of BLOOM's pattern.
fn ends_word(c: char) -> bool {
    let punctuation = "(|.,!?…。，、।۔،)";
    if c.is_ascii() {
        return ASCII[c as usize] == Kind::Space || punctuation.as_bytes().contains(&(c as u8));
    }
    KINDS[c as usize] == Kind::Space || punctuation.contains(c)
}
