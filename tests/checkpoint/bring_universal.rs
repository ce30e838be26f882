//! The way back to Megatron-DeepSpeed: a run exported as DeepSpeed's universal folder is read by an
//! independent reader, and imported as the same run. `tests/fixtures/torch/universal_exported.py` loads such a
//! folder with PyTorch.

use crate::bring::{data, grid, lab};
use crate::bring_llama::same_states;
use crate::common::binary::Lab;
use crate::common::saved::Saved;
use std::fs;
use std::path::Path;

const EXPORT: [&str; 6] =
    ["export", "runs/whole", "--to", "deepspeed-universal", "--output", "out"];

/// Settings of the original run, whose first six steps were a run of their own.
fn import(lab: &Lab) {
    let sets = ["train.samples=160", "train.threads=1", "comm.start_timeout_s=480", &data(lab)];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args = ["import", "out", "--output", "runs/brought"];
    lab.gptrain(&args.into_iter().chain(sets).collect::<Vec<_>>())
        .well();
}

/// Entries of a ZIP of stored files, by their local headers alone.
fn entries(path: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let short = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let long = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (mut found, mut at) = (Vec::new(), 0);
    while bytes[at..].starts_with(b"PK\x03\x04") {
        assert_eq!(short(at + 8), 0, "stored");
        let (size, name) = (long(at + 18), short(at + 26));
        let begin = at + 30 + name + short(at + 28);
        let name = String::from_utf8(bytes[at + 30..][..name].to_vec()).unwrap();
        found.push((name, bytes[begin..][..size].to_vec()));
        at = begin + size;
    }
    assert!(bytes[at..].starts_with(b"PK\x01\x02"), "the directory follows");
    found
}

/// Megatron-DeepSpeed's names of a BLOOM of two layers, written out.
fn theirs(ours: &str) -> String {
    let part = |rest: &str| match rest {
        "ln1.scale" => "input_layernorm.weight",
        "ln1.shift" => "input_layernorm.bias",
        "attn.qkv.weight" => "self_attention.query_key_value.weight",
        "attn.qkv.bias" => "self_attention.query_key_value.bias",
        "attn.proj.weight" => "self_attention.dense.weight",
        "attn.proj.bias" => "self_attention.dense.bias",
        "ln2.scale" => "post_attention_layernorm.weight",
        "ln2.shift" => "post_attention_layernorm.bias",
        "mlp.fc1.weight" => "mlp.dense_h_to_4h.weight",
        "mlp.fc1.bias" => "mlp.dense_h_to_4h.bias",
        "mlp.fc2.weight" => "mlp.dense_4h_to_h.weight",
        "mlp.fc2.bias" => "mlp.dense_4h_to_h.bias",
        other => panic!("{other}"),
    };
    match ours {
        "embed.token" => "tied_modules.embed.word_embeddings.weight".into(),
        "embed.ln.scale" => "tied_modules.embed.word_embeddings.norm.weight".into(),
        "embed.ln.shift" => "tied_modules.embed.word_embeddings.norm.bias".into(),
        "lnf.scale" => "6.weight".into(),
        "lnf.shift" => "6.bias".into(),
        _ => {
            let (layer, rest) = ours
                .strip_prefix("block.")
                .unwrap()
                .split_once('.')
                .unwrap();
            format!("{}.{}", layer.parse::<usize>().unwrap() + 3, part(rest))
        }
    }
}

#[test]
fn an_exported_universal_folder_is_read_by_another_reader() {
    let lab = lab();
    let done = lab.gptrain(&EXPORT);
    done.well();
    assert!(done.out.contains("weights and AdamW's states"), "{}", done.out);
    assert!(done.out.contains("--universal-checkpoint"), "{}", done.out);
    let latest = fs::read_to_string(lab.path("out/latest_universal")).unwrap();
    assert_eq!(latest, "global_step6_universal");
    let zero = lab.path("out/global_step6_universal/zero");
    let original = Saved::read(&lab.path("runs/whole/checkpoints/step-00000006"));
    for tensor in &original.tensors {
        let folder = zero.join(theirs(&tensor.name));
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
            assert!(*find("/data/0") == bytes, "{} of {}", file, tensor.name);
            let pickle = find("/data.pkl");
            let has = |word: &[u8]| pickle.windows(word.len()).any(|part| part == word);
            assert!(has(b"param") && has(b"FloatStorage"), "{}", tensor.name);
            let whole = tensor.name.contains("ln") || tensor.name.ends_with("proj.bias");
            let whole = whole || tensor.name.ends_with("fc2.bias");
            assert_eq!(has(b"cat_dim"), !whole, "{}", tensor.name);
        }
    }
    assert_eq!(fs::read_dir(zero).unwrap().count(), original.tensors.len() + 1);
}

#[test]
fn an_exported_universal_folder_is_imported_as_the_same_run() {
    let lab = lab();
    lab.gptrain(&EXPORT).well();
    import(&lab);
    same_states(&lab);
    let sets = grid([1, 2, 1, 0]);
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let data = data(&lab);
    lab.gptrain(&[&["run", "run.yaml", "--set", &data], &sets[..]].concat())
        .expect(0, &[]);
    lab.gptrain(&[&["run", "runs/brought"], &sets[..]].concat())
        .expect(0, &[]);
    let (whole, brought) = (lab.losses("runs/whole"), lab.losses("runs/brought"));
    assert_eq!(whole.len(), 16);
    assert_eq!(brought, whole);
}

#[test]
fn exports_that_a_universal_folder_cannot_have_are_refused() {
    let lab = lab();
    let with = |more: &[&str]| lab.gptrain(&[&EXPORT[..], more].concat());
    with(&["--tensor", "2"]).expect(2, &["--tensor and --pipeline", "whole parameters"]);
    assert!(!lab.path("out").exists());
    with(&[]).well();
    with(&[]).expect(2, &["out"]);
    let llama = crate::bring_llama::lab("megatron");
    let done = llama.gptrain(&EXPORT);
    done.expect(2, &["alibi or learned positions", "the embedding", "LayerNorm", "GELU"]);
    assert!(!llama.path("out").exists());
}
