//! Qwen3 of torchtitan, transformers' models in torchtitan, and a distributed checkpoint of another
//! program, whose names are a file of the user. `tests/fixtures/torch/qwen3.py` wrote them.

use crate::common::binary::Done;
use crate::import_steps::*;
use std::fs;

/// `--names` and the settings that the other program's files lack.
const NAMES: &[&str] = &["--names", "qwen3/names.txt"];

#[test]
fn torchtitans_qwen3_has_norms_of_queries_and_keys() {
    let words = ["torchtitan", "step 6, 48 samples", "tensor 1 × pipeline 1 × data 2"];
    qwen3("qwen3/titan").continues(&[[1, 1, 1, 0]], &words);
    let lab = qwen3("qwen3/titan").lab();
    let dry = lab.gptrain(&["import", "qwen3/titan", "--dry"]);
    dry.well();
    says(
        &dry,
        &["model.family: qwen3  (queries and keys have norms)", "model.layernorm_eps: 1e-6"],
    );
}

#[test]
fn transformers_models_in_torchtitan() {
    let folder = qwen3("qwen3/hf");
    folder.continues(&[[2, 1, 1, 0]], &["torchtitan with transformers' models", "step 6"]);
}

fn import(folder: &Folder, lab: &crate::common::binary::Lab, more: &[&str]) -> Done {
    folder.import(
        lab,
        &[NAMES, &["--set", "lr.peak=1e-2", "--set", "lr.counted=before"], more].concat(),
    )
}

#[test]
fn a_folder_of_unknown_names_is_read_by_a_file_of_names() {
    let folder = qwen3("qwen3/other/last");
    let lab = folder.lab();
    let done = import(&folder, &lab, &["--set", "optimizer.adamw.weight_decay=0.1"]);
    done.well();
    says(&done, &["by qwen3/names.txt", "step 6, 48 samples", "AdamW's states after 6 updates"]);
    same_states(&lab);
    folder.trains_alike(&lab, [1, 1, 1, 0]);
}

/// Without lines for the moments, the optimizer begins again.
#[test]
fn moments_without_a_line_are_left() {
    let folder = qwen3("qwen3/other/last");
    let lab = folder.lab();
    let file = lab.path("qwen3/names.txt");
    let names = fs::read_to_string(&file).unwrap();
    let names = names
        .replace("first moment", "-")
        .replace("second moment", "-")
        .replace("{name}", "*");
    fs::write(&file, names).unwrap();
    let done = import(&folder, &lab, &[]);
    done.well();
    says(&done, &["AdamW begins again", "has no lines for the moments"]);
}

#[test]
fn a_folder_of_unknown_names_is_refused_without_the_file() {
    let folder = qwen3("qwen3/other/last");
    let lab = folder.lab();
    folder.refused(&lab, &["has no tok_embeddings.weight, but", "--names FILE"]);
}

#[test]
fn names_that_do_not_fit_the_folder_are_refused_with_their_line() {
    let cases: [(&str, &str, &[&str]); 8] = [
        (
            "rope.*                       -> -\n",
            "",
            &["has no line for rope.table", "`rope.table -> -`"],
        ),
        (
            "net.emb ",
            "net.embed",
            &["names.txt:2: is the name of nothing", "has no line for net.emb"],
        ),
        (
            "block.{layer}.ln1.scale",
            "block.{layer}.ln3.scale",
            &["names.txt:5", "is not a parameter"],
        ),
        ("[gates up]", "[gates down]", &["names.txt:11", "[gates down] is not one of queries"]),
        ("net.h.{layer}.n2 ", "net.h.1.n2", &["names.txt:10", "{layer} once"]),
        ("-> second moment", "-> -", &["names.txt:", "{name}"]),
        (
            "opt.v.{name}                 -> second moment",
            "opt.v.* -> -",
            &["names.txt:13: there is no line"],
        ),
        (
            "att.out        -> block.{layer}.attn.proj",
            "att.out -> block.{layer}.mlp.fc2",
            &["names.txt:12", "another tensor"],
        ),
    ];
    for (from, to, words) in cases {
        let folder = qwen3("qwen3/other/last");
        let lab = folder.lab();
        let file = lab.path("qwen3/names.txt");
        let names = fs::read_to_string(&file).unwrap();
        assert!(names.contains(from), "{from}");
        fs::write(&file, names.replace(from, to)).unwrap();
        let done = import(&folder, &lab, &[]);
        done.expect(2, words);
        assert!(!lab.path("runs/imported").exists());
    }
}
