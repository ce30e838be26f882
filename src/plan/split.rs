//! Which layers a pipeline stage holds.

use std::ops::Range;

/// As even as whole layers allow; the first stages get one more where it does not divide.
pub fn uniform(layers: usize, stages: usize) -> Vec<Range<usize>> {
    let sizes: Vec<usize> =
        (0..stages).map(|stage| layers / stages + usize::from(stage < layers % stages)).collect();
    explicit(&sizes)
}

/// Embedding and head count as a layer each (Megatron-DeepSpeed's `type:transformer|embedding`):
/// (layers + 2) divides by the stages, the first and the last hold one less.
pub fn with_ends(layers: usize, stages: usize) -> Vec<Range<usize>> {
    let each = crate::base::div_exact(layers + 2, stages);
    let ends = |stage| usize::from(stage == 0) + usize::from(stage == stages - 1);
    let sizes: Vec<usize> = (0..stages).map(|stage| each - ends(stage)).collect();
    explicit(&sizes)
}

/// Layers of each stage as given.
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
}
