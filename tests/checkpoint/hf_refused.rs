//! Hugging Face folders that are not what they say, each refused in one clear line, with nothing
//! written; and outputs that are there already or do not fit.

use super::hf_llama::{config, copy, fixture};
use crate::common::binary::{Done, Lab, limited};
use gptrain::checkpoint::safetensors::Reader;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn import(lab: &Lab) -> Done {
    lab.gptrain(&["import", "--hf", "bad", "--output", "run"])
}

/// A changed copy of a fixture gives this error, in lines of which one has all these words.
fn refused(lab: &Lab, name: &str, change: impl Fn(&Path), words: &[&str]) {
    copy(name, &lab.path("bad"));
    change(&lab.path("bad"));
    let done = import(lab);
    let line = |line: &&str| words.iter().all(|word| line.contains(word));
    assert_eq!(done.code, Some(2), "{words:?}: {}{}", done.out, done.err);
    assert!(done.err.lines().any(|l| line(&l)), "{words:?} are not in a line of:\n{}", done.err);
    assert!(!done.err.contains("panicked"));
    assert_eq!(left(lab), Vec::<String>::new(), "no file of it remains");
}

/// Folders of the lab that an import made.
fn left(lab: &Lab) -> Vec<String> {
    let entries = fs::read_dir(lab.path(".")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let ours = ["bad", "cache", "corpus.bin", "corpus.idx", "run.yaml"];
    names
        .filter(|name| !ours.contains(&name.as_str()))
        .collect()
}

/// Sets a key of config.json.
fn set(key: &'static str, value: Value) -> impl Fn(&Path) {
    move |folder| {
        let mut config = config(folder);
        match key.split_once('.') {
            Some((outer, inner)) => config[outer][inner] = value.clone(),
            None => config[key] = value.clone(),
        }
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }
}

#[test]
fn configurations_that_are_not_gptrains_are_named() {
    let lab = Lab::new();
    let cases: &[(&str, Value, &[&str])] = &[
        ("model_type", json!("gemma3"), &["model_type gemma3"]),
        ("model_type", json!(7), &["model_type"]),
        ("architectures", json!(["LlamaForSequenceClassification"]), &["architectures is"]),
        ("num_hidden_layers", json!("2"), &["num_hidden_layers is \"2\""]),
        ("num_hidden_layers", json!(2.0), &["num_hidden_layers is 2.0"]),
        ("num_attention_heads", json!(true), &["num_attention_heads is true"]),
        ("num_key_value_heads", json!(4), &["num_key_value_heads is 4"]),
        ("rms_norm_eps", json!("1e-5"), &["rms_norm_eps is \"1e-5\""]),
        ("tie_word_embeddings", json!("false"), &["tie_word_embeddings is \"false\""]),
        ("hidden_act", json!("gelu"), &["hidden_act is \"gelu\""]),
        ("attention_bias", json!(true), &["self_attn.o_proj.bias is missing"]),
        ("mlp_bias", json!(true), &["mlp_bias is true"]),
        ("attention_dropout", json!(1.5), &["attention_dropout is 1.5"]),
        ("quantization_config", json!({"bits": 4}), &["quantization_config is"]),
        ("rope_interleaved", json!(true), &["rope_interleaved is true"]),
        ("rope_theta", json!(1e4), &["rope_theta is 10000.0"]),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0}), &["rope_scaling is"]),
        ("rope_parameters", json!("llama3"), &["rope_parameters is \"llama3\""]),
        ("rope_parameters.rope_type", json!("dynamic"), &["rope_type is \"dynamic\""]),
        ("rope_parameters.rope_type", json!("longrope"), &["rope_type is \"longrope\""]),
        ("rope_parameters.rope_type", json!(3), &["rope_type is 3"]),
        ("rope_parameters.factor", json!(null), &["rope_parameters.factor is null"]),
        ("rope_parameters.factor", json!("4"), &["rope_parameters.factor is \"4\""]),
        ("rope_parameters.mscale", json!(0.7), &["rope_parameters.mscale is 0.7"]),
        ("rope_parameters.truncate", json!(false), &["rope_parameters.truncate is false"]),
        ("rope_parameters.partial_rotary_factor", json!(0.5), &["partial_rotary_factor is 0.5"]),
    ];
    for (key, value, words) in cases {
        refused(&lab, "llama", set(key, value.clone()), words);
    }
    let ntk = set("rope_parameters.rope_type", json!("dynamic"));
    refused(&lab, "llama", ntk, &["dynamic NTK turns by the length of what is read"]);
    refused(&lab, "qwen2", set("max_window_layers", json!(-1)), &["max_window_layers is -1"]);
    let short = json!(["full_attention"]);
    refused(&lab, "qwen2", set("layer_types", short), &["layer_types is [\"full_attention\"]"]);
    let strange = json!(["full_attention", "chunked_attention"]);
    refused(&lab, "qwen2", set("layer_types", strange), &["layer_types is"]);
    refused(&lab, "qwen3", set("attention_bias", json!(true)), &["q_proj.bias is missing"]);
    let scale = set("rope_parameters.mscale", json!(-1));
    refused(&lab, "qwen3", scale, &["rope_parameters.mscale is -1"]);
    let whole = set("rope_parameters.truncate", json!("no"));
    refused(&lab, "qwen3", whole, &["rope_parameters.truncate is \"no\""]);
    let text = |text: &'static str| move |f: &Path| fs::write(f.join("config.json"), text).unwrap();
    refused(&lab, "llama", text("[]"), &["config.json: not a JSON object"]);
    refused(&lab, "llama", text("{\"a\": NaN, \"b\"}"), &["config.json: not a JSON object"]);
}

