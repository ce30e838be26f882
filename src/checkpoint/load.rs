//! From a checkpoint into the engines of any grid.

use super::index::{Progress, Tensor};
use super::read::{Buffer, Checkpoint, row_blocks};
use super::replicas;
use super::validate;
use crate::base::{DType, in_order};
use crate::engine::{Engine, Sampler, StateSlice};
use anyhow::{Context, ensure};
use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;

/// Reads what this rank keeps: its slices, copies that no rank saved among them. No rank waits for
/// another. When all have read: `cast_master_to_model` on all, then `verify` their `replica_digests`.
pub fn read_into(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let store = engine.store();
    sound(checkpoint, &validate::model(&checkpoint.index, store.model(), engine.rule()))?;
    sound(checkpoint, &validate::groups(&checkpoint.index))?;
    store.clear_padding();
    let saved = store.slices().into_iter().filter(|slice| slice.state.saved);
    let put = &mut |slice: &StateSlice, first, bytes: &[u8]| store.write(slice, first, bytes);
    read_all(checkpoint, &saved.collect::<Vec<_>>(), put)?;
    let Progress { step, .. } = checkpoint.index.progress;
    engine.set_scale(checkpoint.index.loss_scale, step);
    Ok(checkpoint.index.progress)
}

/// Reads everything into the only rank, and compares the model weights with those saved.
pub fn load(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let progress = read_into(checkpoint, engine)?;
    engine.store().cast_master_to_model();
    replicas::verify(checkpoint, &[replicas::replica_digests(engine)])?;
    Ok(progress)
}

/// Reads the master weights alone.
pub fn load_weights(folder: &Path, sampler: &Sampler) -> anyhow::Result<Progress> {
    let checkpoint = Checkpoint::open(folder)?;
    sound(&checkpoint, &validate::weights(&checkpoint.index, sampler.model()))?;
    let put = &mut |slice: &StateSlice, first, bytes: &[u8]| sampler.write(slice, first, bytes);
    read_all(&checkpoint, &sampler.slices(), put)?;
    Ok(checkpoint.index.progress)
}

/// An error for what was found of a checkpoint, if anything was.
fn sound(checkpoint: &Checkpoint, found: &[String]) -> anyhow::Result<()> {
    ensure!(found.is_empty(), "{}: {}", checkpoint.folder.display(), found.join("; "));
    Ok(())
}

/// Threads that read and verify: as many requests are under way.
const READERS: usize = 4;

/// Takes rows of a slice: which slice, from which of its rows on, the values.
type Put<'a> = &'a mut dyn FnMut(&StateSlice, usize, &[u8]);

/// Rows of a slice that are read together.
struct Job<'a> {
    slice: &'a StateSlice,
    tensor: &'a Tensor,
    /// Of the whole state.
    rows: Range<usize>,
}

/// Reads ahead on threads of its own, and gives runs of rows to `put`.
fn read_all(checkpoint: &Checkpoint, slices: &[StateSlice], put: Put) -> anyhow::Result<()> {
    let mut jobs = Vec::new();
    for slice in slices {
        let name = &slice.param.name;
        let tensor = checkpoint.index.tensor(name).with_context(|| format!("no tensor {name}"))?;
        let job = |rows| Job { slice, tensor, rows };
        jobs.extend(row_blocks(tensor, slice.state.name, slice.slice.rows())?.map(job));
    }
    let spare = RefCell::new(Vec::<Buffer>::new());
    let jobs = jobs.into_iter().map(|job| (job, spare.borrow_mut().pop().unwrap_or_default()));
    in_order(
        READERS,
        READERS + 2,
        jobs,
        || (),
        |(), (job, mut buffer)| job.read(checkpoint, &mut buffer).map(|()| (job, buffer)),
        |read| {
            let (job, buffer) = read?;
            put(job.slice, job.rows.start - job.slice.slice.at[0], buffer.bytes());
            spare.borrow_mut().push(buffer);
            Ok(())
        },
    )
}

impl Job<'_> {
    fn read(&self, from: &Checkpoint, buffer: &mut Buffer) -> anyhow::Result<()> {
        let StateSlice { state, slice, .. } = self.slice;
        from.read(buffer, self.tensor, state.name, self.rows.clone(), slice.cols())?;
        // No step updates with numbers that are not finite: whatever made these, it was no run.
        ensure!(
            finite(state.dtype, buffer.bytes()),
            "{}: the {} of {} holds numbers that are not finite, in rows {}..{}",
            from.folder.display(),
            state.name,
            self.tensor.name,
            self.rows.start,
            self.rows.end
        );
        Ok(())
    }
}

/// The largest magnitude decides, as it compares as an integer.
fn finite(dtype: DType, bytes: &[u8]) -> bool {
    let largest16 = || {
        let bits = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]) & 0x7fff);
        bits.fold(0, u16::max)
    };
    match dtype {
        DType::F32 => {
            let bits = bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            bits.map(|bits| bits & 0x7fff_ffff).fold(0, i32::max) < 0x7f80_0000
        }
        DType::BF16 => largest16() < 0x7f80,
        DType::F16 => largest16() < 0x7c00,
        DType::U8 | DType::I32 | DType::I64 => true,
    }
}
