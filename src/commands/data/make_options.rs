//! `data build`, `data train-tokenizer`, `data merge`: make datasets and tokenizers.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use super::make;
use base::number;
use data::corpus::{DocumentRules, FileSelection, Format};
use data::indexed::TokenType;
use data::tokenizer::Training;

use crate::options::{Json, Overwrite};

/// Text to read.
#[derive(clap::Args, Debug)]
struct Text {
    /// Files or folders of .jsonl, .txt, .csv, .tsv or .parquet, also compressed as .gz, .zst, .xz or
    /// .bz2; `-` for standard input. Of a folder, files that are hidden or describe others (README.md,
    /// config.json) are left out
    #[arg(required_unless_present = "files_from")]
    input: Vec<PathBuf>,
    /// Read the files whose paths this file lists, one per line; `-` for standard input
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// Read the files of folders that have these extensions, each as one document: --ext py,md
    #[arg(long, value_name = "ENDINGS", value_delimiter = ',')]
    ext: Vec<String>,
    /// Format of the files [default: by their names]
    #[arg(long, value_enum)]
    format: Option<TextFormat>,
    /// The field of a JSON line, or the column of a table, that holds the text; `a.b` is field b
    /// of field a
    #[arg(long, default_value = "text")]
    key: String,
    /// Skip lines that cannot be read, and count them
    #[arg(long)]
    skip_invalid: bool,
    /// Number of threads [default: all]
    #[arg(long, value_parser = number::whole_in(1..=1024usize))]
    threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TextFormat {
    /// One JSON object per line, each a document
    Jsonl,
    /// Plain text, each file a document
    Txt,
    /// Plain text, each line a document
    Lines,
    /// Plain text, documents between empty lines
    Paragraphs,
    /// A table with a header, each row a document
    Csv,
    /// The same with tabs, in which quotes are letters
    Tsv,
    /// The same with tabs, in which fields may be in quotes as in CSV
    QuotedTsv,
    /// A Parquet table, each row a document
    Parquet,
}

#[derive(clap::Args, Debug)]
pub struct BuildArgs {
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
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    overwrite: Overwrite,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "lower")]
enum Dtype {
    UInt8,
    UInt16,
    Int32,
}

#[derive(clap::Args, Debug)]
pub struct TrainArgs {
    #[command(flatten)]
    text: Text,
    /// File tokenizer.json to write
    #[arg(short, long)]
    output: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Number of ids: special tokens, 256 bytes, and one per merge
    #[arg(long, value_parser = number::whole::<usize>)]
    vocab: usize,
    /// Number of occurrences below which a pair does not become a token
    #[arg(long, default_value_t = 2, value_parser = number::whole::<u64>)]
    min_frequency: u64,
    /// Special tokens; the first one ends documents
    #[arg(long, value_name = "TOKEN", default_value = "<|endoftext|>")]
    special: Vec<String>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(clap::Args, Debug)]
pub struct MergeArgs {
    /// Datasets to join, in this order (PREFIX of .bin and .idx)
    #[arg(required = true, num_args = 2.., value_name = "PREFIX")]
    datasets: Vec<PathBuf>,
    /// Write PREFIX.bin and PREFIX.idx
    #[arg(short, long, value_name = "PREFIX")]
    output: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    #[command(flatten)]
    pub json: Json,
}

impl Text {
    fn options(self) -> make::TextInput {
        let format = self.format.map(|format| match format {
            TextFormat::Jsonl => Format::JsonLines,
            TextFormat::Txt => Format::Text,
            TextFormat::Lines => Format::Lines,
            TextFormat::Paragraphs => Format::Paragraphs,
            TextFormat::Csv => Format::Csv,
            TextFormat::Tsv => Format::Tsv,
            TextFormat::QuotedTsv => Format::QuotedTsv,
            TextFormat::Parquet => Format::Parquet,
        });
        make::TextInput {
            paths: self.input,
            files_from: self.files_from,
            wanted: FileSelection {
                format,
                endings: self
                    .ext
                    .iter()
                    .map(|ending| ending.trim_start_matches('.').to_lowercase())
                    .collect(),
            },
            rules: DocumentRules { key: self.key, skip_invalid: self.skip_invalid },
            threads: self
                .threads
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        }
    }
}

pub fn build(args: BuildArgs) -> Result<()> {
    let token_type = args.dtype.map(|dtype| match dtype {
        Dtype::UInt8 => TokenType::U8,
        Dtype::UInt16 => TokenType::U16,
        Dtype::Int32 => TokenType::I32,
    });
    let options = make::BuildOptions {
        output: args.output,
        existing: args.overwrite.existing(),
        tokenizer: args.tokenizer,
        append_eod: args.append_eod,
        eod: args.eod,
        parse_special: args.parse_special,
        shuffle: args.shuffle,
        min_sequences: args.min_sequences,
        token_type,
    };
    let built = make::build(args.text.options(), &options)?;
    args.json.say(|| built.say(), &built);
    Ok(())
}

pub fn train_tokenizer(args: TrainArgs) -> Result<()> {
    let training =
        Training { vocab: args.vocab, min_frequency: args.min_frequency, special: args.special };
    let text = args.text.options();
    let existing = args.overwrite.existing();
    let learned = make::train_tokenizer(text, training, &args.output, existing)?;
    args.json.say(|| learned.say(), &learned);
    Ok(())
}

pub fn merge(args: MergeArgs) -> Result<()> {
    let existing = args.overwrite.existing();
    let merged = make::merge(&args.datasets, &args.output, existing)?;
    args.json.say(|| merged.say(), &merged);
    Ok(())
}
