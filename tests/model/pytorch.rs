//! Losses, gradients and twenty AdamW steps equal PyTorch's in float64, from the same weights and
//! tokens; so do fifty of its Adafactor's and of Hugging Face's, and Muon's (`muon`). The values were made by
//! `fixtures/pytorch/make.sh`.

use crate::common;
use crate::grids::read_grad;
use gptrain::base::Heads;
use gptrain::checkpoint::safetensors::Reader;
use gptrain::data::{Batch, Column};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, MASTER};
use gptrain::manifest::Manifest;
use gptrain::model::Param;
use std::collections::HashMap;
use std::path::PathBuf;

const SAMPLES: usize = 4;
const SEQ: usize = 24;

#[test]
fn gpt2() {
    check("gpt2", &["optimizer.adamw.clip=0.3", "lr.peak=3e-3", "lr.warmup_samples=40"], 2);
}

#[test]
fn bloom() {
    let bloom = ["model.hidden=48", "model.heads=6", "model.position=alibi"];
    let rest = ["model.embedding_layernorm=true", "optimizer.adamw.clip=0.5", "lr.peak=2e-3"];
    check("bloom", &[bloom, rest].concat(), 1);
}

#[test]
fn untied_head_exact_gelu_and_padded_vocabulary() {
    let sets = ["model.heads=2", "model.tied_head=false", "model.gelu=exact", "model.vocab=101"];
    check("untied", &[&sets[..], &["optimizer.adamw.beta2=0.999"]].concat(), 1);
}

/// From the weights and tokens of gpt2; of the gradients some were kept.
#[test]
fn capped_logits_and_the_second_loss() {
    let sets = ["model.logit_softcap=0.5", "train.z_loss=0.02", "lr.peak=3e-3"];
    check_from("capped", "gpt2", &sets, 2);
}

/// Four times as wide as the base, with heads twice as wide. From the weights and tokens of gpt2, and
/// of the untied one.
#[test]
fn mup() {
    let mup = "model.mup={base_hidden: 8, base_head_dim: 4, embedding_multiplier: 3, \
               output_multiplier: 1.5}";
    check_from("mup", "gpt2", &[mup, "lr.peak=3e-3"], 2);
    let mup = [mup, "lr.peak=3e-3", "model.heads=2", "model.tied_head=false"];
    let rest = ["model.gelu=exact", "model.vocab=101"];
    check_from("mup-untied", "untied", &[&mup[..], &rest].concat(), 2);
}

#[test]
fn documents_that_do_not_see_each_other() {
    check("documents", &[], 1);
}

#[test]
fn prefix_lm_with_alibi() {
    check("prefix", &["model.position=alibi", "model.embedding_layernorm=true"], 1);
}

/// With settings that both have in common, PyTorch's and Hugging Face's give the same.
#[test]
fn adafactor_as_pytorch_and_as_hugging_face() {
    let sets = ["optimizer.adafactor={relative_step: true, clip: 0}", "lr.peak=0.01"];
    follow("adafactor-torch", "adafactor-torch", &sets, 1, WITHIN);
    follow("adafactor-hf", "adafactor-torch", &sets, 1, WITHIN);
}

#[test]
fn adafactor_as_pytorch_with_decay_and_clipping() {
    let rule = "optimizer.adafactor={relative_step: true, clip: 0.3, clip_threshold: 1.5, \
                weight_decay: 0.05}";
    let name = "adafactor-torch-decay";
    follow(name, name, &[rule, "lr.peak=0.02"], 2, WITHIN);
}

#[test]
fn adafactor_as_hugging_face_with_a_learning_rate() {
    let rule = "optimizer.adafactor={weight_decay: 0.1, clip: 0}";
    follow("adafactor-hf-lr", "adafactor-hf-lr", &[rule, "lr.peak=0.001"], 1, WITHIN);
}

/// Tolerances of losses and norms, as for AdamW, and of weights.
const WITHIN: [f64; 3] = [1e-5, 1e-4, 1e-5];

