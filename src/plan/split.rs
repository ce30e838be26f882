//! Split of the layers among pipeline stages.

use std::ops::Range;

/// Splits as evenly as possible. The first stages get one more layer if it does not divide.
pub fn uniform(layers: usize, stages: usize) -> Vec<Range<usize>> {
    let sizes: Vec<usize> =
        (0..stages).map(|stage| layers / stages + usize::from(stage < layers % stages)).collect();
    explicit(&sizes)
}

/// Cost of a module for its stage. The second number breaks ties of the first.
pub type Cost = (f64, f64);

/// Minimises the cost of the most expensive stage. Each stage has at least one layer; the first
/// also has the embedding, the last also the head.
pub fn balanced(
    layers: usize,
    stages: usize,
    [embed, layer, head]: [Cost; 3],
) -> Vec<Range<usize>> {
    assert!(layers >= stages, "{layers} layers on {stages} stages");
    let mut sizes = vec![1; stages];
    let cost = |sizes: &[usize], stage: usize| {
        let first = if stage == 0 { embed } else { (0.0, 0.0) };
        let last = if stage + 1 == stages { head } else { (0.0, 0.0) };
        let each = sizes[stage] as f64;
        (each * layer.0 + first.0 + last.0, each * layer.1 + first.1 + last.1)
    };
    for _ in stages..layers {
        // Greedy is optimal, because all layers cost the same: the cheapest stage gets the next
        // layer.
        let least = |a: &usize, b: &usize| cost(&sizes, *a).partial_cmp(&cost(&sizes, *b)).unwrap();
        let stage = (0..stages).min_by(least).expect("a stage");
        sizes[stage] += 1;
    }
    explicit(&sizes)
}

/// Counts embedding and head as one layer each (Megatron-DeepSpeed's `type:transformer|embedding`).
/// layers + 2 must be divisible by the stages; the first and the last stage hold one less.
pub fn with_ends(layers: usize, stages: usize) -> Vec<Range<usize>> {
    let each = base::div_exact(layers + 2, stages);
    let ends = |stage| usize::from(stage == 0) + usize::from(stage == stages - 1);
    let sizes: Vec<usize> = (0..stages).map(|stage| each - ends(stage)).collect();
    explicit(&sizes)
}

/// Splits by a given number of layers per stage.
pub fn explicit(sizes: &[usize]) -> Vec<Range<usize>> {
    let mut first = 0;
    let cut = |size: &usize| {
        first += size;
        first - size..first
    };
    sizes.iter().map(cut).collect()
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
            let costs = [embed, (1.0, 1.0), head];
            balanced(layers, stages, costs).iter().map(Range::len).collect()
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
                let best = all.map(|(a, b)| cost(&[a, b, layers - a - b])).fold(1e9, f64::min);
                assert_eq!(cost(&sizes(layers, 3, nothing, (head, 0.0))), best, "{layers} {head}");
            }
        }
    }
}
