use super::*;
use std::path::Path;

fn manifest(transport: &str) -> Manifest {
    let text = "
model: {layers: 1, hidden: 8, heads: 1, vocab: 8, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 4}
lr: {peak: 1e-3}
train: {steps: 1}
";
    let sets = [format!("comm.gpu_transport={transport}")];
    manifest::parse(text, "test", Path::new("."), &sets)
        .unwrap()
        .manifest
}

/// The GPUs of the ranks of a node, up to the first that has none.
fn ordinals(transport: &str, process: bool, local_world: usize, count: usize) -> Vec<usize> {
    let m = manifest(transport);
    let local = |local_rank| LocalRank { local_rank, local_world, process, ..LocalRank::ONLY };
    (0..local_world)
        .map_while(|local_rank| choose_gpu(&m, local(local_rank), count).ok())
        .collect()
}

#[test]
fn a_rank_has_the_gpu_of_its_number_or_the_only_one_it_is_shown() {
    assert_eq!(ordinals("nccl", false, 4, 4), [0, 1, 2, 3]);
    assert_eq!(ordinals("nccl", true, 2, 8), [0, 1]);
    assert_eq!(ordinals("nccl", true, 4, 1), [0, 0, 0, 0], "srun --gpus-per-task=1");
    assert_eq!(ordinals("nccl", false, 4, 1), [0], "threads are shown the same one");
    assert_eq!(ordinals("nccl", true, 4, 3), [0, 1, 2]);
    assert_eq!(ordinals("host", true, 4, 3), [0, 1, 2, 0]);
    assert_eq!(ordinals("nccl", true, 1, 0), [0], "opening it says what is missing");
}

#[test]
fn the_ranks_that_differ_are_named() {
    let gpu = |uuid: &str| {
        let name = "H200".to_string();
        let bus = "0000:3B:00.0".to_string();
        let uuid = uuid.to_string();
        Some(Identity { ordinal: 0, shown: 1, name, bus, uuid })
    };
    let on = |node: &str, gpu: Option<Identity>| (node.to_string(), gpu);
    let message = |found: Result<(), Problems>| found.unwrap_err().to_string();

    let all = [on("n1", gpu("a")), on("n1", gpu("b")), on("n2", None)];
    let one = message(check_kinds(&all));
    assert!(one.contains("rank 2 (node n2) found no GPU for itself"), "{one}");
    let other = message(check_kinds(&[on("n1", None), on("n1", gpu("a")), on("n2", None)]));
    assert!(other.contains("rank 1 (node n1) computes on a GPU"), "{other}");
    assert!(check_kinds(&all[..2]).is_ok() && check_kinds(&all[2..]).is_ok());

    let same = [on("n1", gpu("a")), on("n2", gpu("a")), on("n1", gpu("b")), on("n2", gpu("a"))];
    let line = message(check_sharing(&same));
    assert!(line.contains("rank 1 and rank 3 share one GPU of node n2, H200 GPU 0"), "{line}");
    assert!(line.contains("comm.gpu_transport=host"), "{line}");
    assert!(check_sharing(&same[..3]).is_ok());
}
