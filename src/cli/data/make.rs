//! `data build`, `data train-tokenizer`, `data merge`: make datasets and tokenizers.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use base::input::is_there;
use base::output::Output;
use base::progress::{Progress, Unit};
use base::{Bytes, Count, Problems, visible};
use data::Record;
use data::build::{self, Build, Train};
use data::corpus::{self, Format, Input, Rules, Wanted};
use data::indexed::{Indexed, TokenType};
use data::tokenizer::{Tokenizer, Training};

use super::super::{Json, Overwrite};

/// Text to read.
#[derive(clap::Args, Debug)]
struct Text {
    /// Files or folders of .jsonl, .txt, .csv, .tsv or .parquet, also compressed as .gz, .zst, .xz or
    /// .bz2; `-` for standard input
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
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
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
    /// A table with a header, each row a document
    Csv,
    /// The same with tabs
    Tsv,
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
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
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
    #[arg(long)]
    vocab: usize,
    /// Number of occurrences below which a pair does not become a token
    #[arg(long, default_value_t = 2)]
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

/// Number of notes on the corpus that are printed.
const NOTES: usize = 3;

impl Text {
    /// Files to read. Prints a note for each file that is left out.
    fn inputs(&self) -> Result<Vec<Input>> {
        let format = self.format.map(|format| match format {
            TextFormat::Jsonl => Format::JsonLines,
            TextFormat::Txt => Format::Text,
            TextFormat::Lines => Format::Lines,
            TextFormat::Csv => Format::Csv(b','),
            TextFormat::Tsv => Format::Csv(b'\t'),
            TextFormat::Parquet => Format::Parquet,
        });
        let bare = |ending: &String| ending.trim_start_matches('.').to_lowercase();
        let wanted = Wanted { format, endings: self.ext.iter().map(bare).collect() };
        let mut paths = self.input.clone();
        paths.extend(self.files_from.as_deref().map(listed).transpose()?.unwrap_or_default());
        let found = corpus::find(&paths, &wanted)?;
        let more = found.notes.len().saturating_sub(NOTES);
        found.notes.iter().take(NOTES).for_each(|note| base::warn!("note: {}", visible(note)));
        if more > 0 {
            base::warn!("note: and {more} more like these");
        }
        Ok(found.inputs)
    }

    fn rules(&self) -> Rules {
        Rules { key: self.key.clone(), skip_invalid: self.skip_invalid }
    }

    fn threads(&self) -> usize {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(all).max(1)
    }
}

/// Paths that a file lists, one per line.
fn listed(file: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("cannot read {}", file.display());
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => {
            is_there(file)?;
            std::fs::read_to_string(file)
        }
    };
    let paths: Vec<PathBuf> = text
        .with_context(failed)?
        .lines()
        .filter(|line| !line.is_empty())
        .map(PathBuf::from)
        .collect();
    if paths.is_empty() {
        let what = "names no files";
        return Err(Problems::one(file.display().to_string(), what, "write one a line").into());
    }
    Ok(paths)
}

pub fn build(args: BuildArgs) -> Result<()> {
    let inputs = args.text.inputs()?;
    let tokenizer = Tokenizer::named(&args.tokenizer)?;
    let append = match args.append_eod || args.eod.is_some() {
        true => Some(end_of_document(&args, &tokenizer)?),
        false => None,
    };
    let token_type = token_type(&args, &tokenizer)?;
    let total = inputs.iter().map(|input| input.size).sum();
    let progress = Progress::new("building", total, Unit::Bytes);
    let build = Build {
        inputs: &inputs,
        rules: args.text.rules(),
        tokenizer: &tokenizer,
        record: Some(Record::new(&args.tokenizer, &tokenizer, &args.output)?),
        output: args.output.clone(),
        existing: args.overwrite.existing(),
        token_type,
        append,
        parse_special: args.parse_special,
        shuffle: args.shuffle,
        threads: args.text.threads(),
    };
    let built = build.run(|report, tokens| {
        progress
            .show(report.read, || format!("{} read, {} tokens", Bytes(report.text), Count(tokens)));
    })?;
    let seconds = progress.finish();
    let lines = || {
        base::say!(
            "{}: {}, {} ({token_type}), {:.2} bytes of text per token",
            args.output.display(),
            Count(built.documents).of("document"),
            Count(built.tokens).of("token"),
            built.text as f64 / built.tokens.max(1) as f64,
        );
        let rate = Bytes((built.read as f64 / seconds.0) as u64);
        base::say!("{} read in {seconds}, {rate}/s", Bytes(built.read));
        if built.skipped > 0 {
            let are = if built.skipped == 1 { "is" } else { "are" };
            let lines = Count(built.skipped).of("line");
            base::say!("{lines} could not be read and {are} left out");
        }
    };
    let object = json!({
        "dataset": args.output, "documents": built.documents, "tokens": built.tokens,
        "dtype": token_type.to_string(), "text_bytes": built.text, "bytes_read": built.read,
        "lines_left_out": built.skipped, "seconds": seconds.0,
    });
    args.json.say(lines, object);
    Ok(())
}

