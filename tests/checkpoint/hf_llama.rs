//! Llama, Mistral, Qwen2 and Qwen3 as transformers saved them: imported without a manifest they give
//! its float64 logits, go out again byte for byte, and train on any grid. The fixtures were made by
//! `fixtures/checkpoint/hf/llamas.py`.

use crate::common::binary::{Done, Lab};
use gptrain::checkpoint::load_weights;
use gptrain::checkpoint::safetensors::{Entry, Reader};
use gptrain::device::cpu::Cpu;
use gptrain::engine::Sampler;
use gptrain::exchange::hf::read_config;
use gptrain::manifest::{self, Loaded, Position, RopeScaling};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/checkpoint/hf")
        .join(name)
}

fn import(lab: &Lab, from: &Path, to: &str, more: &[&str]) -> Done {
    let args = ["import", "--hf", from.to_str().unwrap(), "--output", to];
    lab.gptrain(&[&args[..], more].concat())
}

/// A folder's config.json.
pub fn config(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

fn loaded(run: &Path) -> Loaded {
    manifest::load(run, &[]).unwrap()
}

/// Tensors by name: type, shape, bytes.
pub type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

/// Every tensor of a folder, and how many files there are.
pub fn tensors(folder: &Path) -> (Tensors, usize) {
    let (mut all, mut files) = (Tensors::new(), 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("model") || !name.ends_with(".safetensors") {
            continue;
        }
        files += 1;
        let bytes = fs::read(&path).unwrap();
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (name, entry) in Reader::open(&path).unwrap().entries {
            let Entry { dtype, shape, data_offsets: [from, to] } = entry;
            let values = bytes[data + from as usize..data + to as usize].to_vec();
            assert!(all.insert(name, (dtype, shape, values)).is_none());
        }
    }
    (all, files)
}

/// In: logits. Out: every byte. `parts`: what the manifest must say.
fn check(name: &str, precision: &str, parts: &[&str]) {
    let lab = Lab::new();
    let (from, run) = (fixture(name), lab.path("runs/new"));
    let reference = from.join("logits.safetensors");
    let done = import(&lab, &from, "runs/new", &["--reference", reference.to_str().unwrap()]);
    done.expect(0, &[]);
    assert!(done.out.contains("runs/new/checkpoints/step-00000000 of"), "{}", done.out);
    assert!(!done.out.contains("ignored"), "{}", done.out);
    let kl = done
        .out
        .split("next tokens: ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    assert!(kl.parse::<f64>().unwrap().abs() < 1e-10, "{}", done.out);
    logits(name, &run);
    let text = fs::read_to_string(run.join("manifest.yaml")).unwrap();
    for part in parts
        .iter()
        .chain(&[format!("\nprecision: {precision} #").as_str()])
    {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let checked = lab.gptrain(&["manifest", "check", "runs/new"]);
    assert!(checked.expect(0, &[]).out.contains(": ok"), "{}", checked.out);
    let written = fs::read_dir(run.join("checkpoints/step-00000000")).unwrap();
    for file in written.map(|file| file.unwrap().file_name().into_string().unwrap()) {
        let weights = file.starts_with("master-") && file.ends_with(".safetensors");
        assert!(weights || file == "index.json", "{file}: no optimizer's states");
    }
    let deep = lab.gptrain(&["inspect-ckpt", "runs/new", "--deep"]);
    assert!(deep.expect(0, &[]).out.contains("imported   Hugging Face"), "{}", deep.out);

    lab.gptrain(&["export", "runs/new", "--output", "out", "--shard-size", "15KB"])
        .expect(0, &[]);
    let out = lab.path("out");
    let ((ours, files), (theirs, _)) = (tensors(&out), tensors(&from));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (key, tensor) in &theirs {
        assert!(ours[key] == *tensor, "{name}: {key} is not as it came");
    }
    let bytes: usize = theirs.values().map(|(.., bytes)| bytes.len()).sum();
    assert!(files >= bytes.div_ceil(15_000) && files <= bytes.div_ceil(7_000), "{files} files");
    assert!(!out.join("model.safetensors").exists());
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        assert_eq!(fs::read(out.join(file)).unwrap(), fs::read(from.join(file)).unwrap(), "{file}");
    }
    let (ours, theirs) = (config(&out), one_factor(config(&from)));
    for (key, value) in theirs.as_object().unwrap() {
        assert!(same(&ours[key], value), "{key} was {value}, is {}", ours[key]);
    }
    assert!(same(&ours["rope_theta"], &theirs["rope_parameters"]["rope_theta"]));

    // What went out comes in as the same run.
    import(&lab, &out, "runs/again", &[]).expect(0, &[]);
    let (once, twice) = (loaded(&run), loaded(&lab.path("runs/again")));
    assert_eq!(once.manifest.model, twice.manifest.model);
    let half = |folder: &str, dtype: &str| {
        lab.gptrain(&["export", "runs/again", "--hf", folder, "--dtype", dtype])
            .expect(0, &[]);
        tensors(&lab.path(folder)).0.into_values().next().unwrap().0
    };
    assert_eq!([half("f32", "f32"), half("bf16", "bf16")], ["F32", "BF16"]);
}

/// YaRN's `mscale` and `mscale_all_dim` as the factor that they are.
fn one_factor(mut config: Value) -> Value {
    let rope = config["rope_parameters"].as_object_mut().unwrap();
    let scales = ["mscale", "mscale_all_dim"].map(|key| rope.remove(key));
    if let [Some(one), Some(all)] = scales {
        let factor = rope["factor"].as_f64().unwrap();
        let scale = |mscale: Value| 0.1 * mscale.as_f64().unwrap() * factor.ln() + 1.0;
        rope.insert("attention_factor".to_string(), json!(scale(one) / scale(all)));
    }
    config
}

/// Numbers by value, and each of an object's.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours.as_f64(), theirs.as_f64(), theirs.as_object()) {
        (Some(a), Some(b), _) => a == b,
        (_, _, Some(object)) => object.iter().all(|(key, value)| same(&ours[key], value)),
        _ => ours == theirs,
    }
}

