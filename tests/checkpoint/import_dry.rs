//! `import --dry` never refuses: it says what an import would refuse and why, for every format, and exits
//! with 0.

use crate::common::binary::Lab;
use crate::import_steps::*;
use serde_json::Value as Json;
use std::fs;

/// Output of a dry import that says these words, and its object.
fn dry(lab: &Lab, from: &str, more: &[&str], words: &[&str]) -> Json {
    let args = [&["import", from, "--dry"], more].concat();
    let done = lab.gptrain(&args);
    done.expect(0, &[]);
    says(&done, words);
    assert!(!lab.path("runs/imported").exists());
    let done = lab.gptrain(&[&args[..], &["--json"]].concat());
    done.expect(0, &[]);
    let json: Json = serde_json::from_str(&done.out).unwrap();
    let refused = json["refused"].as_array().unwrap();
    let lines = refused.iter().map(|line| line.as_str().unwrap());
    for line in lines {
        assert!(words.is_empty() || line.contains(" → "), "{line}");
    }
    json
}

/// Number of refusals of an object.
fn refused(json: &Json) -> usize {
    json["refused"].as_array().unwrap().len()
}

#[test]
fn nothing_is_refused_of_a_sound_folder() {
    for folder in [&BLOOM, &MEGATRON] {
        let lab = folder.lab();
        let json = dry(&lab, folder.from, &[], &[]);
        assert_eq!(refused(&json), 0, "{json}");
        assert!(json["parameters"].is_u64());
    }
}

/// Options that change the model, an optimizer of another kind, and the folder of the new run, at once.
#[test]
fn every_refusal_of_megatron_is_a_line() {
    let lab = BLOOM.variant("postnorm");
    fs::create_dir_all(lab.path("taken")).unwrap();
    fs::write(lab.path("taken/file"), "x").unwrap();
    let json = dry(
        &lab,
        BLOOM.from,
        &["--output", "taken", "--set", "optimizer=muon"],
        &[
            "would be refused: taken: ",
            "args.apply_residual_connection_post_layernorm is set: gptrain's residual comes before the norm",
            "would be refused: optimizer: is muon",
            "model.layers: 2  (num_layers)",
            "step 6, 32 samples",
        ],
    );
    assert_eq!(refused(&json), 3, "{json}");
    assert_eq!(json["step"], 6);
}

#[test]
fn settings_that_are_missing_or_wrong_are_lines() {
    let lab = TITAN.lab();
    let words = ["would be refused: titan/step-6: has no model.heads", "--set batch.global=512"];
    let json = dry(&lab, "titan", &[], &words);
    assert_eq!(refused(&json), json["wanted"].as_array().unwrap().len());
    let lab = UNEVEN.lab();
    let words =
        ["would be refused: uneven/deepspeed/global_step6: model.layers 3 is not divisible"];
    dry(&lab, UNEVEN.from, &["--set", "topology.layer_split=uniform"], &words);
}

/// A folder that cannot be read has its reason alone.
#[test]
fn damage_is_a_line() {
    let cases: [(&Folder, Change, &str); 4] = [
        (&BLOOM, remove("mp_rank_01_model_states.pt"), "mp_rank_01_model_states.pt is missing"),
        (&MEGATRON, cut("mp_rank_00_001/model_optim_rng.pt", 9000), "cut short"),
        (&TITAN, remove("__1_0.distcp"), "__1_0.distcp is missing"),
        (
            &OLMO,
            replace("config.json", br#""name": "default""#, br#""name": "reorder""#),
            "\"reorder\"",
        ),
    ];
    for (folder, change, word) in cases {
        let lab = folder.lab();
        change(&folder.step_in(&lab));
        let json = dry(&lab, folder.from, &[], &["would be refused: ", word]);
        assert!(refused(&json) > 0);
    }
}

#[test]
fn an_unknown_folder_is_a_line() {
    let lab = Lab::new();
    fs::create_dir(lab.path("something")).unwrap();
    let json = dry(&lab, "something", &[], &["would be refused: something: is not a checkpoint"]);
    assert!(json["format"].is_null());
    lab.gptrain(&["import", "missing", "--dry"])
        .expect(2, &["missing"]);
}

#[test]
fn hugging_face_folders_are_shown_with_their_refusals() {
    let lab = MEGATRON.lab();
    let model = lab.path("hf");
    lab.gptrain(&["export", "runs/whole", "--output", "hf"])
        .well();
    let json = dry(&lab, "hf", &[], &["model:"]);
    assert_eq!(refused(&json), 0, "{json}");
    fs::remove_file(model.join("model.safetensors")).unwrap();
    dry(&lab, "hf", &[], &["model:", "would be refused: hf: holds neither model.safetensors"]);
    fs::write(model.join("config.json"), r#"{"model_type": "t5"}"#).unwrap();
    let json = dry(&lab, "hf", &[], &["would be refused: hf/config.json: model_type t5"]);
    assert!(json["manifest_section"].is_null());
}
