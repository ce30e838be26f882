//! Accepted manifests, their meaning, and that the effective manifest has the same meaning.

use crate::{GOOD, complaints, read, with};
use gptrain::base::{Bytes, Heads};
use gptrain::manifest::{
    AdamW, Bias, Decay, DeviceChoice, Family, Ffn, Gelu, GradientHome, LayerSplit, LossScale,
    NormKind, Objective, Offload, OffloadWhat, Optimizer, Position, Precision, PrefixLm, RampUp,
    RankOrder, Recompute, RopeScaling, Schedule, Sequences, Span, Wsd, Yarn,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

#[test]
fn a_family_has_defaults_and_is_bloom_where_only_alibi_is_written() {
    let form = |sets: &[&str]| {
        let m = with(sets).manifest.model;
        (m.family, m.position, m.embedding_layernorm)
    };
    let (learned, alibi) = (Position::Learned, Position::Alibi);
    assert_eq!(form(&[]), (Family::Gpt2, learned, false));
    assert_eq!(form(&["model.position=alibi"]), (Family::Bloom, alibi, false));
    assert_eq!(form(&["model.family=bloom"]), (Family::Bloom, alibi, true));
    let named = ["model.family=gpt2", "model.position=alibi"];
    assert_eq!(form(&named), (Family::Gpt2, alibi, false));
}

#[test]
fn a_llama_family_has_its_parts_and_each_may_be_set_apart() {
    let model = |sets: &[&str]| with(sets).manifest.model;
    let llama = model(&["model.family=llama"]);
    let Position::Rope(rope) = llama.position else { panic!("{:?}", llama.position) };
    assert_eq!((rope.theta, rope.scaling), (10_000.0, None));
    assert_eq!((llama.norm, llama.ffn, llama.bias), (NormKind::Rms, Ffn::Swiglu, Bias::None));
    assert_eq!((llama.ffn_hidden, llama.layernorm_eps, llama.tied_head), (768, 1e-5, false));
    assert_eq!(llama.heads(), Heads { query: 8, kv: 8, dim: 32 });
    assert_eq!(model(&["model.family=qwen2"]).bias, Bias::Qkv);
    let wide = ["model.family=qwen3", "model.kv_heads=2", "model.head_dim=128", "model.window=9"];
    let qwen3 = model(&wide);
    assert!(qwen3.qk_norm && qwen3.layernorm_eps == 1e-6 && qwen3.window == Some(9));
    assert_eq!(qwen3.heads(), Heads { query: 8, kv: 2, dim: 128 });
    let mixed = model(&["model.norm=rms", "model.position=rope", "model.ffn=swiglu"]);
    assert_eq!((mixed.family, mixed.bias, mixed.tied_head), (Family::Gpt2, Bias::All, true));
    let yarn = "model.position={rope: {theta: 5e5, scaling: {yarn: {factor: 4, \
                original_seq_len: 64, beta_fast: 16, attention_factor: 1.5}}}}";
    let Position::Rope(rope) = model(&[yarn]).position else { panic!() };
    let rule = Yarn {
        factor: 4.0,
        original_seq_len: 64,
        beta_fast: 16.0,
        beta_slow: 1.0,
        attention_factor: Some(1.5),
        truncate: true,
    };
    assert_eq!((rope.theta, rope.scaling), (5e5, Some(RopeScaling::Yarn(rule))));
}

#[test]
fn defaults_are_what_a_megatron_user_expects() {
    let m = read(GOOD, &[]).manifest;
    assert_eq!(m.name, "trial");
    assert_eq!(
        (m.model.ffn_hidden, m.model.vocab_padded, m.model.vocab_multiple),
        (1024, 4096, 128)
    );
    assert_eq!((m.model.position, m.model.gelu), (Position::Learned, Gelu::Tanh));
    assert!(m.model.tied_head && m.model.init.scale_residual && !m.model.embedding_layernorm);
    assert_eq!((m.model.layernorm_eps, m.model.init.std), (1e-5, 0.02));
    assert_eq!(m.precision, Precision::F32);
    assert_eq!((m.data.seed, m.train.seed, m.data.eod), (1234, 1234, None));
    assert_eq!(m.data.train[0].prefix, Path::new("/home/me/corpus/a"));
    assert_eq!(m.data.valid[0].name, "valid");
    let split = |which| Sequences::Split { weights: "969,30,1".to_string(), which };
    assert_eq!((&m.data.train[0].part, &m.data.valid[0].datasets[0].part), (&split(0), &split(1)));
    let adamw = |beta2| {
        let clip = Some(1.0);
        Optimizer::AdamW(AdamW { beta1: 0.9, beta2, eps: 1e-8, weight_decay: 0.1, clip })
    };
    assert_eq!(m.optimizer, adamw(0.95));
    assert_eq!(m.lr.decay, Decay::Cosine(Span { samples: 6400 }));
    assert_eq!((m.topology.ranks(), m.topology.recompute), (1, Recompute::None));
    assert_eq!(m.log.folder, PathBuf::from("runs/trial"));
    assert_eq!((m.train.eval_interval, m.train.eval_samples), (Some(1000), 160));
    assert_eq!(m.train.audit_interval, Some(100));
    assert_eq!((m.checkpoint.interval, m.checkpoint.keep_last), (1000, None));
    assert!(m.runnable().is_ok());
}

#[test]
fn offload_is_a_word_or_settings() {
    let manifest = |sets: &[&str]| with(sets).manifest;
    assert_eq!(manifest(&[]).topology.offload, Offload::NONE);
    let optimizer = Offload { what: OffloadWhat::Optimizer, ..Offload::NONE };
    assert_eq!(manifest(&["topology.offload=optimizer"]).topology.offload, optimizer);
    let settings = "topology.offload={what: optimizer, gradients: device}";
    let device = Offload { gradients: GradientHome::Device, ..optimizer };
    assert_eq!(manifest(&[settings]).topology.offload, device);
    assert_eq!(
        manifest(&["train.device_memory=1.5GiB"])
            .train
            .device_memory,
        Some(Bytes(3 << 29))
    );
    let sets = [settings, "train.device_memory=1536MiB"];
    assert!(with(&sets).effective.contains("device_memory: 1536MiB"));
}

#[test]
fn the_vocabulary_is_padded_for_tensor_parallelism() {
    let padded = |sets: &[&str]| with(sets).manifest.model.vocab_padded;
    assert_eq!(padded(&["model.vocab=50257"]), 50304);
    assert_eq!(padded(&["model.vocab=50257", "topology.tensor=4"]), 50688);
    assert_eq!(padded(&["model.vocab=250880", "topology.tensor=4"]), 250880);
    assert_eq!(padded(&["model.vocab=50257", "model.vocab_multiple=1"]), 50257);
}

#[test]
fn set_changes_and_creates_keys() {
    let m =
        with(&["model.layers=8", "log.folder=out/x", "train.seed=7", "model.dropout=0.1"]).manifest;
    assert_eq!((m.model.layers, m.train.seed), (8, 7));
    assert_eq!(m.log.folder, PathBuf::from("out/x"));
    assert_eq!(m.model.dropout.attention, 0.1);
    assert_eq!(
        with(&["model.layers=8", "model.layers=9"])
            .manifest
            .model
            .layers,
        9
    );
    assert_eq!(with(&["optimizer.lr=3e-4"]).manifest.lr.peak, 3e-4);
    assert_eq!(
        with(&["optimizer=adamw", "optimizer.lr=3e-4"])
            .manifest
            .lr
            .peak,
        3e-4
    );
    assert_eq!(
        with(&["lr.decay=linear", "lr.decay.wsd.decay_samples=400"])
            .manifest
            .lr
            .decay,
        Decay::Wsd(Wsd { decay_samples: 400, samples: 6400, decay_from: 6000 })
    );
    // The command line's key replaces keys of the file that exclude it.
    assert_eq!(with(&["train.steps=10"]).manifest.train.samples, 160);
    // Whatever the order: a key that is nothing takes the place of no other.
    let steps = with(&["train.steps=10", "train.tokens=null", "train.samples=null"]);
    assert_eq!(steps.manifest.train.samples, 160);
    assert_eq!(with(&["train.tokens=12_800"]).manifest.train.samples, 100);
    let list = GOOD.replace("corpus/a", "[{prefix: a}, {prefix: b}]");
    assert_eq!(read(&list, &["data.train.1.weight=3"]).manifest.data.train[1].weight, 3.0);
    // Nothing is the default again.
    assert_eq!(
        read(&format!("{GOOD}  seed: 5\n"), &["train.seed="])
            .manifest
            .train
            .seed,
        1234
    );
}

/// In the file, in `--set`, and in Megatron's notation of a ramp-up.
#[test]
fn numbers_have_one_grammar() {
    let file = |length: &str| {
        let text = GOOD.replace("  samples: 6400", &format!("  {length}"));
        assert_ne!(text, GOOD);
        read(&text, &[]).manifest.train.samples
    };
    let million = 1_000_000_000u64.div_ceil(128);
    for length in ["tokens: 1B", "tokens: 1_000M", "tokens: 1e9", "tokens: 1_000_000_000"] {
        assert_eq!(file(length), million, "{length}");
    }
    assert_eq!(file("steps: 100k"), 1_600_000);
    assert_eq!(with(&["train.tokens=1B"]).manifest.train.samples, million);
    assert_eq!(with(&["lr.peak=0.001_5"]).manifest.lr.peak, 0.0015);
    let ramp = with(&["batch={micro: 2, global: 32, ramp_up: 16 16 1.5k}"])
        .manifest
        .batch
        .ramp_up;
    assert_eq!(ramp, Some(RampUp { start: 16, increment: 16, samples: 1500 }));
    let wrong = complaints(GOOD, &["train.steps=1.0005k"]);
    assert!(wrong.contains("is 1.0005k, not a whole number"), "{wrong}");
}

/// A setting that only one value of another has falls with it, unless it is given too.
#[test]
fn settings_of_another_value_fall_with_it() {
    let chunks = format!("{GOOD}topology: {{pipeline: 2, schedule: interleaved, chunks: 3}}\n");
    let topology = |sets: &[&str]| read(&chunks, sets).manifest.topology;
    assert_eq!((topology(&[]).chunks, topology(&["topology.schedule=1f1b"]).chunks), (3, 1));
    assert_eq!(topology(&["topology.schedule=interleaved"]).chunks, 3);
    let sums = ["topology.schedule=breadth_first", "topology.zero=2", "topology.zero_every=4"];
    let first = topology(&sums);
    assert_eq!((first.chunks, first.zero_every), (3, 4));
    let summed =
        chunks.replace("schedule: interleaved", "schedule: breadth_first, zero: 2, zero_every: 4");
    let summed_topology = |sets: &[&str]| read(&summed, sets).manifest.topology;
    assert_eq!(summed_topology(&[]).zero_every, 4);
    let other = summed_topology(&["topology.schedule=interleaved"]);
    assert_eq!((other.chunks, other.zero_every), (3, 1));
    let both = ["topology.chunks=3", "topology.schedule=1f1b"];
    assert!(complaints(&chunks, &both).contains("topology.chunks is only for"));
    let scaled = format!("{GOOD}precision: fp16\nloss_scale: 1024\n");
    assert_eq!(read(&scaled, &["precision=bf16"]).manifest.loss_scale, None);
    assert!(complaints(&scaled, &["precision=bf16", "loss_scale=8"]).contains("loss_scale is for"));
    let gelu = GOOD.replace("  seq_len: 128", "  seq_len: 128\n  gelu: exact\n  positions: 200");
    let model = |sets: &[&str]| read(&gelu, sets).manifest.model;
    assert_eq!(model(&["model.ffn=swiglu"]).ffn, Ffn::Swiglu);
    assert_eq!(model(&["model.position=rope"]).positions, None);
}

#[test]
fn optimizer_lr_is_lr_peak() {
    let moved = GOOD.replace("lr:\n  peak: 1e-3", "optimizer: {lr: 2e-3}");
    assert_eq!(read(&moved, &[]).manifest.lr.peak, 2e-3);
    let both = format!("{GOOD}optimizer: {{lr: 2e-3}}\n");
    assert_eq!(
        complaints(&both, &[]),
        "m.yaml:17: optimizer.lr and lr.peak (m.yaml:14) are the same setting, given twice → remove \
         one of them"
    );
}

#[test]
fn short_and_long_forms_mean_the_same() {
    let same =
        |a: &str, b: &str| assert_eq!(with(&[a]).manifest, with(&[b]).manifest, "{a} and {b}");
    same("model.dropout=0.1", "model.dropout={embedding: 0.1, attention: 0.1, residual: 0.1}");
    same("batch.ramp_up=8 8 1_000", "batch.ramp_up={start: 8, increment: 8, samples: 1e3}");
    same("data.train=x", "data.train={prefix: x}");
    same("data.train=x", "data.train=[x]");
    same("data.train=x", "data.train=[{prefix: x, weight: 1, split: '969,30,1', part: train}]");
    same("lr.decay=cosine", "lr.decay={cosine: {tokens: 819_200}}");
    same("lr.decay=cosine", "lr.decay={cosine: }");
    same("lr.decay=wsd", "lr.decay={wsd: {decay_samples: 640}}");
    same("lr.warmup_tokens=1000", "lr.warmup_samples=8");
    same("optimizer=adamw", "optimizer={adamw: {}}");
    same("optimizer=adam8bit", "optimizer.adam8bit={}");
    same("optimizer=adam8bit", "optimizer={adam8bit: {block: 64}}");
    same("data.objective=prefix_lm", "data.objective={prefix_lm: {loss_on_targets_only: true}}");
    same("data.objective=prefix_lm", "data.objective={prefix_lm: }");
    same("topology.compression=powersgd", "topology.compression.powersgd={}");
    same("topology.compression=none", "topology.data=1");
    same("optimizer={adamw: {clip: 1}}", "optimizer={adamw: {clip: 1.0}}");
    assert_eq!(
        with(&["batch.ramp_up=8 8 1_000"]).manifest.batch.ramp_up,
        Some(RampUp { start: 8, increment: 8, samples: 1000 })
    );
}

#[test]
fn stages_begin_at_samples_or_tokens() {
    let stages =
        "data.stages=[{from_samples: 100, train: [a, b]}, {from_tokens: 25_601, train: c}]";
    let loaded = with(&[stages]);
    let stages = &loaded.manifest.data.stages;
    assert_eq!(stages.iter().map(|stage| stage.from).collect::<Vec<_>>(), [100, 201]);
    assert_eq!(stages[1].train[0].part, Sequences::Split { weights: "969,30,1".into(), which: 0 });
    let prefixes = loaded.manifest.data.train_prefixes();
    assert_eq!(prefixes.len(), 4, "{prefixes:?}");
    assert_eq!(read(&loaded.effective, &[]).manifest, loaded.manifest);
    let folder = |sets: &[&str]| with(sets).manifest.data.cache;
    assert_eq!(folder(&[]), Path::new("runs/trial/order"));
    assert_eq!(folder(&["log.folder=/x"]), Path::new("/x/order"));
    assert_eq!(folder(&["data.cache=../y"]), Path::new("../y"));
}

#[test]
fn parts_of_datasets() {
    let part = |sets: &[&str]| with(sets).manifest.data.train[0].part.clone();
    let split = |weights: &str| Sequences::Split { weights: weights.to_string(), which: 0 };
    let whole = Sequences::Range(0.0, 1.0);
    // With validation sets of their own, datasets are whole; an explicit split still counts.
    assert_eq!(part(&["data.valid={web: b}"]), whole);
    assert_eq!(part(&["data.valid={web: b}", "data.split=9,1"]), split("9,1"));
    assert_eq!(part(&["data.train={prefix: a, range: 0:0.9}"]), Sequences::Range(0.0, 0.9));
    assert_eq!(part(&["data.train={prefix: a, split: 8/2}"]), split("8/2"));
    let valid = with(&["data.valid={web: [b, c], news: {prefix: d, range: 0.5..1}, alpha: e}"]);
    let names: Vec<String> = valid
        .manifest
        .data
        .valid
        .iter()
        .map(|set| set.name.clone())
        .collect();
    assert_eq!(names, ["web", "news", "alpha"], "the order written");
    assert_eq!(valid.manifest.data.valid[0].datasets.len(), 2);
    assert!(with(&["data.split=1,0,0"]).manifest.data.valid.is_empty());
    assert!(
        with(&["data.train={prefix: a, range: 0..1}"])
            .manifest
            .data
            .valid
            .is_empty()
    );
    let prefix = |set: &str| with(&[set]).manifest.data.train[0].prefix.clone();
    assert_eq!(prefix("data.train=../x/y"), PathBuf::from("/home/x/y"));
    assert_eq!(prefix("data.train=./x/../y"), PathBuf::from("/home/me/x/../y"));
    assert_eq!(prefix("data.train=/abs/y"), PathBuf::from("/abs/y"));
}

#[test]
fn a_replaced_dataset_keeps_the_split_of_an_effective_manifest() {
    let effective = with(&["data.split=8,1,1"]).effective;
    let part = |sets: &[&str]| read(&effective, sets).manifest.data.train[0].part.clone();
    let split = |weights: &str| Sequences::Split { weights: weights.to_string(), which: 0 };
    assert_eq!(part(&["data.train=x"]), split("8,1,1"));
    assert_eq!(part(&["data.train=[x, y]"]), split("8,1,1"));
    assert_eq!(part(&["data.train={prefix: x, split: 7/3}"]), split("7/3"));
    assert_eq!(part(&["data.train={prefix: x, range: 0..1}"]), Sequences::Range(0.0, 1.0));
    assert_eq!(part(&["data.train=x", "data.split=9,1"]), split("9,1"));
}

/// The manifest that a run keeps means with `--set` what its file means with it: no value that follows
/// from others is written out. Every setting with a dependent default is changed, for every file.
#[test]
fn the_record_of_a_run_follows_a_setting_as_the_file_does() {
    let files: &[&[&str]] = &[
        &[],
        &["data.split=8,1,1", "train.tokens=1e6", "lr={peak: 1e-3, warmup_tokens: 9000}"],
        &["data.train=[a, {prefix: b, split: 7/3}]", "lr.decay={wsd: {decay_tokens: 4000}}"],
        &["data.valid={z: x, a: [y, {prefix: w, range: 0..0.5}]}", "lr.decay=linear"],
        &["data.stages=[{from_tokens: 25_601, train: c}]", "lr.decay={cosine: {samples: 90}}"],
        &["model.position=alibi", "optimizer=muon", "topology.sequence_parallel=true"],
        &["model.family=llama", "optimizer=adafactor", "train.eval_samples=7"],
        &["topology={pipeline: 3, schedule: interleaved}", "batch={micro: 2, global: 24}"],
        &["precision=fp16", "data.cache=/cache", "train.eval_interval=3", "log.folder=there"],
    ];
    let changes: &[&str] = &[
        "train.steps=777",
        "train.tokens=3e6",
        "batch.global=32",
        "model.seq_len=64",
        "model.hidden=128",
        "model.ffn=swiglu",
        "model.family=qwen3",
        "model.position=rope",
        "data.train=/moved",
        "data.train=[/moved, /more]",
        "data.split=9,0,1",
        "data.valid=null",
        "data.stages=null",
        "topology.tensor=2",
        "topology.schedule=1f1b",
        "optimizer={muon: {weight_decay: 0.3}}",
        "optimizer.muon.weight_decay=0.3",
        "optimizer={adafactor: {relative_step: true}}",
        "lr.decay=wsd",
        "lr.warmup_samples=3",
        "log.folder=elsewhere",
        "name=other",
        "precision=bf16",
    ];
    let mut compared = 0;
    for (number, file) in files.iter().enumerate() {
        let record = with(file).record();
        let other = if number == 0 { other_values(&with(file).effective) } else { Vec::new() };
        for change in changes
            .iter()
            .copied()
            .chain(other.iter().map(String::as_str))
        {
            let both = |text: &str, sets: &[&str]| {
                let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
                gptrain::manifest::parse(text, "trial.yaml", Path::new("/home/me"), &sets)
            };
            let from_file = both(GOOD, &[*file, &[change][..]].concat()).map(|read| read.manifest);
            let from_record = both(&record, &[change]).map(|read| read.manifest);
            compared += usize::from(from_file.is_ok());
            assert_eq!(from_record.ok(), from_file.ok(), "{file:?} {change}\n{record}");
        }
    }
    assert!(compared > 160, "{compared}");
}

/// Every number of an effective manifest twice as large, and every yes or no the other way.
fn other_values(effective: &str) -> Vec<String> {
    let settings = gptrain::checkpoint::inspect::settings_by_key(effective);
    let other = |(key, value): (String, Value)| match value {
        Value::Bool(yes) => Some(format!("{key}={}", !yes)),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => Some(format!("{key}={}", 2 * whole.max(1))),
            None => Some(format!("{key}={}", 2.0 * number.as_f64()?)),
        },
        _ => None,
    };
    settings.into_iter().filter_map(other).collect()
}

