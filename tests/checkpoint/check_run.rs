//! `gptrain check-run`: an independent PyTorch trainer (tests/fixtures/check_run/make.py) took the next steps
//! after its checkpoints, correctly and with one known error each, and wrote logs. The sound ones agree; of
//! the others the error is found from checkpoint and log alone.

use crate::common::binary::{Done, Lab};
use crate::common::unpack::unpack;
use crate::import_steps::{fixture, says};
use std::fs;

/// A checkpoint, with what its trainer's files do not say.
#[derive(Clone, Copy)]
struct Run {
    checkpoint: &'static str,
    args: &'static [&'static str],
}

const BATCHES: &str = "batches.safetensors";

/// bf16, two tensor ranks and two stages.
const DEEPSPEED: Run = Run { checkpoint: "deepspeed", args: &[] };
const UNIVERSAL: Run = Run { checkpoint: "universal", args: &[] };
const MEGATRON: Run = Run { checkpoint: "megatron", args: &[] };
const TITAN: Run = Run {
    checkpoint: "titan",
    args: &[
        "--batches",
        BATCHES,
        "--set=model.heads=4",
        "--set=model.seq_len=16",
        "--set=model.position.rope.theta=500",
        "--set=batch.global=8",
        "--set=batch.micro=2",
        "--set=lr.min=1e-3",
        "--set=lr.warmup_samples=16",
        "--set=lr.decay={cosine: {samples: 160}}",
        "--set=train.samples=160",
        "--set=precision=f32",
        "--set=optimizer.adamw.clip=0.3",
    ],
};
const HUGGING_FACE: Run = Run {
    checkpoint: "hf/checkpoint-6",
    args: &["--batches", BATCHES, "--set=batch.global=8", "--set=batch.micro=2"],
};

impl Run {
    fn with(self, args: &'static [&'static str]) -> Run {
        Run { args, ..self }
    }

    fn check(&self, lab: &Lab, log: &str, more: &[&str]) -> Done {
        let mut args = vec!["check-run", self.checkpoint, "--log", log];
        args.extend(self.args);
        args.extend(more);
        lab.gptrain(&args)
    }

    /// The log agrees.
    fn agrees(&self, log: &str, trainer: &str) {
        let lab = lab();
        let done = self.check(&lab, log, &[]);
        done.well();
        says(&done, &["the log agrees with the steps computed here", trainer]);
        assert!(!done.out.contains("differs"), "{}", done.out);
    }

    /// The log differs, first in this quantity, and this error is named.
    fn names(&self, log: &str, first: &str, error: &str) {
        let lab = lab();
        let done = self.check(&lab, &format!("logs/{log}.log"), &[]);
        let first = format!("the {first} differs first");
        let error = format!("explained by: {error}");
        done.expect(1, &["the log differs"]);
        says(&done, &[&first, &error]);
    }
}

const MASKED: &[&str] = &["--set=data.eod={token: 0, mask_loss: true}"];

/// The checkpoints, logs and the corpus.
fn lab() -> Lab {
    let lab = Lab::new();
    unpack(&fixture("check_run/check_run.tar.zst"), &[""], &lab.path(""));
    lab
}

#[test]
fn sound_run_of_megatron_deepspeed_in_bf16() {
    DEEPSPEED.agrees("logs/deepspeed/sound.log", "log of Megatron; computed in bf16");
}

#[test]
fn sound_run_of_deepspeed_universal() {
    UNIVERSAL.agrees("logs/universal/sound.log", "log of Megatron; computed in f32");
}

#[test]
fn sound_runs_of_megatron_lm() {
    MEGATRON.agrees("logs/megatron/sound.log", "Megatron-LM (core), step 6");
    MEGATRON
        .with(MASKED)
        .agrees("logs/megatron/masked.log", "Megatron-LM (core), step 6");
}

#[test]
fn sound_run_of_torchtitan() {
    TITAN.agrees("logs/titan/sound.log", "log of torchtitan; computed in f32");
}

/// The folder has weights alone, so that only the first step is compared.
#[test]
fn sound_run_of_hugging_face() {
    HUGGING_FACE.agrees("hf/trainer_state.json", "log of Hugging Face Trainer");
}

#[test]
fn a_dropped_norm_of_the_embedding() {
    DEEPSPEED.names("deepspeed/embed_norm", "loss of step 7", "embedding norm dropped");
}

#[test]
fn a_softmax_without_padding_rows() {
    DEEPSPEED.names("deepspeed/masked_padding", "loss of step 7", "padding rows of the vocabulary");
}

#[test]
fn drifted_copies_of_norms() {
    let drifted = Run { checkpoint: "drifted", ..DEEPSPEED };
    drifted.names(
        "drifted/drifted",
        "loss of step 7",
        "copies of norms drifted between tensor ranks",
    );
}

#[test]
fn masks_of_documents() {
    UNIVERSAL.names(
        "universal/documents",
        "loss of step 7",
        "attention masks of documents: attention stops at documents",
    );
}

#[test]
fn gradients_of_a_tied_embedding_that_are_not_summed() {
    UNIVERSAL.names(
        "universal/split_tied",
        "gradient norm of step 7",
        "tied embedding's gradients not summed: two copies",
    );
}

#[test]
fn weight_decay_of_norms() {
    let error = "parameters with weight decay: norms and biases decay, and the embedding";
    UNIVERSAL.names("universal/decay_norms", "loss of step 8", error);
}

