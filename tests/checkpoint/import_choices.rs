//! Decisions of an import, and its output: settings, rows that pad, copies that differ, counts of updates,
//! states that are left.

use crate::common::binary::Done;
use crate::common::saved::Saved;
use crate::import_steps::*;
use gptrain::manifest::dialects::{self, Meaning};
use half::bf16;
use serde_json::Value as Json;
use std::fs;

/// Output of a dry import, and of the same as JSON.
fn dry(folder: &Folder, from: &str, words: &[&str]) -> (String, Json) {
    let lab = folder.lab();
    let done = lab.gptrain(&["import", from, "--output", "runs/imported", "--dry"]);
    done.well();
    says(&done, words);
    assert!(!lab.path("runs/imported").exists());
    let json = lab.gptrain(&["import", from, "--dry", "--json"]);
    (done.out, serde_json::from_str(&json.out).unwrap())
}

#[test]
fn a_dry_import_lists_the_settings_of_megatron_deepspeed() {
    let (out, json) = dry(
        &BLOOM,
        "bloom",
        &[
            "model.layers: 2  (num_layers)",
            "batch.ramp_up: 4 4 16  (rampup_batch_size)",
            "lr.counted: before",
            "data.rule: megatron-deepspeed",
            "topology.recompute: full  (checkpoint_activations)",
        ],
    );
    assert!(!out.contains("ignored: "), "{out}");
    agrees_with_the_table(&out);
    assert_eq!((&json["step"], &json["samples"]), (&6.into(), &32.into()));
    assert_eq!(json["settings"]["topology.zero"], "1");
}

/// Each row `KEY: VALUE  (NAME)` of an import is one of the table that messages and docs/coming-from.md
/// are made of.
fn agrees_with_the_table(rows: &str) {
    // One argument sets several keys.
    let also = [("data.seed", "seed"), ("model.dropout.embedding", "hidden_dropout")];
    let mut compared = 0;
    for row in rows.lines() {
        let Some((key, rest)) = row.trim().split_once(": ") else { continue };
        let Some(rest) = rest.strip_suffix(')') else { continue };
        let Some((_, name)) = rest.rsplit_once('(') else { continue };
        let Some(found) = dialects::find(name) else { continue };
        if also.contains(&(key, name)) {
            continue;
        }
        let Meaning::Setting { key: meant, .. } = found.meaning else { panic!("{name}") };
        assert_eq!(key, meant, "{name}");
        compared += 1;
    }
    assert!(compared > 15, "{compared} of {rows}");
}

#[test]
fn a_dry_import_lists_the_settings_of_megatron() {
    dry(
        &MEGATRON,
        "megatron/core",
        &[
            "model.family: llama",
            "model.kv_heads: 2  (num_query_groups)",
            "model.position.rope.theta: 500.0  (rotary_base)",
            "data.rule: mcore",
            "lr.counted: before",
            "train.samples: 128",
        ],
    );
    dry(&MEGATRON, "megatron/chunks", &["data.rule: megatron-deepspeed"]);
}

#[test]
fn a_dry_import_lists_the_settings_of_olmo_core() {
    dry(
        &OLMO,
        "olmo",
        &[
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
        ],
    );
}

#[test]
fn settings_that_torchtitans_files_lack_are_asked_for_in_one_go() {
    let words = ["model.hidden: 8", "model.heads: not in the files, --set it", "lr.peak: 0.01"];
    let (_, json) = dry(&TITAN, "titan", &words);
    assert_eq!((&json["step"], &json["wanted"][0]), (&6.into(), &"model.heads".into()));
    assert!(json["samples"].is_null());
    let bare = Folder { from: "titan/step-6", sets: &[], data_at_import: false, ..TITAN };
    let lab = bare.lab();
    let words = ["has no model.heads: ", "--set batch.global=512", "has no data.train"];
    bare.refused(&lab, &words);
    let heads = TITAN.import(&lab, &["--set", "model.heads=3"]);
    heads.expect(2, &["model.heads=3", "do not divide"]);
}

#[test]
fn settings_of_olmo_core_are_asked_for_where_it_has_no_configuration() {
    let bare = Folder { sets: &[], data_at_import: false, ..OLMO };
    let lab = bare.lab();
    fs::remove_file(lab.path("olmo/step6/config.json")).unwrap();
    bare.refused(&lab, &["has no model.heads: ", "has no lr.decay", "--set batch.global=512"]);
}

/// The plan of the run that a folder would become; shapes that the files lack are asked for.
#[test]
fn a_folder_is_planned_before_it_is_imported() {
    let lab = MEGATRON.lab();
    lay_out(&lab, "titan");
    lay_out(&lab, "dist");
    let plan = |from: &[&str], sets: &[&str]| -> Done {
        let mut args = [&["estimate"], from, &["--hardware", "h100", "--json"]].concat();
        for set in sets {
            args.extend(["--set", set]);
        }
        lab.gptrain(&args)
    };
    let read = |done: Done| -> Json {
        done.expect(0, &[]);
        serde_json::from_str(&done.out).unwrap()
    };
    let whole = read(plan(&["run.yaml"], &["topology.tensor=2", "topology.pipeline=2"]));
    assert!(whole["parameters"].is_u64(), "{whole}");
    for from in ["megatron/core", "dist/reshardable"] {
        let planned = read(plan(&["--from", from], &[]));
        assert_eq!(planned["parameters"], whole["parameters"], "{from}");
        assert_eq!(planned["memory"], whole["memory"], "{from}");
    }
    let titan = ["--from", "titan"];
    plan(&titan, &[]).expect(2, &["has no model.heads", "has no batch.global"]);
    let planned = read(plan(&titan, &TITAN.sets[..4]));
    assert_eq!(planned["parameters"], whole["parameters"]);
}

