//! Tables in CSV or TSV, as JSON lines of one column.
//!
//! In CSV a field that begins with a quote ends with one, and a quote within it is written twice, as in
//! Python's `csv` with `strict`. In TSV quotes are letters: its writers have no other use for them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{Error, Read};
use std::iter;
use std::ops::Range;

use anyhow::Result;

use super::Format;
use super::chunks::{self, LONGEST};
use super::json::{Field, Invalid, LISTED, write_line};
use base::{Bytes, Count, Problems};

/// Maximum number of columns.
const COLUMNS: usize = 1 << 20;
/// Minimum number of bytes read at once.
const READ_SIZE: usize = 1 << 18;
/// Begins the line of a row that cannot be read: the reason follows.
const WRONG: u8 = b'!';

/// Rules of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    pub delimiter: u8,
    /// Whether a quote at the start of a field encloses it.
    pub quotes: bool,
}

/// Rows of a table with a header, each as a line `{"key":"text"}` or with the reason why it cannot be
/// read. Line numbers are those of the table: a row that spans several lines is followed by empty ones.
pub struct CsvLines<R> {
    rows: Rows<R>,
    key: String,
    column: usize,
    columns: usize,
    /// Bytes of lines that are not read yet.
    unread: VecDeque<u8>,
    /// Whether a note on quotes was printed.
    warned: bool,
}

impl<R: Read> CsvLines<R> {
    /// Fails unless the first row names the column `key`.
    pub fn open(inner: R, table: Table, key: &str, place: &str) -> Result<CsvLines<R>> {
        let bytes = Vec::new();
        let at = 0;
        let ended = false;
        let mut rows = Rows { inner, table, place: place.into(), bytes, at, ended };
        let mut unread = VecDeque::new();
        let failed = |error| chunks::read_error(error, &format!("cannot read {place}"));
        let mut row = rows.next().map_err(failed)?;
        while let Some(Row { lines, .. }) = row.as_ref().filter(|row| row.is_empty()) {
            unread.extend(iter::repeat_n(b'\n', *lines));
            row = rows.next().map_err(failed)?;
        }
        let header = row.unwrap_or(Row { lines: 0, fields: Ok(Vec::new()) });
        unread.extend(iter::repeat_n(b'\n', header.lines));
        let fields = header.fields.map_err(|what| {
            Problems::one(format!("{place}:{}", unread.len()), what, "repair the file")
        })?;
        let column = rows.find_column(&fields, key)?;
        let key = serde_json::to_string(key)?;
        let columns = fields.len();
        Ok(CsvLines { rows, key, column, columns, unread, warned: false })
    }

    /// Reads another row into `unread`. Returns false at the end.
    fn next(&mut self) -> std::io::Result<bool> {
        let Some(row) = self.rows.next()? else { return Ok(false) };
        let others = iter::repeat_n(b'\n', row.lines - 1);
        if row.is_empty() {
            self.unread.push_back(b'\n');
            return Ok(true);
        }
        match &row.fields {
            Ok(fields) if fields.len() == self.columns => {
                self.warn_of_quotes(&fields[self.column]);
                let text = self.rows.text(&fields[self.column]);
                write_line(&self.key, Some(&text), &mut self.unread);
                self.unread.extend(others);
            }
            Ok(fields) => {
                let s = if fields.len() == 1 { "" } else { "s" };
                let (columns, header) = (fields.len(), self.columns);
                self.write_problem(&format!(
                    "the row has {columns} column{s}; the header has {header}"
                ));
                self.unread.extend(others);
            }
            Err(what) => {
                self.unread.extend(others); // the quote is in the last line
                self.write_problem(what);
            }
        }
        Ok(true)
    }

    /// Writes the line of a row that cannot be read.
    fn write_problem(&mut self, what: &str) {
        self.unread.push_back(WRONG);
        self.unread.extend(what.as_bytes());
        self.unread.push_back(b'\n');
    }

    /// Prints a note if quotes are letters, and a field has them as if they enclosed it.
    fn warn_of_quotes(&mut self, field: &Span) {
        let bytes = &self.rows.bytes[field.bytes.clone()];
        let inner = bytes
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        let is_quoted = inner.is_some_and(|inner| {
            inner
                .split(|byte| *byte == b'"')
                .skip(1)
                .step_by(2)
                .all(<[u8]>::is_empty)
                && inner.contains(&b'"')
        });
        if is_quoted && !self.rows.table.quotes && !self.warned {
            self.warned = true;
            let place = base::escape_control(&self.rows.place);
            base::warn!("note: {place} has fields in quotes, which are read as letters; if they");
            base::warn!("      enclose the fields, as in CSV, give --format quoted-tsv");
        }
    }
}

