//! Which algorithm: of those the library proposes, the fastest on the operands themselves.
//!
//! Candidates give the same bits run after run: none that adds up parts of the depth in C, rounded
//! to its dtype. Which of them is taken changes bits, so it is taken once (`choices`).

use super::plan::{Operands, Plan, Products, Shape};
use crate::device::cuda::Cuda;
use crate::device::cuda::driver::Device;
use crate::device::cuda::lt::{self, Algorithm, Heuristic};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Proposals asked for, and times that each is run; but once if it then takes twice as long as the
/// best so far.
const PROPOSALS: usize = 16;
const RUNS: usize = 5;
const HOPELESS: f32 = 2.0;

impl Products {
    /// None: apart. Leaves C as it was where it accumulates, and overwritten where it does not.
    pub(super) fn choose(
        &self,
        cuda: &Cuda,
        plan: &Plan,
        shape: &Shape,
        on: &Operands,
        apart: Option<&dyn Fn()>,
    ) -> Option<Algorithm> {
        let valid = |way: &Option<Algorithm>| match way {
            Some(algorithm) => self.runs(&cuda.device, plan, algorithm),
            None => apart.is_some(),
        };
        let Some(choices) = &self.choices else {
            return self.proposals(&cuda.device, plan, shape).find(|one| valid(&Some(*one)));
        };
        let name = shape.to_string();
        if let Some(way) = choices.of(&name).filter(valid) {
            return way;
        }
        let proposals = self.proposals(&cuda.device, plan, shape).map(Some);
        let ways: Vec<_> = proposals.filter(valid).chain(apart.map(|_| None)).collect();
        match &ways[..] {
            [] => None,
            [only] => *only,
            _ => {
                let fastest = self.fastest(cuda, plan, on, apart, &ways);
                // A device that fails meanwhile has timed nothing.
                if cuda.device.failed() { fastest } else { choices.keep(&name, fastest, valid) }
            }
        }
    }

    /// The way whose median time is least; of equals the first.
    fn fastest(
        &self,
        cuda: &Cuda,
        plan: &Plan,
        on: &Operands,
        apart: Option<&dyn Fn()>,
        ways: &[Option<Algorithm>],
    ) -> Option<Algorithm> {
        let device = &cuda.device;
        let sums = on.accumulated().map(|x| {
            let mut bytes = vec![0; x.bytes()];
            cuda.memory.download(device, x, &mut bytes);
            (x, bytes)
        });
        let sums: Vec<_> = sums.collect();
        let run = |way: &Option<Algorithm>| match (way, apart) {
            (Some(algorithm), _) => self.multiply(cuda, plan, algorithm, on) == 0,
            (None, Some(apart)) => {
                apart();
                true
            }
            (None, None) => false,
        };
        let median = |way, runs| {
            let mut times = device.time(runs, || {
                run(way);
            });
            times.sort_by(f32::total_cmp);
            times[runs / 2]
        };
        let mut best = (f32::INFINITY, ways[0]);
        for way in ways {
            // The first run may load code, and finds cold caches.
            if run(way) && median(way, 1) < HOPELESS * best.0 {
                let time = median(way, RUNS);
                best = if time < best.0 { (time, *way) } else { best };
            }
        }
        for (x, bytes) in sums {
            cuda.memory.upload(device, &bytes, x);
        }
        self.timed.set(self.timed.get() + 1);
        best.1
    }

    /// Whether the library can run an algorithm for this plan, with the same bits every time.
    fn runs(&self, device: &Device, plan: &Plan, algorithm: &Algorithm) -> bool {
        let (mut found, mut reduction, mut written) = (Heuristic::default(), u32::MAX, 0);
        let [a, b, c] = plan.layouts;
        let checked = self.ask(device, |api| unsafe {
            let to = &mut found;
            let plan = plan.descriptor;
            (api.cublasLtMatmulAlgoCheck)(self.handle, plan, a, b, c, c, algorithm, to)
        });
        let told = self.ask(device, |api| unsafe {
            let to = (&raw mut reduction).cast::<c_void>();
            let bytes = size_of::<u32>();
            (api.cublasLtMatmulAlgoConfigGetAttribute)(
                algorithm,
                lt::REDUCTION,
                to,
                bytes,
                &mut written,
            )
        });
        let fits = checked == 0 && found.workspace <= self.room.bytes;
        fits && told == 0 && [lt::REDUCE_NOT, lt::REDUCE_IN_F32].contains(&reduction)
    }

    /// What the library's heuristic proposes, best first: the same in every run on the same GPU
    /// with the same library.
    fn proposals(
        &self,
        device: &Device,
        plan: &Plan,
        shape: &Shape,
    ) -> impl Iterator<Item = Algorithm> + use<> {
        let doing = "choosing an algorithm";
        let mut preference = null_mut();
        self.call(device, doing, |api| unsafe {
            (api.cublasLtMatmulPreferenceCreate)(&mut preference)
        });
        let prefer = |key, value: *const c_void, bytes| {
            self.call(device, doing, |api| unsafe {
                (api.cublasLtMatmulPreferenceSetAttribute)(preference, key, value, bytes)
            })
        };
        prefer(lt::MAX_WORKSPACE, (&raw const self.room.bytes).cast(), size_of::<usize>());
        let reductions = lt::REDUCE_IN_F32;
        prefer(lt::REDUCTIONS, (&raw const reductions).cast(), size_of::<u32>());
        let [a, b, c, ..] = shape.alignments;
        for (i, bytes) in [a, b, c, c].into_iter().enumerate() {
            let bytes = bytes as u32;
            prefer(lt::ALIGNMENT_A + i as c_int, (&raw const bytes).cast(), size_of::<u32>());
        }
        let (mut found, mut count) = ([Heuristic::default(); PROPOSALS], 0);
        // A status of its own means that there is none.
        self.ask(device, |api| unsafe {
            let [a, b, c] = plan.layouts;
            (api.cublasLtMatmulAlgoGetHeuristic)(
                self.handle,
                plan.descriptor,
                a,
                b,
                c,
                c,
                preference,
                PROPOSALS as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        });
        self.call(device, doing, |api| unsafe {
            (api.cublasLtMatmulPreferenceDestroy)(preference)
        });
        let proposed = found.into_iter().take(count.max(0) as usize);
        proposed.filter(|one| one.status == 0).map(|one| one.algorithm)
    }
}
