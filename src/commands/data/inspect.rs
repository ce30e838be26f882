//! `gptrain data inspect`: shows the contents of a dataset.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::dataset::{find_tokenizer, prefix, until_closed};
use crate::options::Json;
use base::{Bytes, Count, escape_control, number};
use data::Record;
use data::indexed::Indexed;
use data::tokenizer::Tokenizer;

#[derive(clap::Args, Debug)]
pub struct Inspect {
    /// PREFIX of the dataset's .bin and .idx
    #[arg(value_name = "PREFIX")]
    dataset: PathBuf,
    /// Tokenizer that decodes the text [default: the recorded one, else tokenizer.json beside the
    /// dataset]
    #[arg(short, long)]
    tokenizer: Option<PathBuf>,
    /// Number of documents to show
    #[arg(short = 'n', long, default_value_t = 3, value_parser = number::whole::<usize>)]
    documents: usize,
    /// First document to show
    #[arg(long, value_name = "DOCUMENT", default_value_t = 0)]
    #[arg(value_parser = number::whole::<usize>)]
    from: usize,
    /// Tokens of each document to show
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    #[arg(value_parser = number::whole::<usize>)]
    tokens: usize,
    #[command(flatten)]
    json: Json,
}

impl Inspect {
    pub fn run(self) -> Result<()> {
        let text = self.inspect()?;
        until_closed(std::io::stdout().write_all(&text).map_err(Into::into))
    }

    /// Contents of a dataset as text, with some tokens of these documents, or as JSON.
    fn inspect(&self) -> Result<Vec<u8>> {
        let prefix = &prefix(&self.dataset);
        let documents = self.from..self.from.saturating_add(self.documents);
        let dataset = Indexed::open(prefix)?;
        let found = find_tokenizer(self.tokenizer.as_deref(), &dataset)?;
        let record = found.record.as_ref();
        let tokenizer = found.load()?;
        let mut out = Vec::new();
        let lengths = lengths(&dataset);
        if self.json.json {
            writeln!(out, "{}", report(&dataset, &lengths, record))?;
        } else {
            summary(prefix, &dataset, &lengths, &mut out)?;
            if let Some(record) = record {
                writeln!(out, "  tokenizer  {}", escape_control(&built_with(record)))?;
            }
            histogram(&lengths, &mut out)?;
            for document in documents.start..documents.end.min(dataset.documents()) {
                show(&dataset, tokenizer.as_ref(), document, self.tokens, &mut out)?;
            }
            if tokenizer.is_none() && !documents.is_empty() {
                writeln!(out, "\n(--tokenizer shows the ids as text)")?;
            }
        }
        Ok(out)
    }
}

/// Lengths of documents, in tokens.
struct Lengths {
    sorted: Vec<u64>,
    empty: usize,
}

fn lengths(dataset: &Indexed) -> Lengths {
    let lengths = dataset.lengths();
    let length = |document| {
        lengths[dataset.document(document)]
            .iter()
            .map(|n| *n as u64)
            .sum()
    };
    let mut sorted: Vec<u64> = (0..dataset.documents()).map(length).collect();
    sorted.sort_unstable();
    let empty = sorted.partition_point(|length| *length == 0);
    Lengths { sorted, empty }
}

impl Lengths {
    /// Quantile: the length that a share of the documents do not exceed.
    fn at(&self, share: f64) -> u64 {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted
            .get((last as f64 * share).round() as usize)
            .copied()
            .unwrap_or(0)
    }
}

fn summary(prefix: &Path, dataset: &Indexed, lengths: &Lengths, out: &mut Vec<u8>) -> Result<()> {
    let bytes = dataset.tokens() * dataset.token_type().size() as u64;
    writeln!(out, "{}", prefix.display())?;
    writeln!(
        out,
        "  tokens     {} of {} ({})",
        Count(dataset.tokens()),
        dataset.token_type(),
        Bytes(bytes)
    )?;
    writeln!(out, "  documents  {}", Count(dataset.documents() as u64))?;
    if dataset.sequences() != dataset.documents() {
        writeln!(out, "  sequences  {}", Count(dataset.sequences() as u64))?;
    }
    if lengths.empty > 0 {
        writeln!(out, "  empty      {}", Count(lengths.empty as u64).with_noun("document"))?;
    }
    if dataset.modes().is_some() {
        writeln!(out, "  modes      multimodal: each sequence has one")?;
    }
    let mean = dataset.tokens() as f64 / dataset.documents().max(1) as f64;
    writeln!(
        out,
        "  lengths    {} to {} tokens a document; median {}, mean {mean:.1}, 90 % up to {}",
        Count(lengths.at(0.0)),
        Count(lengths.at(1.0)),
        Count(lengths.at(0.5)),
        Count(lengths.at(0.9)),
    )?;
    Ok(())
}

