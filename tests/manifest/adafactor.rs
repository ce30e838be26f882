//! Adafactor's settings: their defaults, and what they do not stand beside.

use crate::{GOOD, check_added, complaints, with};
use gptrain::manifest::{Adafactor, Optimizer};

/// Steps follow the learning rate; a relative step is scaled by the weight too.
#[test]
fn defaults_of_adafactor() {
    let form = |sets: &[&str]| match with(sets).manifest.optimizer {
        Optimizer::Adafactor(rule) => rule,
        other => panic!("{other:?}"),
    };
    let rule = Adafactor {
        relative_step: false,
        scale_parameter: false,
        beta2_decay: -0.8,
        clip_threshold: 1.0,
        eps: 1e-15,
        scale_eps: 1e-3,
        weight_decay: 0.0,
        clip: Some(1.0),
    };
    assert_eq!(form(&["optimizer=adafactor"]), rule);
    assert_eq!(form(&["optimizer.adamw.beta1=0.8", "optimizer.adafactor={}"]), rule);
    let relative = ["lr.decay=constant", "optimizer.adafactor={relative_step: true, clip: 0}"];
    let both = Adafactor { relative_step: true, scale_parameter: true, clip: None, ..rule };
    assert_eq!(form(&relative), both);
}

#[test]
fn a_relative_step_beside_a_schedule_is_refused() {
    let remedy = "set lr: {peak: 0.01, decay: constant} without a warm-up, or relative_step: false";
    let relative = "optimizer.adafactor.relative_step makes a step min(lr.peak, 1/√updates), and";
    check_added(
        "optimizer: {adafactor: {relative_step: true}}",
        &format!("m.yaml:17: {relative} lr.decay is cosine → {remedy}"),
    );
    let sets = ["lr.decay=constant", "optimizer.adafactor.relative_step=true"];
    assert_eq!(complaints(GOOD, &sets), "accepted");
    assert_eq!(
        complaints(GOOD, &[&sets[..], &["lr.warmup_samples=160"]].concat()),
        format!(
            "--set optimizer.adafactor.relative_step: {relative} lr has a warm-up of 160 samples \
             → {remedy}"
        )
    );
    check_added(
        "optimizer: {adafactor: , adamw: }",
        "m.yaml:17: optimizer has more than one kind → keep one",
    );
    assert_eq!(complaints(GOOD, &["optimizer=adafactor", "topology.offload=full"]), "accepted");
}
