//! `data samples`: prints the samples that a run would read.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;

use base::{Problems, escape_control};
use data::mixture::Mixture;
use data::preview::{Preview, open};
use data::tokenizer::Tokenizer;
use data::{Indexed, Record};

/// Indices of samples, in the order of a run.
pub type Rows = std::ops::Range<u64>;

/// Number of samples that are shown as text without `--range`.
const SHOWN: u64 = 5;

/// Prints samples of the order: `rows`, else all as JSON, or the first few as text.
pub fn print(
    preview: &Preview,
    rows: Option<Rows>,
    json: bool,
    tokenizer: Option<&Path>,
) -> Result<()> {
    let mixture = open(preview)?;
    let count = mixture.samples();
    if count == 0 {
        return Err(no_sample(preview).into());
    }
    let default = if json { count } else { count.min(SHOWN) };
    let rows = rows.unwrap_or(0..default);
    if rows.end > count {
        return Err(Problems::one(
            "--range",
            format!("asks for sample {}; the last one is {}", rows.end - 1, count - 1),
            "ask for fewer, or for a longer run with --samples",
        )
        .into());
    }
    let tokenizer = if json { None } else { shared_tokenizer(preview, tokenizer)? };
    print_rows(&mixture, rows, json, tokenizer.as_ref())
}

/// Tokenizer of the first dataset, which all datasets must share.
fn shared_tokenizer(preview: &Preview, named: Option<&Path>) -> Result<Option<Tokenizer>> {
    let first = Indexed::open(&preview.datasets[0].prefix)?;
    let found = super::dataset::tokenizer(named, &first)?;
    if let Some(path) = &found.path {
        let place = match named {
            Some(_) => "--tokenizer".to_string(),
            None => format!("the tokenizer of {}", first.prefix().display()),
        };
        for dataset in &preview.datasets[1..] {
            let dataset = Indexed::open(&dataset.prefix)?;
            let record = Record::read(&dataset)?;
            record.map_or(Ok(()), |record| record.compare(dataset.prefix(), &place, path))?;
        }
    }
    found.load()
}

/// Error for a part with less than one sample. Megatron repeats it if `--samples` is given.
fn no_sample(preview: &Preview) -> Problems {
    let place = preview.datasets[0].prefix.display().to_string();
    let fewest = preview.cut.fewest(preview.seq_len);
    Problems::one(
        place,
        format!("the part to read has fewer than {} tokens: not one sample", fewest),
        "lower --seq-len or read more of it; --samples N repeats it, as Megatron does \
         (`run` does not)",
    )
}

fn print_rows(
    mixture: &Mixture,
    rows: Rows,
    json: bool,
    tokenizer: Option<&Tokenizer>,
) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    for index in rows.clone() {
        let mut tokens = vec![0; mixture.seq_len()];
        let extent = mixture.read(index, &mut tokens)?;
        tokens.truncate(extent.tokens);
        tokens.extend(extent.last);
        if json {
            writeln!(out, "{}", serde_json::to_string(&Row { index, tokens: &tokens })?)?;
            continue;
        }
        let name = mixture.dataset(index)?.prefix().display().to_string();
        writeln!(out, "── sample {index} of {} · {name}", mixture.samples())?;
        match tokenizer {
            Some(tokenizer) => {
                let ids: Vec<u32> = tokens.iter().map(|token| *token as u32).collect();
                writeln!(out, "{}\n", escape_control(&tokenizer.decode(&ids)))?;
            }
            None => writeln!(out, "{tokens:?}\n")?,
        }
    }
    if !json && tokenizer.is_none() {
        writeln!(out, "(--tokenizer shows the ids as text)")?;
    }
    out.flush()?;
    Ok(())
}

#[derive(serde::Serialize)]
struct Row<'a> {
    index: u64,
    tokens: &'a [i32],
}
