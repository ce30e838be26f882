//! `gptrain data build`: tokenizes text into a dataset.

use super::text::Text;
use crate::options::{Choice, Json, Overwrite, one_of};
use anyhow::Result;
use base::progress::{Progress, Unit};
use base::{Bytes, Count, Problems, Seconds, escape_control, number};
use data::Record;
use data::corpus::Format;
use data::indexed::TokenType;
use data::tokenizer::Tokenizer;
use serde::Serialize;
use std::path::PathBuf;

/// Words of --dtype.
const DTYPES: [Choice<TokenType>; 3] = [
    Choice("uint8", TokenType::U8, ""),
    Choice("uint16", TokenType::U16, ""),
    Choice("int32", TokenType::I32, ""),
];

/// Default of `min_sequences` for files of text: the least of which `manifest new` holds out 5 %. Other
/// formats say what a document is.
const MIN_SEQUENCES: usize = 20;

#[derive(clap::Args, Debug)]
pub struct Build {
    #[command(flatten)]
    text: Text,
    /// Write PREFIX.bin and PREFIX.idx, and the tokenizer's record PREFIX.tokenizer
    #[arg(short, long, value_name = "PREFIX")]
    output: PathBuf,
    /// File tokenizer.json, a folder with one (or with vocab.json and merges.txt), or `bytes`
    #[arg(short, long)]
    tokenizer: PathBuf,
    /// End each document with the tokenizer's end-of-document token
    #[arg(long)]
    append_eod: bool,
    /// End-of-document token [default: that of the tokenizer's files]
    #[arg(long, value_name = "TOKEN")]
    eod: Option<String>,
    /// Convert special tokens spelled out in the text to their ids, as Hugging Face does; the text
    /// can then contain an end of document
    #[arg(long)]
    parse_special: bool,
    /// Shuffle the documents with this seed, so that each part of a split has documents of every file
    #[arg(long, value_name = "SEED", value_parser = number::whole::<u64>)]
    shuffle: Option<u64>,
    /// Cut documents into sequences until there are this many, so that the parts of a split are not
    /// empty; 0 cuts none [default: 20 if all files are plain text, else 0]
    #[arg(long, value_name = "N", value_parser = number::whole_in(0..=1000usize))]
    min_sequences: Option<usize>,
    /// Type of an id on disk [default: uint16, or int32 for a vocabulary of 65,500 or more]
    #[arg(long, value_parser = one_of(&DTYPES))]
    dtype: Option<TokenType>,
    #[command(flatten)]
    overwrite: Overwrite,
    #[command(flatten)]
    json: Json,
}

impl Build {
    pub fn run(self) -> Result<()> {
        let built = self.build()?;
        self.json.say(|| built.say(), &built);
        Ok(())
    }

    /// Tokenizes text into a dataset.
    pub fn build(&self) -> Result<BuiltDataset> {
        let inputs = self.text.find_files()?;
        let tokenizer = Tokenizer::load(&self.tokenizer)?;
        let append = self.append_eod || self.eod.is_some();
        let append = append.then(|| self.find_eod(&tokenizer)).transpose()?;
        for note in tokenizer.notes() {
            base::warn!("note: {}", escape_control(note));
        }
        if let Some(eod) = append
            && tokenizer.tail().last() == Some(&eod)
        {
            let end = tokenizer.name(eod);
            base::warn!(
                "note: the tokenizer's template already ends each text with {end}, so every document ends \
             with it twice: leave out --append-eod and --eod"
            );
        }
        let token_type = self.choose_type(&tokenizer)?;
        let total = inputs.iter().map(|input| input.size).sum();
        let is_text = inputs.iter().all(|input| input.format == Format::Text);
        let progress = Progress::new("building", total, Unit::Bytes);
        let build = data::build::Build {
            inputs: &inputs,
            rules: self.text.rules(),
            tokenizer: &tokenizer,
            record: Some(Record::new(&self.tokenizer, &tokenizer, &self.output)?),
            output: self.output.clone(),
            existing: self.overwrite.existing(),
            token_type,
            append,
            parse_special: self.parse_special,
            shuffle: self.shuffle,
            min_sequences: self
                .min_sequences
                .unwrap_or(if is_text { MIN_SEQUENCES } else { 0 }),
            threads: self.text.threads(),
        };
        let built = build.run(|report, tokens| {
            progress.show(report.read, || {
                format!("{} read, {} tokens", Bytes(report.text), Count(tokens))
            });
        })?;
        Ok(BuiltDataset {
            dataset: self.output.clone(),
            documents: built.documents,
            sequences: built.cut,
            tokens: built.tokens,
            dtype: token_type.to_string(),
            text_bytes: built.text,
            bytes_read: built.read,
            lines_left_out: built.skipped,
            encoder: tokenizer.encoder(),
            seconds: progress.finish().0,
        })
    }

    fn find_eod(&self, tokenizer: &Tokenizer) -> Result<u32, Problems> {
        let names: Vec<&str> = tokenizer
            .added_tokens()
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let names = names.join(" ");
        match &self.eod {
            Some(name) => tokenizer.token(name).ok_or_else(|| {
                Problems::one(
                    "--eod",
                    format!("\"{name}\" is not one token of {}", self.tokenizer.display()),
                    format!("its special tokens are {names}; any single token will do"),
                )
            }),
            None => tokenizer.eod().ok_or_else(|| {
                Problems::one(
                    "--eod",
                    format!("{} does not say which token ends documents", self.tokenizer.display()),
                    format!("name one of its tokens with --eod, such as {names}"),
                )
            }),
        }
    }

    fn choose_type(&self, tokenizer: &Tokenizer) -> Result<TokenType, Problems> {
        let vocab = tokenizer.vocab();
        let token_type = self.dtype.unwrap_or(TokenType::for_vocab(vocab));
        if vocab as u64 > token_type.max() + 1 {
            return Err(Problems::one(
                "--dtype",
                format!("{token_type} cannot hold a vocabulary of {}", Count(vocab as u64)),
                "leave it out",
            ));
        }
        Ok(token_type)
    }
}

/// Dataset that was built.
#[derive(Serialize)]
pub struct BuiltDataset {
    dataset: PathBuf,
    documents: u64,
    /// Sequences into which they were cut; null if each is one.
    sequences: Option<u64>,
    tokens: u64,
    dtype: String,
    text_bytes: u64,
    bytes_read: u64,
    lines_left_out: u64,
    /// Code that encoded the text.
    encoder: String,
    seconds: f64,
}

impl BuiltDataset {
    pub fn say(&self) {
        base::say!(
            "{}: {}, {} ({}), {:.2} bytes of text per token",
            self.dataset.display(),
            Count(self.documents).with_noun("document"),
            Count(self.tokens).with_noun("token"),
            self.dtype,
            self.text_bytes as f64 / self.tokens.max(1) as f64,
        );
        if let Some(sequences) = self.sequences {
            let documents = if self.documents == 1 { "the document" } else { "the documents" };
            base::say!(
                "cut {documents} into {sequences} sequences, so that a split has validation data \
                 (--min-sequences 0 cuts none)"
            );
        }
        let rate = Bytes((self.bytes_read as f64 / self.seconds) as u64);
        base::say!("{} read in {}, {rate}/s", Bytes(self.bytes_read), Seconds(self.seconds));
        base::say!("encoded by {}", escape_control(&self.encoder));
        if self.lines_left_out > 0 {
            let are = if self.lines_left_out == 1 { "is" } else { "are" };
            let lines = Count(self.lines_left_out).with_noun("line");
            base::say!("{lines} could not be read and {are} left out");
        }
    }
}
