//! `gptrain inspect-ckpt A --diff B` between formats: a folder against what was made of it, and a folder
//! that was changed as conversions go wrong.

use crate::common::binary::{Done, Lab};
use crate::import_steps::*;
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::Path;

fn diff(lab: &Lab, b: &str, a: &str) -> Done {
    lab.gptrain(&["inspect-ckpt", b, "--diff", a])
}

/// Every trainer's folder has the values of the run that it was cut from, in all states: the weights and
/// moments of gptrain's own checkpoint. Settings that its files lack are those of the other side.
#[test]
fn folders_of_every_trainer_equal_the_run_that_they_were_cut_from() {
    let universal = Folder { archive: "universal", from: "universal", ..BLOOM };
    for folder in [
        BLOOM,
        ZERO3,
        universal,
        MEGATRON,
        distrib("distrib/several"),
        dist("dist/singleton"),
        TITAN,
        OLMO,
        UNEVEN,
    ] {
        println!("{}", folder.from);
        let lab = folder.lab();
        let own = format!("runs/whole/{STEP}");
        let done = diff(&lab, folder.from, &own);
        done.expect(0, &[]);
        says(&done, &["equal: ", " tensors (weight, first moment, second moment)"]);
        diff(&lab, &own, folder.from).expect(0, &[]);
    }
}

/// A folder against its own conversion to each format.
#[test]
fn conversions_equal_what_they_were_made_from() {
    let cases: [(Folder, &[&str], &str); 4] = [
        (BLOOM, &["--to", "deepspeed-universal"], "weight, first moment, second moment"),
        (BLOOM, &["--to", "hf"], "are compared in the 16 bits with which a step computes"),
        (MEGATRON, &["--to", "megatron", "--tensor", "2"], "weight, first moment, second moment"),
        (
            OLMO,
            &["--to", "hf", "--dtype", "f32", "--set", "data.train=corpus"],
            "equal: 27 tensors (weight)",
        ),
    ];
    for (folder, options, words) in cases {
        let lab = folder.lab();
        let convert = [&["convert", folder.from, "out"], options].concat();
        lab.gptrain(&convert).well();
        let done = diff(&lab, "out", folder.from);
        done.expect(0, &[]);
        says(&done, &["equal: ", words]);
    }
}

/// Two folders that both lack settings: they are asked for, and what the message says to type works.
#[test]
fn settings_that_neither_side_has_are_asked_for() {
    let lab = TITAN.lab();
    diff(&lab, "titan", "titan-2024").expect(2, &["--set model.heads=16"]);
    let mut args = vec!["inspect-ckpt", "titan", "--diff", "titan-2024"];
    for set in ["model.heads=4", "model.seq_len=16", "model.position.rope.theta=500"] {
        args.extend(["--set", set]);
    }
    lab.gptrain(&args).expect(0, &[]);
    lab.gptrain(&["inspect-ckpt", "titan", "--set", "model.heads=4"])
        .expect(2, &["--diff"]);
}

/// A Hugging Face folder of f32 weights of the Llama in `megatron/core`.
fn llama() -> Lab {
    let lab = MEGATRON.lab();
    lab.gptrain(&["convert", "megatron/core", "hf", "--to", "hf", "--dtype", "f32"])
        .well();
    lab
}

/// Changes the numbers of a tensor in a safetensors file; `change` is given its shape.
fn change(folder: &Path, name: &str, change: impl FnOnce(&mut [f32], [usize; 2])) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let offsets = &header[name]["data_offsets"];
    let place: Range<usize> = 8 + len + number(&offsets[0])..8 + len + number(&offsets[1]);
    let shape = [0, 1].map(|axis| number(&header[name]["shape"][axis]));
    let words = bytes[place.clone()].as_chunks::<4>().0.iter();
    let mut values: Vec<f32> = words.map(|word| f32::from_le_bytes(*word)).collect();
    change(&mut values, shape);
    let words: Vec<[u8; 4]> = values.iter().map(|value| value.to_le_bytes()).collect();
    bytes[place].copy_from_slice(words.as_flattened());
    fs::write(path, bytes).unwrap();
}

/// Rows in another order.
fn reorder(values: &mut [f32], [_, cols]: [usize; 2], from: impl Fn(usize) -> usize) {
    let was = values.to_vec();
    for (row, values) in values.chunks_mut(cols).enumerate() {
        values.copy_from_slice(&was[from(row) * cols..][..cols]);
    }
}

