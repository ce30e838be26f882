//! Counts of the planner against PyTorch's, for published models of all six families as transformers builds
//! them: parameters, FLOPs of a step, and bytes of weights, gradients and AdamW's states in float32.
//! `tests/fixtures/transformers/sizes.py` wrote PyTorch's numbers.

use crate::estimate_cli::json;
use gptrain::exchange::hf::read_config;
use gptrain::model::{flops_per_token, parameters};
use serde_json::{Map, Value};
use std::path::Path;

/// Tokens of the sequence whose FLOPs PyTorch counted.
const SEQ: usize = 1024;

fn published() -> Map<String, Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transformers/sizes.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// transformers' own config.json, read as an import reads it.
#[test]
fn parameters_and_flops_of_hugging_face_models_are_pytorchs() {
    let folder = tempfile::tempdir().unwrap();
    for (name, counted) in published() {
        let config = folder.path().join("config.json");
        std::fs::write(config, counted["config"].to_string()).unwrap();
        let mut model = read_config(folder.path()).unwrap().model;
        model.seq_len = SEQ;
        model.vocab_padded = model.vocab; // an import rounds it up
        assert_eq!(counted["parameters"], parameters(&model), "{name}");
        assert_eq!(counted["flops"], flops(flops_per_token(&model).model), "{name}");
    }
}

/// FLOPs of the sequence, a whole number.
fn flops(per_token: f64) -> u64 {
    (SEQ as f64 * per_token).round() as u64
}

/// The manifests that gptrain ships are those models. gptrain begins each tensor at a multiple of 256 bytes.
#[test]
fn sizes_and_states_of_shipped_manifests_are_pytorchs() {
    let published = published();
    for (manifest, name) in [
        ("gpt2-124m", "gpt2"),
        ("gpt2-1.5b", "gpt2-xl"),
        ("bloom-7b1", "bloom-7b1"),
        ("tr11-176b-bloom", "bloom"),
        ("llama3-8b", "Meta-Llama-3-8B"),
        ("qwen3-8b", "Qwen3-8B"),
    ] {
        let counted = &published[name];
        let plan = json(&format!(
            "manifests/{manifest}.yaml --as gptrain --hardware a100-80g --set precision=f32 \
             --set optimizer=adamw --set model.vocab_multiple=1 --set model.seq_len={SEQ} \
             --set 'topology={{data: 1}}'"
        ));
        assert_eq!(plan["parameters"], counted["parameters"], "{manifest}");
        for what in ["weights", "gradients", "optimizer"] {
            let planned = plan["memory"]["stages"][0]["bytes"][what].as_f64().unwrap();
            let padding = planned - counted[what].as_f64().unwrap();
            assert!(
                (0.0..2e-5 * planned).contains(&padding),
                "{manifest}: {what}: {padding} bytes"
            );
        }
    }
}