/// Compares the logits of every position, within f32's own error.
fn logits(name: &str, run: &Path) {
    logits_of(name, "logits", run, &[]);
}

/// The same for another tensor of the file, and with other settings.
fn logits_of(name: &str, tensor: &str, run: &Path, sets: &[String]) {
    let m = manifest::load(run, sets).unwrap().manifest;
    let reader = Reader::open(&fixture(name).join("logits.safetensors")).unwrap();
    let ids: Vec<u32> = reader
        .numbers("input_ids")
        .unwrap()
        .iter()
        .map(|id| *id as u32)
        .collect();
    let expected = reader.numbers(tensor).unwrap();
    let cpu = Cpu::new(Some(1));
    let mut sampler = Sampler::new(&cpu, &m, ids.len()).unwrap();
    load_weights(&run.join("checkpoints/step-00000000"), &sampler.weights).unwrap();
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    assert!(largest > 1.0, "the logits say something: {largest}");
    let mut seen = 0;
    sampler.each_logits(&ids, |position, ours| {
        let expected = &expected[position * ours.len()..][..ours.len()];
        let off = ours
            .iter()
            .zip(expected)
            .map(|(a, b)| (f64::from(*a) - b).abs());
        let off = off.fold(0.0, f64::max);
        assert!(off <= 3e-6 * largest, "{name}, position {position}: off by {off:e} of {largest}");
        seen += 1;
    });
    assert_eq!(seen, ids.len());
}

#[test]
fn llama_in_two_files_with_a_head_of_its_own() {
    check("llama", "f32", &["family: llama\n", "original_seq_len: 16\n", "tied_head: false\n"]);
}

#[test]
fn mistral_in_bf16_with_a_window_and_wide_heads() {
    check("mistral", "bf16", &["family: mistral\n", "window: 5\n", "head_dim: 6\n"]);
}

#[test]
fn qwen2_with_biases_a_window_and_a_tied_head() {
    check("qwen2", "f32", &["family: qwen2\n", "window: 7\n", "bias: qkv\n", "tied_head: true\n"]);
}

#[test]
fn qwen3_in_bf16_with_norms_of_heads_and_yarn() {
    check("qwen3", "bf16", &["family: qwen3\n", "qk_norm: true\n", "yarn:\n", "head_dim: 8\n"]);
}

#[test]
fn qwen3_with_a_window_in_some_layers() {
    check("qwen3-mixed", "f32", &["window: 3\n", "pattern:\n", "- window\n", "- full\n"]);
}

