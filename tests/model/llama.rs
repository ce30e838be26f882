//! Llama, Mistral, Qwen2 and Qwen3 equal transformers' in float64: logits, gradients and twenty AdamW
//! steps, from the same weights and tokens. The values were made by `fixtures/transformers/make.py`,
//! which takes its weights and tokens from the rule that is here too.

use crate::common;
use crate::grids::read_grad;
use gptrain::base::Heads;
use gptrain::checkpoint::safetensors::Reader;
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, MASTER, Sampler, StateSlice};
use gptrain::manifest::{Ffn, Manifest, Model};
use gptrain::model::{Param, Weight};
use std::path::PathBuf;

const SAMPLES: usize = 3;
const SEQ: usize = 12;
const BATCHES: usize = 4;
const LR: f64 = 3e-3;

#[test]
fn llama_with_its_scaling_of_rope() {
    let scaling =
        "llama3: {factor: 4, low_freq_factor: 1, high_freq_factor: 4, original_seq_len: 16}";
    check("llama", &format!("position: {{rope: {{scaling: {{{scaling}}}}}}}"));
}

#[test]
fn mistral_with_a_window() {
    check("mistral", "window: 5");
}

#[test]
fn qwen2_with_biases_and_a_tied_head() {
    check("qwen2", "position: {rope: {theta: 1e6}}, tied_head: true");
}

#[test]
fn qwen3_with_norms_of_wide_heads_and_yarn() {
    let scaling = "yarn: {factor: 4, original_seq_len: 16}";
    check("qwen3", &format!("head_dim: 8, position: {{rope: {{scaling: {{{scaling}}}}}}}"));
}

#[test]
fn bf16_follows_f32() {
    let losses = |precision: &str| {
        let manifest = manifest("qwen3", "head_dim: 8", precision);
        let cpu = Cpu::new(Some(2));
        let engine = Engine::new(&cpu, Groups::solo(), &manifest, true).unwrap();
        load_engine(&engine, &manifest.model);
        (0..20)
            .map(|s| step(&engine, "qwen3", s))
            .collect::<Vec<f64>>()
    };
    let (f32, bf16) = (losses("f32"), losses("bf16"));
    assert_ne!(f32, bf16);
    for (step, (a, b)) in f32.iter().zip(&bf16).enumerate() {
        assert!((a - b).abs() < 0.01 * a, "step {step}: f32 {a}, bf16 {b}");
    }
}

/// Each loss to 1e-5 relative; logits and every gradient of step 1 to 3e-6 of their largest.
fn check(family: &str, parts: &str) {
    let manifest = manifest(family, parts, "f32");
    let cpu = Cpu::new(Some(2));
    let text = std::fs::read_to_string(fixture(&format!("{family}.json"))).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers = |key: &str| -> Vec<f64> {
        expected[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap())
            .collect()
    };

    let mut sampler = Sampler::new(&cpu, &manifest, SEQ).unwrap();
    for slice in sampler.weights.slices() {
        sampler
            .weights
            .write(&slice, 0, bytemuck::cast_slice(&weights(&slice, &manifest.model)));
    }
    let prompt: Vec<u32> = tokens(family)[..SEQ]
        .iter()
        .map(|token| *token as u32)
        .collect();
    let logits: Vec<f64> = sampler.logits(&prompt).into_iter().map(f64::from).collect();
    close(&logits, &numbers("logits"), &format!("{family} logits"));

    let engine = Engine::new(&cpu, Groups::solo(), &manifest, true).unwrap();
    load_engine(&engine, &manifest.model);
    for (s, expected) in numbers("losses").into_iter().enumerate() {
        let loss = step(&engine, family, s);
        let off = (loss / expected - 1.0).abs();
        assert!(off <= 1e-5, "{family} step {s}: loss {loss}, expected {expected}");
        if s == 0 {
            compare_gradients(&engine, family, &manifest.model);
        }
    }
}

fn compare_gradients(engine: &Engine, family: &str, model: &Model) {
    let reader = Reader::open(&fixture(&format!("{family}.safetensors"))).unwrap();
    for param in engine.params() {
        let ours: Vec<f64> = read_grad(engine, param)
            .into_iter()
            .map(f64::from)
            .collect();
        let expected = gather(param, model, |name, _| reader.words::<f32>(name).unwrap());
        let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
        close(&ours, &expected, &format!("{family} gradient of {}", param.name));
    }
}

