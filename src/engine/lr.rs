//! The learning rate, a function of consumed samples alone: resume and ramp-up need no state.

use manifest::{Decay, Lr};

/// The rate of the step after which `consumed` samples will have been seen. Warm-up is linear from
/// 0; then the decay, over what is left of its length (Megatron's rule, counted at the step's end).
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
        Decay::Linear { samples } => fall(1.0 - past(lr.warmup_samples, samples)),
        Decay::Cosine { samples } => {
            fall(0.5 * (1.0 + (std::f64::consts::PI * past(lr.warmup_samples, samples)).cos()))
        }
        Decay::Wsd { decay_from, samples } => fall(1.0 - past(decay_from, samples)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lr(decay: Decay) -> Lr {
        Lr { peak: 1.0, min: 0.1, warmup_samples: 100, decay }
    }

    #[test]
    fn warm_up_is_linear_and_reaches_the_peak() {
        let lr = lr(Decay::Cosine { samples: 1100 });
        assert_eq!(at(&lr, 10), 0.1);
        assert_eq!(at(&lr, 99), 0.99);
        assert_eq!(at(&lr, 100), 1.0);
    }

    #[test]
    fn each_decay_is_half_way_in_the_middle_and_stays_at_the_minimum() {
        let cases = [
            (Decay::Linear { samples: 1100 }, 600),
            (Decay::Cosine { samples: 1100 }, 600),
            (Decay::Wsd { decay_from: 900, samples: 1100 }, 1000),
        ];
        for (decay, middle) in cases {
            assert!((at(&lr(decay), middle) - 0.55).abs() < 1e-12, "{decay:?}");
            assert_eq!(at(&lr(decay), 1100), 0.1, "{decay:?}");
            assert_eq!(at(&lr(decay), 9999), 0.1, "{decay:?}");
        }
        assert_eq!(at(&lr(Decay::Wsd { decay_from: 900, samples: 1100 }), 900), 1.0);
        assert_eq!(at(&lr(Decay::Constant), 5000), 1.0);
    }
}
