//! Read-only f32 weights for inference. Every bucket of the rank is whole at all times.

use super::arenas::Arenas;
use super::params::{StateRange, StateSlice, slice_states};
use super::states::StateSpec;
use base::DType;
use device::{Backend, Tensor};
use manifest::{Manifest, Model, Precision};
use model::{Direction, Layout, MicroBatch, ModelShard, ParamStore, Params};

/// Weights of a rank that has neither gradients nor an optimizer.
pub struct Frozen<'a> {
    be: &'a dyn Backend,
    model: Model,
    layout: Layout,
    /// Memory of each bucket.
    flat: Vec<Tensor>,
    params: Vec<Params>,
}

impl<'a> Frozen<'a> {
    /// Copy of the manifest with f32 precision and without loss scaling.
    pub(super) fn manifest(m: &Manifest) -> Manifest {
        Manifest { precision: Precision::F32, loss_scale: None, ..m.clone() }
    }

    /// Reserves the weights. They are zero until every slice is written.
    pub(super) fn lay_out(
        be: &'a dyn Backend,
        model: &Model,
        shard: ModelShard,
        arenas: &Arenas,
    ) -> Self {
        let layout = Layout::new(model, shard);
        let flat: Vec<Tensor> = layout
            .buckets
            .iter()
            .map(|b| arenas.weights.matrix(1, b.range.len(), DType::F32))
            .collect();
        let params = layout
            .buckets
            .iter()
            .zip(&flat)
            .map(|(b, flat)| Params::new(b, *flat))
            .collect();
        Frozen { be, model: model.clone(), layout, flat, params }
    }

    /// Weights of this rank, as rectangles of the whole model's matrices.
    pub fn slices(&self) -> Vec<StateSlice> {
        let ranges = self.layout.params().map(|param| {
            let bucket = &self.layout.buckets[param.bucket];
            let at = param.tensor(bucket, self.flat[param.bucket]);
            StateRange { param, state: StateSpec::master(), range: 0..param.numel(), at, data: 0 }
        });
        slice_states(&self.layout, &self.model, ranges)
    }

    /// Writes rows of a weight, starting at row `first`.
    pub fn write(&self, slice: &StateSlice, first: usize, bytes: &[u8]) {
        self.be.upload(bytes, slice.rows_of(first, bytes));
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl ParamStore for Frozen<'_> {
    fn begin_pass(&self, _: Direction) {}
    fn weights(&self, bucket: usize) -> &Params {
        &self.params[bucket]
    }
    fn grads(&self, _: usize, _: MicroBatch) -> &Params {
        unreachable!("frozen weights have no gradients")
    }
    fn grads_done(&self, _: usize, _: MicroBatch) {
        unreachable!("frozen weights have no gradients")
    }
}
