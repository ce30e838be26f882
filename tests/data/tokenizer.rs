//! The same ids as Hugging Face's tokenizers, and clear errors for damaged files.

use std::path::{Path, PathBuf};

use crate::cli::{bad, data, folder, good};
use gptrain::base::Problems;
use gptrain::data::Tokenizer;
use gptrain::data::tokenizer::{Encoder, Trainer, Training};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/data/tokenizers")
        .join(name)
}

fn austen() -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/austen");
    Tokenizer::load(&folder).unwrap()
}

/// A file of this test's own.
fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tokenizer-{name}"));
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn ids_are_hugging_faces() {
    let cases = std::fs::read_to_string(fixture("cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&cases).unwrap();
    for name in ["gpt2", "prefix_space", "bloom", "ignore_merges", "foreign"] {
        let tokenizer = Tokenizer::load(&fixture(&format!("{name}.json"))).unwrap();
        assert_eq!(tokenizer.is_fast(), name != "foreign");
        assert_eq!(tokenizer.vocab(), 1000);
        assert_eq!(tokenizer.eod(), Some(0));
        let mut remembering = Encoder::new(&tokenizer);
        for case in &cases {
            let text = case["text"].as_str().unwrap();
            let want: Vec<u32> = serde_json::from_value(case[name].clone()).unwrap();
            assert_eq!(tokenizer.encode(text), want, "{name}: {text:?}");
            for _ in 0..2 {
                let mut ids = Vec::new();
                remembering.encode(text, &mut ids).unwrap();
                assert_eq!(ids, want, "{name}, remembered: {text:?}");
            }
            if name == "gpt2" || name == "bloom" {
                assert_eq!(tokenizer.decode(&want), text);
                assert_eq!(tokenizer.decode_bytes(&want), text.as_bytes());
            }
        }
    }
}

/// Files that transformers and tokenizers saved (`saved.py`): plain added tokens, an empty template, two
/// files of two classes, Unigram, a template with both ends.
#[test]
fn files_that_transformers_saved_have_its_ids() {
    let cases = std::fs::read_to_string(fixture("saved/cases.json")).unwrap();
    let cases: Value = serde_json::from_str(&cases).unwrap();
    for (name, rows) in cases.as_object().unwrap() {
        let tokenizer = Tokenizer::load(&fixture("saved").join(name)).unwrap();
        let fast = ["gpt2/tokenizer.json", "pair-gpt2"].contains(&name.as_str());
        assert_eq!(tokenizer.is_fast(), fast, "{name}: {}", tokenizer.encoder());
        for row in rows.as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            let wanted = |key: &str| serde_json::from_value::<Vec<u32>>(row[key].clone()).unwrap();
            assert_eq!(tokenizer.encode(text), wanted("ids"), "{name}: {text:?}");
            let mut parsed = Vec::new();
            Encoder::small(&tokenizer)
                .parse_special()
                .encode(text, &mut parsed)
                .unwrap();
            assert_eq!(parsed, wanted("parsed"), "{name}, parsed: {text:?}");
        }
    }
    let template = Tokenizer::load(&fixture("saved/template.json")).unwrap();
    assert_eq!((template.head(), template.tail()), (&[340][..], &[341][..]));
    let prompt = [vec![340], template.encode("the cat")[1..3].to_vec()].concat();
    assert_eq!(template.encode_prompt("the cat").unwrap(), prompt);
}

/// The encoder and its reason: an unknown field or value is never passed over.
#[test]
fn a_field_that_is_not_implemented_is_the_reason_for_the_crate() {
    let reason = |name: &str, change: &dyn Fn(&mut Value)| {
        let good = std::fs::read_to_string(fixture("gpt2.json")).unwrap();
        let mut value: Value = serde_json::from_str(&good).unwrap();
        change(&mut value);
        let path = file(name, &value.to_string());
        let tokenizer = Tokenizer::load(&path).unwrap();
        (tokenizer.encoder(), tokenizer.notes().join(" "), tokenizer.encode("the cat"))
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(&str, Change, &str); 5] = [
        ("r1", &|file| file["model"]["new"] = json!(1), "model.new is 1"),
        (
            "r3",
            &|file| file["normalizer"] = json!({"type": "NFC"}),
            "normalizer is {\"type\":\"NFC\"}",
        ),
        ("r4", &|file| file["added_tokens"][1]["id"] = json!(5), "added_tokens holds {"),
        ("r5", &|file| file["pre_tokenizer"]["new"] = json!(null), "pre_tokenizer is {"),
        ("r6", &|file| file["decoder"] = json!({"type": "Fuse"}), "decoder is {\"type\":\"Fuse\"}"),
    ];
    for (name, change, says) in cases {
        let (encoder, ..) = reason(name, change);
        assert!(
            encoder.starts_with(&format!("Hugging Face's tokenizers, as its {says}")),
            "{encoder}"
        );
    }
    let error = broken("r2.json", |file| file["new"] = json!({"a": 1}));
    assert!(error.contains("its new is {\"a\":1}, and Hugging Face's tokenizers says"), "{error}");
    // Bytes that no token spells are lost in the crate, with a note.
    let (encoder, notes, _) = reason("r7", &|file| {
        file["model"]["vocab"].as_object_mut().unwrap().remove("Ã");
        file["model"]["merges"] = json!([]);
    });
    let says = "model.vocab has no token for 1 of the bytes text is made of: 0xc3";
    assert!(encoder.contains(says) && notes.contains("left out of texts"), "{encoder} {notes}");
    // Dropout is off in both encoders, with a note.
    let plain = reason("r8", &|_| ());
    assert_eq!((plain.0.as_str(), plain.1.as_str()), ("gptrain", ""));
    for nfc in [Value::Null, json!({"type": "NFC"})] {
        let (encoder, notes, ids) = reason("r9", &|file| {
            file["model"]["dropout"] = json!(0.9);
            file["normalizer"] = nfc.clone();
        });
        assert_eq!((encoder == "gptrain", ids), (nfc.is_null(), plain.2.clone()));
        assert!(notes.contains("has model.dropout 0.9: BPE dropout is switched off"), "{notes}");
    }
}

#[test]
fn the_two_files_of_an_unknown_class_are_refused_and_settings_count() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tokenizer-class");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["vocab.json", "merges.txt"] {
        std::fs::copy(fixture("saved/pair-gpt2").join(name), folder.join(name)).unwrap();
    }
    let config = |text: &str| {
        std::fs::write(folder.join("tokenizer_config.json"), text).unwrap();
        let digest = gptrain::data::tokenizer::digest(&folder).unwrap();
        Tokenizer::load(&folder).map(|tokenizer| (tokenizer, digest))
    };
    let (plain, digest) = config("{}").unwrap();
    assert_eq!(
        (plain.vocab(), plain.token("Ġthe"), plain.token("nothing")),
        (340, plain.token(" the"), None)
    );
    let space = r#"{"add_prefix_space": true, "tokenizer_class": "GPT2TokenizerFast"}"#;
    let (spaced, other) = config(space).unwrap();
    assert_eq!(spaced.encode("the"), plain.encode(" the"));
    assert_ne!(digest, other);
    for (text, says) in [
        (r#"{"tokenizer_class": "RobertaTokenizer"}"#, "its class is RobertaTokenizer"),
        (r#"{"add_bos_token": true}"#, "sets add_bos_token"),
    ] {
        let said = config(text).unwrap_err().to_string();
        assert!(said.contains(says) && said.contains("save_pretrained"), "{said}");
    }
}

/// `data build` prints and records the encoder, and notes an end that a template already has.
#[test]
fn a_build_names_its_encoder_and_a_second_end() {
    let folder = folder("encoder");
    let saved = |name: &str| fixture("saved").join(name).display().to_string();
    let build = |tokenizer: &str, more: &str| {
        let line = format!("build corpus.jsonl -t {tokenizer} -o made --overwrite {more}");
        let done = data(&folder, &line).output().unwrap();
        let said = [done.stdout, done.stderr]
            .map(|text| String::from_utf8(text).unwrap())
            .concat();
        assert!(done.status.success(), "{said}");
        let record = std::fs::read_to_string(folder.join("made.tokenizer")).unwrap();
        (said, serde_json::from_str::<Value>(&record).unwrap())
    };
    let (said, record) = build(&saved("gpt2/tokenizer.json"), "--eod the");
    assert!(said.contains("\nencoded by gptrain\n"), "{said}");
    let the = Tokenizer::load(&fixture("saved/gpt2/tokenizer.json"))
        .unwrap()
        .token("the");
    assert_eq!((&record["encoder"], &record["append_eod"]), (&json!("gptrain"), &json!(the)));
    let (said, record) = build(&saved("template.json"), "--eod </s>");
    assert!(
        said.contains("encoded by Hugging Face's tokenizers, as its post_processor is"),
        "{said}"
    );
    assert!(said.contains("already ends each text with </s>"), "{said}");
    assert!(
        record["encoder"]
            .as_str()
            .unwrap()
            .contains("post_processor"),
        "{record}"
    );
    assert!(!build(&saved("template.json"), "").0.contains("already"));
    let wrong = format!("build corpus.jsonl -t {} -o none --eod nothing", saved("template.json"));
    assert!(bad(&folder, &wrong, 2).contains("\"nothing\" is not one token of"));
    // A merge keeps the encoder if it is the same.
    good(&folder, "merge made made -o twice");
    let record = std::fs::read_to_string(folder.join("twice.tokenizer")).unwrap();
    assert!(record.contains("post_processor"), "{record}");
}

#[test]
fn special_tokens_in_text_are_text_unless_asked() {
    let tokenizer = austen();
    let text = "one<|endoftext|>two";
    let ids = tokenizer.encode(text);
    assert!(!ids.contains(&0) && tokenizer.decode(&ids) == text);
    let mut parsed = Vec::new();
    Encoder::small(&tokenizer)
        .parse_special()
        .encode(text, &mut parsed)
        .unwrap();
    let want = [tokenizer.encode("one"), vec![0], tokenizer.encode("two")].concat();
    assert_eq!(parsed, want);
}

#[test]
fn bytes_are_a_tokenizer() {
    let tokenizer = Tokenizer::byte_level();
    assert_eq!(tokenizer.encode("aé"), [97, 0xc3, 0xa9]);
    assert_eq!((tokenizer.vocab(), tokenizer.eod()), (257, Some(256)));
    assert_eq!(tokenizer.decode(&[0xc3, 98]), "\u{fffd}b");
    assert_eq!(tokenizer.decode_bytes(&[0xc3, 98]), [0xc3, 98]);
    assert_eq!(tokenizer.decode(&[9999]), "\u{fffd}");
}

#[test]
fn long_pieces_are_merged_as_short_ones_are() {
    // 64 bytes and fewer are merged by search, more with a heap; a doubled text must agree.
    let tokenizer = austen();
    for length in [63, 64, 65, 1000, 200_000] {
        let text: String = "thequickbrown".chars().cycle().take(length).collect();
        let ids = tokenizer.encode(&text);
        assert_eq!(tokenizer.decode(&ids), text, "{length}");
        assert!(ids.len() < length / 2);
    }
}

#[test]
fn gpt2s_two_files_are_the_same_tokenizer() {
    let path = fixture("gpt2.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let merges: Vec<String> = file["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tokenizer-gpt2");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("vocab.json"), file["model"]["vocab"].to_string()).unwrap();
    let text = format!("#version: 0.2\n{}\n", merges.join("\n"));
    std::fs::write(folder.join("merges.txt"), text).unwrap();
    let (one, two) = (Tokenizer::load(&path).unwrap(), Tokenizer::load(&folder).unwrap());
    let text = "It is a truth universally acknowledged, हिन्दी — 2,000 times.";
    assert_eq!(one.encode(text), two.encode(text));
    assert_eq!(two.eod(), Some(0));
}

#[test]
fn what_is_learned_is_what_hugging_face_learns() {
    // Worked by hand from its rule: the most frequent pair, the lowest ids among equals.
    let mut trainer = Trainer::new();
    for text in ["aab aab", "ab"] {
        trainer.count(text);
    }
    let training = Training { vocab: 300, min_frequency: 2, special: vec!["<|end|>".into()] };
    let (json, vocab) = trainer.train(&training, |_| {}).unwrap();
    // Pieces: "aab" once, " aab" once, "ab" once. (a,b) occurs 3 times, then (a,ab) twice.
    let file: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(file["model"]["merges"], json!(["a b", "a ab"]));
    assert_eq!(vocab, 1 + 256 + 2);
    let tokenizer = Tokenizer::load(&self::file("learned.json", &json)).unwrap();
    assert_eq!(tokenizer.encode("aab").len(), 1);
}

/// Error of a tokenizer made from a good one by `change`.
fn broken(name: &str, change: impl FnOnce(&mut Value)) -> String {
    let good = std::fs::read_to_string(fixture("gpt2.json")).unwrap();
    let mut value: Value = serde_json::from_str(&good).unwrap();
    change(&mut value);
    let path = file(name, &value.to_string());
    Tokenizer::load(&path)
        .unwrap_err()
        .downcast::<Problems>()
        .unwrap()
        .to_string()
}

#[test]
fn damaged_tokenizers_are_refused() {
    let error = broken("b.json", |file| file["model"]["merges"][3] = json!("x nothing"));
    assert!(error.contains("merge 3 (x + nothing) is not between tokens"), "{error}");
    let error = broken("c.json", |file| file["model"]["vocab"]["a"] = json!(4_000_000_000u32));
    assert!(error.contains("id 4000000000 is beyond any vocabulary"), "{error}");
    let error = broken("d.json", |file| file["model"]["vocab"]["a"] = json!(5));
    assert!(error.contains("two tokens have id 5"), "{error}");
    let error = broken("e.json", |file| file["model"]["type"] = json!("Surprise"));
    assert!(error.contains("its model.type is \"Surprise\""), "{error}");
    let path = file("f.json", "{\"model\": {\"vocab\": ");
    let error = Tokenizer::load(&path).unwrap_err().to_string();
    assert!(error.contains("is not a tokenizer: EOF while parsing"), "{error}");
    let error = Tokenizer::load(Path::new("/nowhere/tokenizer.json")).unwrap_err();
    assert!(format!("{error:#}").contains("there is no such tokenizer"), "{error:#}");
}