fn end_of_document(args: &BuildArgs, tokenizer: &Tokenizer) -> Result<u32, Problems> {
    let wrong = |what: String, remedy: String| Problems::one("--eod", what, remedy);
    let names: Vec<&str> = tokenizer.specials().iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(" ");
    match &args.eod {
        Some(name) => tokenizer.special(name).ok_or_else(|| {
            let what = format!("\"{name}\" is not a special token of {}", args.tokenizer.display());
            wrong(what, format!("its special tokens are {names}"))
        }),
        None => tokenizer.eod().ok_or_else(|| {
            let what =
                format!("{} does not say which token ends documents", args.tokenizer.display());
            wrong(what, format!("name one of its special tokens with --eod: {names}"))
        }),
    }
}

fn token_type(args: &BuildArgs, tokenizer: &Tokenizer) -> Result<TokenType, Problems> {
    let vocab = tokenizer.vocab();
    let token_type = match args.dtype {
        None => TokenType::for_vocab(vocab),
        Some(Dtype::UInt8) => TokenType::U8,
        Some(Dtype::UInt16) => TokenType::U16,
        Some(Dtype::Int32) => TokenType::I32,
    };
    if vocab as u64 > token_type.max() + 1 {
        let what = format!("{token_type} cannot hold a vocabulary of {}", Count(vocab as u64));
        return Err(Problems::one("--dtype", what, "leave it out"));
    }
    Ok(token_type)
}

pub fn train_tokenizer(args: TrainArgs) -> Result<()> {
    let mut output = Output::create(&args.output, args.overwrite.existing())?;
    let inputs = args.text.inputs()?;
    let total = inputs.iter().map(|input| input.size).sum();
    let training = Training {
        vocab: args.vocab,
        min_frequency: args.min_frequency,
        special: args.special.clone(),
    };
    let rules = args.text.rules();
    let train = Train { inputs: &inputs, rules, training, threads: args.text.threads() };
    let (progress, mut learning) = (Progress::new("counting", total, Unit::Bytes), None);
    let trained = train.run(
        |report| progress.show(report.read, || format!("{} read", Bytes(report.text))),
        |ids| {
            let begin = || Progress::new("learning", args.vocab as u64, Unit::Of("ids"));
            learning.get_or_insert_with(begin).show(ids as u64, String::new);
        },
    )?;
    drop(learning);
    let seconds = progress.finish();
    output
        .write_all(trained.json.as_bytes())
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    output.finish()?;
    let lines = || {
        base::say!(
            "{}: {} ids learned from {} ({} different pieces) in {seconds}",
            args.output.display(),
            Count(trained.vocab as u64),
            Bytes(trained.text),
            Count(trained.pieces as u64),
        );
        if trained.vocab < args.vocab {
            base::say!("the text has no more pairs that occur {} times", args.min_frequency);
        }
    };
    let object = json!({
        "tokenizer": args.output, "vocab": trained.vocab, "text_bytes": trained.text,
        "pieces": trained.pieces, "seconds": seconds.0,
    });
    args.json.say(lines, object);
    Ok(())
}

pub fn merge(args: MergeArgs) -> Result<()> {
    let datasets = args
        .datasets
        .iter()
        .map(|named| Indexed::open(&super::prefix(named)))
        .collect::<Result<Vec<_>>>()?;
    let record = build::merge(&datasets, &args.output, args.overwrite.existing())?;
    let (documents, tokens) = datasets.iter().fold((0, 0), |(documents, tokens), dataset| {
        (documents + dataset.documents() as u64, tokens + dataset.tokens())
    });
    let place = args.output.display();
    let lines = || {
        base::say!("{place}: {}, {}", Count(documents).of("document"), Count(tokens).of("token"));
        if record.is_none() {
            base::say!("wrote no tokenizer record: some of these datasets have none");
        }
    };
    let object = json!({
        "dataset": args.output, "documents": documents, "tokens": tokens, "tokenizer": record,
    });
    args.json.say(lines, object);
    Ok(())
}