/// torchtitan decays norms, and this one does not.
#[test]
fn norms_that_torchtitan_does_not_decay() {
    let error = "parameters with weight decay: norms and biases do not decay";
    TITAN.names("titan/decay_norms", "loss of step 8", error);
}

#[test]
fn neighbouring_columns_that_rope_turns() {
    MEGATRON.names(
        "megatron/neighbours",
        "loss of step 7",
        "RoPE's pairs of columns: neighbouring",
    );
}

#[test]
fn a_norm_that_misses_a_tensor_rank() {
    MEGATRON.names(
        "megatron/clip_share",
        "gradient norm of step 7",
        "gradient norm that misses a share: only tensor rank 0's share counts",
    );
}

#[test]
fn a_rate_that_is_one_step_late() {
    let error = "learning rate of another step: the rate is one step late";
    MEGATRON.names("megatron/late", "loss of step 8", error);
}

#[test]
fn another_seed_of_the_order() {
    let error = "seed of the data's order: data.seed=1234";
    MEGATRON.names("megatron/seed", "loss of step 7", error);
}

#[test]
fn a_loss_averaged_by_micro_batch() {
    let error = "mean of the loss: per micro-batch";
    MEGATRON
        .with(MASKED)
        .names("megatron/micro_mean", "loss of step 7", error);
}

/// A loss that no known error gives: the nearest ones are listed.
#[test]
fn an_unknown_error_is_not_named() {
    let lab = lab();
    let log = fs::read_to_string(lab.path("logs/megatron/sound.log")).unwrap();
    let mut changed = String::new();
    for line in log.lines() {
        let seventh = line.contains(" 7/");
        changed +=
            &if seventh { line.replace("lm loss: 4.", "lm loss: 5.") } else { line.to_string() };
        changed.push('\n');
    }
    fs::write(lab.path("changed.log"), changed).unwrap();
    let done = MEGATRON.check(&lab, "changed.log", &[]);
    done.expect(1, &["the log differs"]);
    says(&done, &["the loss of step 7 differs first", "none of", "the nearest"]);
    assert!(!done.out.contains("explained by"), "{}", done.out);
}

/// Megatron's line has the mean loss since the line before, and the last norm.
#[test]
fn a_line_for_several_steps_is_compared_with_their_mean() {
    let lab = lab();
    let log = fs::read_to_string(lab.path("logs/megatron/sound.log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let loss = |line: &str| -> f64 {
        let (_, rest) = line.split_once("lm loss: ").unwrap();
        rest.split_once(' ').unwrap().0.parse().unwrap()
    };
    let mean = (loss(lines[6]) + loss(lines[7]) + loss(lines[8])) / 3.0;
    let (before, rest) = lines[8].split_once("lm loss: ").unwrap();
    let (_, after) = rest.split_once(' ').unwrap();
    let sparse = format!("{}\n{}\n{before}lm loss: {mean:.6E} {after}\n", lines[2], lines[5]);
    fs::write(lab.path("sparse.log"), sparse).unwrap();
    let done = MEGATRON.check(&lab, "sparse.log", &[]);
    done.well();
    says(&done, &["mean of", "the log agrees"]);
    let words = ["its first line after step 6 is that of step 9", "--steps 3"];
    MEGATRON
        .check(&lab, "sparse.log", &["--steps=2"])
        .expect(2, &words);
}

#[test]
fn the_result_as_json() {
    let lab = lab();
    let done = MEGATRON.check(&lab, "logs/megatron/clip_share.log", &["--json"]);
    done.expect(1, &[]);
    let value: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(value["departure"]["quantity"], "gradient norm");
    assert_eq!(value["steps"][0]["step"], 7);
    assert_eq!(value["steps"][0]["agrees"], false);
    assert_eq!(value["explanations"][0]["form"], "only tensor rank 0's share counts");
}

#[test]
fn wrong_inputs_are_refused() {
    let lab = lab();
    let refused = |run: Run, log: &str, more: &[&str], words: &[&str]| {
        run.check(&lab, log, more).expect(2, words);
    };
    let log = "logs/megatron/sound.log";
    refused(MEGATRON, "absent.log", &[], &["absent.log"]);
    refused(MEGATRON, "corpus.idx", &[], &["has no line with a step's loss"]);
    refused(MEGATRON, log, &["--data", "absent"], &["absent.idx"]);
    let early = fs::read_to_string(lab.path(log)).unwrap();
    let early: String = early
        .lines()
        .take(4)
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(lab.path("early.log"), early).unwrap();
    let words = ["has steps 1 to 4, and the checkpoint is of step 6"];
    refused(MEGATRON, "early.log", &[], &words);
    refused(
        TITAN.with(&[]),
        "logs/titan/sound.log",
        &[],
        &["has no model.heads", "--set model.heads"],
    );
    let batches = HUGGING_FACE.with(&["--batches", "corpus.idx"]);
    refused(batches, log, &[], &["corpus.idx"]);
    let dropout = ["--set=model.dropout=0.1"];
    refused(MEGATRON, log, &dropout, &["dropout of 0.1", "--set model.dropout=0"]);
    refused(MEGATRON, log, &["--set=model.layers=4"], &["has no parameter for block.2.ln1"]);
    refused(MEGATRON, log, &["--steps=60"], &["the run ends after 160 samples"]);
}
