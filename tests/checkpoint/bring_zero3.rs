//! The tiny BLOOM of `bring` in the files of Megatron-DeepSpeed with ZeRO-3, tensor 2 × data 3, which
//! PyTorch wrote by `tests/fixtures/torch/zero3.py`: few parameters divide by three, so that most are padded.

use crate::bring::{data, fixture, grid, lab};
use crate::bring_llama::{first_number, replace, same_states};
use crate::common::binary::{Done, Lab};
use crate::common::unpack::unpack;
use std::fs;

/// The run's batch of 8 does not divide by the three data ranks of the files.
fn import(lab: &Lab) -> Done {
    let sets = ["topology.data=1", "topology.zero=0", &data(lab)].map(str::to_string);
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args = ["import", "zero3", "--output", "runs/brought"];
    lab.gptrain(&args.into_iter().chain(sets).collect::<Vec<_>>())
}

fn zero3() -> Lab {
    let lab = lab();
    unpack(&fixture("torch/zero3.tar.zst"), &["zero3/"], &lab.path(""));
    lab
}

#[test]
fn a_folder_of_zero3_continues_bit_for_bit() {
    for cut in [[2, 1, 2, 3], [1, 1, 1, 0], [1, 2, 1, 0]] {
        let lab = zero3();
        let done = import(&lab);
        done.well();
        for words in [
            "Megatron-DeepSpeed, ZeRO-3 (DeepSpeed 0.12.0)",
            "step 6, 32 samples",
            "tensor 2 × pipeline 1 × data 3",
            "with AdamW's states after 6 updates",
        ] {
            assert!(done.out.contains(words), "{words}: {}", done.out);
        }
        same_states(&lab);
        let (sets, data) = (grid(cut), data(&lab));
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        lab.gptrain(&[&["run", "run.yaml", "--set", &data], &sets[..]].concat())
            .expect(0, &[]);
        lab.gptrain(&[&["run", "runs/brought"], &sets[..]].concat())
            .expect(0, &[]);
        let (whole, brought) = (lab.losses("runs/whole"), lab.losses("runs/brought"));
        assert_eq!(whole.len(), 16);
        assert_eq!(brought, whole, "{cut:?}");
    }
}

#[test]
fn folders_of_zero3_that_are_not_whole_are_refused() {
    const OPTIM: &str = "bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt";
    const MODEL: &str = "zero_pp_rank_0_mp_rank_01_model_states.pt";
    type Change = Box<dyn Fn(&Lab)>;
    let remove = |name: &'static str| -> Change {
        Box::new(move |lab| {
            fs::remove_file(lab.path("zero3/global_step6").join(name)).unwrap();
        })
    };
    let edit = |name: &'static str, change: &'static dyn Fn(&mut Vec<u8>)| -> Change {
        Box::new(move |lab| {
            let path = lab.path("zero3/global_step6").join(name);
            let mut bytes = fs::read(&path).unwrap();
            change(&mut bytes);
            fs::write(path, bytes).unwrap();
        })
    };
    /// Overwrites a word in an archive, which has no checksums then.
    fn rewrite(bytes: &mut [u8], from: &[u8], to: &[u8]) {
        crate::bring_megatron::mend(bytes);
        replace(bytes, from, to);
    }
    let cases: Vec<(Change, &[&str])> = vec![
        (remove(OPTIM), &["zero_pp_rank_2_mp_rank_01_optim_states.pt is missing"]),
        (remove(MODEL), &["zero_pp_rank_0_mp_rank_01_model_states.pt is missing"]),
        (edit(OPTIM, &|bytes| bytes.truncate(9000)), &[OPTIM, "cut short"]),
        (
            edit(OPTIM, &|bytes| {
                let at = first_number(bytes);
                bytes[at] ^= 1;
            }),
            &[OPTIM, "the checksum of data/0"],
        ),
        // A layer that no file of another rank has.
        (
            edit(MODEL, &|bytes| rewrite(bytes, b"layers.1.input", b"layers.7.input")),
            &[MODEL, "param_shapes is not that of tensor rank 0"],
        ),
        (
            edit(OPTIM, &|bytes| {
                let word = b"partition_count";
                let at = bytes
                    .windows(word.len())
                    .position(|part| part == word)
                    .unwrap();
                let count = at
                    + bytes[at..]
                        .windows(2)
                        .position(|part| part == b"K\x03")
                        .unwrap();
                bytes[count + 1] = 4;
                crate::bring_megatron::mend(bytes);
            }),
            &[OPTIM, "partition_count is 4, the folder has files of 3 ranks"],
        ),
        // A partition one element short: the first tensor's size, behind its offset of 0.
        (
            edit(OPTIM, &|bytes| {
                let size = |part: &[u8]| part.starts_with(b"K\0M") && part[5] == 0x85;
                let at = bytes.windows(6).position(size).unwrap();
                let short = u16::from_le_bytes([bytes[at + 3], bytes[at + 4]]) - 1;
                bytes[at + 3..at + 5].copy_from_slice(&short.to_le_bytes());
                crate::bring_megatron::mend(bytes);
            }),
            &[OPTIM, "the first moment of group 0 has", "its parameters' parts"],
        ),
    ];
    for (number, (change, words)) in cases.into_iter().enumerate() {
        let lab = zero3();
        change(&lab);
        let done = import(&lab);
        done.expect(2, words);
        assert!(!lab.path("runs/brought").exists(), "{number}");
    }
}
