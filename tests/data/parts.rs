//! Few documents: `data build` cuts them into sequences, so that a split holds out their tail.

use super::cli::{bad, data, folder, good};
use gptrain::data::indexed::Indexed;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Tokens of the samples of a part, in the order of the text.
fn tokens(folder: &Path, prefix: &str, split: &str, which: &str) -> Vec<u64> {
    let arguments = format!("samples {prefix} --split {split} --which {which} --seq-len 16 --json");
    let said = good(folder, &format!("{arguments} --samples 1,1,1"));
    let first: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let tokens = first["tokens"].as_array().unwrap();
    tokens.iter().map(|token| token.as_u64().unwrap()).collect()
}

#[test]
fn one_text_has_a_validation_set() {
    let folder = folder("one text");
    // 20 letters, each a twentieth of the text.
    let text: String = ('a'..='t')
        .map(|letter| letter.to_string().repeat(100))
        .collect();
    fs::write(folder.join("a.txt"), &text).unwrap();
    let said = good(&folder, "build a.txt -t bytes -o mine");
    assert!(said.contains("1 document, 2,000 tokens"), "{said}");
    assert!(said.contains("cut the document into 20 sequences"), "{said}");
    let dataset = Indexed::open(&folder.join("mine")).unwrap();
    assert_eq!((dataset.documents(), dataset.sequences()), (1, 20));
    for split in ["95,5,0", "969,30,1"] {
        assert_eq!(tokens(&folder, "mine", split, "valid"), vec![u64::from(b't'); 17]);
    }
    assert!(!tokens(&folder, "mine", "95,5,0", "train").contains(&u64::from(b't')));
    // The tokens are those of the whole text.
    good(&folder, "build a.txt -t bytes -o whole --min-sequences 0");
    assert_eq!(Indexed::open(&folder.join("whole")).unwrap().sequences(), 1);
    let bin = |name: &str| fs::read(folder.join(name).with_extension("bin")).unwrap();
    assert_eq!(bin("mine"), bin("whole"));
}

#[test]
fn a_new_manifest_validates_on_the_tail_of_one_text() {
    let folder = folder("new manifest");
    fs::write(folder.join("a.txt"), "It is a truth universally acknowledged. ".repeat(400))
        .unwrap();
    good(&folder, "build a.txt -t TOKENIZER -o mine");
    let gptrain = |arguments: &str, code| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
        let output = command
            .current_dir(&folder)
            .args(arguments.split(' '))
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
        said
    };
    gptrain("manifest new --data mine --output new.yaml", 0);
    let made = fs::read_to_string(folder.join("new.yaml")).unwrap();
    let says = "split: 95,5,0 # per cent of the 20 sequences into which the text is cut";
    assert!(made.contains(says) && made.contains("eval_interval: "), "{made}");
    let log = gptrain("run new.yaml --set train.steps=1 --set train.eval_interval=1", 0);
    assert!(log.contains("valid"), "{log}");
    // The message of an empty part has remedies that work.
    good(&folder, "build a.txt -t TOKENIZER -o whole --min-sequences 0");
    let whole = "run new.yaml --set train.steps=1 --set log.folder=b --set data.train=whole";
    let error = gptrain(whole, 2);
    for remedy in ["--min-sequences 20", "data.split: 100,0,0", "train.eval_interval: 0"] {
        assert!(error.contains(remedy), "{error}");
    }
    gptrain(&format!("{whole} --set data.split=100,0,0 --set train.eval_interval=0"), 0);
}

/// JSON lines and tables say what a document is: they are cut only if that is asked for.
#[test]
fn documents_of_other_formats_are_cut_if_asked() {
    let folder = folder("few lines");
    let line = format!("{{\"text\": \"{}\"}}\n", "x".repeat(1000));
    fs::write(folder.join("a.jsonl"), line.repeat(3)).unwrap();
    for (option, sequences) in [("", 3), ("--min-sequences 20", 20), ("--min-sequences 3", 3)] {
        good(&folder, &format!("build a.jsonl -t bytes -o mine --overwrite {option}"));
        assert_eq!(Indexed::open(&folder.join("mine")).unwrap().sequences(), sequences, "{option}");
    }
    let said = good(&folder, "build a.jsonl -t bytes -o j --min-sequences 30 --append-eod --json");
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["documents"], &report["sequences"]), (&3.into(), &30.into()));
}

/// Other trainers' tokens without an index are named, with the way to a pair.
#[test]
fn tokens_without_an_index_are_named() {
    let folder = folder("lone tokens");
    let mut llm_c = vec![0u8; 1024];
    llm_c[..4].copy_from_slice(&20_240_520i32.to_le_bytes());
    fs::write(folder.join("fineweb.bin"), llm_c).unwrap();
    fs::write(folder.join("train.bin"), [7, 0, 9, 0, 1, 0]).unwrap();
    for (name, says) in [
        ("train", "train.bin has no .idx; it holds tokens alone, as nanoGPT writes them"),
        ("train.bin", "train.bin has no .idx"),
        ("fineweb", "fineweb.bin has no .idx; it holds tokens of llm.c"),
    ] {
        let error = bad(&folder, &format!("inspect {name}"), 2);
        assert!(error.contains(says) && error.contains("gptrain data build TEXT"), "{error}");
    }
    let output = data(&folder, "inspect none").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.idx does not exist"));
}