/// The steps of a reference from the weights of `documents`: each loss and each norm, relative; the
/// weights after the last step that the reference kept (in the file `weights`), of their norm.
pub fn follow(name: &str, weights: &str, sets: &[&str], accum: usize, within: [f64; 3]) {
    let manifest = manifest(sets, accum);
    let cpu = Cpu::new(Some(2));
    let engine = Engine::new(&cpu, Groups::solo(), &manifest, false).unwrap();
    let heads = manifest.model.heads();
    load(&engine, "documents", heads);
    let lines = lines(name);
    let steps = &lines[1..lines.len() - 1];
    assert!(steps.len() > 20);
    for (s, line) in steps.iter().enumerate() {
        let lr = gptrain::engine::lr::at(&manifest.lr, ((s + 1) * SAMPLES * accum) as u64);
        let outcome = step(&engine, &batches("documents"), s, accum, lr);
        let expected = |key: &str| line[key].as_f64().unwrap();
        let (loss, norm) = (expected("loss"), expected("grad_norm"));
        close(outcome.loss, loss, within[0], &format!("{name} loss of step {s}"));
        close(outcome.grad_norm, norm, within[1], &format!("{name} norm of step {s}"));
    }
    let reader = Reader::open(&fixture(&format!("{weights}.safetensors"))).unwrap();
    let ours: HashMap<String, Vec<f32>> = common::weights(&engine).into_iter().collect();
    let kept = |param: &&Param| reader.entries.contains_key(&common::reference_name(param));
    let params: Vec<&Param> = engine.params().filter(kept).collect();
    assert_eq!(params.len(), 5);
    for param in params {
        let theirs = reader.words(&common::reference_name(param)).unwrap();
        let theirs = common::from_reference(param, &theirs, heads);
        // The key bias moves all scores of a query alike: its gradient is rounding alone.
        let counts =
            |at: &usize| param.rows > 1 || param.spec.fused(&manifest.model).matrix_of(*at) != 1;
        let norm = |of: &dyn Fn(usize) -> f32| {
            let squares = (0..theirs.len())
                .filter(counts)
                .map(|at| f64::from(of(at)).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let off = norm(&|at| ours[&param.name][at] - theirs[at]) / norm(&|at| theirs[at]);
        println!("{name} {}: off by {off:.1e}", param.name);
        assert!(off <= within[2], "{name} {}: off by {off:.1e}", param.name);
    }
}

#[test]
fn recompute_and_threads_change_no_bit() {
    let run = |recompute: &str, threads: usize| {
        let sets = [format!("topology.recompute={recompute}"), "model.dropout=0.1".into()];
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let manifest = manifest(&sets, 1);
        let cpu = Cpu::new(Some(threads));
        let engine = Engine::new(&cpu, Groups::solo(), &manifest, false).unwrap();
        engine.init();
        let batches = batches("gpt2");
        let losses: Vec<u64> = (0..3)
            .map(|s| step(&engine, &batches, s, 1, 1e-3).loss.to_bits())
            .collect();
        (losses, common::weights(&engine))
    };
    let first = run("none", 1);
    for (recompute, threads) in [("none", 2), ("selective", 1), ("full", 3)] {
        assert!(run(recompute, threads) == first, "{recompute} on {threads} threads");
    }
}

#[test]
fn bf16_follows_f32() {
    let run = |precision: &str| {
        let manifest = manifest(&[&format!("precision={precision}"), "lr.peak=3e-3"], 1);
        let cpu = Cpu::new(Some(2));
        let engine = Engine::new(&cpu, Groups::solo(), &manifest, true).unwrap();
        load(&engine, "gpt2", manifest.model.heads());
        let batches = batches("gpt2");
        (0..20)
            .map(|s| step(&engine, &batches, s, 1, 3e-3).loss)
            .collect::<Vec<_>>()
    };
    let (f32, bf16) = (run("f32"), run("bf16"));
    assert_ne!(f32, bf16);
    for (step, (a, b)) in f32.iter().zip(&bf16).enumerate() {
        assert!((a - b).abs() < 0.01 * a, "step {step}: f32 {a}, bf16 {b}");
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&bf16[15..]) < mean(&bf16[..5]) - 0.1, "bf16 learns: {bf16:?}");
}

/// Trains the case for 20 steps and compares everything the reference wrote down: each loss to 1e-5
/// and each norm to 1e-4 relative, each gradient of step 1 to 2e-5 of its largest element.
fn check(name: &str, sets: &[&str], accum: usize) {
    check_from(name, name, sets, accum);
}

/// The same from the weights and tokens of another case.
fn check_from(name: &str, from: &str, sets: &[&str], accum: usize) {
    let manifest = manifest(sets, accum);
    let cpu = Cpu::new(Some(2));
    let causal = !["documents", "prefix"].contains(&name);
    let engine = Engine::new(&cpu, Groups::solo(), &manifest, causal).unwrap();
    load(&engine, from, manifest.model.heads());
    let batches = batches(from);

    let lines = lines(name);
    let steps = &lines[1..lines.len() - 1];
    assert_eq!(steps.len(), 20);
    for (s, line) in steps.iter().enumerate() {
        let expected = |key: &str| line[key].as_f64().unwrap();
        let samples = ((s + 1) * SAMPLES * accum) as u64;
        let lr = gptrain::engine::lr::at(&manifest.lr, samples);
        assert!((lr - expected("lr")).abs() < 1e-12, "step {s}: lr {lr}");
        let outcome = step(&engine, &batches, s, accum, lr);
        close(outcome.loss, expected("loss"), 1e-5, &format!("{name} loss of step {s}"));
        let norm = format!("{name} gradient norm of step {s}");
        close(outcome.grad_norm, expected("grad_norm"), 1e-4, &norm);
        match line.get("z_loss").and_then(|loss| loss.as_f64()) {
            Some(loss) => close(outcome.z_loss, loss, 1e-5, &format!("z-loss of step {s}")),
            None => assert_eq!(outcome.z_loss, 0.0),
        }
        if s == 0 {
            compare_gradients(&engine, name, manifest.model.heads());
        }
    }
    let last = lines.last().unwrap()["loss_next_batch"].as_f64().unwrap();
    let mut load = |inputs: &gptrain::model::Inputs| {
        let batch = scaled(&batches[20 * accum % batches.len()], 1);
        inputs.upload(&cpu, &batch);
        Ok(())
    };
    close(engine.evaluate(&mut load, 1).unwrap(), last, 1e-5, "evaluation after 20 steps");
}

/// Records of the reference: a header, steps, and a loss after them.
fn lines(name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(fixture(&format!("{name}.jsonl"))).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn compare_gradients(engine: &Engine, name: &str, heads: Heads) {
    let reader = Reader::open(&fixture(&format!("{name}.grads.safetensors"))).unwrap();
    let kept = |param: &&Param| reader.entries.contains_key(&common::reference_name(param));
    let params: Vec<_> = engine.params().filter(kept).collect();
    assert_eq!(params.len(), reader.entries.len());
    let some = ["capped", "mup", "mup-untied"].contains(&name);
    assert!(some || params.len() == engine.params().count());
    for param in params {
        let theirs = common::reference_name(param);
        let expected = common::from_reference(param, &reader.words(&theirs).unwrap(), heads);
        let ours = read_grad(engine, param);
        let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let off = ours
            .iter()
            .zip(&expected)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        // The key bias moves all scores of a query alike: its gradient is exactly 0.
        assert!(off <= 2e-5 * largest + 1e-9, "{name} {}: off by {off} of {largest}", param.name);
    }
}

fn close(ours: f64, expected: f64, tolerance: f64, what: &str) {
    let off = (ours - expected).abs() / expected.abs();
    assert!(off <= tolerance, "{what}: {ours}, expected {expected} (off by {off:.1e})");
}

fn manifest(sets: &[&str], accum: usize) -> Manifest {
    let global = format!("batch.global={}", SAMPLES * accum);
    common::manifest(&[&["optimizer.adamw.clip=0", &global], sets].concat())
}

fn fixture(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/pytorch")
        .join(file)
}

fn load(engine: &Engine, name: &str, heads: Heads) {
    let reader = Reader::open(&fixture(&format!("{name}.weights.safetensors"))).unwrap();
    let slices = engine.store().slices();
    for slice in slices
        .into_iter()
        .filter(|slice| slice.state.name == MASTER)
    {
        let theirs = common::reference_name(&slice.param);
        let values = reader.words(&theirs).unwrap();
        let ours = common::from_reference(&slice.param, &values, heads);
        let values = &ours[..slice.numel()]; // no padding
        engine
            .store()
            .write(&slice, 0, bytemuck::cast_slice(values));
    }
    engine.store().cast_master_to_model();
}

/// The micro-batches of a case; weights sum to 1 in each sample.
fn batches(name: &str) -> Vec<Batch> {
    let reader = Reader::open(&fixture(&format!("{name}.tokens.safetensors"))).unwrap();
    let tokens: Vec<i32> = reader.words("tokens").unwrap();
    let cut =
        |i: usize, chunk| Batch::causal(chunk, SAMPLES, (i * SAMPLES) as u64, 1.0 / SEQ as f32);
    let mut batches: Vec<Batch> = tokens
        .chunks(SAMPLES * (SEQ + 1))
        .enumerate()
        .map(|(i, c)| cut(i, c))
        .collect();
    if reader.entries.contains_key("visible") {
        let visible: Vec<i32> = reader.words("visible").unwrap();
        let positions: Vec<i32> = reader.words("positions").unwrap();
        let weights: Vec<f32> = reader.words("weights").unwrap();
        let n = SAMPLES * SEQ;
        for (i, batch) in batches.iter_mut().enumerate() {
            batch
                .column_mut(Column::Visible)
                .copy_from_slice(&visible[2 * n * i..2 * n * (i + 1)]);
            batch
                .column_mut(Column::Positions)
                .copy_from_slice(&positions[n * i..n * (i + 1)]);
            batch
                .column_mut(Column::Weights)
                .copy_from_slice(&weights[n * i..n * (i + 1)]);
        }
    }
    batches
}

fn scaled(batch: &Batch, accum: usize) -> Batch {
    let mut batch = batch.clone();
    let weights = batch.column_mut::<f32>(Column::Weights);
    weights
        .iter_mut()
        .for_each(|w| *w /= (SAMPLES * accum) as f32);
    batch
}

/// Step `s`, counted from 0, over `accum` micro-batches.
fn step(
    engine: &Engine,
    batches: &[Batch],
    s: usize,
    accum: usize,
    lr: f64,
) -> gptrain::engine::Outcome {
    let mut micro = s * accum;
    let mut load = |inputs: &gptrain::model::Inputs| {
        inputs.upload(engine.backend(), &scaled(&batches[micro % batches.len()], accum));
        micro += 1;
        Ok(())
    };
    engine.step(&mut load, accum, lr).unwrap()
}