/// Tokenizer and options with which a dataset was built.
fn built_with(record: &Record) -> String {
    let end = match record.append_eod {
        Some(eod) => format!("documents end with token {eod}"),
        None => "no token ends documents".to_string(),
    };
    let special = if record.parse_special { "; --parse-special" } else { "" };
    format!("{}; {end}{special}", record.describe())
}

/// Histogram of document lengths: a row per power of two between the shortest and the longest.
fn histogram(lengths: &Lengths, out: &mut Vec<u8>) -> Result<()> {
    let row = |length: u64| 64 - length.leading_zeros() as usize; // 0, 1, 2–3, 4–7, …
    let mut rows = [(0u64, 0u64); 65];
    for length in &lengths.sorted {
        rows[row(*length)].0 += 1;
        rows[row(*length)].1 += length;
    }
    let most = rows
        .iter()
        .map(|(documents, _)| *documents)
        .max()
        .unwrap_or(0)
        .max(1);
    let Some(first) = rows.iter().position(|(documents, _)| *documents > 0) else { return Ok(()) };
    let last = rows
        .iter()
        .rposition(|(documents, _)| *documents > 0)
        .unwrap_or(first);
    writeln!(out, "\n  {:>15}  {:>12}  {:>15}", "tokens", "documents", "tokens in all")?;
    for (row, (documents, tokens)) in rows.iter().enumerate().take(last + 1).skip(first) {
        let from = if row == 0 { 0 } else { 1u64 << (row - 1) };
        let until = if row == 0 { 0 } else { (from << 1) - 1 };
        let range = if from == until { format!("{from}") } else { format!("{from} – {until}") };
        let bar = "█".repeat((30 * documents / most) as usize);
        let documents = Count(*documents);
        let tokens = Count(*tokens);
        writeln!(out, "  {range:>15}  {documents:>12}  {tokens:>15}  {bar}")?;
    }
    Ok(())
}

fn show(
    dataset: &Indexed,
    tokenizer: Option<&Tokenizer>,
    document: usize,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut ids = Vec::new();
    let mut total = 0;
    for sequence in dataset.document(document) {
        let length = dataset.lengths()[sequence] as usize;
        total += length;
        let from = ids.len();
        ids.resize(from + length.min(most - from.min(most)), 0);
        dataset.read(sequence, 0, &mut ids[from..])?;
    }
    writeln!(out, "\ndocument {document} ({})", Count(total as u64).with_noun("token"))?;
    let rest = if total > ids.len() { " …" } else { "" };
    match tokenizer {
        Some(tokenizer) => {
            let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            let text = tokenizer.decode(&ids);
            let text = escape_control(&text);
            for line in text.lines() {
                writeln!(out, "  {line}")?;
            }
            writeln!(out, "  {rest}")?;
        }
        None => writeln!(out, "  {ids:?}{rest}")?,
    }
    Ok(())
}

fn report(dataset: &Indexed, lengths: &Lengths, record: Option<&Record>) -> serde_json::Value {
    json!({
        "tokenizer": record,
        "dtype": dataset.token_type().to_string(),
        "tokens": dataset.tokens(),
        "documents": dataset.documents(),
        "sequences": dataset.sequences(),
        "empty_documents": lengths.empty,
        "multimodal": dataset.modes().is_some(),
        "document_length": {
            "min": lengths.at(0.0),
            "median": lengths.at(0.5),
            "p90": lengths.at(0.9),
            "max": lengths.at(1.0),
        },
    })
}
