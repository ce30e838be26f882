//! `gptrain diagnose`

mod text;

use base::number;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Folder of a failed run, or of one of its dumps: verdict.json, rank-00000.json …
    folder: PathBuf,
    /// Also show the last messages and operations of these ranks
    #[arg(long, value_name = "RANK", value_parser = number::whole::<usize>)]
    rank: Vec<usize>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    text::diagnose(&args.folder, &args.rank)
}
