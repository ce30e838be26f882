//! `gptrain inspect-ckpt` of other programs' folders: facts, numbers of all tensors, copies that differ,
//! damage; and the message for a folder of no format.

use crate::common::binary::Lab;
use crate::common::saved::STATES;
use crate::import_steps::*;
use gptrain::exchange::foreign::{Format, detect};
use gptrain::exchange::inspect::{Depth, Inspection, inspect};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A folder and the facts that are shown.
struct Case {
    folder: Folder,
    trainer: &'static str,
    /// Tensor, pipeline and data ranks.
    grid: [u64; 3],
    /// A tensor, its shape, and the number of ranks that have all of it.
    tensor: (&'static str, &'static [u64], u64),
}

const CASES: &[Case] = &[
    Case {
        folder: BLOOM,
        trainer: "Megatron-DeepSpeed (DeepSpeed 0.7.0)",
        grid: [2, 2, 2],
        tensor: ("3.input_layernorm.weight", &[16], 2),
    },
    Case {
        folder: ZERO3,
        trainer: "Megatron-DeepSpeed, ZeRO-3 (DeepSpeed 0.12.0)",
        grid: [2, 1, 3],
        tensor: ("language_model.encoder.layers.1.mlp.dense_4h_to_h.weight", &[16, 64], 1),
    },
    Case {
        folder: Folder { archive: "universal", from: "universal", ..BLOOM },
        trainer: "Megatron-DeepSpeed (universal checkpoint)",
        grid: [2, 2, 1],
        tensor: ("3.self_attention.query_key_value.weight", &[48, 16], 1),
    },
    Case {
        folder: UNEVEN,
        trainer: "Megatron-DeepSpeed (DeepSpeed 0.7.0)",
        grid: [2, 2, 2],
        tensor: ("5.input_layernorm.weight", &[8], 2),
    },
    Case {
        folder: MEGATRON,
        trainer: "Megatron-LM (core)",
        grid: [2, 2, 1],
        tensor: ("decoder.layers.1.mlp.linear_fc1.weight, layer 3", &[24, 8], 1),
    },
    Case {
        folder: distrib("distrib/one"),
        trainer: "Megatron-LM (core)",
        grid: [2, 2, 2],
        tensor: ("decoder.final_layernorm.weight", &[8], 2),
    },
    Case {
        folder: dist("dist/reshardable"),
        trainer: "Megatron-Core (torch_dist)",
        grid: [2, 2, 1],
        tensor: ("output_layer.weight", &[64, 8], 1),
    },
    Case {
        folder: dist("dist/space"),
        trainer: "Megatron-Core (torch_dist)",
        grid: [2, 2, 1],
        tensor: ("decoder.layers.self_attention.linear_proj.weight, layer 2", &[8, 16], 1),
    },
    Case {
        folder: TITAN,
        trainer: "torchtitan (PyTorch distributed checkpoint)",
        grid: [1, 1, 2],
        tensor: ("layers.3.feed_forward.w2.weight", &[8, 12], 1),
    },
    Case {
        folder: OLMO,
        trainer: "OLMo-core (PyTorch distributed checkpoint)",
        grid: [1, 1, 2],
        tensor: ("model.blocks.0.attention_norm.weight", &[8], 1),
    },
];

fn inspect_json(lab: &Lab, folder: &str, options: &[&str]) -> Value {
    let done = lab.gptrain(&[&["inspect-ckpt", folder, "--json"], options].concat());
    done.expect(0, &[]);
    serde_json::from_str(&done.out).unwrap()
}

/// The facts of each folder, and the norms of all its weights and moments, which are those of the run that
/// it was cut from: whatever order and cuts the files have. No setting is asked for.
#[test]
fn folders_of_every_trainer_are_inspected() {
    for Case { folder, trainer, grid, tensor: (name, shape, copies) } in CASES {
        println!("{}", folder.from);
        let lab = folder.lab();
        let found = inspect_json(&lab, folder.from, &["--deep"]);
        let overview = &found["overview"];
        assert_eq!(overview["trainer"], *trainer);
        assert_eq!((&overview["step"], &overview["updates"]), (&json!(6), &json!(6)));
        let grid_found = ["tensor", "pipeline", "data"].map(|ranks| &overview[ranks]);
        assert_eq!(grid_found, grid.map(Value::from).each_ref());
        assert_eq!((&found["damage"], &found["copies"]), (&json!([]), &json!([])));
        let tensors = found["tensors"].as_array().unwrap();
        let row = tensors.iter().find(|row| row["name"] == *name);
        let row = row.unwrap_or_else(|| panic!("{name} is not in {tensors:#?}"));
        assert_eq!((&row["shape"], &row["copies"]), (&json!(shape), &json!(copies)));
        let original = original(&lab);
        let tied = |row: &&Value| row["name"].as_str().unwrap().ends_with(", last stage");
        for (kept, state) in STATES.into_iter().enumerate() {
            // torchtitan's queries, keys and values have one moment and three weights.
            let stored = |row: &&Value| !tied(row) && row.get(state).is_some();
            let squares = tensors.iter().filter(stored).map(|row| {
                assert_eq!(row[state]["dtype"], "f32", "{row}");
                row[state]["l2"].as_f64().unwrap().powi(2)
            });
            let expected = original
                .tensors
                .iter()
                .flat_map(|tensor| &tensor.kept[kept]);
            let expected: f64 = expected.map(|value| f64::from(*value).powi(2)).sum();
            let found: f64 = squares.sum();
            assert!((found / expected - 1.0).abs() < 1e-6, "{state}: {found} {expected}");
        }
        let values: usize = original
            .tensors
            .iter()
            .map(|tensor| tensor.kept[0].len())
            .sum();
        assert_eq!(overview["parameters"], values);
    }
}

