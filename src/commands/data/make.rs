//! `data build`, `data train-tokenizer`, `data merge`: make datasets and tokenizers.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use base::input::is_there;
use base::output::{Existing, Output};
use base::progress::{Progress, Unit};
use base::{Bytes, Count, Problems, Seconds, escape_control};
use data::Record;
use data::build::{self, Build, Built, Train, Trained};
use data::corpus::{self, DocumentRules, FileSelection, Input};
use data::indexed::{Indexed, TokenType};
use data::tokenizer::{Tokenizer, Training};

/// Text to read.
pub struct Text {
    pub paths: Vec<PathBuf>,
    /// File that lists more paths.
    pub files_from: Option<PathBuf>,
    pub wanted: FileSelection,
    pub rules: DocumentRules,
    pub threads: usize,
}

/// Options of `build`, beside its text.
pub struct Options {
    pub output: PathBuf,
    pub existing: Existing,
    pub tokenizer: PathBuf,
    pub append_eod: bool,
    pub eod: Option<String>,
    pub parse_special: bool,
    pub shuffle: Option<u64>,
    pub token_type: Option<TokenType>,
}

/// Number of notes on the corpus that are printed.
const NOTES: usize = 3;

impl Text {
    /// Files to read. Prints a note for each file that is left out.
    fn inputs(&self) -> Result<Vec<Input>> {
        let mut paths = self.paths.clone();
        paths.extend(self.files_from.as_deref().map(listed).transpose()?.unwrap_or_default());
        let found = corpus::find(&paths, &self.wanted)?;
        let more = found.notes.len().saturating_sub(NOTES);
        found
            .notes
            .iter()
            .take(NOTES)
            .for_each(|note| base::warn!("note: {}", escape_control(note)));
        if more > 0 {
            base::warn!("note: and {more} more like these");
        }
        Ok(found.inputs)
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

/// Tokenizes text into a dataset. Returns also the type of its ids and the time.
pub fn build(text: Text, options: &Options) -> Result<(Built, TokenType, Seconds)> {
    let inputs = text.inputs()?;
    let tokenizer = Tokenizer::named(&options.tokenizer)?;
    let append = match options.append_eod || options.eod.is_some() {
        true => Some(end_of_document(options, &tokenizer)?),
        false => None,
    };
    let token_type = token_type(options, &tokenizer)?;
    let total = inputs.iter().map(|input| input.size).sum();
    let progress = Progress::new("building", total, Unit::Bytes);
    let build = Build {
        inputs: &inputs,
        rules: text.rules,
        tokenizer: &tokenizer,
        record: Some(Record::new(&options.tokenizer, &tokenizer, &options.output)?),
        output: options.output.clone(),
        existing: options.existing,
        token_type,
        append,
        parse_special: options.parse_special,
        shuffle: options.shuffle,
        threads: text.threads,
    };
    let built = build.run(|report, tokens| {
        progress
            .show(report.read, || format!("{} read, {} tokens", Bytes(report.text), Count(tokens)));
    })?;
    Ok((built, token_type, progress.finish()))
}

fn end_of_document(options: &Options, tokenizer: &Tokenizer) -> Result<u32, Problems> {
    let wrong = |what: String, remedy: String| Problems::one("--eod", what, remedy);
    let names: Vec<&str> = tokenizer.specials().iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(" ");
    match &options.eod {
        Some(name) => tokenizer.special(name).ok_or_else(|| {
            let what =
                format!("\"{name}\" is not a special token of {}", options.tokenizer.display());
            wrong(what, format!("its special tokens are {names}"))
        }),
        None => tokenizer.eod().ok_or_else(|| {
            let what =
                format!("{} does not say which token ends documents", options.tokenizer.display());
            wrong(what, format!("name one of its special tokens with --eod: {names}"))
        }),
    }
}

fn token_type(options: &Options, tokenizer: &Tokenizer) -> Result<TokenType, Problems> {
    let vocab = tokenizer.vocab();
    let token_type = options.token_type.unwrap_or(TokenType::for_vocab(vocab));
    if vocab as u64 > token_type.max() + 1 {
        let what = format!("{token_type} cannot hold a vocabulary of {}", Count(vocab as u64));
        return Err(Problems::one("--dtype", what, "leave it out"));
    }
    Ok(token_type)
}

/// Learns a tokenizer and writes it. Returns also the time.
pub fn train_tokenizer(
    text: Text,
    training: Training,
    output: &Path,
    existing: Existing,
) -> Result<(Trained, Seconds)> {
    let mut file = Output::create(output, existing)?;
    let inputs = text.inputs()?;
    let total = inputs.iter().map(|input| input.size).sum();
    let vocab = training.vocab as u64;
    let train = Train { inputs: &inputs, rules: text.rules, training, threads: text.threads };
    let (progress, mut learning) = (Progress::new("counting", total, Unit::Bytes), None);
    let trained = train.run(
        |report| progress.show(report.read, || format!("{} read", Bytes(report.text))),
        |ids| {
            let begin = || Progress::new("learning", vocab, Unit::Items("ids"));
            learning.get_or_insert_with(begin).show(ids as u64, String::new);
        },
    )?;
    drop(learning);
    let seconds = progress.finish();
    file.write_all(trained.json.as_bytes())
        .with_context(|| format!("cannot write {}", output.display()))?;
    file.finish()?;
    Ok((trained, seconds))
}

/// Joins datasets into one. Returns its documents, tokens and record.
pub fn merge(
    datasets: &[PathBuf],
    output: &Path,
    existing: Existing,
) -> Result<(u64, u64, Option<Record>)> {
    let datasets = datasets
        .iter()
        .map(|named| Indexed::open(&super::prefix(named)))
        .collect::<Result<Vec<_>>>()?;
    let record = build::merge(&datasets, output, existing)?;
    let (documents, tokens) = datasets.iter().fold((0, 0), |(documents, tokens), dataset| {
        (documents + dataset.documents() as u64, tokens + dataset.tokens())
    });
    Ok((documents, tokens, record))
}
