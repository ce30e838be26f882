//! The tokenizer of a dataset, of its run, and of what the run exports is one and the same.

use crate::common::binary::Lab;
use gptrain::checkpoint::safetensors::Reader;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A lab with a text, two tokenizers of 300 and 290 ids under names of their own, and a dataset built
/// with the first. A third of 280 ids has the name that transformers looks for.
fn lab() -> Lab {
    let lab = Lab::new();
    let text: String =
        (0..200).map(|i| format!("the {i}th line of a short text, {:x}\n", i * 7919)).collect();
    fs::write(lab.path("text.txt"), text).unwrap();
    for (name, vocab) in [("mine.json", "300"), ("other.json", "290"), ("tokenizer.json", "280")] {
        let args = ["data", "train-tokenizer", "text.txt", "--vocab", vocab, "-o", name];
        lab.gptrain(&args).well();
    }
    let build = "data build text.txt --format lines -t mine.json -o made --append-eod";
    lab.gptrain(&build.split(' ').collect::<Vec<_>>()).well();
    lab
}

const SETS: [&str; 3] = ["data.train=made", "model.vocab=300", "train.steps=2"];

fn read(path: PathBuf) -> Vec<u8> {
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn an_export_has_the_runs_own_tokenizer_whatever_lies_beside_it() {
    let lab = lab();
    fs::write(lab.path("generation_config.json"), r#"{"eos_token_id": 77}"#).unwrap();
    fs::write(lab.path("chat_template.jinja"), "of another model").unwrap();
    let mine = read(lab.path("mine.json"));
    lab.run(&[&SETS[..], &["data.tokenizer=mine.json"]].concat()).well();
    lab.gptrain(&["export", "runs/a", "-o", "hf"]).well();
    assert!(read(lab.path("hf/tokenizer.json")) == mine);
    let text = fs::read_to_string(lab.path("hf/generation_config.json")).unwrap();
    let settings: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(settings["eos_token_id"], json!(0));
    assert!(!lab.path("hf/chat_template.jinja").exists());

    // The run's folder has a copy: the original may change, or go.
    fs::copy(lab.path("other.json"), lab.path("mine.json")).unwrap();
    lab.gptrain(&["export", "runs/a", "-o", "hf"]).expect(2, &["add --overwrite"]);
    lab.gptrain(&["export", "runs/a", "-o", "hf", "--overwrite"]).well();
    assert!(read(lab.path("hf/tokenizer.json")) == mine);
    fs::remove_file(lab.path("mine.json")).unwrap();
    lab.gptrain(&["sample", "runs/a", "--tokens", "2"]).well();
    let other = lab.gptrain(&["sample", "runs/a", "--tokens", "2", "--tokenizer", "other.json"]);
    other.expect(2, &["is other.json (290 ids, digest", "own tokenizer is", "tokenizer (300 ids"]);

    // A file of the user's own is never replaced.
    fs::write(lab.path("hf/README.md"), "mine").unwrap();
    let refused = lab.gptrain(&["export", "runs/a", "-o", "hf", "--overwrite"]);
    refused.expect(2, &["holds README.md, which --overwrite does not replace"]);

    // A run without a copy, whose tokenizer was replaced by one with more ids than the model.
    fs::remove_dir_all(lab.path("runs/a/tokenizer")).unwrap();
    let large = ["data", "train-tokenizer", "text.txt", "--vocab", "320", "-o", "mine.json"];
    lab.gptrain(&large).well();
    let refused = lab.gptrain(&["export", "runs/a", "-o", "again"]);
    refused.expect(2, &["mine.json: has 320 ids; the model's vocabulary has 300"]);
    assert!(!lab.path("again").exists());
}

#[test]
fn a_run_with_another_tokenizer_than_its_datasets_is_refused() {
    let lab = lab();
    let words = ["data.tokenizer: is", "other.json (290 ids, digest", "mine.json (300 ids, digest"];
    lab.run(&[&SETS[..], &["data.tokenizer=other.json"]].concat()).expect(2, &words);
    assert!(!lab.path("runs").exists());
    lab.run(&["data.train=made", "model.vocab=299", "train.steps=2"])
        .expect(2, &["model.vocab: is 299", "made was built with mine.json (300 ids"]);
    lab.run(&[&SETS[..], &["data.eod={token: 7}"]].concat())
        .expect(2, &["data.eod.token: is 7", "end with 0", "set data.eod.token to 0"]);

    // Without data.tokenizer the recorded one is copied, so that `sample` works.
    lab.run(&SETS).well();
    lab.gptrain(&["sample", "runs/a", "--tokens", "2"]).well();
    let scored = ["eval", "runs/a", "--data", "made", "--tokenizer", "other.json"];
    lab.gptrain(&scored).expect(2, &["other.json (290 ids"]);

    // A dataset without a record is trained as before, with a note.
    fs::remove_file(lab.path("made.tokenizer")).unwrap();
    let check = ["manifest", "check", "run.yaml", "--set", SETS[0], "--set", SETS[1]];
    let done = lab.gptrain(&[&check[..], &["--set", "data.tokenizer=other.json"]].concat());
    done.well();
    assert!(done.out.contains("made.tokenizer does not exist"), "{}", done.out);
    assert!(done.out.contains("is a guess"), "{}", done.out);
}

#[test]
fn the_record_is_used_and_compared_by_every_command_on_data() {
    let lab = lab();
    let said = |args: &str| lab.gptrain(&args.split(' ').collect::<Vec<_>>());
    let new = said("manifest new --data made --params 1M");
    new.well();
    assert!(new.out.contains("tokenizer: mine.json\n"), "{}", new.out);
    assert!(new.out.contains("vocab: 300 # the tokenizer's"), "{}", new.out);
    let inspected = said("data inspect made");
    assert!(inspected.out.contains("mine.json (300 ids, digest"), "{}", inspected.out);
    assert!(inspected.out.contains("documents end with token 0"), "{}", inspected.out);
    assert!(inspected.out.contains("line of a short text"), "{}", inspected.out);
    assert!(said("data check made").out.contains("below the vocabulary's 300"));
    for command in [
        "data inspect made",
        "data check made",
        "manifest new --data made",
        "data samples made --seq-len 8",
    ] {
        let words =
            ["--tokenizer: is other.json (290 ids", "made was built with mine.json (300 ids"];
        said(&format!("{command} --tokenizer other.json")).expect(2, &words);
    }

    // Moved together, the two still find each other.
    fs::create_dir(lab.path("moved")).unwrap();
    for name in ["made.bin", "made.idx", "made.tokenizer", "mine.json"] {
        fs::rename(lab.path(name), lab.path("moved").join(name)).unwrap();
    }
    assert!(said("data inspect moved/made").out.contains("line of a short text"));
    fs::remove_file(lab.path("moved/mine.json")).unwrap();
    let done = said("data inspect moved/made");
    done.expect(0, &["was built with mine.json (300 ids", "no longer there"]);

    // The record of another dataset, and damage.
    let path = lab.path("moved/made.tokenizer");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"documents\": 200", "\"documents\": 201")).unwrap();
    said("data check moved/made").expect(2, &["is of a dataset of 201 documents", "remove"]);
    fs::write(&path, "{").unwrap();
    said("data check moved/made").expect(2, &["is not a record of a tokenizer"]);
}

