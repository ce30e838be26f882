//! Settings of µP, and what they do not stand beside.

use crate::{GOOD, complaints, with};
use gptrain::manifest::Mup;

#[test]
fn defaults_of_mup() {
    assert_eq!(with(&[]).manifest.model.mup, None);
    let mup = with(&["model.mup.base_hidden=256"]).manifest.model.mup;
    let expected = Mup {
        base_hidden: 256,
        base_head_dim: None,
        embedding_multiplier: 1.0,
        output_multiplier: 1.0,
    };
    assert_eq!(mup, Some(expected));
    let missing = complaints(GOOD, &["model.mup={output_multiplier: 2}"]);
    assert!(missing.contains("model.mup.base_hidden is missing"), "{missing}");
}

#[test]
fn what_takes_the_width_into_account_already_is_refused() {
    let scaled = ["model.mup.base_hidden=256", "optimizer.adafactor.scale_parameter=true"];
    let said = complaints(GOOD, &scaled);
    assert!(said.contains("steps would shrink with the width twice"), "{said}");
    let norm = ["model.mup={base_hidden: 256, embedding_multiplier: 2}"];
    let said = complaints(GOOD, &[&norm[..], &["model.embedding_layernorm=true"]].concat());
    assert!(said.contains("takes away what model.mup.embedding_multiplier 2 multiplies"), "{said}");
    let fine = ["model.mup={base_hidden: 256}", "model.embedding_layernorm=true"];
    assert_eq!(complaints(GOOD, &fine), "accepted");
    assert_eq!(complaints(GOOD, &["model.mup.base_hidden=8", "optimizer=adafactor"]), "accepted");
}
