//! Choice of an algorithm: of the library's proposals the fastest on the actual operands.
//!
//! Candidates give the same bits in every run: none adds up parts of the depth in C, rounded to its
//! dtype. The choice among them changes bits, so it is made once (`cache`).

use super::plan::{Operands, Plan, Products, Shape};
use crate::cuda::device::Device;
use crate::cuda::library::call;
use crate::cuda::lt::{Algorithm, Heuristic};
use crate::cuda::{Cuda, SCRATCH};
use cudarc::cublaslt::sys::{
    self, cublasLtMatmulAlgoConfigAttributes_t as Config,
    cublasLtMatmulPreferenceAttributes_t as Preference, cublasLtReductionScheme_t as Reduction,
};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Proposals of the heuristic. Each runs twice, the second time timed; the fastest `FINALISTS` are
/// then timed `RUNS` times, unless the first time was more than `HOPELESS` times the least. That is
/// 110 runs at most, while 16 proposals that are all timed `RUNS` times would take 112.
const PROPOSALS: usize = 40;
const FINALISTS: usize = 6;
const RUNS: usize = 5;
const HOPELESS: f32 = 2.0;
const _: () = assert!(2 * PROPOSALS + FINALISTS * RUNS <= 16 * (2 + RUNS));

/// Schemes to add up parts of the depth that are computed concurrently: none, or in f32 in a separate
/// step. In C itself they would be rounded to its dtype.
const REPEATABLE: [Reduction; 2] =
    [Reduction::CUBLASLT_REDUCTION_SCHEME_NONE, Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE];

impl Products {
    /// Chooses the algorithm; None for separate kernels. C is unchanged if it accumulates, otherwise
    /// overwritten.
    pub(super) fn choose(
        &self,
        cuda: &Cuda,
        plan: &Plan,
        shape: &Shape,
        on: &Operands,
        unfused: Option<&dyn Fn()>,
    ) -> Option<Algorithm> {
        let valid = |candidate: &Option<Algorithm>| match candidate {
            Some(algorithm) => self.runs(&cuda.device, plan, algorithm),
            None => unfused.is_some(),
        };
        let Some(algorithms) = &self.algorithms else {
            return self
                .proposals(&cuda.device, plan, shape)
                .find(|one| valid(&Some(*one)));
        };
        let name = shape.to_string();
        if let Some(candidate) = algorithms.find(&name).filter(valid) {
            return candidate;
        }
        let proposals = self.proposals(&cuda.device, plan, shape).map(Some);
        let candidates: Vec<_> = proposals
            .filter(valid)
            .chain(unfused.map(|_| None))
            .collect();
        match &candidates[..] {
            [] => None,
            [only] => *only,
            _ => {
                let fastest = self.fastest(cuda, plan, on, unfused, &candidates);
                // A device that fails meanwhile has timed nothing.
                if cuda.device.failed() { fastest } else { algorithms.keep(&name, fastest, valid) }
            }
        }
    }

    /// Candidate with the least median time; of equals the first. A step's operands come from memory, so
    /// each run first overwrites the L2 cache with scratch, which is larger than Hopper's 50 MB.
    fn fastest(
        &self,
        cuda: &Cuda,
        plan: &Plan,
        on: &Operands,
        unfused: Option<&dyn Fn()>,
        candidates: &[Option<Algorithm>],
    ) -> Option<Algorithm> {
        let device = &cuda.device;
        let sums: Vec<_> = on
            .accumulated_outputs()
            .map(|x| (x, cuda.contents(x)))
            .collect();
        let run = |candidate: &Option<Algorithm>| match (candidate, unfused) {
            (Some(algorithm), _) => self.multiply(cuda, plan, algorithm, on) == 0,
            (None, Some(unfused)) => {
                unfused();
                true
            }
            (None, None) => false,
        };
        let median = |candidate, runs| {
            device.median_ms(
                runs,
                || cuda.memory.clear(device, cuda.memory.workspace, SCRATCH),
                || {
                    run(candidate);
                },
            )
        };
        // The first run may load code.
        let tried = candidates
            .iter()
            .filter(|one| run(one))
            .map(|one| (median(one, 1), one));
        let timed = finalists(tried.collect())
            .into_iter()
            .map(|one| (median(one, RUNS), *one));
        let best = timed
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(candidates[0], |(_, one)| one);
        for (x, bytes) in sums {
            cuda.memory.upload(device, &bytes, x);
        }
        self.timed.set(self.timed.get() + 1);
        best
    }

