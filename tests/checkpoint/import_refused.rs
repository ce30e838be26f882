//! Folders and settings that an import refuses, with the file and the reason, and leaves nothing; files
//! with changed bytes, which are read or refused.

use crate::import_steps::*;
use gptrain::base::rng;
use gptrain::exchange::foreign::Format;
use std::fs;

const CHECKSUM: &str = "the checksum of data/0";

#[test]
fn folders_of_zero1_that_are_not_whole() {
    const OPTIM: &str = "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt";
    const MODEL: &str = "mp_rank_01_model_states.pt";
    let latest = edit("../latest", |bytes| *bytes = b"global_step7".to_vec());
    BLOOM.refuses(&[
        (remove(OPTIM), &[OPTIM, "is missing"]),
        (remove(MODEL), &["mp_rank_01_model_states.pt is missing"]),
        (cut(OPTIM, 9000), &[OPTIM, "cut short"]),
        (edit(OPTIM, |bytes| bytes[3000] ^= 1), &[OPTIM, CHECKSUM]),
        (latest, &["latest"]),
        (remove(""), &["there is no such folder"]),
    ]);
}

#[test]
fn folders_of_zero1_that_contradict_themselves() {
    let cases: [(&str, &[&str]); 3] = [
        ("short", &["partition 1 has", "elements"]),
        ("postnorm", &["apply_residual_connection_post_layernorm is set", "comes before the norm"]),
        ("steps", &["Adam's step is 5, in the first file it is 6"]),
    ];
    for (name, words) in cases {
        BLOOM.refused(&BLOOM.variant(name), words);
    }
}

#[test]
fn folders_of_zero3_that_are_not_whole() {
    const OPTIM: &str = "bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt";
    const MODEL: &str = "zero_pp_rank_0_mp_rank_01_model_states.pt";
    // A layer that no file of another rank has.
    let layer = edit(MODEL, |bytes| {
        mend(bytes);
        let word = b"layers.1.input";
        let at = bytes
            .windows(word.len())
            .position(|part| part == word)
            .unwrap();
        bytes[at + 7] = b'7';
    });
    let count = edit(OPTIM, |bytes| {
        mend(bytes);
        let word = b"partition_count";
        let at = bytes
            .windows(word.len())
            .position(|part| part == word)
            .unwrap();
        let count = bytes[at..]
            .windows(2)
            .position(|part| part == b"K\x03")
            .unwrap();
        bytes[at + count + 1] = 4;
    });
    // A partition one element short: the first tensor's size, behind its offset of 0.
    let short = edit(OPTIM, |bytes| {
        mend(bytes);
        let size = |part: &[u8]| part.starts_with(b"K\0M") && part[5] == 0x85;
        let at = bytes.windows(6).position(size).unwrap();
        let short = u16::from_le_bytes([bytes[at + 3], bytes[at + 4]]) - 1;
        bytes[at + 3..at + 5].copy_from_slice(&short.to_le_bytes());
    });
    ZERO3.refuses(&[
        (remove(OPTIM), &["zero_pp_rank_2_mp_rank_01_optim_states.pt is missing"]),
        (remove(MODEL), &["zero_pp_rank_0_mp_rank_01_model_states.pt is missing"]),
        (cut(OPTIM, 9000), &[OPTIM, "cut short"]),
        (flip(OPTIM, 1), &[OPTIM, CHECKSUM]),
        (layer, &[MODEL, "param_shapes is not that of tensor rank 0"]),
        (count, &[OPTIM, "partition_count is 4, the folder has files of 3 ranks"]),
        (short, &[OPTIM, "the first moment of group 0 has", "its parameters' parts"]),
    ]);
}

#[test]
fn universal_folders_that_are_not_whole() {
    const FILE: &str = "zero/3.input_layernorm.bias/exp_avg_sq.pt";
    let folder =
        Folder { archive: "universal", from: "universal", step: "global_step6_universal", ..BLOOM };
    folder.refuses(&[(remove(FILE), &[FILE, "is missing"])]);
}

