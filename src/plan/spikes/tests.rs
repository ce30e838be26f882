//! Replayed loss curves: healthy ones trigger nothing, and each kind of spike is found.

use super::*;
use base::rng;

const RULE: Rule = Rule {
    sigmas: 8.0,
    loss_rise: 0.5,
    norm_rise: 10.0,
    acts: true,
    skips: 3,
    roll_back: 100,
    roll_backs: 3,
};

/// Approximately normal noise with a heavy tail: the sum of twelve uniform numbers, doubled one
/// time in fifty.
fn noise(seed: u64, step: u64) -> f64 {
    let uniform = |i: u64| rng::below(seed, 16 * step + i, 1 << 20) as f64 / (1 << 20) as f64;
    let normal = (0..12).map(uniform).sum::<f64>() - 6.0;
    if uniform(13) < 0.02 { 2.0 * normal } else { normal }
}

/// Pretraining curve: a fast fall, then a power law with shrinking noise and falling norms.
fn healthy(seed: u64, step: u64) -> StepResult {
    let t = step as f64;
    let loss = 2.2 + 8.0 * (-t / 150.0).exp() + 3.0 * (t + 50.0).powf(-0.2);
    let spread = 0.05;
    let norm = 0.3 + 3.0 * (-t / 300.0).exp();
    let loss = loss + spread * noise(seed, step);
    let norm = norm * (0.1 * noise(seed + 1, step)).exp();
    StepResult { step, loss, norm, skipped: false }
}

fn quiet(detector: &mut SpikeDetector, seed: u64, steps: std::ops::RangeInclusive<u64>) {
    for step in steps {
        assert_eq!(
            detector.observe(&RULE, healthy(seed, step)),
            Assessment::Healthy,
            "step {step} of {seed}"
        );
    }
}

#[test]
fn healthy_steps_lead_to_nothing() {
    (0..4).for_each(|seed| quiet(&mut SpikeDetector::default(), 2 * seed, 1..=10_000));
}

/// Number of spikes that a rule finds in the first 10,000 steps of a real run
/// (tests/fixtures/curves/make.py).
fn spikes_of_real_curve(rule: &Rule) -> usize {
    let text = include_str!("../../../tests/fixtures/curves/gpt2-124m-llmc.txt");
    let mut detector = SpikeDetector::default();
    let taken = text.lines().zip(1..).map(|(line, step)| {
        let (loss, norm) = line.split_once(' ').unwrap();
        let number = |text: &str| text.parse::<f64>().unwrap();
        StepResult { step, loss: number(loss) / 1e4, norm: number(norm) / 1e2, skipped: false }
    });
    let found: Vec<Assessment> = taken.map(|taken| detector.observe(rule, taken)).collect();
    assert_eq!(found.len(), 10_000);
    found
        .into_iter()
        .filter(|found| *found != Assessment::Healthy)
        .count()
}

/// The run trained without problems. Its losses rise up to 0.35 nat above the median, its norms up
/// to 7.5 medians.
#[test]
fn a_real_run_leads_to_nothing() {
    assert_eq!(spikes_of_real_curve(&RULE), 0);
    assert_eq!(spikes_of_real_curve(&Rule { norm_rise: 2.0, ..RULE }), 14);
    assert_eq!(spikes_of_real_curve(&Rule { loss_rise: 0.3, ..RULE }), 4);
}

