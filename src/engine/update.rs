//! Update at the end of a step: clips by the global norm, advances the loss scale, applies the
//! rule.

use super::params::{BucketState, GradSums, Residence, ShardedParams, ZeroCounts};
use super::rule::{OptimizerRule, Place, Step};
use super::scalars::Scalars;
use super::scaler;
use super::states::{MASTER, ParamStates, rows_without_padding};
use device::{InPlace, MemoryKind, Scaling, StepLimits, Tensor, op};
use manifest::Manifest;
use model::{Layout, TpSplit};
use std::ops::Range;

/// Per-step arguments of `Update::run`.
pub struct StepArgs {
    /// Loss scale, or NaN.
    pub scale: Tensor,
    pub lr: f64,
    pub limits: Option<StepLimits>,
}

/// Inputs of the update that are the same for every rule.
pub struct Update {
    /// Gradients that this rank counts in the norm, then those that another rank counts.
    grads: Vec<Tensor>,
    /// Their parameters, buckets, and elements of the layout.
    pub names: Vec<String>,
    places: Vec<(usize, Range<usize>)>,
    /// Runs of gradients that are on the device at the end of a step.
    pub on_device: Vec<Range<usize>>,
    /// Number of gradients that this rank counts.
    pub counted: usize,
    /// The gradients without padding of the vocabulary.
    pub unpadded: Vec<Tensor>,
    /// Master weights of the counted gradients, without padding.
    pub masters: Vec<Tensor>,
    scaling: Scaling,
    max_norm: f32,
    /// Scratch of the rule.
    scratch: Tensor,
}

impl Update {
    /// Collects the gradients of a tensor-parallel rank.
    pub fn new(states: &[ParamStates], tp_rank: usize, m: &Manifest, scratch: Tensor) -> Update {
        let (counted_elsewhere, counted): (Vec<&ParamStates>, Vec<&ParamStates>) = states
            .iter()
            .filter(|p| !p.part.is_empty())
            .partition(|p| is_counted_elsewhere(p, tp_rank));
        let mut grads = Vec::new();
        let mut names = Vec::new();
        let mut places = Vec::new();
        let mut on_device: Vec<Range<usize>> = Vec::new();
        let mut unpadded = Vec::new();
        let mut masters = Vec::new();
        for (i, p) in counted.iter().chain(&counted_elsewhere).enumerate() {
            let first = p.param.offset;
            let len = len_without_padding(p, tp_rank, m.model.vocab);
            grads.push(p.grad);
            unpadded.push(p.grad.span(0, len));
            if i < counted.len() {
                masters.push(p.get(MASTER).span(0, len));
            }
            names.push(p.param.name.clone());
            places.push((p.param.bucket, first + p.part.start..first + p.part.end));
            if p.grad.memory() == MemoryKind::Device {
                match on_device.last_mut().filter(|run| run.end == i) {
                    Some(run) => run.end += 1,
                    None => on_device.push(i..i + 1),
                }
            }
        }
        Update {
            grads,
            names,
            places,
            on_device,
            counted: counted.len(),
            unpadded,
            masters,
            scaling: scaler::scaling(m),
            max_norm: m.optimizer.clip().unwrap_or(f32::INFINITY),
            scratch,
        }
    }

    /// Number of gradients with separate sums of squares.
    pub fn sums(&self) -> usize {
        self.grads.len()
    }

    /// Gradients that are on the host at the end of a step, by bucket, as views of the bucket's
    /// device buffer. Each has the destination of its sum of squares in `sums`, and of the number of
    /// its zeros in `zeros`.
    pub fn host_grads(
        &self,
        buckets: &[BucketState],
        layout: &Layout,
        sums: Tensor,
        zeros: Option<ZeroCounts>,
    ) -> Vec<Vec<GradSums>> {
        let mut found: Vec<Vec<GradSums>> = buckets.iter().map(|_| Vec::new()).collect();
        for (i, (number, range)) in self.places.iter().enumerate() {
            let bucket = &buckets[*number];
            if bucket.grads.residence == Residence::Host {
                let first = range.start - layout.buckets[*number].range.start;
                let grad = bucket.grads.whole.span(first, range.len());
                let unpadded = grad.span(0, self.unpadded[i].numel());
                let zeros = zeros.map(|counts| (unpadded, counts.span(i, 1)));
                found[*number].push(GradSums { grad, squares: sums.span(i, 1), zeros });
            }
        }
        found
    }

    /// Clips by the norm over all ranks and updates. If the norm is not finite, or the loss or norm
    /// exceeds the limits, no rank updates.
    pub fn run(
        &self,
        params: &ShardedParams,
        rule: &dyn OptimizerRule,
        s: &Scalars,
        args: StepArgs,
    ) {
        let StepArgs { scale, lr, limits } = args;
        let be = params.be;
        for run in &self.on_device {
            be.run(op::SquareSums {
                xs: &self.grads[run.clone()],
                y: s.sums.span(run.start, run.len()).set(),
            });
        }
        be.run(op::Sum { x: s.sums.span(0, self.counted), y: s.norm.set() });
        params.sum_over_owners(s.norm);
        be.run(op::Clip { sums: s.norm, scale, max_norm: self.max_norm, y: s.clip.set() });
        let factor = InPlace(s.rule.span(0, 1));
        be.run(op::LossScaleStep {
            scaling: self.scaling,
            scaler: InPlace(s.scaler),
            factor,
            status: s.status.set(),
        });
        if let Some(limits) = limits {
            let loss = s.loss;
            let norm = s.clip.span(0, 1);
            let counts = InPlace(s.scaler.counts);
            let status = InPlace(s.status);
            be.run(op::SkipAbove { limits, loss, norm, counts, factor, status });
        }
        let step = self.step(params, s, lr as f32);
        rule.begin(&step);
        match &params.offload {
            None => rule.update(&step, params.states()),
            Some(offload) => {
                params.finish_copies();
                offload.update(&step, rule, params.states());
            }
        }
    }

    fn step<'a>(&self, params: &'a ShardedParams, s: &Scalars, lr: f32) -> Step<'a> {
        Step {
            be: params.be,
            at: Place {
                groups: &params.groups,
                layout: &params.layout,
                sharded: params.is_sharded(),
            },
            lr,
            scalars: s.rule,
            updates: s.scaler.counts.span(2, 1),
            scratch: self.scratch,
            masters: None,
        }
    }
}

/// Whether another rank counts a parameter's sum of squares.
fn is_counted_elsewhere(states: &ParamStates, tp_rank: usize) -> bool {
    let repeated = states.param.spec.split == TpSplit::Whole && tp_rank > 0;
    repeated || states.param.tied_copy
}

/// Elements of this rank's part of a parameter, without padding of the vocabulary, which is at the
/// end of the last tensor-parallel shares.
fn len_without_padding(p: &ParamStates, tp_rank: usize, vocab: usize) -> usize {
    let end = rows_without_padding(&p.param, tp_rank, vocab) * p.param.cols;
    p.part.end.min(end).saturating_sub(p.part.start)
}
