//! Folders of Hugging Face's transformers: what we read from them gives their logits, and what we
//! write is what they wrote. The fixtures were made by `fixtures/checkpoint/hf/make.py`, whose
//! `--check` loads an exported folder with transformers.

use crate::common::binary::Lab;
use gptrain::checkpoint::safetensors::Reader;
use gptrain::checkpoint::{Checkpoint, load_weights};
use gptrain::device::cpu::Cpu;
use gptrain::engine::Sampler;
use gptrain::manifest;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const SEQ: usize = 24;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/checkpoint/hf")
        .join(name)
}

const GPT2: [&str; 1] = ["model={layers: 2, hidden: 32, heads: 4, vocab: 65, seq_len: 24}"];
const UNTIED: [&str; 1] = ["model={layers: 1, hidden: 24, heads: 3, ffn_hidden: 40, vocab: 65, \
     seq_len: 24, gelu: exact, layernorm_eps: 1e-4, tied_head: false}"];
const BLOOM: [&str; 1] = ["model={layers: 2, hidden: 36, heads: 6, vocab: 65, seq_len: 24, \
     position: alibi, embedding_layernorm: true}"];

/// Imports a fixture; the run's folder is `runs/a`.
fn imported(name: &str, model: &[&str]) -> Lab {
    let lab = Lab::new();
    let folder = fixture(name);
    let mut args = vec!["import", "--hf", folder.to_str().unwrap(), "run.yaml"];
    let tokenizer = format!("data.tokenizer={}", folder.join("tokenizer.json").display());
    for set in model
        .iter()
        .copied()
        .chain(["data.eod.token=0", &tokenizer])
    {
        args.extend(["--set", set]);
    }
    lab.gptrain(&args).expect(0, &[]);
    lab
}

fn check(name: &str, model: &[&str]) {
    let lab = imported(name, model);
    let step = lab.path("runs/a/checkpoints/step-00000000");
    logits(name, &step);
    let inspection = gptrain::checkpoint::inspect::inspect(&step, true).unwrap();
    assert_eq!(inspection.damage, Vec::<String>::new());

    // Out again: the same tensors under the same names, and a config.json that says the same.
    lab.gptrain(&["export", "runs/a", "--hf", "out"])
        .expect(0, &[]);
    let file = |folder: &Path| Reader::open(&folder.join("model.safetensors")).unwrap();
    let (ours, theirs) = (file(&lab.path("out")), file(&fixture(name)));
    let names = |reader: &Reader| reader.entries.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs));
    for (key, entry) in &theirs.entries {
        assert_eq!(ours.entries[key].shape, entry.shape, "{key}");
        assert_eq!(ours.words::<u32>(key).unwrap(), theirs.words::<u32>(key).unwrap(), "{key}");
    }
    let config = |folder: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
    };
    let (ours, theirs) = (config(&lab.path("out")), config(&fixture(name)));
    for (key, value) in theirs.as_object().unwrap() {
        let mut free = ["transformers_version", "pad_token_id", "n_inner"].iter();
        let dropout = key.ends_with("pdrop") || key.ends_with("dropout");
        if !free.any(|free| free == key) && !dropout && ours.get(key).is_some() {
            assert_eq!(&ours[key], value, "{key}");
        }
    }
    for key in
        ["model_type", "architectures", "n_layer", "n_head", "vocab_size", "layer_norm_epsilon"]
    {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
    let tokenizer = |folder: &Path| fs::read(folder.join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer(&lab.path("out")), tokenizer(&fixture(name)));

    // In bf16: half the size, each value rounded.
    lab.gptrain(&["export", "runs/a", "--hf", "half", "--dtype", "bf16"])
        .expect(0, &[]);
    let half = file(&lab.path("half"));
    let key = "transformer.ln_f.weight";
    let exact = file(&fixture(name)).floats(key).unwrap();
    let rounded: Vec<f32> = exact
        .iter()
        .map(|v| half::bf16::from_f32(*v).to_f32())
        .collect();
    assert_eq!((half.entries[key].dtype.as_str(), half.floats(key).unwrap()), ("BF16", rounded));
    lab.gptrain(&["export", "runs/a", "--hf", "out"])
        .expect(2, &["already contains a model"]);
}

/// Every position's logits, from a sampler with the checkpoint's weights, to 1e-5.
fn logits(name: &str, step: &Path) {
    let checkpoint = Checkpoint::open(step).unwrap();
    let text = &checkpoint.index.manifest;
    let m = manifest::parse(text, "saved", Path::new("."), &[])
        .unwrap()
        .manifest;
    let cpu = Cpu::new(Some(1));
    let mut sampler = Sampler::new(&cpu, &m, SEQ).unwrap();
    load_weights(step, &sampler.weights).unwrap();
    let reader = Reader::open(&fixture(name).join("logits.safetensors")).unwrap();
    let ids: Vec<i32> = reader.words("ids").unwrap();
    let expected: Vec<f32> = reader.words("logits").unwrap();
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest > 1.0, "the logits say something: {largest}");
    for (ids, expected) in ids.chunks(SEQ).zip(expected.chunks(SEQ * 65)) {
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        for (i, expected) in expected.chunks(65).enumerate() {
            let ours = sampler.logits(&ids[..=i]);
            let off = ours
                .iter()
                .zip(expected)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(off <= 1e-5, "{name}, position {i}: off by {off}");
        }
    }
}

