//! Parquet tables as JSON lines of one column of strings.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result};
use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

use super::position::Position;
use base::Problems;

/// Rows decoded at once.
const ROWS: usize = 256;

struct Lines {
    file: SerializedFileReader<File>,
    key: String,
    place: String,
    column: usize,
    /// Next row group, and the column of the current one.
    group: usize,
    values: Option<ColumnReader>,
    /// Bytes of lines that are not read yet.
    unread: VecDeque<u8>,
    position: Position,
}

/// Column `key` of the rows. Fails with the names of the columns if it is not one of strings.
pub fn lines(path: &Path, key: &str, position: Position) -> Result<Box<dyn Read>> {
    let place = path.display().to_string();
    let wrong = |what: String, remedy: &str| Problems::one(place.clone(), what, remedy);
    let file = File::open(path).with_context(|| format!("cannot open {place}"))?;
    let opened = catch_panic(|| SerializedFileReader::new(file));
    let file = opened.map_err(|error| {
        wrong(format!("is not a Parquet file: {error}"), "download it again, or give --format")
    })?;
    let schema = file.metadata().file_metadata().schema_descr();
    let Some(column) = (0..schema.num_columns()).find(|at| name(schema, *at) == key) else {
        let strings: Vec<String> = (0..schema.num_columns())
            .filter(|at| holds_text(schema, *at))
            .map(|at| name(schema, at))
            .collect();
        return Err(wrong(
            format!("has no column \"{key}\"; of text it has: {}", strings.join(", ")),
            "name one of them with --key",
        )
        .into());
    };
    if !holds_text(schema, column) {
        return Err(wrong(
            format!("the column \"{key}\" holds {}", schema.column(column).physical_type()),
            "name a column of strings with --key",
        )
        .into());
    }
    let key = serde_json::to_string(key)?;
    let group = 0;
    let values = None;
    let unread = VecDeque::new();
    Ok(Box::new(Lines { file, key, place, column, group, values, unread, position }))
}

fn name(schema: &SchemaDescriptor, column: usize) -> String {
    schema.column(column).path().string()
}

/// Whether a column holds at most one string per row.
fn holds_text(schema: &SchemaDescriptor, column: usize) -> bool {
    let column = schema.column(column);
    column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
}

/// Catches panics of the crate, which occur on some damaged files.
fn catch_panic<T>(read: impl FnOnce() -> parquet::errors::Result<T>) -> parquet::errors::Result<T> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result,
        Err(_) => Err(ParquetError::General("it makes no sense".into())),
    }
}

fn damaged_error(place: &str, error: &ParquetError) -> io::Error {
    io::Error::other(Problems::one(place, format!("cannot be read: {error}"), "download it again"))
}

impl Lines {
    /// Reads more lines into `unread`. Returns false at the end.
    fn next(&mut self) -> parquet::errors::Result<bool> {
        loop {
            let Some(ColumnReader::ByteArrayColumnReader(reader)) = &mut self.values else {
                if self.group == self.file.num_row_groups() {
                    return Ok(false);
                }
                let group = self.file.get_row_group(self.group)?;
                self.values = Some(group.get_column_reader(self.column)?);
                self.group += 1;
                continue;
            };
            let most = self
                .file
                .metadata()
                .file_metadata()
                .schema_descr()
                .column(self.column)
                .max_def_level();
            let mut levels = Vec::new();
            let mut values = Vec::<ByteArray>::new();
            let defined = (most > 0).then_some(&mut levels);
            let (rows, ..) = reader.read_records(ROWS, defined, None, &mut values)?;
            if rows == 0 {
                self.values = None;
                let group = self.file.metadata().row_group(self.group - 1);
                self.position
                    .set(self.position.get() + group.compressed_size() as u64);
                continue;
            }
            let mut values = values.iter();
            for row in 0..rows {
                let is_null = levels.get(row).is_some_and(|level| *level < most);
                let text = if is_null { None } else { values.next().map(ByteArray::data) };
                super::json::write_line(&self.key, text, &mut self.unread);
            }
            return Ok(true);
        }
    }
}

impl Read for Lines {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty()
            && !catch_panic(|| self.next()).map_err(|error| damaged_error(&self.place, &error))?
        {
            return Ok(0);
        }
        self.unread.read(out)
    }
}
