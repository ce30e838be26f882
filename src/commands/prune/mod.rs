//! `gptrain prune`

mod pruning;

use anyhow::Result;
use base::{Bytes, Count, number};
use checkpoint::Keep;
use pruning::Pruning;
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Remove old checkpoints of a run
///
/// Keeps the newest ones and those of every N-th step. The run may be training: what it is writing, and
/// what is not yet copied to checkpoint.also, is kept.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Keep the checkpoints whose step is a multiple of this
    #[arg(long, value_name = "STEPS", required_unless_present = "keep_last")]
    #[arg(value_parser = number::whole_in(1..=u64::MAX))]
    keep_every: Option<u64>,
    /// Keep this many of the newest checkpoints [default: 1]
    #[arg(long, value_name = "K", value_parser = number::count)]
    keep_last: Option<NonZeroUsize>,
    /// Only list what would be removed
    #[arg(long)]
    dry: bool,
    #[command(flatten)]
    pub json: crate::options::Json,
}

pub fn run(args: Args) -> Result<()> {
    let keep = Keep {
        last: Some(args.keep_last.map_or(1, usize::from)),
        every: args.keep_every,
        read: None,
    };
    let pruning = Pruning::find(&args.run, keep)?;
    if !args.dry {
        pruning.remove()?;
    }
    let object = json!({
        "removed": pruning.outdated, "bytes": pruning.bytes().0, "kept": pruning.kept,
        "not_copied": pruning.uncopied, "dry": args.dry,
    });
    args.json.say(
        || {
            for one in &pruning.outdated {
                base::say!("{}: {}", one.folder.display(), Bytes(one.bytes));
            }
            for step in &pruning.uncopied {
                base::say!("{} is kept: it is not copied yet", checkpoint::name(*step));
            }
            let removed = if args.dry { "would remove" } else { "removed" };
            let checkpoints = Count(pruning.outdated.len() as u64).with_noun("checkpoint");
            let bytes = pruning.bytes();
            let kept = Count(pruning.kept as u64);
            base::say!("{removed} {checkpoints}, {bytes}; {kept} kept");
        },
        object,
    );
    Ok(())
}
