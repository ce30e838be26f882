//! Keys and values that are kept: the logits of a text that grows token by token are those of the
//! whole text, in every family; beyond the context they are those of its end.

use crate::common;
use gptrain::base::rng;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Sampler};

const SEQ: usize = 150;

const FAMILIES: [&[&str]; 6] = [
    &["model.init.std=0.3"],
    &["model.position=alibi", "model.embedding_layernorm=true", "model.logit_softcap=3"],
    &["model.family=llama", "model.heads=8", "model.kv_heads=2", "model.ffn_hidden=40"],
    &["model.family=mistral", "model.window=9", "model.ffn_hidden=40"],
    &["model.family=qwen2", "model.kv_heads=1", "model.ffn_hidden=40"],
    &[
        "model.family=qwen3",
        "model.head_dim=6",
        "model.window=140",
        "model.pattern=[window, {rope: {theta: 50}}]",
        "model.ffn_hidden=40",
    ],
];

/// With weights that are drawn, so that logits differ.
fn sampler<'a>(cpu: &'a Cpu, family: &[&str], context: usize) -> Sampler<'a> {
    let seq = format!("model.seq_len={SEQ}");
    let m = common::manifest(&[&[seq.as_str(), "model.init.std=0.2"], family].concat());
    let engine = Engine::new(cpu, Groups::solo(), &m, true).unwrap();
    engine.init();
    let weights = common::weights(&engine);
    let sampler = Sampler::new(cpu, &m, context).unwrap();
    for slice in sampler.weights.slices() {
        let (_, values) = weights
            .iter()
            .find(|(name, _)| *name == slice.param.name)
            .unwrap();
        sampler
            .weights
            .write(&slice, 0, bytemuck::cast_slice(values));
    }
    sampler
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u64)
        .map(|i| rng::below(9, i, 128) as u32)
        .collect()
}

fn close(ours: &[f32], whole: &[f32], what: &str) {
    let largest = whole.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let off = ours
        .iter()
        .zip(whole)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(largest > 0.1 && off <= 1e-5 * largest, "{what}: off by {off:e} of {largest}");
}

/// 128 tokens are computed at once, so these are two passes, the second with rows left over.
#[test]
fn a_text_that_grows_has_the_logits_of_the_whole() {
    let cpu = Cpu::new(Some(2));
    for family in FAMILIES {
        let text = tokens(SEQ);
        let mut whole = vec![Vec::new(); SEQ];
        let mut at_once = sampler(&cpu, family, SEQ);
        at_once.each_logits(&text, |position, logits| whole[position] = logits.to_vec());
        let mut grown = sampler(&cpu, family, SEQ);
        // A prompt, then one by one; then another text with the same beginning.
        for end in (7..=SEQ)
            .filter(|end| *end == 7 || *end > 120)
            .chain([40, 41, 135])
        {
            let logits = grown.logits(&text[..end]);
            close(&logits, &whole[end - 1], &format!("{family:?}, {end} tokens"));
        }
        let other: Vec<u32> = text[..30].iter().copied().chain([1, 2, 3]).collect();
        let mut afresh = sampler(&cpu, family, SEQ);
        close(&grown.logits(&other), &afresh.logits(&other), "another end");
    }
}

#[test]
fn beyond_the_context_the_end_is_read() {
    let cpu = Cpu::new(Some(1));
    let text = tokens(20);
    let (mut short, mut other) = (sampler(&cpu, FAMILIES[2], 16), sampler(&cpu, FAMILIES[2], 16));
    for end in 14..=20 {
        let logits = short.logits(&text[..end]);
        close(&logits, &other.logits(&text[end.saturating_sub(16)..end]), "the last 16");
    }
}
