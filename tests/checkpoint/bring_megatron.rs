//! Folders of Megatron-LM (`--ckpt-format torch`), which PyTorch wrote by
//! `tests/fixtures/torch/megatron.py`: the names of Megatron-Core on tensor 2 × pipeline 2, and those
//! before it on two stages of two chunks each.

use crate::bring_llama::{continues_alike, first_number, fixture, import, lab, same_states};
use crate::common::binary::{Done, Lab};
use crate::common::saved::Saved;
use crate::common::unpack::unpack;
use gptrain::base::rng;
use gptrain::exchange::foreign::{Choices, Format, open};
use std::fs;

/// Settings of the original run that no argument of Megatron names.
const SETS: &[&str] = &["train.threads=1", "comm.start_timeout_s=480"];

#[test]
fn a_folder_of_megatron_core_continues_bit_for_bit() {
    let lab = lab("megatron");
    let done = import(&lab, "megatron/core", SETS, &[]);
    done.well();
    for words in ["Megatron-LM (core)", "step 6, 48 samples", "tensor 2 × pipeline 2 × data 1"] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
    same_states(&lab);
    continues_alike(&lab, [2, 2, 1]);
    let lab = self::lab("megatron");
    import(&lab, "megatron/core/iter_0000006", SETS, &[]).well();
    continues_alike(&lab, [1, 1, 1]);
}

#[test]
fn interleaved_chunks_with_the_names_before_core_continue_bit_for_bit() {
    let lab = lab("megatron");
    // The order of samples was that of Megatron-DeepSpeed then; the original run is of today.
    let sets = [SETS, &["data.rule=mcore"]].concat();
    let done = import(&lab, "megatron/chunks", &sets, &[]);
    done.well();
    assert!(done.out.contains("Megatron-LM (before core)"), "{}", done.out);
    same_states(&lab);
    continues_alike(&lab, [1, 2, 1]);
}

#[test]
fn a_dry_import_says_what_becomes_which_setting() {
    let lab = lab("megatron");
    let done = lab.gptrain(&["import", "megatron/core", "--dry"]);
    done.well();
    for words in [
        "model.family: llama",
        "model.kv_heads: 2  (num_query_groups)",
        "model.position.rope.theta: 500.0  (rotary_base)",
        "data.rule: mcore",
        "lr.counted: before",
        "train.samples: 128",
    ] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
    let old = lab.gptrain(&["import", "megatron/chunks", "--dry"]);
    assert!(old.out.contains("data.rule: megatron-deepspeed"), "{}", old.out);
}

/// The weights are brought, one line says why the states are not, and AdamW begins again.
#[test]
fn states_of_a_distributed_optimizer_are_left_and_one_line_says_why() {
    let lab = lab("megatron");
    let done = import(&lab, "megatron/distrib", SETS, &[]);
    done.well();
    let line = done
        .out
        .lines()
        .find(|line| line.contains("AdamW begins again"))
        .unwrap();
    assert!(line.contains("distrib_optim.pt"), "{line}");
    let brought = Saved::read(&lab.path("runs/brought/checkpoints/step-00000006"));
    let original = Saved::read(&lab.path("runs/whole/checkpoints/step-00000006"));
    let rounded = |value: &f32| half::bf16::from_f32(*value).to_f32();
    for (brought, original) in brought.tensors.iter().zip(&original.tensors) {
        let weights: Vec<f32> = original.kept[0].iter().map(rounded).collect();
        assert_eq!(brought.kept[0], weights, "{}", brought.name);
        assert!(
            brought.kept[1..]
                .iter()
                .flatten()
                .all(|moment| *moment == 0.0)
        );
    }
    let optimizer = &brought.state.optimizer;
    assert_eq!((optimizer.began, optimizer.groups[0].step), (6, 0));
    lab.gptrain(&["run", "runs/brought"]).expect(0, &[]);
    assert_eq!(lab.losses("runs/brought").len(), 10);
}

