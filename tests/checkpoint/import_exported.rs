//! The way back: a run exported for Megatron-LM or as DeepSpeed's universal folder is imported as the same
//! run. `exported.py` and `universal_exported.py` load such folders with PyTorch.

use crate::common::binary::{Done, Lab};
use crate::common::saved::Saved;
use crate::import_steps::*;
use std::fs;
use std::path::Path;

fn export(lab: &Lab, run: &str, to: &str, more: &[&str]) -> Done {
    lab.gptrain(&[&["export", run, "--to", to, "--output", "out"], more].concat())
}

/// Every bit of weights and moments, on any grid of files.
#[test]
fn a_folder_for_megatron_is_read_back_bit_for_bit() {
    // The six steps were a run of 48 samples.
    let sets = &["train.samples=128", "train.threads=1", "comm.start_timeout_s=480"];
    let folder = Folder { from: "out", sets, ..MEGATRON };
    for [tensor, pipeline] in [["1", "1"], ["2", "2"], ["1", "4"]] {
        let lab = folder.lab();
        let grid = ["--tensor", tensor, "--pipeline", pipeline];
        let done = export(&lab, "runs/whole", "megatron", &grid);
        done.well();
        says(&done, &["weights and AdamW's states"]);
        let done = folder.import(&lab, &[]);
        done.well();
        assert!(!done.out.contains("begins again"), "{}", done.out);
        same_states(&lab);
        if tensor == "2" {
            folder.trains_alike(&lab, [1, 2, 1, 0]);
        }
    }
}

#[test]
fn exports_that_megatron_cannot_have_are_refused() {
    let lab = MEGATRON.lab();
    let export = |more: &[&str]| export(&lab, "runs/whole", "megatron", more);
    export(&["--tensor", "4"]).expect(2, &["2 heads of keys", "--tensor 4"]);
    export(&["--pipeline", "3"]).expect(2, &["4 layers", "--pipeline 3"]);
    assert!(!lab.path("out").exists());
    export(&[]).well();
    export(&[]).expect(2, &["out"]);
    let hf = ["export", "runs/whole", "--tensor", "2", "--output", "hf"];
    lab.gptrain(&hf).expect(2, &["--to"]);
}

/// A vocabulary that is not divisible by the tensor ranks is padded with rows of zeros, which an import
/// leaves out.
#[test]
fn rows_that_pad_an_exported_vocabulary_are_left_out_again() {
    let lab = MEGATRON.lab();
    let sets = ["--set", "model.vocab=65", "--set", "log.folder=odd", "--set", "train.samples=16"];
    lab.gptrain(&[&["run", "run.yaml"], &sets[..]].concat())
        .expect(0, &[]);
    let done = export(&lab, "odd", "megatron", &["--tensor", "2"]);
    done.well();
    says(&done, &["1 rows of zeros pad the vocabulary"]);
    let done = Folder { from: "out", ..MEGATRON }.import(&lab, &[]);
    done.well();
    says(&done, &["rows 65 to 65 of the embedding pad it: left out"]);
    let read = |run: &str| Saved::read(&lab.path(run).join("checkpoints/step-00000002"));
    same_tensors(&read("runs/imported"), &read("odd"));
}

/// Entries of a ZIP of stored files, by their local headers alone.
fn entries(path: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let short = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let long = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut found = Vec::new();
    let mut at = 0;
    while bytes[at..].starts_with(b"PK\x03\x04") {
        assert_eq!(short(at + 8), 0, "stored");
        let name = short(at + 26);
        let begin = at + 30 + name + short(at + 28);
        let end = begin + long(at + 18);
        let name = String::from_utf8(bytes[at + 30..][..name].to_vec()).unwrap();
        found.push((name, bytes[begin..end].to_vec()));
        at = end;
    }
    assert!(bytes[at..].starts_with(b"PK\x01\x02"), "the directory follows");
    found
}

/// Megatron-DeepSpeed's names of a BLOOM of two layers: ours, theirs.
const NAMES: &[(&str, &str)] = &[
    ("embed.token", "tied_modules.embed.word_embeddings.weight"),
    ("embed.ln.scale", "tied_modules.embed.word_embeddings.norm.weight"),
    ("embed.ln.shift", "tied_modules.embed.word_embeddings.norm.bias"),
    ("lnf.scale", "6.weight"),
    ("lnf.shift", "6.bias"),
    ("ln1.scale", "input_layernorm.weight"),
    ("ln1.shift", "input_layernorm.bias"),
    ("attn.qkv.weight", "self_attention.query_key_value.weight"),
    ("attn.qkv.bias", "self_attention.query_key_value.bias"),
    ("attn.proj.weight", "self_attention.dense.weight"),
    ("attn.proj.bias", "self_attention.dense.bias"),
    ("ln2.scale", "post_attention_layernorm.weight"),
    ("ln2.shift", "post_attention_layernorm.bias"),
    ("mlp.fc1.weight", "mlp.dense_h_to_4h.weight"),
    ("mlp.fc1.bias", "mlp.dense_h_to_4h.bias"),
    ("mlp.fc2.weight", "mlp.dense_4h_to_h.weight"),
    ("mlp.fc2.bias", "mlp.dense_4h_to_h.bias"),
];

