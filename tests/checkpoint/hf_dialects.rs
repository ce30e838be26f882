//! Hugging Face folders as transformers' other versions and other programs write them: every spelling of a
//! key of config.json, and tensors of several types.

use crate::common::binary::Lab;
use crate::hf_llama::{config, copy, fixture, tensors};
use gptrain::checkpoint::safetensors::{Reader, header};
use gptrain::exchange::hf::read_config;
use half::bf16;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The keys of `tests/fixtures/transformers/spellings.py`, each under its other names.
#[test]
fn every_spelling_of_a_key_that_transformers_takes_is_read() {
    let lab = Lab::new();
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transformers");
    let list: BTreeMap<String, BTreeMap<String, Vec<String>>> =
        serde_json::from_slice(&fs::read(list.join("spellings.json")).unwrap()).unwrap();
    let mut count = 0;
    for (family, keys) in list {
        let usual = config(&fixture(&family));
        let expected = read_config(&fixture(&family)).unwrap().model;
        for (key, others) in keys {
            let value = &usual[&key];
            let wrong = json!(4 * value.as_u64().unwrap());
            for other in others {
                for first in [Value::Null, wrong.clone()] {
                    let mut spelled = usual.clone();
                    spelled[&key] = first;
                    spelled[&other] = value.clone();
                    fs::write(lab.path("config.json"), spelled.to_string()).unwrap();
                    let read = read_config(&lab.path("")).unwrap().model;
                    assert_eq!(read, expected, "{family}: {other} for {key}");
                    count += 1;
                }
                // A mistake names the key that the file has.
                let mut bad = usual.clone();
                bad[&other] = json!("many");
                fs::write(lab.path("config.json"), bad.to_string()).unwrap();
                let said = read_config(&lab.path("")).unwrap_err().to_string();
                assert!(said.contains(&format!("{other} is \"many\"")), "{said}");
            }
        }
    }
    assert_eq!(count, 14);
}

/// An export has the imported names with the values of this model, and both names of the type.
#[test]
fn other_spellings_of_an_imported_file_are_exported_with_their_values() {
    let lab = Lab::new();
    copy("bloom", &lab.path("bad"));
    let mut usual = config(&lab.path("bad"));
    for (key, other) in [("hidden_size", "n_embed"), ("n_head", "num_attention_heads")] {
        usual[other] = usual[key].take();
    }
    fs::write(lab.path("bad/config.json"), usual.to_string()).unwrap();
    lab.gptrain(&["import", "--hf", "bad", "--output", "run"])
        .expect(0, &[]);
    lab.gptrain(&["export", "run", "--output", "out"])
        .expect(0, &[]);
    let out = config(&lab.path("out"));
    for (key, other) in [("hidden_size", "n_embed"), ("n_head", "num_attention_heads")] {
        assert_eq!((&out[key], &out[other]), (&usual[other], &usual[other]));
    }
    assert_eq!((&out["dtype"], &out["torch_dtype"]), (&json!("float32"), &json!("float32")));
}

/// Writes the Qwen2 of the fixtures with matrices in bf16, and norms and biases in f32.
fn mixed(to: &Path) {
    copy("qwen2", to);
    let path = to.join("model.safetensors");
    let file = Reader::open(&path).unwrap();
    let dtype = |name: &str| if name.ends_with("proj.weight") { "BF16" } else { "F32" };
    let list = file
        .entries
        .iter()
        .map(|(name, entry)| (name.clone(), dtype(name), entry.shape.clone()));
    let (mut bytes, _) = header(&list.collect::<Vec<_>>(), &BTreeMap::new(), 8).unwrap();
    for name in file.entries.keys() {
        for value in file.floats(name).unwrap() {
            match dtype(name) {
                "BF16" => bytes.extend(bf16::from_f32(value).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn tensors_of_several_types_return_as_they_came_until_the_first_step() {
    let lab = Lab::new();
    mixed(&lab.path("bad"));
    let (came, _) = tensors(&lab.path("bad"));
    let types = |all: &BTreeMap<String, (String, Vec<usize>, Vec<u8>)>| {
        all.values()
            .map(|(dtype, ..)| dtype.clone())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(types(&came).len(), 2);
    let sets = ["batch.global=2", "train.steps=1", "model.seq_len=16", "data.split='100,0,0'"];
    let data = format!("data.train={}", lab.path("corpus").display());
    let sets = sets
        .into_iter()
        .chain([data.as_str()])
        .flat_map(|set| ["--set", set]);
    let import = ["import", "--hf", "bad", "--output", "run"];
    lab.gptrain(&import.into_iter().chain(sets).collect::<Vec<_>>())
        .expect(0, &[]);
    let export = |to: &str, more: &[&str]| {
        lab.gptrain(&[&["export", "run", "--output", to], more].concat())
            .expect(0, &[]);
        tensors(&lab.path(to)).0
    };
    assert_eq!(export("same", &[]), came);
    assert_eq!(types(&export("asked", &["--dtype", "bf16"])).len(), 1);
    lab.gptrain(&["run", "run"]).expect(0, &[]);
    assert_eq!(types(&export("trained", &[])).len(), 1);
}
