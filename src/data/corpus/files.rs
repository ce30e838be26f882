//! Which files a corpus is made of, and opening them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::base::Problems;

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

/// The files `paths` name, in order: a folder stands for all files of a known kind below it, sorted
/// by name; `-` for standard input. `format` overrules what the names say.
pub fn find(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<Input>> {
    let mut problems = Problems::default();
    let mut inputs = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let format = format.unwrap_or(Format::JsonLines);
            inputs.push(Input { path: None, format, size: 0 });
        } else if path.is_dir() {
            let before = inputs.len();
            let mut files = Vec::new();
            walk(path, &mut files)?;
            inputs.extend(files.into_iter().filter_map(|file| input(file, None, format)));
            if inputs.len() == before {
                let what = "the folder holds no .jsonl or .txt files, plain, .gz or .zst";
                problems.add(path.display().to_string(), what, "name the files, with --format");
            }
        } else if !path.exists() {
            problems.add(path.display().to_string(), "does not exist", "check the path");
        } else {
            let fallback = Some(Format::Text);
            inputs.extend(input(path.clone(), fallback, format));
        }
    }
    problems.or(inputs).map_err(Into::into)
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = || format!("cannot list {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(failed)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(failed)?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            walk(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// A file with its format, by its name or else `fallback`.
fn input(path: PathBuf, fallback: Option<Format>, wanted: Option<Format>) -> Option<Input> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let by_name = match ending {
        _ if JSON_ENDINGS.contains(&ending) => Some(Format::JsonLines),
        _ if TEXT_ENDINGS.contains(&ending) => Some(Format::Text),
        _ => fallback,
    };
    let format = by_name.map(|by_name| wanted.unwrap_or(by_name))?;
    let size = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
    Some(Input { path: Some(path), format, size })
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
