//! Opens a file of a corpus: decompresses it according to its first bytes, rejects files that are
//! not text, and converts tables (CSV, Parquet) to JSON lines of the wanted column.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};

use anyhow::{Context, Result};

use super::csv::CsvLines;
use super::position::{Counted, Position};
use super::{Format, Input};
use base::Problems;

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
        let raw: Box<dyn Read> = match &self.path {
            Some(path) => Box::new(
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?,
            ),
            None => Box::new(std::io::stdin()),
        };
        let counted = Counted { inner: raw, position: position.clone() };
        let buffered = BufReader::with_capacity(1 << 18, counted);
        let text = self.decompressed(buffered)?;
        let (head, text) = self.peek(text)?;
        let array = head.trim_ascii_start().starts_with(b"[") && self.format == Format::JsonLines;
        if let Some((what, remedy)) = not_text(&head).or(array.then_some(ARRAY)) {
            return Err(Problems::one(self.place(), what, remedy).into());
        }
        Ok(match self.format {
            Format::Csv(delimiter) => {
                (Box::new(CsvLines::open(text, delimiter, key, &self.place())?), position)
            }
            _ => (text, position),
        })
    }

    fn decompressed(&self, mut buffered: BufReader<Counted>) -> Result<Box<dyn Read>> {
        let start = buffered.fill_buf().with_context(|| format!("cannot read {}", self.place()))?;
        let is = |magic: &[u8]| start.starts_with(magic);
        Ok(if is(&[0x1f, 0x8b]) {
            Box::new(flate2::bufread::MultiGzDecoder::new(buffered))
        } else if is(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Box::new(Frames { source: Some(buffered), decoder: None })
        } else if is(b"\xfd7zXZ\0") {
            Box::new(lzma_rust2::XzReader::new(buffered, true))
        } else if is(b"BZh") && start.get(4..10) == Some(b"1AY&SY") {
            Box::new(bzip2::bufread::MultiBzDecoder::new(buffered))
        } else {
            Box::new(buffered)
        })
    }

    /// First bytes, and a reader of all bytes.
    fn peek(&self, mut text: Box<dyn Read>) -> Result<(Vec<u8>, Box<dyn Read>)> {
        let mut head = Vec::new();
        let read = text.by_ref().take(HEAD as u64).read_to_end(&mut head);
        read.with_context(|| format!("cannot read {}", self.place()))?;
        Ok((head.clone(), Box::new(Cursor::new(head).chain(text))))
    }
}

/// Problem and remedy for JSON that is not in lines.
const ARRAY: (&str, &str) = (
    "is a JSON array, and not JSON lines",
    "write its elements one a line: jq -c '.[]' FILE > FILE.jsonl",
);

/// Problem and remedy for a file that is not text.
fn not_text(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let kinds: [(usize, &[u8], &str, &str); 5] = [
        (0, b"PAR1", "is a Parquet file, not text", "let its name end in .parquet"),
        (257, b"ustar", "is a tar archive, not text", "unpack it: tar xf, then name the folder"),
        (0, b"PK\x03\x04", "is a zip archive, not text", "unpack it, then name the folder"),
        (0, b"\x89HDF", "is an HDF5 file, not text", "write its text as JSON lines first"),
        (0, b"\x7fELF", "is a program, not text", "leave it out"),
    ];
    let is = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let found = kinds.iter().find(|(at, magic, ..)| is(*at, magic));
    found.map(|(_, _, what, remedy)| (*what, *remedy))
}

type Decoder<R> = ruzstd::decoding::StreamingDecoder<R, ruzstd::decoding::FrameDecoder>;

/// Consecutive Zstandard frames, as written by parallel compressors.
struct Frames<R: BufRead> {
    source: Option<R>,
    decoder: Option<Box<Decoder<R>>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if let Some(decoder) = &mut self.decoder {
                let read = decoder.read(out)?;
                if read > 0 || out.is_empty() {
                    return Ok(read);
                }
                let done = self.decoder.take().expect("there a moment ago");
                self.source = Some(done.into_inner());
            }
            let Some(mut source) = self.source.take() else { return Ok(0) };
            if source.fill_buf()?.is_empty() {
                self.source = Some(source);
                return Ok(0);
            }
            let decoder = Decoder::new(source).map_err(std::io::Error::other)?;
            self.decoder = Some(Box::new(decoder));
        }
    }
}
