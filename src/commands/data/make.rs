//! `data build`, `data train-tokenizer`, `data merge`: make datasets and tokenizers.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use base::input::is_there;
use base::output::{Existing, Output};
use base::progress::{Progress, Unit};
use base::{Bytes, Count, Problems, Seconds, escape_control};
use data::Record;
use data::build::{self, Build, Train, Trained};
use data::corpus::{self, DocumentRules, FileSelection, Format, Input};
use data::indexed::{Indexed, TokenType};
use data::tokenizer::{Tokenizer, Training};
use serde::Serialize;

/// Text to read.
pub struct TextInput {
    pub paths: Vec<PathBuf>,
    /// File that lists more paths.
    pub files_from: Option<PathBuf>,
    pub wanted: FileSelection,
    pub rules: DocumentRules,
    pub threads: usize,
}

/// Options of `build`, beside its text.
pub struct BuildOptions {
    pub output: PathBuf,
    pub existing: Existing,
    pub tokenizer: PathBuf,
    pub append_eod: bool,
    pub eod: Option<String>,
    pub parse_special: bool,
    pub shuffle: Option<u64>,
    /// Number of sequences below which documents are cut; None for the default.
    pub min_sequences: Option<usize>,
    pub token_type: Option<TokenType>,
}

/// Default of `min_sequences` for files of text: the least of which `manifest new` holds out 5 %. Other
/// formats say what a document is.
const MIN_SEQUENCES: usize = 20;

/// Number of notes on the corpus that are printed.
const NOTES: usize = 3;

impl TextInput {
    /// Files to read. Prints a note for each file that is left out.
    fn inputs(&self) -> Result<Vec<Input>> {
        let mut paths = self.paths.clone();
        paths.extend(
            self.files_from
                .as_deref()
                .map(listed)
                .transpose()?
                .unwrap_or_default(),
        );
        let found = corpus::find(&paths, &self.wanted)?;
        let more = found.notes.len().saturating_sub(NOTES);
        for note in found.notes.iter().take(NOTES) {
            base::warn!("note: {}", escape_control(note));
        }
        if more > 0 {
            base::warn!("note: and {more} more like these");
        }
        Ok(found.inputs)
    }
}

/// Paths that a file lists, one per line.
fn listed(file: &Path) -> Result<Vec<PathBuf>> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        is_there(file)?;
        std::fs::read_to_string(file)
    };
    let paths: Vec<PathBuf> = text
        .with_context(|| format!("cannot read {}", file.display()))?
        .lines()
        .filter(|line| !line.is_empty())
        .map(PathBuf::from)
        .collect();
    if paths.is_empty() {
        return Err(Problems::one(
            file.display().to_string(),
            "names no files",
            "write one a line",
        )
        .into());
    }
    Ok(paths)
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

