//! `data samples`: prints the samples that a run would read.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use super::dataset::prefix;
use super::samples::{Rows, print};
use base::{Problems, number};
use data::order::{Cache, Cut};
use data::plan::{Share, SharePart};
use data::preview::Preview;
use manifest::DataRule;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// PREFIX of each dataset's .bin and .idx
    #[arg(required = true, value_name = "PREFIX")]
    datasets: Vec<PathBuf>,
    /// Shares of the sequences for train, valid and test
    #[arg(long, default_value = "969,30,1")]
    split: String,
    /// Part of the split to read
    #[arg(long, value_enum, default_value_t = Which::Train)]
    which: Which,
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
    #[arg(long, value_enum, default_value_t = Rule::Mcore)]
    rule: Rule,
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
    pub json: bool,
    /// Tokenizer that decodes the text [default: tokenizer.json beside the first dataset, if any]
    #[arg(short, long)]
    tokenizer: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    Train,
    Valid,
    Test,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rule {
    /// Megatron-Core
    Mcore,
    /// Megatron-DeepSpeed (bigscience)
    #[value(alias = "mds")]
    MegatronDeepspeed,
}

pub fn run(args: Args) -> Result<()> {
    let Ranges { rows, fractions } = ranges(&args.range)?;
    let preview = preview(&args, fractions)?;
    super::until_closed(print(&preview, rows, args.json, args.tokenizer.as_deref()))
}

/// Checked options.
fn preview(args: &Args, fractions: Option<(f64, f64)>) -> Result<Preview> {
    let mut problems = Problems::default();
    if !args.weights.is_empty() && args.weights.len() != args.datasets.len() {
        let weights = args.weights.len();
        let datasets = args.datasets.len();
        problems.add(
            "--weights",
            format!("{weights} weights for {datasets} datasets"),
            "give one for each, in the same order",
        );
    }
    if args
        .weights
        .iter()
        .any(|weight| !(weight.is_finite() && *weight > 0.0))
    {
        problems.add("--weights", "a weight is not above 0", "leave such datasets out");
    }
    if !matches!(args.samples.len(), 0 | 1 | 3) {
        problems.add(
            "--samples",
            format!("{} numbers", args.samples.len()),
            "give one, or three for training, validation and test",
        );
    }
    if args.seq_len == 0 || args.seq_len > 1 << 24 {
        problems.add("--seq-len", format!("{} tokens", args.seq_len), "1 to 16,777,216");
    }
    problems.or(())?;
    let which = args.which as usize;
    let part = match fractions {
        Some((from, to)) => SharePart::Range(from, to),
        None => SharePart::Split(args.split.clone(), which),
    };
    let weight = |i: usize| args.weights.get(i).copied();
    Ok(Preview {
        rule: match args.rule {
            Rule::Mcore => DataRule::MegatronCore,
            Rule::MegatronDeepspeed => DataRule::MegatronDeepSpeed,
        },
        seed: args.seed,
        seq_len: args.seq_len,
        cut: Cut { extra_token: !args.no_extra_token, drop_partial: !args.keep_partial },
        samples: args.samples.get(which).or(args.samples.first()).copied(),
        datasets: args
            .datasets
            .iter()
            .enumerate()
            .map(|(i, named)| Share {
                prefix: prefix(named),
                weight: weight(i).unwrap_or(1.0),
                part: part.clone(),
            })
            .collect(),
        weighted: !args.weights.is_empty(),
        cache: args
            .cache
            .clone()
            .map(|folder| Cache { folder, from_bytes: 0 }),
    })
}

/// Value of `--range`.
#[derive(Default)]
struct Ranges {
    rows: Option<Rows>,
    /// Range of each dataset's sequences, as fractions.
    fractions: Option<(f64, f64)>,
}

fn ranges(texts: &[String]) -> Result<Ranges, Problems> {
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
