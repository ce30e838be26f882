//! `gptrain data inspect`: shows the contents of a dataset.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;

use super::dataset::{find_tokenizer, prefix};
use crate::options::Json;
use base::table::{Cell, Printout, Table};
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
        self.inspect()?.say(self.json.json);
        Ok(())
    }

    /// Contents of a dataset, with some tokens of these documents.
    fn inspect(&self) -> Result<Printout> {
        let documents = self.from..self.from.saturating_add(self.documents);
        let dataset = Indexed::open(&prefix(&self.dataset))?;
        let found = find_tokenizer(self.tokenizer.as_deref(), &dataset)?;
        let record = found.record.as_ref();
        let tokenizer = found.load()?;
        let lengths = lengths(&dataset);
        let mut out = Printout::new(report(&dataset, &lengths, record));
        let facts = facts(&dataset, &lengths, record);
        out.table(facts.titled(prefix(&self.dataset).display().to_string()));
        if !lengths.sorted.is_empty() {
            out.line("");
            out.table(histogram(&lengths));
        }
        for document in documents.start..documents.end.min(dataset.documents()) {
            show(&dataset, tokenizer.as_ref(), document, self.tokens, &mut out)?;
        }
        if tokenizer.is_none() && !documents.is_empty() {
            out.line("\n(--tokenizer shows the ids as text)");
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

fn facts(dataset: &Indexed, lengths: &Lengths, record: Option<&Record>) -> Table {
    let bytes = Bytes(dataset.tokens() * dataset.token_type().size() as u64);
    let tokens = format!("{} of {} ({bytes})", Count(dataset.tokens()), dataset.token_type());
    let documents = Count(dataset.documents() as u64).to_string();
    let mut facts = vec![("tokens", tokens), ("documents", documents)];
    if dataset.sequences() != dataset.documents() {
        facts.push(("sequences", Count(dataset.sequences() as u64).to_string()));
    }
    if lengths.empty > 0 {
        facts.push(("empty", Count(lengths.empty as u64).with_noun("document")));
    }
    if dataset.modes().is_some() {
        facts.push(("modes", "multimodal: each sequence has one".to_string()));
    }
    let mean = dataset.tokens() as f64 / dataset.documents().max(1) as f64;
    let lengths = format!(
        "{} to {} tokens per document; median {}, mean {mean:.1}, 90 % up to {}",
        Count(lengths.at(0.0)),
        Count(lengths.at(1.0)),
        Count(lengths.at(0.5)),
        Count(lengths.at(0.9)),
    );
    facts.push(("lengths", lengths));
    facts.extend(
        record.map(|record| ("tokenizer", escape_control(&describe_build(record)).into_owned())),
    );
    Table::facts(facts)
}

/// Tokenizer and options with which a dataset was built.
fn describe_build(record: &Record) -> String {
    let end = match record.append_eod {
        Some(eod) => format!("documents end with token {eod}"),
        None => "no token ends documents".to_string(),
    };
    let special = if record.parse_special { "; --parse-special" } else { "" };
    format!("{}; {end}{special}", record.describe())
}

/// Histogram of document lengths: a row per power of two between the shortest and the longest.
fn histogram(lengths: &Lengths) -> Table {
    let class = |length: u64| 64 - length.leading_zeros() as usize; // 0, 1, 2–3, 4–7, …
    let mut classes = [(0u64, 0u64); 65];
    for length in &lengths.sorted {
        classes[class(*length)].0 += 1;
        classes[class(*length)].1 += length;
    }
    let most = classes
        .iter()
        .map(|(documents, _)| *documents)
        .max()
        .unwrap_or(0)
        .max(1);
    let mut rows = Vec::new();
    let shortest = class(lengths.at(0.0));
    let longest = class(lengths.at(1.0));
    for (class, (documents, tokens)) in classes.into_iter().enumerate() {
        if !(shortest..=longest).contains(&class) {
            continue;
        }
        let from = if class == 0 { 0 } else { 1u64 << (class - 1) };
        let until = if class == 0 { 0 } else { (from << 1) - 1 };
        let range = if from == until { format!("{from}") } else { format!("{from} – {until}") };
        rows.push([
            Cell::new(from, range),
            Cell::new(documents, Count(documents).to_string()),
            Cell::new(tokens, Count(tokens).to_string()),
            "█".repeat((30 * documents / most) as usize).into(),
        ]);
    }
    Table::from_cells(["tokens", "documents", "tokens in all", ""], rows)
}

fn show(
    dataset: &Indexed,
    tokenizer: Option<&Tokenizer>,
    document: usize,
    most: usize,
    out: &mut Printout,
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
    out.line(format!("\ndocument {document} ({})", Count(total as u64).with_noun("token")));
    let rest = if total > ids.len() { " …" } else { "" };
    match tokenizer {
        Some(tokenizer) => {
            let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            out.push_indented(escape_control(&tokenizer.decode(&ids)).lines());
            out.line(format!("  {rest}"));
        }
        None => out.line(format!("  {ids:?}{rest}")),
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
