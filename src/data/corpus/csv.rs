//! Tables in CSV or TSV, as JSON lines of one column.

use std::io::Read;

use anyhow::Result;
use csv::ByteRecord;

use base::Problems;

/// Rows of a table with a header, each as a line `{"key":"text"}`.
pub struct CsvLines<R> {
    reader: csv::Reader<R>,
    key: String,
    place: String,
    column: usize,
    row: ByteRecord,
    line: Vec<u8>,
    /// Of the line that have been read.
    taken: usize,
}

impl<R: Read> CsvLines<R> {
    /// An error unless the first row names the column `key`.
    pub fn open(inner: R, delimiter: u8, key: &str, place: &str) -> Result<CsvLines<R>> {
        let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(inner);
        let header = reader.byte_headers().map_err(|error| unreadable(place, &error))?.clone();
        let bare =
            |name: &[u8]| name.strip_prefix(b"\xef\xbb\xbf").unwrap_or(name) == key.as_bytes();
        let Some(column) = header.iter().position(bare) else {
            let names: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
            let what = format!("the table has no column \"{key}\"; it has: {}", names.join(", "));
            return Err(Problems::one(place, what, "name one of them with --key").into());
        };
        let key = serde_json::to_string(key)?;
        let (row, line) = (ByteRecord::new(), Vec::new());
        let place = place.to_string();
        Ok(CsvLines { reader, key, place, column, row, line, taken: 0 })
    }

    fn damaged(&self, error: &csv::Error) -> std::io::Error {
        match error.kind() {
            csv::ErrorKind::Io(error) => std::io::Error::new(error.kind(), error.to_string()),
            _ => std::io::Error::other(unreadable(&self.place, error)),
        }
    }

    /// Whether there is another row, now in `line`.
    fn next(&mut self) -> std::io::Result<bool> {
        self.line.clear();
        self.taken = 0;
        if !self.reader.read_byte_record(&mut self.row).map_err(|e| self.damaged(&e))? {
            return Ok(false);
        }
        let text = self.row.get(self.column).unwrap_or_default();
        super::json::write_line(&self.key, Some(text), &mut self.line);
        Ok(true)
    }
}

fn unreadable(place: &str, error: &csv::Error) -> Problems {
    Problems::one(place, format!("is no table: {error}"), "mend it, or say --format")
}

impl<R: Read> Read for CsvLines<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.line.len() && !self.next()? {
            return Ok(0);
        }
        let some = (self.line.len() - self.taken).min(out.len());
        out[..some].copy_from_slice(&self.line[self.taken..][..some]);
        self.taken += some;
        Ok(some)
    }
}
