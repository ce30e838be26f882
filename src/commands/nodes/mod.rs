//! `gptrain nodes`

mod text;

use base::input::is_there;
use base::unix_time;
use launch::sick_nodes;
use std::path::PathBuf;
use text::line;

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the run: `log.folder` of its manifest
    run: PathBuf,
    /// Remove the record of this node
    #[arg(long, value_name = "HOST")]
    clear: Option<String>,
    /// Remove all records
    #[arg(long, conflicts_with = "clear")]
    clear_all: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { run, clear, clear_all } = args;
    is_there(&run)?;
    if clear_all || clear.is_some() {
        let removed = sick_nodes::clear(&run, clear.as_deref())?;
        base::say!("removed {removed} {}", if removed == 1 { "entry" } else { "entries" });
        return Ok(());
    }
    let nodes = sick_nodes::read(&run)?;
    if nodes.is_empty() {
        base::say!("this run has no record of a sick node");
    }
    let now = unix_time().as_secs_f64();
    for node in &nodes {
        base::say!("{}", line(node, now));
    }
    Ok(())
}