#[test]
fn keys_that_are_not_known_are_told_and_dropout_is_taken() {
    let lab = Lab::new();
    copy("llama", &lab.path("bad"));
    set("logit_scale", json!(0.5))(&lab.path("bad"));
    set("attention_dropout", json!(0.1))(&lab.path("bad"));
    let done = import(&lab);
    assert!(done.expect(0, &[]).out.contains("config.json: logit_scale"), "{}", done.out);
    let text = fs::read_to_string(lab.path("run/manifest.yaml")).unwrap();
    assert!(text.contains("attention: 0.1\n"), "{text}");
}

/// Replaces the values of an F32 tensor.
fn values(folder: &Path, file: &str, name: &str, change: impl Fn(&mut [f32])) {
    let path = folder.join(file);
    let mut bytes = fs::read(&path).unwrap();
    let [from, to] = Reader::open(&path).unwrap().entries[name].data_offsets;
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let range = (data + from) as usize..(data + to) as usize;
    let words = bytes[range.clone()]
        .chunks_exact(4)
        .map(|word| word.try_into().unwrap());
    let mut values: Vec<f32> = words.map(f32::from_le_bytes).collect();
    change(&mut values);
    bytes[range].copy_from_slice(bytemuck::cast_slice(&values));
    fs::write(path, bytes).unwrap();
}

/// Replaces text of the same length in a file's header.
fn header(file: &'static str, from: &'static str, to: &'static str) -> impl Fn(&Path) {
    assert_eq!(from.len(), to.len());
    move |folder| {
        let path = folder.join(file);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("{from} is not in {file}"));
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn weights_that_are_not_the_models_are_named() {
    let lab = Lab::new();
    const ONE: &str = "model.safetensors";
    let tensor = "model.layers.1.mlp.gate_proj.weight";
    let odd = "model.layers.1.mlp.gate_prog.weight";
    let renamed = || header(ONE, "layers.1.mlp.gate_proj", "layers.1.mlp.gate_prog");
    refused(&lab, "qwen2", renamed(), &[tensor, "is missing"]);
    refused(&lab, "qwen2", renamed(), &[odd, "is not in a qwen2 model"]);
    let other = set("intermediate_size", json!(21));
    let words = ["gate_proj.weight is [20, 24], config.json makes it [21, 24]"];
    refused(&lab, "qwen2", other, &words);
    refused(&lab, "qwen2", header(ONE, "\"F32\"", "\"I32\""), &["is I32: F32, BF16 and F16"]);
    let wider = set("num_key_value_heads", json!(6));
    refused(&lab, "qwen2", wider, &["k_proj.weight is [8, 24], config.json makes it [24, 24]"]);
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        let write = |f: &Path| values(f, ONE, "model.norm.weight", |v| v[3] = bad);
        refused(
            &lab,
            "qwen2",
            write,
            &["model.norm.weight has", if bad.is_nan() { "1 NaN" } else { "1 infinite" }],
        );
    }
    let half = |f: &Path| values(f, ONE, "model.norm.weight", |v| v[0] = f32::NAN);
    refused(&lab, "qwen2", half, &["model.norm.weight has 1 NaN, 0 infinite"]);
    let gone = |f: &Path| fs::remove_file(f.join(ONE)).unwrap();
    refused(&lab, "qwen2", gone, &["holds neither model.safetensors nor"]);
    let bin = |f: &Path| fs::rename(f.join(ONE), f.join("pytorch_model.bin")).unwrap();
    refused(&lab, "qwen2", bin, &["holds pytorch_model.bin"]);

    refused(&lab, "llama", set("tie_word_embeddings", json!(true)), &["lm_head.weight is not"]);
    refused(
        &lab,
        "qwen2",
        set("tie_word_embeddings", json!(false)),
        &["lm_head.weight is missing"],
    );
}

