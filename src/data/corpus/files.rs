//! Files of a corpus.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

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
    /// Table with a header and a document per row; the byte separates fields.
    Csv(u8),
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

/// Selection of files, and their format if it is not that of their names.
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
    /// Ignored paths with the reason: links to files that are read already, and other kinds of nodes.
    pub notes: Vec<String>,
}

/// Files of `paths`, in order. A folder means all files of a known format below it, sorted by name; `-`
/// means standard input. A file with several paths is read once.
pub fn find(paths: &[PathBuf], selection: &FileSelection) -> Result<CorpusFiles> {
    let mut problems = Problems::default();
    let mut search = Search { selection, seen: HashMap::new(), found: CorpusFiles::default() };
    for path in paths {
        if path.as_os_str() == "-" {
            let format = selection.format.unwrap_or(Format::JsonLines);
            search.found.inputs.push(Input { path: None, format, size: 0 });
            continue;
        }
        let place = path.display().to_string();
        match std::fs::metadata(path) {
            Ok(about) if about.is_dir() => {
                let before = search.found.clone();
                let mut others = BTreeMap::new();
                search.folder(path, &about, &mut others)?;
                if search.found == before {
                    let (what, remedy) = search.nothing(&others);
                    problems.add(place, what, remedy);
                }
            }
            Ok(about) => match input(path, selection.format) {
                Some(input) => search.take(input, path, Some(&about)),
                None => {
                    let what = "its name does not say what it holds";
                    let remedy = "say --format txt (a document), lines (one a line), jsonl or csv";
                    problems.add(place, what, remedy);
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                problems.add(place, "does not exist", "check the path");
            }
            Err(error) => return Err(error).with_context(|| format!("cannot look at {place}")),
        }
    }
    if problems.list.is_empty() && search.found.inputs.is_empty() {
        let place = paths.first().map_or(String::new(), |path| path.display().to_string());
        let what = format!("nothing is left to read: {}", search.found.notes.join("; "));
        problems.add(place, what, "name other files");
    }
    problems.or(search.found).map_err(Into::into)
}

/// Walk through folders that ends even with cyclic links.
struct Search<'a> {
    selection: &'a FileSelection,
    /// The path of each file and folder by its device and inode.
    seen: HashMap<(u64, u64), PathBuf>,
    found: CorpusFiles,
}

/// Files of other kinds, by their ending.
type Others = BTreeMap<String, usize>;

impl Search<'_> {
    fn folder(&mut self, folder: &Path, about: &Metadata, others: &mut Others) -> Result<()> {
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
                self.folder(&path, about, others)?;
                continue;
            }
            let Some(input) = self.in_folder(&path) else {
                *others.entry(ending(&path)).or_default() += 1;
                continue;
            };
            match about {
                Ok(about) if !about.is_file() => {
                    let note = format!("{} is not a file: left out", path.display());
                    self.found.notes.push(note);
                }
                // A broken link is reported when it is opened.
                about => self.take(input, &path, about.as_ref().ok()),
            }
        }
        Ok(())
    }

    /// Adds a file of a folder, if it is wanted.
    fn in_folder(&self, path: &Path) -> Option<Input> {
        let FileSelection { format, endings } = self.selection;
        if endings.is_empty() {
            let by_name = input(path, None)?;
            return Some(Input { format: format.unwrap_or(by_name.format), ..by_name });
        }
        let wanted = endings.contains(&ending(path));
        let known = || input(path, None).map_or(Format::Text, |input| input.format);
        wanted.then(|| input(path, Some(format.unwrap_or_else(known))))?
    }

    fn take(&mut self, input: Input, path: &Path, about: Option<&Metadata>) {
        if about.is_none_or(|about| self.is_new(path, about)) {
            self.found.inputs.push(input);
        }
    }

    /// Problem of a folder without wanted files.
    fn nothing(&self, others: &Others) -> (String, String) {
        let mut most: Vec<(&String, &usize)> = others.iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named = most.iter().filter(|(ending, _)| !ending.is_empty()).take(4);
        let named: Vec<String> = named.map(|(end, count)| format!("{count} .{end}")).collect();
        let has =
            if named.is_empty() { String::new() } else { format!("; it has {}", named.join(", ")) };
        let kinds = if self.selection.endings.is_empty() {
            ".jsonl, .txt, .csv, .tsv or .parquet files".to_string()
        } else {
            format!("files that end in .{}", self.selection.endings.join(", ."))
        };
        let first = most.first().map_or("py", |(ending, _)| ending.as_str());
        let remedy = format!("name their endings: --ext {first}");
        (format!("the folder holds no {kinds}, plain or compressed{has}"), remedy)
    }

    /// Whether it is the first path to the file; otherwise adds a note.
    fn is_new(&mut self, path: &Path, about: &Metadata) -> bool {
        let id = (about.dev(), about.ino());
        let Some(first) = self.seen.get(&id) else {
            self.seen.insert(id, path.into());
            return true;
        };
        let (path, first) = (path.display(), first.display());
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

/// Extension of a file's name, without that of a compression.
fn ending(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mut name = name.as_str();
    while let Some((stem, last)) = name.rsplit_once('.') {
        if !COMPRESSED.contains(&last) {
            return last.to_string();
        }
        name = stem;
    }
    String::new()
}

/// File with its format: that of `wanted`, or else that of its name.
fn input(path: &Path, wanted: Option<Format>) -> Option<Input> {
    let ending = ending(path);
    let by_name = match ending.as_str() {
        "csv" => Some(Format::Csv(b',')),
        "tsv" => Some(Format::Csv(b'\t')),
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
    /// The file as errors name it.
    pub fn place(&self) -> String {
        self.path.as_ref().map_or("standard input".into(), |path| path.display().to_string())
    }
}
