//! Saves into the memory of the nodes: every rank writes its part beside the training and sends it to its
//! neighbour. When all have (which is determined between two later steps), the step before is removed.
//!
//! Methods that take a `Rank` are collectives.

use super::peers::{self, Neighbour};
use super::recovery::NodeMemory;
use super::{NOTE, Nodes, Note, remove};
use crate::report::SyncReceipt;
use anyhow::{Context, Result};
use base::memory;
use base::output;
use base::{Bytes, Problems, Worker};
use checkpoint::disk::Disk;
use checkpoint::{PartFile, PartName, Snapshot, State};
use engine::Engine;
use launch::rank::Rank;
use manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time of a wait, before the ranks exchange whether they have written.
const POLL: Duration = Duration::from_secs(1);

/// Steps in memory at the same time: the newest complete one, and the one being written.
const KEPT: u64 = 2;

/// Jobs that wait for the writer: a save, the removal of a step, and a note.
const ROOM: usize = 4;

/// Saves of one rank.
pub struct MemorySaves {
    interval: u64,
    folder: PathBuf,
    nodes: Nodes,
    leads: bool,
    run: PathBuf,
    /// None at the end of the run.
    writer: Option<Worker<Job, Done>>,
    /// None while the writer has it.
    snapshot: Option<Snapshot>,
    /// Step that the ranks are writing.
    pending: Option<u64>,
    /// Result of this rank's part of it.
    written: Option<Result<()>>,
    /// Newest complete step.
    complete: Option<u64>,
    /// Whether the last save failed, of which the user was warned.
    failing: bool,
}

enum Job {
    Save {
        snapshot: Snapshot,
        state: Box<State>,
        /// On rank 0: the lines of `metrics.jsonl`, which a run that resumes does not write again.
        record: Option<SyncReceipt>,
    },
    Remove(u64),
    Note(u64),
}

/// Snapshot of a save, and the result of its part.
type Done = (Snapshot, Result<()>);

/// Writer of one rank.
struct Writer {
    name: PartName,
    folder: PathBuf,
    run: PathBuf,
    neighbour: Option<Neighbour>,
}

/// Memory of a rank's node.
#[derive(Clone, Serialize, Deserialize)]
struct Space {
    /// Bytes of the rank's part.
    part: u64,
    /// Bytes that are free in the folder, and in the node's memory, if they are known.
    free: u64,
    /// Bytes of earlier steps in the folder, which are replaced.
    replaced: u64,
    is_in_memory: bool,
}

impl MemorySaves {
    /// Prepares the folders, and reserves the snapshot. Removes what earlier starts have left in memory,
    /// except the checkpoint from which this start continues. None without `checkpoint.memory_interval`,
    /// and with a warning if a node has too little memory.
    pub fn open(
        m: &Manifest,
        rank: &Rank,
        engine: &Engine,
        memory: &NodeMemory,
    ) -> Result<Option<MemorySaves>> {
        let NodeMemory { nodes, folder, unused, found } = memory;
        let number = rank.number();
        let leads = nodes.leader(number) == number;
        let complete = found.as_ref().map(|found| found.checkpoint.step);
        rank.run_phase("preparing saves into memory", || {
            if leads && let Some(unused) = unused {
                remove(unused)?;
            }
            if rank.is_first() && folder.is_none() {
                output::remove(&m.log.folder.join(NOTE))?;
            }
            let Some(folder) = folder.as_ref().filter(|_| leads) else { return Ok(()) };
            prepare(folder, nodes.name(number))?;
            let steps = checkpoint::published(folder)?;
            let old = steps.iter().filter(|found| Some(found.step) != complete);
            old.into_iter().try_for_each(|found| remove(&found.folder))
        })?;
        let (Some(folder), Some(interval)) = (folder, m.checkpoint.memory_interval) else {
            return Ok(None);
        };
        peers::serve(&rank.world().streams(), folder.clone());
        let snapshot = rank.run_phase("reserving snapshots", || Ok(Snapshot::reserve(engine)))?;
        if !has_space(rank, nodes, folder, &snapshot)? {
            memory.remove(rank, &m.log.folder)?;
            return Ok(None);
        }
        if rank.is_first() {
            Note { folder: folder.clone(), step: complete.unwrap_or(0) }.write(&m.log.folder)?;
        }
        let streams = rank.world().streams();
        let neighbour = nodes.neighbour(number);
        let mut writer = Writer {
            name: PartName { rank: number, ranks: rank.grid.size() },
            folder: folder.clone(),
            run: m.log.folder.clone(),
            neighbour: neighbour.map(|neighbour| Neighbour::new(streams, neighbour)),
        };
        let span = tracing::error_span!(parent: None, "rank", rank = number);
        Ok(Some(MemorySaves {
            interval,
            folder: folder.clone(),
            nodes: nodes.clone(),
            leads,
            run: m.log.folder.clone(),
            writer: Some(Worker::start("memory saves", ROOM, move |job| {
                let _rank = span.enter();
                writer.run(job)
            })?),
            snapshot: Some(snapshot),
            pending: None,
            written: None,
            complete,
            failing: false,
        }))
    }