#[test]
fn a_hugging_face_folder_is_inspected_as_it_is() {
    let folder = fixture("checkpoint/hf/qwen3-mixed");
    let found = inspect(&folder, Format::HuggingFace, Depth::All).unwrap();
    assert!(found.damage.is_empty(), "{:?}", found.damage);
    assert!(
        found
            .overview
            .trainer
            .starts_with("Hugging Face (qwen3, transformers ")
    );
    assert_eq!(found.overview.settings["model.layers"], 5);
    assert_eq!(found.tensors[0].name, "model.embed_tokens.weight");
    assert_eq!(found.tensors[0].states["master"].stats.count, 72 * 24);
}

/// Text output: the facts alone, then the weights.
#[test]
fn facts_are_shown_without_reading_tensors() {
    let lab = TITAN.lab();
    let done = lab.gptrain(&["inspect-ckpt", "titan"]);
    done.expect(0, &[]);
    says(
        &done,
        &[
            "titan/step-6\n",
            "the number of samples is not in the files",
            "model: family llama, ffn_hidden 12, hidden 8",
            "not in the files: model.heads, model.seq_len,",
            "no tensor was read: --tensors reads the weights, --deep everything",
        ],
    );
    assert!(!done.out.contains("tok_embeddings"), "{}", done.out);
    let done = lab.gptrain(&["inspect-ckpt", "titan", "--tensors"]);
    says(&done, &["tok_embeddings.weight", "64 × 8", "sound, as far as it was read"]);
    // The numbers of the model, which the files do not have.
    let json = inspect_json(&lab, "titan", &[]);
    assert_eq!(json["overview"]["consumed_samples"], Value::Null);
    assert_eq!(json["overview"]["settings"]["model.layers"], "4");
    let plot = ["inspect-ckpt", "titan", "--plot", "a.svg"];
    lab.gptrain(&plot)
        .expect(2, &["gptrain import titan --output RUN"]);
}

/// `bloom.py` added 0.5 to a norm on tensor rank 1.
#[test]
fn copies_that_drifted_are_named_with_their_rank() {
    let lab = BLOOM.variant("drifted");
    let done = lab.gptrain(&["inspect-ckpt", "bloom", "--tensors"]);
    done.expect(0, &[]);
    says(
        &done,
        &[
            "Drifted copies, compared with tensor rank 0's",
            "3.input_layernorm.weight  master     1",
        ],
    );
    let found = inspect_json(&lab, "bloom", &["--tensors"]);
    let copies = &found["copies"][0];
    assert_eq!((&copies["rank"], &copies["tied"]), (&json!(1), &json!(false)));
    assert!((copies["largest"].as_f64().unwrap() - 0.5).abs() < 1e-6);
    assert_eq!(found["copies"].as_array().unwrap().len(), 1);
}

