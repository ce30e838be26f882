//! Search for the newest checkpoint that the nodes have in memory.

use super::peers::{self, PeerShards};
use super::{NOTE, Nodes, Note, remove};
use anyhow::{Context, Result};
use base::output::{self, Existing};
use base::{Moment, Seconds, in_order, input};
use checkpoint::{CheckpointFolder, PartFile, PartName, RemoteShards};
use launch::rank::Rank;
use manifest::Manifest;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folder in which a start saves when `checkpoint.memory_interval` names none.
const DEFAULT_FOLDER: &str = "/dev/shm";

/// Beginning of the name of a run's folder.
const PREFIX: &str = "gptrain-";

/// Nodes with more than these are counted in a message.
const MAX_NODES_NAMED: usize = 4;

/// Places of this start's checkpoints in memory.
pub struct NodeMemory {
    pub nodes: Nodes,
    /// Folder in which this start saves, the same path on each node; None without
    /// `checkpoint.memory_interval`.
    pub folder: Option<PathBuf>,
    /// Folder of an earlier start that this one does not continue.
    pub unused: Option<PathBuf>,
    /// Checkpoint from which this start continues.
    pub found: Option<Found>,
}

/// Verified checkpoint in memory.
pub struct Found {
    /// Folder on this node, with the index. It may not have all shards.
    pub checkpoint: CheckpointFolder,
    /// Shards that other nodes have.
    pub remote: Arc<dyn RemoteShards>,
    /// Names of the nodes that it is read from.
    nodes: Vec<String>,
    /// Ranks whose own node does not have their part any more.
    copies: usize,
    newest_on_disk: u64,
    searched_since: Moment,
}

impl NodeMemory {
    /// Removes everything from memory: the run is complete on disk. A collective.
    pub fn remove(&self, rank: &Rank, run: &Path) -> Result<()> {
        rank.run_phase("removing checkpoints in memory", || {
            if rank.is_first() {
                output::remove(&run.join(NOTE))?;
            }
            let leads = self.nodes.leader(rank.number()) == rank.number();
            let mut folders = self.folder.iter().chain(&self.unused).filter(|_| leads);
            folders.try_for_each(|folder| remove(folder))
        })
    }
}

impl Found {
    /// Whether the same step is also on disk.
    pub fn is_on_disk(&self) -> bool {
        self.newest_on_disk == self.checkpoint.step
    }

    /// Message for the user, when it is loaded.
    pub fn describe(&self) -> String {
        let nodes = match self.nodes.len() {
            0..=MAX_NODES_NAMED => self.nodes.join(", "),
            more => format!("{more} nodes"),
        };
        let copies = match self.copies {
            0 => String::new(),
            1 => ", 1 part of it a neighbour's copy,".to_string(),
            more => format!(", {more} parts of it neighbours' copies,"),
        };
        let on_disk = match self.newest_on_disk {
            0 => "there is none on disk".to_string(),
            step => format!("the newest on disk is step {step}"),
        };
        let took = Seconds(self.searched_since.elapsed().as_secs_f64());
        let step = self.checkpoint.step;
        format!("resumed at step {step} from the memory of {nodes}{copies} in {took}; {on_disk}")
    }
}

/// Step of which some node lists a part.
struct Candidate {
    step: u64,
    /// Ranks that saved it.
    ranks: usize,
    /// Leaders of the nodes that list each rank's part, preferred first.
    holders: BTreeMap<PartName, Vec<usize>>,
}

impl Candidate {
    /// Why the step cannot be used, if no node lists some part.
    fn describe_missing(&self) -> Option<String> {
        let missing: Vec<String> = (0..self.ranks)
            .filter(|rank| {
                let name = PartName { rank: *rank, ranks: self.ranks };
                !self.holders.contains_key(&name)
            })
            .map(|rank| rank.to_string())
            .collect();
        let parts = match missing.len() {
            0 => return None,
            1 => "part of rank",
            _ => "parts of ranks",
        };
        Some(format!("no node has the {parts} {}", missing.join(", ")))
    }
}

