//! OLMo-core's folders: the Llama of `bring_llama` under its names, which PyTorch wrote from two processes by
//! `tests/fixtures/torch/olmo.py`, with the trainer's own configuration.

use crate::bring_llama::{continues_alike, import, lab, replace, same_states};
use std::fs;

/// Settings of the original run that OLMo-core does not have so.
const SETS: &[&str] =
    &["lr.counted=before", "train.threads=1", "comm.start_timeout_s=480", "data.split='100,0,0'"];

#[test]
fn a_folder_of_olmo_core_continues_bit_for_bit() {
    for (from, grid) in [("olmo", [1, 1, 1]), ("olmo/step6", [2, 2, 1])] {
        let lab = lab("olmo");
        let done = import(&lab, from, SETS, &[]);
        done.well();
        for words in [
            "OLMo-core (PyTorch distributed checkpoint)",
            "step 6, 48 samples",
            "tensor 1 × pipeline 1 × data 2",
            "OLMo-core decayed embeddings.weight by 0, other matrices by 0.1",
            "OLMo-core decayed 9 norms too",
            "place of OLMo-core's data loader is not carried",
        ] {
            assert!(done.out.contains(words), "{words}: {}", done.out);
        }
        same_states(&lab);
        continues_alike(&lab, grid);
    }
}

#[test]
fn what_olmo_cores_configuration_has_becomes_settings() {
    let lab = lab("olmo");
    let dry = lab.gptrain(&["import", "olmo", "--dry"]);
    dry.well();
    for words in [
        "model.heads: 4  (n_heads)",
        "model.kv_heads: 2",
        "model.seq_len: 16",
        "model.position.rope.theta: 500.0",
        "batch.global: 8",
        "batch.micro: 2",
        "lr.warmup_samples: 16",
        "lr.decay: {cosine: {samples: 160}}",
        "lr.min: 0.001",
        "lr.counted: after",
        "train.steps: 16",
        "data.train: not in the files, --set it",
    ] {
        assert!(dry.out.contains(words), "{words}: {}", dry.out);
    }
    // Without the configuration, it is asked for.
    fs::remove_file(lab.path("olmo/step6/config.json")).unwrap();
    let done = lab.gptrain(&["import", "olmo", "--output", "runs/brought"]);
    done.expect(2, &["has no model.heads: ", "has no lr.decay", "--set batch.global=512"]);
}

#[test]
fn models_of_olmo_core_that_gptrain_computes_otherwise_are_refused() {
    let block = br#""block": {"name": "default""#;
    /// File, the bytes replaced in it, those in their place, the words of the refusal.
    type Case<'a> = (&'a str, &'a [u8], &'a [u8], &'a [&'a str]);
    let cases: [Case; 3] = [
        (
            "config.json",
            block,
            br#""block": {"name": "reorder""#,
            &["model.block.name is \"reorder\""],
        ),
        (
            "config.json",
            br#""full_precision": true"#,
            br#""scaling": {"facto":8}"#,
            &["sequence_mixer.rope.scaling", "is not read"],
        ),
        ("train/rank0.pt", b"global_step", b"global_stop", &["rank0.pt", "checksum"]),
    ];
    for (file, from, to, words) in cases {
        let lab = lab("olmo");
        let path = lab.path("olmo/step6").join(file);
        let mut bytes = fs::read(&path).unwrap();
        replace(&mut bytes, from, &[to, &b" ".repeat(from.len() - to.len())].concat());
        fs::write(path, bytes).unwrap();
        import(&lab, "olmo", SETS, &[]).expect(2, words);
        assert!(!lab.path("runs/brought").exists(), "{file}");
    }
}
