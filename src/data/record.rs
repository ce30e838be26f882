//! Record of a dataset's tokenizer: `PREFIX.tokenizer`, JSON in the folder of the index. `data build`
//! writes it. Megatron's tools do not, so the tokenizer of their datasets is a guess.
//!
//! ```json
//! {"format": 1, "tokenizer": "/data/tok4k.json", "digest": "c5a1…", "vocab": 4096, "eod": 0,
//!  "append_eod": 0, "parse_special": false, "encoder": "gptrain", "documents": 346,
//!  "tokens": 2035711}
//! ```

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::indexed::{Indexed, record_path};
use super::tokenizer::{self, BYTES, Tokenizer};
use base::{Count, Problems, input};

/// Format version that is written, and the newest that is read.
const FORMAT: u32 = 1;

/// Tokenizer that a dataset was built with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Format version of the file.
    pub format: u32,
    /// Path: relative to the dataset's folder if the file is in it, otherwise absolute; or `bytes`,
    /// which has no file.
    pub tokenizer: String,
    /// Digest (`tokenizer::digest`). Files with equal digests are the same tokenizer.
    pub digest: String,
    /// Ids are below this.
    pub vocab: usize,
    /// Token that ends documents according to the tokenizer's own files.
    pub eod: Option<u32>,
    /// Token that was appended to every non-empty document; None without `--append-eod` and `--eod`.
    pub append_eod: Option<u32>,
    /// Whether special tokens spelled out in the text became their ids.
    pub parse_special: bool,
    /// Code that encoded the text (`Tokenizer::encoder`). Older records do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<String>,
    /// Numbers of documents and tokens of the dataset. Other numbers mean that the record belongs to
    /// another dataset.
    pub documents: u64,
    pub tokens: u64,
}

impl Record {
    /// Record of a tokenizer that a user names, for the dataset `prefix`, which is still to be built.
    pub fn new(path: &Path, tokenizer: &Tokenizer, prefix: &Path) -> Result<Record> {
        let place = if path == Path::new(BYTES) {
            path.to_path_buf()
        } else {
            name_relative_to(&std::path::absolute(path)?, &std::path::absolute(prefix)?)
        };
        Ok(Record {
            format: FORMAT,
            tokenizer: place.display().to_string(),
            digest: tokenizer::digest(path)?,
            vocab: tokenizer.vocab(),
            eod: tokenizer.eod(),
            append_eod: None,
            parse_special: false,
            encoder: Some(tokenizer.encoder()),
            documents: 0,
            tokens: 0,
        })
    }

    /// Reads the record of a dataset; None if it does not exist. Fails if it is damaged or belongs to
    /// another dataset.
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
            return Err(Problems::one(
                place,
                format!("has format {}; this gptrain reads up to {FORMAT}", record.format),
                "use a newer gptrain",
            )
            .into());
        }
        let ends = [("eod", record.eod), ("append_eod", record.append_eod)];
        for (key, id) in ends.into_iter().filter_map(|(key, id)| Some((key, id?))) {
            if id as usize >= record.vocab {
                return Err(wrong(format!(
                    "{key} is {id}, beyond the {} ids of its vocab",
                    record.vocab
                ))
                .into());
            }
        }
        let documents = dataset.documents() as u64;
        let tokens = dataset.tokens();
        if (record.documents, record.tokens) != (documents, tokens) {
            return Err(wrong(format!(
                "is of a dataset of {} documents and {} tokens; {} has {} and {}",
                Count(record.documents),
                Count(record.tokens),
                dataset.prefix().display(),
                Count(documents),
                Count(tokens)
            ))
            .into());
        }
        Ok(Some(record))
    }

    /// Content of the file, for a dataset of this size.
    pub fn text(&self, documents: u64, tokens: u64) -> String {
        let record = Record { documents, tokens, ..self.clone() };
        let json = serde_json::to_string_pretty(&record).expect("numbers and text");
        format!("{json}\n")
    }

    /// Present path of the tokenizer: the recorded one, or the same name beside the dataset. None if
    /// neither file exists with this content.
    pub fn find(&self, prefix: &Path) -> Option<PathBuf> {
        let recorded = prefix.with_file_name(&self.tokenizer);
        let beside = prefix.with_file_name(recorded.file_name()?);
        [recorded, beside]
            .into_iter()
            .filter(|path| path.exists())
            .find(|path| tokenizer::digest(path).is_ok_and(|d| d == self.digest))
    }

    /// Short description: "/data/tok4k.json (4,096 ids, digest c5a1…)".
    pub fn describe(&self) -> String {
        describe(&self.tokenizer, self.vocab, &self.digest)
    }

    /// Fails if the tokenizer in `path`, which `place` names (`--tokenizer`, `data.tokenizer`), is not
    /// the dataset's.
    pub fn compare(&self, prefix: &Path, place: &str, path: &Path) -> Result<()> {
        self.compare_digest(prefix, place, path, &tokenizer::digest(path)?)
            .map_err(Into::into)
    }

    /// Like `compare`, with the digest of that tokenizer.
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
        let named = describe_file(path, digest);
        Err(Problems::one(
            place,
            format!("is {named}; {} was built with {}", prefix.display(), self.describe()),
            format!(
                "name the dataset's own tokenizer, or build the dataset again with this one; if both \
                 give the same ids, remove {}",
                record_path(prefix).display()
            ),
        ))
    }
}

