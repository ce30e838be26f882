//! The network's forward and backward, written once for every device and every split.
//!
//! Letters in shape comments: N tokens in a micro-batch (n = N / tp under sequence parallelism), T
//! tokens in a sample, H hidden, F feed-forward, A heads, V padded vocabulary. A capital is the
//! whole, a lower-case letter this rank's share (f = F / tp, a, v). q and qkv are this rank's
//! columns of queries, and of fused queries, keys and values (`base::Heads`).
//!
//! Does not know ZeRO, schedules, files, nor the size of the world.

mod block;
mod buffers;
mod init;
mod inputs;
mod fp8_weight;
pub mod layers;
mod layout;
mod named_size;
pub mod mup;
mod kv_cache;
mod stage;
mod tables;
mod tensor_parallel;
mod weights;

pub use buffers::{BlockArenas, GradBuffers};
pub use fp8_weight::Fp8Weight;
pub use inputs::Inputs;
pub use kv_cache::KvCache;
pub use layout::{Bucket, Chunk, Layout, ModelShard, Param, Params};
pub use named_size::named_size_note;
pub use stage::{Activations, Direction, MicroBatch, ParamStore, Stage};
pub use tables::Tables;
pub use tensor_parallel::TensorParallel;
pub use weights::{
    LayerCosts, Module, ParamSpec, TpSplit, Weight, costs, flops_per_token, parameters, table,
};

use base::{DType, Heads, rng};
use device::{Backend, Dropout, Norm};
use manifest::NormKind;

/// Context of a forward or backward: device, tensor-parallel group, model. First argument of the
/// functions of this crate.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    pub be: &'a dyn Backend,
    pub tp: TensorParallel<'a>,
    pub model: &'a manifest::Model,
    /// Dtype of weights and activations.
    pub dtype: DType,
    pub recompute: manifest::Recompute,
    /// Seed of the run. The random keys of dropout are derived from it.
    pub seed: u64,
    /// Whether dropout is on.
    pub training: bool,
    /// Coefficient of the z-loss, in training.
    pub z_loss: Option<f32>,
    /// Workspace for fp8 operands. If present, the blocks' products are computed in fp8.
    pub fp8: Option<layers::fp8::Fp8Pass>,
    /// Number of earlier tokens whose keys and values are in the KV cache (`KvCache`).
    pub cached_tokens: usize,
}

impl Cx<'_> {
    /// This rank's share of the attention heads.
    pub fn heads(&self) -> Heads {
        self.model.heads().share(self.tp.group.size())
    }

    /// Normalisation of the model, with its weights for scale and shift.
    fn norm(&self, w: &Params, [scale, shift]: [Weight; 2]) -> Norm {
        let scale = w[scale];
        let eps = self.model.layernorm_eps;
        match self.model.norm {
            NormKind::Layer => Norm::Layer { scale, shift: w[shift], eps },
            NormKind::Rms => Norm::Rms { scale, eps },
        }
    }

    /// Dropout of one call site ("block.3.attn"), for this rank's rows outside tensor-parallel
    /// regions.
    fn dropout(&self, site: &str, rate: f32, inputs: &Inputs) -> Dropout {
        Dropout {
            rate: if self.training { rate } else { 0.0 },
            key: rng::key(self.seed, &format!("dropout.{site}")),
            first_sample: inputs.first_sample,
            seq: inputs.seq,
            first_row: self.tp.first_row(inputs.rows()),
        }
    }
}
