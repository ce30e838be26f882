//! What the tests share: small manifests, batches, and the reference's names for our weights.
#![allow(dead_code)]

use gptrain::data::Batch;
use gptrain::engine::{Engine, Moment};
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
    let read = |slot: &Slot| {
        let mut values = vec![0.0; slot.numel()];
        engine.read(Moment::Master, slot, &mut values);
        (slot.name.clone(), values)
    };
    engine.slots().map(read).collect()
}

/// Hugging Face's name of a weight (GPT-2 layout), and whether it lies there transposed.
pub fn reference_name(slot: &Slot) -> (String, bool) {
    let (layer, name) = match slot.name.strip_prefix("block.") {
        Some(rest) => rest.split_once('.').unwrap(),
        None => ("", slot.name.as_str()),
    };
    let (theirs, transposed) = match name {
        "embed.token" => ("wte.weight", false),
        "embed.position" => ("wpe.weight", false),
        "embed.ln.scale" => ("ln_emb.weight", false),
        "embed.ln.shift" => ("ln_emb.bias", false),
        "ln1.scale" => ("ln_1.weight", false),
        "ln1.shift" => ("ln_1.bias", false),
        "attn.qkv.weight" => ("attn.c_attn.weight", true),
        "attn.qkv.bias" => ("attn.c_attn.bias", true),
        "attn.proj.weight" => ("attn.c_proj.weight", true),
        "attn.proj.bias" => ("attn.c_proj.bias", false),
        "ln2.scale" => ("ln_2.weight", false),
        "ln2.shift" => ("ln_2.bias", false),
        "mlp.fc1.weight" => ("mlp.c_fc.weight", true),
        "mlp.fc1.bias" => ("mlp.c_fc.bias", false),
        "mlp.fc2.weight" => ("mlp.c_proj.weight", true),
        "mlp.fc2.bias" => ("mlp.c_proj.bias", false),
        "lnf.scale" => ("ln_f.weight", false),
        "lnf.shift" => ("ln_f.bias", false),
        "head.weight" => ("lm_head.weight", false),
        other => panic!("{other} has no name in the reference"),
    };
    let prefix = if layer.is_empty() { String::new() } else { format!("h.{layer}.") };
    (format!("{prefix}{theirs}"), transposed)
}

/// A tensor of the reference ([in, out], q then k then v) as ours ([out, in], q k v head by head).
pub fn from_reference(slot: &Slot, values: &[f32], heads: usize) -> Vec<f32> {
    let (_, transposed) = reference_name(slot);
    if !transposed {
        return values[..slot.numel()].to_vec();
    }
    let qkv = slot.name.contains("qkv");
    // A bias [1, 3H] is cut like the rows of its weight.
    let (outs, ins) = if slot.rows == 1 { (slot.cols, 1) } else { (slot.rows, slot.cols) };
    let dim = outs / 3 / heads;
    let theirs = |out: usize| match qkv {
        true => out / dim % 3 * (outs / 3) + out / (3 * dim) * dim + out % dim,
        false => out,
    };
    let at = |out: usize, input: usize| values[input * outs + theirs(out)];
    (0..outs * ins).map(|i| at(i / ins, i % ins)).collect()
}
