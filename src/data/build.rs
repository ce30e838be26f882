//! Builds datasets: tokenizes a corpus into a .bin/.idx pair, merges datasets, trains tokenizers.
//! Output is byte-identical to Megatron's `preprocess_data.py`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::corpus::{self, DocumentRules, Input, ReadOptions, ReadProgress};
use super::indexed::{Indexed, TokenType, Writer, record_path};
use super::record::{self, Record};
use super::shuffle::{self, UnshuffledFolder};
use super::tokenizer::{Encoder, Tokenizer, Trainer, Training};
use base::Problems;
use base::output::{Existing, Output};
use base::progress::{Progress, Unit};

/// Dataset to build.
pub struct Build<'a> {
    pub inputs: &'a [Input],
    pub rules: DocumentRules,
    pub tokenizer: &'a Tokenizer,
    /// Record of the tokenizer, written beside the index; `append_eod` and `parse_special` are filled in.
    pub record: Option<Record>,
    pub output: PathBuf,
    pub existing: Existing,
    pub token_type: TokenType,
    /// Token that ends every non-empty document.
    pub append: Option<u32>,
    /// Whether special tokens in the text become their ids.
    pub parse_special: bool,
    /// Number of sequences below which documents are cut (`Writer::cut_documents`); 0 keeps each a sequence.
    pub min_sequences: usize,
    /// Seed of the documents' order; None keeps the order of the corpus.
    pub shuffle: Option<u64>,
    pub threads: usize,
}

/// Result of a build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Built {
    pub documents: u64,
    /// Sequences into which the documents were cut; None if each is one.
    pub cut: Option<u64>,
    pub tokens: u64,
    /// Bytes of the documents' text.
    pub text: u64,
    /// Bytes of the decompressed files.
    pub read: u64,
    /// Unreadable lines that were skipped.
    pub skipped: u64,
}

/// Documents of one chunk.
#[derive(Default)]
struct Encoded {
    ids: Vec<u32>,
    /// Tokens of each document; the last may continue in the next chunk.
    lengths: Vec<usize>,
    continues: bool,
    /// Bytes of text.
    text: u64,
    skipped: u64,
}

impl Build<'_> {
    /// Builds the dataset. `progress` receives the progress of reading, and the tokens so far. On
    /// an error the output is removed.
    pub fn run(&self, progress: impl FnMut(ReadProgress, u64)) -> Result<Built> {
        UnshuffledFolder::remove_leftover(&self.output)?;
        let mut writer = Writer::create_or_replace(&self.output, self.token_type, self.existing)?;
        let mut record = self.record.clone();
        if let Some(record) = &mut record {
            record.append_eod = self.append;
            record.parse_special = self.parse_special;
        }
        let Some(seed) = self.shuffle else {
            let built = self.write_all(&mut writer, progress)?;
            return self.finish(writer, record.as_ref(), built);
        };
        let folder = UnshuffledFolder::create(&self.output)?;
        let mut ordered = Writer::create(&folder.prefix(), self.token_type)?;
        let built = self.write_all(&mut ordered, progress)?;
        ordered.finish()?;
        shuffle::shuffle(&Indexed::open(&folder.prefix())?, &mut writer, seed)?;
        drop(folder);
        self.finish(writer, record.as_ref(), built)
    }

    fn finish(&self, mut writer: Writer, record: Option<&Record>, built: Built) -> Result<Built> {
        let is_cut = self.min_sequences > 0 && writer.cut_documents(self.min_sequences);
        let cut = is_cut.then(|| writer.sequences());
        finish(writer, record)?;
        Ok(Built { cut, ..built })
    }

    fn write_all(
        &self,
        writer: &mut Writer,
        mut progress: impl FnMut(ReadProgress, u64),
    ) -> Result<Built> {
        let mut built = Built::default();
        let options = ReadOptions {
            inputs: self.inputs,
            rules: &self.rules,
            threads: self.threads,
            whole_texts: !self.tokenizer.cuts_at_lines(),
        };
        corpus::process_in_order(
            &options,
            || {
                let mut encoder = Encoder::new(self.tokenizer);
                if self.parse_special {
                    encoder = encoder.parse_special();
                }
                encoder
            },
            |encoder, chunk| self.encode(encoder, &chunk),
            |encoded, read| {
                self.write(&encoded, writer)?;
                built.tokens = writer.tokens();
                built.documents += encoded.lengths.len() as u64 - encoded.continues as u64;
                built.skipped += encoded.skipped;
                built.text += encoded.text;
                built.read = read.text;
                progress(read, built.tokens);
                Ok(())
            },
        )?;
        if built.documents == 0 {
            return Err(Problems::one(
                self.inputs[0].place(),
                "the corpus holds no documents",
                "check --format",
            )
            .into());
        }
        Ok(built)
    }

    fn encode(&self, encoder: &mut Encoder<'_>, chunk: &corpus::Chunk) -> Result<Encoded> {
        let mut encoded = Encoded { continues: chunk.continues_in_next, ..Encoded::default() };
        encoded.skipped = chunk.documents(&self.rules, |text| {
            let first = encoded.ids.len();
            encoded.text += text.len() as u64;
            if chunk.continues_previous {
                encoder.encode_more(text, &mut encoded.ids)?;
            } else {
                encoder.encode(text, &mut encoded.ids)?;
            }
            encoded.lengths.push(encoded.ids.len() - first);
            Ok(())
        })?;
        Ok(encoded)
    }

    /// Writes documents. An empty document has no sequences, as in Megatron-Core.
    fn write(&self, encoded: &Encoded, writer: &mut Writer) -> Result<()> {
        let mut at = 0;
        for (i, length) in encoded.lengths.iter().enumerate() {
            writer.extend(&encoded.ids[at..at + length])?;
            at += length;
            if encoded.continues && i + 1 == encoded.lengths.len() {
                return Ok(());
            }
            if writer.open_tokens() > 0 {
                writer.extend(self.append.as_slice())?;
                writer.end_sequence()?;
            }
            writer.end_document();
        }
        Ok(())
    }
}

