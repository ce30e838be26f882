//! PowerSGD (Vogels, Karimireddy & Jaggi 2019, algorithm 1): replicas reduce two low-rank factors
//! of each matrix's gradient instead of the gradient. Each adds its approximation error to its next
//! gradient.
//!
//! For a rank's share [n, m] of a matrix, with g the gradient of its own samples and e its error:
//!
//! | | | sent |
//! |---|---|---|
//! | 1 | M = N·g / loss scale + e, for N replicas; Q made orthonormal; P = M·Q | 4·r·n |
//! | 2 | P summed over replicas, made orthonormal; Q = Mᵀ·P | 4·r·m |
//! | 3 | Q summed over replicas, / N; the gradient is P·Qᵀ · loss scale; e = M − P·Qᵀ | |
//!
//! This equals PyTorch's powerSGD_hook, in which each replica has the gradient of the mean loss of
//! its samples: hence N·g. P and Q depend on the replicas only through sums over them. Replacing every error by
//! the mean of the errors therefore changes no later gradient. A checkpoint stores that mean, so
//! any number of replicas can resume from it.
//!
//! Uncompressed gradients of a block are sent with P. All ranks first agree on whether every
//! gradient is finite. If one is not, no rank changes a state, and the step is skipped.

#[cfg(test)]
mod tests;

use super::arenas::Arenas;
use super::params::{BucketState, ShardedParams};
use super::rule::{ERROR, Q};
use super::scalars::Scalars;
use super::states::ParamStates;
use base::DType;
use comm::Collective;
use device::{Arena, Backend, Gemm, InPlace, Tensor, op};
use manifest::{Manifest, PowerSgd};
use model::{Bucket, Layout, Module, Param};
use std::collections::HashMap;
use std::ops::Range;

/// Compressed exchange of one rank.
pub struct Compression {
    settings: PowerSgd,
    buckets: Vec<CompressedBucket>,
    /// Whole gradients of this rank, and the names of their parameters.
    grads: Vec<Tensor>,
    pub names: Vec<String>,
    /// f32 [1, 1]: Σ g² over all gradients of all ranks.
    total: Tensor,
    /// f32 [1, 2] each; the second elements are 1 / loss scale, and loss scale. NaN if a gradient
    /// is not finite.
    unscale: Tensor,
    rescale: Tensor,
}

/// Gradients of a block.
struct CompressedBucket {
    matrices: Vec<Matrix>,
    /// Uncompressed gradients, and their places in `first`.
    plain: Vec<(Tensor, Tensor)>,
    /// First sum: P of every matrix, one after the other, and `plain`.
    first: Tensor,
    /// Second sum: Q of every matrix.
    second: Tensor,
}

/// Compressed matrix; all tensors are f32.
struct Matrix {
    grad: Tensor,  // [n, m]
    error: Tensor, // [n, m]  a state; M in steps 1 to 3
    q: Tensor,     // [m, r]  a state
    p: Tensor,     // [n, r]
    basis: Tensor, // [m, r]  Q during the exchange
}

impl Compression {
    /// Plans the exchange. None if no matrix has PowerSGD states.
    pub fn plan(
        layout: &Layout,
        buckets: &[BucketState],
        states: &[ParamStates],
        m: &Manifest,
        arenas: &Arenas,
    ) -> Option<Compression> {
        let settings = m.topology.compression?;
        let by_offset: HashMap<usize, &ParamStates> =
            states.iter().map(|p| (p.param.offset, p)).collect();
        let buckets = || layout.buckets.iter().zip(buckets);
        let blocks = buckets().filter(|(bucket, _)| bucket.module == Module::Block);
        // Memory that is free between the last backward and the next forward.
        let compressed: Vec<CompressedBucket> = arenas.workspace.temporary(|arena| {
            blocks
                .map(|(bucket, memory)| CompressedBucket::plan(bucket, memory, &by_offset, arena))
                .collect()
        });
        if compressed.iter().all(|bucket| bucket.matrices.is_empty()) {
            return None;
        }
        let mut grads = Vec::new();
        let mut names = Vec::new();
        for (bucket, memory) in buckets() {
            for param in &bucket.params {
                grads.push(param.tensor(bucket, memory.grads.whole));
                names.push(param.name.clone());
            }
        }
        let scalars = |len| arenas.inputs.matrix(1, len, DType::F32);
        Some(Compression {
            settings,
            buckets: compressed,
            grads,
            names,
            total: scalars(1),
            unscale: scalars(2),
            rescale: scalars(2),
        })
    }