#[test]
fn a_path_of_the_command_line_starts_at_the_working_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trial.yaml");
    std::fs::write(&file, GOOD).unwrap();
    let load = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        gptrain::manifest::load(&file, &sets)
            .unwrap_or_else(|error| panic!("{error}"))
            .manifest
    };
    let here = std::env::current_dir().unwrap();
    let there = folder.path().canonicalize().unwrap();
    assert!(load(&[]).data.train[0].prefix.starts_with(&there), "the file's own");
    let data = load(&[
        "data.train=[a, {prefix: ../b, weight: 2, split: '9,1'}]",
        "data.valid={v: c, w: [{prefix: /d, range: 0.5..1}]}",
        "data.tokenizer=t.json",
        "train.eval_tasks={arc: {file: arc.jsonl, limit: 3}}",
    ]);
    let prefixes = |sets: &[gptrain::manifest::Dataset]| {
        sets.iter()
            .map(|dataset| dataset.prefix.clone())
            .collect::<Vec<_>>()
    };
    let above = here.parent().unwrap();
    assert_eq!(prefixes(&data.data.train), [here.join("a"), above.join("b")]);
    let split = Sequences::Split { weights: "9,1".into(), which: 0 };
    assert_eq!((data.data.train[1].weight, &data.data.train[1].part), (2.0, &split));
    assert_eq!(prefixes(&data.data.valid[0].datasets), [here.join("c")]);
    assert_eq!(prefixes(&data.data.valid[1].datasets), [PathBuf::from("/d")]);
    assert_eq!(data.data.tokenizer, Some(here.join("t.json")));
    let task = &data.train.eval_tasks["arc"];
    assert_eq!((&task.file, task.limit), (&here.join("arc.jsonl"), Some(3)));
    assert_eq!(
        load(&["data.stages=[{from_samples: 9, train: s}]"])
            .data
            .stages[0]
            .train[0]
            .prefix,
        here.join("s")
    );
}

