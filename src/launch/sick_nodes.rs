//! Nodes that a run should avoid, in `sick_nodes.json` of its folder: host, reason, time and
//! expiry. Written by `gptrain bench`, by the diagnosis of a rank that hung or died, by a run that
//! finds a straggler, and by a rank whose GPU has a fault. Read when a job is submitted again
//! (`sbatch --exclude`), and by `gptrain nodes`.

use anyhow::{Context, Result};
use base::output::{self, Existing};
use base::{WrongInput, input, unix_time};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder.
pub const NAME: &str = "sick_nodes.json";

/// Seconds until an entry expires: three days, time for a repair.
const LIFETIME_S: f64 = 72.0 * 3600.0;

/// Reason to avoid a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// `gptrain bench` measured it slower than others, twice.
    Slow,
    /// A rank on it died, hung or became silent. Once may have any cause; twice is attributed to
    /// the node.
    Failed,
    /// A rank on it took longer than its peers during training.
    Straggles,
    /// A GPU in it reported a hardware fault.
    Gpu,
}

/// Node, and the observation about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SickNode {
    pub host: String,
    pub reason: Reason,
    /// Message that describes it.
    pub evidence: String,
    /// Number of observations.
    pub times: u32,
    /// Seconds since 1970: last observation, and expiry.
    pub at: f64,
    pub expires: f64,
}

impl SickNode {
    /// Whether to exclude it from a job. `stragglers` is slurm.exclude_stragglers.
    pub fn is_excluded(&self, stragglers: bool) -> bool {
        match self.reason {
            Reason::Slow | Reason::Gpu => true,
            Reason::Failed => self.times >= 2,
            Reason::Straggles => stragglers,
        }
    }
}

/// Entries that have not expired.
pub fn read(folder: &Path) -> Result<Vec<SickNode>> {
    let path = sick_nodes_file(folder);
    let text = match input::read(&path, input::SMALL) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let mut nodes: Vec<SickNode> = serde_json::from_slice(&text)
        .with_context(|| WrongInput(format!("{} is damaged: remove it", path.display())))?;
    let now = unix_time().as_secs_f64();
    nodes.retain(|node| node.expires > now);
    Ok(nodes)
}

/// Hosts to exclude from a job. If the file cannot be read, warns and excludes none. `stragglers`
/// is slurm.exclude_stragglers.
pub fn hosts_to_exclude(folder: &Path, stragglers: bool) -> Vec<String> {
    let nodes = read(folder).unwrap_or_else(|error| {
        tracing::warn!("no node is excluded: {error:#}");
        Vec::new()
    });
    let mut hosts: Vec<String> = Vec::new();
    for node in nodes {
        if node.is_excluded(stragglers) && !hosts.contains(&node.host) {
            hosts.push(node.host);
        }
    }
    hosts
}

/// Adds an observation about a host.
pub fn add(folder: &Path, host: &str, reason: Reason, evidence: &str) -> Result<()> {
    // Ranks of two nodes may write at once, in which case the later one may not have read the
    // earlier entry.
    for _ in 0..5 {
        add_once(folder, host, reason, evidence)?;
        let nodes = read(folder).unwrap_or_default();
        if nodes
            .iter()
            .any(|node| node.host == host && node.reason == reason)
        {
            break;
        }
    }
    Ok(())
}

fn add_once(folder: &Path, host: &str, reason: Reason, evidence: &str) -> Result<()> {
    let mut nodes = read(folder).unwrap_or_default(); // a damaged file is replaced
    let at = unix_time().as_secs_f64();
    let same = nodes
        .iter()
        .position(|node| node.host == host && node.reason == reason);
    let times = 1 + same.map_or(0, |place| nodes.remove(place).times);
    let host = host.to_string();
    let evidence = evidence.to_string();
    nodes.push(SickNode { host, reason, evidence, times, at, expires: at + LIFETIME_S });
    write(folder, &nodes)
}

/// Removes the entries of a host, or all. Returns their number.
pub fn clear(folder: &Path, host: Option<&str>) -> Result<usize> {
    let mut nodes = read(folder)?;
    let before = nodes.len();
    nodes.retain(|node| host.is_some_and(|host| node.host != host));
    if nodes.len() < before {
        write(folder, &nodes)?;
    }
    Ok(before - nodes.len())
}

fn write(folder: &Path, nodes: &[SickNode]) -> Result<()> {
    let text = serde_json::to_vec_pretty(nodes)?;
    fs::create_dir_all(folder)?; // of a run that has not begun
    output::write(&sick_nodes_file(folder), Existing::Replaced, &text)
}

fn sick_nodes_file(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_node_is_excluded_at_once_and_one_that_failed_the_second_time() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(
            (read(folder).unwrap(), hosts_to_exclude(folder, false)),
            (Vec::new(), Vec::new())
        );
        add(folder, "n1", Reason::Failed, "rank 0 (node n1) died").unwrap();
        add(folder, "n2", Reason::Slow, "135 of 400 Gb/s").unwrap();
        assert_eq!(hosts_to_exclude(folder, false), ["n2"]);
        add(folder, "n1", Reason::Failed, "rank 3 (node n1) died").unwrap();
        assert_eq!(hosts_to_exclude(folder, false), ["n2", "n1"]);
        let nodes = read(folder).unwrap();
        assert_eq!((nodes[1].times, nodes[1].evidence.as_str()), (2, "rank 3 (node n1) died"));
        add(folder, "n4", Reason::Straggles, "rank 7 (node n4) is slow").unwrap();
        assert_eq!(hosts_to_exclude(folder, true), ["n2", "n1", "n4"]);
        assert_eq!(hosts_to_exclude(folder, false), ["n2", "n1"]);
        assert_eq!(clear(folder, Some("n4")).unwrap(), 1);
        assert_eq!(clear(folder, Some("n3")).unwrap(), 0);
        assert_eq!((clear(folder, Some("n2")).unwrap(), clear(folder, None).unwrap()), (1, 1));
        assert_eq!(read(folder).unwrap(), []);
    }

    #[test]
    fn expired_entries_are_ignored_and_a_damaged_file_excludes_no_node() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        add(folder, "n1", Reason::Slow, "slow").unwrap();
        let mut nodes = read(folder).unwrap();
        nodes[0].expires -= LIFETIME_S + 1.0;
        write(folder, &nodes).unwrap();
        assert_eq!(hosts_to_exclude(folder, false), [""; 0]);
        fs::write(sick_nodes_file(folder), "{").unwrap();
        assert_eq!(hosts_to_exclude(folder, false), [""; 0]);
        assert!(read(folder).is_err());
        add(folder, "n2", Reason::Slow, "slow").unwrap();
        assert_eq!(hosts_to_exclude(folder, false), ["n2"]);
    }
}