/// A value that no update writes, and a flipped bit of a file with checksums.
#[test]
fn damage_is_found_and_the_exit_code_is_one() {
    let lab = BLOOM.lab();
    fs::create_dir(lab.path("hf")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = fixture("checkpoint/hf/gpt2").join(name);
        fs::copy(from, lab.path("hf").join(name)).unwrap();
    }
    let weights = lab.path("hf/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(weights, bytes).unwrap();
    let done = lab.gptrain(&["inspect-ckpt", "hf", "--tensors"]);
    done.expect(1, &["hf is damaged: 1 finding"]);
    says(&done, &["DAMAGE: ", ": 1 NaN, 0 infinite", "do not continue from this checkpoint"]);
    let file = "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt";
    flip(file, 1)(&BLOOM.step_in(&lab));
    let done = lab.gptrain(&["inspect-ckpt", "bloom", "--deep"]);
    done.expect(1, &["is damaged"]);
    says(&done, &["the checksum of data/0", file]);
}

/// Folders that were copied in part or renamed, as `import` and `inspect-ckpt` answer them.
#[test]
fn folders_of_no_format_are_answered_with_those_that_they_resemble() {
    type Cases = &'static [(Folder, fn(&Path), &'static [&'static str])];
    const DCP: &str =
        "PyTorch distributed checkpoint (has __0_0.distcp and 1 more; lacks .metadata)";
    const CASES: Cases = &[
        (TITAN, |step| remove(".metadata")(step), &[DCP, "hidden files too"]),
        (
            dist("dist/reshardable"),
            |step| {
                remove(".metadata")(step);
                remove("metadata.json")(step);
            },
            &["Megatron-Core torch_dist (has __0_0.distcp and 3 more; lacks .metadata, \
                 metadata.json)"],
        ),
        (
            BLOOM,
            |step| {
                for entry in fs::read_dir(step).unwrap() {
                    let path = entry.unwrap().path();
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    if !name.starts_with("mp_rank_") {
                        fs::remove_file(path).unwrap();
                    }
                }
            },
            &[
                "Megatron-DeepSpeed (has mp_rank_00_model_states.pt and 3 more; lacks *zero_pp_rank_",
            ],
        ),
        (
            Folder {
                archive: "universal",
                from: "universal",
                step: "global_step6_universal",
                ..BLOOM
            },
            |step| {
                for rank in 0..4 {
                    fs::remove_file(step.join(format!("mp_rank_{rank:02}_model_states.pt")))
                        .unwrap();
                }
            },
            &["DeepSpeed universal (has zero/; lacks mp_rank_*_model_states.pt)"],
        ),
        (
            MEGATRON,
            |step| {
                for entry in fs::read_dir(step).unwrap() {
                    let path = entry.unwrap().path();
                    let name = path
                        .file_name()
                        .unwrap()
                        .to_string_lossy()
                        .replace("mp_rank", "rank");
                    fs::rename(&path, step.join(name)).unwrap();
                }
            },
            &[
                "Megatron-LM (legacy) (has rank_00_000/model_optim_rng.pt and 3 more; lacks mp_rank_*/)",
            ],
        ),
        // The folder that `--save` named, without the file that names the step.
        (
            MEGATRON,
            |step| fs::remove_file(step.join("../latest_checkpointed_iteration.txt")).unwrap(),
            &[
                "iter_0000006 in it is one of Megatron-LM (legacy)",
                "give megatron/core/iter_0000006",
            ],
        ),
        (
            ZERO3,
            |step| fs::remove_file(step.join("../latest")).unwrap(),
            &["global_step6 in it is one of DeepSpeed ZeRO-3", "give zero3/global_step6"],
        ),
    ];
    for (folder, change, words) in CASES {
        println!("{}", folder.from);
        let lab = folder.lab();
        let step = folder.step_in(&lab);
        change(&step);
        // A folder whose name says nothing.
        let given = if words[0].contains("in it is") {
            folder.from.to_string()
        } else {
            fs::rename(&step, lab.path("copied")).unwrap();
            "copied".to_string()
        };
        lab.gptrain(&["import", &given, "--output", "runs/import"])
            .expect(2, words);
        lab.gptrain(&["inspect-ckpt", &given]).expect(2, words);
    }
}

#[test]
fn parts_of_a_checkpoint_name_the_whole() {
    let lab = MEGATRON.lab();
    let rank = format!("{}/{}/mp_rank_00_000", MEGATRON.from, MEGATRON.step);
    let whole = "it is part of one: give ";
    lab.gptrain(&["inspect-ckpt", &rank])
        .expect(2, &[whole, "megatron/core/iter_0000006"]);
    let hf = lab.path("hf");
    fs::create_dir(&hf).unwrap();
    let weights = fixture("checkpoint/hf/gpt2/model.safetensors");
    fs::copy(weights, hf.join("model.safetensors")).unwrap();
    lab.gptrain(&["import", "hf", "--output", "runs/import"])
        .expect(2, &["Hugging Face (has model.safetensors; lacks config.json)"]);
    fs::create_dir(lab.path("empty")).unwrap();
    let error = detect(&lab.path("empty")).unwrap_err().to_string();
    assert!(error.contains("is not a checkpoint that is known: no config.json"), "{error}");
}

/// The states that each depth reads.
#[test]
fn depths_read_what_they_name() {
    let lab = BLOOM.lab();
    let states = |depth| {
        let Inspection { tensors, .. } =
            inspect(&lab.path("bloom"), Format::MegatronDeepSpeed, depth).unwrap();
        tensors.first().map_or(0, |row| row.states.len())
    };
    assert_eq!([Depth::Facts, Depth::Weights, Depth::All].map(states), [0, 1, 3]);
}