#[test]
fn folders_of_megatron_that_are_not_whole() {
    const FILE: &str = "mp_rank_01_001/model_optim_rng.pt";
    let stage: Change = Box::new(|step| {
        remove("mp_rank_00_001")(step);
        remove("mp_rank_01_001")(step);
    });
    let other: Change = Box::new(|step| {
        let file = "mp_rank_00_001/model_optim_rng.pt";
        let from = step.join("../../chunks/iter_0000006").join(file);
        fs::copy(from, step.join(file)).unwrap();
    });
    MEGATRON.refuses(&[
        (
            remove(FILE),
            &["mp_rank_01_001/model_optim_rng.pt is missing", "copy the folder of the step whole"],
        ),
        (stage, &["pipeline_model_parallel_size 2", "2 × 1 of mp_rank_TT_PPP"]),
        (cut(FILE, 9000), &[FILE, "cut short"]),
        (flip(FILE, 1), &[FILE, CHECKSUM]),
        (other, &["args makes it [16, 8]"]),
    ]);
}

#[test]
fn buffers_of_a_distributed_optimizer_that_are_not_whole() {
    const FILE: &str = "mp_rank_01_001/distrib_optim.pt";
    let half = edit(FILE, |bytes| bytes.truncate(bytes.len() / 2));
    distrib("distrib/one").refuses(&[
        (remove(FILE), &["mp_rank_01_001", "is missing"]),
        (half, &["mp_rank_01_001", "cut short"]),
        (flip(FILE, 1), &["mp_rank_01_001", "checksum"]),
    ]);
}

#[test]
fn folders_of_torch_dist_that_are_not_whole() {
    dist("dist/reshardable").refuses(&[
        (remove("__3_0.distcp"), &["__3_0.distcp is missing", "copy the folder"]),
        (cut("__2_0.distcp", 60_000), &["2_0.distcp", "cut short"]),
        (cut(".metadata", 9_000), &[".metadata", "cut short"]),
        (
            replace(".metadata", b"decoder.final_layernorm", b"decoder.fnial_layernorm"),
            &["has no parameter for lnf.scale", "decoder.fnial_layernorm.weight is not"],
        ),
    ]);
    dist("dist/singleton").refuses(&[
        (remove("common.pt"), &["neither common.pt nor", "copy the folder"]),
        (
            replace(".metadata", b"linear_fc1.weight_w", b"linear_fc1.weight_u"),
            &["linear_fc1.weight_u is not in gptrain's model"],
        ),
        (flip("common.pt", 1), &["common.pt", CHECKSUM]),
    ]);
    dist("dist/space").refuses(&[
        (
            replace("metadata.json", b"\"torch_dist\"", b"\"zarr\""),
            &["metadata.json", "\"zarr\"", "--ckpt-format torch_dist"],
        ),
        // The model's weights are not read, the f32 ones are.
        (flip("__0_0.distcp", usize::MAX), &["__0_0.distcp", CHECKSUM]),
    ]);
}

#[test]
fn folders_of_torchtitan_that_are_not_whole() {
    TITAN.refuses(&[
        (remove("__1_0.distcp"), &["__1_0.distcp is missing", "copy the folder of the step whole"]),
        (cut("__0_0.distcp", 100_000), &["__0_0.distcp", "cut short"]),
        (cut(".metadata", 20_000), &[".metadata", "cut short"]),
        (
            replace(".metadata", b"layers.0.ffn_norm", b"layers.0.mlp_norm"),
            &["has no layers.0.ffn_norm.weight", "layers.0.mlp_norm.weight is not in"],
        ),
        (replace(".metadata", b"__1_0.distcp", b"../x.distcp/"), &["which is not a file's name"]),
        (flip("__0_0.distcp", 1), &["__0_0.distcp", CHECKSUM]),
    ]);
}

