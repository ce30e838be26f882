//! Megatron-LM's distributed optimizer (`distrib_optim.pt`), which PyTorch wrote by
//! `tests/fixtures/torch/distrib.py`: flat buffers, whose order is proved by the model's weights.

use crate::bring_llama::{continues_alike, import, lab, same_states};
use crate::common::saved::Saved;
use std::fs;

/// Settings of the original run that no argument of Megatron names.
const SETS: &[&str] = &["train.threads=1", "comm.start_timeout_s=480"];

#[test]
fn states_in_flat_buffers_continue_bit_for_bit() {
    for (kind, grid) in [("one", [2, 2, 1]), ("several", [1, 1, 2]), ("chunks", [1, 1, 1])] {
        let lab = lab("distrib");
        let done = import(&lab, &format!("distrib/{kind}"), SETS, &[]);
        done.well();
        assert!(done.out.contains("AdamW's states after 6 updates"), "{kind}: {}", done.out);
        same_states(&lab);
        continues_alike(&lab, grid);
    }
}

/// The weights are imported, and one line names the file and the reason.
#[test]
fn buffers_in_an_unknown_order_are_left_and_one_line_says_why() {
    let lab = lab("distrib");
    let done = import(&lab, "distrib/other", SETS, &[]);
    done.well();
    let line = done
        .out
        .lines()
        .find(|line| line.contains("AdamW begins again"))
        .unwrap();
    for words in ["distrib_optim.pt", "in no order that is known", "buffer 0"] {
        assert!(line.contains(words), "{line}");
    }
    let brought = Saved::read(&lab.path("runs/brought/checkpoints/step-00000006"));
    assert!(
        brought
            .tensors
            .iter()
            .flat_map(|t| &t.kept[1..])
            .flatten()
            .all(|m| *m == 0.0)
    );
    assert_eq!((brought.state.optimizer.began, brought.state.optimizer.groups[0].step), (6, 0));
}

#[test]
fn buffers_that_are_not_whole_are_refused_or_left() {
    const FILE: &str = "distrib/one/iter_0000006/mp_rank_01_001/distrib_optim.pt";
    // The first tensor rank of a stage has none: the states are left, and the line names it.
    let lab = self::lab("distrib");
    fs::remove_file(lab.path(&FILE.replace("rank_01", "rank_00"))).unwrap();
    let done = import(&lab, "distrib/one", SETS, &[]);
    done.well();
    assert!(done.out.contains("in distrib_optim.pt, which is missing"), "{}", done.out);
    for (change, words) in [("remove", "is missing"), ("cut", "cut short"), ("flip", "checksum")] {
        let lab = self::lab("distrib");
        let path = lab.path(FILE);
        let mut bytes = fs::read(&path).unwrap();
        match change {
            "remove" => fs::remove_file(&path).unwrap(),
            "cut" => fs::write(&path, &bytes[..bytes.len() / 2]).unwrap(),
            _ => {
                let at = crate::bring_llama::first_number(&bytes);
                bytes[at] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
        }
        let done = import(&lab, "distrib/one", SETS, &[]);
        assert_ne!(done.code, Some(0), "{change}");
        assert!(done.err.contains(words) && done.err.contains("mp_rank_01_001"), "{}", done.err);
        assert!(!lab.path("runs/brought").exists(), "{change}");
    }
}
