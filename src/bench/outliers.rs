//! Detection of slow units from the figures alone. Only slow ones are reported; being fast is not a
//! fault.
//!
//! A figure is slow if it is below median − max(3·MAD, tolerance·median), where MAD is the median
//! absolute deviation. Figures that scatter widely cannot hide one below half of the median.
//!
//! For pairs: a node is slow if its *best* pair is slow among all nodes' best pairs, because a slow
//! node slows all its pairs, but its partner only one. A link is slow if its pair is slow among the
//! pairs of the other nodes.

use plan::robust::median;

/// Default tolerances of links and of products. GPUs of one kind differ less than links.
pub const LINKS: f64 = 0.05;
pub const PRODUCTS: f64 = 0.02;

/// Tolerance for ranks that share the processors of a node, whose figures scatter.
pub const SHARED: f64 = 0.5;

/// Minimum number of units for a majority.
const FEWEST: usize = 3;

/// Two units, and the rate between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub a: usize,
    pub b: usize,
    pub rate: f64,
}

/// Result of comparing pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Slow units, each with its best rate.
    pub units: Vec<(usize, f64)>,
    /// Slow links between units that are not slow.
    pub links: Vec<Pair>,
    /// Median of the units' best rates, and of the pairs between units that are not slow.
    pub usual_best: f64,
    pub usual_pair: f64,
    /// Whether there are only two units and they are slow, so that the slow one cannot be
    /// identified.
    pub undecided: bool,
}

/// Limit below which a figure is slow.
fn bound(values: &[f64], tolerance: f64) -> f64 {
    let middle = median(values.iter().copied());
    let mad = median(values.iter().map(|value| (value - middle).abs()));
    middle - (3.0 * mad).min(0.5 * middle).max(tolerance * middle)
}

/// Indices of slow values.
pub fn slow(values: &[f64], tolerance: f64) -> Vec<usize> {
    let bound = bound(values, tolerance);
    (0..values.len())
        .filter(|index| values[*index] < bound)
        .collect()
}

