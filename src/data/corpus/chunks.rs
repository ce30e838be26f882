//! Splits a stream into chunks.

use std::io::{ErrorKind, Read};

use anyhow::{Context, Result};

use super::{Chunk, Format, Input, ReadOptions};
use base::{Bytes, Problems};

/// Approximate bytes of text per chunk: enough work for a thread.
const CHUNK: usize = 1 << 20;
/// Maximum length of a line, which must be in memory several times.
pub const LONGEST: usize = 256 << 20;

/// Passes the chunks of one file to `chunk`, until it returns false.
pub fn for_each_chunk(
    input: &Input,
    options: &ReadOptions<'_>,
    mut chunk: impl FnMut(Chunk) -> bool,
) -> Result<()> {
    let whole = options.whole_texts && input.format == Format::Text;
    let has_lines = !matches!(input.format, Format::Text | Format::Paragraphs);
    let skip_long = options.rules.skip_invalid && has_lines;
    let (mut stream, position) = input.open(&options.rules.key)?;
    let mut bytes = Vec::new();
    let mut first_line = 1;
    let mut searched = 0; // bytes known to hold no boundary
    let mut skipped = 0;
    loop {
        let failed = || format!("cannot read {}", input.place());
        let ended = fill(&mut *stream, &mut bytes, CHUNK).map_err(|e| read_error(e, &failed()))?;
        let end = if ended {
            Some(bytes.len())
        } else if whole {
            None
        } else {
            find_boundary(input.format, &bytes, searched)
        };
        if end.is_none() && bytes.len() >= LONGEST && skip_long {
            skip_line(&mut *stream, &mut bytes).with_context(failed)?;
            (skipped, first_line, searched) = (skipped + 1, first_line + 1, 0);
            continue;
        }
        if end.is_none() && bytes.len() >= LONGEST {
            let unit = match input.format {
                Format::Paragraphs => "paragraph",
                _ if whole => "text",
                _ => "line",
            };
            let place = format!("{}:{first_line}", input.place());
            return Err(Problems::one(
                place,
                format!("a {unit} of more than {}", Bytes(LONGEST as u64)),
                "cut it into several documents, or see whether --format is right",
            )
            .into());
        }
        let Some(end) = end else {
            searched = bytes.len().saturating_sub(1);
            continue;
        };
        searched = 0;
        let rest = bytes.split_off(end);
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let wants_more = chunk(Chunk {
            place: input.place(),
            format: input.format,
            first_line,
            skipped: std::mem::take(&mut skipped),
            bytes: std::mem::replace(&mut bytes, rest),
            continues_in_next: input.format == Format::Text && !ended,
            continues_previous: input.format == Format::Text && first_line > 1,
            read: position.get(),
        });
        first_line += lines;
        if ended || !wants_more {
            return Ok(());
        }
    }
}

/// Converts an I/O error: a problem found by a table's reader, or a failed read.
pub fn read_error(error: std::io::Error, doing: &str) -> anyhow::Error {
    match error.downcast::<Problems>() {
        Ok(problems) => problems.into(),
        Err(error) => anyhow::Error::from(error).context(doing.to_string()),
    }
}

/// Skips the rest of a line. `bytes`, which has no line end, then holds what was read of the next
/// line.
fn skip_line(stream: &mut dyn Read, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        bytes.clear();
        let ended = fill(stream, bytes, CHUNK)?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        if let Some(end) = end.map(|at| at + 1).or(ended.then_some(bytes.len())) {
            bytes.drain(..end);
            return Ok(());
        }
    }
}

/// Adds up to `count` bytes. Returns true at the end of the stream.
fn fill(stream: &mut dyn Read, bytes: &mut Vec<u8>, count: usize) -> std::io::Result<bool> {
    let mut at = bytes.len();
    let end = bytes.len() + count;
    bytes.resize(end, 0);
    while at < end {
        match stream.read(&mut bytes[at..end]) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(at);
    Ok(at < end)
}

/// Last position at which a chunk may end: after a line. Between paragraphs after an empty line. Within
/// text only between two lines that end and start with an ASCII letter or digit, where every pattern ends
/// a piece on both sides of the line break.
fn find_boundary(format: Format, bytes: &[u8], from: usize) -> Option<usize> {
    let mut end = bytes.len();
    loop {
        let at = from + bytes[from..end].iter().rposition(|byte| *byte == b'\n')?;
        let plain = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
        let ends_document = match format {
            Format::Text => at > 0 && plain(at - 1) && plain(at + 1),
            Format::Paragraphs => {
                let space = bytes[..at]
                    .iter()
                    .rposition(|byte| !byte.is_ascii_whitespace());
                bytes[space.map_or(0, |last| last + 1)..at].contains(&b'\n')
            }
            _ => true,
        };
        if ends_document {
            return Some(at + 1);
        }
        end = at;
    }
}