#[test]
fn rows_that_pad_the_vocabulary_can_be_left_out() {
    let lab = BLOOM.lab();
    BLOOM.import(&lab, &["--mask-padding"]).well();
    assert_eq!(imported(&lab).tensors[0].shape, [251, 16]);
}

/// `fp16.py` rewrote BLOOM's files: DeepSpeed's FP16 optimizer, whose partitions have no names, and a table
/// of learned positions.
#[test]
fn the_fp16_optimizers_loss_scale_and_skipped_steps_are_imported() {
    let folder = Folder { archive: "fp16", from: "fp16", ..BLOOM };
    let lab = folder.lab();
    let done = folder.import(&lab, &[]);
    done.well();
    says(&done, &["2 of 6 steps were skipped: no update"]);
    let mut imported = imported(&lab);
    let scale = imported.state.loss_scale.unwrap();
    assert_eq!((scale.scale, scale.updates_in_a_row, scale.overflows_left), (4096.0, 3, 1));
    assert_eq!((scale.updates, scale.skipped), (4, 2));
    assert_eq!(imported.state.skipped_updates, 2);
    assert_eq!(imported.state.optimizer.groups[0].step, 4);
    let positions = imported
        .tensors
        .iter()
        .position(|tensor| tensor.name == "embed.position");
    let positions = imported.tensors.remove(positions.unwrap());
    for (kept, unit) in positions
        .kept
        .iter()
        .zip([1.0 / 64.0, 1.0 / 1024.0, 1.0 / 65536.0])
    {
        let counted: Vec<f32> = (0..256).map(|n| n as f32 * unit).collect();
        assert_eq!(*kept, counted);
    }
    same_tensors(&imported, &original(&lab));
    lab.gptrain(&["run", "runs/imported", "--set", "train.samples=48"])
        .well();
}

/// One update more than steps, and norms that differ between tensor ranks.
#[test]
fn copies_that_differ_become_their_mean_or_the_first() {
    let lab = BLOOM.variant("drifted");
    let done = BLOOM.import(&lab, &[]);
    done.well();
    says(
        &done,
        &[
            "Adam has counted 7 updates in 6 steps",
            "copies of 1 parameters on the tensor ranks differ in the weight, at most by 5.000e-1 \
             (3.input_layernorm.weight, tensor rank 1): their mean is taken",
        ],
    );
    let norm = |mut saved: Saved| saved.tensor("block.0.ln1.scale").kept[0][0];
    let mean = imported(&lab);
    assert_eq!((mean.state.optimizer.ahead, mean.state.optimizer.groups[0].step), (1, 7));
    let was = norm(original(&lab));
    assert!((norm(mean) - was - 0.25).abs() < 1e-6);
    lab.gptrain(&["run", "runs/imported"]).well();
    fs::remove_dir_all(lab.path("runs/imported")).unwrap();
    BLOOM.import(&lab, &["--replicated", "first"]).well();
    assert_eq!(norm(imported(&lab)), was);
}

/// The weights are imported, one line says why the states are not, and AdamW begins again.
#[test]
fn states_that_cannot_be_read_are_left_and_one_line_says_why() {
    let first = |name| Some(remove(name));
    let cases: [(Folder, Option<Change>, &[&str]); 4] = [
        (dist("dist/buckets"), None, &["dp_reshardable", "--dist-ckpt-optim-fully-reshardable"]),
        (
            distrib("distrib/other"),
            None,
            &["distrib_optim.pt", "in no order that is known", "buffer 0"],
        ),
        (Folder { from: "megatron/distrib", ..MEGATRON }, None, &["distrib_optim.pt"]),
        // The first tensor rank of a stage has no file.
        (
            distrib("distrib/one"),
            first("mp_rank_00_001/distrib_optim.pt"),
            &["in distrib_optim.pt, which is missing"],
        ),
    ];
    for (folder, change, words) in cases {
        let lab = folder.lab();
        if let Some(change) = change {
            change(&folder.step_in(&lab));
        }
        let done = folder.import(&lab, &[]);
        done.well();
        let line = done
            .out
            .lines()
            .find(|line| line.contains("AdamW begins again"))
            .unwrap();
        for word in words {
            assert!(line.contains(word), "{word:?}: {line}");
        }
        let imported = imported(&lab);
        for (imported, original) in imported.tensors.iter().zip(&original(&lab).tensors) {
            let rounded = original.kept[0]
                .iter()
                .map(|value| bf16::from_f32(*value).to_f32());
            assert!(imported.kept[0].iter().copied().eq(rounded), "{}", imported.name);
            assert!(
                imported.kept[1..]
                    .iter()
                    .flatten()
                    .all(|moment| *moment == 0.0)
            );
        }
        let optimizer = &imported.state.optimizer;
        assert_eq!((optimizer.began, optimizer.groups[0].step), (6, 0));
        lab.gptrain(&["run", "runs/imported"]).expect(0, &[]);
        assert_eq!(lab.losses("runs/imported").len(), 10);
    }
}
