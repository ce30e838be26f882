//! Update at the end of a step: clips by the global norm, advances the loss scale, applies the
//! rule.

use super::late::PendingUpdate;
use super::params::{BucketState, ShardedParams, Squares};
use super::rule::{OptimizerRule, Place, Step};
use super::scalars::Scalars;
use super::scaler;
use super::states::ParamStates;
use super::update_norm::{UpdateNorm, is_counted_elsewhere};
use device::{Home, Scaling, StepLimits, Tensor, op};
use manifest::Manifest;
use model::Layout;
use std::ops::Range;

/// Per-step arguments of `Update::run`.
pub struct At {
    /// Loss scale, or NaN.
    pub scale: Tensor,
    pub lr: f64,
    pub limits: Option<StepLimits>,
    /// Whether the norm of the update is computed.
    pub norm: bool,
    /// Whether the update is delayed, with all its scalars.
    pub late: bool,
}

/// Inputs of the update that are the same for every rule.
pub struct Update {
    /// Gradients that this rank counts in the norm, then those that another rank counts.
    grads: Vec<Tensor>,
    /// Their parameters, buckets, and elements of the layout.
    names: Vec<String>,
    places: Vec<(usize, Range<usize>)>,
    /// Runs of gradients that are on the device at the end of a step.
    on_device: Vec<Range<usize>>,
    counted: usize,
    scaling: Scaling,
    max_norm: f32,
    /// Scratch of the rule.
    scratch: Tensor,
    /// Accumulator of the update's norm.
    norm: Option<UpdateNorm>,
}

impl Update {
    /// Collects the gradients of a tensor-parallel rank.
    pub fn new(
        states: &[ParamStates],
        tp_rank: usize,
        m: &Manifest,
        scratch: Tensor,
        norm: Option<UpdateNorm>,
    ) -> Update {
        let elsewhere = |kept: &&ParamStates| is_counted_elsewhere(kept, tp_rank);
        let owned = states.iter().filter(|kept| !kept.part.is_empty());
        let (elsewhere, counted): (Vec<_>, Vec<_>) = owned.partition(elsewhere);
        let all = || counted.iter().chain(&elsewhere);
        let offset = |kept: &ParamStates, at: usize| kept.param.offset + at;
        let place = |kept: &&ParamStates| {
            (kept.param.bucket, offset(kept, kept.part.start)..offset(kept, kept.part.end))
        };
        let grads: Vec<Tensor> = all().map(|kept| kept.grad).collect();
        let mut on_device: Vec<Range<usize>> = Vec::new();
        for (i, _) in grads.iter().enumerate().filter(|(_, g)| g.home() == Home::Device) {
            match on_device.last_mut().filter(|run| run.end == i) {
                Some(run) => run.end += 1,
                None => on_device.push(i..i + 1),
            }
        }
        Update {
            grads,
            names: all().map(|kept| kept.param.name.clone()).collect(),
            places: all().map(place).collect(),
            on_device,
            counted: counted.len(),
            scaling: scaler::scaling(m),
            max_norm: m.optimizer.clip().unwrap_or(f32::INFINITY),
            scratch,
            norm,
        }
    }

    /// Number of gradients with separate sums of squares.
    pub fn sums(&self) -> usize {
        self.grads.len()
    }

    /// Parameters of those gradients.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Gradients that are on the host at the end of a step, by bucket, as views of the bucket's
    /// device buffer. Each has the destination of its sum of squares in `sums`.
    pub fn squares(&self, buckets: &[BucketState], layout: &Layout, sums: Tensor) -> Squares {
        let mut all: Squares = buckets.iter().map(|_| Vec::new()).collect();
        for (i, (number, range)) in self.places.iter().enumerate() {
            let bucket = &buckets[*number];
            if bucket.host_grads.is_some() {
                let first = range.start - layout.buckets[*number].range.start;
                let grad = bucket.grads.span(first, range.len());
                all[*number].push((vec![grad], sums.span(i, 1)));
            }
        }
        all
    }

    /// Clips by the norm over all ranks and updates. If the norm is not finite, or the loss or norm
    /// exceeds the limits, no rank updates.
    pub fn run(&self, params: &ShardedParams, rule: &dyn OptimizerRule, s: &Scalars, at: At) {
        let At { scale, lr, limits, norm, late } = at;
        let be = params.backend();
        for run in &self.on_device {
            be.run(op::SquareSums {
                xs: &self.grads[run.clone()],
                y: s.sums.span(run.start, run.len()).set(),
            });
        }
        be.run(op::Sum { x: s.sums.span(0, self.counted), y: s.norm.set() });
        params.sum_over_owners(s.norm);
        be.run(op::Clip { sums: s.norm, scale, max_norm: self.max_norm, y: s.clip.set() });
        let factor = s.rule.span(0, 1);
        be.run(op::LossScaleStep {
            scaling: self.scaling,
            scaler: s.scaler,
            factor,
            status: s.status,
        });
        if let Some(limits) = limits {
            let (loss, norm, scaler) = (s.loss, s.clip.span(0, 1), s.scaler);
            be.run(op::SkipAbove { limits, loss, norm, scaler, factor, status: s.status });
        }
        let norm = self.norm.as_ref().filter(|_| norm);
        norm.iter().for_each(|norm| norm.begin(be));
        let step = Step { norm, ..self.step(params, s, lr as f32) };
        rule.begin(&step);
        match params.late() {
            Some((kept, offload)) if late => {
                params.finish_copies();
                kept.keep(offload, &step);
            }
            _ => apply(params, rule, &step),
        }
        if let Some(norm) = norm {
            norm.finish(be, s.change);
            params.sum_over_owners(s.change);
        }
    }

    /// Applies a delayed update from a checkpoint, whose gradients are in place, before a step.
    pub fn resume(
        &self,
        params: &ShardedParams,
        rule: &dyn OptimizerRule,
        s: &Scalars,
        pending: PendingUpdate,
    ) {
        params.backend().upload(bytemuck::cast_slice(&pending.scalars), s.rule);
        apply(params, rule, &self.step(params, s, pending.lr));
        params.begin_all_gather();
    }

    fn step<'a>(&self, params: &'a ShardedParams, s: &Scalars, lr: f32) -> Step<'a> {
        Step {
            be: params.backend(),
            at: Place {
                groups: params.groups(),
                layout: params.layout(),
                sharded: params.is_sharded(),
            },
            lr,
            scalars: s.rule,
            updates: s.scaler.counts.span(2, 1),
            scratch: self.scratch,
            masters: None,
            norm: None,
        }
    }
}

fn apply(params: &ShardedParams, rule: &dyn OptimizerRule, step: &Step) {
    match params.offload() {
        None => rule.update(step, params.states()),
        Some(offload) => {
            params.finish_copies();
            offload.update(step, rule, params.states());
        }
    }
}
