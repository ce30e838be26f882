//! µP (`model.mup`; Yang et al. 2022, Tensor Programs V, table 8): factors for a model that is r =
//! hidden / base_hidden times as wide as the base model. With them every activation, and its change
//! per step, has the same magnitude as in the base model. A learning rate tuned on the base model
//! transfers.
//!
//! | weight | initial deviation | steps of AdamW, Adafactor | of Muon | output |
//! |---|---|---|---|---|
//! | embeddings of tokens, positions | 1 | 1 | – | embedding_multiplier |
//! | matrices of blocks | 1/√r | 1/r | 1/√r, or 1 scaled as `original` | 1 |
//! | head, tied or not | 1 | 1 | – | output_multiplier / r |
//! | norms, biases | – | 1 | – | 1 |
//!
//! Attention scores are √base_head_dim / head_dim times the dot product of query and key. Weight
//! decay, lr·weight_decay, is the same at every width, as in the authors' MuAdamW.
//!
//! The spectral norm of a step should scale like √(rows / cols), which does not change with width
//! (Yang, Simon & Bernstein 2023). For steps with elements of equal magnitude, as AdamW's, it
//! scales like r. For steps with singular values of equal magnitude 0.2·√max(rows, cols), as
//! Muon's, it scales like √r.

use super::weights::ParamSpec;
use manifest::Model;

/// Invariant of an optimizer's steps on matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSize {
    /// Magnitude of the elements: AdamW, Adafactor.
    Elements,
    /// Magnitude of the elements, with equal singular values: Muon, matched to AdamW.
    OrthogonalElements,
    /// Spectral norm √max(1, rows / cols): Muon as published.
    SpectralNorm,
}

/// Width as a multiple of the base width, r.
fn ratio(m: &Model) -> f32 {
    m.mup
        .map_or(1.0, |mup| m.hidden as f32 / mup.base_hidden as f32)
}

impl ParamSpec {
    /// Factor of its initial standard deviation.
    pub fn init_factor(&self, m: &Model) -> f32 {
        if self.is_block_matrix() { 1.0 / ratio(m).sqrt() } else { 1.0 }
    }

    /// Factor of its steps; weight decay is not scaled.
    pub fn step_factor(&self, m: &Model, steps: StepSize) -> f32 {
        match steps {
            _ if !self.is_block_matrix() => 1.0,
            StepSize::Elements => 1.0 / ratio(m),
            StepSize::OrthogonalElements => 1.0 / ratio(m).sqrt(),
            StepSize::SpectralNorm => 1.0,
        }
    }
}

/// Factor of the sum of token and position embedding; None if it is 1.
pub fn embedding_factor(m: &Model) -> Option<f32> {
    m.mup
        .map(|mup| mup.embedding_multiplier)
        .filter(|factor| *factor != 1.0)
}

/// Factor of logits before any cap; None if it is 1.
pub fn logit_factor(m: &Model) -> Option<f32> {
    m.mup
        .map(|mup| mup.output_multiplier / ratio(m))
        .filter(|factor| *factor != 1.0)
}

/// Factor of the dot product of a query and a key.
pub fn score_factor(m: &Model) -> f32 {
    let dim = m.heads().dim as f32;
    let base = m.mup.and_then(|mup| mup.base_head_dim);
    base.map_or_else(|| 1.0 / dim.sqrt(), |base| (base as f32).sqrt() / dim)
}
