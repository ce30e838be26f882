//! The tokenizer of a dataset, of its run, and of what the run exports is one and the same.

use crate::common::binary::Lab;
use gptrain::checkpoint::safetensors::Reader;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A lab with a text, two tokenizers of 300 and 290 ids under names of their own, and a dataset built
/// with the first. A third of 280 ids has the name that transformers looks for.
fn lab() -> Lab {
    let lab = Lab::new();
    let text: String = (0..200)
        .map(|i| format!("the {i}th line of a short text, {:x}\n", i * 7919))
        .collect();
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
    lab.run(&[&SETS[..], &["data.tokenizer=mine.json"]].concat())
        .well();
    lab.gptrain(&["export", "runs/a", "-o", "hf"]).well();
    assert!(read(lab.path("hf/tokenizer.json")) == mine);
    let text = fs::read_to_string(lab.path("hf/generation_config.json")).unwrap();
    let settings: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(settings["eos_token_id"], json!(0));
    assert!(!lab.path("hf/chat_template.jinja").exists());

    // The run's folder has a copy: the original may change, or go.
    fs::copy(lab.path("other.json"), lab.path("mine.json")).unwrap();
    lab.gptrain(&["export", "runs/a", "-o", "hf"])
        .expect(2, &["add --overwrite"]);
    lab.gptrain(&["export", "runs/a", "-o", "hf", "--overwrite"])
        .well();
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
    lab.run(&[&SETS[..], &["data.tokenizer=other.json"]].concat())
        .expect(2, &words);
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
    assert!(done.out.contains("other.json is the tokenizer of "), "{}", done.out);
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
    assert!(
        said("data check made")
            .out
            .contains("below the vocabulary's 300")
    );
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
    assert!(
        said("data inspect moved/made")
            .out
            .contains("line of a short text")
    );
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
        lab.gptrain(
            &args
                .into_iter()
                .chain(sets)
                .chain(more.iter().copied())
                .collect::<Vec<_>>(),
        )
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

/// A record that was changed by hand: nothing is read without end, and ids have to fit it.
#[test]
fn a_record_that_names_a_device_or_wrong_numbers_is_refused() {
    let lab = lab();
    let path = lab.path("made.tokenizer");
    let text = fs::read_to_string(&path).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
    };
    mkfifoat(CWD, lab.path("pipe"), Mode::RUSR).unwrap();
    for other in ["/dev/zero", "pipe"] {
        changed("\"mine.json\"", &format!("\"{other}\""));
        for command in ["data check made", "data inspect made", "manifest new --data made"] {
            let done = lab.gptrain(&command.split(' ').collect::<Vec<_>>());
            done.expect(0, &[]);
            assert!(
                command.contains("new") || done.err.contains("no longer there"),
                "{}",
                done.err
            );
        }
        lab.run(&SETS).well();
        fs::remove_dir_all(lab.path("runs")).unwrap();
    }
    changed("\"vocab\": 300", "\"vocab\": 100");
    lab.run(&SETS)
        .expect(2, &["made: holds id 29", "the record of its tokenizer has 100 ids"]);
    lab.gptrain(&["data", "check", "made"])
        .expect(2, &["the vocabulary has 100 ids"]);
    for key in ["eod", "append_eod"] {
        changed(&format!("\"{key}\": 0"), &format!("\"{key}\": 300"));
        let says = [&format!("{key} is 300, beyond the 300 ids")[..]];
        lab.run(&SETS).expect(2, &says);
        lab.gptrain(&["data", "check", "made"]).expect(2, &says);
    }
}

/// Any token may end documents, and a run takes it from the record.
#[test]
fn any_token_may_end_documents() {
    let lab = lab();
    let build = "data build text.txt --format lines -t mine.json -o lines --eod Ġline";
    let done = lab.gptrain(&build.split(' ').collect::<Vec<_>>());
    done.expect(0, &[]);
    let record: Value = serde_json::from_slice(&read(lab.path("lines.tokenizer"))).unwrap();
    let eod = format!("data.eod={{token: {}}}", record["append_eod"]);
    let sets = ["data.train=lines", "model.vocab=300", "train.steps=2"];
    lab.run(&[&sets[..], &["data.tokenizer=mine.json", &eod]].concat())
        .well();
    let other = ["data.tokenizer=mine.json", "data.eod={token: 9}"];
    lab.run(&[&sets[..], &other].concat())
        .expect(2, &["data.eod.token: is 9", "end with"]);
}

