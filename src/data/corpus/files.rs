//! Which files a corpus is made of.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use base::Problems;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line, the text in one of its fields.
    JsonLines,
    /// One document.
    Text,
    /// One document a line, as it stands.
    Lines,
    /// A table with a header, a row a document: the byte between two fields.
    Csv(u8),
    /// A table with named columns, a row a document.
    Parquet,
}

/// One file of a corpus, or standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// `None` is standard input.
    pub path: Option<PathBuf>,
    pub format: Format,
    /// Bytes on disk; 0 where that cannot be known.
    pub size: u64,
}

const JSON_ENDINGS: [&str; 4] = ["jsonl", "json", "ndjson", "jl"];
const TEXT_ENDINGS: [&str; 3] = ["txt", "text", "md"];
/// Of compressed files, before which another ending says what is in them.
const COMPRESSED: [&str; 4] = ["gz", "zst", "xz", "bz2"];

/// Which files are wanted, and what they hold, where their names do not say.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Overrules what names say.
    pub format: Option<Format>,
    /// Of files in folders: these alone, read as text unless `format` says otherwise.
    pub endings: Vec<String>,
}

/// The files of a corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub inputs: Vec<Input>,
    /// What was left out, and why: links back to what is read already, and what is not a file.
    pub notes: Vec<String>,
}

/// The files `paths` name, in order: a folder stands for all files of a known kind below it, sorted
/// by name; `-` for standard input. A file is read once, whatever leads to it.
pub fn find(paths: &[PathBuf], wanted: &Wanted) -> Result<Found> {
    let mut problems = Problems::default();
    let mut search = Search { wanted, seen: HashMap::new(), found: Found::default() };
    for path in paths {
        if path.as_os_str() == "-" {
            let format = wanted.format.unwrap_or(Format::JsonLines);
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
            Ok(about) => match input(path, wanted.format) {
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

/// A walk through folders that ends, whatever links there are.
struct Search<'a> {
    wanted: &'a Wanted,
    /// The path of each file and folder by its device and inode.
    seen: HashMap<(u64, u64), PathBuf>,
    found: Found,
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
                // A link that leads nowhere is told when it is opened.
                about => self.take(input, &path, about.as_ref().ok()),
            }
        }
        Ok(())
    }

    /// A file of a folder, if it is wanted.
    fn in_folder(&self, path: &Path) -> Option<Input> {
        let Wanted { format, endings } = self.wanted;
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

    /// What is said of a folder without wanted files.
    fn nothing(&self, others: &Others) -> (String, String) {
        let mut most: Vec<(&String, &usize)> = others.iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named = most.iter().filter(|(ending, _)| !ending.is_empty()).take(4);
        let named: Vec<String> = named.map(|(end, count)| format!("{count} .{end}")).collect();
        let has = match named.is_empty() {
            true => String::new(),
            false => format!("; it has {}", named.join(", ")),
        };
        let kinds = match self.wanted.endings.is_empty() {
            true => ".jsonl, .txt, .csv, .tsv or .parquet files".to_string(),
            false => format!("files that end in .{}", self.wanted.endings.join(", .")),
        };
        let first = most.first().map_or("py", |(ending, _)| ending.as_str());
        let remedy = format!("name their endings: --ext {first}");
        (format!("the folder holds no {kinds}, plain or compressed{has}"), remedy)
    }

    /// Whether nothing led there before; otherwise it is noted.
    fn is_new(&mut self, path: &Path, about: &Metadata) -> bool {
        let id = (about.dev(), about.ino());
        let Some(first) = self.seen.get(&id) else {
            self.seen.insert(id, path.into());
            return true;
        };
        let (path, first) = (path.display(), first.display());
        let note = match about.is_dir() && path.to_string().starts_with(&format!("{first}/")) {
            true => format!("{path} leads back to {first}: not followed"),
            false => format!("{path} is the same as {first}: read once"),
        };
        self.found.notes.push(note);
        false
    }
}

/// The ending of a file's name, without that of a compression.
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

/// A file with its format: as it is `wanted`, or else by its name.
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
