//! The writer thread of a rank: writes its part of each checkpoint, and publishes it on rank 0.

use super::super::also::Shared;
use super::super::storage::Storage;
use super::patient;
use base::{Seconds, Worker};
use checkpoint::disk::Disk;
use checkpoint::{Found, Keep, Snapshot, State, WrittenPart};
use manifest::Manifest;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

pub type Writer = Worker<Job, Done>;

pub enum Job {
    /// Makes the folder `fresh` of a save, on rank 0.
    Begin {
        fresh: PathBuf,
        step: u64,
        /// Of all ranks.
        bytes: u64,
    },
    /// This rank's part of a save, into the folder `fresh`.
    Part {
        snapshot: Snapshot,
        fresh: PathBuf,
        state: State,
    },
    Publish(Publish),
}

/// A checkpoint whose parts are all written: its index is missing.
pub struct Publish {
    pub fresh: PathBuf,
    /// By rank.
    pub parts: Vec<WrittenPart>,
    pub state: State,
    pub begun: Instant,
    /// Seconds for which training waited.
    pub stall: f64,
}

pub enum Done {
    Begun(anyhow::Result<()>),
    Part(Snapshot, anyhow::Result<WrittenPart>),
    Published(anyhow::Result<Published>),
}

/// A checkpoint that is durable.
pub struct Published {
    pub folder: PathBuf,
    /// Since the save began.
    pub seconds: f64,
    /// For the user.
    pub message: String,
}

/// A run that ends in an error still lets the save that has begun come to its end.
/// What is published is copied by `copies`, too.
pub fn start(
    m: &Manifest,
    rank: usize,
    storage: Arc<Storage>,
    copies: Option<Arc<Shared>>,
) -> anyhow::Result<Writer> {
    let keep = Keep { last: m.checkpoint.keep_last, every: m.checkpoint.keep_every, read: None };
    // Of each save in flight, its folder, a part and its publication.
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
                    copies.want(Found { step, folder: folder.clone() });
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
