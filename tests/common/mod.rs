//! Shared code of the tests: small manifests, batches, and the reference's names for our weights.

// Each test program uses a part of it.
#![allow(dead_code)]

pub mod binary;
pub mod events;
pub mod grids;
pub mod hosts;
pub mod s3;
pub mod saved;
pub mod softgpu;
pub mod tracer;
pub mod unpack;

use gptrain::base::{Heads, Problems};
use gptrain::engine::{Engine, MASTER};
use gptrain::exchange::hf::{HfTensor, tensors_of};
use gptrain::manifest::{self, Family, Manifest};
use gptrain::model::Param;
use std::path::Path;

/// A two-layer model that trains in milliseconds, changed by `--set` strings.
pub fn manifest(sets: &[&str]) -> Manifest {
    try_manifest(sets).unwrap_or_else(|problems| panic!("{problems}"))
}

/// As `manifest`, or the reasons why its settings are refused.
pub fn try_manifest(sets: &[&str]) -> Result<Manifest, Problems> {
    let text = "
model: {layers: 2, hidden: 32, heads: 4, vocab: 128, seq_len: 24}
data: {train: none}
batch: {micro: 4, global: 8}
lr: {peak: 1e-3, decay: constant}
train: {samples: 800, seed: 7}
";
    let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
    let loaded = manifest::parse(text, "test", Path::new("."), &sets)?;
    Ok(loaded.manifest)
}

/// Random tokens [samples, seq + 1] of a pattern that can be learned.
pub fn tokens(samples: usize, seq: usize, vocab: usize, seed: u64) -> Vec<i32> {
    let draw = |i: usize| gptrain::base::rng::below(seed, i as u64, vocab as u64 / 2) as i32;
    (0..samples * (seq + 1))
        .map(|i| if i % 3 == 2 { draw(i - 1) + 1 } else { draw(i) })
        .collect()
}

/// States of a rank as numbers: each slice by the names of its parameter and its state.
pub fn states(engine: &Engine) -> Vec<((String, &'static str), Vec<f32>)> {
    let store = engine.store();
    let slices = store.slices().into_iter();
    let read = slices.map(|slice| {
        let mut bytes = vec![0; slice.bytes()];
        store.read(&slice, 0..slice.slice.size[0], &mut bytes);
        let values = slice.state.dtype.widen(&bytes);
        ((slice.param.name, slice.state.name), values)
    });
    read.collect()
}

/// The master weights now, by name.
pub fn weights(engine: &Engine) -> Vec<(String, Vec<f32>)> {
    let masters = states(engine)
        .into_iter()
        .filter(|((_, state), _)| *state == MASTER);
    masters
        .map(|((param, _), values)| (param, values))
        .collect()
}

/// The reference's name of a weight: Hugging Face's of GPT-2, and one more for BLOOM's norm.
pub fn reference_name(param: &Param) -> String {
    match param.name.as_str() {
        "embed.ln.scale" => "ln_emb.weight".to_string(),
        "embed.ln.shift" => "ln_emb.bias".to_string(),
        _ => {
            let name = place(param, Heads { query: 1, kv: 1, dim: 1 })
                .unwrap()
                .name;
            name.strip_prefix("transformer.")
                .unwrap_or(&name)
                .to_string()
        }
    }
}

/// A tensor of the reference ([in, out], q then k then v) as ours ([out, in], q k v head by head).
pub fn from_reference(param: &Param, values: &[f32], heads: Heads) -> Vec<f32> {
    let values = &values[..param.numel()];
    let Some(place) = place(param, heads) else { return values.to_vec() };
    let mut ours = vec![0.0; values.len()];
    place.put(values, &mut ours);
    ours
}

fn place(param: &Param, heads: Heads) -> Option<HfTensor> {
    let shape = if param.rows == 1 { vec![param.cols] } else { vec![param.rows, param.cols] };
    tensors_of(Family::Gpt2, param, &shape, heads).pop()
}
