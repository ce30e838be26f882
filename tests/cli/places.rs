//! Models by their place: a run, a checkpoint, a mirror, a Hugging Face folder, and what the commands say
//! about all other folders; and options that name a setting.

use crate::common::binary::Lab;
use crate::common::saved;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A Hugging Face folder with a tokenizer, in `hf`.
fn lab() -> Lab {
    let lab = Lab::new();
    let copy = saved::copy(&fixture("checkpoint/hf/gpt2"), &lab.path("models"));
    fs::rename(copy, lab.path("hf")).unwrap();
    let tokenizer = fixture("pytorch/scores/tokenizer.json");
    fs::copy(tokenizer, lab.path("hf/tokenizer.json")).unwrap();
    lab
}

#[test]
fn a_hugging_face_folder_is_sampled_inspected_averaged_and_exported() {
    let lab = lab();
    lab.gptrain(&["import", "--hf", "hf", "--output", "runs/h"])
        .expect(0, &[]);
    let sample = |model: &str| {
        let done = lab.gptrain(&["sample", model, "--prompt", "a", "--tokens", "9", "--json"]);
        done.expect(0, &[]);
        done.out
    };
    assert_eq!(sample("hf"), sample("runs/h"));
    let inspected = lab.gptrain(&["inspect-ckpt", "hf", "--json"]);
    inspected.expect(0, &[]);
    let same = lab.gptrain(&["inspect-ckpt", "hf", "--diff", "runs/h"]);
    same.expect(0, &[]);
    lab.gptrain(&["average", "hf", "runs/h", "--output", "runs/mean"])
        .expect(0, &[]);
    assert_eq!(sample("runs/mean"), sample("hf"), "the mean of two equal models");
    lab.gptrain(&["export", "hf", "--output", "again"])
        .expect(0, &[]);
    assert_eq!(sample("again"), sample("hf"));
}

#[test]
fn a_mirror_is_sampled_and_scored() {
    let lab = Lab::new();
    let tokenizer = fixture("pytorch/scores/tokenizer.json");
    let also = format!("checkpoint.also=file://{}", lab.path("away").display());
    let named = format!("data.tokenizer={}", tokenizer.display());
    lab.run(&["train.steps=2", &also, &named, "model.vocab=512"])
        .expect(0, &[]);
    let url = format!("file://{}", lab.path("away").display());
    let sample = |model: &str| {
        lab.gptrain(&["sample", model, "--tokens", "5"])
            .expect(0, &[])
            .out
            .clone()
    };
    assert_eq!(sample(&url), sample("runs/a"));
    let scored = lab.gptrain(&["eval", &url, "--data", "corpus", "--limit", "1"]);
    scored.expect(0, &[]);
    assert!(scored.out.contains("step-00000002"), "{}", scored.out);
}

#[test]
fn other_folders_are_named_with_what_to_type() {
    let lab = lab();
    saved::copy(&fixture("torch/bloom/global_step6"), &lab.path("bloom"));
    fs::write(lab.path("bloom/latest"), "global_step6").unwrap();
    fs::create_dir(lab.path("adapter")).unwrap();
    fs::write(lab.path("adapter/adapter_config.json"), "{}").unwrap();
    let named = "meta-llama/Llama-3.2-1B";
    let download = "hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B";
    for (model, words) in [
        (named, &[named, "is not fetched", download][..]),
        ("adapter", &["is an adapter", "merge_and_unload()"]),
        ("bloom", &["is a checkpoint of Megatron-DeepSpeed", "gptrain import bloom --output RUN"]),
    ] {
        for command in [
            &["sample", model][..],
            &["eval", model, "--data", "corpus"],
            &["average", model, "hf", "--output", "out"],
            &["export", model, "--output", "out"],
        ] {
            lab.gptrain(command).expect(2, words);
        }
        // Another trainer's checkpoint is inspected as it is.
        if model != "bloom" {
            lab.gptrain(&["inspect-ckpt", model]).expect(2, words);
        }
    }
    lab.gptrain(&["import", "--hf", named, "--output", "out"])
        .expect(2, &[download]);
    lab.gptrain(&["import", "--hf", "adapter", "--output", "out"])
        .expect(2, &["is an adapter"]);
    let words = ["hellaswag: there is no such file", "a task is a file", "endings"];
    lab.gptrain(&["eval", "hf", "--tasks", "hellaswag"])
        .expect(2, &words);
}

/// Options that are settings, or other trainers' names of settings.
#[test]
fn an_option_that_names_a_setting_is_answered_with_set() {
    let lab = Lab::new();
    for (options, words) in [
        (&["--lr", "3e-4"][..], "--set lr.peak=3e-4"),
        (&["--learning_rate=1e-3"], "--set lr.peak=1e-3"),
        (&["--steps", "100"], "--set train.steps=100"),
        (&["--train-iters=7"], "--set train.steps=7"),
        (&["--bf16"], "--set precision=bf16"),
        (&["--use-distributed-optimizer"], "--set topology.zero=1"),
        (&["--lr-warmup-iters", "5"], "its value is steps × batch.global"),
        (&["--gpus", "1"], "leave it out: the number of ranks is tensor"),
        (&["--lr.peak=1"], "--set lr.peak=1"),
    ] {
        let done = lab.gptrain(&[&["run", "run.yaml"], options].concat());
        let name = options[0].split('=').next().unwrap();
        done.expect(2, &[&format!("{name}: is not an option of `gptrain run`"), words]);
    }
    lab.gptrain(&["run", "run.yaml", "--sett", "a=1"])
        .expect(2, &["--set"]);
}