/// Rotations with another base in the layers with a window, which no config.json can say.
#[test]
fn layers_may_have_rotations_of_their_own() {
    let lab = Lab::new();
    let local = "{attention: window, rope: {theta: 50}}";
    let pattern = format!("model.pattern=[{local}, {local}, full]");
    import(&lab, &fixture("qwen3-mixed"), "run", &[]).expect(0, &[]);
    logits_of("qwen3-mixed", "other_bases", &lab.path("run"), &[pattern]);
}

#[test]
fn llama_with_biases_of_attention_alone_and_scaled_yarn() {
    let parts =
        ["family: llama\n", "bias: attention\n", "truncate: false\n", "attention_factor: 1.129"];
    check("llama-bias", "f32", &parts);
}

#[test]
fn qwen3_with_biases_of_attention_and_norms_of_heads() {
    check("qwen3-bias", "f32", &["family: qwen3\n", "bias: attention\n", "qk_norm: true\n"]);
}

/// `_compute_yarn_parameters` of transformers 5.24, heads of 32, an original length of 2,048 or
/// 4,096: the factor of cosines and sines.
#[test]
fn yarns_attention_factor_is_that_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let factor = |rope: Value| {
        let mut config = config(&fixture("qwen3"));
        let table = config["rope_parameters"].as_object_mut().unwrap();
        table.extend(rope.as_object().unwrap().clone());
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let Position::Rope(rope) = read_config(folder.path()).unwrap().model.position else {
            panic!("qwen3 turns");
        };
        let Some(RopeScaling::Yarn(yarn)) = rope.scaling else { panic!("{rope:?}") };
        yarn.attention_factor
    };
    let both = json!({"factor": 4.0, "mscale": 1.5, "mscale_all_dim": 0.5});
    assert!((factor(both).unwrap() - 1.1296432507391427).abs() < 1e-15);
    let deep = json!({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0});
    assert!((factor(deep).unwrap() - 0.9210423553163399).abs() < 1e-15);
    // One alone and 0 count as none there.
    assert_eq!(factor(json!({"mscale": 1.5})), None);
    assert_eq!(factor(json!({"mscale": 1.5, "mscale_all_dim": 0})), None);
    let given = json!({"mscale": 1.5, "mscale_all_dim": 0.5, "attention_factor": 1.2});
    assert_eq!(factor(given), Some(1.2));
}

/// A copy of a fixture without its logits.
pub fn copy(name: &str, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap();
        if file != "logits.safetensors" {
            fs::copy(&path, to.join(file)).unwrap();
        }
    }
}

/// Files written by transformers 4 give the same model.
#[test]
fn the_old_form_of_the_configuration_is_read() {
    for name in ["llama", "mistral", "qwen2", "qwen3"] {
        let lab = Lab::new();
        import(&lab, &fixture(name), "new", &[]).expect(0, &[]);
        let old = lab.path("old");
        copy(name, &old);
        let mut config = config(&old);
        let object = config.as_object_mut().unwrap();
        let mut rope = object.remove("rope_parameters").unwrap();
        let rope = rope.as_object_mut().unwrap();
        object.insert("rope_theta".into(), rope.remove("rope_theta").unwrap());
        let kind = rope.remove("rope_type").unwrap();
        rope.insert("type".into(), kind.clone());
        let scaling = if kind == "default" { Value::Null } else { json!(rope) };
        object.insert("rope_scaling".into(), scaling);
        object.remove("layer_types");
        object.remove("architectures");
        fs::write(old.join("config.json"), config.to_string()).unwrap();
        import(&lab, &old, "from-old", &[]).expect(0, &[]);
        let model = |run: &str| loaded(&lab.path(run)).manifest.model;
        assert_eq!(model("new"), model("from-old"), "{name}");
        if let Position::Rope(rope) = model("new").position {
            let scaled = matches!(
                (name, rope.scaling),
                ("llama", Some(RopeScaling::Llama3(_)))
                    | ("qwen3", Some(RopeScaling::Yarn(_)))
                    | ("mistral" | "qwen2", None)
            );
            assert!(scaled, "{name}: {:?}", rope.scaling);
        }
    }
}

