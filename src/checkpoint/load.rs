//! From a checkpoint into the engines of any grid.

use super::against;
use super::index::{Progress, Tensor, moment_name};
use super::read::{Buffer, Checkpoint, row_blocks};
use super::replicas;
use crate::engine::{Engine, Moment, Piece, Sampler};
use anyhow::{Context, ensure};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Reads what this rank keeps: its slices, copies that no rank saved among them. No rank waits for
/// another. When all have read: `Engine::publish` on all, then `verify` what they `hold`.
pub fn read_into(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    sound(checkpoint, &against::model(&checkpoint.index, engine.model()))?;
    sound(checkpoint, &against::groups(&checkpoint.index))?;
    engine.clear_padding();
    let put = &mut |moment, piece: &Piece, first, values: &[f32]| {
        engine.write(moment, piece, first, values);
    };
    read_all(checkpoint, &engine.pieces(), &Moment::ALL, put)?;
    let Progress { step, .. } = checkpoint.index.progress;
    engine.set_scale(checkpoint.index.loss_scale, step);
    Ok(checkpoint.index.progress)
}

/// Reads everything into the only rank, and compares the live weights with those saved.
pub fn load(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let progress = read_into(checkpoint, engine)?;
    engine.publish();
    replicas::verify(checkpoint, &[replicas::held(engine)])?;
    Ok(progress)
}

/// Reads the weights alone.
pub fn load_weights(folder: &Path, sampler: &Sampler) -> anyhow::Result<Progress> {
    let checkpoint = Checkpoint::open(folder)?;
    sound(&checkpoint, &against::model(&checkpoint.index, sampler.model()))?;
    let put = &mut |_, piece: &Piece, first, values: &[f32]| sampler.write(piece, first, values);
    read_all(&checkpoint, &sampler.pieces(), &[Moment::Master], put)?;
    Ok(checkpoint.index.progress)
}

/// An error for what was found of a checkpoint, if anything was.
fn sound(checkpoint: &Checkpoint, found: &[String]) -> anyhow::Result<()> {
    ensure!(found.is_empty(), "{}: {}", checkpoint.folder.display(), found.join("; "));
    Ok(())
}

/// Threads that read and verify: as many requests are under way.
const READERS: usize = 4;

/// Takes rows of a piece: what of it, which, from which of its rows on, the values.
type Put<'a> = &'a mut dyn FnMut(Moment, &Piece, usize, &[f32]);

/// Rows of a piece that are read together.
struct Job<'a> {
    moment: Moment,
    piece: &'a Piece,
    tensor: &'a Tensor,
    /// Of the whole weight.
    rows: Range<usize>,
}

/// Reads ahead on threads of its own, and gives runs of rows to `put`.
fn read_all(
    checkpoint: &Checkpoint,
    pieces: &[Piece],
    moments: &[Moment],
    put: Put,
) -> anyhow::Result<()> {
    let mut jobs = Vec::new();
    for piece in pieces {
        let name = &piece.slot.name;
        let tensor = checkpoint.index.tensor(name).with_context(|| format!("no tensor {name}"))?;
        for moment in moments {
            let rows = piece.at[0]..piece.at[0] + piece.size[0];
            let job = |rows| Job { moment: *moment, piece, tensor, rows };
            jobs.extend(row_blocks(tensor, *moment, rows)?.map(job));
        }
    }
    let (next, spare) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let (send, ready) = sync_channel(1);
        for _ in 0..READERS {
            let (send, jobs, next, spare) = (send.clone(), &jobs, &next, &spare);
            scope.spawn(move || {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut buffer: Buffer = take(spare).unwrap_or_default();
                    let read = job.read(checkpoint, &mut buffer).map(|()| buffer);
                    if send.send((job, read)).is_err() {
                        return; // another tensor was damaged
                    }
                }
            });
        }
        drop(send);
        for (job, read) in ready {
            let buffer = read?;
            put(job.moment, job.piece, job.rows.start - job.piece.at[0], buffer.values());
            spare.lock().unwrap_or_else(|held| held.into_inner()).push(buffer);
        }
        Ok(())
    })
}

impl Job<'_> {
    fn read(&self, from: &Checkpoint, buffer: &mut Buffer) -> anyhow::Result<()> {
        let [_, col] = self.piece.at;
        let cols = col..col + self.piece.size[1];
        from.read_by(buffer, self.tensor, self.moment, self.rows.clone(), cols)?;
        // No step updates with numbers that are not finite: whatever made these, it was no run.
        ensure!(
            finite(buffer.values()),
            "{}: the {} of {} holds numbers that are not finite, in rows {}..{}",
            from.folder.display(),
            moment_name(self.moment),
            self.tensor.name,
            self.rows.start,
            self.rows.end
        );
        Ok(())
    }
}

/// The largest magnitude decides, as it compares as an integer.
fn finite(values: &[f32]) -> bool {
    let magnitude = |value: &f32| (value.to_bits() & 0x7fff_ffff) as i32;
    values.iter().map(magnitude).fold(0, i32::max) < f32::INFINITY.to_bits() as i32
}

fn take<T>(spare: &Mutex<Vec<T>>) -> Option<T> {
    spare.lock().unwrap_or_else(|held| held.into_inner()).pop()
}