/// Every unknown option has one answer, which is never to type it as a value.
#[test]
fn an_unknown_option_is_answered_with_the_one_that_was_meant() {
    let lab = Lab::new();
    for (line, words) in [
        ("sample m --max_new_tokens 5", "did you mean `--tokens 5`?"),
        ("sample m --num-samples=3", "did you mean `--samples 3`?"),
        ("eval m --num_fewshot 5", "did you mean `--shots 5`?"),
        ("eval m --batch_size=8", "did you mean `--set batch.micro=8`?"),
        ("estimate run.yaml --top 3", "--search --gpus N prints the best plans"),
        (
            "export m --output o --format megatron",
            "give --to megatron, --to deepspeed-universal, or nothing",
        ),
        ("export m --output o --megatron", "did you mean `--to megatron`?"),
        ("export m --output o --tp 2", "did you mean `--tensor 2`?"),
        ("compare a b --html c", "did you mean `--output c`?"),
        ("status m --follow", "did you mean `--watch`?"),
        ("data build x --workers 3", "did you mean `--threads 3`?"),
        ("run run.yaml --qqq 3", "it has --example, --set, --minutes"),
        ("man --qqq", "it has no options"),
        ("manifest --qqq", "name a command first"),
    ] {
        let line: Vec<&str> = line.split(' ').collect();
        let refused = lab.gptrain(&line);
        refused.expect(2, &["is not an option of `gptrain", words]);
        assert!(!refused.err.contains("as a value"), "{}", refused.err);
    }
    lab.gptrain(&["sample", "m", "--top_k", "3"])
        .expect(2, &["a similar argument exists: '--top-k'"]);
}

/// A manifest or a run that does not exist is answered with the nearest one that does.
#[test]
fn a_path_that_does_not_exist_is_answered_with_the_nearest() {
    let lab = Lab::new();
    lab.run(&["train.steps=1", "log.folder=runs/small"])
        .expect(0, &[]);
    for (typed, meant) in [
        ("runs/smal", "runs/small"),
        ("rnus/small", "runs/small"),
        ("small", "runs/small"),
        ("run.yml", "run.yaml"),
        ("run", "run.yaml"),
    ] {
        lab.gptrain(&["run", typed])
            .expect(2, &["there is no such file", &format!("did you mean {meant}?")]);
    }
    lab.gptrain(&["run", "elsewhere/other.yaml"])
        .expect(2, &["give the path of a manifest"]);
}

#[test]
fn a_shell_script_is_named_as_one() {
    let lab = Lab::new();
    let script = "#!/bin/bash\n#SBATCH -N 2\nsrun python pretrain_gpt.py --num-layers 24 \\\n\
                  --global-batch-size=512 --unheard-of 3\n";
    fs::write(lab.path("pretrain.slurm"), script).unwrap();
    for command in ["run", "job", "estimate"] {
        lab.gptrain(&[command, "pretrain.slurm"]).expect(
            2,
            &["this is a shell script", "--num-layers is model.layers", "docs/coming-from.md"],
        );
    }
}

/// Examples before each question, from another file and from the task's own.
#[test]
fn questions_are_scored_after_examples() {
    let lab = lab();
    let arc = fixture("pytorch/scores/arc.jsonl");
    let arc = arc.to_str().unwrap();
    let accuracy = |more: &[&str]| {
        let args = ["eval", "hf", "--json", "--tasks", arc, "--limit", "9"];
        let done = lab.gptrain(&[&args[..], more].concat());
        done.expect(0, &[]);
        let scored: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        scored["tasks"][0].clone()
    };
    let plain = accuracy(&[]);
    assert_eq!(plain, accuracy(&[]));
    assert_eq!(accuracy(&["--shots", "2"])["questions"], 9);
    assert_eq!(accuracy(&["--shots", "1", "--shots-from", arc])["questions"], 9);
    fs::write(lab.path("few.jsonl"), fs::read_to_string(arc).unwrap().lines().next().unwrap())
        .unwrap();
    let few = ["eval", "hf", "--tasks", arc, "--shots", "2", "--shots-from", "few.jsonl"];
    lab.gptrain(&few)
        .expect(2, &["few.jsonl: has 1 questions, and 2 examples need 2"]);
    let words = "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"a b c\"}\n";
    fs::write(lab.path("words.jsonl"), words).unwrap();
    let done = lab.gptrain(&["eval", "hf", "--tasks", "words.jsonl"]);
    done.expect(0, &[]);
    assert!(done.out.contains("words.jsonl: perplexity "), "{}", done.out);
    assert!(done.out.contains("| 2 questions"), "{}", done.out);
}