#[test]
fn gpt2() {
    check("gpt2", &GPT2);
}

#[test]
fn gpt2_with_a_head_of_its_own_and_exact_gelu() {
    check("gpt2-untied", &UNTIED);
}

#[test]
fn bloom_with_heads_that_are_no_power_of_two() {
    check("bloom", &BLOOM);
}

#[test]
fn a_run_goes_on_from_imported_weights() {
    let lab = imported("gpt2", &GPT2);
    let tokenizer = format!("data.tokenizer={}", fixture("gpt2/tokenizer.json").display());
    let sets = [GPT2[0], "data.eod.token=0", &tokenizer];
    let done = lab.run(&sets);
    done.expect(0, &[]);
    assert!(
        done.out
            .contains("resuming from runs/a/checkpoints/step-00000000"),
        "{}",
        done.out
    );
    assert_eq!(lab.metrics("runs/a").len(), 12);
    let again = lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"]);
    assert!(
        again
            .expect(0, &[])
            .out
            .contains("imported   Hugging Face gpt2"),
        "{}",
        again.out
    );
    let folder = fixture("gpt2");
    let import = ["import", "--hf", folder.to_str().unwrap(), "run.yaml", "--set", GPT2[0]];
    lab.gptrain(&import)
        .expect(2, &["has a checkpoint already", "log.folder"]);
}

#[test]
fn what_does_not_fit_is_told_with_a_remedy() {
    let lab = Lab::new();
    let folder = fixture("bloom");
    let folder = folder.to_str().unwrap();
    let section = lab.gptrain(&["import", "--hf", folder]);
    assert!(section.expect(0, &[]).out.contains("  position: alibi\n"), "{}", section.out);
    let wrong = lab.gptrain(&["import", "--hf", folder, "run.yaml"]);
    wrong
        .expect(2, &["model.hidden is 36 there, 32 in the manifest", "--set model.position=alibi"]);
    lab.gptrain(&["import", "--hf", "nowhere", "run.yaml"])
        .expect(2, &["nowhere/config.json: there"]);

    let bad = |change: &dyn Fn(&Path), code: i32, words: &[&str]| {
        let copy = lab.path("bad");
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir(&copy).unwrap();
        for name in ["config.json", "model.safetensors"] {
            fs::copy(fixture("gpt2").join(name), copy.join(name)).unwrap();
        }
        change(&copy);
        lab.gptrain(&["import", "--hf", "bad", "run.yaml", "--set", GPT2[0]])
            .expect(code, words);
        assert!(!lab.path("runs/a/checkpoints").exists());
    };
    let config = |from: &'static str, to: &'static str| {
        move |folder: &Path| {
            let path = folder.join("config.json");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from));
            fs::write(path, text.replace(from, to)).unwrap();
        }
    };
    bad(&config("\"gpt2\"", "\"opt\""), 2, &["model_type opt", "gpt2, bloom, llama"]);
    bad(&config("\"n_layer\": 2", "\"n_layer\": -2"), 2, &["n_layer is -2"]);
    bad(&config("\"n_layer\": 2", "\"n_layer\": 1"), 2, &["model.layers is 1 there, 2"]);
    bad(&config("gelu_new", "relu"), 2, &["activation_function is \"relu\""]);
    bad(&config("scale_attn_weights\": true", "scale_attn_weights\": false"), 2, &["must be true"]);
    bad(&config("\"n_layer\": 2", "\"n_layer\": \"2\""), 2, &["n_layer is \"2\""]);
    bad(&config("\"n_layer\": 2", "\"n_layer\": 2.0"), 2, &["n_layer is 2.0"]);
    bad(&config("\"attn_pdrop\": 0.1", "\"attn_pdrop\": \"0.1\""), 2, &["attn_pdrop is \"0.1\""]);
    bad(&config("_embeddings\": true", "_embeddings\": \"no\""), 2, &["true or false is needed"]);
    bad(&config("epsilon\": 1e-05", "epsilon\": \"1e-5\""), 2, &["layer_norm_epsilon is \"1e-5\""]);
    bad(&config("{", "["), 2, &["not a JSON object"]);
    let cut = |folder: &Path| {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(folder.join("model.safetensors"));
        file.unwrap().set_len(5000).unwrap();
    };
    bad(&cut, 2, &["model.safetensors", "damaged", "copy that file again"]);
    let none = |folder: &Path| fs::remove_file(folder.join("model.safetensors")).unwrap();
    bad(&none, 2, &["holds neither model.safetensors nor", "save_pretrained"]);
}

#[test]
fn models_that_hugging_face_cannot_say_are_refused() {
    let lab = Lab::new();
    lab.run(&["model.position=alibi"]).expect(0, &[]);
    let done = lab.gptrain(&["export", "runs/a", "--hf", "out"]);
    done.expect(2, &["the embedding has no layernorm; BLOOM cannot say that"]);
    assert!(!lab.path("out").exists());
}

#[test]
fn a_family_with_the_other_familys_positions_trains_and_is_not_exported() {
    let lab = Lab::new();
    lab.run(&["model.family=bloom", "model.position=learned"])
        .expect(0, &[]);
    let done = lab.gptrain(&["export", "runs/a", "--hf", "out"]);
    done.expect(2, &["model.position is learned of bloom", "train with the other family"]);
}
