//! Text that `data build` and `data train-tokenizer` read.

use crate::options::{Choice, one_of};
use anyhow::{Context, Result};
use base::input::is_there;
use base::{Problems, escape_control, number};
use data::corpus::{self, DocumentRules, FileSelection, Format, Input};
use std::path::{Path, PathBuf};

/// Words of --format.
const FORMATS: [Choice<Format>; 8] = [
    Choice("jsonl", Format::JsonLines, "One JSON object per line, each a document"),
    Choice("txt", Format::Text, "Plain text, each file a document"),
    Choice("lines", Format::Lines, "Plain text, each line a document"),
    Choice("paragraphs", Format::Paragraphs, "Plain text, documents between empty lines"),
    Choice("csv", Format::Csv, "A table with a header, each row a document"),
    Choice("tsv", Format::Tsv, "The same with tabs, in which quotes are letters"),
    Choice(
        "quoted-tsv",
        Format::QuotedTsv,
        "The same with tabs, in which fields may be in quotes as in CSV",
    ),
    Choice("parquet", Format::Parquet, "A Parquet table, each row a document"),
];

/// Number of notes on the corpus that are printed.
const NOTES: usize = 3;

/// Text to read.
#[derive(clap::Args, Debug)]
pub struct Text {
    /// Files or folders of .jsonl, .txt, .csv, .tsv or .parquet, also compressed as .gz, .zst, .xz or
    /// .bz2; `-` for standard input. Of a folder, files that are hidden or describe others (README.md,
    /// config.json) are left out
    #[arg(required_unless_present = "files_from")]
    input: Vec<PathBuf>,
    /// Read the files whose paths this file lists, one per line; `-` for standard input
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// Read the files of folders that have these extensions, each as one document: --ext py,md
    #[arg(long, value_name = "ENDINGS", value_delimiter = ',')]
    ext: Vec<String>,
    /// Format of the files [default: by their names]
    #[arg(long, value_parser = one_of(&FORMATS))]
    format: Option<Format>,
    /// The field of a JSON line, or the column of a table, that holds the text; `a.b` is field b
    /// of field a
    #[arg(long, default_value = "text")]
    key: String,
    /// Skip lines that cannot be read, and count them
    #[arg(long)]
    skip_invalid: bool,
    /// Number of threads [default: all]
    #[arg(long, value_parser = number::whole_in(1..=1024usize))]
    threads: Option<usize>,
}

impl Text {
    /// Files to read. Prints a note for each file that is left out.
    pub fn find_files(&self) -> Result<Vec<Input>> {
        let mut paths = self.input.clone();
        paths.extend(
            self.files_from
                .as_deref()
                .map(read_list)
                .transpose()?
                .unwrap_or_default(),
        );
        let found = corpus::find(&paths, &self.selection())?;
        let more = found.notes.len().saturating_sub(NOTES);
        for note in found.notes.iter().take(NOTES) {
            base::warn!("note: {}", escape_control(note));
        }
        if more > 0 {
            base::warn!("note: and {more} more like these");
        }
        Ok(found.inputs)
    }

    /// Files to read of a folder.
    fn selection(&self) -> FileSelection {
        let mut endings = Vec::new();
        for ending in &self.ext {
            endings.push(ending.trim_start_matches('.').to_lowercase());
        }
        FileSelection { format: self.format, endings }
    }

    pub fn rules(&self) -> DocumentRules {
        DocumentRules { key: self.key.clone(), skip_invalid: self.skip_invalid }
    }

    pub fn threads(&self) -> usize {
        self.threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// Paths that a file lists, one per line.
fn read_list(file: &Path) -> Result<Vec<PathBuf>> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        is_there(file)?;
        std::fs::read_to_string(file)
    };
    let paths: Vec<PathBuf> = text
        .with_context(|| format!("cannot read {}", file.display()))?
        .lines()
        .filter(|line| !line.is_empty())
        .map(PathBuf::from)
        .collect();
    if paths.is_empty() {
        return Err(Problems::one(
            file.display().to_string(),
            "names no files",
            "write one a line",
        )
        .into());
    }
    Ok(paths)
}
