//! Making datasets: a corpus is tokenized into a .bin/.idx pair, datasets are merged, tokenizers
//! trained. The bytes are those of Megatron's `preprocess_data.py`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::corpus::{self, Input, Reading, Report, Rules};
use super::indexed::{Indexed, TokenType, Writer};
use super::shuffle::{self, Aside};
use super::tokenizer::{Encoder, Tokenizer, Trainer, Training};
use base::Problems;

/// A dataset to be built.
pub struct Build<'a> {
    pub inputs: &'a [Input],
    pub rules: Rules,
    pub tokenizer: &'a Tokenizer,
    pub output: PathBuf,
    pub token_type: TokenType,
    /// Ends every document that is not empty.
    pub append: Option<u32>,
    /// Special tokens spelled out in the text become their ids.
    pub parse_special: bool,
    /// Puts the documents in the order of this seed.
    pub shuffle: Option<u64>,
    pub threads: usize,
}

/// What was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Built {
    pub documents: u64,
    pub tokens: u64,
    /// Bytes of the documents' text.
    pub text: u64,
    /// Bytes of the files that hold it, decompressed.
    pub read: u64,
    /// Lines left out because they could not be read.
    pub skipped: u64,
}

/// The documents of one chunk.
#[derive(Default)]
struct Encoded {
    ids: Vec<u32>,
    /// Tokens of each document; the last may go on in the next chunk.
    lengths: Vec<usize>,
    continues: bool,
    /// Bytes of text.
    text: u64,
    skipped: u64,
}

impl Build<'_> {
    /// Builds. `progress` is told how far reading has come, and the tokens so far. On an error,
    /// nothing is left of the output.
    pub fn run(&self, progress: impl FnMut(Report, u64)) -> Result<Built> {
        let mut writer = Writer::create(&self.output, self.token_type)?;
        let Some(seed) = self.shuffle else {
            let built = self.write_all(&mut writer, progress)?;
            writer.finish()?;
            return Ok(built);
        };
        let aside = Aside::beside(&self.output)?;
        let mut ordered = Writer::create(&aside.prefix(), self.token_type)?;
        let built = self.write_all(&mut ordered, progress)?;
        ordered.finish()?;
        shuffle::shuffle(&Indexed::open(&aside.prefix())?, &mut writer, seed)?;
        writer.finish()?;
        Ok(built)
    }

    fn write_all(
        &self,
        writer: &mut Writer,
        mut progress: impl FnMut(Report, u64),
    ) -> Result<Built> {
        let mut built = Built::default();
        let whole_texts = !self.tokenizer.cuts_at_lines();
        let (threads, skip_long) = (self.threads, self.rules.skip_invalid);
        let key = &self.rules.key;
        let reading = Reading { inputs: self.inputs, threads, whole_texts, skip_long, key };
        let encoder = || match self.parse_special {
            true => Encoder::new(self.tokenizer).parse_special(),
            false => Encoder::new(self.tokenizer),
        };
        corpus::in_order(
            &reading,
            encoder,
            |encoder, chunk| self.encode(encoder, &chunk),
            |some, report| {
                self.write(&some, writer)?;
                built.tokens = writer.tokens();
                built.documents += some.lengths.len() as u64 - some.continues as u64;
                built.skipped += some.skipped;
                built.text += some.text;
                built.read = report.text;
                progress(report, built.tokens);
                Ok(())
            },
        )?;
        if built.documents == 0 {
            let what = "the corpus holds no documents";
            return Err(Problems::one(self.inputs[0].place(), what, "check --format").into());
        }
        Ok(built)
    }

    fn encode(&self, encoder: &mut Encoder<'_>, chunk: &corpus::Chunk) -> Result<Encoded> {
        let mut some = Encoded { continues: chunk.continues, ..Encoded::default() };
        some.skipped = chunk.documents(&self.rules, |text| {
            let before = some.ids.len();
            some.text += text.len() as u64;
            match chunk.continued {
                true => encoder.encode_more(text, &mut some.ids)?,
                false => encoder.encode(text, &mut some.ids)?,
            }
            some.lengths.push(some.ids.len() - before);
            Ok(())
        })?;
        Ok(some)
    }

    /// An empty document is a document without sequences, as Megatron-Core writes it.
    fn write(&self, some: &Encoded, writer: &mut Writer) -> Result<()> {
        let mut at = 0;
        for (i, length) in some.lengths.iter().enumerate() {
            writer.extend(&some.ids[at..at + length])?;
            at += length;
            if some.continues && i + 1 == some.lengths.len() {
                return Ok(());
            }
            if writer.open() > 0 {
                writer.extend(self.append.as_slice())?;
                writer.end_sequence()?;
            }
            writer.end_document();
        }
        Ok(())
    }
}

/// A tokenizer to be trained on a corpus.
pub struct Train<'a> {
    pub inputs: &'a [Input],
    pub rules: Rules,
    pub training: Training,
    pub threads: usize,
}

/// What was learned.
pub struct Trained {
    /// The content of tokenizer.json.
    pub json: String,
    pub vocab: usize,
    /// Bytes of text that were read.
    pub text: u64,
    /// Different pieces found in it.
    pub pieces: usize,
}

impl Train<'_> {
    /// Counts the corpus's pieces, then learns from the counts. `counting` is told how far reading
    /// has come, `learning` how many ids there are.
    pub fn run(
        &self,
        mut counting: impl FnMut(Report),
        learning: impl FnMut(usize),
    ) -> Result<Trained> {
        let mut all = Trainer::new();
        let mut text = 0;
        let (threads, skip_long) = (self.threads, self.rules.skip_invalid);
        let key = &self.rules.key;
        let reading = Reading { inputs: self.inputs, threads, whole_texts: false, skip_long, key };
        let count = |_: &mut (), chunk: corpus::Chunk| {
            let mut some = Trainer::new();
            chunk.documents(&self.rules, |text| {
                some.count(text);
                Ok(())
            })?;
            Ok(some)
        };
        corpus::in_order(
            &reading,
            || (),
            count,
            |some, report| {
                all.add(some);
                text = report.text;
                counting(report);
                Ok(())
            },
        )?;
        let pieces = all.pieces();
        if pieces == 0 {
            let what = "the corpus holds no text";
            return Err(Problems::one(self.inputs[0].place(), what, "check --format").into());
        }
        let (json, vocab) = all.train(&self.training, learning)?;
        Ok(Trained { json, vocab, text, pieces })
    }
}

/// Merges datasets of one token type: the documents of the first, then those of the second, …
pub fn merge(datasets: &[Indexed], output: &Path) -> Result<()> {
    let mut problems = Problems::default();
    let first = &datasets[0];
    for other in &datasets[1..] {
        if other.token_type() != first.token_type() {
            let what = format!(
                "holds {}, {} holds {}",
                other.token_type(),
                first.prefix().display(),
                first.token_type()
            );
            let remedy = "only datasets of one type can be merged: build one of them again";
            problems.add(other.prefix().display().to_string(), what, remedy);
        }
    }
    for multimodal in datasets.iter().filter(|dataset| dataset.modes().is_some()) {
        let what = "is multimodal; gptrain merges text";
        problems.add(multimodal.prefix().display().to_string(), what, "leave it out");
    }
    problems.or(())?;
    let mut writer = Writer::create(output, first.token_type())?;
    for dataset in datasets {
        writer.append(dataset)?;
    }
    writer.finish()
}
