//! `data inspect`: shows the contents of a dataset.

use std::path::PathBuf;

use anyhow::Result;

use super::dataset::prefix;
use super::inspect;
use base::number;

#[derive(clap::Args, Debug)]
pub struct Args {
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
    pub json: crate::options::Json,
}

pub fn run(args: Args) -> Result<()> {
    let documents = args.from..args.from.saturating_add(args.documents);
    let tokenizer = args.tokenizer.as_deref();
    let prefix = prefix(&args.dataset);
    inspect::inspect(&prefix, tokenizer, documents, args.tokens)?.say(args.json.json);
    Ok(())
}