fn name_in_megatron_deepspeed(ours: &str) -> String {
    let name = |ours: &str| NAMES.iter().find(|(name, _)| *name == ours).unwrap().1;
    let Some(block) = ours.strip_prefix("block.") else { return name(ours).to_string() };
    let (layer, rest) = block.split_once('.').unwrap();
    format!("{}.{}", layer.parse::<usize>().unwrap() + 3, name(rest))
}

#[test]
fn a_universal_folder_is_read_by_another_reader() {
    let lab = BLOOM.lab();
    let done = export(&lab, "runs/whole", "deepspeed-universal", &[]);
    done.well();
    says(&done, &["weights and AdamW's states", "--universal-checkpoint"]);
    let latest = fs::read_to_string(lab.path("out/latest_universal")).unwrap();
    assert_eq!(latest, "global_step6_universal");
    let zero = lab.path("out/global_step6_universal/zero");
    let original = original(&lab);
    for tensor in &original.tensors {
        let folder = zero.join(name_in_megatron_deepspeed(&tensor.name));
        for (kept, file) in tensor
            .kept
            .iter()
            .zip(["fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"])
        {
            let entries = entries(&folder.join(file));
            let find = |end: &str| {
                let found = entries.iter().find(|(name, _)| name.ends_with(end));
                &found
                    .unwrap_or_else(|| panic!("{} has no {end}", folder.display()))
                    .1
            };
            let bytes: Vec<u8> = kept.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert!(*find("/data/0") == bytes, "{file} of {}", tensor.name);
            let pickle = find("/data.pkl");
            let has = |word: &[u8]| pickle.windows(word.len()).any(|part| part == word);
            assert!(has(b"param") && has(b"FloatStorage"), "{}", tensor.name);
            let whole = tensor.name.contains("ln")
                || tensor.name.ends_with("proj.bias")
                || tensor.name.ends_with("fc2.bias");
            assert_eq!(has(b"cat_dim"), !whole, "{}", tensor.name);
        }
    }
    assert_eq!(fs::read_dir(zero).unwrap().count(), original.tensors.len() + 1);
}

/// The 32 samples are four steps of 4 and two of 8.
#[test]
fn a_warm_up_of_length_is_said_as_deepspeeds_block() {
    let lab = BLOOM.lab();
    let sets = ["log.folder=grows", "train.samples=16", "batch.length_ramp_up=8 4 32"];
    let sets = sets.iter().flat_map(|set| ["--set", *set]);
    lab.gptrain(
        &["run", "run.yaml"]
            .into_iter()
            .chain(sets)
            .collect::<Vec<_>>(),
    )
    .well();
    let done = export(&lab, "grows", "deepspeed-universal", &[]);
    done.well();
    let words = ["\"min_difficulty\": 8", "\"total_curriculum_step\": 6", "\"difficulty_step\": 4"];
    says(&done, &words);
}

/// The first six steps were a run of their own.
#[test]
fn a_universal_folder_is_read_back_bit_for_bit() {
    let sets = &["train.samples=160", "train.threads=1", "comm.start_timeout_s=480"];
    let folder = Folder { from: "out", sets, ..BLOOM };
    let lab = folder.lab();
    export(&lab, "runs/whole", "deepspeed-universal", &[]).well();
    folder.import(&lab, &[]).well();
    same_states(&lab);
    folder.trains_alike(&lab, [1, 2, 1, 0]);
}

#[test]
fn exports_that_a_universal_folder_cannot_have_are_refused() {
    let lab = BLOOM.lab();
    let export = |lab, more: &[&str]| export(lab, "runs/whole", "deepspeed-universal", more);
    let tensor = export(&lab, &["--tensor", "2"]);
    tensor.expect(2, &["--tensor and --pipeline", "whole parameters"]);
    assert!(!lab.path("out").exists());
    export(&lab, &[]).well();
    export(&lab, &[]).expect(2, &["out"]);
    let llama = MEGATRON.lab();
    let words = ["alibi or learned positions", "the embedding", "LayerNorm", "GELU"];
    export(&llama, &[]).expect(2, &words);
    assert!(!llama.path("out").exists());
}
