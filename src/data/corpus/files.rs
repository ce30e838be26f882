//! Files of a corpus.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::names::{self, Name};
use base::Problems;

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line, with the text in one of its fields.
    JsonLines,
    /// One document.
    Text,
    /// One document per line, verbatim.
    Lines,
    /// Documents between empty lines.
    Paragraphs,
    /// Table with a header and a document per row. Fields may be in quotes.
    Csv,
    /// Like `Csv`, with tabs; quotes are letters.
    Tsv,
    /// Like `Csv`, with tabs.
    QuotedTsv,
    /// Table with named columns and a document per row.
    Parquet,
}

/// File of a corpus, or standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// None for standard input.
    pub path: Option<PathBuf>,
    pub format: Format,
    /// Bytes on disk; 0 if unknown.
    pub size: u64,
}

const JSON_ENDINGS: [&str; 4] = ["jsonl", "json", "ndjson", "jl"];
const TEXT_ENDINGS: [&str; 3] = ["txt", "text", "md"];
/// Extensions of compressed files; the extension before them gives the format.
const COMPRESSED: [&str; 4] = ["gz", "zst", "xz", "bz2"];

/// Selection of files, and their format if their names do not give it.
#[derive(Clone, Debug, Default)]
pub struct FileSelection {
    /// Format that overrides the names.
    pub format: Option<Format>,
    /// Extensions of the files to take from folders, read as text unless `format` is given.
    pub endings: Vec<String>,
}

/// Files of a corpus, with notes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorpusFiles {
    pub inputs: Vec<Input>,
    /// Notes on what was found: files that describe or hide, splits by name, and ignored paths with the
    /// reason (links to files that are read already, and other kinds of nodes).
    pub notes: Vec<String>,
}

/// Files of `paths`, in order. A folder means all files of a known format below it, sorted by name, but
/// for those that describe a dataset or are hidden (`names`); `-` means standard input. A file with
/// several paths is read once.
pub fn find(paths: &[PathBuf], selection: &FileSelection) -> Result<CorpusFiles> {
    let mut problems = Problems::default();
    let mut search = Search::new(selection);
    for path in paths {
        if path.as_os_str() == "-" {
            let format = selection.format.unwrap_or(Format::JsonLines);
            search
                .found
                .inputs
                .push(Input { path: None, format, size: 0 });
            continue;
        }
        let place = path.display().to_string();
        match std::fs::metadata(path) {
            Ok(about) if about.is_dir() => {
                if let Some((what, remedy)) = search.add_top_folder(path, &about)? {
                    problems.add(place, what, remedy);
                }
            }
            Ok(about) => match input_with_format(path, selection.format) {
                Some(input) => search.take(input, path, Some(&about)),
                None => {
                    problems.add(
                        place,
                        "its name does not say what it holds",
                        "pass --format txt (a document), lines (one per line), jsonl or csv",
                    );
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                problems.add(place, "does not exist", "check the path");
            }
            Err(error) => return Err(error).with_context(|| format!("cannot look at {place}")),
        }
    }
    if problems.list.is_empty() && search.found.inputs.is_empty() {
        let first = paths.first().map(|path| path.display().to_string());
        problems.add(
            first.unwrap_or_default(),
            format!("nothing is left to read: {}", search.found.notes.join("; ")),
            "name other files",
        );
    }
    let Search { mut found, mut left_out, .. } = search;
    left_out.retain(|path| {
        let mut read = found.inputs.iter().filter_map(|input| input.path.as_ref());
        !read.any(|input| input == path)
    });
    found.notes.splice(0..0, names::note(&left_out));
    problems.or(found).map_err(Into::into)
}

/// Walk through folders that ends even with cyclic links.
struct Search<'a> {
    selection: &'a FileSelection,
    /// The path of each file and folder by its device and inode.
    seen: HashMap<(u64, u64), PathBuf>,
    found: CorpusFiles,
    /// Files and folders that were left out because of their names.
    left_out: Vec<PathBuf>,
    /// Files of other kinds in the present top folder, by their ending.
    others: BTreeMap<String, usize>,
    /// Texts of the present top folder that describe others.
    cards: Vec<PathBuf>,
}