/// config.json as published (v4) of the models whose manifests ship.
#[test]
fn published_configurations_are_the_manifests_that_ship() {
    let both = json!({
        "hidden_act": "silu", "attention_bias": false, "attention_dropout": 0.0,
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "initializer_range": 0.02, "rope_scaling": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "use_cache": true,
    });
    let llama = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32,
        "intermediate_size": 14336, "max_position_embeddings": 8192, "pretraining_tp": 1,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": 128256,
        "bos_token_id": 128000, "eos_token_id": 128001, "transformers_version": "4.40.0.dev0",
    });
    let qwen = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36,
        "intermediate_size": 12288, "max_position_embeddings": 40960, "head_dim": 128,
        "max_window_layers": 36, "sliding_window": null, "use_sliding_window": false,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "vocab_size": 151936,
        "bos_token_id": 151643, "eos_token_id": 151645, "transformers_version": "4.51.0",
    });
    let folder = tempfile::tempdir().unwrap();
    for (name, own) in [("llama3-8b", llama), ("qwen3-8b", qwen)] {
        let mut config = both.clone();
        config
            .as_object_mut()
            .unwrap()
            .extend(own.as_object().unwrap().clone());
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let read = read_config(folder.path()).unwrap();
        assert_eq!(read.unknown, Vec::<String>::new(), "{name}");
        let shipped = format!("{}/manifests/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let settings = |model| {
            let mut settings = manifest::model_settings(model);
            settings.retain(|key, _| key != "seq_len" && key != "vocab_multiple");
            settings
        };
        let shipped = loaded(Path::new(&shipped)).manifest.model;
        assert_eq!(settings(&read.model), settings(&shipped), "{name}");
    }
}

/// Settings of a short training on the lab's dataset.
fn training(lab: &Lab) -> Vec<String> {
    let corpus = lab.path("corpus");
    [
        &format!("data.train={}", corpus.display()),
        "data.split=80,20,0",
        "batch={micro: 1, global: 4}",
        "lr={peak: 3e-3, warmup_samples: 8, min: 3e-4, decay: cosine}",
        "train={steps: 20, threads: 1, eval_interval: 0}",
        "model.seq_len=16",
        "log.tensorboard=false",
        "checkpoint.interval=100",
    ]
    .map(str::to_string)
    .to_vec()
}

fn train(lab: &Lab, run: &str, more: &[&str]) -> Vec<f64> {
    let sets = training(lab);
    let sets = sets.iter().map(String::as_str).chain(more.iter().copied());
    let args: Vec<&str> = ["run", run]
        .into_iter()
        .chain(sets.flat_map(|s| ["--set", s]))
        .collect();
    let done = lab.gptrain(&args);
    let from = format!("resuming from {run}/checkpoints/step-00000000");
    assert!(done.expect(0, &[]).out.contains(&from), "{}", done.out);
    let metrics = lab.metrics(run);
    assert_eq!(metrics.len(), 20);
    metrics
        .iter()
        .map(|line| line["lm_loss"].as_f64().unwrap())
        .collect()
}

#[test]
fn an_imported_llama_trains_on_a_grid_as_on_one_rank_and_goes_out_again() {
    trains_on_a_grid("llama");
}

#[test]
fn biases_of_attention_train_on_a_grid_as_on_one_rank() {
    trains_on_a_grid("llama-bias");
}

fn trains_on_a_grid(name: &str) {
    let lab = Lab::new();
    for run in ["one", "grid"] {
        import(&lab, &fixture(name), run, &[]).expect(0, &[]);
    }
    let grid = "topology={tensor: 2, pipeline: 2, data: 2, zero: 1}";
    let (one, grid) = (train(&lab, "one", &[]), train(&lab, "grid", &[grid]));
    for (step, (one, grid)) in one.iter().zip(&grid).enumerate() {
        assert!((one / grid - 1.0).abs() <= 1e-6, "step {step}: {one} alone, {grid} on the grid");
    }
    assert!(one[19] < one[0] - 0.2, "it learns: {} to {}", one[0], one[19]);
    lab.gptrain(&["export", "grid", "--output", "out"])
        .expect(0, &[]);
    let ((after, files), (before, _)) = (tensors(&lab.path("out")), tensors(&fixture(name)));
    assert_eq!(files, 1, "5 GB fit into a file");
    for (key, (dtype, shape, bytes)) in &before {
        let (dtype_now, shape_now, bytes_now) = &after[key];
        assert_eq!((dtype_now, shape_now), (dtype, shape), "{key}");
        assert_ne!(bytes_now, bytes, "{key} was trained");
    }
    assert_eq!(config(&lab.path("out"))["max_position_embeddings"], 64, "as the model came");
    import(&lab, &lab.path("out"), "again", &[]).expect(0, &[]);
}

