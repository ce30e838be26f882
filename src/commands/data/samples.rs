//! `gptrain data samples`: prints the samples that a run would read.

use super::dataset::{find_tokenizer, prefix, until_closed};
use crate::options::{Choice, one_of};
use anyhow::Result;
use base::{Problems, escape_control, number};
use data::mixture::Mixture;
use data::order::{Cache, Cut};
use data::plan::{Share, SharePart};
use data::preview::{Preview, open};
use data::tokenizer::Tokenizer;
use data::{Indexed, Record};
use manifest::DataRule;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Words of --which, with the number of the part.
const PARTS: [Choice<usize>; 3] =
    [Choice("train", 0, ""), Choice("valid", 1, ""), Choice("test", 2, "")];

/// Words of --rule.
const RULES: [Choice<DataRule>; 2] = [
    Choice("mcore", DataRule::MegatronCore, "Megatron-Core"),
    Choice(
        "megatron-deepspeed|mds",
        DataRule::MegatronDeepSpeed,
        "Megatron-DeepSpeed (bigscience)",
    ),
];

/// Indices of samples, in the order of a run.
type Rows = std::ops::Range<u64>;

/// Number of samples that are shown as text without `--range`.
const SHOWN: u64 = 5;

#[derive(clap::Args, Debug)]
pub struct Samples {
    /// PREFIX of each dataset's .bin and .idx
    #[arg(required = true, value_name = "PREFIX")]
    datasets: Vec<PathBuf>,
    /// Shares of the sequences for train, valid and test
    #[arg(long, default_value = "969,30,1")]
    split: String,
    /// Part of the split to read
    #[arg(long, default_value = "train", value_parser = one_of(&PARTS))]
    which: usize,
    /// Seed of the sample order, below 2^32
    #[arg(long, default_value_t = 1234, value_parser = number::whole::<u64>)]
    seed: u64,
    /// Tokens per sample, without the last one, which is only a target
    #[arg(long, default_value_t = 2048, value_parser = number::whole::<usize>)]
    seq_len: usize,
    /// Number of samples that a run asks for: N for the part that is read, or N,N,N for train, valid
    /// and test. The order depends on it. The number printed is Megatron's len(dataset): for one
    /// dataset the whole epochs it takes, which may be more than N; for several with weights N, with
    /// each share rounded up [default: one epoch]
    #[arg(long, value_name = "N[,N,N]", value_delimiter = ',')]
    #[arg(value_parser = number::whole::<u64>)]
    samples: Vec<u64>,
    /// Weight of each dataset, in the same order [default: proportional to their sizes]
    #[arg(long, value_name = "W", value_delimiter = ',', num_args = 1..)]
    #[arg(value_parser = number::real)]
    weights: Vec<f64>,
    /// Trainer whose sample order is used
    #[arg(long, default_value = "mcore", value_parser = one_of(&RULES))]
    rule: DataRule,
    /// Make samples of seq_len tokens; their last position has no target
    /// (add_extra_token_to_sequence=False)
    #[arg(long)]
    no_extra_token: bool,
    /// Keep the tokens at the end that do not fill a sample, as a padded sample
    /// (drop_last_partial_validation_sequence=False)
    #[arg(long)]
    keep_partial: bool,
    /// With whole numbers (0..3), print samples A to B of the order, both included. With fractions,
    /// written with a point (0.95..1.0), read that range of each dataset's sequences instead of a
    /// part of the split. May be given twice, once for each
    #[arg(long, value_name = "A..B")]
    range: Vec<String>,
    /// Cache the order of each dataset's samples in this folder
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Print a line {"index": k, "tokens": [ids]} for every sample, with seq_len + 1 ids (or seq_len,
    /// see above) [default: show the first few samples as text]
    #[arg(long)]
    json: bool,
    /// Tokenizer that decodes the text [default: tokenizer.json beside the first dataset, if any]
    #[arg(short, long)]
    tokenizer: Option<PathBuf>,
}

impl Samples {
    pub fn run(self) -> Result<()> {
        let Ranges { rows, fractions } = parse_ranges(&self.range)?;
        let preview = self.preview(fractions)?;
        until_closed(self.print(&preview, rows))
    }

