//! Scalar results of a step in device memory, and their host representation.

use super::scaler;
use base::DType;
use device::{Arena, Scaler, Tensor, op};

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub loss: f64,
    /// The z-loss, which is also minimised; 0 if it is off.
    pub z_loss: f64,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// The step updated nothing: the gradient was not finite, or `spiked`.
    pub skipped: bool,
    /// Loss or norm exceeded the step's limits (`Engine::set_limits`).
    pub spiked: bool,
    /// Skipped, and no later step can update, because the loss scale is at its minimum.
    pub stuck: bool,
    /// Loss scale of the next step.
    pub loss_scale: f64,
    /// Zeros of the gradients; 0 without `log.zeros`.
    pub zeros: u64,
    /// Norm of the weights after the step; 0 without `log.params_norm`.
    pub params_norm: f64,
}

impl Outcome {
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }
}

/// Numbers of sums of squares.
pub struct SumCounts {
    /// Reduced gradients of which this rank owns a part.
    pub sums: usize,
    /// Largest number of those among the data-parallel ranks.
    pub most: usize,
    /// This rank's own gradients, where they are compressed.
    pub local: usize,
}

/// Scalar results of a step. Those that the host reads are contiguous: one transfer per step.
pub struct Scalars {
    pub outcome: Tensor,        // f32 [1, 64 + n + m]  everything that the host reads
    pub norm: Tensor,           // f32 [1, 1]  Σ g², then over all ranks
    pub loss: Tensor,           // f32 [1, 1]
    pub clip: Tensor,           // f32 [1, 2]  norm and factor of the gradient
    pub rule: Tensor,           // f32 [1, 3]  that factor, then the optimizer rule's own scalars
    pub status: Tensor,         // f32 [1, 1]  status of the step: 1 skipped, 2 stuck, 3 spiked
    pub z_loss: Tensor,         // f32 [1, 1]
    pub scaler: Scaler,         // f32 [1, 1], i64 [1, 5]
    pub zeros: Tensor,          // f32 [1, 2]  lower and higher part (`op::CountZeros`)
    pub weight_squares: Tensor, // f32 [1, 1]
    pub sums: Tensor,           // f32 [1, n]  Σ g² of each gradient owned
    pub local_sums: Tensor, // f32 [1, m]  Σ g² of this rank's own gradients, where they are compressed
    pub digests: Tensor,    // i64 [ranks, weights]  of a replica check, by rank of a group
}

impl Scalars {
    /// Floats of an outcome before the sums, which start at a multiple of 256 bytes.
    pub const BEFORE_SUMS: usize = 64;

    /// Reserves the sums of squares, and room for those of the rank with most.
    pub fn plan(counts: SumCounts, digests: Tensor, arena: &Arena) -> Scalars {
        let SumCounts { sums, most, local } = counts;
        let outcome = arena
            .matrix(1, Scalars::BEFORE_SUMS + most + local, DType::F32)
            .span(0, Scalars::BEFORE_SUMS + sums + local);
        Scalars {
            outcome,
            norm: outcome.span(0, 1),
            loss: outcome.span(1, 1),
            clip: outcome.span(2, 2),
            rule: outcome.span(3, 3),
            status: outcome.span(6, 1),
            z_loss: outcome.span(8, 1),
            zeros: outcome.span(9, 2),
            weight_squares: outcome.span(11, 1),
            scaler: Scaler { scale: outcome.span(7, 1), counts: scaler::counts(arena) },
            sums: outcome.span(Scalars::BEFORE_SUMS, sums),
            local_sums: outcome.span(Scalars::BEFORE_SUMS + sums, local),
            digests,
        }
    }

    /// Reads an outcome by the offsets above.
    pub fn read(outcome: &[f32]) -> Outcome {
        let [loss, grad_norm, status, loss_scale, z] = [1, 2, 6, 7, 8].map(|place| outcome[place]);
        let [low_zeros, high_zeros, weight_squares] = [9, 10, 11].map(|place| outcome[place]);
        Outcome {
            loss: loss.into(),
            z_loss: z.into(),
            grad_norm: grad_norm.into(),
            skipped: status > 0.0,
            spiked: status == 3.0,
            stuck: status == 2.0,
            loss_scale: loss_scale.into(),
            zeros: low_zeros as u64 + op::ZEROS_PER_HIGH * high_zeros as u64,
            params_norm: f64::from(weight_squares).sqrt(),
        }
    }
}