#[test]
fn a_trial_shorter_than_the_warm_up_is_no_mistake() {
    let m = with(&["lr.warmup_samples=1000", "train.steps=2"]).manifest;
    assert_eq!((m.train.samples, m.lr.decay), (32, Decay::Cosine(Span { samples: 1001 })));
}

#[test]
fn a_grid_of_gpus_in_fp16_can_be_run() {
    let m = with(&[
        "topology={tensor: 2, pipeline: 3, data: 2, zero: 1, sequence_parallel: true, \
         schedule: interleaved, layer_split: balanced, neighbours: pipeline, recompute: full}",
        "batch={micro: 1, global: 24}",
        "train.device=cuda",
        "precision=fp16",
    ])
    .manifest;
    let t = &m.topology;
    assert_eq!((t.ranks(), t.zero, t.schedule, t.chunks), (12, 1, Schedule::Interleaved, 2));
    assert_eq!((&t.layer_split, t.neighbours), (&LayerSplit::Balanced, RankOrder::Pipeline));
    assert_eq!(m.train.device, DeviceChoice::Cuda);
    assert_eq!(t.single_rank().ranks(), 1);
    assert!(m.runnable().is_ok());
}

#[test]
fn tf32_is_for_gpus() {
    let on = |device: &str| with(&["precision=tf32", &format!("train.device={device}")]).manifest;
    assert_eq!(on("auto").precision, Precision::Tf32);
    assert!(on("auto").runnable().is_ok() && on("cuda").runnable().is_ok());
    assert_eq!(
        on("cpu").runnable().unwrap_err().to_string(),
        "trial: precision is tf32, which a CPU cannot\n    → --set precision=f32"
    );
}