    /// Checked options.
    fn preview(&self, fractions: Option<(f64, f64)>) -> Result<Preview> {
        let mut problems = Problems::default();
        if !self.weights.is_empty() && self.weights.len() != self.datasets.len() {
            let weights = self.weights.len();
            let datasets = self.datasets.len();
            problems.add(
                "--weights",
                format!("{weights} weights for {datasets} datasets"),
                "give one for each, in the same order",
            );
        }
        if self
            .weights
            .iter()
            .any(|weight| !(weight.is_finite() && *weight > 0.0))
        {
            problems.add("--weights", "a weight is not above 0", "leave such datasets out");
        }
        if !matches!(self.samples.len(), 0 | 1 | 3) {
            problems.add(
                "--samples",
                format!("{} numbers", self.samples.len()),
                "give one, or three for training, validation and test",
            );
        }
        if self.seq_len == 0 || self.seq_len > 1 << 24 {
            problems.add("--seq-len", format!("{} tokens", self.seq_len), "1 to 16,777,216");
        }
        problems.or(())?;
        let part = match fractions {
            Some((from, to)) => SharePart::Range(from, to),
            None => SharePart::Split(self.split.clone(), self.which),
        };
        let mut datasets = Vec::new();
        for (i, named) in self.datasets.iter().enumerate() {
            let weight = self.weights.get(i).copied().unwrap_or(1.0);
            datasets.push(Share { prefix: prefix(named), weight, part: part.clone() });
        }
        Ok(Preview {
            rule: self.rule,
            seed: self.seed,
            seq_len: self.seq_len,
            cut: Cut { extra_token: !self.no_extra_token, drop_partial: !self.keep_partial },
            samples: self
                .samples
                .get(self.which)
                .or(self.samples.first())
                .copied(),
            datasets,
            weighted: !self.weights.is_empty(),
            cache: self
                .cache
                .clone()
                .map(|folder| Cache { folder, from_bytes: 0 }),
        })
    }

    /// Prints samples of the order: `rows`, else all as JSON, or the first few as text.
    fn print(&self, preview: &Preview, rows: Option<Rows>) -> Result<()> {
        let mixture = open(preview)?;
        let count = mixture.samples();
        if count == 0 {
            return Err(no_sample_error(preview).into());
        }
        let default = if self.json { count } else { count.min(SHOWN) };
        let rows = rows.unwrap_or(0..default);
        if rows.end > count {
            return Err(Problems::one(
                "--range",
                format!("asks for sample {}; the last one is {}", rows.end - 1, count - 1),
                "ask for fewer, or for a longer run with --samples",
            )
            .into());
        }
        let tokenizer = if self.json {
            None
        } else {
            find_shared_tokenizer(preview, self.tokenizer.as_deref())?
        };
        print_rows(&mixture, rows, self.json, tokenizer.as_ref())
    }
}

/// Value of `--range`.
#[derive(Default)]
struct Ranges {
    rows: Option<Rows>,
    /// Range of each dataset's sequences, as fractions.
    fractions: Option<(f64, f64)>,
}

/// Parses the values of `--range`.
fn parse_ranges(texts: &[String]) -> Result<Ranges, Problems> {
    let mut ranges = Ranges::default();
    for text in texts {
        let (from, to) = text.split_once("..").unwrap_or((text, ""));
        let numbers = (number::whole::<u64>(from), number::whole::<u64>(to));
        let reals = (number::real(from), number::real(to));
        match (numbers, reals) {
            ((Ok(from), Ok(to)), _) if from <= to => {
                ranges.rows = Some(from..to.saturating_add(1));
            }
            (_, (Ok(from), Ok(to))) if 0.0 <= from && from < to && to <= 1.0 => {
                ranges.fractions = Some((from, to));
            }
            _ => {
                return Err(Problems::one(
                    "--range",
                    format!("\"{text}\" is neither samples A..B nor fractions like 0.9..1.0"),
                    "write 0..10, say",
                ));
            }
        }
    }
    Ok(ranges)
}

/// Tokenizer of the first dataset, which all datasets must share.
fn find_shared_tokenizer(preview: &Preview, named: Option<&Path>) -> Result<Option<Tokenizer>> {
    let first = Indexed::open(&preview.datasets[0].prefix)?;
    let found = find_tokenizer(named, &first)?;
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
fn no_sample_error(preview: &Preview) -> Problems {
    let place = preview.datasets[0].prefix.display().to_string();
    let fewest = preview.cut.min_tokens(preview.seq_len);
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
