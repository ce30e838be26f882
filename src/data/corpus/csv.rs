//! Tables in CSV or TSV, as JSON lines of one column.

use std::io::{Error, Read};

use anyhow::Result;
use csv::ByteRecord;

use super::chunks::{self, LONGEST};
use super::json::{Field, Invalid, LISTED};
use base::{Bytes, Count, Problems};
use std::borrow::Cow;
use std::collections::VecDeque;

/// Maximum number of columns.
const COLUMNS: u64 = 1 << 20;

/// Begins the line of a row with more or fewer columns than the header: both numbers follow.
const RAGGED: &[u8] = b"ragged ";

/// Rows of a table with a header, each as a line `{"key":"text"}` or as a ragged row. Line numbers are
/// those of the table: a row that spans several lines is followed by empty ones.
pub struct CsvLines<R> {
    reader: csv::Reader<Bounded<R>>,
    key: String,
    place: String,
    column: usize,
    columns: usize,
    row: ByteRecord,
    /// Lines written so far.
    lines: u64,
    /// Bytes of lines that are not read yet.
    unread: VecDeque<u8>,
}

impl<R: Read> CsvLines<R> {
    /// Fails unless the first row names the column `key`.
    pub fn open(inner: R, delimiter: u8, key: &str, place: &str) -> Result<CsvLines<R>> {
        let (row, place_of) = (Size::default(), place.into());
        let inner = Bounded { inner, delimiter, place: place_of, row, crlf: None, last: 0 };
        let mut builder = csv::ReaderBuilder::new();
        let mut reader = builder.delimiter(delimiter).flexible(true).from_reader(inner);
        let failed =
            |error| chunks::read_error(damaged(place, error), &format!("cannot read {place}"));
        let header = reader.byte_headers().map_err(failed)?.clone();
        let bare =
            |name: &[u8]| name.strip_prefix(b"\xef\xbb\xbf").unwrap_or(name) == key.as_bytes();
        let Some(column) = header.iter().position(bare) else {
            let names: Vec<_> = header.iter().take(LISTED).map(String::from_utf8_lossy).collect();
            let more = if header.len() > LISTED { ", …" } else { "" };
            let names = names.join(", ");
            let what = format!("the table has no column \"{key}\"; it has: {names}{more}");
            return Err(Problems::one(place, what, "name one of them with --key").into());
        };
        let key = serde_json::to_string(key)?;
        let (row, columns, unread) = (ByteRecord::new(), header.len(), VecDeque::new());
        let place = place.to_string();
        Ok(CsvLines { reader, key, place, column, columns, row, lines: 0, unread })
    }

    /// Reads another row into `unread`. Returns false at the end.
    fn next(&mut self) -> std::io::Result<bool> {
        self.reader.get_mut().row = Size::default();
        let read = self.reader.read_byte_record(&mut self.row);
        if !read.map_err(|error| damaged(&self.place, error))? {
            return Ok(false);
        }
        // A row begins for the library with the \n of the \r\n before it.
        let crlf = self.reader.get_ref().crlf == Some(true);
        let number = self.row.position().map_or(0, csv::Position::line) + u64::from(crlf);
        let empty = number.saturating_sub(self.lines + 1);
        self.unread.resize(empty as usize, b'\n');
        self.lines += empty + 1;
        match self.row.get(self.column).filter(|_| self.row.len() == self.columns) {
            Some(text) => super::json::write_line(&self.key, Some(text), &mut self.unread),
            None => {
                let columns = format!("{} {}\n", self.row.len(), self.columns);
                self.unread.extend(RAGGED);
                self.unread.extend(columns.as_bytes());
            }
        }
        Ok(true)
    }
}

/// Text of a row's line, or the problem of the row.
pub fn text<'l>(field: &Field, line: &'l [u8]) -> Result<Cow<'l, str>, Invalid> {
    let Some(columns) = line.strip_prefix(RAGGED) else { return field.text(line) };
    let columns = String::from_utf8_lossy(columns);
    let (row, header) = columns.split_once(' ').unwrap_or_default();
    let s = if row == "1" { "" } else { "s" };
    Err(Invalid::damaged(format!("the row has {row} column{s}; the header has {header}")))
}

/// Error of a failed read, or of a mistake in the table.
fn damaged(place: &str, error: csv::Error) -> Error {
    let what = format!("is not a table: {error}");
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        _ => Error::other(Problems::one(place, what, "mend it, or give its --format")),
    }
}

impl<R: Read> Read for CsvLines<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.unread.is_empty() && !self.next()? {
            return Ok(0);
        }
        self.unread.read(out)
    }
}

/// Table with a limit on the size of a row, which is held in memory with the place of each column.
struct Bounded<R> {
    inner: R,
    delimiter: u8,
    place: String,
    row: Size,
    /// Whether the first line ends by \r\n; None before its end.
    crlf: Option<bool>,
    /// Byte before the next read.
    last: u8,
}

/// Size of a row so far, including bytes read ahead.
#[derive(Default)]
struct Size {
    bytes: u64,
    columns: u64,
    quoted: bool,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(out)?;
        if self.crlf.is_none() {
            let end = out[..read].iter().position(|byte| *byte == b'\n');
            let before = |end: usize| end.checked_sub(1).map_or(self.last, |at| out[at]);
            self.crlf = end.map(|end| before(end) == b'\r');
            self.last = out[..read].last().copied().unwrap_or_default();
        }
        let row = &mut self.row;
        row.bytes += read as u64;
        for byte in &out[..read] {
            row.quoted ^= *byte == b'"';
            row.columns += u64::from(*byte == self.delimiter && !row.quoted);
        }
        let what = match () {
            _ if row.bytes > LONGEST as u64 => format!("more than {}", Bytes(LONGEST as u64)),
            _ if row.columns > COLUMNS => format!("more than {} columns", Count(COLUMNS)),
            _ => return Ok(read),
        };
        let what = format!("has a row of {what}");
        let remedy = "close a quote that is open, or see whether --format is right";
        Err(Error::other(Problems::one(self.place.as_str(), what, remedy)))
    }
}
