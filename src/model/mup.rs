//! µP (`model.mup`; Yang et al. 2022, Tensor Programs V, table 8): what is multiplied in a model that
//! is r = hidden / base_hidden times as wide as that of the base, so that every activation, and what
//! a step changes of it, is as large as there. A learning rate found there then holds here.
//!
//! | of | initial deviation | steps of AdamW, Adafactor | of Muon | what it gives |
//! |---|---|---|---|---|
//! | embeddings of tokens, positions | 1 | 1 | – | embedding_multiplier |
//! | matrices of blocks | 1/√r | 1/r | 1/√r, or 1 scaled as `original` | 1 |
//! | head, tied or not | 1 | 1 | – | output_multiplier / r |
//! | norms, biases | – | 1 | – | 1 |
//!
//! Scores of attention are √base_head_dim / head_dim times a query's and a key's product. What a decay
//! takes of a weight, lr·weight_decay, is the same at every width, as in MuAdamW of the authors.
//!
//! A step ought to have a spectral norm like √(rows / cols), which width leaves as it is (Yang, Simon
//! & Bernstein 2023). Steps of elements of one size, as AdamW's, have one like r, of singular values
//! of one size 0.2·√max(rows, cols), as Muon's, like √r.

use super::weights::ParamSpec;
use manifest::Model;

/// What is alike in all steps that an optimizer makes of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSize {
    /// The size of their elements: AdamW's, Adafactor's.
    Elements,
    /// The same, and their singular values are alike: Muon's, matched to AdamW's.
    OrthogonalElements,
    /// The spectral norm √max(1, rows / cols): Muon's of origin.
    SpectralNorm,
}

/// Its width as a multiple of the base's, r.
fn ratio(m: &Model) -> f32 {
    m.mup.map_or(1.0, |mup| m.hidden as f32 / mup.base_hidden as f32)
}

impl ParamSpec {
    /// What its initial standard deviation is multiplied by.
    pub fn init_factor(&self, m: &Model) -> f32 {
        if self.is_block_matrix() { 1.0 / ratio(m).sqrt() } else { 1.0 }
    }

    /// What steps of it are multiplied by, but not its decay.
    pub fn step_factor(&self, m: &Model, steps: StepSize) -> f32 {
        match steps {
            _ if !self.is_block_matrix() => 1.0,
            StepSize::Elements => 1.0 / ratio(m),
            StepSize::OrthogonalElements => 1.0 / ratio(m).sqrt(),
            StepSize::SpectralNorm => 1.0,
        }
    }
}

/// What the sum of token's and position's embedding is multiplied by, if by anything.
pub fn embedding_factor(m: &Model) -> Option<f32> {
    m.mup.map(|mup| mup.embedding_multiplier).filter(|factor| *factor != 1.0)
}

/// What logits are multiplied by, before any cap, if by anything.
pub fn logit_factor(m: &Model) -> Option<f32> {
    m.mup.map(|mup| mup.output_multiplier / ratio(m)).filter(|factor| *factor != 1.0)
}

/// What the product of a query and a key is multiplied by.
pub fn score_factor(m: &Model) -> f32 {
    let dim = m.heads().dim as f32;
    let base = m.mup.and_then(|mup| mup.base_head_dim);
    base.map_or_else(|| 1.0 / dim.sqrt(), |base| (base as f32).sqrt() / dim)
}
