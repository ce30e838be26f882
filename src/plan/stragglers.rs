//! Detection of stragglers: ranks that take longer than their peers for the same work. The input is
//! the busy time of each rank, that is, the time of a step without waiting for other ranks. Total
//! step times cannot show which rank is slow, because all ranks end a step together. Peers are the
//! ranks of one pipeline stage, since stages do different work.
//!
//! A window is 50 steps, for which each rank reports its median. Its excess is that median relative
//! to the median of its n peers. A rank is slow if over the last three windows
//!
//!   mean excess > bound,  each excess > bound / 2,  and  mean excess / s > 4
//!
//! s is the standard deviation of the mean excesses below the bound, that is, of healthy ranks.
//! Slow ranks do not widen it. With 8 peers it is a better estimate than the MAD, which misses a
//! third of ranks that are 2.5 % slow. With few peers it is inaccurate: bound is 2 % from 8 peers,
//! 5 % below. Of two peers, the one that takes 10 % more than the other is slow, without s. A
//! straggler is reported once, and again only after it was not slow.

use crate::robust::median;
use std::collections::VecDeque;

/// Steps per window.
pub const WINDOW: usize = 50;
/// Windows that a straggler must be slow for.
const WINDOWS: usize = 3;
/// Minimum excess in units of s.
const SCORE: f64 = 4.0;

/// Measurement of a rank in a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// Pipeline stage; ranks of one stage do the same work.
    pub stage: usize,
    /// Median busy time of a step.
    pub seconds: f64,
    /// Whether the rank shares its processor with other ranks. Such ranks slow each other, so they
    /// are neither stragglers nor peers.
    pub shares: bool,
}

/// Rank that was slow for `WINDOWS` windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    pub rank: usize,
    /// Mean excess over the median of its peers (of two, over the other), as a fraction: 0.025.
    pub more: f64,
    /// Mean excess in units of s; None for two peers.
    pub score: Option<f64>,
    /// Number of compared ranks, including this one.
    pub peers: usize,
}

/// State of the detection.
#[derive(Clone, Debug, Default)]
pub struct StragglerWatch {
    /// Excess of each compared rank, for the last windows.
    windows: VecDeque<Vec<Option<f64>>>,
    /// Ranks that were slow after the last window.
    slow: Vec<usize>,
}

impl StragglerWatch {
    /// Adds the next window, by rank. Returns the new stragglers.
    pub fn observe(&mut self, window: &[Busy]) -> Vec<Straggler> {
        if self.windows.len() == WINDOWS {
            self.windows.pop_front();
        }
        let stages = stages(window);
        self.windows.push_back(excesses(window, &stages));
        if self.windows.len() < WINDOWS {
            return Vec::new();
        }
        let slow: Vec<Straggler> = stages
            .iter()
            .flat_map(|peers| self.find_slow(peers))
            .collect();
        let before = std::mem::replace(&mut self.slow, slow.iter().map(|one| one.rank).collect());
        slow.into_iter()
            .filter(|one| !before.contains(&one.rank))
            .collect()
    }

    /// Slow ranks among peers.
    fn find_slow(&self, peers: &[usize]) -> Vec<Straggler> {
        let bound = bound(peers.len());
        let excesses = |rank: usize| self.windows.iter().filter_map(move |window| window[rank]);
        let means: Vec<f64> = peers
            .iter()
            .map(|rank| excesses(*rank).sum::<f64>() / WINDOWS as f64)
            .collect();
        let healthy: Vec<f64> = means
            .iter()
            .copied()
            .filter(|more| *more <= bound)
            .collect();
        let scatter = deviation(&healthy);
        let mut slow = Vec::new();
        for (&rank, &more) in peers.iter().zip(&means) {
            let score = (peers.len() > 2).then(|| more / scatter);
            let always = excesses(rank).all(|excess| excess > bound / 2.0);
            if more > bound && always && score.is_none_or(|score| score > SCORE) {
                slow.push(Straggler { rank, more, score, peers: peers.len() });
            }
        }
        slow
    }
}

