//! `gptrain nodes`

use base::input::is_there;
use base::{Seconds, escape_control, unix_time};
use launch::sick_nodes::{self, Reason, SickNode};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Nodes {
    /// Folder of the run: `log.folder` of its manifest
    run: PathBuf,
    /// Remove the record of this node
    #[arg(long, value_name = "HOST")]
    clear: Option<String>,
    /// Remove all records
    #[arg(long, conflicts_with = "clear")]
    clear_all: bool,
}

impl Nodes {
    pub fn run(self) -> anyhow::Result<()> {
        let Nodes { run, clear, clear_all } = self;
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
            base::say!("{}", describe(node, now));
        }
        Ok(())
    }
}

/// Record of a node, at the time `now`.
fn describe(node: &SickNode, now: f64) -> String {
    let [ago, left] = [now - node.at, node.expires - now].map(|time| Seconds(time.max(0.0)));
    let times = if node.times == 1 { "once".to_string() } else { format!("{} times", node.times) };
    let host = escape_control(&node.host);
    let evidence = escape_control(&node.evidence);
    let not_yet = match (node.is_excluded(false), node.reason) {
        (true, _) => {
            return format!("{host}: excluded for {left}; seen {times}, {ago} ago: {evidence}");
        }
        (false, Reason::Straggles) => "excluded if slurm.exclude_stragglers is true",
        (false, _) => "excluded from the second time",
    };
    format!("{host}: seen {times}, {ago} ago ({not_yet}); expires in {left}: {evidence}")
}