impl Search<'_> {
    fn new(selection: &FileSelection) -> Search<'_> {
        let seen = HashMap::new();
        let found = CorpusFiles::default();
        let (left_out, others, cards) = Default::default();
        Search { selection, seen, found, left_out, others, cards }
    }

    /// Adds the files of a folder that the user names. Returns the problem and remedy if it has none.
    fn add_top_folder(
        &mut self,
        path: &Path,
        about: &Metadata,
    ) -> Result<Option<(String, String)>> {
        let first = self.found.inputs.len();
        let notes = self.found.notes.len();
        (self.others, self.cards) = Default::default();
        self.add_folder(path, about)?;
        let cards = std::mem::take(&mut self.cards);
        if self.found.inputs.len() > first {
            self.left_out.extend(cards);
            let paths = self.found.inputs[first..]
                .iter()
                .filter_map(|input| input.path.as_deref());
            self.found.notes.extend(names::splits(path, paths));
            return Ok(None);
        }
        // A folder of nothing else is one of texts with such names.
        for card in cards {
            self.add_file(&card, std::fs::metadata(&card));
        }
        let is_empty = self.found.inputs.len() == first && self.found.notes.len() == notes;
        Ok(is_empty.then(|| self.no_files_problem()))
    }

    fn add_folder(&mut self, folder: &Path, about: &Metadata) -> Result<()> {
        if !self.is_new(folder, about) {
            return Ok(());
        }
        let failed = || format!("cannot list {}", folder.display());
        let entries = std::fs::read_dir(folder).with_context(failed)?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<Vec<_>>>()
            .with_context(failed)?;
        paths.sort();
        for path in paths {
            let about = std::fs::metadata(&path);
            if let Some(about) = about.as_ref().ok().filter(|about| about.is_dir()) {
                match names::classify_folder(&path) {
                    Name::Data => self.add_folder(&path, about)?,
                    _ => self.left_out.push(path),
                }
            } else if self.wanted_input(&path).is_none() {
                *self.others.entry(inner_extension(&path)).or_default() += 1;
            } else {
                match names::classify_file(&path, !self.selection.endings.is_empty()) {
                    Name::Data => self.add_file(&path, about),
                    Name::Card => self.cards.push(path),
                    Name::NoData => self.left_out.push(path),
                }
            }
        }
        Ok(())
    }

    /// Adds a file of a folder.
    fn add_file(&mut self, path: &Path, about: std::io::Result<Metadata>) {
        match about {
            Ok(about) if !about.is_file() => {
                self.found
                    .notes
                    .push(format!("{} is not a file: left out", path.display()));
            }
            // A broken link is reported when it is opened.
            about => {
                if let Some(input) = self.wanted_input(path) {
                    self.take(input, path, about.as_ref().ok());
                }
            }
        }
    }

    /// Input for a file of a folder; None if it is not wanted.
    fn wanted_input(&self, path: &Path) -> Option<Input> {
        let FileSelection { format, endings } = self.selection;
        if endings.is_empty() {
            let by_name = input_with_format(path, None)?;
            return Some(Input { format: format.unwrap_or(by_name.format), ..by_name });
        }
        let wanted = endings.contains(&inner_extension(path));
        wanted.then(|| {
            input_with_format(
                path,
                Some(format.unwrap_or_else(|| {
                    input_with_format(path, None).map_or(Format::Text, |input| input.format)
                })),
            )
        })?
    }

    fn take(&mut self, input: Input, path: &Path, about: Option<&Metadata>) {
        if about.is_none_or(|about| self.is_new(path, about)) {
            self.found.inputs.push(input);
        }
    }

    /// Problem of a folder without wanted files.
    fn no_files_problem(&self) -> (String, String) {
        let mut most: Vec<(&String, &usize)> = self.others.iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named: Vec<String> = most
            .iter()
            .filter(|(ending, _)| !ending.is_empty())
            .take(4)
            .map(|(end, count)| format!("{count} .{end}"))
            .collect();
        let has =
            if named.is_empty() { String::new() } else { format!("; it has {}", named.join(", ")) };
        let kinds = if self.selection.endings.is_empty() {
            ".jsonl, .txt, .csv, .tsv or .parquet files".to_string()
        } else {
            format!("files that end in .{}", self.selection.endings.join(", ."))
        };
        let first = most.first().map_or("py", |(ending, _)| ending.as_str());
        let remedy = format!("name their endings: --ext {first}");
        let left_out = names::note(&self.left_out)
            .map(|note| format!("; {note}"))
            .unwrap_or_default();
        (format!("the folder holds no {kinds}, plain or compressed{has}{left_out}"), remedy)
    }

    /// Whether it is the first path to the file; otherwise adds a note.
    fn is_new(&mut self, path: &Path, about: &Metadata) -> bool {
        let id = (about.dev(), about.ino());
        let Some(first) = self.seen.get(&id) else {
            self.seen.insert(id, path.into());
            return true;
        };
        let path = path.display();
        let first = first.display();
        let is_cycle = about.is_dir() && path.to_string().starts_with(&format!("{first}/"));
        let note = if is_cycle {
            format!("{path} leads back to {first}: not followed")
        } else {
            format!("{path} is the same as {first}: read once")
        };
        self.found.notes.push(note);
        false
    }
}

/// Extension of a file's name, without the extensions of compressions.
fn inner_extension(path: &Path) -> String {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let mut parts: Vec<&str> = name.split('.').skip(1).collect();
    while parts.last().is_some_and(|last| COMPRESSED.contains(last)) {
        parts.pop();
    }
    parts.last().unwrap_or(&"").to_string()
}

/// File with its format: `wanted`, or else the format that its name gives.
fn input_with_format(path: &Path, wanted: Option<Format>) -> Option<Input> {
    let ending = inner_extension(path);
    let by_name = match ending.as_str() {
        "csv" => Some(Format::Csv),
        "tsv" => Some(Format::Tsv),
        "parquet" => Some(Format::Parquet),
        ending if JSON_ENDINGS.contains(&ending) => Some(Format::JsonLines),
        ending if TEXT_ENDINGS.contains(&ending) => Some(Format::Text),
        _ => None,
    };
    let format = wanted.or(by_name)?;
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    Some(Input { path: Some(path.into()), format, size })
}

impl Input {
    /// Path as shown in errors.
    pub fn place(&self) -> String {
        self.path
            .as_ref()
            .map_or("standard input".into(), |path| path.display().to_string())
    }
}
