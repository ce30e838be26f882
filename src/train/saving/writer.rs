//! Writer thread of a rank: writes its part of each checkpoint, and publishes it on rank 0.

use super::super::also::Shared;
use super::patient;
use base::{Seconds, Worker};
use checkpoint::disk::Disk;
use checkpoint::{CheckpointFolder, Keep, Snapshot, State, WrittenPart};
use launch::storage::Storage;
use manifest::Manifest;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

pub type Writer = Worker<Job, Done>;

pub enum Job {
    /// Creates the folder `fresh` of a save, on rank 0.
    Begin {
        fresh: PathBuf,
        step: u64,
        /// Bytes of all ranks.
        bytes: u64,
    },
    /// Writes this rank's part of a save into the folder `fresh`.
    Part {
        snapshot: Snapshot,
        fresh: PathBuf,
        state: State,
    },
    Publish(Publish),
}

/// Checkpoint with all parts written, but without its index.
pub struct Publish {
    pub fresh: PathBuf,
    /// Parts by rank.
    pub parts: Vec<WrittenPart>,
    pub state: State,
    pub begun: Instant,
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
/// checkpoints are also copied by `copies`.
pub fn start(
    m: &Manifest,
    rank: usize,
    storage: Arc<Storage>,
    copies: Option<Arc<Shared>>,
) -> anyhow::Result<Writer> {
    let keep = Keep { last: m.checkpoint.keep_last, every: m.checkpoint.keep_every, read: None };
    // Each save in flight has three jobs: its folder, a part and its publication.
    let room = 3 * m.checkpoint.in_flight.max(1);
    let of_rank = tracing::error_span!(parent: None, "rank", rank);
    Worker::start("checkpoints", room, move |job| {
        let _rank = of_rank.enter();
        let disk = Disk::default();
        Some(match job {
            Job::Begin { fresh, step, bytes } => {
                Done::Begun(patient::begin(&disk, &storage, &fresh, step, bytes))
            }
            Job::Part { snapshot, fresh, state } => {
                let track = "save (writer)";
                let _span = tracing::trace_span!("write checkpoint", track).entered();
                let (shares, place) = (snapshot.shares(), (&*fresh, rank));
                let part = patient::write_part(&disk, &storage, place, &shares, &state);
                drop(shares);
                Done::Part(snapshot, part)
            }
            Job::Publish(what) => {
                let copies = copies.as_deref();
                let keep = Keep { read: copies.and_then(Shared::reads), ..keep };
                let step = what.state.progress.step;
                let published = what.run(&disk, &storage, keep);
                if let (Some(copies), Ok(Published { folder, .. })) = (copies, &published) {
                    copies.want(CheckpointFolder { step, folder: folder.clone() });
                }
                Done::Published(published)
            }
        })
    })
}

impl Publish {
    fn run(self, disk: &Disk, storage: &Storage, keep: Keep) -> anyhow::Result<Published> {
        let Publish { fresh, parts, state, begun, stall } = self;
        let folder = patient::publish(disk, storage, &fresh, parts, &state, keep)?;
        let seconds = begun.elapsed().as_secs_f64();
        let (stall, took) = (Seconds(stall), Seconds(seconds));
        let message = format!("saved {} in {took} (training waited {stall})", folder.display());
        Ok(Published { folder, seconds, message })
    }
}
