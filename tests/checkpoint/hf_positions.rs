//! GPT-2 with a table of 24 learned positions continues with samples of 8 tokens (`model.positions`):
//! every row is kept, counted, read and written back.

use super::hf_llama::fixture;
use crate::common::binary::Lab;
use gptrain::checkpoint::safetensors::Reader;
use gptrain::checkpoint::{Checkpoint, load_weights};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{MASTER, Sampler};
use gptrain::exchange::hf::read_config;
use gptrain::manifest;
use std::fs;
use std::path::Path;

const ROWS: usize = 24;
const SEQ: usize = 8;
const HIDDEN: usize = 32;

/// The fixture as a run in `run`, with samples of `SEQ` tokens.
fn imported() -> Lab {
    let lab = Lab::new();
    let (from, seq) = (fixture("gpt2"), format!("model.seq_len={SEQ}"));
    let args = ["import", "--hf", from.to_str().unwrap(), "--output", "run", "--set", &seq];
    lab.gptrain(&args).expect(0, &[]);
    let text = fs::read_to_string(lab.path("run/manifest.yaml")).unwrap();
    assert!(
        text.contains("  seq_len: 8 # --set\n") && text.contains("  positions: 24\n"),
        "{text}"
    );
    lab
}

fn positions(step: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(step).unwrap();
    let tensor = checkpoint.index.tensor("embed.position").unwrap();
    assert_eq!(tensor.shape, [ROWS, HIDDEN]);
    checkpoint.whole(tensor, MASTER).unwrap()
}

fn words(folder: &Path, name: &str) -> Vec<u32> {
    Reader::open(&folder.join("model.safetensors"))
        .unwrap()
        .words(name)
        .unwrap()
}

#[test]
fn every_row_comes_in_computes_and_goes_out() {
    let lab = imported();
    let step = lab.path("run/checkpoints/step-00000000");
    let wpe: Vec<u32> = positions(&step).into_iter().map(f32::to_bits).collect();
    assert_eq!(wpe, words(&fixture("gpt2"), "transformer.wpe.weight"));

    // transformers' logits of samples as long as the table.
    let m = manifest::load(&lab.path("run"), &[]).unwrap().manifest;
    assert_eq!((m.model.seq_len, m.model.context()), (SEQ, ROWS));
    let reader = Reader::open(&fixture("gpt2").join("logits.safetensors")).unwrap();
    let ids: Vec<i32> = reader.words("ids").unwrap();
    let expected: Vec<f32> = reader.words("logits").unwrap();
    let cpu = Cpu::new(Some(1));
    let mut sampler = Sampler::new(&cpu, &m, ROWS).unwrap();
    load_weights(&step, &sampler.weights).unwrap();
    let ids: Vec<u32> = ids[..ROWS].iter().map(|id| *id as u32).collect();
    sampler.each_logits(&ids, |position, ours| {
        let theirs = &expected[position * ours.len()..][..ours.len()];
        let off = ours
            .iter()
            .zip(theirs)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(off <= 1e-5, "position {position}: off by {off}");
    });

    lab.gptrain(&["export", "run", "--output", "out"])
        .expect(0, &[]);
    let out = lab.path("out");
    for name in Reader::open(&out.join("model.safetensors"))
        .unwrap()
        .entries
        .keys()
    {
        assert_eq!(words(&out, name), words(&fixture("gpt2"), name), "{name}");
    }
    let config = fs::read_to_string(out.join("config.json")).unwrap();
    assert!(config.contains("\"n_positions\": 24"), "{config}");
}

