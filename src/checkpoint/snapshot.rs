//! What a rank is to save, copied to host memory between two steps, to be written while training
//! goes on.

use super::digest::Values;
use super::save::Share;
use crate::base::{Bytes, DType};
use crate::engine::{Engine, Moment, Piece, saved_shape};

/// Host memory for one save, reserved once and used again.
pub struct Snapshot {
    saved: Vec<Saved>,
    kept: [Vec<f32>; 3],
    /// bf16 and fp16 training: the live weights' bits. In f32 the live weight is the master weight.
    live: Option<Vec<u16>>,
    live_dtype: DType,
}

/// A piece, and where it lies in the snapshot.
struct Saved {
    piece: Piece,
    shape: Vec<usize>,
    first: usize,
}

impl Snapshot {
    /// Reserves memory for what this rank writes of a checkpoint, and touches it: a save finds it
    /// there. Every value of the model is written by one rank; copies of it in the same replica of
    /// the model are taken too, to be compared.
    pub fn reserve(engine: &Engine) -> Snapshot {
        let (mut saved, mut len) = (Vec::new(), 0);
        for piece in engine.pieces().into_iter().filter(|piece| piece.replica.data == 0) {
            let (shape, first) = (saved_shape(&piece.slot, engine.model().vocab), len);
            len += piece.numel();
            saved.push(Saved { piece, shape, first });
        }
        let live_dtype = engine.live_dtype();
        let half = live_dtype != DType::F32;
        // A page of zeros is not memory yet until something else is written.
        let kept = [(); 3].map(|()| vec![f32::NAN; len]);
        Snapshot { saved, kept, live: half.then(|| vec![u16::MAX; len]), live_dtype }
    }

    pub fn bytes(&self) -> Bytes {
        let live = self.live.as_ref().map_or(0, |live| 2 * live.len());
        Bytes((12 * self.kept[0].len() + live) as u64)
    }

    /// Copies everything out of the engine.
    pub fn take(&mut self, engine: &Engine) {
        engine.settle();
        for Saved { piece, first, .. } in &self.saved {
            let range = *first..first + piece.numel();
            for moment in Moment::ALL {
                engine.read(moment, piece, &mut self.kept[moment as usize][range.clone()]);
            }
            if let Some(live) = &mut self.live {
                let bits = bytemuck::cast_slice_mut(&mut live[range]);
                engine.read_live(piece, 0..piece.size[0], bits);
            }
        }
    }

    /// What this rank writes, or compares with what others write.
    pub fn shares(&self) -> Vec<Share<'_>> {
        self.saved.iter().map(|saved| self.share(saved)).collect()
    }

    fn share<'s>(&'s self, saved: &'s Saved) -> Share<'s> {
        let Saved { piece, shape, first } = saved;
        let range = *first..first + piece.numel();
        let kept = [0, 1, 2].map(|i| &self.kept[i][range.clone()]);
        Share {
            name: &piece.slot.name,
            number: piece.number,
            shape,
            decay: piece.slot.spec.decay,
            at: piece.at,
            size: piece.size,
            replica: piece.replica,
            kept,
            live: match &self.live {
                Some(live) => Values::halves(self.live_dtype, &live[range]),
                None => Values::F32(kept[0]),
            },
        }
    }
}