/// Decides where this start saves, and finds the newest checkpoint in memory that is not older than
/// `newest_on_disk`, unless the user `named` another. A collective.
pub fn find(rank: &Rank, node: &str, m: &Manifest, named: bool, newest: u64) -> Result<NodeMemory> {
    let searched_since = Moment::now();
    let wanted = m.checkpoint.memory_interval.map(|_| {
        let folder = m.checkpoint.memory_folder.clone();
        folder.unwrap_or_else(|| DEFAULT_FOLDER.into())
    });
    let run = &m.log.folder;
    let (note, fresh): (Option<Note>, String) =
        rank.on_first(|| Ok((Note::read(run), checkpoint::nonce())))?;
    let nodes = Nodes::gather(rank, node)?;
    let complete = note.as_ref().map_or(0, |note| note.step);
    let noted = note.map(|note| note.folder);
    let fresh = wanted
        .as_ref()
        .map(|folder| folder.join(format!("{PREFIX}{fresh}")));
    let continued = noted
        .clone()
        .filter(|noted| !named && noted.parent() == wanted.as_deref());
    let Some(folder) = continued else {
        return Ok(NodeMemory { nodes, folder: fresh, unused: noted, found: None });
    };
    rank.set_phase("looking for checkpoints in the nodes' memory");
    let mut is_listed = false;
    for candidate in list_candidates(rank, &nodes, &folder, newest)? {
        let step = candidate.step;
        is_listed |= step == complete;
        if let Some(missing) = candidate.describe_missing() {
            // A later step was being saved when the run ended, an earlier one was being removed.
            if step == complete && step > newest {
                warn_unused(rank, step, &missing);
            }
            continue;
        }
        let Some(parts) = verify(rank, &nodes, &folder, candidate)? else { continue };
        peers::serve(&rank.world().streams(), folder.clone());
        let found = Found {
            checkpoint: CheckpointFolder { step, folder: folder.join(checkpoint::name(step)) },
            nodes: name_nodes(&nodes, &parts),
            copies: count_copies(&nodes, &parts),
            remote: locate(rank, &nodes, step, &parts),
            newest_on_disk: newest,
            searched_since,
        };
        rank.run_phase("writing the index of the checkpoint in memory", || {
            let leads = nodes.leader(rank.number()) == rank.number();
            if leads { write_index(&found.checkpoint.folder, parts) } else { Ok(()) }
        })?;
        let found = Some(found);
        return Ok(NodeMemory { nodes, folder: Some(folder), unused: None, found });
    }
    if complete > newest && !is_listed {
        warn_unused(rank, complete, "no node has a part of it");
    }
    Ok(NodeMemory { nodes, folder: fresh, unused: Some(folder), found: None })
}

/// Verified part of each rank, and the leader of the node that has it.
type Parts = BTreeMap<PartName, (usize, PartFile)>;

/// Steps of which some node lists a part, newest first, down to `newest_on_disk`. A collective.
fn list_candidates(
    rank: &Rank,
    nodes: &Nodes,
    folder: &Path,
    newest_on_disk: u64,
) -> Result<Vec<Candidate>> {
    let leads = nodes.leader(rank.number()) == rank.number();
    let listed = if leads { list(folder) } else { Vec::new() };
    let mut steps: BTreeMap<(u64, usize), BTreeMap<PartName, Vec<usize>>> = BTreeMap::new();
    for (leader, listed) in rank.all_gather(&listed)?.into_iter().enumerate() {
        for (step, name) in listed {
            let parts = steps.entry((step, name.ranks)).or_default();
            parts.entry(name).or_default().push(leader);
        }
    }
    let mut candidates = Vec::new();
    for ((step, ranks), mut holders) in steps.split_off(&(newest_on_disk, 0)).into_iter().rev() {
        for (name, leaders) in &mut holders {
            // The rank's own node first, if it has the same number as then.
            leaders.sort_by_key(|leader| own_node(nodes, *name) != Some(*leader));
        }
        candidates.push(Candidate { step, ranks, holders });
    }
    Ok(candidates)
}

/// Leader of the node on which a part's rank is now, in a world of as many ranks.
fn own_node(nodes: &Nodes, name: PartName) -> Option<usize> {
    (name.ranks == nodes.0.len()).then(|| nodes.leader(name.rank))
}

/// Parts in the folder of this node, with their steps.
fn list(folder: &Path) -> Vec<(u64, PartName)> {
    let names = |folder: &Path| {
        fs::read_dir(folder)
            .and_then(input::names)
            .unwrap_or_default()
    };
    let steps = names(folder)
        .into_iter()
        .filter_map(|name| Some((checkpoint::step(&name)?, name)));
    steps
        .flat_map(|(step, name)| {
            let files = names(&folder.join(name)).into_iter();
            files.filter_map(move |file| Some((step, PartName::parse(&file)?)))
        })
        .collect()
}