#[test]
fn models_of_olmo_core_that_gptrain_computes_otherwise() {
    OLMO.refuses(&[
        (
            replace(
                "config.json",
                br#""block": {"name": "default""#,
                br#""block": {"name": "reorder""#,
            ),
            &["model.block.name is \"reorder\""],
        ),
        (
            replace("config.json", br#""full_precision": true"#, br#""scaling": {"facto":8}"#),
            &["sequence_mixer.rope.scaling", "is not read"],
        ),
        (replace("train/rank0.pt", b"global_step", b"global_stop"), &["rank0.pt", "checksum"]),
    ]);
}

/// `inspect-ckpt --deep` calls such a state damage, and no run reads it.
#[test]
fn second_moments_below_0_are_refused_with_their_name() {
    const FILE: &str = "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt";
    let negative: Change = Box::new(|step| {
        fs::copy(step.join("../negative").join(FILE), step.join(FILE)).unwrap();
    });
    UNEVEN.refuses(&[(negative, &["the second moment has 1 values below 0", "an earlier step"])]);
}

/// No file has the manifest's lines yet: the folder is named, and what can be typed.
#[test]
fn mistakes_in_settings_of_an_import_name_the_folder() {
    let lab = UNEVEN.lab();
    let done = UNEVEN.import(&lab, &["--set", "topology.layer_split=uniform"]);
    let place =
        "uneven/deepspeed/global_step6: model.layers 3 is not divisible by topology.pipeline 2";
    done.expect(2, &[place, "(--set KEY=VALUE)"]);
    assert!(!done.err.contains("manifest.yaml"), "{}", done.err);
    // The files' split is not that of another number of stages.
    UNEVEN
        .import(&lab, &["--set", "topology.pipeline=3"])
        .well();
    let manifest = fs::read_to_string(lab.path("runs/imported/manifest.yaml")).unwrap();
    assert!(manifest.contains("layer_split: balanced # --set topology.pipeline"), "{manifest}");
}

#[test]
fn a_format_that_the_folder_does_not_have_is_named_with_that_which_it_has() {
    let lab = UNEVEN.lab();
    for (word, name) in [("megatron", "Megatron-LM (legacy)"), ("dcp", "PyTorch distributed")] {
        let done = UNEVEN.import(&lab, &["--format", word]);
        let what = format!("does not have the files of {name}");
        done.expect(2, &[&what, "those of Megatron-DeepSpeed", "--format megatron-deepspeed"]);
    }
    let hf = lab.gptrain(&["import", "--hf", "uneven/deepspeed", "--output", "runs/imported"]);
    hf.expect(2, &["the files are those of Megatron-DeepSpeed", "gptrain import uneven/deepspeed"]);
}

/// Changes one to three bytes of a table.
fn mutate_table(bytes: &mut [u8], key: u64) {
    for change in 0..1 + key % 3 {
        let at = rng::below(key, 2 * change, bytes.len() as u64) as usize;
        bytes[at] = rng::below(key, 2 * change + 1, 256) as u8;
    }
}

/// Changes a byte of the pickle, which is at the beginning of a file, and removes the checksums.
fn mutate_pickle(bytes: &mut [u8], key: u64) {
    let at = 64 + rng::below(key, 0, 8000) as usize;
    bytes[at] = rng::below(key, 1, 256) as u8;
    mend(bytes);
}

#[test]
fn mutated_files_are_read_or_refused() {
    TITAN.survives(".metadata", Format::PytorchDcp, 150, mutate_table);
    dist("dist/reshardable").survives(".metadata", Format::MegatronDist, 100, mutate_table);
    dist("dist/space").survives(".metadata", Format::MegatronDist, 100, mutate_table);
    let file = "mp_rank_00_001/model_optim_rng.pt";
    MEGATRON.survives(file, Format::MegatronLegacy, 200, mutate_pickle);
}
