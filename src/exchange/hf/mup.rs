//! Folds µP's factors (`model::mup`), which no Hugging Face family has, into the weights, so that an
//! exported model computes the same as the run's.
//!
//! | factor of | goes into |
//! |---|---|
//! | embeddings | the embeddings; of a tied head it is taken out of the last norm again |
//! | logits | the last norm |
//! | scores | the norm of queries, or else the queries' rows |

use manifest::Model;
use model::mup::{embedding_factor, logit_factor, score_factor};
use model::{ParamSpec, Weight};

/// Multiplies the values of a whole weight, rows [rows, cols] as a checkpoint has them.
pub fn fold(spec: &ParamSpec, m: &Model, values: &mut [f32]) {
    let embedding = embedding_factor(m).unwrap_or(1.0);
    let head = if m.tied_head { embedding } else { 1.0 };
    let usual = 1.0 / (m.heads().dim as f32).sqrt();
    let (factor, rows) = match spec.weight {
        Weight::TokenEmbed | Weight::PosEmbed => (embedding, None),
        Weight::LnfScale | Weight::LnfShift => (logit_factor(m).unwrap_or(1.0) / head, None),
        Weight::QNorm => (score_factor(m) / usual, None),
        Weight::QkvW if !m.qk_norm => (score_factor(m) / usual, Some(spec.cols)),
        Weight::QkvB if !m.qk_norm => (score_factor(m) / usual, Some(1)),
        _ => return,
    };
    let fused = spec.fused(m);
    let folds = |at: usize| rows.is_none_or(|width| fused.matrix_of(at / width) == 0);
    let folded = values
        .iter_mut()
        .enumerate()
        .filter(|(at, _)| factor != 1.0 && folds(*at));
    folded.for_each(|(_, value)| *value *= factor);
}