#[test]
fn an_imported_run_takes_other_settings_until_it_is_trained() {
    let lab = Lab::new();
    import(&lab, &fixture("qwen3"), "run", &[]).expect(0, &[]);
    let read = |run: &str| fs::read_to_string(lab.path(run).join("manifest.yaml")).unwrap();
    let comments = |text: &str| text.lines().filter(|line| line.starts_with('#')).count();
    let written = comments(&read("run"));
    fs::rename(lab.path("run"), lab.path("moved")).unwrap();
    let others =
        ["precision=f32", "optimizer=adafactor", "train.seed=5", "data.eod.mask_loss=true"];
    train(&lab, "moved", &others);
    assert!(!lab.path("run").exists(), "the run is where its folder is");
    let now = read("moved");
    assert!(written > 3 && comments(&now) == written, "and its author's: {now}");
    assert!(now.contains("optimizer: adafactor # --set") && now.contains("mask_loss: true"));
    lab.gptrain(&["export", "moved", "--output", "out"])
        .expect(0, &[]);
    let types = tensors(&lab.path("out"))
        .0
        .into_values()
        .map(|(dtype, ..)| dtype);
    assert!(types.into_iter().all(|dtype| dtype == "F32"), "as precision f32 computes");
    assert!(lab.path("out/tokenizer.json").exists(), "though the run was moved");

    import(&lab, &fixture("qwen3"), "other", &[]).expect(0, &[]);
    let corpus = format!("data.train={}", lab.path("corpus").display());
    let run = |set: &str| lab.gptrain(&["run", "other", "--set", &corpus, "--set", set]);
    run("model.ffn_hidden=24").expect(2, &["model.ffn_hidden was 20, is 24"]);
    run("model.window=8").expect(2, &["model.window was nothing, is 8"]);
}

/// A Llama with a window is a Mistral there; with biases of queries, keys and values a Qwen2.
#[test]
fn another_family_may_say_what_a_models_own_cannot() {
    let lab = Lab::new();
    let llama = "model={family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 64, \
                 seq_len: 16, ffn_hidden: 24";
    let cases = [
        ("window: 8", "mistral"),
        ("window: 8, pattern: [window, full], qk_norm: true", "qwen3"),
        ("bias: qkv", "qwen2"),
        ("bias: all", "llama"),
        ("bias: attention", "llama"),
        ("bias: attention, qk_norm: true", "qwen3"),
    ];
    for (number, (parts, kind)) in cases.into_iter().enumerate() {
        let [run, out, again] = ["run", "out", "again"].map(|name| format!("{name}{number}"));
        let sets = [&format!("{llama}, {parts}}}"), "train.steps=2", &format!("log.folder={run}")];
        lab.run(&sets).expect(0, &[]);
        lab.gptrain(&["export", &run, "--output", &out])
            .expect(0, &[]);
        assert_eq!(config(&lab.path(&out))["model_type"], kind);
        import(&lab, &lab.path(&out), &again, &[]).expect(0, &[]);
        let model = |run: &str| loaded(&lab.path(run)).manifest.model;
        let (before, after) = (model(&run), model(&again));
        assert_eq!((before.window, before.bias), (after.window, after.bias));
        assert_eq!(before.pattern, after.pattern);
    }
    let turned = format!("{llama}, pattern: [full, {{rope: {{theta: 50}}}}]}}");
    lab.run(&[&turned, "train.steps=2", "log.folder=turned"])
        .expect(0, &[]);
    let refused = lab.gptrain(&["export", "turned", "--output", "out"]);
    refused.expect(2, &["layers differ, layers have different positions: llama cannot say that"]);
    let both = format!("{llama}, window: 8, bias: all}}");
    lab.run(&[&both, "train.steps=2", "log.folder=both"])
        .expect(0, &[]);
    let refused = lab.gptrain(&["export", "both", "--output", "out"]);
    refused.expect(2, &["attention has a window: llama cannot say that"]);
    assert!(!lab.path("out").exists());
}
