//! Learning rate as a function of consumed samples only: resume and ramp-up need no state.

use manifest::{Decay, Lr, LrCounted};
use std::ops::Range;

/// Learning rate of the step that takes these samples.
pub fn for_step(lr: &Lr, samples: &Range<u64>) -> f64 {
    match lr.counted {
        LrCounted::After => at(lr, samples.end),
        LrCounted::Before => at(lr, samples.start),
    }
}

/// Learning rate at `consumed` samples: linear warm-up from 0, then the decay over the rest of its
/// length (Megatron's rule).
pub fn at(lr: &Lr, consumed: u64) -> f64 {
    if consumed < lr.warmup_samples {
        return lr.peak * consumed as f64 / lr.warmup_samples as f64;
    }
    let past = |from: u64, to: u64| {
        let span = to.saturating_sub(from).max(1) as f64;
        (consumed.saturating_sub(from) as f64 / span).min(1.0)
    };
    let fall = |share: f64| lr.min + (lr.peak - lr.min) * share;
    match lr.decay {
        Decay::Constant => lr.peak,
        Decay::Linear(span) => fall(1.0 - past(lr.warmup_samples, span.samples)),
        Decay::Cosine(span) => {
            let angle = std::f64::consts::PI * past(lr.warmup_samples, span.samples);
            fall(0.5 * (1.0 + angle.cos()))
        }
        Decay::Wsd(wsd) => fall(1.0 - past(wsd.decay_from, wsd.samples)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use manifest::{Span, Wsd};

    fn lr(decay: Decay) -> Lr {
        let counted = LrCounted::After;
        Lr { peak: 1.0, min: 0.1, warmup_samples: 100, decay, counted }
    }

    #[test]
    fn warm_up_is_linear_and_reaches_the_peak() {
        let lr = lr(Decay::Cosine(Span { samples: 1100 }));
        assert_eq!(at(&lr, 10), 0.1);
        assert_eq!(at(&lr, 99), 0.99);
        assert_eq!(at(&lr, 100), 1.0);
    }

    /// The rates of five steps of four samples as Megatron's AnnealingLR gives them, which begins at
    /// step(0) and steps after each update.
    #[test]
    fn rates_counted_before_a_step_are_megatrons() {
        let before = Lr {
            warmup_samples: 8,
            counted: LrCounted::Before,
            ..lr(Decay::Linear(Span { samples: 20 }))
        };
        let megatron = [0.0, 0.5, 1.0, 0.7, 0.4];
        for (step, rate) in megatron.into_iter().enumerate() {
            let first = 4 * step as u64;
            let samples = first..first + 4;
            assert!((for_step(&before, &samples) - rate).abs() < 1e-12, "step {step}");
            let after = Lr { counted: LrCounted::After, ..before };
            assert_eq!(for_step(&after, &samples), at(&after, first + 4));
        }
    }

    #[test]
    fn each_decay_is_half_way_in_the_middle_and_stays_at_the_minimum() {
        let wsd = Decay::Wsd(Wsd { decay_samples: 200, samples: 1100, decay_from: 900 });
        let cases = [
            (Decay::Linear(Span { samples: 1100 }), 600),
            (Decay::Cosine(Span { samples: 1100 }), 600),
            (wsd, 1000),
        ];
        for (decay, middle) in cases {
            assert!((at(&lr(decay), middle) - 0.55).abs() < 1e-12, "{decay:?}");
            assert_eq!(at(&lr(decay), 1100), 0.1, "{decay:?}");
            assert_eq!(at(&lr(decay), 9999), 0.1, "{decay:?}");
        }
        assert_eq!(at(&lr(wsd), 900), 1.0);
        assert_eq!(at(&lr(Decay::Constant), 5000), 1.0);
    }
}
