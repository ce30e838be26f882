//! Distributed checkpoints of Megatron-Core (`--ckpt-format torch_dist`), which PyTorch wrote from four
//! processes by `tests/fixtures/torch/dist.py`, in each form of layers and of the optimizer's states.

use crate::bring_llama::{
    continues_alike, first_number, first_numbers, import, lab, replace, same_states,
};
use crate::common::saved::Saved;
use gptrain::base::rng;
use gptrain::exchange::foreign::{Choices, Format, open};
use std::fs;
use std::path::Path;

/// Settings of the original run that no argument of Megatron names.
const SETS: &[&str] = &["train.threads=1", "comm.start_timeout_s=480"];

fn continues(kind: &str, grids: &[[usize; 3]]) {
    for grid in grids {
        let lab = lab("dist");
        let done = import(&lab, &format!("dist/{kind}"), SETS, &[]);
        done.well();
        for words in ["Megatron-Core (torch_dist)", "step 6, 48 samples", "tensor 2 × pipeline 2"]
        {
            assert!(done.out.contains(words), "{words}: {}", done.out);
        }
        assert!(done.out.contains("AdamW's states after 6 updates"), "{}", done.out);
        same_states(&lab);
        continues_alike(&lab, *grid);
    }
}

/// All layers in one tensor, `fully_reshardable` states, the common state as an object.
#[test]
fn layers_on_a_leading_axis_continue_bit_for_bit() {
    continues("reshardable", &[[2, 2, 1], [1, 1, 1]]);
}

/// A tensor of each layer, SwiGLU's halves as two, the plain optimizer, `common.pt`.
#[test]
fn tensors_of_single_layers_continue_bit_for_bit() {
    continues("singleton", &[[1, 2, 1]]);
}

/// States in flat pieces of each rank's share: Megatron-Core 0.15 and later refuse them.
#[test]
fn states_in_flat_pieces_of_older_versions_continue_bit_for_bit() {
    continues("space", &[[2, 1, 1]]);
}

/// The weights are imported, one line names the reason and the flag, and AdamW begins again.
#[test]
fn states_in_buckets_are_left_and_one_line_names_the_flag() {
    let lab = lab("dist");
    let done = import(&lab, "dist/buckets", SETS, &[]);
    done.well();
    let line = done
        .out
        .lines()
        .find(|line| line.contains("AdamW begins again"))
        .unwrap();
    for words in ["dp_reshardable", "--dist-ckpt-optim-fully-reshardable"] {
        assert!(line.contains(words), "{line}");
    }
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
    assert_eq!(brought.state.optimizer.began, 6);
    lab.gptrain(&["run", "runs/brought"]).expect(0, &[]);
    assert_eq!(lab.losses("runs/brought").len(), 10);
}

/// Overwrites every `from` in a file with `to`, which is as long.
fn replace_all(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    while bytes.windows(from.len()).any(|part| part == from) {
        replace(bytes, from, to);
    }
}

#[test]
fn folders_of_torch_dist_that_are_not_whole_are_refused() {
    type Change = Box<dyn Fn(&Path)>;
    let edit = |name: &'static str, change: &'static dyn Fn(&mut Vec<u8>)| -> Change {
        Box::new(move |step| {
            let mut bytes = fs::read(step.join(name)).unwrap();
            change(&mut bytes);
            fs::write(step.join(name), bytes).unwrap();
        })
    };
    let remove = |name: &'static str| -> Change {
        Box::new(move |step| fs::remove_file(step.join(name)).unwrap())
    };
    let cases: Vec<(&str, Change, &[&str])> = vec![
        ("reshardable", remove("__3_0.distcp"), &["__3_0.distcp is missing", "copy the folder"]),
        (
            "reshardable",
            edit("__2_0.distcp", &|b| b.truncate(60_000)),
            &["2_0.distcp", "cut short"],
        ),
        ("reshardable", edit(".metadata", &|b| b.truncate(9_000)), &[".metadata", "cut short"]),
        ("singleton", remove("common.pt"), &["neither common.pt nor", "copy the folder"]),
        (
            "space",
            edit("metadata.json", &|b| replace(b, b"\"torch_dist\"", b"\"zarr\"      ")),
            &["metadata.json", "\"zarr\"", "--ckpt-format torch_dist"],
        ),
        (
            "reshardable",
            edit(".metadata", &|b| {
                replace_all(b, b"decoder.final_layernorm", b"decoder.fnial_layernorm")
            }),
            &["has no parameter for lnf.scale", "decoder.fnial_layernorm.weight is not"],
        ),
        (
            "singleton",
            edit(".metadata", &|b| replace_all(b, b"linear_fc1.weight_w", b"linear_fc1.weight_u")),
            &["linear_fc1.weight_u is not in gptrain's model"],
        ),
        (
            "singleton",
            edit("common.pt", &|b| {
                let at = first_number(b);
                b[at] ^= 1;
            }),
            &["common.pt", "the checksum of data/0"],
        ),
        (
            "space",
            edit("__0_0.distcp", &|b| {
                // The model's weights are not read, the f32 ones are.
                first_numbers(b).into_iter().for_each(|at| b[at] ^= 1);
            }),
            &["__0_0.distcp", "the checksum of data/0"],
        ),
    ];
    for (number, (kind, change, words)) in cases.into_iter().enumerate() {
        let lab = lab("dist");
        change(&lab.path(&format!("dist/{kind}/iter_0000006")));
        let done = import(&lab, &format!("dist/{kind}"), SETS, &[]);
        done.expect(2, words);
        assert!(!lab.path("runs/brought").exists(), "{number}");
    }
}

/// A table of bytes that were changed is read, or refused with its place; never with a panic.
#[test]
fn mutated_tables_of_torch_dist_are_read_or_refused() {
    let lab = lab("dist");
    for kind in ["reshardable", "space"] {
        let folder = lab.path(&format!("dist/{kind}/iter_0000006"));
        let table = folder.join(".metadata");
        let whole = fs::read(&table).unwrap();
        let (mut opened, mut refused) = (0, 0);
        for case in 0..100u64 {
            let mut bytes = whole.clone();
            let key = rng::key(case, kind);
            for change in 0..1 + case % 3 {
                let at = rng::below(key, 2 * change, bytes.len() as u64) as usize;
                bytes[at] = rng::below(key, 2 * change + 1, 256) as u8;
            }
            fs::write(&table, bytes).unwrap();
            match open(&folder, Format::MegatronDist, &Choices::default()) {
                Ok(_) => opened += 1,
                Err(error) => {
                    assert!(format!("{error:#}").contains(kind), "{error:#}");
                    refused += 1;
                }
            }
        }
        assert!(opened > 0 && refused > 5, "{opened} opened, {refused} refused");
    }
}
