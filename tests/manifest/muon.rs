//! Muon's settings: their defaults, and what they do not stand beside.

use crate::{check_added, with};
use gptrain::manifest::{Muon, MuonAdamW, MuonScale, Optimizer};

#[test]
fn defaults_of_muon() {
    let form = |sets: &[&str]| match with(sets).manifest.optimizer {
        Optimizer::Muon(rule) => rule,
        other => panic!("{other:?}"),
    };
    let adamw = MuonAdamW { lr_scale: 1.0, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let rule = Muon {
        momentum: 0.95,
        nesterov: true,
        weight_decay: 0.1,
        ns_steps: 5,
        coefficients: [3.4445, -4.775, 2.0315],
        eps: 1e-7,
        scale: MuonScale::MatchRmsAdamw,
        adamw,
        clip: Some(1.0),
    };
    assert_eq!(form(&["optimizer=muon"]), rule);
    assert_eq!(form(&["optimizer.adamw.beta1=0.8", "optimizer.muon={}"]), rule);
    let adamw = MuonAdamW { weight_decay: 0.2, lr_scale: 0.3, ..adamw };
    let given = Muon {
        weight_decay: 0.2,
        coefficients: [2.0, -1.5, 0.5],
        scale: MuonScale::Original,
        adamw,
        clip: None,
        ..rule
    };
    let sets = "optimizer={muon: {weight_decay: 0.2, coefficients: [2, -1.5, 0.5], scale: original, \
                adamw: {lr_scale: 0.3}, clip: 0}}";
    assert_eq!(form(&[sets]), given);
    let loaded = with(&[sets]);
    let again = gptrain::manifest::parse(&loaded.effective, "e", std::path::Path::new("/"), &[]);
    assert_eq!(again.unwrap().effective, loaded.effective);
}

#[test]
fn what_muon_does_not_stand_beside_is_refused() {
    check_added(
        "optimizer: {muon: {coefficients: [1, 2]}}",
        "m.yaml:17: optimizer.muon.coefficients has 2 numbers, not 3 → give a, b and c, or remove it",
    );
    check_added(
        "optimizer: {muon: , adamw: }",
        "m.yaml:17: optimizer has more than one kind → keep one",
    );
    check_added(
        "optimizer: muon\ntopology: {offload: optimizer}",
        "m.yaml:17: optimizer muon with topology.offload is not in this version: its steps are \
         products of whole matrices, which a host's processor is too slow for → set \
         topology.offload: none, or take adamw",
    );
}