/// Compares every byte of each part with its digest, on the first node that has it; if it is damaged
/// there, on the next one. None if a part is sound nowhere. A collective.
fn verify(
    rank: &Rank,
    nodes: &Nodes,
    folder: &Path,
    candidate: Candidate,
) -> Result<Option<Parts>> {
    let Candidate { step, mut holders, .. } = candidate;
    let mut parts = Parts::new();
    let step_folder = folder.join(checkpoint::name(step));
    while parts.len() < holders.len() {
        let next: Vec<(PartName, usize)> = holders
            .iter()
            .filter(|(name, _)| !parts.contains_key(name))
            .filter_map(|(name, leaders)| Some((*name, *leaders.first()?)))
            .collect();
        if next.len() + parts.len() < holders.len() {
            warn_unused(rank, step, "a part of it is sound on no node");
            return Ok(None);
        }
        let mine = next.iter().filter(|(_, leader)| *leader == rank.number());
        let verified = verify_here(&step_folder, step, mine.map(|(name, _)| *name))?;
        for (leader, results) in rank.all_gather(&verified)?.into_iter().enumerate() {
            for (name, result) in results {
                match result {
                    Ok(part) => drop(parts.insert(name, (leader, part))),
                    Err(why) => {
                        let (node, number) = (nodes.name(leader), name.rank);
                        let leaders = holders.entry(name).or_default();
                        leaders.retain(|other| *other != leader);
                        let instead = leaders.first().map_or(
                            "no other node has a copy".to_string(),
                            |other| {
                                format!("the copy of node {} is read instead", nodes.name(*other))
                            },
                        );
                        warn(
                            rank,
                            &format!(
                                "node {node} in memory: rank {number}'s part of step {step} is not used: \
                             {why}; {instead}"
                            ),
                        );
                    }
                }
            }
        }
    }
    Ok(Some(parts))
}

type Verified = Vec<(PartName, Result<PartFile, String>)>;

/// Verifies parts in this node's folder, several at the same time.
fn verify_here(
    folder: &Path,
    step: u64,
    names: impl Iterator<Item = PartName>,
) -> Result<Verified> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut verified = Verified::new();
    in_order(
        threads,
        threads,
        names,
        || (),
        |(): &mut (), name: PartName| {
            let part = PartFile::verify(folder, name, step);
            (name, part.map_err(|error| format!("{error:#}")))
        },
        |result| {
            verified.push(result);
            Ok(())
        },
    )?;
    Ok(verified)
}

/// Shards that this rank reads from other nodes.
fn locate(rank: &Rank, nodes: &Nodes, step: u64, parts: &Parts) -> Arc<dyn RemoteShards> {
    let own = nodes.leader(rank.number());
    let elsewhere = parts.values().filter(|(leader, _)| *leader != own);
    let files = elsewhere.flat_map(|(leader, part)| {
        part.part
            .shards
            .iter()
            .map(|shard| (shard.file.clone(), *leader))
    });
    let streams = rank.world().streams();
    let idle = Default::default();
    Arc::new(PeerShards { streams, step, ranks: files.collect(), idle })
}

/// Writes the index of all parts into the folder of this node.
fn write_index(folder: &Path, parts: Parts) -> Result<()> {
    let mut state = None;
    let mut written = Vec::new();
    for (_, (_, part)) in parts {
        state = state.or(Some(part.state)); // that of rank 0, which has all losses
        written.push(part.part);
    }
    let index = checkpoint::index_text(written, &state.context("a checkpoint has parts")?)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    output::write(&folder.join(checkpoint::INDEX), Existing::Replaced, index.as_bytes())
}

/// Names of the nodes that have the parts, in the order of ranks.
fn name_nodes(nodes: &Nodes, parts: &Parts) -> Vec<String> {
    let leaders: BTreeSet<usize> = parts.values().map(|(leader, _)| *leader).collect();
    leaders
        .into_iter()
        .map(|leader| nodes.name(leader).to_string())
        .collect()
}

fn count_copies(nodes: &Nodes, parts: &Parts) -> usize {
    let moved = |(name, (leader, _)): &(&PartName, &(usize, PartFile))| {
        own_node(nodes, **name).is_some_and(|own| own != *leader)
    };
    parts.iter().filter(moved).count()
}

fn warn_unused(rank: &Rank, step: u64, why: &str) {
    warn(rank, &format!("step {step} in memory is not used: {why}"));
}

fn warn(rank: &Rank, message: &str) {
    if rank.is_first() {
        tracing::warn!("{message}");
    }
}
