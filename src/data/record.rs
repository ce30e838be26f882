//! The record of a dataset's tokenizer: `PREFIX.tokenizer`, JSON beside the index. `data build`
//! writes it; Megatron's tools do not, and of their datasets the tokenizer is a guess.
//!
//! ```json
//! {"format": 1, "tokenizer": "/data/tok4k.json", "digest": "c5a1…", "vocab": 4096, "eod": 0,
//!  "append_eod": 0, "parse_special": false, "documents": 346, "tokens": 2035711}
//! ```

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::indexed::{Indexed, with_ending};
use super::tokenizer::{self, BYTES, Tokenizer};
use base::{Count, Problems, input};

/// The version of the file's format that is written, and the newest that is read.
const FORMAT: u32 = 1;

/// The tokenizer that a dataset was built with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version of the file's format.
    pub format: u32,
    /// Its path: absolute, or relative to the dataset's folder where it is in that folder; `bytes` is
    /// the one without a file.
    pub tokenizer: String,
    /// Its digest (`tokenizer::digest`), which decides whether another file is the same tokenizer.
    pub digest: String,
    /// Ids are below this.
    pub vocab: usize,
    /// The token that ends documents by the tokenizer's own files.
    pub eod: Option<u32>,
    /// The token that was appended to every document that is not empty; None without
    /// `--append-eod` and `--eod`.
    pub append_eod: Option<u32>,
    /// Whether special tokens spelled out in the text became their ids.
    pub parse_special: bool,
    /// Documents of the dataset, and tokens: a record with other numbers is another dataset's.
    pub documents: u64,
    pub tokens: u64,
}

/// `PREFIX.tokenizer`.
pub fn record_path(prefix: &Path) -> PathBuf {
    with_ending(prefix, ".tokenizer")
}

impl Record {
    /// Record of a tokenizer that a user names, for the dataset `prefix`, which is still to be built.
    pub fn new(path: &Path, tokenizer: &Tokenizer, prefix: &Path) -> Result<Record> {
        let place = match path == Path::new(BYTES) {
            true => path.to_path_buf(),
            false => relative(&std::path::absolute(path)?, &std::path::absolute(prefix)?),
        };
        Ok(Record {
            format: FORMAT,
            tokenizer: place.display().to_string(),
            digest: tokenizer::digest(path)?,
            vocab: tokenizer.vocab(),
            eod: tokenizer.eod(),
            append_eod: None,
            parse_special: false,
            documents: 0,
            tokens: 0,
        })
    }

    /// The record of a dataset; None if there is none. A damaged one, or one of another dataset, is
    /// an error.
    pub fn read(dataset: &Indexed) -> Result<Option<Record>> {
        let path = record_path(dataset.prefix());
        let place = path.display().to_string();
        let wrong = |what: String| {
            Problems::one(&place, what, "build the dataset again, or remove this file")
        };
        let bytes = match input::read(&path, input::SMALL) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("cannot read {place}"))?,
        };
        let record: Record = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("is not a record of a tokenizer: {error}")))?;
        if record.format > FORMAT {
            let what = format!("has format {}; this gptrain reads up to {FORMAT}", record.format);
            return Err(Problems::one(place, what, "use a newer gptrain").into());
        }
        let (documents, tokens) = (dataset.documents() as u64, dataset.tokens());
        if (record.documents, record.tokens) != (documents, tokens) {
            let what = format!(
                "is of a dataset of {} documents and {} tokens; {} has {} and {}",
                Count(record.documents),
                Count(record.tokens),
                dataset.prefix().display(),
                Count(documents),
                Count(tokens)
            );
            return Err(wrong(what).into());
        }
        Ok(Some(record))
    }

    /// The file's content, for a dataset of so many documents and tokens.
    pub fn text(&self, documents: u64, tokens: u64) -> String {
        let record = Record { documents, tokens, ..self.clone() };
        let json = serde_json::to_string_pretty(&record).expect("numbers and text");
        format!("{json}\n")
    }

    /// Whether the tokenizer is the one without a file.
    pub fn is_bytes(&self) -> bool {
        self.tokenizer == BYTES
    }

    /// Present path of the tokenizer: the recorded one, or the same name beside the dataset. None if
    /// neither file exists with this content.
    pub fn find(&self, prefix: &Path) -> Option<PathBuf> {
        let recorded = prefix.with_file_name(&self.tokenizer);
        let beside = prefix.with_file_name(recorded.file_name()?);
        let same = |path: &PathBuf| tokenizer::digest(path).is_ok_and(|d| d == self.digest);
        [recorded, beside].into_iter().filter(|path| path.exists()).find(same)
    }

    /// The tokenizer in few words: "/data/tok4k.json (4,096 ids, digest c5a1…)".
    pub fn describe(&self) -> String {
        describe(&self.tokenizer, self.vocab, &self.digest)
    }

    /// An error if the tokenizer in `path`, which `place` names (`--tokenizer`, `data.tokenizer`), is
    /// another one than the dataset's.
    pub fn compare(&self, prefix: &Path, place: &str, path: &Path) -> Result<()> {
        self.compare_digest(prefix, place, path, &tokenizer::digest(path)?).map_err(Into::into)
    }

    /// The same, where the tokenizer's digest is known already.
    pub fn compare_digest(
        &self,
        prefix: &Path,
        place: &str,
        path: &Path,
        digest: &str,
    ) -> Result<(), Problems> {
        if digest == self.digest {
            return Ok(());
        }
        let named = described(path, digest);
        let what = format!("is {named}; {} was built with {}", prefix.display(), self.describe());
        let remedy = format!(
            "name the dataset's own tokenizer, or build the dataset again with this one; if both \
             give the same ids, remove {}",
            record_path(prefix).display()
        );
        Err(Problems::one(place, what, remedy))
    }
}