    /// Whether the library can run an algorithm for this plan, with the same bits every time.
    fn runs(&self, device: &Device, plan: &Plan, algorithm: &Algorithm) -> bool {
        let mut found = MaybeUninit::zeroed();
        let mut reduction = u32::MAX;
        let mut written = 0;
        let [a, b, c] = plan.layouts;
        // SAFETY: the handles are the library's, kept until `close`, and the algorithm is one of its own,
        // or read from a file of such, which this check is for; the result is written to `found`.
        let checked = self.try_call(device, |api| unsafe {
            let to = found.as_mut_ptr();
            let plan = plan.descriptor;
            call!(api, cublasLtMatmulAlgoCheck(self.handle, plan, a, b, c, c, algorithm, to))
        });
        // SAFETY: the algorithm as above; at most the u32's size is written to the live variable.
        let queried = self.try_call(device, |api| unsafe {
            let key = Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME;
            let to = (&raw mut reduction).cast::<c_void>();
            let bytes = size_of::<u32>();
            call!(
                api,
                cublasLtMatmulAlgoConfigGetAttribute(algorithm, key, to, bytes, &mut written)
            )
        });
        let fits = checked == 0 && Heuristic::read(&found).workspace <= self.workspace.bytes;
        // The preference asks for repeatable sums; a kernel family without this attribute has no
        // reduction.
        let repeatable = REPEATABLE.map(|scheme| scheme as u32).contains(&reduction);
        fits && (queried != 0 || repeatable)
    }

    /// Proposals of the library's heuristic, best first. Equal in every run on the same GPU with the
    /// same library.
    fn proposals(
        &self,
        device: &Device,
        plan: &Plan,
        shape: &Shape,
    ) -> impl Iterator<Item = Algorithm> + use<> {
        let doing = "choosing an algorithm";
        let mut preference = null_mut();
        // SAFETY: the handle is written to the live variable.
        self.call(device, doing, |api| unsafe {
            call!(api, cublasLtMatmulPreferenceCreate(&mut preference))
        });
        let prefer = |key, value: *const c_void, bytes| {
            // SAFETY: the preference is the library's, which copies the bytes of the value: below, each
            // is the address and the size of a live variable.
            self.call(device, doing, |api| unsafe {
                call!(api, cublasLtMatmulPreferenceSetAttribute(preference, key, value, bytes))
            })
        };
        let room = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        prefer(room, (&raw const self.workspace.bytes).cast(), size_of::<usize>());
        let [a, b, c, ..] = shape.alignments.map(|bytes| bytes as u32);
        let mask = REPEATABLE
            .iter()
            .fold(0, |mask, scheme| mask | *scheme as u32);
        for (key, value) in [
            (Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, mask),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
        ] {
            prefer(key, (&raw const value).cast(), size_of::<u32>());
        }
        let mut found = [const { MaybeUninit::zeroed() }; PROPOSALS];
        let mut count = 0;
        // A status other than 0 means no proposal.
        //
        // SAFETY: the handles are the library's; at most `PROPOSALS` results are written to `found`,
        // which has as many, and their number to `count`.
        self.try_call(device, |api| unsafe {
            let [a, b, c] = plan.layouts;
            let plan = plan.descriptor;
            let most = PROPOSALS as c_int;
            let to = found.as_mut_ptr().cast();
            call!(
                api,
                cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    plan,
                    a,
                    b,
                    c,
                    c,
                    preference,
                    most,
                    to,
                    &mut count,
                )
            )
        });
        // SAFETY: the preference is the library's, and used no more.
        self.call(device, doing, |api| unsafe {
            call!(api, cublasLtMatmulPreferenceDestroy(preference))
        });
        let proposed = found
            .map(|one| Heuristic::read(&one))
            .into_iter()
            .take(count.max(0) as usize);
        proposed
            .filter(|one| one.status == 0)
            .map(|one| one.algorithm)
    }
}

/// Candidates that are timed again, by their first times: of equals the first.
fn finalists<T>(mut tried: Vec<(f32, T)>) -> Vec<T> {
    tried.sort_by(|a, b| a.0.total_cmp(&b.0));
    let longest = HOPELESS * tried.first().map_or(0.0, |fastest| fastest.0);
    let near = tried
        .into_iter()
        .take(FINALISTS)
        .take_while(|(time, _)| *time <= longest);
    near.map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_few_are_timed_again() {
        let tried = [(3.0, 'a'), (2.0, 'b'), (4.1, 'c'), (2.0, 'd'), (4.0, 'e')];
        assert_eq!(finalists(tried.to_vec()), ['b', 'd', 'a', 'e'], "c takes twice as long");
        let many: Vec<(f32, usize)> = (0..PROPOSALS).map(|i| (1.0, i)).collect();
        assert_eq!(finalists(many), [0, 1, 2, 3, 4, 5]);
        assert!(finalists(Vec::<(f32, char)>::new()).is_empty());
    }
}