    /// Number of this rank's gradients with separate sums of squares.
    pub fn sums(&self) -> usize {
        self.grads.len()
    }

    /// Whether the step after `steps` steps is compressed.
    pub fn applies(&self, steps: u64) -> bool {
        steps >= self.settings.start_step
    }

    /// Whether any of the first `steps` steps was compressed.
    pub fn has_applied(&self, steps: u64) -> bool {
        steps > self.settings.start_step
    }

    /// Sums the blocks' gradients over replicas. Returns the scale of the gradients, f32 [1, 1]. It
    /// is NaN if a gradient of any rank is not finite; no state is changed then.
    pub fn run(&self, params: &ShardedParams, s: &Scalars) -> Tensor {
        let be = params.be;
        let group = &*params.groups.grad_sum;
        self.agree_on_finite(params, s);
        let replicas = group.size() as f32;
        let unscale = self.unscale.span(1, 1);
        let scale = self.rescale.span(1, 1);
        let mut sums_of_p = Vec::new();
        for bucket in &self.buckets {
            bucket.project(be, replicas, unscale);
            sums_of_p.push(group.begin(Collective::AllReduce(bucket.first)));
        }
        let mut sums_of_q = Vec::new();
        for (bucket, pending) in self.buckets.iter().zip(sums_of_p) {
            group.finish(pending);
            bucket.project_back(be);
            sums_of_q.push(group.begin(Collective::AllReduce(bucket.second)));
        }
        for (bucket, pending) in self.buckets.iter().zip(sums_of_q) {
            group.finish(pending);
            bucket.rebuild(be, 1.0 / replicas, unscale, scale);
        }
        scale
    }

    /// All-reduces whether every gradient of every rank is finite.
    fn agree_on_finite(&self, params: &ShardedParams, s: &Scalars) {
        let be = params.be;
        let groups = &params.groups;
        be.run(op::SquareSums { xs: &self.grads, y: s.local_sums.set() });
        be.run(op::Sum { x: s.local_sums, y: self.total.set() });
        groups.tensor.all_reduce(self.total);
        groups.sum_over_stages_and_replicas(self.total);
        be.run(op::Clip {
            sums: self.total,
            scale: s.scaler.scale,
            max_norm: f32::INFINITY,
            y: self.unscale.set(),
        });
        be.run(op::Clip {
            sums: self.total,
            scale: self.unscale.span(1, 1),
            max_norm: f32::INFINITY,
            y: self.rescale.set(),
        });
    }

    /// Replaces every error by the mean over replicas.
    pub fn average_errors(&self, params: &ShardedParams) {
        let be = params.be;
        let group = &*params.groups.grad_sum;
        let one = self.total;
        be.upload(bytemuck::bytes_of(&1.0f32), one);
        for matrix in self.buckets.iter().flat_map(|bucket| &bucket.matrices) {
            group.all_reduce(matrix.error);
            be.run(op::Axpy {
                a: 1.0 / group.size() as f32,
                factor: one,
                x: matrix.error,
                y: matrix.error.set(),
            });
        }
    }
}

