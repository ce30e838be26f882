//! Tokenizers of a run: compares those that its datasets record with `data.tokenizer` and with each
//! other, and keeps a copy in the run's folder.

use anyhow::Context;
use base::{Count, Problems};
use data::Record;
use data::indexed::Indexed;
use data::indexed::record_path;
use data::tokenizer::{self, BYTES};
use exchange::tokenizer::keep;
use manifest::Manifest;
use std::path::{Path, PathBuf};

/// Compares the records of a manifest's datasets, one dataset after the other.
pub struct Tokenizers<'a> {
    m: &'a Manifest,
    /// File of `data.tokenizer`, if it exists, and its digest.
    named: Option<(&'a Path, String)>,
    /// First dataset with a record.
    first: Option<(PathBuf, Record)>,
    /// Datasets without one.
    unknown: Vec<PathBuf>,
    /// Datasets whose documents do not end with a token.
    endless: Vec<PathBuf>,
    /// Tokens that end documents.
    appended: Vec<u32>,
}

impl<'a> Tokenizers<'a> {
    pub fn new(m: &'a Manifest) -> anyhow::Result<Tokenizers<'a>> {
        let named = m
            .data
            .tokenizer
            .as_deref()
            .filter(|path| path.exists())
            .map(|path| Ok::<_, anyhow::Error>((path, tokenizer::digest(path)?)))
            .transpose()
            .context("data.tokenizer")?;
        let unknown = Vec::new();
        let endless = Vec::new();
        let appended = Vec::new();
        Ok(Tokenizers { m, named, first: None, unknown, endless, appended })
    }

    /// Adds contradictions to the manifest or to an earlier dataset to `wrong`. Returns the recorded number
    /// of ids.
    pub fn compare(
        &mut self,
        dataset: &Indexed,
        wrong: &mut Problems,
    ) -> anyhow::Result<Option<usize>> {
        let prefix = dataset.prefix();
        let Some(record) = wrong.collect(Record::read(dataset))? else { return Ok(None) };
        let Some(record) = record else {
            self.unknown.push(prefix.into());
            return Ok(None);
        };
        let shown = prefix.display();
        match (&self.named, &self.first) {
            (Some((path, digest)), _) => {
                let compared = record.compare_digest(prefix, "data.tokenizer", path, digest);
                wrong.collect(compared.map_err(Into::into))?;
            }
            (None, Some((first, other))) if other.digest != record.digest => {
                let ours = record.describe();
                let theirs = other.describe();
                wrong.add(
                    shown.to_string(),
                    format!("was built with {ours}, {} with {theirs}", first.display()),
                    "train on datasets of one tokenizer: build one of them again",
                );
            }
            (None, _) if record.vocab > self.m.model.vocab => {
                let ids = Count(self.m.model.vocab as u64);
                let vocab = record.vocab;
                wrong.add(
                    "model.vocab",
                    format!("is {ids}; {shown} was built with {}", record.describe()),
                    format!("set model.vocab to {vocab}"),
                );
            }
            (None, _) => {}
        }
        self.appended.extend(record.append_eod);
        if let Some(eod) = self.m.data.eod {
            match record.append_eod {
                Some(own) if own != eod.token => {
                    wrong.add(
                        "data.eod.token",
                        format!("is {}; documents of {shown} end with {own}", eod.token),
                        format!("set data.eod.token to {own}"),
                    );
                }
                None => self.endless.push(prefix.into()),
                Some(_) => {}
            }
        }
        let vocab = record.vocab;
        self.first.get_or_insert_with(|| (prefix.into(), record));
        Ok(Some(vocab))
    }

    /// Whether documents of a dataset end with a token.
    pub fn is_appended(&self, token: u32) -> bool {
        self.appended.contains(&token)
    }

    /// Notes for the user that are not mistakes.
    pub fn notes(&self) -> Vec<String> {
        let list = |prefixes: &[PathBuf]| match prefixes {
            [one] => one.display().to_string(),
            [one, more @ ..] => format!("{} and {} more", one.display(), more.len()),
            [] => String::new(),
        };
        let mut notes = Vec::new();
        if let (Some((path, _)), [first, ..]) = (&self.named, &self.unknown[..]) {
            notes.push(format!(
                "{} does not exist: assuming that {} is the tokenizer of {}",
                record_path(first).display(),
                path.display(),
                list(&self.unknown)
            ));
        }
        if !self.endless.is_empty() {
            notes.push(format!(
                "data.eod.token ends no document of {}: it was built without --append-eod",
                list(&self.endless)
            ));
        }
        notes
    }
}

/// Keeps a copy of the run's tokenizer in its folder: `data.tokenizer`, or else the one that
/// its first dataset records. Warns if the folder already has a different one.
pub fn keep_copy(m: &Manifest) -> anyhow::Result<()> {
    let named = m.data.tokenizer.clone().filter(|path| path.exists());
    if let Some(path) = named.or_else(|| {
        let prefix = m.data.train_prefixes().into_iter().next()?;
        let record = Record::read(&Indexed::open(prefix).ok()?).ok()??;
        record.find(prefix).filter(|path| path != Path::new(BYTES))
    }) && let Some(warning) = keep(&m.log.folder, &path)?
    {
        tracing::warn!("{warning}");
    }
    Ok(())
}
