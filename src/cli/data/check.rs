//! `data check`: reading every byte of datasets.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use base::{Count, Problems};
use data::indexed::digest::whole_digest;
use data::indexed::{Indexed, index_path, tokens_path};

use super::progress::Progress;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// PREFIX of each dataset's .bin and .idx
    #[arg(required = true, value_name = "PREFIX")]
    datasets: Vec<PathBuf>,
    /// Ids must be below this; unless given, below the tokenizer's vocabulary
    #[arg(long)]
    vocab: Option<usize>,
    /// Unless given, tokenizer.json beside the dataset, if there is one
    #[arg(short, long)]
    tokenizer: Option<PathBuf>,
    /// Also print the digest of each file's bytes (XXH3), to compare copies
    #[arg(long)]
    digest: bool,
}

pub fn run(args: Args) -> Result<()> {
    let mut problems = Problems::default();
    for named in &args.datasets {
        let prefix = super::prefix(named);
        match check(&prefix, &args) {
            Ok(()) => {}
            Err(error) => problems.list.extend(error.downcast::<Problems>()?.list),
        }
    }
    problems.or(()).map_err(Into::into)
}

fn check(prefix: &Path, args: &Args) -> Result<()> {
    let dataset = Indexed::open(prefix)?;
    let vocab = match args.vocab {
        Some(vocab) => Some(vocab),
        None => super::tokenizer(args.tokenizer.as_deref(), prefix)?.map(|found| found.vocab()),
    };
    let size = dataset.token_type().size() as u64;
    let mut progress = Progress::new("checking", dataset.tokens() * size);
    let highest = dataset.highest(|tokens| {
        progress.show(tokens * size, || format!("{} tokens", Count(tokens)));
    })?;
    progress.finish();
    let place = prefix.display().to_string();
    let Some((id, sequence)) = highest else {
        let what = "holds no tokens; nothing can be trained on it";
        return Err(Problems::one(place, what, "build it again").into());
    };
    if let Some(vocab) = vocab.filter(|vocab| id >= *vocab as u64) {
        let what = format!("sequence {sequence} holds id {id}; the vocabulary has {vocab} ids");
        let remedy = "it was built with another tokenizer, or is damaged";
        return Err(Problems::one(place, what, remedy).into());
    }
    let against = match vocab {
        Some(vocab) => format!("all below the vocabulary's {}", Count(vocab as u64)),
        None => "no vocabulary to compare with: give --vocab or --tokenizer".into(),
    };
    base::say!(
        "{place}: sound. {} documents, {} tokens of {}, the highest id is {}, {against}",
        Count(dataset.documents() as u64),
        Count(dataset.tokens()),
        dataset.token_type(),
        Count(id)
    );
    if args.digest {
        for path in [index_path(prefix), tokens_path(prefix)] {
            let digest = whole_digest(&path);
            let (_, digest) = digest.with_context(|| format!("cannot read {}", path.display()))?;
            base::say!("{}  {digest:016x}", path.display());
        }
    }
    Ok(())
}
