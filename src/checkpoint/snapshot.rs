//! A run's tensors copied to host memory between two steps, to be written while training goes on.

use super::digest::Values;
use super::save::Share;
use crate::base::{Bytes, DType};
use crate::engine::{Engine, Moment};
use crate::model::{Slot, Weight};

/// Host memory for one save, reserved once and used again.
pub struct Snapshot {
    slots: Vec<Saved>,
    kept: [Vec<f32>; 3],
    /// bf16 training: the live weights' bits. In f32 the live weight is the master weight.
    live: Option<Vec<u16>>,
}

/// Where a weight lies in the snapshot.
struct Saved {
    name: String,
    decay: bool,
    shape: Vec<usize>,
    first: usize,
    numel: usize,
}

impl Snapshot {
    /// Reserves memory for what the engine holds, and touches it: a save finds it there.
    pub fn reserve(engine: &Engine) -> Snapshot {
        let (mut slots, mut len) = (Vec::new(), 0);
        for slot in engine.slots() {
            let (name, decay) = (slot.name.clone(), slot.spec.decay);
            let shape = saved_shape(slot, engine.vocab());
            slots.push(Saved { name, decay, shape, first: len, numel: slot.numel() });
            len += slot.numel();
        }
        let half = engine.live_dtype() == DType::BF16;
        // A page of zeros is not memory yet until something else is written.
        let kept = [(); 3].map(|()| vec![f32::NAN; len]);
        Snapshot { slots, kept, live: half.then(|| vec![u16::MAX; len]) }
    }

    pub fn bytes(&self) -> Bytes {
        let live = self.live.as_ref().map_or(0, |live| 2 * live.len());
        Bytes((12 * self.kept[0].len() + live) as u64)
    }

    /// Copies everything out of the engine.
    pub fn take(&mut self, engine: &Engine) {
        for (slot, saved) in engine.slots().zip(&self.slots) {
            let range = saved.first..saved.first + saved.numel;
            for moment in Moment::ALL {
                engine.read(moment, slot, &mut self.kept[moment as usize][range.clone()]);
            }
            if let Some(live) = &mut self.live {
                engine.read_live(slot, 0..slot.rows, bytemuck::cast_slice_mut(&mut live[range]));
            }
        }
    }

    /// What this rank writes.
    pub fn shares(&self) -> Vec<Share<'_>> {
        let share = |saved| self.share(saved);
        self.slots.iter().map(share).collect()
    }

    fn share<'s>(&'s self, saved: &'s Saved) -> Share<'s> {
        let numel: usize = saved.shape.iter().product();
        let range = saved.first..saved.first + numel;
        let kept = [0, 1, 2].map(|i| &self.kept[i][range.clone()]);
        Share {
            name: &saved.name,
            shape: &saved.shape,
            decay: saved.decay,
            at: [0, 0],
            size: [numel / saved.shape[saved.shape.len() - 1], *saved.shape.last().unwrap_or(&1)],
            kept,
            live: match &self.live {
                Some(live) => Values::Bf16(&live[range]),
                None => Values::F32(kept[0]),
            },
        }
    }
}

/// The shape in a checkpoint: norms and biases are vectors, and the rows that only pad the
/// vocabulary are left out. They depend on the topology, and no loss depends on them.
pub fn saved_shape(slot: &Slot, vocab: usize) -> Vec<usize> {
    match slot.spec.weight {
        Weight::TokenEmbed | Weight::HeadW => vec![vocab, slot.spec.cols],
        _ if slot.spec.rows == 1 => vec![slot.spec.cols],
        _ => vec![slot.spec.rows, slot.spec.cols],
    }
}