/// Compared ranks of each stage. A single rank cannot be compared.
fn stages(window: &[Busy]) -> Vec<Vec<usize>> {
    let stages = window
        .iter()
        .map(|busy| busy.stage)
        .max()
        .map_or(0, |last| last + 1);
    let peers = |stage: usize| {
        (0..window.len())
            .filter(|rank: &usize| window[*rank].stage == stage && !window[*rank].shares)
            .collect()
    };
    (0..stages)
        .map(peers)
        .filter(|peers: &Vec<usize>| peers.len() > 1)
        .collect()
}

/// Excess of each rank over the median of its peers; of two, over the faster one.
fn excesses(window: &[Busy], stages: &[Vec<usize>]) -> Vec<Option<f64>> {
    let mut excesses = vec![None; window.len()];
    for peers in stages {
        let seconds = |rank: &usize| window[*rank].seconds;
        let usual = match peers[..] {
            [a, b] => seconds(&a).min(seconds(&b)),
            _ => median(peers.iter().map(seconds)),
        };
        for rank in peers {
            excesses[*rank] = Some(seconds(rank) / usual - 1.0);
        }
    }
    excesses
}

/// Minimum excess for this number of peers.
fn bound(peers: usize) -> f64 {
    match peers {
        0..=2 => 0.1,
        3..=7 => 0.05,
        _ => 0.02,
    }
}