/// Mistakes of converters, each in a file, and how it is named.
#[test]
fn mistakes_of_a_conversion_are_named() {
    const LAYER: &str = "model.layers.1.";
    // Heads of four rows, in halves; neighbours there.
    let pairs = |row: usize| row / 4 * 4 + [0, 2, 1, 3][row % 4];
    type Mistake = Box<dyn Fn(&Path)>;
    let cases: Vec<(Mistake, &[&str])> = vec![
        (
            Box::new(move |folder| {
                for kind in ["q", "k"] {
                    let name = format!("{LAYER}self_attn.{kind}_proj.weight");
                    change(folder, &name, |values, shape| reorder(values, shape, pairs));
                }
            }),
            &["weight of block.1.attn.qkv.weight: the rows are in another order (RoPE pairs"],
        ),
        (
            Box::new(|folder| {
                let gate = format!("{LAYER}mlp.gate_proj.weight");
                let up = format!("{LAYER}mlp.up_proj.weight");
                let mut gates = Vec::new();
                let mut ups = Vec::new();
                change(folder, &gate, |values, _| gates = values.to_vec());
                change(folder, &up, |values, _| ups = values.to_vec());
                change(folder, &gate, |values, _| values.copy_from_slice(&ups));
                change(folder, &up, |values, _| values.copy_from_slice(&gates));
            }),
            &[
                "block.1.mlp.fc1.weight: the rows are in another order (gates and values are exchanged)",
            ],
        ),
        (
            Box::new(|folder| {
                change(folder, &format!("{LAYER}mlp.down_proj.weight"), |values, [rows, cols]| {
                    let was = values.to_vec();
                    for (number, value) in values.iter_mut().enumerate() {
                        *value = was[number % rows * cols + number / rows];
                    }
                });
            }),
            &["block.1.mlp.fc2.weight: one is the transpose of the other"],
        ),
        (
            Box::new(|folder| {
                change(folder, "model.embed_tokens.weight", |values, shape| {
                    reorder(values, shape, |row| row ^ 1);
                });
            }),
            &["embed.token: the rows are in another order: row 0 of A is row 1 of B"],
        ),
        (
            Box::new(|folder| {
                change(folder, &format!("{LAYER}self_attn.o_proj.weight"), |values, _| {
                    values[5] *= 2.0;
                });
            }),
            &[
                "block.1.attn.proj.weight: 1 of 8 rows differ (0 to 0), by up to 5.0e-1",
                "1 of 27 tensors differ",
            ],
        ),
        (
            Box::new(|folder| {
                let path = folder.join("config.json");
                let text = fs::read_to_string(&path).unwrap();
                let changed =
                    text.replace("\"rms_norm_eps\": 0.00001", "\"rms_norm_eps\": 0.000001");
                assert_ne!(text, changed);
                fs::write(path, changed).unwrap();
            }),
            &["model.layernorm_eps: ", "all 27 tensors are equal, the model's settings are not"],
        ),
    ];
    for (mistake, words) in cases {
        println!("{}", words[0]);
        let lab = llama();
        diff(&lab, "hf", "megatron/core").expect(0, &[]);
        mistake(&lab.path("hf"));
        let done = diff(&lab, "hf", "megatron/core");
        done.expect(1, &["the two are different"]);
        says(&done, words);
    }
}

#[test]
fn roundings_padding_and_other_models_are_named() {
    let lab = BLOOM.lab();
    let convert = |to: &str, options: &[&str]| {
        let args = [&["convert", "bloom", to, "--to", "hf"], options].concat();
        lab.gptrain(&args).well();
    };
    convert("f16", &["--dtype", "f16"]);
    let done = diff(&lab, "f16", "bloom");
    done.expect(1, &[]);
    says(&done, &["weight of embed.token: B is A rounded to f16", "29 of 29 tensors differ"]);
    convert("masked", &["--dtype", "f32", "--mask-padding"]);
    let done = diff(&lab, "masked", "bloom");
    done.expect(1, &[]);
    says(
        &done,
        &[
            "model.vocab: 256 → 251",
            "weight of embed.token: only A has rows 251 to 255, which pad the vocabulary",
            "1 of 29 tensors differ",
        ],
    );
    convert("both", &["--mask-padding"]);
    let done = diff(&lab, "both", "bloom");
    says(
        &done,
        &["only A has rows 251 to 255, which pad the vocabulary, and B is rounded to bf16"],
    );
    saved_copy(&lab);
    let done = diff(&lab, "gpt2", "bloom");
    done.expect(1, &[]);
    says(&done, &["model.hidden: 16 → 32", "no tensor was compared"]);
    let json = lab.gptrain(&["inspect-ckpt", "f16", "--diff", "bloom", "--json"]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let first = &json["tensors"][0];
    assert_eq!((&first["name"], &first["kind"]), (&"embed.token".into(), &"rounding".into()));
    assert_eq!(first["rounded"], serde_json::json!(["B", "f16"]));
}

/// GPT-2 in `gpt2`.
fn saved_copy(lab: &Lab) {
    let from = fixture("checkpoint/hf/gpt2");
    fs::create_dir(lab.path("gpt2")).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, lab.path("gpt2").join(path.file_name().unwrap())).unwrap();
    }
}