/// Every key away from its default, so that one that is not written back shows.
#[test]
fn the_effective_manifest_loads_back_to_the_same() {
    let sets: &[&[&str]] = &[
        &[],
        &[
            "model={layers: 6, hidden: 96, heads: 8, ffn_hidden: 200, vocab: 999, vocab_multiple: 7, \
             seq_len: 64, position: alibi, embedding_layernorm: true, tied_head: false, gelu: exact, \
             layernorm_eps: 1e-6, dropout: {attention: 0.3}, init: {std: 0.0048, \
             scale_residual: false}}",
            "precision=bf16",
            "data={seed: 5, rule: megatron-deepspeed, split: '8,1,1', train: [a, {prefix: b, weight: \
             0.3, range: 0.1..0.7}, {prefix: '5', part: test}], valid: {z: a, a: [{prefix: 'no'}]}, \
             tokenizer: t.json, eod: {token: 3, mask_loss: true, reset_positions: true, \
             reset_attention: true}, objective: {prefix_lm: {loss_on_targets_only: false}}}",
            "batch={micro: 2, global: 48, ramp_up: 12 12 500}",
            "optimizer={adamw: {beta1: 0.8, beta2: 0.99, eps: 1e-6, weight_decay: 0.01, clip: 0}}",
            "lr={peak: 3e-4, min: 1e-5, warmup_tokens: 999, decay: {wsd: {tokens: 1e6}}}",
            "topology={tensor: 2, pipeline: 3, data: 2, zero: 1, sequence_parallel: true, \
             schedule: interleaved, chunks: 2, neighbours: pipeline, recompute: selective, \
             compression: {powersgd: {rank: 2, start_step: 5, min_rate: 1.5}}}",
            "comm={timeout_s: 7, start_timeout_s: 9, rendezvous: 'n1:2950', gpu_transport: host}",
            "checkpoint={interval: 3, keep_last: 4}",
            "log={folder: a b, interval: 9, tensorboard: false}",
            "train={tokens: 1e7, eval_interval: 0, eval_samples: 7, audit_interval: 0, \
             seed: 18446744073709551615, \
             threads: 3, device: cpu}",
            "name=1e3",
        ],
        &["model={layers: 6, hidden: 256, heads: 8, vocab: 4096, seq_len: 128, family: qwen3, \
             kv_heads: 2, head_dim: 40, ffn: gelu, position: {rope: {theta: 7, scaling: {llama3: \
             {factor: 3, low_freq_factor: 2, high_freq_factor: 5, original_seq_len: 8}}}}, \
             window: 5, qk_norm: false, bias: all, norm: layer}"],
        &["model.position={rope: {scaling: {linear: {factor: 3}}}}"],
        &[
            "model.position={rope: {scaling: {yarn: {factor: 3, original_seq_len: 9, beta_fast: 8, \
           beta_slow: 2, attention_factor: 1.25, truncate: false}}}}",
            "model.qk_norm=true",
            "model.ffn=swiglu",
        ],
        &["precision=fp16", "loss_scale={initial: 9, min: 0.3, window: 7, hysteresis: 5}"],
        &["precision=fp16", "loss_scale={constant: 9, window: 7, hysteresis: 5}"],
        &["topology={pipeline: 2, schedule: gpipe, layer_split: [2, 4]}", "lr.decay=constant"],
        &[
            "precision=tf32",
            "lr.decay=linear",
            "topology={pipeline: 4, layer_split: transformer_and_embedding}",
        ],
        &[
            "optimizer={adam8bit: {beta1: 0.8, beta2: 0.99, eps: 1e-6, weight_decay: 0.01, clip: 0, \
             block: 32}}",
        ],
        &["model.positions=400", "model.bias=attention"],
    ];
    for sets in sets {
        let loaded = with(sets);
        let again = gptrain::manifest::parse(&loaded.effective, "e.yaml", Path::new("/else"), &[]);
        let again = again.unwrap_or_else(|problems| panic!("{problems}\n{}", loaded.effective));
        assert_eq!(again.manifest, loaded.manifest);
        assert_eq!(again.effective, loaded.effective);
        let again = gptrain::manifest::parse(&loaded.record(), "e.yaml", Path::new("/else"), &[]);
        let again = again.unwrap_or_else(|problems| panic!("{problems}\n{}", loaded.record()));
        assert_eq!(again.manifest, loaded.manifest, "{}", loaded.record());
        assert_eq!(again.record(), loaded.record());
    }
    let full = with(sets[1]).manifest;
    assert_eq!(full.data.objective, Objective::PrefixLm(PrefixLm { loss_on_targets_only: false }));
    assert_eq!((full.name.as_str(), full.train.seed), ("1e3", u64::MAX));
    assert_eq!(full.train.audit_interval, None);
    let dynamic = LossScale { constant: None, initial: 9.0, min: 0.3, window: 7, hysteresis: 5 };
    assert_eq!(with(sets[5]).manifest.loss_scale, Some(dynamic));
    let constant =
        |scale| LossScale { constant: Some(scale), initial: scale, min: scale, ..dynamic };
    assert_eq!(with(sets[6]).manifest.loss_scale, Some(constant(9.0)));
    let short = with(&["precision=fp16", "loss_scale=8"])
        .manifest
        .loss_scale;
    assert_eq!(short, Some(LossScale { window: 1000, hysteresis: 2, ..constant(8.0) }));
}

