//! Text on disk as documents: JSON lines, plain text or tables, plain or compressed, in one file or
//! thousands. Files are read in chunks that threads process, while results keep their order.
//!
//! Independent of tokens.

mod files;
mod open;
mod position;
mod csv;
#[cfg(feature = "parquet")]
mod parquet;
mod chunks;
mod json;
mod pipeline;

pub use files::{CorpusFiles, FileSelection, Format, Input, find};
pub use pipeline::{ReadProgress, in_order};

use std::borrow::Cow;

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
    pub continues: bool,
    /// Whether the document started in an earlier chunk.
    pub continued: bool,
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
            return self.text(rules, document);
        }
        let field = Field::new(&rules.key);
        let mut skipped = self.skipped;
        for (line, number) in self.bytes.split(|byte| *byte == b'\n').zip(self.first_line..) {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let text = match self.format {
                Format::Lines | Format::Text => plain(line),
                Format::Csv(_) => csv::text(&field, line),
                Format::JsonLines | Format::Parquet => field.text(line),
            };
            match text {
                Ok(text) => document(&text)?,
                Err(_) if rules.skip_invalid => skipped += 1,
                Err(invalid) => return Err(self.invalid(number, invalid)),
            }
        }
        Ok(skipped)
    }

    fn text(
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
                Err(self.invalid(self.first_line + line, Invalid::damaged("the text is not UTF-8")))
            }
        }
    }

    fn invalid(&self, line: u64, Invalid { what, remedy }: Invalid) -> anyhow::Error {
        Problems::one(format!("{}:{line}", self.place), what, remedy).into()
    }
}

/// Line of plain text, without its ending.
fn plain(line: &[u8]) -> Result<Cow<'_, str>, Invalid> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map(Cow::from);
    text.map_err(|_| Invalid::damaged("the line is not UTF-8"))
}