#[test]
fn folders_of_megatron_that_are_not_whole_are_refused() {
    const FILE: &str = "mp_rank_01_001/model_optim_rng.pt";
    type Change<'a> = Box<dyn Fn(&Lab) + 'a>;
    let path = |lab: &Lab, name: &str| lab.path("megatron/core/iter_0000006").join(name);
    let edit = |change: &'static dyn Fn(&mut Vec<u8>)| -> Change {
        Box::new(move |lab| {
            let mut bytes = fs::read(path(lab, FILE)).unwrap();
            change(&mut bytes);
            fs::write(path(lab, FILE), bytes).unwrap();
        })
    };
    let cases: Vec<(Change, &[&str])> = vec![
        (
            Box::new(|lab| fs::remove_file(path(lab, FILE)).unwrap()),
            &["mp_rank_01_001/model_optim_rng.pt is missing", "copy the folder of the step whole"],
        ),
        (
            Box::new(|lab| {
                for rank in 0..2 {
                    fs::remove_dir_all(path(lab, &format!("mp_rank_0{rank}_001"))).unwrap();
                }
            }),
            &["pipeline_model_parallel_size 2", "2 × 1 of mp_rank_TT_PPP"],
        ),
        (edit(&|bytes| bytes.truncate(9000)), &[FILE, "cut short"]),
        (
            edit(&|bytes| {
                let at = first_number(bytes);
                bytes[at] ^= 1;
            }),
            &[FILE, "the checksum of data/0"],
        ),
        (
            Box::new(|lab| {
                let from = lab.path("megatron/chunks/iter_0000006/mp_rank_00_001");
                let to = path(lab, "mp_rank_00_001");
                fs::copy(from.join("model_optim_rng.pt"), to.join("model_optim_rng.pt")).unwrap();
            }),
            &["args makes it [16, 8]"],
        ),
    ];
    for (number, (change, words)) in cases.into_iter().enumerate() {
        let lab = lab("megatron");
        change(&lab);
        import(&lab, "megatron/core", SETS, &[]).expect(2, words);
        assert!(!lab.path("runs/brought").exists(), "{number}");
    }
}

/// An exported run is imported as the same run: every bit of weights and moments, on any grid of files.
/// `tests/fixtures/torch/exported.py` loads such a folder with PyTorch.
#[test]
fn an_exported_folder_is_read_back_bit_for_bit() {
    for [tensor, pipeline] in [["1", "1"], ["2", "2"], ["1", "4"]] {
        let lab = lab("megatron");
        let export = ["export", "runs/whole", "--to", "megatron", "--output", "out"];
        let grid = ["--tensor", tensor, "--pipeline", pipeline];
        let done = lab.gptrain(&[&export[..], &grid].concat());
        done.well();
        assert!(done.out.contains("weights and AdamW's states"), "{}", done.out);
        // The six steps were a run of 48 samples.
        let sets = [SETS, &["train.samples=128"]].concat();
        let done = import(&lab, "out", &sets, &[]);
        done.well();
        assert!(!done.out.contains("begins again"), "{}", done.out);
        same_states(&lab);
        if tensor == "2" {
            continues_alike(&lab, [1, 2, 1]);
        }
    }
}

#[test]
fn exports_that_megatron_cannot_have_are_refused() {
    let lab = lab("megatron");
    let export = |more: &[&str]| {
        lab.gptrain(
            &[&["export", "runs/whole", "--to", "megatron", "--output", "out"], more].concat(),
        )
    };
    export(&["--tensor", "4"]).expect(2, &["2 heads of keys", "--tensor 4"]);
    export(&["--pipeline", "3"]).expect(2, &["4 layers", "--pipeline 3"]);
    assert!(!lab.path("out").exists());
    export(&[]).well();
    export(&[]).expect(2, &["out"]);
    lab.gptrain(&["export", "runs/whole", "--tensor", "2", "--output", "hf"])
        .expect(2, &["--to"]);
}

