//! Self-attention: on tensor cores if the dtype and the width of a head allow it.

mod choice;
mod hopper;
mod kernels;
mod largest;

pub use hopper::{CHOICE, Hopper};
pub use largest::{LargestLaunch, largest_launches};

use super::args::{self, arguments};
use super::launch::{AMPERE, Grid, elements_per_move, typed, vector};
use super::{Cuda, SCRATCH};
use crate::{Attend, Tensor, Visible, op};
use base::DType;
use choice::{Key, Results, Variant};
use hopper::Selection;
use kernels::{Kernel, Kernels};
use std::ptr::{null, null_mut};

/// Limit of each side of a grid but the first.
const MOST_BLOCKS: usize = 65_535;

/// Maximum samples of `seq` rows at once with so many query heads: a launch has a block for each sample,
/// and backward a number in scratch for each head of each row.
pub fn most_samples(heads: usize, seq: usize) -> usize {
    (SCRATCH / size_of::<f32>() / heads / seq).min(MOST_BLOCKS)
}

pub(super) fn forward(cuda: &Cuda, &op::Attention { qkv, attend, y, lse }: &op::Attention) {
    let (arguments, kernels) = prepare(cuda, qkv, &attend, y.to, lse.to, &[]);
    let out = Results { tensor: y.to, parts: &[y.to.cols] };
    launch(cuda, &kernels.forward(), attend.heads.query, &arguments, out);
}

pub(super) fn backward(cuda: &Cuda, op: &op::AttentionBackward) {
    let op::AttentionBackward { dy, qkv, y, lse, attend, dqkv } = *op;
    let (common, kernels) = prepare(cuda, qkv, &attend, y, lse, &[dy, dqkv.to]);
    let delta = cuda.scratch(lse.bytes());
    let arguments = arguments!(Attention { dy, delta, dqkv, ..common });
    let d = attend.heads.dim;
    let (kernel, wide) = if vector(d, dy.dtype, [dy, y]) {
        (typed!("attention_delta_wide", dy.dtype), elements_per_move(dy.dtype))
    } else {
        (typed!("attention_delta", dy.dtype), 1)
    };
    // Lanes of a head, as the kernels have them.
    let lanes = d.div_ceil(wide).next_power_of_two().min(32);
    cuda.launch(kernel, Grid::line(lse.numel().div_ceil(256 / lanes), 256), arguments);
    let [queries, keys] = [attend.heads.query * d, attend.heads.kv * d];
    let out = Results { tensor: dqkv.to, parts: &[queries, keys, keys] };
    launch(cuda, &kernels.backward(|kernels| &kernels.kv), attend.heads.kv, &arguments, out);
    launch(cuda, &kernels.backward(|kernels| &kernels.q), attend.heads.query, &arguments, out);
}

/// Runs one of several kernels that compute the same.
fn launch(
    cuda: &Cuda,
    variants: &[Variant],
    heads: usize,
    arguments: &args::Attention,
    out: Results,
) {
    let run = |variant: &Variant| launch_one(cuda, variant, heads, arguments);
    let variant = match (&cuda.hopper, variants) {
        (Some(hopper), [first, _, ..]) => {
            let key = Key::new(first.kernel, arguments);
            &variants[choice::choose(cuda, &hopper.choices, key, variants, &run, out)]
        }
        _ => &variants[0],
    };
    run(variant);
}

/// Launches a block per tile of each of `heads` heads of each sample.
fn launch_one(cuda: &Cuda, variant: &Variant, heads: usize, arguments: &args::Attention) {
    let Variant { kernel, ping_pong } = variant;
    let seq = arguments.seq as usize;
    let samples = arguments.rows as usize / seq;
    assert!(heads.max(samples) <= MOST_BLOCKS, "{heads} heads, {samples} samples");
    let blocks = [seq.div_ceil(kernel.tile), heads, samples];
    let grid = Grid { blocks, threads: [kernel.threads, 1], shared: kernel.shared };
    match &cuda.hopper {
        Some(hopper) if kernel.mapped => {
            cuda.launch(kernel.name, grid, hopper.map_tensors(&cuda.device, arguments, *ping_pong));
        }
        _ => cuda.launch(kernel.name, grid, *arguments),
    }
}

/// Arguments of all kernels, and the kernels that fit. `more` are further tensors that kernels move
/// 16 bytes at a time.
fn prepare(
    cuda: &Cuda,
    qkv: Tensor,
    attend: &Attend,
    y: Tensor,
    lse: Tensor,
    more: &[Tensor],
) -> (args::Attention, Candidates) {
    let d = attend.heads.dim;
    let ranges = match attend.visible {
        Visible::Causal => None,
        Visible::Ranges(ranges) => Some(ranges),
    };
    let serves = attend.heads.query / attend.heads.kv;
    let arguments = arguments!(Attention {
        qkv,
        y,
        lse,
        dy: null(),
        delta: null_mut(),
        dqkv: null_mut(),
        ranges,
        slopes: attend.slopes,
        rows: qkv.rows,
        seq: attend.seq,
        heads: attend.heads.query,
        kv: attend.heads.kv,
        serves,
        inverse: if serves == 1 { 0 } else { (1usize << 32).div_ceil(serves) },
        first_head: attend.first_head,
        d,
        window: attend.window.unwrap_or(attend.seq).min(attend.seq),
        scale: attend.scale,
        drop: attend.dropout,
    });
    let fits = qkv.dtype != DType::F32
        && [qkv, y]
            .iter()
            .chain(more)
            .all(|x| x.addr().is_multiple_of(16));
    let ampere = cuda.capability >= AMPERE;
    let chosen = if fits && ampere { kernels::tensor_cores(d, qkv.dtype) } else { None };
    let hopper = cuda
        .hopper
        .as_ref()
        .filter(|_| chosen.is_some() && qkv.dtype == DType::BF16);
    let others = chosen.unwrap_or_else(|| kernels::any_width(d, qkv.dtype));
    let by_wgmma = hopper.map(|hopper| (hopper::kernels(d, others), hopper.selection));
    (arguments, Candidates { others, by_wgmma })
}

/// Kernels for one dtype and width of a head; on Hopper also those by wgmma, and their use.
struct Candidates {
    others: Kernels,
    by_wgmma: Option<(Kernels, Selection)>,
}

impl Candidates {
    /// Kernels for forward.
    fn forward(&self) -> Vec<Variant<'_>> {
        self.variants(|kernels| &kernels.forward, &[false, true])
    }

    /// Kernels for a part of backward, which has no ping-pong.
    fn backward(&self, pick: fn(&Kernels) -> &Kernel) -> Vec<Variant<'_>> {
        self.variants(pick, &[false])
    }

    /// Kernels that compute the same, mma's first; those by wgmma with each value of `ping_pong`.
    fn variants(&self, pick: fn(&Kernels) -> &Kernel, ping_pong: &[bool]) -> Vec<Variant<'_>> {
        let mma = Variant { kernel: pick(&self.others), ping_pong: false };
        let Some((kernels, selection)) = &self.by_wgmma else { return vec![mma] };
        let kernel = pick(kernels);
        if !kernel.mapped {
            return vec![mma];
        }
        let timed = ping_pong
            .iter()
            .map(|ping_pong| Variant { kernel, ping_pong: *ping_pong });
        match selection {
            Selection::Wgmma => vec![Variant { kernel, ping_pong: false }],
            Selection::PingPong => vec![Variant { kernel, ping_pong: true }],
            Selection::Timed => [mma].into_iter().chain(timed).collect(),
        }
    }
}