/// Slow units and links among `units`. A unit without a pair is not assessed.
pub fn find_slow(units: usize, pairs: &[Pair], tolerance: f64) -> Findings {
    let best = |unit: usize| {
        let own = pairs.iter().filter(|pair| pair.a == unit || pair.b == unit);
        own.map(|pair| pair.rate).fold(0.0, f64::max)
    };
    let met: Vec<usize> = (0..units)
        .filter(|unit| pairs.iter().any(|pair| pair.a == *unit || pair.b == *unit))
        .collect();
    let bests: Vec<f64> = met.iter().map(|unit| best(*unit)).collect();
    let usual_best = median(bests.iter().copied());
    if units < FEWEST {
        let undecided = units == 2;
        return Findings { usual_best, usual_pair: usual_best, undecided, ..Findings::default() };
    }
    let slow_units: Vec<usize> = slow(&bests, tolerance)
        .into_iter()
        .map(|index| met[index])
        .collect();
    let sound = |pair: &&Pair| !slow_units.contains(&pair.a) && !slow_units.contains(&pair.b);
    let sound: Vec<Pair> = pairs.iter().filter(sound).copied().collect();
    let rates: Vec<f64> = sound.iter().map(|pair| pair.rate).collect();
    let links = if rates.len() < FEWEST {
        Vec::new()
    } else {
        slow(&rates, tolerance)
            .into_iter()
            .map(|link| sound[link])
            .collect()
    };
    Findings {
        units: slow_units.iter().map(|unit| (*unit, best(*unit))).collect(),
        links,
        usual_best,
        usual_pair: median(rates),
        undecided: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng;

    /// Every pair of `units`, at a rate that depends on the pair.
    fn pairs(units: usize, rate: impl Fn(usize, usize) -> f64) -> Vec<Pair> {
        (0..units)
            .flat_map(|a| (a + 1..units).map(move |b| (a, b)))
            .map(|(a, b)| Pair { a, b, rate: rate(a, b) })
            .collect()
    }

    /// 1 ± `share`, deterministic for each pair.
    fn noise(seed: u64, share: f64) -> impl Fn(usize, usize) -> f64 {
        move |a, b| {
            let drawn = rng::below(seed, (a * 1000 + b) as u64, 1 << 30) as f64;
            1.0 + share * (2.0 * drawn / (1u64 << 30) as f64 - 1.0)
        }
    }

    fn named(found: &Findings) -> (Vec<usize>, Vec<(usize, usize)>) {
        let units = found.units.iter().map(|(unit, _)| *unit).collect();
        (units, found.links.iter().map(|pair| (pair.a, pair.b)).collect())
    }

    #[test]
    fn nobody_is_named_among_equals_or_in_noise() {
        for units in 3..=16 {
            assert_eq!(
                named(&find_slow(units, &pairs(units, |_, _| 50.0), LINKS)),
                (vec![], vec![])
            );
            for seed in 0..200 {
                let noise = noise(seed, 0.02);
                let found = find_slow(units, &pairs(units, |a, b| 50.0 * noise(a, b)), LINKS);
                assert_eq!(named(&found), (vec![], vec![]), "{units} units, seed {seed}");
            }
        }
    }

    /// 34 % less than usual, and only 8 % less.
    #[test]
    fn a_slow_node_is_named_and_none_of_its_partners() {
        for (units, share) in [(3, 0.34), (4, 0.34), (8, 0.34), (8, 0.9), (64, 0.9)] {
            for slow in 0..units {
                let noise = noise(slow as u64, 0.01);
                let found = find_slow(
                    units,
                    &pairs(units, |a, b| {
                        let usual = 50.0 * noise(a, b);
                        if a == slow || b == slow { share * usual } else { usual }
                    }),
                    LINKS,
                );
                assert_eq!(named(&found), (vec![slow], vec![]), "{units} units, {share}");
                assert!((found.units[0].1 / found.usual_best - share).abs() < 0.03, "{found:?}");
            }
        }
    }

    #[test]
    fn a_slow_link_is_told_from_a_slow_node() {
        for units in [4, 8, 32] {
            let noise = noise(7, 0.01);
            let slow = (1, units - 1);
            let rate = |a, b| noise(a, b) * if (a, b) == slow { 10.0 } else { 50.0 };
            let found = find_slow(units, &pairs(units, rate), LINKS);
            assert_eq!(named(&found), (vec![], vec![slow]));
            assert_eq!(found.links[0].rate, rate(slow.0, slow.1));
        }
    }

    /// The pair of the two slow nodes is not a slow link; another link is.
    #[test]
    fn two_slow_nodes_and_a_slow_link_are_all_named() {
        let found = find_slow(
            8,
            &pairs(8, |a: usize, b: usize| match (a, b) {
                (2, _) | (_, 2) => 20.0,
                (5, _) | (_, 5) => 30.0,
                (0, 7) => 25.0,
                _ => 50.0,
            }),
            LINKS,
        );
        assert_eq!(named(&found), (vec![2, 5], vec![(0, 7)]));
        let two_of_four = |a: usize, b: usize| if a < 2 || b < 2 { 5.0 } else { 50.0 };
        assert_eq!(named(&find_slow(4, &pairs(4, two_of_four), LINKS)), (vec![0, 1], vec![]));
    }

    /// A few rounds of a tournament: node 3 is slow in all of its pairs.
    #[test]
    fn a_part_of_the_pairs_is_enough() {
        let rate = |a, b| if a == 3 || b == 3 { 20.0 } else { 50.0 };
        let some = pairs(64, rate)
            .into_iter()
            .filter(|pair| (pair.a ^ pair.b) % 16 == 1);
        assert_eq!(named(&find_slow(64, &some.collect::<Vec<_>>(), LINKS)), (vec![3], vec![]));
        let first_round = [(0, 4), (1, 3)].map(|(a, b)| Pair { a, b, rate: 50.0 });
        assert_eq!(named(&find_slow(5, &first_round, LINKS)), (vec![], vec![]), "2 rested");
    }

    #[test]
    fn two_nodes_cannot_tell_which_is_slow() {
        let found = find_slow(2, &[Pair { a: 0, b: 1, rate: 1.0 }], LINKS);
        assert!(found.undecided && found.units.is_empty() && found.links.is_empty());
        assert_eq!(found.usual_pair, 1.0);
        assert!(!find_slow(1, &[], LINKS).undecided);
    }

    /// Holds for any scatter of the others, and if all but a few figures are equal.
    #[test]
    fn a_value_below_half_of_the_median_is_slow_and_none_above_it_is() {
        assert_eq!(slow(&[10.0, 30.0, 4.0, 20.0, 40.0], LINKS), [2]);
        assert_eq!(slow(&[10.0, 10.0, 10.0, 9.7, 30.0], PRODUCTS), [3]);
        assert_eq!(slow(&[10.0, 10.0, 10.0, 9.9, 30.0], PRODUCTS), [0; 0]);
        assert_eq!(slow(&[10.0, 10.2, 9.8, 10.1, 9.6], PRODUCTS), [0; 0]);
        assert_eq!(slow(&[5.0, 6.0], PRODUCTS), [0; 0], "two values have no majority");
        assert_eq!(slow(&[5.0], PRODUCTS), [0; 0]);
    }
}