/// Known facts about the tokenizer of a dataset.
pub struct DatasetTokenizer {
    pub record: Option<Record>,
    /// Present path of the tokenizer, or `bytes`.
    pub path: Option<PathBuf>,
    /// Note for the user: that the tokenizer is a guess, or is missing.
    pub note: Option<String>,
}

impl DatasetTokenizer {
    /// Finds the tokenizer: the one that the user names, which must be the recorded one; otherwise the
    /// recorded one; without a record, a tokenizer.json in the dataset's folder.
    pub fn find(dataset: &Indexed, named: Option<&Path>) -> Result<DatasetTokenizer> {
        let prefix = dataset.prefix();
        let shown = prefix.display();
        let record = Record::read(dataset)?;
        if let (Some(record), Some(path)) = (&record, named) {
            record.compare(prefix, "--tokenizer", path)?;
        }
        let (path, note) = match (&record, named) {
            (_, Some(path)) => (Some(path.to_path_buf()), None),
            (Some(record), None) if record.tokenizer == BYTES => (Some(PathBuf::from(BYTES)), None),
            (Some(record), None) => {
                let path = record.find(prefix);
                let note = path.is_none().then(|| {
                    let tokenizer = record.describe();
                    format!("{shown} was built with {tokenizer}, which is no longer there")
                });
                (path, note)
            }
            (None, None) => {
                let path = prefix.with_file_name("tokenizer.json");
                if path.exists() {
                    let note = format!(
                        "{} does not exist: assuming that {} is the tokenizer",
                        record_path(prefix).display(),
                        path.display()
                    );
                    (Some(path), Some(note))
                } else {
                    (None, None)
                }
            }
        };
        Ok(DatasetTokenizer { record, path, note })
    }

    /// Reads the tokenizer; None if its path is unknown.
    pub fn load(&self) -> Result<Option<Tokenizer>> {
        self.path.as_deref().map(Tokenizer::load).transpose()
    }
}

/// Short description of a tokenizer's file, with the number of ids if it can be read.
pub fn describe_file(path: &Path, digest: &str) -> String {
    let shown = path.display().to_string();
    match Tokenizer::load(path) {
        Ok(tokenizer) => describe(&shown, tokenizer.vocab(), digest),
        Err(_) => format!("{shown} (digest {digest})"),
    }
}

/// Name of a file in the dataset's folder, so that the folder can be moved; otherwise its path.
fn name_relative_to(path: &Path, prefix: &Path) -> PathBuf {
    match path.file_name() {
        Some(name) if path.parent() == prefix.parent() => PathBuf::from(name),
        _ => path.to_path_buf(),
    }
}

fn describe(tokenizer: &str, vocab: usize, digest: &str) -> String {
    format!("{tokenizer} ({} ids, digest {digest})", Count(vocab as u64))
}

/// Record of several datasets merged; None if one of them has none. Different tokenizers are an
/// error.
pub fn join(datasets: &[Indexed]) -> Result<Option<Record>> {
    let mut problems = Problems::default();
    let mut records = Vec::new();
    for dataset in datasets {
        let record = problems.collect(Record::read(dataset))?.flatten();
        records.extend(record.map(|record| (dataset.prefix(), record)));
    }
    let Some((first, mut joined)) = records.first().cloned() else {
        return Ok(problems.or(None)?);
    };
    for (prefix, record) in &records[1..] {
        if record.digest != joined.digest {
            let theirs = record.describe();
            let ours = joined.describe();
            problems.add(
                prefix.display().to_string(),
                format!("was built with {theirs}, {} with {ours}", first.display()),
                "ids of two tokenizers do not mix: build one of the datasets again",
            );
        }
        if record.append_eod != joined.append_eod {
            joined.append_eod = None;
        }
        if record.encoder != joined.encoder {
            joined.encoder = None;
        }
        joined.parse_special |= record.parse_special;
    }
    let has_all = records.len() == datasets.len();
    Ok(problems.or(has_all.then_some(joined))?)
}