    /// Host memory of the snapshot.
    pub fn snapshot_bytes(&self) -> Bytes {
        self.snapshot.as_ref().map_or(Bytes(0), Snapshot::bytes)
    }

    /// Whether a save is due after a step. The same on all ranks.
    pub fn is_due(&self, ends: impl Fn(u64) -> bool) -> bool {
        self.pending.is_none() && ends(self.interval)
    }

    /// Copies the states out of the engine, and begins to write them.
    pub fn begin(
        &mut self,
        engine: &Engine,
        state: State,
        record: Option<SyncReceipt>,
    ) -> Result<()> {
        let mut snapshot = self.snapshot.take().expect("no save is pending");
        snapshot.take(engine);
        self.pending = Some(state.progress.step);
        self.send(Job::Save { snapshot, state: Box::new(state), record })
    }

    fn send(&self, job: Job) -> Result<()> {
        self.writer
            .as_ref()
            .map_or(Ok(()), |writer| writer.send(job))
    }

    /// Whether this rank has written its part of the pending save.
    pub fn is_written(&mut self) -> bool {
        if let Some(done) = self.writer.as_ref().and_then(Worker::poll) {
            self.handle(done);
        }
        self.written.is_some()
    }

    fn handle(&mut self, (snapshot, written): Done) {
        self.snapshot = Some(snapshot);
        self.written = Some(written);
    }

    /// Completes the pending save, which all ranks have written or failed to write.
    pub fn complete_pending(&mut self, rank: &Rank) -> Result<()> {
        let Some(step) = self.pending.take() else { return Ok(()) };
        let error = self.written.take().and_then(|written| written.err());
        let errors = rank.all_gather(&error.map(|error| format!("{error:#}")))?;
        let failed = errors
            .into_iter()
            .enumerate()
            .find_map(|(rank, why)| Some((rank, why?)));
        let removed = match &failed {
            Some(_) => Some(step),
            None => self.complete.replace(step),
        };
        if let Some(removed) = removed.filter(|_| self.leads) {
            self.send(Job::Remove(removed))?;
        }
        if rank.is_first() {
            self.report(step, failed.as_ref());
            if failed.is_none() {
                self.send(Job::Note(step))?;
            }
        }
        self.failing = failed.is_some();
        Ok(())
    }

    /// Warns of the first of several failures, and reports their end.
    fn report(&self, step: u64, failed: Option<&(usize, String)>) {
        match failed {
            Some((number, why)) if !self.failing => tracing::warn!(
                "step {step} is not saved in memory: node {}, rank {number}: {why}; training \
                 continues, and so do the saves to disk and the tries. Make room in {} (df -h; \
                 mount -o remount,size=…), or restart with another checkpoint.memory_folder",
                self.nodes.name(*number),
                self.folder.parent().unwrap_or(&self.folder).display()
            ),
            None if self.failing => {
                tracing::info!("saves into memory succeed again, from step {step}")
            }
            _ => {}
        }
    }

    /// Waits until all ranks have written the pending save, and completes it.
    pub fn finish(&mut self, rank: &Rank) -> Result<()> {
        if self.pending.is_none() {
            return Ok(());
        }
        rank.set_phase("saving into memory");
        rank.wait_until(|| {
            if self.written.is_none()
                && let Some(writer) = &self.writer
                && let Some(done) = writer.wait_for(POLL)?
            {
                self.handle(done);
            }
            Ok(self.written.is_some())
        })?;
        self.complete_pending(rank)
    }

    /// Removes the checkpoints, which no longer belong to the run: it rolled back.
    pub fn discard(&mut self, rank: &Rank) -> Result<()> {
        self.finish(rank)?;
        let complete = self.complete.take();
        if rank.is_first() {
            self.send(Job::Note(0))?;
        }
        rank.run_phase("removing checkpoints in memory", || match complete {
            Some(step) if self.leads => remove(&self.folder.join(checkpoint::name(step))),
            _ => Ok(()),
        })
    }