#[test]
fn merged_datasets_keep_one_tokenizer_and_never_mix_two() {
    let lab = lab();
    let said = |args: &str| lab.gptrain(&args.split(' ').collect::<Vec<_>>());
    said("data merge made made -o twice").well();
    let record = fs::read_to_string(lab.path("twice.tokenizer")).unwrap();
    assert!(
        record.contains("\"documents\": 400") && record.contains("\"append_eod\": 0"),
        "{record}"
    );
    said("data build text.txt -t other.json -o foreign").well();
    said("data merge made foreign -o mixed").expect(2, &["foreign: was built with other.json"]);
    assert!(!lab.path("mixed.bin").exists());
    fs::remove_file(lab.path("foreign.tokenizer")).unwrap();
    said("data merge made foreign -o twice").expect(2, &["exists", "--overwrite"]);
    let done = said("data merge made foreign -o twice --overwrite");
    done.well();
    assert!(done.out.contains("wrote no tokenizer record"), "{}", done.out);
    assert!(!lab.path("twice.tokenizer").exists(), "the old record is of other data");
}

#[test]
fn an_import_applies_every_setting_to_the_manifest_that_it_writes() {
    let lab = Lab::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint/hf/qwen2");
    let import = |sets: &[&str], more: &[&str]| {
        let args = ["import", "--hf", from.to_str().unwrap(), "-o", "run"];
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        lab.gptrain(&args.into_iter().chain(sets).chain(more.iter().copied()).collect::<Vec<_>>())
    };
    for (set, says) in [
        ("nonsense.key=1", "nonsense"),
        ("train.steps=-4", "train.steps"),
        ("model.layers=7", "model.layers is 2 there, 7"),
        ("log.folder=else", "leave log.folder out"),
    ] {
        import(&[set], &[]).expect(2, &[says]);
        assert!(!lab.path("run").exists());
    }
    import(&["train.steps=7", "precision=bf16", "lr.peak=1e-4"], &[]).well();
    let text = fs::read_to_string(lab.path("run/manifest.yaml")).unwrap();
    for line in ["# Continued pretraining", "\n  steps: 7 # --set\n", "\nprecision: bf16 # --set\n"]
    {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    import(&[], &[]).expect(2, &["add --overwrite"]);
    import(&[], &["--overwrite"]).well();
    let text = fs::read_to_string(lab.path("run/manifest.yaml")).unwrap();
    assert!(text.contains("\n  steps: 1000\n"), "{text}");
    let alone = ["import", "--hf", from.to_str().unwrap(), "--set", "train.steps=7"];
    lab.gptrain(&alone)
        .expect(2, &["--set: changes a manifest", "neither a manifest nor --output"]);
}

#[test]
fn a_tied_head_of_other_values_is_not_scored() {
    let lab = Lab::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint/hf/llama");
    fs::create_dir(lab.path("tied")).unwrap();
    for entry in fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, lab.path("tied").join(path.file_name().unwrap())).unwrap();
    }
    let has_head = |entry: fs::DirEntry| {
        Reader::open(&entry.path()).is_ok_and(|file| file.entries.contains_key("lm_head.weight"))
    };
    assert!(fs::read_dir(&from).unwrap().any(|entry| has_head(entry.unwrap())));
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["tie_word_embeddings"] = json!(true);
    fs::write(lab.path("tied/config.json"), config.to_string()).unwrap();
    let words = ["lm_head.weight is not", "set tie_word_embeddings to false"];
    lab.gptrain(&["eval", "tied", "--data", "corpus"]).expect(2, &words);
    fs::remove_file(lab.path("tied/model-00002-of-00002.safetensors")).unwrap();
    lab.gptrain(&["eval", "tied", "--data", "corpus"]).expect(2, &["copy that file again"]);
}

#[test]
fn the_hint_beside_checkpoints_is_no_checkpoint() {
    let lab = Lab::new();
    lab.run(&[]).well();
    let folder = lab.path("runs/a/checkpoints");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = names.map(|path| path.display().to_string()).collect();
    names.sort();
    assert!(names.iter().any(|name| name.ends_with("latest")));
    let mut args = vec!["average"];
    args.extend(names.iter().map(String::as_str));
    args.extend(["-o", "mean"]);
    lab.gptrain(&args).well();
    lab.gptrain(&[
        "average",
        &names[names.len() - 1],
        &folder.join("latest").display().to_string(),
        "-o",
        "one",
    ])
    .expect(2, &["1 checkpoint", "at least two"]);
}