/// Tokenizes text into a dataset.
pub fn build(text: TextInput, options: &BuildOptions) -> Result<BuiltDataset> {
    let inputs = text.inputs()?;
    let tokenizer = Tokenizer::load(&options.tokenizer)?;
    let append = options.append_eod || options.eod.is_some();
    let append = append
        .then(|| end_of_document(options, &tokenizer))
        .transpose()?;
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
    let token_type = token_type(options, &tokenizer)?;
    let total = inputs.iter().map(|input| input.size).sum();
    let is_text = inputs.iter().all(|input| input.format == Format::Text);
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
        min_sequences: options
            .min_sequences
            .unwrap_or(if is_text { MIN_SEQUENCES } else { 0 }),
        threads: text.threads,
    };
    let built = build.run(|report, tokens| {
        progress
            .show(report.read, || format!("{} read, {} tokens", Bytes(report.text), Count(tokens)));
    })?;
    Ok(BuiltDataset {
        dataset: options.output.clone(),
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

fn end_of_document(options: &BuildOptions, tokenizer: &Tokenizer) -> Result<u32, Problems> {
    let wrong = |what: String, remedy: String| Problems::one("--eod", what, remedy);
    let names: Vec<&str> = tokenizer
        .specials()
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let names = names.join(" ");
    match &options.eod {
        Some(name) => tokenizer.token(name).ok_or_else(|| {
            wrong(
                format!("\"{name}\" is not one token of {}", options.tokenizer.display()),
                format!("its special tokens are {names}; any single token will do"),
            )
        }),
        None => tokenizer.eod().ok_or_else(|| {
            wrong(
                format!("{} does not say which token ends documents", options.tokenizer.display()),
                format!("name one of its tokens with --eod, such as {names}"),
            )
        }),
    }
}

fn token_type(options: &BuildOptions, tokenizer: &Tokenizer) -> Result<TokenType, Problems> {
    let vocab = tokenizer.vocab();
    let token_type = options.token_type.unwrap_or(TokenType::for_vocab(vocab));
    if vocab as u64 > token_type.max() + 1 {
        return Err(Problems::one(
            "--dtype",
            format!("{token_type} cannot hold a vocabulary of {}", Count(vocab as u64)),
            "leave it out",
        ));
    }
    Ok(token_type)
}

/// Tokenizer that was learned.
#[derive(Serialize)]
pub struct LearnedTokenizer {
    tokenizer: PathBuf,
    vocab: usize,
    text_bytes: u64,
    pieces: usize,
    seconds: f64,
    /// Minimum number of occurrences of a pair, if the text had too few pairs.
    #[serde(skip)]
    exhausted_at: Option<u64>,
}

impl LearnedTokenizer {
    pub fn say(&self) {
        base::say!(
            "{}: {} ids learned from {} ({} different pieces) in {}",
            self.tokenizer.display(),
            Count(self.vocab as u64),
            Bytes(self.text_bytes),
            Count(self.pieces as u64),
            Seconds(self.seconds),
        );
        if let Some(times) = self.exhausted_at {
            base::say!("the text has no more pairs that occur {times} times");
        }
    }
}

/// Learns a tokenizer and writes it.
pub fn train_tokenizer(
    text: TextInput,
    training: Training,
    output: &Path,
    existing: Existing,
) -> Result<LearnedTokenizer> {
    let mut file = Output::create(output, existing)?;
    let inputs = text.inputs()?;
    let total = inputs.iter().map(|input| input.size).sum();
    let vocab = training.vocab;
    let min_frequency = training.min_frequency;
    let train = Train { inputs: &inputs, rules: text.rules, training, threads: text.threads };
    let progress = Progress::new("counting", total, Unit::Bytes);
    let mut learning = None;
    let trained = train.run(
        |report| progress.show(report.read, || format!("{} read", Bytes(report.text))),
        |ids| {
            learning
                .get_or_insert_with(|| Progress::new("learning", vocab as u64, Unit::Items("ids")))
                .show(ids as u64, String::new);
        },
    )?;
    drop(learning);
    let seconds = progress.finish();
    file.write_all(trained.json.as_bytes())
        .with_context(|| format!("cannot write {}", output.display()))?;
    file.finish()?;
    let Trained { vocab: learned, text: text_bytes, pieces, .. } = trained;
    Ok(LearnedTokenizer {
        tokenizer: output.to_path_buf(),
        vocab: learned,
        text_bytes,
        pieces,
        seconds: seconds.0,
        exhausted_at: (learned < vocab).then_some(min_frequency),
    })
}

/// Dataset that was joined from others.
#[derive(Serialize)]
pub struct MergedDataset {
    dataset: PathBuf,
    documents: u64,
    tokens: u64,
    /// Record of the tokenizer; None if some of the datasets have none.
    tokenizer: Option<Record>,
}

impl MergedDataset {
    pub fn say(&self) {
        let documents = Count(self.documents);
        let tokens = Count(self.tokens);
        let place = self.dataset.display();
        base::say!("{place}: {}, {}", documents.with_noun("document"), tokens.with_noun("token"));
        if self.tokenizer.is_none() {
            base::say!("wrote no tokenizer record: some of these datasets have none");
        }
    }
}

/// Joins datasets into one.
pub fn merge(datasets: &[PathBuf], output: &Path, existing: Existing) -> Result<MergedDataset> {
    let datasets = datasets
        .iter()
        .map(|named| Indexed::open(&super::dataset::prefix(named)))
        .collect::<Result<Vec<_>>>()?;
    let tokenizer = build::merge(&datasets, output, existing)?;
    Ok(MergedDataset {
        dataset: output.to_path_buf(),
        documents: datasets
            .iter()
            .map(|dataset| dataset.documents() as u64)
            .sum(),
        tokens: datasets.iter().map(Indexed::tokens).sum(),
        tokenizer,
    })
}