/// GPT-2's two files go through import and export byte for byte, alone or beside a tokenizer.json, and
/// `sample` and `eval` read them.
#[test]
fn vocabulary_and_merges_go_through_a_run() {
    let lab = Lab::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint/hf/gpt2");
    let file = |name: &str| fs::read(from.join(name)).unwrap();
    let json: Value = serde_json::from_slice(&file("tokenizer.json")).unwrap();
    let vocab = json["model"]["vocab"].to_string();
    let merges = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| match pair {
            Value::String(pair) => format!("{pair}\n"),
            pair => format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        });
    let merges = format!("#version: 0.2\n{}", merges.collect::<String>());
    for (name, both) in [("pair", false), ("both", true)] {
        fs::create_dir(lab.path(name)).unwrap();
        for part in ["config.json", "model.safetensors"] {
            fs::write(lab.path(name).join(part), file(part)).unwrap();
        }
        let mut files = vec![("vocab.json", vocab.as_bytes()), ("merges.txt", merges.as_bytes())];
        let whole = file("tokenizer.json");
        files.extend(both.then_some(("tokenizer.json", &whole[..])));
        for (part, content) in &files {
            fs::write(lab.path(name).join(part), content).unwrap();
        }
        let (run, out) = (format!("run-{name}"), format!("out-{name}"));
        lab.gptrain(&["import", "--hf", name, "--output", &run])
            .well();
        let manifest = fs::read_to_string(lab.path(&run).join("manifest.yaml")).unwrap();
        let named = if both { "hf/tokenizer.json" } else { "hf/vocab.json" };
        assert!(manifest.contains(&format!("tokenizer: {named}\n")), "{manifest}");
        lab.gptrain(&["export", &run, "--output", &out]).well();
        for (part, content) in &files {
            assert!(read(lab.path(&out).join(part)) == *content, "{name}: {part}");
        }
        lab.gptrain(&["sample", &run, "--tokens", "3"]).well();
    }

    // Another program's file alone is named by its format.
    fs::remove_file(lab.path("pair/vocab.json")).unwrap();
    fs::write(lab.path("pair/tokenizer.model"), b"\n\x0e\n\x05<unk>\x15\0\0\0\0").unwrap();
    lab.gptrain(&["import", "--hf", "pair", "--output", "run-model"])
        .well();
    let done = lab.gptrain(&["sample", "run-model", "--tokens", "3"]);
    done.expect(
        2,
        &["SentencePiece's tokenizer.model", "give a tokenizer.json", "save_pretrained"],
    );
    lab.gptrain(&["export", "run-model", "--output", "out-model"])
        .well();
    assert!(lab.path("out-model/tokenizer.model").exists());
}

/// A run trains on ids and only copies its tokenizer, also one that other programs read.
#[test]
fn a_run_keeps_a_tokenizer_of_another_program() {
    let lab = Lab::new();
    fs::write(lab.path("tokenizer.model"), b"\n\x0e\n\x05<unk>\x15\0\0\0\0").unwrap();
    for steps in ["train.steps=2", "train.steps=4"] {
        lab.run(&[steps, "data.tokenizer=tokenizer.model"]).well();
    }
    let kept = read(lab.path("runs/a/tokenizer/tokenizer.model"));
    assert!(kept == read(lab.path("tokenizer.model")));
    lab.gptrain(&["sample", "runs/a"])
        .expect(2, &["is SentencePiece's tokenizer.model"]);
}

#[test]
fn bytes_are_a_tokenizer_for_samples_and_scores() {
    let lab = Lab::new();
    fs::write(lab.path("text.txt"), "a text of bytes, which every model of 257 ids can score")
        .unwrap();
    lab.run(&["train.steps=2", "model.vocab=257"]).well();
    lab.gptrain(&["sample", "runs/a", "--tokens", "3"])
        .expect(2, &["--tokenizer", "or --tokenizer bytes"]);
    lab.gptrain(&["sample", "runs/a", "--tokens", "3", "--tokenizer", "bytes"])
        .well();
    let score = ["eval", "runs/a", "--data", "text.txt", "--tokenizer", "bytes"];
    assert!(lab.gptrain(&score).expect(0, &[]).out.contains("54 tokens"));
    lab.run(&["train.steps=2", "log.folder=runs/b"]).well();
    let small = ["sample", "runs/b", "--tokenizer", "bytes"];
    lab.gptrain(&small).expect(2, &["bytes: has 257 ids"]);
}

/// A list of end tokens in generation_config.json: each of them ends a text.
#[test]
fn every_token_of_a_list_ends_a_text() {
    let lab = Lab::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint/hf/gpt2");
    fs::create_dir(lab.path("model")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::write(lab.path("model").join(name), read(from.join(name))).unwrap();
    }
    let sample = |ends: Value, run: &str| -> Value {
        let settings = json!({ "eos_token_id": ends }).to_string();
        fs::write(lab.path("model/generation_config.json"), settings).unwrap();
        lab.gptrain(&["import", "--hf", "model", "--output", run])
            .well();
        let args = ["sample", run, "--tokens", "4", "--temperature", "0", "--json"];
        serde_json::from_str(&lab.gptrain(&args).expect(0, &[]).out).unwrap()
    };
    let whole = sample(json!(64), "one");
    assert_eq!((&whole["finish"], &whole["tokens"]), (&json!("tokens"), &json!(4)));
    let every = sample(json!((0..65).collect::<Vec<u32>>()), "all");
    assert_eq!((&every["finish"], &every["tokens"]), (&json!("end of document"), &json!(0)));
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
    assert!(
        fs::read_dir(&from)
            .unwrap()
            .any(|entry| has_head(entry.unwrap()))
    );
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["tie_word_embeddings"] = json!(true);
    fs::write(lab.path("tied/config.json"), config.to_string()).unwrap();
    let words = ["lm_head.weight is not", "set tie_word_embeddings to false"];
    lab.gptrain(&["eval", "tied", "--data", "corpus"])
        .expect(2, &words);
    fs::remove_file(lab.path("tied/model-00002-of-00002.safetensors")).unwrap();
    lab.gptrain(&["eval", "tied", "--data", "corpus"])
        .expect(2, &["copy that file again"]);
}

#[test]
fn the_hint_beside_checkpoints_is_no_checkpoint() {
    let lab = Lab::new();
    lab.run(&[]).well();
    let folder = lab.path("runs/a/checkpoints");
    let names = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
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