impl CompressedBucket {
    fn plan(
        bucket: &Bucket,
        memory: &BucketState,
        by_offset: &HashMap<usize, &ParamStates>,
        arena: &Arena,
    ) -> CompressedBucket {
        let mut low_rank = Vec::new();
        let mut plain = Vec::<Range<usize>>::new();
        let mut runs_on = false;
        for param in &bucket.params {
            match by_offset.get(&param.offset).and_then(|p| error_and_q(p)) {
                Some(states) => low_rank.push((param, states)),
                None if runs_on => plain.last_mut().expect("a run").end = param.range().end,
                None => plain.push(param.range()),
            }
            runs_on = low_rank
                .last()
                .is_none_or(|(last, _)| last.offset != param.offset);
        }
        let rank = |param: &Param, q: Tensor| q.numel() / param.cols;
        let sum = |elements: &dyn Fn(&Param, usize) -> usize| -> usize {
            low_rank
                .iter()
                .map(|(param, [_, q])| elements(param, rank(param, *q)))
                .sum()
        };
        let rest: usize = plain.iter().map(ExactSizeIterator::len).sum();
        let ps = sum(&|param, rank| param.rows * rank);
        let first = arena.matrix(1, ps + rest, DType::F32);
        let second = arena.matrix(1, sum(&|param, rank| param.cols * rank), DType::F32);
        let [mut top, mut bottom] = [0, 0];
        let next = |flat: Tensor, top: &mut usize, [rows, cols]: [usize; 2]| {
            *top += rows * cols;
            as_matrix(flat.span(*top - rows * cols, rows * cols), rows, cols)
        };
        let matrices = low_rank
            .iter()
            .map(|(param, [error, q])| {
                let n = param.rows;
                let m = param.cols;
                let r = rank(param, *q);
                Matrix {
                    grad: param.tensor(bucket, memory.grads.whole),
                    error: as_matrix(*error, n, m),
                    q: as_matrix(*q, m, r),
                    p: next(first, &mut top, [n, r]),
                    basis: next(second, &mut bottom, [m, r]),
                }
            })
            .collect();
        let mut at_first = ps;
        let plain = plain
            .iter()
            .map(|run| {
                at_first += run.len();
                let grads = memory
                    .grads
                    .whole
                    .span(run.start - bucket.range.start, run.len());
                (grads, first.span(at_first - run.len(), run.len()))
            })
            .collect();
        CompressedBucket { matrices, plain, first, second }
    }

    /// Step 1: adds the error to the gradient, computes P, and copies the uncompressed gradients.
    fn project(&self, be: &dyn Backend, replicas: f32, unscale: Tensor) {
        for matrix in &self.matrices {
            be.run(op::Axpy {
                a: replicas,
                factor: unscale,
                x: matrix.grad,
                y: matrix.error.add(),
            });
            be.run(op::Copy { x: matrix.q, y: matrix.basis.set() });
        }
        let bases: Vec<Tensor> = self.matrices.iter().map(|matrix| matrix.basis).collect();
        be.run(op::Orthogonalize { xs: InPlace(&bases) });
        for Matrix { error, p, basis, .. } in &self.matrices {
            be.run(op::Gemm::plain(Gemm::NN, *error, *basis, p.set()));
        }
        for (grads, sum) in &self.plain {
            be.run(op::Copy { x: *grads, y: sum.set() });
        }
    }

    /// Step 2: computes Q from the summed P.
    fn project_back(&self, be: &dyn Backend) {
        let ps: Vec<Tensor> = self.matrices.iter().map(|matrix| matrix.p).collect();
        be.run(op::Orthogonalize { xs: InPlace(&ps) });
        for Matrix { error, p, basis, .. } in &self.matrices {
            be.run(op::Gemm::plain(Gemm::TN, *error, *p, basis.set()));
        }
    }

    /// Step 3: computes the gradient from the summed Q, and the new error.
    fn rebuild(&self, be: &dyn Backend, share: f32, unscale: Tensor, scale: Tensor) {
        for Matrix { grad, error, q, p, basis } in &self.matrices {
            be.run(op::Axpy { a: share, factor: scale, x: *basis, y: basis.set() });
            be.run(op::Axpy { a: 1.0, factor: unscale, x: *basis, y: q.set() });
            be.run(op::Gemm::plain(Gemm::NT, *p, *basis, grad.set()));
            be.run(op::Axpy { a: -1.0, factor: unscale, x: *grad, y: error.add() });
        }
        for (grads, sum) in &self.plain {
            be.run(op::Copy { x: *sum, y: grads.set() });
        }
    }
}

/// Error and Q of a compressed parameter.
fn error_and_q(states: &ParamStates) -> Option<[Tensor; 2]> {
    let find = |name| states.iter().find(|(state, ..)| state.name == name);
    let (.., error) = find(ERROR)?;
    let (.., q) = find(Q)?;
    Some([error, q])
}

/// View of the same elements as a matrix.
fn as_matrix(x: Tensor, rows: usize, cols: usize) -> Tensor {
    assert_eq!(x.numel(), rows * cols, "elements of {x:?}");
    Tensor::at(x.addr(), rows, cols, x.dtype)
}
