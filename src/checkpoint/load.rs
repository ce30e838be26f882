//! From a checkpoint into an engine, and the proof that it arrived.

use super::digest::{Digest, Values};
use super::index::{Progress, Tensor};
use super::read::Checkpoint;
use super::snapshot::saved_shape;
use crate::base::DType;
use crate::engine::{Engine, Moment, Sampler};
use crate::model::Slot;
use anyhow::{Context, ensure};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Reads everything back into the engine, and compares the live weights with those saved.
pub fn load(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let slots: Vec<&Slot> = engine.slots().collect();
    let vocab = engine.vocab();
    read_all(checkpoint, &slots, vocab, &Moment::ALL, &mut |moment, slot, values| {
        engine.write(moment, slot, values);
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
    read_all(&checkpoint, &slots, vocab, &[Moment::Master], &mut |_, slot, values| {
        sampler.write(slot, values);
    })?;
    Ok(checkpoint.index.progress)
}

/// The live weights in device memory are bit for bit those that were there before the save.
pub fn verify_live(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<()> {
    let dtype = engine.live_dtype();
    let mut bytes: Vec<u32> = Vec::new();
    for slot in engine.slots() {
        let tensor = tensor(checkpoint, slot, engine.vocab())?;
        let size = slot.numel() * dtype.size();
        bytes.resize(size.div_ceil(4), 0);
        let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut bytes)[..size];
        engine.read_live(slot, bytes);
        let saved = &bytes[..tensor.numel() * dtype.size()];
        let digest = Digest::of_values(
            0,
            match dtype {
                DType::BF16 => Values::Bf16(bytemuck::cast_slice(saved)),
                _ => Values::F32(bytemuck::cast_slice(saved)),
            },
        );
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

/// Reads ahead on threads of its own, and gives what was read to `put`.
fn read_all(
    checkpoint: &Checkpoint,
    slots: &[&Slot],
    vocab: usize,
    moments: &[Moment],
    put: &mut dyn FnMut(Moment, &Slot, &[f32]),
) -> anyhow::Result<()> {
    let unexpected =
        checkpoint.index.tensors.iter().find(|t| slots.iter().all(|s| s.name != t.name));
    if let Some(tensor) = unexpected {
        let folder = checkpoint.folder.display();
        anyhow::bail!("{folder} has a tensor {}, the manifest's model has not", tensor.name);
    }
    let mut jobs = Vec::new();
    for slot in slots {
        let tensor = tensor(checkpoint, slot, vocab)?;
        jobs.extend(moments.iter().map(|moment| (*moment, *slot, tensor)));
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (send, ready) = sync_channel(1);
        for _ in 0..3 {
            let (send, jobs, next) = (send.clone(), &jobs, &next);
            scope.spawn(move || {
                while let Some((moment, slot, tensor)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let values = checkpoint.whole(tensor, *moment).map(|mut values| {
                        values.resize(slot.numel(), 0.0); // rows that pad the vocabulary
                        values
                    });
                    if send.send((*moment, *slot, values)).is_err() {
                        return; // another tensor was damaged
                    }
                }
            });
        }
        drop(send);
        for (moment, slot, values) in ready {
            put(moment, slot, &values?);
        }
        Ok(())
    })
}
