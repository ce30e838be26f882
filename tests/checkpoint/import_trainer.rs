//! Checkpoints of Hugging Face's Trainer, which the Trainer itself wrote (`tests/fixtures/torch/trainer.py`):
//! weights, moments of PyTorch's AdamW and of bitsandbytes' in 8 bits, the step and the settings.

use crate::common::binary::{Done, Lab};
use crate::common::saved::Saved;
use crate::import_steps::*;
use gptrain::checkpoint::safetensors::Reader;
use std::fs;
use std::path::Path;

/// Settings that the Trainer's files do not have.
const SETS: &[&str] = &[
    "model.seq_len=16",
    "data.train=corpus",
    "data.split='100,0,0'",
    "train.threads=1",
    "comm.start_timeout_s=480",
];

fn import(lab: &Lab, from: &str, more: &[&str]) -> Done {
    let mut args = vec!["import", from, "--output", "runs/imported"];
    for set in SETS {
        args.extend(["--set", set]);
    }
    lab.gptrain(&[&args[..], more].concat())
}

fn lab() -> Lab {
    let lab = MEGATRON.lab();
    lay_out(&lab, "trainer");
    lab
}

/// Every moment and weight that the Trainer's optimizer had, by transformers' names.
fn values(lab: &Lab, name: &str) -> Reader {
    Reader::open(&lab.path("trainer").join(name).join("values.safetensors")).unwrap()
}

/// A state of a parameter in an imported run.
fn state(saved: &mut Saved, param: &str, number: usize) -> Vec<f32> {
    saved.tensor(param).kept[number].clone()
}

/// Names of tensors that are whole parameters in gptrain, and gptrain's names.
fn same_values(lab: &Lab, name: &str, pairs: &[(&str, &str)]) {
    let theirs = values(lab, name);
    let mut saved = imported(lab);
    for (tensor, param) in pairs {
        for (number, kept) in ["weight", "first_moment", "second_moment"]
            .iter()
            .enumerate()
        {
            let expected = theirs.floats(&format!("{tensor}.{kept}")).unwrap();
            let found = state(&mut saved, param, number);
            assert_eq!(found, expected, "{kept} of {tensor}");
            assert!(expected.iter().any(|value| *value != 0.0), "{kept} of {tensor}");
        }
    }
}

#[test]
fn a_llama_with_pytorchs_adamw() {
    let lab = lab();
    let done = import(&lab, "trainer/llama/checkpoint-6", &[]);
    done.well();
    says(&done, &["Hugging Face's Trainer (llama)", "step 6, 48 samples", "after 6 updates"]);
    same_values(
        &lab,
        "llama",
        &[
            ("model.embed_tokens.weight", "embed.token"),
            ("model.layers.0.self_attn.o_proj.weight", "block.0.attn.proj.weight"),
            ("model.layers.1.mlp.down_proj.weight", "block.1.mlp.fc2.weight"),
            ("model.layers.0.input_layernorm.weight", "block.0.ln1.scale"),
            ("model.layers.1.post_attention_layernorm.weight", "block.1.ln2.scale"),
            ("model.norm.weight", "lnf.scale"),
            ("lm_head.weight", "head.weight"),
        ],
    );
    // Two heads of queries, a key and a value, of four rows each.
    let theirs = values(&lab, "llama");
    let fused = state(&mut imported(&lab), "block.1.attn.qkv.weight", 1);
    for (tensor, from, rows) in [("q_proj", 0, 8), ("k_proj", 8, 4), ("v_proj", 12, 4)] {
        let name = format!("model.layers.1.self_attn.{tensor}.weight.first_moment");
        let expected = &theirs.floats(&name).unwrap()[..];
        assert_eq!(&fused[from * 8..(from + rows) * 8], expected, "{tensor}");
    }
    let manifest = fs::read_to_string(lab.path("runs/imported/manifest.yaml")).unwrap();
    for line in [
        "micro: 4 # per_device_train_batch_size",
        "global: 8 #",
        "peak: 0.01 # learning_rate",
        "warmup_samples: 16 # warmup_steps × batch.global",
        "decay: {cosine: {samples: 128}} # lr_scheduler_type",
        "beta2: 0.95 # param_groups",
        "weight_decay: 0.1 # param_groups",
        "clip: 1.0 # max_grad_norm",
        "interval: 6 # save_steps",
        "steps: 16 # max_steps",
        "seed: 42 # seed",
    ] {
        assert!(manifest.contains(line), "{line}: {manifest}");
    }
    lab.gptrain(&["run", "runs/imported"]).expect(0, &[]);
    assert_eq!(lab.losses("runs/imported").len(), 10);
}

