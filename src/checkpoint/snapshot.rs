//! Copy of a rank's states in host memory, taken between two steps and written while training
//! continues.

use super::save::Share;
use base::Bytes;
use engine::{Engine, StateSlice, saved_shape};
use std::collections::HashMap;
use std::ops::Range;

/// Host memory for one save, reserved once and reused.
pub struct Snapshot {
    saved: Vec<SavedSlice>,
    bytes: Vec<u8>,
}

/// Slice, and the location of its values in the snapshot.
struct SavedSlice {
    slice: StateSlice,
    /// Shape of the whole parameter.
    shape: Vec<usize>,
    range: Range<usize>,
}

/// Alignment of slices: a cache line.
const ALIGN: usize = 64;

impl Snapshot {
    /// Reserves memory for this rank's part of a checkpoint and touches it, so that a save need not
    /// allocate. Every value of the model is written by one rank. Copies in the same replica are
    /// included for comparison. States that share memory are included once.
    pub fn reserve(engine: &Engine) -> Snapshot {
        let mut saved = Vec::new();
        let mut len = 0;
        let mut places: HashMap<(usize, usize), usize> = HashMap::new();
        let store = engine.store();
        for slice in store
            .slices()
            .into_iter()
            .filter(|slice| slice.replica.data == 0)
        {
            let first = *places
                .entry((slice.addr(), slice.bytes()))
                .or_insert_with(|| {
                    let first = len;
                    len = (len + slice.bytes()).next_multiple_of(ALIGN);
                    first
                });
            let shape = saved_shape(&slice.param, store.model().vocab);
            saved.push(SavedSlice { range: first..first + slice.bytes(), slice, shape });
        }
        // A page of zeros is not allocated until something else is written.
        Snapshot { saved, bytes: vec![u8::MAX; len] }
    }

    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes.len() as u64)
    }

    /// Copies everything out of the engine. Replicas with compressed gradients average their errors
    /// first. All replicas call this after the same step.
    pub fn take(&mut self, engine: &Engine) {
        engine.average_errors();
        let store = engine.store();
        let mut end = 0;
        store.wait_gathers();
        for SavedSlice { slice, range, .. } in &self.saved {
            if range.start >= end {
                store.read(slice, 0..slice.slice.size[0], &mut self.bytes[range.clone()]);
                end = range.end;
            }
        }
    }

    /// Shares that this rank writes, or compares with those of other ranks.
    pub fn shares(&self) -> Vec<Share<'_>> {
        self.saved.iter().map(|saved| self.share(saved)).collect()
    }

    fn share<'s>(&'s self, SavedSlice { slice, shape, range }: &'s SavedSlice) -> Share<'s> {
        Share {
            name: &slice.param.name,
            number: slice.number,
            shape,
            decay: slice.param.spec.decay,
            state: slice.state,
            slice: slice.slice,
            replica: slice.replica,
            bytes: &self.bytes[range.clone()],
        }
    }
}
