//! Writer thread of a rank: writes its part of each checkpoint, and publishes it on rank 0.

use super::super::mirror::MirrorQueue;
use super::super::report::SyncReceipt;
use super::retry;
use base::{Moment, Seconds, Worker};
use checkpoint::disk::Disk;
use checkpoint::{CheckpointFolder, Keep, Snapshot, State, WrittenPart};
use launch::storage::Storage;
use manifest::Manifest;
use std::path::PathBuf;
use std::sync::Arc;

pub type Writer = Worker<Job, Done>;

pub enum Job {
    /// Creates the folder `staging` of a save, on rank 0.
    Begin {
        staging: PathBuf,
        step: u64,
        /// Bytes of all ranks.
        bytes: u64,
    },
    /// Writes this rank's part of a save into the folder `staging`.
    Part {
        snapshot: Snapshot,
        staging: PathBuf,
        state: State,
    },
    Publish(Publish),
}

/// Checkpoint with all parts written, but without its index.
pub struct Publish {
    pub staging: PathBuf,
    /// Parts by rank.
    pub parts: Vec<WrittenPart>,
    /// The lines of `metrics.jsonl` up to its step.
    pub record: Option<SyncReceipt>,
    pub state: State,
    pub begun: Moment,
    /// Seconds that training waited.
    pub stall: f64,
}

pub enum Done {
    Begun(anyhow::Result<()>),
    Part(Snapshot, anyhow::Result<WrittenPart>),
    Published(anyhow::Result<Published>),
}

/// Durable checkpoint.
pub struct Published {
    pub folder: PathBuf,
    /// Seconds since the save began.
    pub seconds: f64,
    /// Message for the user.
    pub message: String,
}

/// Starts the writer. A run that ends in an error still completes a started save. Published
/// checkpoints are also copied to the mirror.
pub fn start(
    m: &Manifest,
    rank: usize,
    storage: Arc<Storage>,
    mirror: Option<Arc<MirrorQueue>>,
) -> anyhow::Result<Writer> {
    let keep = Keep::from(&m.checkpoint);
    // Each save in flight has three jobs: its folder, a part and its publication.
    let room = 3 * m.checkpoint.in_flight.max(1);
    let rank_span = tracing::error_span!(parent: None, "rank", rank);
    Worker::start("checkpoints", room, move |job| {
        let _rank = rank_span.enter();
        let disk = Arc::new(Disk::default());
        Some(match job {
            Job::Begin { staging, step, bytes } => {
                Done::Begun(retry::begin(&disk, &storage, &staging, step, bytes))
            }
            Job::Part { snapshot, staging, state } => {
                let track = "save (writer)";
                let _span = tracing::trace_span!("write checkpoint", track).entered();
                let shares = snapshot.shares();
                let part = retry::write_part(&disk, &storage, &staging, rank, &shares, &state);
                drop(shares);
                Done::Part(snapshot, part)
            }
            Job::Publish(save) => {
                let mirror = mirror.as_deref();
                let keep = Keep { read: mirror.and_then(MirrorQueue::copying_step), ..keep };
                let step = save.state.progress.step;
                let published = save.run(&disk, &storage, keep);
                if let (Some(mirror), Ok(Published { folder, .. })) = (mirror, &published) {
                    mirror.push(CheckpointFolder { step, folder: folder.clone() });
                }
                Done::Published(published)
            }
        })
    })
}

impl Publish {
    fn run(self, disk: &Arc<Disk>, storage: &Storage, keep: Keep) -> anyhow::Result<Published> {
        let Publish { staging, parts, record, state, begun, stall } = self;
        // A run that resumes from this step does not repeat it: its record is on disk first.
        let recorded = record.map_or(Ok(()), |record| record.wait());
        let step = state.progress.step;
        recorded.map_err(|error| checkpoint::abandon(disk, &staging, step, error))?;
        let folder = retry::publish(disk, storage, &staging, parts, &state, keep)?;
        let seconds = begun.elapsed().as_secs_f64();
        let stall = Seconds(stall);
        let took = Seconds(seconds);
        let message = format!("saved {} in {took} (training waited {stall})", folder.display());
        Ok(Published { folder, seconds, message })
    }
}
