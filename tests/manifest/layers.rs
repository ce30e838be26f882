//! `model.pattern`: kinds of layers, which repeat over the model.

use crate::{GOOD, complaints, with};
use gptrain::manifest::{LayerAttention, LayerKind, Model, Position};

fn model(sets: &[&str]) -> Model {
    with(&[&["model.position=rope"], sets].concat())
        .manifest
        .model
}

#[test]
fn without_a_pattern_all_layers_are_alike() {
    let m = model(&["model.window=9"]);
    assert!((0..6).all(|layer| m.window_of(layer) == Some(9) && m.kind(layer).is_none()));
    assert_eq!(m.ropes().len(), 1);
    assert!((0..6).all(|layer| model(&[]).window_of(layer).is_none()));
    assert_eq!(with(&[]).manifest.model.ropes(), []);
}

#[test]
fn a_pattern_repeats_over_the_layers() {
    let local = "{attention: window, rope: {theta: 50}}";
    let pattern = format!("model.pattern=[{local}, {local}, full, window]");
    let m = model(&["model.window=9", &pattern]);
    let windows: Vec<_> = (0..6).map(|layer| m.window_of(layer)).collect();
    assert_eq!(windows, [Some(9), Some(9), None, Some(9), Some(9), Some(9)]);
    let Position::Rope(own) = m.position else { panic!() };
    let bases: Vec<f64> = (0..6)
        .map(|layer| m.rope_of(layer).unwrap().theta)
        .collect();
    assert_eq!(bases, [50.0, 50.0, own.theta, own.theta, 50.0, 50.0]);
    assert_eq!(m.ropes().iter().map(|rope| rope.theta).collect::<Vec<_>>(), [50.0, own.theta]);
    let full = LayerKind { attention: LayerAttention::Full, rope: None };
    assert_eq!(m.pattern[2], full);
    // A kind with other settings is full unless it says otherwise.
    let m = model(&["model.window=9", "model.pattern=[window, {rope: {theta: 50}}]"]);
    assert_eq!((m.window_of(1), m.rope_of(1).unwrap().theta), (None, 50.0));
}

#[track_caller]
fn refused(sets: &[&str], complaint: &str) {
    assert_eq!(complaints(GOOD, sets), complaint);
}

#[test]
fn patterns_that_cannot_be_are_refused() {
    refused(
        &["model.pattern=[window, full]"],
        "--set model.pattern: model.pattern has layers with a window, and model.window is not set → set \
         model.window",
    );
    refused(
        &["model.window=9", "model.pattern=[full]"],
        "--set model.pattern: model.window is set, and no layer of model.pattern has a window → remove \
         model.window, or give a layer attention: window",
    );
    refused(
        &["model.pattern=[full, full, full, full, full, full, full]"],
        "--set model.pattern: model.pattern has 7 kinds of layers, and model.layers is 6 → remove kinds, \
         or raise model.layers",
    );
    refused(
        &["model.pattern=[{rope: {theta: 50}}]"],
        "--set model.pattern: model.pattern has layers with rope, and model.position is learned → set \
         model.position to rope",
    );
    refused(
        &["model.position=rope", "model.pattern=[{rope: {scaling: {}}}]"],
        "--set model.pattern: scaling has no kind → give linear, llama3 or yarn, or remove it",
    );
    refused(
        &["model.window=9", "model.pattern=[windows]"],
        "--set model.pattern: model.pattern.0 is \"windows\" → did you mean window? It takes full, window, \
         or a section with keys attention, rope",
    );
    // Another section has a key `window`.
    refused(
        &["model.window=9", "model.pattern=[{attention: window, window: 4}, full]"],
        "--set model.pattern: unknown key model.pattern.0.window → model.pattern.0 has the keys attention, \
         rope",
    );
    refused(
        &["model.window=9", "model.pattern=[{atention: window}]"],
        "--set model.pattern: unknown key model.pattern.0.atention → did you mean \
         model.pattern.0.attention?",
    );
}
