//! Checkpoints of format 1, which named AdamW's states one by one: two that commit 70bfd4d wrote, with
//! the losses of the steps that it took after them.

use crate::common::binary::Lab;
use std::fs;
use std::path::Path;

/// A run whose folder holds the step-4 checkpoint of a fixture.
fn lab(name: &str) -> Lab {
    let lab = Lab::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint/format1");
    let saved = format!("{name}/step-00000004");
    let to = lab.path(&format!("{name}/checkpoints/step-00000004"));
    fs::create_dir_all(&to).unwrap();
    for file in ["corpus.bin", "corpus.idx", &format!("{name}.yaml"), &format!("{name}.jsonl")] {
        fs::copy(from.join(file), lab.path(file)).unwrap();
    }
    for entry in fs::read_dir(from.join(saved)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    lab
}

/// Step, loss and gradient norm (none where an fp16 step was skipped) of a file of metrics.
fn steps(lab: &Lab, file: &str) -> Vec<(u64, f64, Option<f64>)> {
    let text = fs::read_to_string(lab.path(file)).unwrap();
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let row = |row: serde_json::Value| {
        let step = row["step"].as_u64().unwrap();
        (step, row["lm_loss"].as_f64().unwrap(), row["grad_norm"].as_f64())
    };
    rows.filter(|row| row["eval"].is_null()).map(row).collect()
}

/// Inspected, gone on from on the grid that wrote it, and on another one.
fn check(name: &str, other_grid: &[&str]) {
    let same = lab(name);
    let folder = format!("{name}/checkpoints/step-00000004");
    sound(&same, &folder);
    let recorded = steps(&same, &format!("{name}.jsonl"));
    let (manifest, metrics) = (format!("{name}.yaml"), format!("{name}/metrics.jsonl"));
    same.gptrain(&["run", &manifest]).expect(0, &[]);
    assert_eq!(steps(&same, &metrics), recorded, "the same bits");
    let other = lab(name);
    let sets = other_grid.iter().flat_map(|set| ["--set", set]);
    let run: Vec<&str> = ["run", manifest.as_str()].into_iter().chain(sets).collect();
    other.gptrain(&run).expect(0, &[]);
    let losses = steps(&other, &metrics);
    assert_eq!(losses.len(), recorded.len());
    for ((step, loss, _), (_, expected, _)) in losses.into_iter().zip(recorded) {
        assert!((loss - expected).abs() < 2e-3 * expected, "step {step}: {loss}, not {expected}");
    }
    // Saved again, it is of the format of today.
    let saved = other.path(&format!("{name}/checkpoints/step-00000008"));
    let index = fs::read_to_string(saved.join("index.json")).unwrap();
    assert!(!index.contains("\"format\": 1,"), "{}", &index[..200]);
    sound(&other, &saved.display().to_string());
}

/// Every value of a checkpoint is as it was saved.
fn sound(lab: &Lab, folder: &str) {
    let done = lab.gptrain(&["inspect-ckpt", "--deep", folder]);
    done.expect(0, &[]);
    assert!(done.out.contains("every digest verified"), "{}", done.out);
}

#[test]
fn gpt2_in_bf16_of_two_tensor_parallel_ranks_and_two_zero_shards() {
    check("gpt2", &["topology={pipeline: 2}"]);
}

#[test]
fn bloom_in_fp16_with_skipped_steps_of_one_rank() {
    check("bloom", &["topology={tensor: 2, data: 2, zero: 3}"]);
}