#[test]
fn the_schema_describes_every_key() {
    fn undescribed(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        for (key, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{key}");
            if below["description"]
                .as_str()
                .is_none_or(|text| !text.ends_with('.'))
            {
                found.push(path.clone());
            }
            undescribed(below, &path, found);
        }
    }
    let schema = gptrain::manifest::schema();
    let mut found = Vec::new();
    undescribed(&schema, "", &mut found);
    for (name, definition) in schema["$defs"].as_object().expect("definitions") {
        undescribed(definition, name, &mut found);
    }
    assert_eq!(found, Vec::<String>::new());
    assert_eq!(schema["properties"]["model"]["properties"]["layers"]["minimum"], 1);
}

/// "Default: 128." in a key's description is the value that the effective manifest has.
#[test]
fn the_described_defaults_are_the_real_ones() {
    let schema = gptrain::manifest::schema();
    let mut compared = 0;
    for sets in [&["precision=fp16", "data.eod.token=0", "loss_scale.window=1000"][..], &[]] {
        let effective = serde_saphyr::from_str(&with(sets).effective).unwrap();
        compared += compare_defaults(&schema, &schema, &effective, "");
    }
    assert!(compared > 60, "{compared} defaults compared");
}

/// Compares described defaults of the keys below `path` with their values. Returns their number.
fn compare_defaults(root: &Value, schema: &Value, value: &Value, path: &str) -> usize {
    let below = |schema| compare_defaults(root, schema, value, path);
    if let Some(pointer) = schema["$ref"].as_str() {
        return below(root.pointer(pointer.trim_start_matches('#')).unwrap());
    }
    let mut compared: usize = schema["anyOf"]
        .as_array()
        .into_iter()
        .flatten()
        .map(below)
        .sum();
    for (key, value) in value.as_object().into_iter().flatten() {
        let (schema, path) = (&schema["properties"][key], format!("{path}.{key}"));
        compared += compare_defaults(root, schema, value, &path);
        let about = schema["description"]
            .as_str()
            .unwrap_or_default()
            .replace('\n', " ");
        let word = about
            .split("Default: ")
            .nth(1)
            .and_then(|text| text.split([' ', ',']).next());
        let Some(word) = word.map(|word| word.trim_end_matches(['.', ';']).replace('_', "")) else {
            continue;
        };
        if let (Ok(described), Some(real)) = (word.parse::<f64>(), value.as_f64())
            && !about.contains(&format!("{word} ×"))
        {
            assert_eq!(described, real, "{path}: {about}");
            compared += 1;
        } else if let (Ok(described), Some(real)) = (word.parse::<bool>(), value.as_bool()) {
            assert_eq!(described, real, "{path}: {about}");
            compared += 1;
        }
    }
    compared
}