#[test]
fn short_samples_train_the_first_rows() {
    let lab = imported();
    let corpus = lab.path("corpus");
    let data = format!("data.train={}", corpus.display());
    let sets = [
        &data,
        "data.split=80,20,0",
        "batch={micro: 1, global: 4}",
        "optimizer={adamw: {weight_decay: 0}}",
        "lr={peak: 3e-3, warmup_samples: 0, decay: constant}",
        "train={steps: 4, threads: 1, eval_interval: 0}",
        "checkpoint.interval=4",
    ];
    let run = |more: &[&str]| {
        let sets = sets.iter().chain(more).flat_map(|set| ["--set", set]);
        lab.gptrain(&["run", "run"].into_iter().chain(sets).collect::<Vec<_>>())
    };
    let fewer = ["model.positions was 24, is 16", "continue it as it was: gptrain run "];
    run(&["model.positions=16"]).expect(2, &fewer);
    run(&["model.seq_len=25"]).expect(2, &["model.positions 24 is less than model.seq_len 25"]);
    run(&[]).expect(0, &[]);
    let name = |step: u64| format!("run/checkpoints/step-{step:08}");
    let [before, after] = [0, 4].map(|step| positions(&lab.path(&name(step))));
    let same = |row: usize| before[row * HIDDEN..][..HIDDEN] == after[row * HIDDEN..][..HIDDEN];
    for row in 0..ROWS {
        assert_eq!(same(row), row >= SEQ, "row {row}: samples have {SEQ} tokens");
    }
}

/// A text longer than a sample is read whole: `sample` and `eval` give what they give of a run with
/// long samples.
#[test]
fn sample_and_eval_read_as_many_tokens_as_there_are_rows() {
    let lab = Lab::new();
    let text: String = (0..2000)
        .map(|i| format!("line {i} of some text\n"))
        .collect();
    fs::write(lab.path("text.txt"), text).unwrap();
    let learn = ["data", "train-tokenizer", "text.txt", "--vocab", "300", "-o", "tok.json"];
    lab.gptrain(&learn).well();
    let model =
        "model={layers: 2, hidden: 32, heads: 4, vocab: 300, seq_len: 48, init: {std: 0.3}}";
    lab.run(&[model, "train.steps=2"]).well();
    lab.gptrain(&["export", "runs/a", "--output", "hf"]).well();
    let sample = |seq_len: u64| {
        let (run, set) = (format!("of-{seq_len}"), format!("model.seq_len={seq_len}"));
        lab.gptrain(&["import", "--hf", "hf", "--output", &run, "--set", &set])
            .well();
        let args = ["sample", &run, "--prompt", "line 7", "--tokens", "30", "--seed", "5"];
        let done = lab.gptrain(&[&args[..], &["--tokenizer", "tok.json", "--json"]].concat());
        done.expect(0, &[]).out.clone()
    };
    let (long, short) = (sample(48), sample(8));
    assert!(long.contains("\"text\":"), "{long}");
    assert_eq!(short, long);
    let eval = |run: &str, seq_len: &str| {
        let args =
            ["eval", run, "--data", "corpus", "--seq-len", seq_len, "--limit", "3", "--json"];
        lab.gptrain(&args)
    };
    let loss = |run: &str| {
        let done = eval(run, "48");
        let json: serde_json::Value = serde_json::from_str(&done.expect(0, &[]).out).unwrap();
        json["data"]["loss"].as_f64().unwrap()
    };
    assert_eq!(loss("of-8"), loss("of-48"));
    let told = ["--seq-len", "49 is more than the model's 48 positions"];
    eval("of-8", "49").expect(2, &told);
}

#[test]
fn the_estimate_counts_all_rows() {
    let lab = Lab::new();
    let parameters = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["estimate", "run.yaml", "--json"]
            .into_iter()
            .chain(sets)
            .collect();
        let done = lab.gptrain(&args);
        let json: serde_json::Value = serde_json::from_str(&done.expect(0, &[]).out).unwrap();
        json["parameters"].as_u64().unwrap()
    };
    let more = parameters(&["model.positions=1024"]) - parameters(&[]);
    assert_eq!(more, (1024 - 16) * HIDDEN as u64);
}

/// A config.json without the number of positions has that of transformers.
#[test]
fn a_missing_number_of_positions_is_the_default_of_transformers() {
    let lab = Lab::new();
    let config =
        r#"{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16}"#;
    fs::write(lab.path("config.json"), config).unwrap();
    let read = read_config(&lab.path("")).unwrap();
    assert_eq!((read.positions, read.model.positions), (1024, Some(1024)));
}
