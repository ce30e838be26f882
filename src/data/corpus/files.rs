//! Which files a corpus is made of, and opening them.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read};
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

/// The files of a corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub inputs: Vec<Input>,
    /// What was left out, and why: links back to what is read already, and what is not a file.
    pub notes: Vec<String>,
}

/// The files `paths` name, in order: a folder stands for all files of a known kind below it, sorted
/// by name; `-` for standard input. `format` overrules what the names say. A file is read once,
/// whatever leads to it.
pub fn find(paths: &[PathBuf], format: Option<Format>) -> Result<Found> {
    let mut problems = Problems::default();
    let mut search = Search { format, seen: HashMap::new(), found: Found::default() };
    for path in paths {
        if path.as_os_str() == "-" {
            let format = format.unwrap_or(Format::JsonLines);
            search.found.inputs.push(Input { path: None, format, size: 0 });
            continue;
        }
        let place = path.display().to_string();
        match std::fs::metadata(path) {
            Ok(about) if about.is_dir() => {
                let before = search.found.clone();
                search.folder(path, &about)?;
                if search.found == before {
                    let what = "the folder holds no .jsonl or .txt files, plain, .gz or .zst";
                    problems.add(place, what, "name the files, with --format");
                }
            }
            Ok(about) => search.file(path, Some(&about), Some(Format::Text)),
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
struct Search {
    format: Option<Format>,
    /// The path of each file and folder by its device and inode.
    seen: HashMap<(u64, u64), PathBuf>,
    found: Found,
}

impl Search {
    fn folder(&mut self, folder: &Path, about: &Metadata) -> Result<()> {
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
            match std::fs::metadata(&path) {
                Ok(about) if about.is_dir() => self.folder(&path, &about)?,
                Ok(about) if !about.is_file() && input(&path, None, None).is_some() => {
                    let note = format!("{} is not a file: left out", path.display());
                    self.found.notes.push(note);
                }
                // A link that leads nowhere is told when it is opened.
                about => self.file(&path, about.as_ref().ok(), None),
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, about: Option<&Metadata>, fallback: Option<Format>) {
        let Some(input) = input(path, fallback, self.format) else { return };
        if about.is_none_or(|about| self.is_new(path, about)) {
            self.found.inputs.push(input);
        }
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

/// A file with its format, by its name or else `fallback`.
fn input(path: &Path, fallback: Option<Format>, wanted: Option<Format>) -> Option<Input> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let by_name = match ending {
        _ if JSON_ENDINGS.contains(&ending) => Some(Format::JsonLines),
        _ if TEXT_ENDINGS.contains(&ending) => Some(Format::Text),
        _ => fallback,
    };
    let format = by_name.map(|by_name| wanted.unwrap_or(by_name))?;
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    Some(Input { path: Some(path.into()), format, size })
}

impl Input {
    /// The file as errors name it.
    pub fn place(&self) -> String {
        self.path.as_ref().map_or("standard input".into(), |path| path.display().to_string())
    }

    /// The file's text, decompressed, by what its first bytes say.
    pub fn open(&self) -> Result<(Box<dyn Read>, Position)> {
        let position = Position::default();
        let raw: Box<dyn Read> = match &self.path {
            Some(path) => Box::new(
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?,
            ),
            None => Box::new(std::io::stdin()),
        };
        let counted = Counted { inner: raw, position: position.clone() };
        let mut buffered = BufReader::with_capacity(1 << 18, counted);
        let start = buffered.fill_buf().with_context(|| format!("cannot read {}", self.place()))?;
        let text: Box<dyn Read> = if start.starts_with(&[0x1f, 0x8b]) {
            Box::new(flate2::bufread::MultiGzDecoder::new(buffered))
        } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Box::new(Frames { source: Some(buffered), decoder: None })
        } else {
            Box::new(buffered)
        };
        Ok((text, position))
    }
}

/// Bytes taken from the file so far.
pub type Position = std::rc::Rc<std::cell::Cell<u64>>;

struct Counted<R> {
    inner: R,
    position: Position,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(out)?;
        self.position.set(self.position.get() + read as u64);
        Ok(read)
    }
}

type Decoder<R> = ruzstd::decoding::StreamingDecoder<R, ruzstd::decoding::FrameDecoder>;

/// Zstandard frames one after another, as parallel compressors write them.
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
