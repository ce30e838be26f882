//! Blends datasets by weight: the dataset of sample k, and the sample's number within it.
//!
//! Megatron's greedy rule: at every step the dataset furthest behind its share provides the next
//! sample. It needs no random numbers, and position k does not depend on the length of the run.

use base::Problems;

/// Dataset of every sample, in order. Samples of one dataset are used in order.
#[derive(Debug)]
pub struct Blend {
    /// Dataset of each sample.
    dataset: Vec<u16>,
    /// Samples that each dataset provides before each block of `BLOCK` samples, [size / BLOCK + 1, datasets].
    before_block: Vec<u64>,
    datasets: usize,
}

/// Maximum number of datasets, as in Megatron.
pub const MOST_DATASETS: usize = i16::MAX as usize - 1;

/// Problem if there are too many datasets.
pub fn check_dataset_count(place: &str, datasets: usize) -> Option<Problems> {
    let what = format!("{datasets} datasets; a mixture has at most {MOST_DATASETS}");
    let remedy = "merge some of them: gptrain data merge";
    (datasets > MOST_DATASETS).then(|| Problems::one(place, what, remedy))
}

/// Samples per entry of `before_block`: few enough to count through, many enough to save memory.
const BLOCK: usize = 1024;

impl Blend {
    /// Blends `size` samples of datasets with these positive weights, which are normalised here.
    pub fn weighted(weights: &[f64], size: usize) -> Blend {
        assert!(weights.len() <= MOST_DATASETS, "{} datasets", weights.len());
        let weights = normalize(weights);
        Blend::build(weights.len(), size, |i, used| {
            find_furthest_behind(&weights, used, i, |_| true)
        })
    }

    /// Blends every sample of every dataset once, in proportion to their `sizes`.
    pub fn exhaustive(sizes: &[u64]) -> Blend {
        let lengths: Vec<f64> = sizes.iter().map(|size| *size as f64).collect();
        let weights = normalize(&lengths);
        let size = sizes.iter().sum::<u64>() as usize;
        Blend::build(sizes.len(), size, |i, used| {
            find_furthest_behind(&weights, used, i, |dataset| used[dataset] < sizes[dataset])
        })
    }

    fn build(datasets: usize, size: usize, next: impl Fn(usize, &[u64]) -> usize) -> Blend {
        let mut used = vec![0; datasets];
        let mut blend =
            Blend { dataset: Vec::with_capacity(size), before_block: Vec::new(), datasets };
        for i in 0..size {
            if i.is_multiple_of(BLOCK) {
                blend.before_block.extend_from_slice(&used);
            }
            let dataset = next(i, &used);
            used[dataset] += 1;
            blend.dataset.push(dataset as u16);
        }
        if size.is_multiple_of(BLOCK) {
            blend.before_block.extend_from_slice(&used); // so that `samples_before(size)` finds its block
        }
        blend
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&*self.dataset) + size_of_val(&*self.before_block)) as u64
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.dataset.len() as u64
    }

    /// Dataset of sample k, and the sample's number within it.
    pub fn sample(&self, k: u64) -> (usize, u64) {
        let k = k as usize;
        let dataset = self.dataset[k];
        let block = k / BLOCK;
        let before = self.before_block[block * self.datasets + dataset as usize];
        let since = self.dataset[block * BLOCK..k]
            .iter()
            .filter(|d| **d == dataset)
            .count();
        (dataset as usize, before + since as u64)
    }

    /// Number of samples of each dataset before sample k, which may be one past the last.
    pub fn samples_before(&self, k: u64) -> Vec<u64> {
        let k = k as usize;
        let block = k / BLOCK;
        let mut given = match self.before_block.chunks(self.datasets).nth(block) {
            Some(given) => given.to_vec(),
            None => vec![0; self.datasets], // nothing was blended
        };
        for dataset in &self.dataset[(block * BLOCK).min(k)..k] {
            given[*dataset as usize] += 1;
        }
        given
    }
}

/// Dataset furthest behind its share at step i; the first of several.
fn find_furthest_behind(
    weights: &[f64],
    used: &[u64],
    i: usize,
    allowed: impl Fn(usize) -> bool,
) -> usize {
    let step = (i as f64).max(1.0);
    let mut best = usize::MAX;
    let mut worst = f64::NEG_INFINITY;
    for dataset in 0..weights.len() {
        let lag = weights[dataset] * step - used[dataset] as f64;
        if lag > worst && allowed(dataset) {
            (best, worst) = (dataset, lag);
        }
    }
    best
}

/// Weights divided by their sum, in numpy's arithmetic, because one bit could move a sample.
/// Megatron divides twice, when it reads the weights and when it blends.
pub fn normalize(weights: &[f64]) -> Vec<f64> {
    let sum = numpy_sum(weights);
    weights.iter().map(|weight| weight / sum).collect()
}

/// `numpy.sum`: sequential below 8 values, 8 running sums up to 128, halves beyond.
fn numpy_sum(values: &[f64]) -> f64 {
    match values.len() {
        0..8 => values.iter().sum(),
        8..=128 => {
            let (eights, rest) = values.as_chunks::<8>();
            let mut sums = eights[0];
            for some in &eights[1..] {
                sums.iter_mut()
                    .zip(some)
                    .for_each(|(sum, value)| *sum += value);
            }
            let [a, b, c, d, e, f, g, h] = sums;
            let eight = ((a + b) + (c + d)) + ((e + f) + (g + h));
            rest.iter().fold(eight, |sum, value| sum + value)
        }
        n => {
            let half = n / 2 - n / 2 % 8;
            numpy_sum(&values[..half]) + numpy_sum(&values[half..])
        }
    }
}