/// Entries that transformers passes over: constants and a tied head that the index names and no file has, a tensor
/// in another file than the index says, no metadata, and numbers in config.json that are not finite.
#[test]
fn entries_that_no_tensor_needs_are_passed_over() {
    let lab = Lab::new();
    copy("llama", &lab.path("bad"));
    let path = lab.path("bad/model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let map = index["weight_map"].as_object_mut().unwrap();
    let inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq";
    map.insert(inv_freq.into(), json!("model-00003-of-00003.safetensors"));
    let norm = map["model.norm.weight"].as_str().unwrap();
    let other = if norm.contains("00001") { "00002" } else { "00001" };
    let other = json!(format!("model-{other}-of-00002.safetensors"));
    map.insert("model.norm.weight".into(), other);
    fs::write(&path, index.to_string()).unwrap();
    let config = lab.path("bad/config.json");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replacen('{', "{\"time_step_limit\": [0.0, Infinity], \"score\": NaN, ", 1);
    fs::write(&config, text).unwrap();
    import(&lab).expect(0, &[]);

    let lab = Lab::new();
    copy("qwen2", &lab.path("bad"));
    let path = lab.path("bad/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    header["__metadata__"] = Value::Null;
    let names: Vec<String> = header.as_object().unwrap().keys().cloned().collect();
    let header = header.to_string().into_bytes();
    let all = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes[8 + len..]].concat();
    fs::write(lab.path("bad/model-00001-of-00001.safetensors"), all).unwrap();
    fs::remove_file(&path).unwrap();
    let head = ["lm_head.weight".to_string()];
    let names = names
        .iter()
        .filter(|name| !name.starts_with("__"))
        .chain(&head);
    let map = names.map(|name| (name.clone(), json!("model-00001-of-00001.safetensors")));
    let index = json!({"weight_map": map.collect::<serde_json::Map<_, _>>()});
    fs::write(lab.path("bad/model.safetensors.index.json"), index.to_string()).unwrap();
    import(&lab).expect(0, &[]);
}

#[test]
fn a_missing_shard_ends_the_import() {
    let lab = Lab::new();
    copy("llama", &lab.path("bad"));
    fs::remove_file(lab.path("bad/model-00002-of-00002.safetensors")).unwrap();
    import(&lab).expect(2, &["cannot open bad/model-00002-of-00002.safetensors", "copy that file"]);
    assert_eq!(left(&lab), Vec::<String>::new());
}

#[test]
fn references_of_another_model_are_refused() {
    let lab = Lab::new();
    let (from, reference) = (fixture("llama"), fixture("qwen2/model.safetensors"));
    let (from, reference) = (from.to_str().unwrap(), reference.to_str().unwrap());
    let args = ["import", "--hf", from, "--output", "run", "--reference"];
    let import = |reference| lab.gptrain(&[&args[..], &[reference]].concat());
    import(reference).expect(2, &["it has no tensor input_ids", "[samples, tokens, vocabulary]"]);
    import("nowhere").expect(2, &["cannot open nowhere"]);
    assert_eq!(left(&lab), Vec::<String>::new());
}

#[test]
fn what_is_there_is_never_overwritten_and_a_full_disk_leaves_nothing() {
    let lab = Lab::new();
    let from = fixture("llama");
    let import = ["import", "--hf", from.to_str().unwrap(), "--output", "run"];
    let within =
        |bytes, args: &[&str]| Done::of(limited(&lab.command(args), bytes).output().unwrap());
    within(5_000, &import).expect(1, &["cannot", "File too large"]);
    assert_eq!(left(&lab), Vec::<String>::new());
    fs::create_dir(lab.path("run")).unwrap(); // an empty folder is as good as none
    lab.gptrain(&import).expect(0, &[]);
    lab.gptrain(&import)
        .expect(2, &["run: is a folder that is not empty"]);
    fs::remove_dir_all(lab.path("run/hf")).unwrap();
    lab.gptrain(&import)
        .expect(2, &["run: is a folder that is not empty"]);
    assert!(!lab.path("run/hf").exists());

    let export = ["export", "run", "--output", "out/"];
    within(20_000, &export).expect(1, &["cannot write", "File too large"]);
    assert_eq!(left(&lab), ["run"]);
    lab.gptrain(&export).expect(0, &[]);
    let before = fs::read(lab.path("out/model.safetensors")).unwrap();
    lab.gptrain(&export)
        .expect(2, &["already contains a model"]);
    lab.gptrain(&["export", "run", "--output", "run.yaml"])
        .expect(2, &["is a file"]);
    assert_eq!(fs::read(lab.path("out/model.safetensors")).unwrap(), before);
}