/// A vocabulary that tensor ranks do not divide is padded with rows of zeros, which an import leaves
/// out.
#[test]
fn rows_that_pad_an_exported_vocabulary_come_back_as_none() {
    let lab = lab("megatron");
    let sets = ["--set", "model.vocab=65", "--set", "log.folder=odd", "--set", "train.samples=16"];
    lab.gptrain(&[&["run", "run.yaml"], &sets[..]].concat())
        .expect(0, &[]);
    let export = ["export", "odd", "--to", "megatron", "--tensor", "2", "--output", "out"];
    let done = lab.gptrain(&export);
    done.well();
    assert!(done.out.contains("1 rows of zeros pad the vocabulary"), "{}", done.out);
    let done = import(&lab, "out", SETS, &[]);
    done.well();
    assert!(
        done.out
            .contains("rows 65 to 65 of the embedding pad it: left out"),
        "{}",
        done.out
    );
    let read = |run: &str| Saved::read(&lab.path(run).join("checkpoints/step-00000002"));
    let (brought, original) = (read("runs/brought"), read("odd"));
    for (brought, original) in brought.tensors.iter().zip(&original.tensors) {
        assert_eq!((&brought.name, &brought.shape), (&original.name, &original.shape));
        assert_eq!(brought.kept, original.kept, "{}", brought.name);
    }
}

/// The plan of the run that a folder would become; of what the files lack, shapes are asked for.
#[test]
fn a_folder_is_planned_before_it_is_imported() {
    let lab = lab("megatron");
    unpack(&fixture("titan.tar.zst"), &["titan/"], &lab.path(""));
    let plan = |from: &str, more: &[&str]| {
        lab.gptrain(&[&["estimate", "--from", from, "--hardware", "h100", "--json"], more].concat())
    };
    let read = |done: Done| -> serde_json::Value {
        done.expect(0, &[]);
        serde_json::from_str(&done.out).unwrap()
    };
    let core = read(plan("megatron/core", &[]));
    let whole = lab.gptrain(&[
        "estimate",
        "run.yaml",
        "--hardware",
        "h100",
        "--json",
        "--set",
        "topology.tensor=2",
        "--set",
        "topology.pipeline=2",
    ]);
    let whole = read(whole);
    assert!(core["parameters"].is_u64(), "{core}");
    assert_eq!(core["parameters"], whole["parameters"]);
    assert_eq!(core["memory"], whole["memory"]);
    unpack(&fixture("dist.tar.zst"), &["dist/reshardable/"], &lab.path(""));
    let dist = read(plan("dist/reshardable", &[]));
    assert_eq!(dist["parameters"], whole["parameters"]);
    assert_eq!(dist["memory"], whole["memory"]);
    plan("titan", &[]).expect(2, &["has no model.heads", "has no batch.global"]);
    let sets = ["model.heads=4", "model.seq_len=16", "model.position.rope.theta=500"];
    let sets: Vec<&str> = sets
        .iter()
        .chain(&["batch.global=8"])
        .flat_map(|set| ["--set", set])
        .collect();
    assert_eq!(read(plan("titan", &sets))["parameters"], whole["parameters"]);
}

#[test]
fn mutated_files_of_megatron_are_read_or_refused() {
    let lab = lab("megatron");
    let folder = lab.path("megatron/core/iter_0000006");
    let file = folder.join("mp_rank_00_001/model_optim_rng.pt");
    let whole = fs::read(&file).unwrap();
    // The pickle comes first; without a checksum its bytes reach the reader.
    let (mut opened, mut refused) = (0, 0);
    for case in 0..200u64 {
        let mut bytes = whole.clone();
        let key = rng::key(case, "megatron");
        let at = 64 + rng::below(key, 0, 8000) as usize;
        bytes[at] = rng::below(key, 1, 256) as u8;
        mend(&mut bytes);
        fs::write(&file, bytes).unwrap();
        match open(&folder, Format::MegatronLegacy, &Choices::default()) {
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(opened > 5 && refused > 5, "{opened} opened, {refused} refused");
}

/// Sets every checksum of an archive to 0, which means that it has none.
pub fn mend(bytes: &mut [u8]) {
    for at in 0..bytes.len() - 30 {
        let place = match &bytes[at..at + 4] {
            b"PK\x01\x02" => at + 16,
            b"PK\x03\x04" => at + 14,
            _ => continue,
        };
        bytes[place..place + 4].fill(0);
    }
}