/// GPT-2's matrices are stored the other way round, and its norms and biases do not decay.
#[test]
fn a_gpt2_with_pytorchs_adamw() {
    let lab = lab();
    import(&lab, "trainer/gpt2", &[]).well();
    same_values(
        &lab,
        "gpt2",
        &[
            ("transformer.wte.weight", "embed.token"),
            ("transformer.wpe.weight", "embed.position"),
            ("transformer.h.1.ln_1.weight", "block.1.ln1.scale"),
            ("transformer.h.1.mlp.c_fc.bias", "block.1.mlp.fc1.bias"),
            ("transformer.ln_f.bias", "lnf.shift"),
        ],
    );
    let theirs = values(&lab, "gpt2");
    let stored = theirs
        .floats("transformer.h.0.mlp.c_fc.weight.second_moment")
        .unwrap();
    let ours = state(&mut imported(&lab), "block.0.mlp.fc1.weight", 2);
    for (number, value) in ours.iter().enumerate() {
        assert_eq!(*value, stored[number % 8 * 32 + number / 8], "{number}");
    }
    lab.gptrain(&["run", "runs/imported"]).expect(0, &[]);
}

/// Moments of 8 bits are those that bitsandbytes itself makes of its codes.
#[test]
fn a_llama_with_bitsandbytes_adamw() {
    let lab = lab();
    import(&lab, "trainer/bits8", &[]).well();
    same_values(
        &lab,
        "bits8",
        &[
            ("model.layers.0.self_attn.o_proj.weight", "block.0.attn.proj.weight"),
            ("model.norm.weight", "lnf.scale"),
        ],
    );
    let manifest = fs::read_to_string(lab.path("runs/imported/manifest.yaml")).unwrap();
    assert!(manifest.contains("precision: bf16"), "{manifest}");
}

/// States of another optimizer's groups have no names.
#[test]
fn states_in_other_groups_are_left_and_one_line_says_why() {
    let lab = lab();
    let folder = lab.path("trainer/llama/checkpoint-6");
    // The optimizer of the other model.
    fs::copy(lab.path("trainer/gpt2/checkpoint-6/optimizer.pt"), folder.join("optimizer.pt"))
        .unwrap();
    let done = import(&lab, "trainer/llama", &[]);
    done.well();
    says(&done, &["AdamW begins again", "are not those of the Trainer for this model"]);
}

fn refused(change: impl Fn(&Path), words: &[&str]) {
    let lab = lab();
    change(&lab.path("trainer/llama/checkpoint-6"));
    import(&lab, "trainer/llama/checkpoint-6", &[]).expect(2, words);
    assert!(!lab.path("runs/imported").exists());
}

#[test]
fn folders_that_are_not_whole_are_refused() {
    refused(|step| cut("optimizer.pt", 9000)(step), &["optimizer.pt", "cut short"]);
    refused(|step| flip("optimizer.pt", 1)(step), &["optimizer.pt", "checksum"]);
    refused(|step| remove("model.safetensors")(step), &["holds neither model.safetensors"]);
    let lab = lab();
    let bare = ["import", "trainer/llama", "--output", "runs/imported"];
    lab.gptrain(&bare)
        .expect(2, &["has no model.seq_len", "has no data.train"]);
    let dry = lab.gptrain(&["import", "trainer/llama", "--dry"]);
    dry.expect(0, &[]);
    says(&dry, &["would be refused", "batch.global: 8", "step 6"]);
    // The weights alone, as of any Hugging Face folder.
    let hf = ["import", "--hf", "trainer/llama/checkpoint-6", "--output", "runs/imported"];
    lab.gptrain(&hf).well();
}
