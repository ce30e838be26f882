//! Arguments of the ops of AdamW, the loss scaler and skipped steps.

use super::{InPlace, Out, Tensor};
use base::decay_factor;

/// AdamW update (Loshchilov & Hutter 2019), with decoupled decay first, as in PyTorch.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    pub weight_decay: f32,
    /// Factor of the step; weight decay is not scaled.
    pub lr_scale: f32,
}

/// 8-bit numbers: number i is the value of `codes[i]` in a map of `dynamic_map`, times the scale of
/// its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    /// u8 [1, n].
    pub codes: Tensor,
    /// f32 [1, n / block].
    pub scales: Tensor,
}

impl Coded {
    /// Smallest block, which divides all others.
    pub const SMALLEST: usize = 16;
}

/// Arguments of an AdamW update of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct AdamWUpdate {
    pub rule: AdamW,
    pub grad: Tensor,
    pub master: InPlace,
    pub m: InPlace,
    pub v: InPlace,
    /// None if it is the master weight.
    pub weight: Option<Out>,
}

impl AdamWUpdate {
    /// Weight that the master weight is rounded into; itself if there is no other.
    pub fn weight(&self) -> Tensor {
        self.weight.map_or(self.master.0, |out| out.to)
    }
}

impl AdamW {
    /// Factor that weight decay applies to a weight, 1 − lr·weight_decay.
    pub fn keep(&self) -> f32 {
        decay_factor(self.lr, self.weight_decay)
    }
}

/// Rules of the loss scaler (Megatron's DynamicGradScaler). The scale doubles after `window`
/// updates in a row. It halves at each overflow from the `hysteresis`th since it last doubled.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// Factor of an increase: 2, or 1 for a constant scale, whose counters change too.
    pub growth: f32,
    pub window: u64,
    pub hysteresis: u64,
    /// Minimum of the scale. An overflow at the minimum makes the scaler stuck: no later step
    /// updates.
    pub min: f32,
}

/// State of the loss scaler, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Scaler {
    /// f32 [1, 1].
    pub scale: Tensor,
    /// i64 [1, 5]: updates in a row; overflows left before it halves; updates; skipped steps;
    /// whether it is stuck.
    pub counts: Tensor,
}

/// Upper limits of a step's loss and gradient norm. A step above them is skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLimits {
    pub loss: f32,
    pub norm: f32,
}