fn close(ours: &[f64], expected: &[f64], what: &str) {
    assert_eq!(ours.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let off = ours
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    eprintln!("{what}: off by {:.1e}", off / largest);
    assert!(off <= 3e-6 * largest, "{what}: off by {off:e} of {largest:e}");
}

fn manifest(family: &str, parts: &str, precision: &str) -> Manifest {
    let model = format!(
        "model={{family: {family}, layers: 2, hidden: 24, heads: 6, kv_heads: 2, ffn_hidden: 20, \
         vocab: 40, vocab_multiple: 1, seq_len: {SEQ}, {parts}}}"
    );
    let batch = format!("batch={{micro: {SAMPLES}, global: {SAMPLES}}}");
    let precision = format!("precision={precision}");
    common::manifest(&[&model, &batch, &precision, "optimizer.adamw.clip=0"])
}

fn fixture(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/transformers")
        .join(file)
}

fn step(engine: &Engine, family: &str, s: usize) -> f64 {
    let all = tokens(family);
    let of = SAMPLES * (SEQ + 1);
    let weight = 1.0 / (SAMPLES * SEQ) as f32;
    let own = &all[s % BATCHES * of..][..of];
    let mut load = |inputs: &gptrain::model::Inputs| {
        inputs.upload(engine.backend(), &Batch::causal(own, SAMPLES, 0, weight));
        Ok(())
    };
    engine.step(&mut load, 1, LR).unwrap().loss
}

fn load_engine(engine: &Engine, model: &Model) {
    let slices = engine.store().slices();
    for slice in slices
        .into_iter()
        .filter(|slice| slice.state.name == MASTER)
    {
        engine
            .store()
            .write(&slice, 0, bytemuck::cast_slice(&weights(&slice, model)));
    }
    engine.store().cast_master_to_model();
}

fn weights(slice: &StateSlice, model: &Model) -> Vec<f32> {
    gather(&slice.param, model, |name, len| {
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        let value = |hash| ((hash as f64 / 2f64.powi(32) - 0.5) * 0.4 + around) as f32;
        hashed(name, len).map(value).collect()
    })
}

fn tokens(family: &str) -> Vec<i32> {
    hashed(family, BATCHES * SAMPLES * (SEQ + 1))
        .map(|hash| (hash % 40) as i32)
        .collect()
}

/// The finalizer of MurmurHash3 of the name's CRC and what follows it.
fn hashed(name: &str, len: usize) -> impl Iterator<Item = u32> {
    let mut crc = flate2::Crc::new();
    crc.update(name.as_bytes());
    let seed = crc.sum();
    (0..len as u32).map(move |i| {
        let mut x = seed.wrapping_add(i);
        for (shift, factor) in [(16, 0x85eb_ca6bu32), (13, 0xc2b2_ae35)] {
            x = (x ^ (x >> shift)).wrapping_mul(factor);
        }
        x ^ (x >> 16)
    })
}

/// Our weight from the tensors of transformers that it is made of; `read` gives one of so many
/// elements.
fn gather(param: &Param, model: &Model, read: impl Fn(&str, usize) -> Vec<f32>) -> Vec<f32> {
    let layer = param
        .name
        .strip_prefix("block.")
        .and_then(|rest| rest.split_once('.'));
    let prefix = layer.map_or("model.".to_string(), |(layer, _)| format!("model.layers.{layer}."));
    let vector = matches!(param.spec.weight, Weight::QkvB);
    // A bias is a column beside its matrix.
    let (rows, cols) = if vector { (param.cols, 1) } else { (param.rows, param.cols) };
    let mut ours = Vec::new();
    for row in 0..rows {
        let (name, their_row, their_rows) = place(param.spec.weight, row, rows, model);
        let name = if name == "lm_head.weight" { name } else { format!("{prefix}{name}") };
        let theirs = read(&name, their_rows * cols);
        ours.extend(&theirs[their_row * cols..(their_row + 1) * cols]);
    }
    ours
}

/// The tensor that has our row, its row there, and how many it has.
fn place(weight: Weight, row: usize, rows: usize, m: &Model) -> (String, usize, usize) {
    use Weight::*;
    let whole = |name: &str| (name.to_string(), row, rows);
    match weight {
        TokenEmbed => whole("embed_tokens.weight"),
        HeadW => whole("lm_head.weight"),
        LnfScale => whole("norm.weight"),
        Ln1Scale => whole("input_layernorm.weight"),
        Ln2Scale => whole("post_attention_layernorm.weight"),
        QNorm => whole("self_attn.q_norm.weight"),
        KNorm => whole("self_attn.k_norm.weight"),
        ProjW => whole("self_attn.o_proj.weight"),
        Fc2W => whole("mlp.down_proj.weight"),
        Fc1W => {
            assert_eq!(m.ffn, Ffn::Swiglu);
            let name = ["mlp.gate_proj.weight", "mlp.up_proj.weight"][row % 2];
            (name.to_string(), row / 2, rows / 2)
        }
        QkvW | QkvB => {
            let Heads { query, kv, dim } = m.heads();
            let serves = query / kv;
            let (group, inside) = (row / ((serves + 2) * dim), row % ((serves + 2) * dim));
            let (head, column) = (inside / dim, inside % dim);
            let kind = if weight == QkvW { "weight" } else { "bias" };
            let at = |name: &str, head: usize, heads: usize| {
                (format!("self_attn.{name}.{kind}"), head * dim + column, heads * dim)
            };
            match head.checked_sub(serves) {
                None => at("q_proj", group * serves + head, query),
                Some(0) => at("k_proj", group, kv),
                Some(_) => at("v_proj", group, kv),
            }
        }
        other => panic!("{other:?} is in none of these"),
    }
}