/// Text of a row's line, or the problem of the row.
pub fn text<'l>(field: &Field, line: &'l [u8]) -> Result<Cow<'l, str>, Invalid> {
    let Some(what) = line.strip_prefix(&[WRONG]) else { return field.text(line) };
    Err(Invalid::damaged(String::from_utf8_lossy(what)))
}

impl<R: Read> Read for CsvLines<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.unread.is_empty() && !self.next()? {
            return Ok(0);
        }
        self.unread.read(out)
    }
}

/// Row of a table.
struct Row {
    /// Lines that it spans. If its quotes are wrong: lines up to the one in which the quote is.
    lines: usize,
    /// Fields, none in an empty line; or what is wrong with a quote.
    fields: Result<Vec<Span>, String>,
}

impl Row {
    fn is_empty(&self) -> bool {
        self.fields.as_ref().is_ok_and(Vec::is_empty)
    }
}

/// Place of a field in `Rows::bytes`, without the quotes that enclose it.
struct Span {
    bytes: Range<usize>,
    quoted: bool,
}

/// Rows of a table.
struct Rows<R> {
    inner: R,
    table: Table,
    place: String,
    /// Bytes read: the last row, and those after it.
    bytes: Vec<u8>,
    /// Start of the next row.
    at: usize,
    ended: bool,
}

impl<R: Read> Rows<R> {
    /// Next row, whose fields are valid until the one after it is read.
    fn next(&mut self) -> std::io::Result<Option<Row>> {
        loop {
            if self.at == self.bytes.len() && self.ended {
                return Ok(None);
            }
            let is_long = self.bytes.len() - self.at > LONGEST;
            let row = self.table.row(&self.bytes, self.at, self.ended || is_long);
            let what = match row {
                Some((_, end)) if end == self.bytes.len() && !self.ended && is_long => None,
                Some((Row { fields: Ok(fields), .. }, _)) if fields.len() > COLUMNS => {
                    Some(format!("more than {} columns", Count(COLUMNS as u64)))
                }
                Some((row, end)) => {
                    self.at = end;
                    return Ok(Some(row));
                }
                None => None,
            };
            let longest = is_long.then(|| format!("more than {}", Bytes(LONGEST as u64)));
            if let Some(what) = what.or(longest) {
                return Err(Error::other(Problems::one(
                    self.place.as_str(),
                    format!("has a row of {what}"),
                    "close a quote that is open, or see whether --format is right",
                )));
            }
            self.read_more()?;
        }
    }

    /// Doubles the bytes of an unfinished row.
    fn read_more(&mut self) -> std::io::Result<()> {
        self.bytes.drain(..self.at);
        self.at = 0;
        let room = self.bytes.len().max(READ_SIZE) as u64;
        let read = self
            .inner
            .by_ref()
            .take(room)
            .read_to_end(&mut self.bytes)?;
        self.ended = read < room as usize;
        Ok(())
    }

    /// Column with a name. `fields` are the header's.
    fn find_column(&self, fields: &[Span], key: &str) -> Result<usize, Problems> {
        fields
            .iter()
            .position(|field| *self.text(field) == *key.as_bytes())
            .ok_or_else(|| {
                let names: Vec<String> = fields
                    .iter()
                    .take(LISTED)
                    .map(|field| String::from_utf8_lossy(&self.text(field)).into_owned())
                    .collect();
                let more = if fields.len() > LISTED { ", …" } else { "" };
                let names = names.join(", ");
                Problems::one(
                    self.place.as_str(),
                    format!("the table has no column \"{key}\"; it has: {names}{more}"),
                    "name one of them with --key",
                )
            })
    }

    fn text(&self, field: &Span) -> Cow<'_, [u8]> {
        let bytes = &self.bytes[field.bytes.clone()];
        if !field.quoted || !bytes.contains(&b'"') {
            return bytes.into();
        }
        let mut text = Vec::with_capacity(bytes.len());
        let mut is_first = false;
        for byte in bytes {
            is_first = *byte == b'"' && !is_first;
            if is_first || *byte != b'"' {
                text.push(*byte);
            }
        }
        text.into()
    }
}

