//! What the tests share: small manifests, batches, and the reference's names for our weights.
#![allow(dead_code)]

use gptrain::checkpoint::hf::{Family, Place};
use gptrain::data::Batch;
use gptrain::engine::{Engine, Moment, Piece};
use gptrain::manifest::{self, Manifest};
use gptrain::model::Slot;
use std::path::Path;

/// A two-layer model that trains in milliseconds, changed by `--set` strings.
pub fn manifest(sets: &[&str]) -> Manifest {
    let text = "
model: {layers: 2, hidden: 32, heads: 4, vocab: 128, seq_len: 24}
data: {train: none}
batch: {micro: 4, global: 8}
lr: {peak: 1e-3, decay: constant}
train: {samples: 800, seed: 7}
";
    let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
    let loaded = manifest::parse(text, "test", Path::new("."), &sets);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).manifest
}

/// A causal batch of the given tokens [samples, seq + 1]; each token's loss counts `weight`.
pub fn causal(tokens: &[i32], samples: usize, first_sample: u64, weight: f32) -> Batch {
    let seq = tokens.len() / samples - 1;
    let rows: Vec<&[i32]> = tokens.chunks(seq + 1).collect();
    let times = 0..samples * seq;
    Batch {
        first_sample,
        samples,
        seq_len: seq,
        tokens: rows.iter().flat_map(|r| r[..seq].to_vec()).collect(),
        targets: rows.iter().flat_map(|r| r[1..].to_vec()).collect(),
        weights: vec![weight; samples * seq],
        positions: times.clone().map(|i| (i % seq) as i32).collect(),
        visible: times.flat_map(|i| [0, (i % seq) as i32 + 1]).collect(),
    }
}

/// Random tokens [samples, seq + 1] of a pattern that can be learned.
pub fn tokens(samples: usize, seq: usize, vocab: usize, seed: u64) -> Vec<i32> {
    let draw = |i: usize| gptrain::base::rng::below(seed, i as u64, vocab as u64 / 2) as i32;
    (0..samples * (seq + 1)).map(|i| if i % 3 == 2 { draw(i - 1) + 1 } else { draw(i) }).collect()
}

/// The weights now, by name.
pub fn weights(engine: &Engine) -> Vec<(String, Vec<f32>)> {
    let read = |piece: Piece| {
        let mut values = vec![0.0; piece.numel()];
        engine.read(Moment::Master, &piece, &mut values);
        (piece.slot.name, values)
    };
    engine.pieces().into_iter().map(read).collect()
}

/// The reference's name of a weight: Hugging Face's of GPT-2, and one more for BLOOM's norm.
pub fn reference_name(slot: &Slot) -> String {
    match slot.name.as_str() {
        "embed.ln.scale" => "ln_emb.weight".to_string(),
        "embed.ln.shift" => "ln_emb.bias".to_string(),
        _ => place(slot, 1).unwrap().name,
    }
}

/// A tensor of the reference ([in, out], q then k then v) as ours ([out, in], q k v head by head).
pub fn from_reference(slot: &Slot, values: &[f32], heads: usize) -> Vec<f32> {
    let values = &values[..slot.numel()];
    place(slot, heads).map_or(values.to_vec(), |place| place.ours(values))
}

fn place(slot: &Slot, heads: usize) -> Option<Place> {
    let shape = if slot.rows == 1 { vec![slot.cols] } else { vec![slot.rows, slot.cols] };
    Family::Gpt2.place(slot, &shape, heads)
}
