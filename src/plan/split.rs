//! Split of the layers among pipeline stages.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Splits as evenly as possible. The first stages get one more layer if it does not divide.
pub fn uniform(layers: usize, stages: usize) -> Vec<Range<usize>> {
    let sizes: Vec<usize> = (0..stages)
        .map(|stage| layers / stages + usize::from(stage < layers % stages))
        .collect();
    explicit(&sizes)
}

/// Cost of a module for its stage. The second number breaks ties of the first.
pub type Cost = (f64, f64);

/// Minimises the cost of the most expensive stage. Each stage has at least one layer; the first
/// also has the embedding, the last also the head.
pub fn balanced(stages: usize, embed: Cost, layers: &[Cost], head: Cost) -> Vec<Range<usize>> {
    let count = layers.len();
    assert!(count >= stages, "{count} layers on {stages} stages");
    let end = |stage: usize| {
        let first = if stage == 0 { embed } else { (0.0, 0.0) };
        let last = if stage + 1 == stages { head } else { (0.0, 0.0) };
        (first.0 + last.0, first.1 + last.1)
    };
    if layers.iter().any(|cost| *cost != layers[0]) {
        let flops: Vec<f64> = layers.iter().map(|cost| cost.0).collect();
        let ends: Vec<f64> = (0..stages).map(|stage| end(stage).0).collect();
        return explicit(&partition(&flops, &ends));
    }
    let mut sizes = vec![1; stages];
    // Costs are not negative, so that their bits have their order.
    let entry = |size: usize, stage: usize| {
        let each = size as f64;
        let end = end(stage);
        let cost = [each * layers[0].0 + end.0, each * layers[0].1 + end.1];
        Reverse((cost.map(f64::to_bits), stage))
    };
    let mut by_cost: BinaryHeap<_> = (0..stages).map(|stage| entry(1, stage)).collect();
    for _ in stages..count {
        // Greedy is optimal, because all layers cost the same: the cheapest stage gets the next layer.
        let Reverse((_, cheapest)) = by_cost.pop().expect("a stage");
        sizes[cheapest] += 1;
        by_cost.push(entry(sizes[cheapest], cheapest));
    }
    explicit(&sizes)
}

/// Numbers of layers of the stages that minimise the largest sum of a stage's layers and its end, by
/// dynamic programming over the number of stages and of layers.
fn partition(layers: &[f64], ends: &[f64]) -> Vec<usize> {
    let mut sums = vec![0.0];
    for (i, cost) in layers.iter().enumerate() {
        sums.push(sums[i] + cost);
    }
    // best[stage][n] splits the first n layers over the stages up to this one: the largest sum, and
    // the number of layers of this stage.
    let mut best: Vec<Vec<(f64, usize)>> = Vec::new();
    for (stage, end) in ends.iter().enumerate() {
        let row = (0..sums.len()).map(|until| {
            let all = (1..=until).map(|size| {
                let own = sums[until] - sums[until - size] + end;
                let before = match stage {
                    0 if size == until => 0.0,
                    0 => f64::INFINITY,
                    _ => best[stage - 1][until - size].0,
                };
                (own.max(before), size)
            });
            all.min_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap_or((f64::INFINITY, 0))
        });
        best.push(row.collect());
    }
    let mut until = layers.len();
    let mut sizes = vec![0; ends.len()];
    for (size, row) in sizes.iter_mut().zip(&best).rev() {
        *size = row[until].1;
        until -= *size;
    }
    sizes
}

/// Counts embedding and head as one layer each (Megatron-DeepSpeed's `type:transformer|embedding`).
/// layers + 2 must be divisible by the stages; the first and the last stage hold one less.
pub fn with_ends(layers: usize, stages: usize) -> Vec<Range<usize>> {
    let per_stage = base::div_exact(layers + 2, stages);
    let mut sizes = vec![per_stage; stages];
    sizes[0] -= 1;
    sizes[stages - 1] -= 1;
    explicit(&sizes)
}

/// Splits by a given number of layers per stage.
pub fn explicit(sizes: &[usize]) -> Vec<Range<usize>> {
    let mut first = 0;
    sizes
        .iter()
        .map(|size| {
            first += size;
            first - size..first
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_all_layers_once() {
        assert_eq!(uniform(8, 4), [0..2, 2..4, 4..6, 6..8]);
        assert_eq!(uniform(7, 3), [0..3, 3..5, 5..7]);
        assert_eq!(with_ends(10, 4), [0..2, 2..5, 5..8, 8..10]);
        assert_eq!(with_ends(94, 24).iter().map(Range::len).max(), Some(4));
        assert_eq!(explicit(&[1, 5, 2]), [0..1, 1..6, 6..8]);
    }

    #[test]
    fn a_balanced_split_counts_embedding_and_head() {
        let sizes = |layers, stages, embed, head| -> Vec<usize> {
            let layers = vec![(1.0, 1.0); layers];
            balanced(stages, embed, &layers, head)
                .iter()
                .map(Range::len)
                .collect()
        };
        let nothing = (0.0, 0.0);
        assert_eq!(sizes(8, 4, nothing, nothing), [2, 2, 2, 2]);
        // A head of two layers' cost takes two layers off the last stage.
        assert_eq!(sizes(14, 4, nothing, (2.0, 2.0)), [4, 4, 4, 2]);
        // A head more expensive than all layers leaves its stage the single required layer.
        assert_eq!(sizes(9, 3, nothing, (20.0, 20.0)), [4, 4, 1]);
        // Among stages with equal FLOPs, those without the embedding's parameters get more.
        assert_eq!(sizes(5, 3, (0.0, 9.0), nothing), [1, 2, 2]);
        // The most expensive stage never exceeds that of the best of all splits.
        for layers in 3..12 {
            for head in [0.0, 0.4, 1.0, 2.7] {
                let cost = |sizes: &[usize]| {
                    let last = sizes[2] as f64 + head;
                    sizes[..2].iter().map(|n| *n as f64).fold(last, f64::max)
                };
                let all = (1..layers - 1).flat_map(|a| (1..layers - a).map(move |b| (a, b)));
                let best = all
                    .map(|(a, b)| cost(&[a, b, layers - a - b]))
                    .fold(1e9, f64::min);
                assert_eq!(cost(&sizes(layers, 3, nothing, (head, 0.0))), best, "{layers} {head}");
            }
        }
    }

    /// Layers of different costs: the most expensive stage is that of the best of all splits.
    #[test]
    fn a_balanced_split_counts_every_layers_own_cost() {
        let costs = [1.0, 5.0, 1.0, 1.0, 2.0, 7.0, 1.0, 1.0, 3.0];
        let layers = costs.map(|cost| (cost, 1.0));
        for (embed, head) in [(0.0, 0.0), (2.0, 0.0), (0.0, 4.5), (9.0, 30.0)] {
            let most = |cuts: [usize; 2]| {
                let sum = |range: Range<usize>| costs[range].iter().sum::<f64>();
                let first = sum(0..cuts[0]) + embed;
                let last = sum(cuts[1]..9) + head;
                first.max(sum(cuts[0]..cuts[1])).max(last)
            };
            let found = balanced(3, (embed, 0.0), &layers, (head, 0.0));
            assert_eq!((found[0].start, found[2].end), (0, 9));
            let all = (1..8).flat_map(|a| (a + 1..9).map(move |b| most([a, b])));
            let best = all.fold(f64::INFINITY, f64::min);
            assert_eq!(most([found[0].end, found[1].end]), best, "{embed} {head}");
        }
    }
}