    /// Removes everything from memory, because the run has ended and is saved on disk.
    pub fn end(&mut self, rank: &Rank) -> Result<()> {
        self.discard(rank)?;
        drop(self.writer.take()); // waits for its note
        rank.run_phase("removing checkpoints in memory", || {
            if rank.is_first() {
                output::remove(&self.run.join(NOTE))?;
            }
            if self.leads { remove(&self.folder) } else { Ok(()) }
        })
    }
}

impl Writer {
    fn run(&mut self, job: Job) -> Option<Done> {
        match job {
            Job::Save { snapshot, state, record } => {
                let track = "save into memory";
                let _span = tracing::trace_span!("write into memory", track).entered();
                let written = self.save(&snapshot, *state, record);
                return Some((snapshot, written));
            }
            Job::Remove(step) => {
                // The next start removes a leftover. If it fills the memory before, the next save reports that.
                let _ = remove(&self.folder.join(checkpoint::name(step)));
            }
            Job::Note(step) => {
                // Without it, a supervisor does not see that the run makes progress.
                let _ = Note { folder: self.folder.clone(), step }.write(&self.run);
            }
        }
        None
    }

    /// Writes this rank's part, and sends it to the neighbour.
    fn save(
        &mut self,
        snapshot: &Snapshot,
        state: State,
        record: Option<SyncReceipt>,
    ) -> Result<()> {
        record.map_or(Ok(()), |record| record.wait())?;
        let step = state.progress.step;
        let folder = self.folder.join(checkpoint::name(step));
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(error).with_context(|| format!("cannot create {}", folder.display()))?;
            }
            _ => {} // another rank of the node has made it
        }
        let disk = Disk::default();
        let shares = snapshot.shares();
        let part = checkpoint::write_part(&disk, &folder, self.name.rank, &shares, &state)?;
        let part = PartFile { name: self.name, state, part };
        part.write(&disk, &folder)?;
        let Some(neighbour) = &mut self.neighbour else { return Ok(()) };
        neighbour
            .put(step, &part.files(&folder))
            .with_context(|| format!("its copy on {}", neighbour.describe()))
    }
}

/// Creates the folder on this node, which only its user may read.
fn prepare(folder: &Path, node: &str) -> Result<(), Problems> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Problems::one(
            "checkpoint.memory_folder",
            format!("node {node} cannot create {}: {error}", folder.display()),
            "name a folder in which every node may write, such as /dev/shm",
        )),
        _ => Ok(()),
    }
}

/// Whether every node has memory for the saves. Reports what they take, or warns. A collective.
fn has_space(rank: &Rank, nodes: &Nodes, folder: &Path, snapshot: &Snapshot) -> Result<bool> {
    let first = |share: &&checkpoint::Share| share.replica.is_first() && share.state.saved;
    let shares = snapshot.shares();
    let part = shares
        .iter()
        .filter(first)
        .map(|share| share.bytes.len() as u64)
        .sum();
    let free = checkpoint::free_space(folder)?;
    let is_in_memory = checkpoint::is_in_memory(folder);
    let available = memory::available().filter(|_| is_in_memory);
    let free = available.into_iter().chain([free]).min().unwrap_or(free).0;
    let space = Space { part, free, replaced: output::bytes(folder).0, is_in_memory };
    let spaces = rank.gather(&space)?;
    rank.on_first(|| {
        let mut most = 0;
        let mut short = None;
        for leader in nodes.leaders() {
            let parts = spaces.iter().enumerate().map(|(number, space)| {
                let copy = nodes.neighbour(number).map(|other| nodes.leader(other));
                let kept = [Some(nodes.leader(number)), copy];
                let times = kept.into_iter().filter(|kept| *kept == Some(leader)).count();
                times as u64 * space.part
            });
            let need = KEPT * parts.sum::<u64>();
            most = most.max(need);
            let Space { free, replaced, .. } = spaces[leader];
            if need > free + replaced {
                short = short.or(Some((leader, need, free + replaced)));
            }
        }
        let folder = folder.parent().unwrap_or(folder).display();
        if let Some((leader, need, free)) = short {
            tracing::warn!(
                "nothing is saved in memory: node {} has {} for it in {folder}, and {KEPT} steps of its \
                 ranks and of a neighbour's take {}; training continues, with the saves to disk. Give \
                 {folder} more memory (mount -o remount,size=…), or name another \
                 checkpoint.memory_folder",
                nodes.name(leader),
                Bytes(free),
                Bytes(need)
            );
            return Ok(false);
        }
        let disk = if spaces[0].is_in_memory { "" } else { ", which is not in memory" };
        tracing::info!("checkpoints in memory: up to {} per node in {folder}{disk}", Bytes(most));
        Ok(true)
    })
}
