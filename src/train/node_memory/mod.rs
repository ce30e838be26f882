//! Checkpoints in the memory of the nodes (`checkpoint.memory_interval`), from which a restarted run
//! continues without the file server.
//!
//! ```text
//! /dev/shm/gptrain-3f9ac01b77de/step-00000040/part-00003-of-00008.json   what the shards hold, with digests
//!                                             master-00003.safetensors   … of the ranks of this node
//!                                             master-00005.safetensors   … copies of the neighbour node's
//! ```
//! Every rank writes its part into the memory of its node, and sends it to a rank of the next node. A
//! step counts when all ranks have done so (`saves`). A start reads what the nodes have, compares every
//! byte with its digest, and takes the newest step of which each part is sound somewhere (`recovery`).
//! Ranks read parts of other nodes over their own streams (`peers`).
//!
//! Does not know how the checkpoints on disk are saved.

mod peers;
mod recovery;
mod saves;

pub use recovery::{Found, NodeMemory, find};
pub use saves::MemorySaves;

use anyhow::{Context, Result};
use base::input;
use base::output::{self, Existing};
use launch::rank::Rank;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder that names the folder in memory.
const NOTE: &str = "memory-checkpoint.json";

/// Contents of the file. It exists while the folder in memory belongs to the run's history: a start that
/// does not use that folder names another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    /// The same path on every node.
    folder: PathBuf,
    /// Newest complete step; 0 before the first.
    step: u64,
}

impl Note {
    fn read(run: &Path) -> Option<Note> {
        let text = input::read(&run.join(NOTE), input::SMALL).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn write(&self, run: &Path) -> Result<()> {
        output::write(&run.join(NOTE), Existing::Replaced, &serde_json::to_vec(self)?)
    }
}

/// Newest step that was complete in memory; 0 without one.
pub fn newest_step(run: &Path) -> u64 {
    Note::read(run).map_or(0, |note| note.step)
}

/// Removes a folder, if there is one.
fn remove(folder: &Path) -> Result<()> {
    match output::remove_folder(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Name of each rank's node.
#[derive(Clone, Debug)]
pub struct Nodes(Vec<String>);

impl Nodes {
    /// Gathers the names. A collective.
    fn gather(rank: &Rank, node: &str) -> Result<Nodes> {
        Ok(Nodes(rank.all_gather(&node.to_string())?))
    }

    fn name(&self, rank: usize) -> &str {
        &self.0[rank]
    }

    /// First rank of a rank's node, which lists and removes files there.
    fn leader(&self, rank: usize) -> usize {
        let same = |other: &String| *other == self.0[rank];
        self.0.iter().position(same).unwrap_or(rank)
    }

    fn leaders(&self) -> Vec<usize> {
        let ranks = 0..self.0.len();
        ranks.filter(|rank| self.leader(*rank) == *rank).collect()
    }

    /// Ranks of the node of this leader.
    fn ranks_of(&self, leader: usize) -> Vec<usize> {
        let ranks = 0..self.0.len();
        ranks.filter(|rank| self.leader(*rank) == leader).collect()
    }

    /// Rank of the next node that keeps the copy of a rank's part; None with one node.
    fn neighbour(&self, rank: usize) -> Option<usize> {
        let leaders = self.leaders();
        let leader = self.leader(rank);
        let place = leaders.iter().position(|other| *other == leader)?;
        let next = leaders[(place + 1) % leaders.len()];
        let theirs = self.ranks_of(next);
        let number = self
            .ranks_of(leader)
            .iter()
            .position(|other| *other == rank)?;
        (next != leader).then(|| theirs[number % theirs.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> Nodes {
        Nodes(names.iter().map(|name| name.to_string()).collect())
    }

    #[test]
    fn each_rank_has_a_neighbour_on_the_next_node() {
        let three = nodes(&["a", "a", "b", "b", "c"]);
        let neighbours: Vec<_> = (0..5).map(|rank| three.neighbour(rank)).collect();
        assert_eq!(neighbours, [2, 3, 4, 4, 0].map(Some));
        assert_eq!(three.leaders(), [0, 2, 4]);
        assert_eq!(nodes(&["a", "a"]).neighbour(1), None);
        let mixed = nodes(&["a", "b", "a", "b"]);
        assert_eq!((0..4).map(|rank| mixed.leader(rank)).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!(mixed.neighbour(2), Some(3));
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_anything_else_is_none() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path();
        assert_eq!(newest_step(run), 0);
        Note { folder: "/dev/shm/gptrain-a".into(), step: 7 }
            .write(run)
            .unwrap();
        assert_eq!(newest_step(run), 7);
        std::fs::write(run.join(NOTE), "{").unwrap();
        assert!(Note::read(run).is_none());
    }
}
