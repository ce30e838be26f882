//! Choice between kernels of attention that compute the same: the fastest on the actual operands, timed
//! once and stored with the algorithms of matrix products.
//!
//! A kernel whose results differ from the first one's is not used.

use super::kernels::Kernel;
use crate::Tensor;
use crate::cuda::Cuda;
use crate::cuda::args;
use crate::cuda::lt::Algorithm;
use half::bf16;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

/// Timed runs of each kernel.
const RUNS: usize = 5;

/// Maximum difference of two kernels' results, relative to the largest number: several roundings of bf16.
const TOLERANCE: f32 = 1.0 / 32.0;

/// Kernel, and whether its two warpgroups issue products alternately.
#[derive(Clone, Copy)]
pub struct Variant<'a> {
    pub kernel: &'a Kernel,
    pub ping_pong: bool,
}

/// Everything that the time of a kernel depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    kernel: &'static str,
    samples: u64,
    seq: u32,
    heads: u32,
    kv: u32,
    window: u32,
    ranges: bool,
    alibi: bool,
    drop: bool,
}

impl Key {
    pub fn new(kernel: &Kernel, arguments: &args::Attention) -> Key {
        Key {
            kernel: kernel.name,
            samples: arguments.rows / u64::from(arguments.seq),
            seq: arguments.seq,
            heads: arguments.heads,
            kv: arguments.kv,
            window: arguments.window,
            ranges: !arguments.ranges.is_null(),
            alibi: !arguments.slopes.is_null(),
            drop: arguments.drop.bound > 0,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { kernel, samples, seq, heads, kv, window, .. } = self;
        write!(f, "{kernel} of {samples} x {seq}, heads {heads} / {kv}, window {window}")?;
        let words = [(self.ranges, "ranges"), (self.alibi, "alibi"), (self.drop, "dropout")];
        words
            .iter()
            .filter(|(has, _)| *has)
            .try_for_each(|(_, word)| write!(f, ", {word}"))
    }
}

/// Tensor that a kernel writes.
#[derive(Clone, Copy)]
pub struct Results<'a> {
    pub tensor: Tensor,
    /// Columns of each part that is compared on its own: queries, keys and values differ in size.
    pub parts: &'a [usize],
}

/// Choices made so far.
pub type Chosen = RefCell<HashMap<Key, usize>>;

/// Index of the kernel to use. The first is used without a file to keep choices in. `run` overwrites
/// `out` with one kernel's results.
pub fn choose(
    cuda: &Cuda,
    chosen: &Chosen,
    key: Key,
    variants: &[Variant],
    run: &dyn Fn(&Variant),
    out: Results,
) -> usize {
    if let Some(index) = chosen.borrow().get(&key) {
        return *index;
    }
    let Some(cache) = cuda.products.cache() else { return 0 };
    let index = |stored: Option<Algorithm>| Some(stored?.data[0] as usize);
    let valid = |stored: &Option<Algorithm>| index(*stored).is_some_and(|i| i < variants.len());
    let name = key.to_string();
    let known = cache.find(&name).filter(valid);
    let stored = known.unwrap_or_else(|| {
        let fastest = fastest(cuda, &name, variants, run, out);
        // The file has eight words for an algorithm; the first is the index.
        let stored = Some(Algorithm { data: [fastest as u64, 0, 0, 0, 0, 0, 0, 0] });
        // A device that fails meanwhile has timed nothing.
        if cuda.device.failed() { stored } else { cache.keep(&name, stored, valid) }
    });
    let index = index(stored).unwrap_or(0);
    chosen.borrow_mut().insert(key, index);
    index
}

/// Index of the kernel with the least median time, of those that agree with the first.
fn fastest(
    cuda: &Cuda,
    name: &str,
    variants: &[Variant],
    run: &dyn Fn(&Variant),
    out: Results,
) -> usize {
    let mut best = (f32::INFINITY, 0);
    let mut first = Vec::new();
    for (index, variant) in variants.iter().enumerate() {
        run(variant);
        let results = cuda.contents(out.tensor);
        if index == 0 {
            first = results;
        } else if let Some(why) = disagreement(&first, &results, out.parts) {
            let kernel = variant.kernel.name;
            tracing::warn!("{kernel} is not used, because {why} ({name}): report this");
            continue;
        }
        let time = cuda.device.median_ms(RUNS, || (), || run(variant));
        best = if time < best.0 { (time, index) } else { best };
    }
    best.1
}

/// Describes how results in bf16 differ; None if they agree. A row's columns are divided into `parts`,
/// each of which is compared relative to its own largest number. Both results may have the same numbers
/// that are not finite, in a part of the tensor that another kernel writes.
fn disagreement(ours: &[u8], theirs: &[u8], parts: &[usize]) -> Option<String> {
    let number = |word: &[u8]| bf16::from_bits(u16::from_le_bytes([word[0], word[1]])).to_f32();
    let row: usize = parts.iter().sum();
    let mut begin = 0;
    for columns in parts {
        let range = 2 * begin..2 * (begin + columns);
        let mut largest = 0.0f32;
        let mut most = 0.0f32;
        for (ours, theirs) in ours.chunks_exact(2 * row).zip(theirs.chunks_exact(2 * row)) {
            let ours = ours[range.clone()].chunks_exact(2).map(number);
            let theirs = theirs[range.clone()].chunks_exact(2).map(number);
            for (x, y) in ours.zip(theirs) {
                if x.is_finite() {
                    largest = largest.max(x.abs());
                }
                if x.to_bits() == y.to_bits() {
                    continue;
                }
                if !x.is_finite() || !y.is_finite() {
                    return Some(format!("it gives {y} for {x}"));
                }
                most = most.max((x - y).abs());
            }
        }
        if most > TOLERANCE * largest {
            let columns = format!("columns {begin} to {}", begin + columns - 1);
            return Some(format!(
                "its results in {columns} differ by {most} from those of mma, up to {largest}"
            ));
        }
        begin += columns;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|x| bf16::from_f32(*x).to_bits().to_le_bytes())
            .collect()
    }

    #[test]
    fn results_that_differ_by_more_than_rounding_are_refused() {
        let refused = |ours: &[f32], theirs: &[f32], parts: &[usize]| {
            disagreement(&bytes(ours), &bytes(theirs), parts)
        };
        assert_eq!(refused(&[4.0, -1.0, f32::NAN], &[4.0, -1.0, f32::NAN], &[3]), None);
        assert_eq!(refused(&[4.0, -1.0], &[4.03, -1.1], &[2]), None);
        let said = refused(&[4.0, -1.0], &[4.0, -1.25], &[2]).unwrap();
        assert_eq!(said, "its results in columns 0 to 1 differ by 0.25 from those of mma, up to 4");
        assert_eq!(refused(&[4.0], &[f32::NAN], &[1]).unwrap(), "it gives NaN for 4");
    }

    /// Gradients of keys may be a tenth of those of values.
    #[test]
    fn each_part_is_compared_with_its_own_largest_number() {
        let ours = bytes(&[0.5, 0.1, 4.0, 0.5, -0.1, -4.0]);
        let halved_keys = bytes(&[0.5, 0.05, 4.0, 0.5, -0.05, -4.0]);
        assert_eq!(disagreement(&ours, &halved_keys, &[3]), None);
        let said = disagreement(&ours, &halved_keys, &[1, 1, 1]).unwrap();
        assert!(said.contains("columns 1 to 1 differ by 0.05"), "{said}");
    }
}
