//! The writer thread of a rank: writes its part of each checkpoint, and publishes it on rank 0.

use super::super::last_checkpoint;
use base::{Seconds, Worker};
use checkpoint::disk::Disk;
use checkpoint::{self, Keep, Snapshot, State, WrittenPart};
use manifest::Manifest;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub type Writer = Worker<Job, Done>;

pub enum Job {
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
    Part(Snapshot, anyhow::Result<WrittenPart>),
    Published(anyhow::Result<Published>),
}

/// A checkpoint that is durable.
pub struct Published {
    /// Since the save began.
    pub seconds: f64,
    /// For the user.
    pub message: String,
}

/// A run that ends in an error still lets the save that has begun come to its end.
pub fn start(m: &Manifest, rank: usize) -> anyhow::Result<Writer> {
    let keep = Keep { last: m.checkpoint.keep_last, every: m.checkpoint.keep_every };
    // Of each save in flight, a part and its publication.
    let room = 2 * m.checkpoint.in_flight.max(1);
    let of_rank = tracing::error_span!(parent: None, "rank", rank);
    Worker::start("checkpoints", room, move |job| {
        let _rank = of_rank.enter();
        Some(match job {
            Job::Part { snapshot, fresh, state } => {
                let track = "save (writer)";
                let _span = tracing::trace_span!("write checkpoint", track).entered();
                let (disk, shares) = (Disk::default(), snapshot.shares());
                let part = checkpoint::write_part(&disk, &fresh, rank, &shares, &state);
                drop(shares);
                Done::Part(snapshot, part)
            }
            Job::Publish(what) => Done::Published(what.run(keep)),
        })
    })
}

impl Publish {
    /// Writes the index, names the folder, then removes checkpoints beyond those to keep.
    fn run(self, keep: Keep) -> anyhow::Result<Published> {
        let Publish { fresh, parts, state, begun, stall } = self;
        let disk = Disk::default();
        let folder = checkpoint::publish(&disk, &fresh, parts, &state)
            .map_err(|error| checkpoint::abandon(&disk, &fresh, state.progress.step, error))?;
        let checkpoints = folder.parent().unwrap_or(Path::new("."));
        checkpoint::write_hint(&disk, checkpoints, state.progress.step)?;
        if let Some(run) = checkpoints.parent() {
            last_checkpoint::note(run, state.progress.step)?;
        }
        checkpoint::prune(&disk, checkpoints, keep)?;
        let seconds = begun.elapsed().as_secs_f64();
        let (stall, took) = (Seconds(stall), Seconds(seconds));
        let message = format!("saved {} in {took} (training waited {stall})", folder.display());
        Ok(Published { seconds, message })
    }
}