/// The tokenizer of a dataset, as far as it is known.
pub struct DatasetTokenizer {
    pub record: Option<Record>,
    /// Its present path, or `bytes`.
    pub path: Option<PathBuf>,
    /// Note for the user: that the tokenizer is a guess, or is missing.
    pub note: Option<String>,
}

impl DatasetTokenizer {
    /// The one that a user names, which has to be the recorded one; or else the recorded one; or
    /// else, of a dataset without a record, a tokenizer.json beside it.
    pub fn find(dataset: &Indexed, named: Option<&Path>) -> Result<DatasetTokenizer> {
        let prefix = dataset.prefix();
        let (shown, record) = (prefix.display(), Record::read(dataset)?);
        if let (Some(record), Some(path)) = (&record, named) {
            record.compare(prefix, "--tokenizer", path)?;
        }
        let (path, note) = match (&record, named) {
            (_, Some(path)) => (Some(path.to_path_buf()), None),
            (Some(record), None) if record.is_bytes() => (Some(PathBuf::from(BYTES)), None),
            (Some(record), None) => {
                let path = record.find(prefix);
                let note = path.is_none().then(|| {
                    let tokenizer = record.describe();
                    format!("{shown} was built with {tokenizer}, which is no longer there")
                });
                (path, note)
            }
            (None, None) => {
                let beside = prefix.with_file_name("tokenizer.json");
                let beside = Some(beside).filter(|path| path.exists());
                let note = beside.as_ref().map(|path| {
                    let (record, path) = (record_path(prefix), path.display());
                    format!("{} does not exist, so {path} is a guess", record.display())
                });
                (beside, note)
            }
        };
        Ok(DatasetTokenizer { record, path, note })
    }

    /// Reads it, if it is there.
    pub fn load(&self) -> Result<Option<Tokenizer>> {
        self.path.as_deref().map(Tokenizer::named).transpose()
    }
}

/// A tokenizer's file in few words, with the number of its ids if it can be read.
pub fn described(path: &Path, digest: &str) -> String {
    let shown = path.display().to_string();
    match Tokenizer::named(path) {
        Ok(tokenizer) => describe(&shown, tokenizer.vocab(), digest),
        Err(_) => format!("{shown} (digest {digest})"),
    }
}

/// The bare name of a file that is in the dataset's folder, which may be moved as a whole.
fn relative(path: &Path, prefix: &Path) -> PathBuf {
    let name = path.file_name().filter(|_| path.parent() == prefix.parent());
    name.map_or(path.to_path_buf(), PathBuf::from)
}

fn describe(tokenizer: &str, vocab: usize, digest: &str) -> String {
    format!("{tokenizer} ({} ids, digest {digest})", Count(vocab as u64))
}

/// The record of datasets that are joined: theirs, if all have it and name one tokenizer; None if one
/// has none. Different tokenizers are an error.
pub fn joined(datasets: &[Indexed]) -> Result<Option<Record>> {
    let (mut problems, mut records) = (Problems::default(), Vec::new());
    for dataset in datasets {
        let record = problems.collect(Record::read(dataset))?.flatten();
        records.extend(record.map(|record| (dataset.prefix(), record)));
    }
    let Some((first, joined)) = records.first().cloned() else { return Ok(problems.or(None)?) };
    for (prefix, record) in &records[1..] {
        if record.digest != joined.digest {
            let (theirs, ours) = (record.describe(), joined.describe());
            let what = format!("was built with {theirs}, {} with {ours}", first.display());
            let remedy = "ids of two tokenizers do not mix: build one of the datasets again";
            problems.add(prefix.display().to_string(), what, remedy);
        }
    }
    let all = records.len() == datasets.len();
    let appended = |eod: &u32| records.iter().all(|(_, record)| record.append_eod == Some(*eod));
    let append_eod = joined.append_eod.filter(appended);
    let parse_special = records.iter().any(|(_, record)| record.parse_special);
    let record = Record { append_eod, parse_special, ..joined };
    Ok(problems.or(all.then_some(record))?)
}