/// Renames a dataset's files to their names, together with the record of its tokenizer.
fn finish(writer: Writer, record: Option<&Record>) -> Result<()> {
    let Some(record) = record else { return writer.finish() };
    let path = record_path(writer.prefix());
    let text = record.text(writer.documents(), writer.tokens());
    let mut out = Output::create(&path, Existing::Replaced)?;
    out.write_all(text.as_bytes())
        .with_context(|| format!("writing {} failed; nothing of it is kept", path.display()))?;
    writer.finish_with(Some(out))
}

/// Tokenizer to train on a corpus.
pub struct Train<'a> {
    pub inputs: &'a [Input],
    pub rules: DocumentRules,
    pub training: Training,
    pub threads: usize,
}

/// Result of training a tokenizer.
pub struct Trained {
    /// Content of tokenizer.json.
    pub json: String,
    pub vocab: usize,
    /// Bytes of text that were read.
    pub text: u64,
    /// Number of different pieces in it.
    pub pieces: usize,
}

impl Train<'_> {
    /// Counts the corpus's pieces, then learns from the counts. `counting` receives the progress of
    /// reading, `learning` the number of ids.
    pub fn run(
        &self,
        mut counting: impl FnMut(ReadProgress),
        learning: impl FnMut(usize),
    ) -> Result<Trained> {
        let mut trainer = Trainer::new();
        let mut text = 0;
        let Train { inputs, threads, .. } = *self;
        let options = ReadOptions { inputs, rules: &self.rules, threads, whole_texts: false };
        corpus::process_in_order(
            &options,
            || (),
            |_: &mut (), chunk: corpus::Chunk| {
                let mut counts = Trainer::new();
                chunk.documents(&self.rules, |text| {
                    counts.count(text);
                    Ok(())
                })?;
                Ok(counts)
            },
            |counts, read| {
                trainer.add(counts);
                text = read.text;
                counting(read);
                Ok(())
            },
        )?;
        let pieces = trainer.pieces();
        if pieces == 0 {
            return Err(Problems::one(
                self.inputs[0].place(),
                "the corpus holds no text",
                "check --format",
            )
            .into());
        }
        let (json, vocab) = trainer.train(&self.training, learning)?;
        Ok(Trained { json, vocab, text, pieces })
    }
}

/// Merges datasets of one token type and one tokenizer: the documents of the first, then those of the
/// second, … Returns the tokenizer's record, if all of them have it.
pub fn merge(datasets: &[Indexed], output: &Path, existing: Existing) -> Result<Option<Record>> {
    let mut problems = Problems::default();
    let first = &datasets[0];
    for other in &datasets[1..] {
        if other.token_type() != first.token_type() {
            problems.add(
                other.prefix().display().to_string(),
                format!(
                    "holds {}, {} holds {}",
                    other.token_type(),
                    first.prefix().display(),
                    first.token_type()
                ),
                "only datasets of one type can be merged: build one of them again",
            );
        }
    }
    for multimodal in datasets.iter().filter(|dataset| dataset.modes().is_some()) {
        problems.add(
            multimodal.prefix().display().to_string(),
            "is multimodal; gptrain merges text",
            "leave it out",
        );
    }
    let record = problems.collect(record::join(datasets))?.flatten();
    problems.or(())?;
    let mut writer = Writer::create_or_replace(output, first.token_type(), existing)?;
    let tokens: u64 = datasets.iter().map(Indexed::tokens).sum();
    let bytes = tokens * first.token_type().size() as u64;
    let progress = Progress::new("merging", bytes, Unit::Bytes);
    for dataset in datasets {
        writer.append(dataset, &progress)?;
    }
    finish(writer, record.as_ref())?;
    Ok(record)
}
