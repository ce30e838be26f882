//! The same ids as Hugging Face's tokenizers, and clear errors for damaged files.

use std::path::{Path, PathBuf};

use gptrain::base::Problems;
use gptrain::data::Tokenizer;
use gptrain::data::tokenizer::{Encoder, Trainer, Training};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/tokenizers").join(name)
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

#[test]
fn special_tokens_in_text_are_text_unless_asked() {
    let tokenizer = austen();
    let text = "one<|endoftext|>two";
    let ids = tokenizer.encode(text);
    assert!(!ids.contains(&0) && tokenizer.decode(&ids) == text);
    let mut parsed = Vec::new();
    Encoder::small(&tokenizer).parse_special().encode(text, &mut parsed).unwrap();
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
    Tokenizer::load(&path).unwrap_err().downcast::<Problems>().unwrap().to_string()
}

#[test]
fn damaged_tokenizers_are_refused() {
    let error = broken("a.json", |file| {
        file["model"]["vocab"].as_object_mut().unwrap().remove("Ã");
        file["model"]["merges"] = json!([]);
    });
    assert!(error.contains("has no token for 1 of the bytes text is made of: 0xc3"), "{error}");
    let error = broken("b.json", |file| file["model"]["merges"][3] = json!("x nothing"));
    assert!(error.contains("merge 3 (x + nothing) is not between tokens"), "{error}");
    let error = broken("c.json", |file| file["model"]["vocab"]["a"] = json!(4_000_000_000u32));
    assert!(error.contains("id 4000000000 is beyond any vocabulary"), "{error}");
    let error = broken("d.json", |file| file["model"]["vocab"]["a"] = json!(5));
    assert!(error.contains("two tokens have id 5"), "{error}");
    let error = broken("e.json", |file| file["model"]["type"] = json!("Surprise"));
    assert!(error.contains("its model is Surprise, not BPE"), "{error}");
    let path = file("f.json", "{\"model\": {\"vocab\": ");
    let error = Tokenizer::load(&path).unwrap_err().to_string();
    assert!(error.contains("is not a tokenizer: EOF while parsing"), "{error}");
    let error = Tokenizer::load(Path::new("/nowhere/tokenizer.json")).unwrap_err();
    assert!(format!("{error:#}").contains("there is no such tokenizer"), "{error:#}");
}
