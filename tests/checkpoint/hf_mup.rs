//! Models of µP as Hugging Face's folders, which have no factors of it: the weights have them.

use crate::common::binary::Lab;
use gptrain::checkpoint::load_weights;
use gptrain::device::cpu::Cpu;
use gptrain::engine::Sampler;
use gptrain::manifest;
use std::fs;
use std::path::Path;

/// Logits after every token of a text, of a run's newest checkpoint.
fn logits(run: &Path) -> Vec<f32> {
    let m = manifest::load(run, &[]).unwrap().manifest;
    let tokens: Vec<u32> = (0..16).map(|i| i * i % 61).collect();
    let cpu = Cpu::new(Some(1));
    let mut sampler = Sampler::new(&cpu, &m, tokens.len()).unwrap();
    let step = fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    load_weights(&step.max().unwrap(), &sampler.weights).unwrap();
    let mut all = Vec::new();
    sampler.each_logits(&tokens, |_, logits| all.extend_from_slice(logits));
    all
}

#[test]
fn what_goes_out_and_comes_in_gives_the_same_logits() {
    let kinds = [
        "family: gpt2",
        "family: llama, heads: 4, kv_heads: 2, tied_head: true",
        "family: qwen2",
        "family: qwen3, head_dim: 6",
    ];
    for kind in kinds {
        let lab = Lab::new();
        let heads = if kind.contains("heads: 4") { "" } else { "heads: 4, " };
        let mup = "base_hidden: 8, base_head_dim: 3, embedding_multiplier: 7, output_multiplier: 3";
        let model = format!(
            "model={{{kind}, {heads}layers: 2, hidden: 32, ffn_hidden: 48, vocab: 65, seq_len: 24, \
             init: {{std: 0.3}}, mup: {{{mup}}}}}"
        );
        lab.run(&[&model, "train.samples=16"]).expect(0, &[]);
        lab.gptrain(&["export", "runs/a", "--output", "out", "--dtype", "f32"])
            .expect(0, &[]);
        lab.gptrain(&["import", "--hf", "out", "--output", "runs/again"])
            .expect(0, &[]);
        let (ours, theirs) = (logits(&lab.path("runs/a")), logits(&lab.path("runs/again")));
        let largest = ours.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let off = ours
            .iter()
            .zip(&theirs)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(largest > 1.0 && off < 3e-6 * largest, "{kind}: off by {off:e} of {largest}");
        let text = fs::read_to_string(lab.path("runs/again/manifest.yaml")).unwrap();
        assert!(!text.contains("base_hidden"), "{text}");
    }
}
