//! From a checkpoint into an engine, and the proof that it arrived.

use super::digest::{Digest, Values};
use super::index::{Progress, Tensor};
use super::read::{Buffer, Checkpoint, row_blocks};
use super::snapshot::saved_shape;
use crate::base::DType;
use crate::engine::{Engine, Moment, Sampler};
use crate::model::Slot;
use anyhow::{Context, ensure};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Bytes of a live weight that are looked at together: they stay in a core's cache.
const LIVE: usize = 512 << 10;

/// Reads everything back into the engine, and compares the live weights with those saved.
pub fn load(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let slots: Vec<&Slot> = engine.slots().collect();
    let vocab = engine.vocab();
    read_all(checkpoint, &slots, vocab, &Moment::ALL, &mut |moment, slot, first, values| {
        engine.write_rows(moment, slot, first, values);
    })?;
    engine.publish();
    verify_live(checkpoint, engine)?;
    Ok(checkpoint.index.progress)
}

/// Reads the weights alone.
pub fn load_weights(folder: &Path, sampler: &Sampler) -> anyhow::Result<Progress> {
    let checkpoint = Checkpoint::open(folder)?;
    let slots: Vec<&Slot> = sampler.slots().collect();
    let vocab = sampler.vocab();
    read_all(&checkpoint, &slots, vocab, &[Moment::Master], &mut |_, slot, first, values| {
        sampler.write_rows(slot, first, values);
    })?;
    Ok(checkpoint.index.progress)
}

/// The live weights in device memory are bit for bit those that were there before the save.
pub fn verify_live(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<()> {
    let dtype = engine.live_dtype();
    let mut words: Vec<u32> = Vec::new();
    for slot in engine.slots() {
        let tensor = tensor(checkpoint, slot, engine.vocab())?;
        let saved_rows = tensor.numel() / slot.cols;
        let at_once = (LIVE / dtype.size() / slot.cols).max(1);
        let mut digest = Digest::default();
        for first in (0..saved_rows).step_by(at_once) {
            let rows = first..(first + at_once).min(saved_rows);
            let size = rows.len() * slot.cols * dtype.size();
            words.resize(size.div_ceil(4), 0);
            let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut words)[..size];
            engine.read_live(slot, rows, bytes);
            let values = match dtype {
                DType::BF16 => Values::Bf16(bytemuck::cast_slice(bytes)),
                _ => Values::F32(bytemuck::cast_slice(bytes)),
            };
            digest = digest.and(Digest::of_values((first * slot.cols) as u64, values));
        }
        ensure!(
            tensor.live.dtype == dtype.to_string() && tensor.live.digest == digest,
            "{}: the live weight {} ({dtype}) is not the one that was in memory when the checkpoint \
             was saved ({}): digest {digest}, saved {}",
            checkpoint.folder.display(),
            slot.name,
            tensor.live.dtype,
            tensor.live.digest
        );
    }
    Ok(())
}

/// A slot's row in the index.
fn tensor<'c>(checkpoint: &'c Checkpoint, slot: &Slot, vocab: usize) -> anyhow::Result<&'c Tensor> {
    let folder = checkpoint.folder.display();
    let tensor = checkpoint.index.tensor(&slot.name).with_context(|| {
        format!("{folder} has no tensor {}, the manifest's model has", slot.name)
    })?;
    let expected = saved_shape(slot, vocab);
    ensure!(
        tensor.shape == expected,
        "{folder}: {} is {:?}, the manifest's model has {expected:?}",
        slot.name,
        tensor.shape
    );
    Ok(tensor)
}

/// Takes rows of a weight: what of it, which, from which row on, the values.
type Put<'a> = &'a mut dyn FnMut(Moment, &Slot, usize, &[f32]);

/// Reads ahead on threads of its own, and gives runs of rows to `put`, with the first row's number.
fn read_all(
    checkpoint: &Checkpoint,
    slots: &[&Slot],
    vocab: usize,
    moments: &[Moment],
    put: Put,
) -> anyhow::Result<()> {
    let mut tensors = checkpoint.index.tensors.iter();
    if let Some(tensor) = tensors.find(|t| slots.iter().all(|s| s.name != t.name)) {
        let folder = checkpoint.folder.display();
        anyhow::bail!("{folder} has a tensor {}, the manifest's model has not", tensor.name);
    }
    let mut jobs = Vec::new();
    for slot in slots {
        let tensor = tensor(checkpoint, slot, vocab)?;
        for rows in row_blocks(tensor)? {
            jobs.extend(moments.iter().map(|moment| (*moment, *slot, tensor, rows.clone())));
        }
        // Rows that only pad the vocabulary are not saved.
        let padding = vec![0.0; slot.numel() - tensor.numel()];
        let first = tensor.numel() / slot.cols;
        moments.iter().for_each(|moment| put(*moment, slot, first, &padding));
    }
    let (next, spare) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let (send, ready) = sync_channel(1);
        for _ in 0..4 {
            let (send, jobs, next, spare) = (send.clone(), &jobs, &next, &spare);
            scope.spawn(move || {
                let mut buffer = Buffer::default();
                while let Some((moment, slot, tensor, rows)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let mut values: Vec<f32> = take(spare).unwrap_or_default();
                    values.resize(rows.len() * slot.cols, 0.0);
                    let (rows, cols) = (rows.clone(), 0..slot.cols);
                    let first = rows.start;
                    let read =
                        checkpoint.read_by(&mut buffer, tensor, *moment, rows, cols, &mut values);
                    if send.send((*moment, *slot, first, read.map(|()| values))).is_err() {
                        return; // another tensor was damaged
                    }
                }
            });
        }
        drop(send);
        for (moment, slot, first, values) in ready {
            let values = values?;
            put(moment, slot, first, &values);
            spare.lock().unwrap_or_else(|held| held.into_inner()).push(values);
        }
        Ok(())
    })
}

fn take<T>(spare: &Mutex<Vec<T>>) -> Option<T> {
    spare.lock().unwrap_or_else(|held| held.into_inner()).pop()
}
