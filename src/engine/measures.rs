//! Numbers of a step on request: zeros of the gradients (`log.zeros`) and norm of the master weights
//! (`log.params_norm`). Each parameter counts once over all ranks, without padding of the
//! vocabulary. The sums are queued with the step; the host reads them with its outcome.

use super::arenas::Arenas;
use super::params::{OffloadPlan, ShardedParams, ZeroCounts};
use super::scalars::Scalars;
use super::update::Update;
use base::DType;
use device::{Arena, MemoryKind, Tensor, op};
use manifest::Manifest;

/// Buffers of the numbers on request.
pub struct Measures {
    /// Zeros of each gradient of `Update`.
    pub zeros: Option<ZeroCounts>,
    weights: Option<WeightSums>,
}

/// Sums of squares of master weights, by the memory that holds these.
struct WeightSums {
    on_device: Vec<Tensor>,
    on_host: Vec<Tensor>,
    sums: Tensor,      // f32 [1, n]  the device's, then the host's
    host_sums: Tensor, // f32 [1, m]  the host's, in its memory
}

impl Measures {
    /// Reserves buffers for the numbers that the log shows. `most` is the largest number of gradients
    /// of a data-parallel rank, for which every rank reserves.
    pub fn plan(update: &Update, most: usize, m: &Manifest, arenas: &Arenas) -> Measures {
        let reserve = |arena: &Arena, len| arena.matrix(1, most, DType::F32).span(0, len);
        let zeros = m.log.zeros.then(|| {
            let [lows, highs] = [0; 2].map(|_| reserve(&arenas.inputs, update.sums()));
            ZeroCounts { lows, highs }
        });
        let weights = m.log.params_norm.then(|| {
            let (on_device, on_host): (Vec<Tensor>, Vec<Tensor>) = update
                .masters
                .iter()
                .partition(|master| master.memory() == MemoryKind::Device);
            let sums = reserve(&arenas.inputs, update.masters.len());
            let host_sums = if OffloadPlan::from_manifest(m).states {
                reserve(&arenas.staging, on_host.len())
            } else {
                arenas.staging.matrix(1, 0, DType::F32)
            };
            WeightSums { on_device, on_host, sums, host_sums }
        });
        Measures { zeros, weights }
    }

    /// Queues the count of the zeros of all gradients. Those on the host were counted as they left
    /// the device.
    pub fn count_zeros(&self, update: &Update, params: &ShardedParams, s: &Scalars) {
        let Some(counts) = self.zeros else { return };
        let be = params.be;
        for run in &update.on_device {
            counts
                .span(run.start, run.len())
                .count(be, &update.unpadded[run.clone()]);
        }
        let counted = counts.span(0, update.counted);
        be.run(op::Sum { x: counted.lows, y: s.zeros.span(0, 1).set() });
        be.run(op::Sum { x: counted.highs, y: s.zeros.span(1, 1).set() });
        params.sum_over_owners(s.zeros);
    }

    /// Queues the sum of the squares of all master weights. Called after the update.
    pub fn sum_weights(&self, params: &ShardedParams, s: &Scalars) {
        let Some(WeightSums { on_device, on_host, sums, host_sums }) = &self.weights else {
            return;
        };
        let be = params.be;
        let [device_sums, copied] = [(0, on_device.len()), (on_device.len(), on_host.len())]
            .map(|(at, n)| sums.span(at, n));
        be.run(op::SquareSums { xs: on_device, y: device_sums.set() });
        if !on_host.is_empty() {
            // An update of states on the host returns when it is complete.
            be.host()
                .run(op::SquareSums { xs: on_host, y: host_sums.set() });
            be.join_transfer(be.transfer(*host_sums, copied));
        }
        be.run(op::Sum { x: *sums, y: s.weight_squares.set() });
        params.sum_over_owners(s.weight_squares);
    }
}