/// Sample standard deviation.
fn deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0))
        .sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng;
    use std::sync::LazyLock;

    /// Step times divided by the median of their window, sorted: quantiles of 150 steps of the
    /// quick start, on one thread of a busy machine (2026-11-22, 2 cores of an AMD EPYC, shared
    /// with other work).
    #[rustfmt::skip]
    const STEPS: [f64; 20] = [
        0.7442, 0.8635, 0.8810, 0.9235, 0.9440, 0.9557, 0.9650, 0.9814, 0.9932, 0.9980,
        1.0023, 1.0147, 1.0256, 1.0436, 1.0573, 1.0816, 1.1185, 1.1630, 1.1998, 1.3386,
    ];

    /// Assumed (not measured) part of that 13 % scatter on a dedicated processor: steps then
    /// scatter by 1.3 %, and medians of windows by 0.2 %.
    const ALONE: f64 = 0.1;

    /// Assumed permanent difference between healthy ranks: 0.3 % (standard deviation).
    const RANKS: f64 = 0.003;

    /// Relative medians of a rank's windows, drawn with a seed.
    fn medians() -> Vec<f64> {
        let key = rng::key(1, "steps");
        let step = |number: usize| {
            let drawn = rng::below(key, number as u64, 1 << 20) as usize;
            let part = (drawn * (STEPS.len() - 1)) >> 20;
            let within = drawn % 1000;
            let low = STEPS[part];
            let high = STEPS[part + 1];
            1.0 + ALONE * (low + (high - low) * within as f64 / 1000.0 - 1.0)
        };
        (0..4096)
            .map(|number| median((0..WINDOW).map(|i| step(number * WINDOW + i))))
            .collect()
    }

    /// Windows of healthy ranks, except that rank 1 is slower than its peers by `slower`.
    fn replay(seed: u64, ranks: usize, windows: usize, slower: f64) -> Vec<Vec<Busy>> {
        static MEDIANS: LazyLock<Vec<f64>> = LazyLock::new(medians);
        let key = rng::key(seed, "stragglers");
        let mut own = vec![0.0; ranks];
        rng::normals(key, 0, &mut own);
        if let Some(own) = own.get_mut(1).filter(|_| slower > 0.0) {
            *own = 0.0;
        }
        let stages = if ranks >= 16 { 4 } else { 1 };
        let busy = |rank: usize, window: usize| {
            // The last stage has the head and takes longer.
            let stage = rank * stages / ranks;
            let work = if stage + 1 == stages { 0.9 } else { 0.7 };
            let more = if rank == 1 { 1.0 + slower } else { 1.0 };
            let drawn = rng::below(key, (1 << 32) | (rank * windows + window) as u64, 4096);
            let of_rank = work * more * (1.0 + RANKS * f64::from(own[rank]));
            Busy { stage, seconds: of_rank * MEDIANS[drawn as usize], shares: false }
        };
        (0..windows)
            .map(|window| (0..ranks).map(|rank| busy(rank, window)).collect())
            .collect()
    }

    fn named(windows: &[Vec<Busy>]) -> Vec<usize> {
        let mut detector = StragglerWatch::default();
        windows
            .iter()
            .flat_map(|window| detector.observe(window))
            .map(|one| one.rank)
            .collect()
    }

    #[test]
    fn a_slow_rank_is_named_within_three_windows() {
        // Minimum detections in 1,000 replays. Fewer ranks need a larger excess.
        let cases = [(384, 0.025, 1000), (8, 0.025, 990), (8, 0.03, 999), (4, 0.08, 1000)];
        for (ranks, slower, least) in cases.into_iter().chain([(2, 0.12, 1000)]) {
            let times = (0..1000)
                .filter(|seed| {
                    let windows = replay(*seed, ranks, 3, slower);
                    assert_eq!(named(&windows[..2]), [0; 0], "{ranks} ranks after two windows");
                    named(&windows) == [1]
                })
                .count();
            assert!(times >= least, "{slower} among {ranks} ranks: {times} times");
        }
    }

    #[test]
    fn two_slow_ranks_do_not_hide_each_other_and_one_odd_window_is_none() {
        let mut seconds = [1.0, 1.001, 0.999, 1.0, 1.001, 0.999, 1.03, 1.03];
        let slow = window(&seconds);
        assert_eq!(named(&[slow.clone(), slow.clone(), slow.clone()]), [6, 7]);
        seconds[6..].fill(1.0);
        let well = window(&seconds);
        seconds[6] = 1.3;
        assert_eq!(named(&[window(&seconds), well.clone(), well]), [0; 0]);
    }

    #[test]
    fn a_thousand_healthy_replays_name_nobody() {
        for ranks in [2, 4, 8, 384] {
            for seed in 0..1000 {
                assert_eq!(
                    named(&replay(seed, ranks, 3, 0.0)),
                    [0; 0],
                    "{ranks} ranks, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn too_few_say_nothing() {
        for (ranks, slower) in [(1, 1.0), (2, 0.08), (4, 0.03)] {
            assert_eq!(named(&replay(3, ranks, 6, slower)), [0; 0], "{ranks} ranks");
        }
    }

    fn window(seconds: &[f64]) -> Vec<Busy> {
        seconds
            .iter()
            .map(|s| Busy { stage: 0, seconds: *s, shares: false })
            .collect()
    }

    #[test]
    fn it_is_named_once_and_again_after_it_was_well() {
        let [slow, well] = [[1.0, 1.01, 0.99, 1.2], [1.0, 1.01, 0.99, 1.0]];
        let windows: Vec<_> = [[slow; 6], [well; 6], [slow; 6]]
            .concat()
            .iter()
            .map(|seconds| window(seconds))
            .collect();
        assert_eq!(named(&windows), [3, 3]);
        let two: Vec<_> = [slow, slow, well]
            .repeat(5)
            .iter()
            .map(|seconds| window(seconds))
            .collect();
        assert_eq!(named(&two), [0; 0]);
    }

    #[test]
    fn stages_and_ranks_that_share_a_processor_are_not_compared() {
        let mut stages = window(&[1.0, 1.0, 1.0, 2.0, 2.01, 2.0]);
        stages[3..].iter_mut().for_each(|busy| busy.stage = 1);
        assert_eq!(named(&[stages.clone(), stages.clone(), stages]), [0; 0]);
        let mut shared = window(&[1.0, 1.0, 1.0, 1.5]);
        shared[3].shares = true;
        assert_eq!(named(&[shared.clone(), shared.clone(), shared]), [0; 0]);
    }

    #[test]
    fn what_a_straggler_is_told_with() {
        let mut detector = StragglerWatch::default();
        let seconds = window(&[1.0, 1.001, 0.999, 1.0, 1.001, 0.999, 1.0, 1.03]);
        assert_eq!((detector.observe(&seconds), detector.observe(&seconds)), (vec![], vec![]));
        let [one] = detector.observe(&seconds)[..] else { panic!() };
        assert_eq!((one.rank, one.peers, (one.more * 1e3).round()), (7, 8, 30.0));
        assert!(one.score.unwrap() > 4.0);
        let of_two = window(&[1.2, 1.0]);
        let found: Vec<_> = (0..3).flat_map(|_| detector.observe(&of_two)).collect();
        assert_eq!((found[0].rank, found[0].score, found[0].peers), (0, None, 2));
    }
}