impl Table {
    /// Rules of a format; None if it is not a table in text.
    pub fn for_format(format: Format) -> Option<Table> {
        match format {
            Format::Csv => Some(Table { delimiter: b',', quotes: true }),
            Format::Tsv => Some(Table { delimiter: b'\t', quotes: false }),
            Format::QuotedTsv => Some(Table { delimiter: b'\t', quotes: true }),
            _ => None,
        }
    }

    /// Row that begins at `start`, and its end. None if it does not end in `bytes`, unless these are
    /// the `last` ones.
    fn row(self, bytes: &[u8], start: usize, last: bool) -> Option<(Row, usize)> {
        let mut fields = Vec::new();
        let mut at = start;
        loop {
            let opened = at;
            let quoted = self.quotes && bytes.get(at) == Some(&b'"');
            let end = if quoted {
                match find_closing_quote(&bytes[opened + 1..], last)? {
                    Some(closing) => opened + 1 + closing,
                    None => {
                        return row_with_wrong_quote(
                            bytes,
                            start,
                            opened,
                            fields.len(),
                            last,
                            OPEN,
                        );
                    }
                }
            } else {
                let found = bytes[at..]
                    .iter()
                    .position(|byte| self.ends_field(*byte))
                    .map(|count| at + count);
                found.or(last.then_some(bytes.len()))?
            };
            fields.push(Span { bytes: opened + usize::from(quoted)..end, quoted });
            at = end + usize::from(quoted);
            match bytes.get(at) {
                Some(byte) if *byte == self.delimiter => at += 1,
                Some(byte) if !self.ends_field(*byte) => {
                    return row_with_wrong_quote(
                        bytes,
                        start,
                        opened,
                        fields.len() - 1,
                        last,
                        FOLLOWED,
                    );
                }
                None if !last => return None,
                Some(b'\r') if at + 1 == bytes.len() && !last => return None,
                ending => {
                    let end = at
                        + match ending {
                            None => 0,
                            Some(b'\r') if bytes.get(at + 1) == Some(&b'\n') => 2,
                            Some(_) => 1,
                        };
                    return Some((self.finish(bytes, start..at, fields), end));
                }
            }
        }
    }

    fn finish(self, bytes: &[u8], row: Range<usize>, mut fields: Vec<Span>) -> Row {
        // Without quotes, a carriage return is a letter, except before the end of the line.
        if let Some(last) = fields.last_mut().filter(|_| !self.quotes)
            && bytes[last.bytes.clone()].ends_with(b"\r")
        {
            last.bytes.end -= 1;
        }
        if let [only] = &fields[..]
            && only.bytes.is_empty()
            && !only.quoted
        {
            fields.clear();
        }
        let lines = bytes[row].iter().filter(|byte| **byte == b'\n').count() + 1;
        Row { lines, fields: Ok(fields) }
    }

    fn ends_field(self, byte: u8) -> bool {
        byte == self.delimiter || byte == b'\n' || (byte == b'\r' && self.quotes)
    }
}

/// Place of the quote that closes a field. None if there is none; the outer None if that cannot be
/// told before more is read.
fn find_closing_quote(bytes: &[u8], last: bool) -> Option<Option<usize>> {
    let mut at = 0;
    loop {
        let Some(count) = bytes[at..].iter().position(|byte| *byte == b'"') else {
            return last.then_some(None);
        };
        at += count;
        match bytes.get(at + 1) {
            Some(b'"') => at += 2,
            None if !last => return None,
            _ => return Some(Some(at)),
        }
    }
}

const OPEN: &str = "is not closed";
const FOLLOWED: &str = "is closed before the field's end (within a field a quote is written twice)";

/// Row up to the end of the line in which a quote opens that is wrong.
fn row_with_wrong_quote(
    bytes: &[u8],
    start: usize,
    opened: usize,
    column: usize,
    last: bool,
    why: &str,
) -> Option<(Row, usize)> {
    let line = bytes[opened..].iter().position(|byte| *byte == b'\n');
    let end = line
        .map(|count| opened + count + 1)
        .or(last.then_some(bytes.len()))?;
    let lines = bytes[start..opened]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1;
    Some((
        Row { lines, fields: Err(format!("the quote that opens column {} {why}", column + 1)) },
        end,
    ))
}
