//! Megatron-Core's options beyond its defaults: masks by the index's bounds, validation samples that
//! are not full, samples without an extra token; against what its GPTDataset gave
//! (`fixtures/data/megatron/options.py`).

use crate::common::binary::Lab;
use crate::source::open_datasets;
use gptrain::data::Column::{Positions, Targets, Tokens, Visible, Weights};
use gptrain::data::indexed::{TokenType, Writer};
use gptrain::data::{Batch, Request, Source};
use gptrain::manifest::{Data, Dataset, Eod, Sequences, ValidSet, for_test};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/data/megatron")
        .join(name)
}

/// Columns of a sample as Megatron names them: tokens, labels, loss_mask, position_ids, and where
/// its documents begin and end (cu_seqlens) under inter-document masks.
fn rows(source: &Source, sample: u64, by_document: bool) -> Vec<Vec<i64>> {
    let mut batch = Batch::default();
    batch
        .fill(source, Request { first_sample: sample, samples: 1 })
        .unwrap();
    let column = |column| -> Vec<i64> {
        let values: &[i32] = batch.column(column);
        values.iter().map(|value| i64::from(*value)).collect()
    };
    let weights: &[f32] = batch.column(Weights);
    let counted = weights
        .iter()
        .map(|weight| i64::from(*weight > 0.0))
        .collect();
    let mut rows = vec![column(Tokens), column(Targets), counted, column(Positions)];
    if by_document {
        let mut bounds: Vec<i64> = column(Visible).iter().step_by(2).copied().collect();
        bounds.push(source.seq_len() as i64);
        bounds.dedup();
        rows.push(bounds);
    }
    rows
}

/// The data section of a manifest without an end-of-document token.
fn plain() -> Data {
    let text = "
model: {layers: 1, hidden: 8, heads: 1, vocab: 64, seq_len: 8}
data: {train: none, valid: {}}
batch: {micro: 1, global: 1}
lr: {peak: 1e-3}
train: {steps: 1}
";
    for_test(text, &[""; 0]).data
}

fn open(case: &Value) -> Source {
    let number = |value: &Value| value.as_u64().unwrap();
    let flag = |name: &str| case[name].as_bool().unwrap();
    let ends = [0, 1].map(|i| number(&case["sequences"][i]) as f64 / number(&case["of"]) as f64);
    let part = Sequences::Range(ends[0], ends[1]);
    let prefix = fixture("datasets").join(case["dataset"].as_str().unwrap());
    let datasets = vec![Dataset { prefix, weight: 1.0, part }];
    let mut data = plain();
    data.inter_document_masking = flag("inter_document_masking");
    data.add_extra_token_to_sequence = flag("add_extra_token_to_sequence");
    data.drop_last_partial_validation_sequence = flag("drop_last_partial_validation_sequence");
    data.train = datasets.clone();
    let (seq_len, samples) = (number(&case["seq_length"]) as usize, number(&case["num_samples"]));
    if case["split"] == "train" {
        let opened = open_datasets(&data, seq_len, 1 << 18, samples, 1).unwrap();
        return std::sync::Arc::into_inner(opened.train).unwrap();
    }
    data.valid = vec![ValidSet { name: "valid".into(), datasets }];
    let mut opened = open_datasets(&data, seq_len, 1 << 18, 1, samples).unwrap();
    std::sync::Arc::into_inner(opened.valid.remove(0).1).unwrap()
}

#[test]
fn samples_under_other_options_are_megatron_cores() {
    let text = std::fs::read_to_string(fixture("expect/options.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 10);
    for case in &cases {
        let what = format!("{} {} {}", case["dataset"], case["seq_length"], case["num_samples"]);
        let source = open(case);
        assert_eq!(source.samples(), case["len"].as_u64().unwrap(), "{what}");
        let by_document = case["inter_document_masking"] == true;
        let mut digest = Sha256::new();
        for sample in 0..source.samples() {
            let rows = rows(&source, sample, by_document);
            if let Some(want) = case["rows"].get(sample as usize) {
                let keys = ["tokens", "labels", "loss_mask", "position_ids", "cu_seqlens"];
                for (row, key) in rows.iter().zip(keys) {
                    assert_eq!(serde_json::json!(row), want[key], "{what}: {key} of {sample}");
                }
            }
            for value in rows.iter().flatten() {
                digest.update(value.to_le_bytes());
            }
        }
        let hex: String = digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, case["rows_i64le_sha256"].as_str().unwrap(), "{what}");
    }
}

#[test]
fn bounds_of_the_index_mask_as_the_token_does_where_both_are() {
    const EOD: u32 = 9;
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("d");
    let mut writer = Writer::create(&prefix, TokenType::U16).unwrap();
    for document in 0..40 {
        let words = (0..document % 7 * 5).map(|i| i % 8);
        writer
            .sequence(&words.chain([EOD]).collect::<Vec<_>>())
            .unwrap();
        writer.end_document();
    }
    writer.finish().unwrap();
    let part = Sequences::Range(0.0, 1.0);
    let mut by_token = plain();
    by_token.train = vec![Dataset { prefix, weight: 1.0, part }];
    let mut by_index = by_token.clone();
    by_index.inter_document_masking = true;
    let all = Eod { token: EOD, mask_loss: false, reset_positions: true, reset_attention: true };
    by_token.eod = Some(all);
    let [token, index] =
        [&by_token, &by_index].map(|data| open_datasets(data, 16, 64, 30, 0).unwrap().train);
    let mut documents = 0;
    for sample in 0..30 {
        let rows = [&token, &index].map(|source| rows(source, sample, true));
        assert_eq!(rows[0], rows[1], "sample {sample}");
        documents += rows[0][4].len() - 1;
    }
    assert!(documents > 60, "{documents} documents in 30 samples");
}

#[test]
fn a_run_reads_its_data_as_the_manifest_says() {
    let lab = Lab::new();
    let run = |set: &str, folder: &str| {
        let folder = format!("log.folder={folder}");
        lab.run(&[set, "train.steps=3", "train.eval_interval=3", &folder])
            .well();
        lab.losses(&folder["log.folder=".len()..])
    };
    let plain = run("data.seed=1234", "plain");
    for (i, set) in ["inter_document_masking=true", "add_extra_token_to_sequence=false"]
        .iter()
        .enumerate()
    {
        assert_ne!(run(&format!("data.{set}"), &format!("run{i}")), plain, "{set}");
    }
    // It is the validation's: no step sees it, and a run may change it.
    let set = "data.drop_last_partial_validation_sequence=false";
    assert_eq!(run(set, "kept"), plain);
    lab.run(&["log.folder=kept", "train.steps=3"]).well();
    let whole = ["data", "samples", "corpus", "--which", "valid", "--split", "80,20,0"];
    let whole = [&whole[..], &["--seq-len", "4096", "--json"]].concat();
    lab.gptrain(&whole)
        .expect(2, &["has fewer than 4097 tokens: not one sample"]);
    let kept = lab.gptrain(&[&whole[..], &["--keep-partial", "--no-extra-token"]].concat());
    kept.well();
    let row: Value = serde_json::from_str(&kept.out).unwrap();
    let tokens = row["tokens"].as_array().unwrap().len();
    assert!((400..4096).contains(&tokens), "{tokens} tokens in the one sample");
}
