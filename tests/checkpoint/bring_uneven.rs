//! Runs whose layers do not divide by their stages, and folders that an import refuses: a BLOOM of three
//! layers (`tests/fixtures/torch/uneven.py`), and the Llama of `bring_llama` on three stages.

use crate::bring::fixture;
use crate::bring_llama::{self, same_states};
use crate::common::binary::{Done, Lab};
use crate::common::saved::Saved;
use crate::common::unpack::unpack;
use std::fs;

const STEP: &str = "checkpoints/step-00000006";

/// A folder with the corpus of `bring`, and the BLOOM in both forms.
fn lab() -> Lab {
    let lab = Lab::new();
    for end in ["bin", "idx"] {
        let tiny = fixture("data/megatron/datasets").join(format!("u8_tiny.{end}"));
        fs::copy(tiny, lab.path(&format!("corpus.{end}"))).unwrap();
    }
    unpack(&fixture("torch/uneven.tar.zst"), &["uneven/deepspeed", "uneven/step"], &lab.path(""));
    lab
}

fn import(lab: &Lab, more: &[&str]) -> Done {
    let data = format!("data.train={}", lab.path("corpus").display());
    let args = ["import", "uneven/deepspeed", "--output", "runs/brought", "--set", &data];
    lab.gptrain(&[&args, more].concat())
}

fn manifest(lab: &Lab) -> String {
    fs::read_to_string(lab.path("runs/brought/manifest.yaml")).unwrap()
}

#[test]
fn stages_of_megatron_deepspeed_that_differ_become_a_list_of_layers() {
    let lab = lab();
    import(&lab, &[]).well();
    let text = manifest(&lab);
    assert!(text.contains("layer_split: [2, 1] # layers of the stages' files"), "{text}");
    let brought = Saved::read(&lab.path("runs/brought").join(STEP));
    let original = Saved::read(&lab.path("uneven/step-00000006"));
    assert_eq!(brought.tensors.len(), original.tensors.len());
    for (brought, original) in brought.tensors.iter().zip(&original.tensors) {
        assert_eq!(brought.kept, original.kept, "{}", brought.name);
    }
    lab.gptrain(&["run", "runs/brought", "--set", "train.samples=40"])
        .well();
}

#[test]
fn stages_of_megatron_lm_and_torch_dist_that_differ_become_a_list_of_layers() {
    for (from, source) in [
        ("uneven/megatron", "layers of the stages' files"),
        ("uneven/dist", "decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers"),
    ] {
        let lab = bring_llama::lab("uneven");
        let sets = ["train.threads=1", "comm.start_timeout_s=480"];
        bring_llama::import(&lab, from, &sets, &[]).well();
        let text = manifest(&lab);
        assert!(text.contains(&format!("layer_split: [2, 1, 1] # {source}")), "{text}");
        same_states(&lab);
    }
}

/// No file has the manifest's lines yet: the folder is named, and what can be typed.
#[test]
fn mistakes_in_settings_of_an_import_name_the_folder() {
    let lab = lab();
    let done = import(&lab, &["--set", "topology.layer_split=uniform"]);
    let place =
        "uneven/deepspeed/global_step6: model.layers 3 is not divisible by topology.pipeline 2";
    done.expect(2, &[place, "(--set KEY=VALUE)"]);
    assert!(!done.err.contains("manifest.yaml"), "{}", done.err);
    // The files' split is not that of another number of stages.
    import(&lab, &["--set", "topology.pipeline=3"]).well();
    let text = manifest(&lab);
    assert!(text.contains("layer_split: balanced # --set topology.pipeline"), "{text}");
}

#[test]
fn a_format_that_the_folder_does_not_have_is_named_with_that_which_it_has() {
    let lab = lab();
    for (word, name) in [("megatron", "Megatron-LM (legacy)"), ("dcp", "PyTorch distributed")] {
        let done = import(&lab, &["--format", word]);
        let what = format!("does not have the files of {name}");
        done.expect(2, &[&what, "those of Megatron-DeepSpeed", "--format megatron-deepspeed"]);
    }
    let hf = lab.gptrain(&["import", "--hf", "uneven/deepspeed", "--output", "runs/brought"]);
    hf.expect(2, &["the files are those of Megatron-DeepSpeed", "gptrain import uneven/deepspeed"]);
}

/// `inspect-ckpt --deep` calls such a state damage, and no run reads it.
#[test]
fn second_moments_below_0_are_refused_with_their_name() {
    let lab = lab();
    let name = "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt";
    let folder = lab.path("uneven/deepspeed");
    fs::copy(folder.join("negative").join(name), folder.join("global_step6").join(name)).unwrap();
    import(&lab, &[]).expect(2, &["the second moment has 1 values below 0", "an earlier step"]);
    assert!(!lab.path("runs/brought").exists());
}
