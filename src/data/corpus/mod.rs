//! Text on disk, as documents: JSON lines, plain text, tables, as they are or compressed, one file
//! or thousands, read in chunks that threads work on while the results keep their order.
//!
//! Does not know tokens.

mod files;
mod open;
mod position;
mod csv;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "no_parquet.rs"]
mod parquet;
mod chunks;
mod json;
mod pipeline;

pub use files::{Format, Found, Input, Wanted, find};
pub use pipeline::{Report, in_order};

use std::borrow::Cow;

use anyhow::Result;

use base::Problems;
use json::{Field, Invalid};

/// A stretch of a file that can be worked on by itself.
pub struct Chunk {
    /// The file, as errors name it.
    pub place: String,
    pub format: Format,
    /// Number of the first line.
    pub first_line: u64,
    /// Lines before it that were left out unread, since they are too long.
    pub skipped: u64,
    /// Whole lines of JSON; or text, which ends where no tokenizer's pattern joins across.
    pub bytes: Vec<u8>,
    /// Whether the document goes on in the next chunk. JSON lines never do.
    pub continues: bool,
    /// Whether the document started in an earlier chunk.
    pub continued: bool,
    /// Bytes of the file, as it is on disk, read to get here: for progress.
    pub read: u64,
}

/// How a corpus is read.
pub struct Reading<'a> {
    pub inputs: &'a [Input],
    /// Threads that work, besides the one that reads.
    pub threads: usize,
    /// Keep plain text in one piece, for tokenizers whose ids would differ across a cut.
    pub whole_texts: bool,
    /// Leave out lines that are too long, and count them.
    pub skip_long: bool,
    /// The column of a table that holds the text.
    pub key: &'a str,
}

/// How documents are taken out of chunks.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The field of a JSON line, or the column of a table, that holds the text.
    pub key: String,
    /// Lines that cannot be read, or are too long to be, are counted, not fatal.
    pub skip_invalid: bool,
}

impl Chunk {
    /// Hands every document's text to `document`, in order. Returns the number of lines skipped.
    pub fn documents(
        &self,
        rules: &Rules,
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
                Format::JsonLines | Format::Csv(_) | Format::Parquet => field.text(line),
            };
            match text {
                Ok(text) => document(&text)?,
                Err(_) if rules.skip_invalid => skipped += 1,
                Err(invalid) => return Err(self.invalid(number, invalid)),
            }
        }
        Ok(skipped)
    }

    fn text(&self, rules: &Rules, mut document: impl FnMut(&str) -> Result<()>) -> Result<u64> {
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

/// A line of plain text, without its ending.
fn plain(line: &[u8]) -> Result<Cow<'_, str>, Invalid> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map(Cow::from);
    text.map_err(|_| Invalid::damaged("the line is not UTF-8"))
}
