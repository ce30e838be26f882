//! Folders of other trainers that continue as the run that they were cut from, to the last bit, on the grid
//! of their files and on others.

use crate::import_steps::*;
use std::fs;

/// The dataset is in another place in the new run: the order of samples is the same.
#[test]
fn megatron_deepspeed_with_zero1_on_the_grid_of_its_files() {
    let folder = Folder { data_at_import: false, ..BLOOM };
    folder.continues(&[[2, 2, 2, 1]], BLOOM_WORDS);
}

#[test]
fn megatron_deepspeed_with_zero1_on_other_grids() {
    let folder = Folder { data_at_import: false, ..BLOOM };
    folder.continues(&[[1, 1, 1, 0], [1, 2, 1, 0]], BLOOM_WORDS);
}

const BLOOM_WORDS: &[&str] = &[
    "Megatron-DeepSpeed (DeepSpeed 0.7.0)",
    "step 6, 32 samples",
    "tensor 2 × pipeline 2 × data 2",
    "rows 251 to 255 of the embedding pad it",
    "wrote",
];

/// `zero3.py`, tensor 2 × data 3: few parameters are divisible by three, so that most are padded.
#[test]
fn megatron_deepspeed_with_zero3() {
    ZERO3.continues(
        &[[2, 1, 2, 3], [1, 1, 1, 0], [1, 2, 1, 0]],
        &[
            "Megatron-DeepSpeed, ZeRO-3 (DeepSpeed 0.12.0)",
            "step 6, 32 samples",
            "tensor 2 × pipeline 1 × data 3",
            "with AdamW's states after 6 updates",
        ],
    );
}

/// `universal.py`: whole parameters, as DeepSpeed's converter writes them.
#[test]
fn deepspeed_universal() {
    let folder = Folder { archive: "universal", from: "universal", ..BLOOM };
    folder.continues(&[[1, 1, 1, 0]], &["universal checkpoint"]);
}

#[test]
fn megatron_core() {
    let words = ["Megatron-LM (core)", "step 6, 48 samples", "tensor 2 × pipeline 2 × data 1"];
    MEGATRON.continues(&[[2, 2, 1, 0]], &words);
    let step = Folder { from: "megatron/core/iter_0000006", ..MEGATRON };
    step.continues(&[[1, 1, 1, 0]], &words);
}

/// Two stages of two chunks each. The order of samples was Megatron-DeepSpeed's then; the original run is
/// of today.
#[test]
fn megatron_before_core_with_interleaved_chunks() {
    let sets = &["train.threads=1", "comm.start_timeout_s=480", "data.rule=mcore"];
    let folder = Folder { from: "megatron/chunks", sets, ..MEGATRON };
    folder.continues(&[[1, 2, 1, 0]], &["Megatron-LM (before core)"]);
    let manifest = folder.imported_manifest();
    assert!(manifest.contains("schedule: interleaved"), "{manifest}");
    assert!(manifest.contains("chunks: 2"), "{manifest}");
}

/// Flat buffers, whose order is proved by the model's weights.
#[test]
fn megatron_with_a_distributed_optimizer() {
    let words = ["AdamW's states after 6 updates"];
    distrib("distrib/one").continues(&[[2, 2, 1, 0]], &words);
    distrib("distrib/several").continues(&[[1, 1, 2, 0]], &words);
    let sets = &["train.threads=1", "comm.start_timeout_s=480", "topology.schedule=1f1b"];
    let chunks = Folder { sets, ..distrib("distrib/chunks") };
    chunks.continues(&[[1, 1, 1, 0]], &words);
}

const DIST_WORDS: &[&str] = &[
    "Megatron-Core (torch_dist)",
    "step 6, 48 samples",
    "tensor 2 × pipeline 2",
    "AdamW's states after 6 updates",
];

/// All layers in one tensor, `fully_reshardable` states, the common state as an object.
#[test]
fn torch_dist_with_layers_on_a_leading_axis() {
    dist("dist/reshardable").continues(&[[2, 2, 1, 0], [1, 1, 1, 0]], DIST_WORDS);
}

/// A tensor per layer, SwiGLU's halves as two, the plain optimizer, `common.pt`.
#[test]
fn torch_dist_with_a_tensor_per_layer() {
    dist("dist/singleton").continues(&[[1, 2, 1, 0]], DIST_WORDS);
}

/// States in flat pieces of each rank's share: Megatron-Core 0.15 and later refuse them.
#[test]
fn torch_dist_with_states_in_flat_pieces() {
    dist("dist/space").continues(&[[2, 1, 1, 0]], DIST_WORDS);
}

/// Written by torchtitan's own code: two processes, FSDP2.
#[test]
fn torchtitan() {
    let words = [
        "torchtitan",
        "step 6, 48 samples",
        "tensor 1 × pipeline 1 × data 2",
        "decays all parameters, 9 norms too",
        "place of torchtitan's data loader is not carried",
    ];
    TITAN.continues(&[[1, 1, 1, 0]], &words);
    Folder { from: "titan/step-6", ..TITAN }.continues(&[[2, 2, 1, 0]], &words);
}

/// The step is a tensor, and queries, keys and values have moments of their own.
#[test]
fn torchtitan_of_2024_has_the_same_states() {
    let folder = Folder { from: "titan-2024", ..TITAN };
    let lab = folder.lab();
    folder.import(&lab, &[]).well();
    same_states(&lab);
}

/// torchtitan saves the tied head too; the optimizer has it once.
#[test]
fn a_tied_head_of_torchtitan_is_the_embedding() {
    let folder = Folder { from: "titan-tied", ..TITAN };
    let lab = folder.lab();
    folder.import(&lab, &[]).well();
    let imported = imported(&lab);
    let original = original(&lab);
    assert!(
        imported
            .tensors
            .iter()
            .all(|tensor| tensor.name != "head.weight")
    );
    assert_eq!(imported.tensors.len() + 1, original.tensors.len());
    assert_eq!(imported.tensors[0].kept, original.tensors[0].kept);
}

#[test]
fn olmo_core() {
    let words = [
        "OLMo-core (PyTorch distributed checkpoint)",
        "step 6, 48 samples",
        "tensor 1 × pipeline 1 × data 2",
        "OLMo-core decayed embeddings.weight by 0, other matrices by 0.1",
        "OLMo-core decayed 9 norms too",
        "place of OLMo-core's data loader is not carried",
    ];
    OLMO.continues(&[[1, 1, 1, 0]], &words);
    Folder { from: "olmo/step6", ..OLMO }.continues(&[[2, 2, 1, 0]], &words);
}

/// Stages with different numbers of layers become a list.
#[test]
fn uneven_stages_keep_their_layers() {
    let counted = "layers of the stages' files";
    let said = "decoder_first_pipeline_num_layers";
    let uneven = |from| Folder { archive: "uneven", from, ..MEGATRON };
    for (folder, split, source) in [
        (UNEVEN, "[2, 1]", counted),
        (uneven("uneven/megatron"), "[2, 1, 1]", counted),
        (uneven("uneven/dist"), "[2, 1, 1]", said),
    ] {
        let lab = folder.lab();
        folder.import(&lab, &[]).well();
        let manifest = fs::read_to_string(lab.path("runs/imported/manifest.yaml")).unwrap();
        assert!(manifest.contains(&format!("layer_split: {split} # {source}")), "{manifest}");
        same_states(&lab);
        lab.gptrain(&["run", "runs/imported", "--set", "train.samples=64"])
            .well();
    }
}
