//! Text on disk as documents: JSON lines, plain text or tables, plain or compressed, in one file or
//! thousands. Files are read in chunks that threads process, while results keep their order.
//!
//! Independent of tokens.

mod files;
mod names;
mod open;
mod compression;
mod position;
mod csv;
#[cfg(feature = "parquet")]
mod parquet;
mod chunks;
mod json;
mod pipeline;

pub use files::{CorpusFiles, FileSelection, Format, Input, find};
pub use pipeline::{ReadProgress, process_in_order};

use std::borrow::Cow;
use std::ops::Range;

use anyhow::Result;

use base::Problems;
use json::{Field, Invalid};

/// Part of a file that can be processed separately.
pub struct Chunk {
    /// Name of the file in errors.
    pub place: String,
    pub format: Format,
    /// Number of the first line.
    pub first_line: u64,
    /// Lines before it that were skipped unread, because they are too long.
    pub skipped: u64,
    /// Whole lines of JSON; or text that ends where no tokenizer's pattern joins across.
    pub bytes: Vec<u8>,
    /// Whether the document continues in the next chunk. JSON lines never do.
    pub continues_in_next: bool,
    /// Whether the document started in an earlier chunk.
    pub continues_previous: bool,
    /// Bytes of the file on disk read so far, for progress.
    pub read: u64,
}

/// Parameters for reading a corpus.
pub struct ReadOptions<'a> {
    pub inputs: &'a [Input],
    pub rules: &'a DocumentRules,
    /// Number of worker threads, in addition to the reading thread.
    pub threads: usize,
    /// Whether to keep plain text in one piece, for tokenizers whose ids would differ across a cut.
    pub whole_texts: bool,
}

/// Rules for extracting documents from chunks.
#[derive(Clone, Debug)]
pub struct DocumentRules {
    /// Field of a JSON line, or column of a table, that holds the text.
    pub key: String,
    /// Whether to count lines that are unreadable or too long instead of failing.
    pub skip_invalid: bool,
}

impl Chunk {
    /// Passes every document's text to `document`, in order. Returns the number of skipped lines.
    pub fn documents(
        &self,
        rules: &DocumentRules,
        mut document: impl FnMut(&str) -> Result<()>,
    ) -> Result<u64> {
        if self.format == Format::Text {
            return self.pass_text(rules, document);
        }
        let field = Field::new(&rules.key);
        let mut skipped = self.skipped;
        for (bytes, number) in self.pieces() {
            let text = match self.format {
                Format::Lines | Format::Paragraphs | Format::Text => decode_plain(bytes),
                Format::Csv | Format::Tsv | Format::QuotedTsv => csv::text(&field, bytes),
                Format::JsonLines | Format::Parquet => field.text(bytes),
            };
            match text {
                Ok(text) => document(&text)?,
                Err(_) if rules.skip_invalid => skipped += 1,
                Err(invalid) => {
                    return Err(
                        self.problem_at(number, self.name_json_not_in_lines(number, invalid))
                    );
                }
            }
        }
        Ok(skipped)
    }

    /// Bytes of each document, with the number of its first line: lines, or groups of lines between
    /// empty ones.
    fn pieces(&self) -> Vec<(&[u8], u64)> {
        let is_empty = |line: &[u8]| line.iter().all(u8::is_ascii_whitespace);
        let lines = self
            .bytes
            .split(|byte| *byte == b'\n')
            .zip(self.first_line..);
        if self.format != Format::Paragraphs {
            return lines.filter(|(line, _)| !is_empty(line)).collect();
        }
        let mut pieces: Vec<(Range<usize>, u64)> = Vec::new();
        let mut start = 0;
        let mut is_open = false;
        for (line, number) in lines {
            let end = start + line.len();
            match pieces.last_mut() {
                _ if is_empty(line) => is_open = false,
                Some((piece, _)) if is_open => piece.end = end,
                _ => {
                    pieces.push((start..end, number));
                    is_open = true;
                }
            }
            start = end + 1;
        }
        pieces
            .into_iter()
            .map(|(piece, number)| (&self.bytes[piece], number))
            .collect()
    }

    /// Problem of JSON that is not in lines, in place of the problem of its first line.
    fn name_json_not_in_lines(&self, number: u64, invalid: Invalid) -> Invalid {
        let before = (number - self.first_line) as usize;
        let rest = self.bytes.splitn(before + 1, |byte| *byte == b'\n').last();
        if self.format != Format::JsonLines || !rest.is_some_and(json::spans_lines) {
            return invalid;
        }
        let what = "an object over several lines, and not JSON lines".into();
        Invalid { what, remedy: "write one object per line: jq -c . FILE > FILE.jsonl" }
    }

    fn pass_text(
        &self,
        rules: &DocumentRules,
        mut document: impl FnMut(&str) -> Result<()>,
    ) -> Result<u64> {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => {
                document(text)?;
                Ok(0)
            }
            Err(_) if rules.skip_invalid => {
                document(&String::from_utf8_lossy(&self.bytes))?;
                Ok(1)
            }
            Err(error) => {
                let good = &self.bytes[..error.valid_up_to()];
                let line = good.iter().filter(|byte| **byte == b'\n').count() as u64;
                let invalid = Invalid::encoding_error(&self.bytes, "text");
                Err(self.problem_at(self.first_line + line, invalid))
            }
        }
    }

    fn problem_at(&self, line: u64, Invalid { what, remedy }: Invalid) -> anyhow::Error {
        Problems::one(format!("{}:{line}", self.place), what, remedy).into()
    }
}

/// Lines of plain text, without the ending of the last one.
fn decode_plain(line: &[u8]) -> Result<Cow<'_, str>, Invalid> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map(Cow::from);
    text.map_err(|_| Invalid::encoding_error(line, "line"))
}