#[test]
fn a_spike_is_found_and_does_not_hide_the_next() {
    let mut detector = SpikeDetector::default();
    quiet(&mut detector, 1, 1..=1000);
    let limits = detector.limits(1001).unwrap();
    for (step, loss, norm) in [(1001, 1.0, 0.0), (1002, 0.0, 5.0), (1003, 0.5, 9.0)] {
        let is = healthy(1, step);
        let taken = StepResult { loss: is.loss + loss, norm: is.norm + norm, ..is };
        assert!(matches!(detector.observe(&RULE, taken), Assessment::Spike(_)), "step {step}");
    }
    assert_eq!(detector.limits(1004), detector.limits(1005), "spikes do not enter the window");
    assert!((detector.limits(1004).unwrap().loss - limits.loss).abs() < 0.05);
    let is = healthy(1, 1004);
    let fourth = detector.observe(&RULE, StepResult { loss: is.loss + 2.0, ..is });
    let Assessment::Diverged(why) = fourth else { panic!("{fourth:?}") };
    assert!(why.contains("4 spikes in a row, to step 1004: the loss"), "{why}");
}

#[test]
fn the_limits_of_a_step_are_those_of_two_steps_before() {
    let mut detector = SpikeDetector::default();
    quiet(&mut detector, 3, 1..=63);
    assert_eq!((detector.limits(64), detector.limits(65)), (None, None), "too few steps");
    quiet(&mut detector, 3, 64..=64);
    assert_eq!(detector.limits(65), None);
    let later = detector.limits(66);
    assert!(later.is_some());
    quiet(&mut detector, 3, 65..=65);
    assert_eq!(detector.limits(66), later, "as it was when step 64 had been seen");
    assert_eq!((detector.limits(65), detector.limits(68)), (None, None), "of no other step");
}

#[test]
fn a_slow_divergence_is_found() {
    let mut detector = SpikeDetector::default();
    quiet(&mut detector, 5, 1..=1000);
    // Rises by 0.01 nat per step, which a window of 128 steps follows.
    let found = (1001..1200).find_map(|step| {
        let is = healthy(5, step);
        let loss = is.loss + 0.01 * (step - 1000) as f64;
        match detector.observe(&RULE, StepResult { loss, ..is }) {
            Assessment::Diverged(why) => Some((step, why)),
            _ => None,
        }
    });
    let (step, why) = found.unwrap();
    assert!((1020..1080).contains(&step) && why.contains("the loss rises"), "step {step}: {why}");
}

#[test]
fn a_state_that_was_saved_decides_the_same() {
    let mut detector = SpikeDetector::default();
    quiet(&mut detector, 7, 1..=200);
    let text = serde_json::to_string(&detector).unwrap();
    let mut read: SpikeDetector = serde_json::from_str(&text).unwrap();
    assert_eq!(read, detector);
    for step in 201..400 {
        let is = healthy(7, step);
        let taken = StepResult { loss: is.loss + if step % 40 == 0 { 3.0 } else { 0.0 }, ..is };
        assert_eq!(read.observe(&RULE, taken), detector.observe(&RULE, taken));
        assert_eq!(read.limits(step + 2), detector.limits(step + 2));
    }
}

/// Without action, a new level is reported once and then accepted.
#[test]
fn without_action_a_new_level_is_accepted() {
    let mut detector = SpikeDetector::default();
    quiet(&mut detector, 9, 1..=300);
    let rule = Rule { acts: false, ..RULE };
    let named = (301..800).filter(|step| {
        let is = healthy(9, *step);
        detector.observe(&rule, StepResult { loss: is.loss + 2.0, ..is }) != Assessment::Healthy
    });
    assert_eq!(named.count(), 1);
}

#[test]
fn a_run_does_not_go_back_for_ever() {
    let back = |at| RollBack { at, to: at - 150, samples: [0, 1] };
    let mut detector = SpikeDetector::default();
    assert_eq!(detector.may_roll_back(&RULE, 200), Ok(()));
    detector.roll_backs.push(back(200));
    assert!(
        detector
            .may_roll_back(&RULE, 699)
            .unwrap_err()
            .contains("already rolled back from step 200")
    );
    assert_eq!(detector.may_roll_back(&RULE, 700), Ok(()));
    detector.roll_backs.extend([back(700), back(1200)]);
    assert!(
        detector
            .may_roll_back(&RULE, 9000)
            .unwrap_err()
            .contains("3 times")
    );
}
