//! Opens a file of a corpus: decompresses it according to its first bytes, rejects files that are
//! not text, and converts tables (CSV, Parquet) to JSON lines of the wanted column.

use std::fs::File;
use std::io::{Cursor, Read};

use anyhow::{Context, Result};

use super::chunks::read_error;
use super::csv::{CsvLines, Table};
use super::position::{Counted, Position};
use super::{Format, Input, compression};
use base::Problems;
use base::json::BYTE_ORDER_MARK;

/// Bytes inspected; the magic of tar ends at 262.
const HEAD: usize = 512;

impl Input {
    /// Text or JSON lines of the file. `key` names the column of a table.
    pub fn open(&self, key: &str) -> Result<(Box<dyn Read>, Position)> {
        let position = Position::default();
        if let (Format::Parquet, Some(path)) = (self.format, &self.path) {
            #[cfg(feature = "parquet")]
            return Ok((super::parquet::lines(path, key, position.clone())?, position));
            #[cfg(not(feature = "parquet"))]
            return Err(Problems::without(path.display().to_string(), "Parquet", "").into());
        }
        let inner: Box<dyn Read> = match &self.path {
            Some(path) => Box::new(
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?,
            ),
            None => Box::new(std::io::stdin()),
        };
        let counted = Counted { inner, position: position.clone() };
        let failed = |error| read_error(error, &format!("cannot read {}", self.place()));
        let mut text = compression::decompress(counted, &self.place()).map_err(failed)?;
        let mut head = Vec::new();
        text.by_ref()
            .take(HEAD as u64)
            .read_to_end(&mut head)
            .map_err(failed)?;
        let array = head.trim_ascii_start().starts_with(b"[") && self.format == Format::JsonLines;
        if let Some((what, remedy)) = find_encoding_problem(&head).or(array.then_some(ARRAY)) {
            return Err(Problems::one(self.place(), what, remedy).into());
        }
        if head.starts_with(BYTE_ORDER_MARK) {
            head.drain(..BYTE_ORDER_MARK.len());
        }
        let text = Cursor::new(head).chain(text);
        Ok(match Table::for_format(self.format) {
            Some(table) => (Box::new(CsvLines::open(text, table, key, &self.place())?), position),
            None => (Box::new(text), position),
        })
    }
}

/// Problem and remedy for JSON that is not in lines.
const ARRAY: (&str, &str) = (
    "is a JSON array, and not JSON lines",
    "write its elements one a line: jq -c '.[]' FILE > FILE.jsonl",
);

/// Formats that are not text in UTF-8: place and bytes of their magic, name, remedy.
const NOT_TEXT: [(usize, &[u8], &str, &str); 20] = [
    (0, b"PAR1", "is a Parquet file, not text", "let its name end in .parquet"),
    (0, b"ARROW1", "is an Arrow file, not text", "write it as Parquet, and name that file"),
    (0, b"\xff\xff\xff\xff", "is an Arrow stream, not text", ARROW),
    (0, b"\xff\xfe\0\0", "is UTF-32 text", UTF_32),
    (0, b"\0\0\xfe\xff", "is UTF-32 text", UTF_32),
    (0, b"\xff\xfe", "is UTF-16 text", UTF_16),
    (0, b"\xfe\xff", "is UTF-16 text", UTF_16),
    (257, b"ustar", "is a tar archive, not text", "unpack it: tar xf, then name the folder"),
    (0, b"PK\x03\x04", "is a zip archive, not text", "unpack it, then name the folder"),
    (0, b"7z\xbc\xaf\x27\x1c", "is a 7z archive", "unpack it: 7z x FILE, then name the folder"),
    (0, b"\x04\x22\x4d\x18", "is compressed by lz4, which is not read", "unpack it: lz4 -d FILE"),
    (
        0,
        b"\x02\x21\x4c\x18",
        "is compressed by lz4 -l, which is not read",
        "unpack it: lz4 -d FILE",
    ),
    (0, b"\xff\x06\0\0sNaPpY", "is compressed by snappy, which is not read", "unpack it"),
    (0, b"\x1f\x9d", "is compressed by compress, which is not read", "unpack it: gzip -d FILE"),
    (0, b"LZIP\x01", "is compressed by lzip, which is not read", "unpack it: lzip -d FILE"),
    (0, b"\x5d\0\0", "is compressed by lzma, which is not read", "unpack it: xz -d FILE"),
    (0, b"\x89HDF", "is an HDF5 file, not text", "write its text as JSON lines first"),
    (0, b"\x93NUMPY", "is a NumPy array, not text", "name the text that it was made from"),
    (0, b"%PDF-", "is a PDF, not text", "extract its text: pdftotext FILE"),
    (0, b"\x7fELF", "is a program, not text", "leave it out"),
];

const UTF_32: &str = "convert it: iconv -f UTF-32 -t UTF-8 FILE > NEW";
const UTF_16: &str = "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW";
const UTF_16_LE: &str = "convert it: iconv -f UTF-16LE -t UTF-8 FILE > NEW";
const UTF_16_BE: &str = "convert it: iconv -f UTF-16BE -t UTF-8 FILE > NEW";
/// Remedy for what `Dataset.save_to_disk` writes.
const ARROW: &str = "in Python: datasets.load_from_disk(FOLDER)[\"train\"].to_parquet(FILE)";

/// Problem and remedy for a file that is not text in UTF-8.
fn find_encoding_problem(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let is = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let found = NOT_TEXT
        .iter()
        .find(|(at, magic, ..)| is(*at, magic))
        .map(|(_, _, what, remedy)| (*what, *remedy));
    found
        .or_else(|| is_utf_16(head, 1).then_some(("is UTF-16 text", UTF_16_LE)))
        .or_else(|| is_utf_16(head, 0).then_some(("is UTF-16 text", UTF_16_BE)))
}

/// Whether byte `nul` of each pair is 0 and the other one is not: Latin text without a byte order mark.
fn is_utf_16(head: &[u8], nul: usize) -> bool {
    let mut pairs = head.chunks_exact(2);
    pairs.len() >= 2 && pairs.all(|pair| pair[nul] == 0 && pair[1 - nul] != 0)
}
