//! Models for the benchmarks of a training step.

use gptrain::device::{Dry, Tally};
use gptrain::engine::{Engine, Groups};
use gptrain::manifest::{self, Manifest};
use std::path::Path;

/// Settings of Llama 3.2 3B, and of a small model with grouped heads.
const LLAMA: &str = "family: llama, kv_heads: 8, ffn_hidden: 8192, position: {rope: {theta: 500000}}, tied_head: true";
const SMALL_LLAMA: &str = "family: llama, kv_heads: 2, ffn_hidden: 320";

/// Model, and the batch of one optimizer step: one micro-batch.
pub struct Shape {
    pub device: &'static str,
    pub name: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub vocab: usize,
    pub seq: usize,
    pub samples: usize,
    pub recompute: &'static str,
    /// More settings of the model; empty for GPT-2's family.
    pub more: &'static str,
}

#[rustfmt::skip]
pub const SHAPES: [Shape; 9] = [
    Shape { device: "cpu",  name: "tiny 6x384", layers: 6,  hidden: 384,  heads: 6,  vocab: 8_192,  seq: 256,  samples: 8,  recompute: "none", more: "" },
    Shape { device: "cpu",  name: "GPT-2 124M", layers: 12, hidden: 768,  heads: 12, vocab: 50_304, seq: 256,  samples: 4,  recompute: "none", more: "" },
    Shape { device: "cpu",  name: "GPT-2 124M 1x1024", layers: 12, hidden: 768, heads: 12, vocab: 50_304, seq: 1024, samples: 1, recompute: "none", more: "" },
    Shape { device: "cuda", name: "GPT-2 124M", layers: 12, hidden: 768,  heads: 12, vocab: 50_304, seq: 1024, samples: 32, recompute: "none", more: "" },
    Shape { device: "cuda", name: "GPT-2 1.5B", layers: 48, hidden: 1600, heads: 25, vocab: 50_304, seq: 1024, samples: 16, recompute: "none", more: "" },
    Shape { device: "cuda", name: "7B class",   layers: 32, hidden: 4096, heads: 32, vocab: 50_304, seq: 2048, samples: 2,  recompute: "selective", more: "" },
    Shape { device: "cuda", name: "Llama 3.2 3B", layers: 28, hidden: 3072, heads: 24, vocab: 128_256, seq: 4096, samples: 1, recompute: "selective", more: LLAMA },
    Shape { device: "cuda", name: "trial",      layers: 2,  hidden: 64,   heads: 2,  vocab: 256,    seq: 32,   samples: 2,  recompute: "none", more: "" },
    Shape { device: "cuda", name: "trial Llama", layers: 2, hidden: 256,  heads: 4,  vocab: 256,    seq: 32,   samples: 2,  recompute: "selective", more: SMALL_LLAMA },
];

impl Shape {
    /// Whether the shape's name contains the requested part. Llama's, and those for the software
    /// stand-in, are measured only if the whole name is requested.
    pub fn is(&self, name: &str) -> bool {
        let by_whole_name = !self.more.is_empty() || self.name == "trial";
        if by_whole_name { self.name == name } else { self.name.contains(name) }
    }

    /// FLOPs per token for MFU: 6·N + 6·L·H·T, N all parameters, attention as causal.
    pub fn flops_per_token(&self, parameters: f64) -> f64 {
        6.0 * parameters + 6.0 * (self.layers * self.hidden * self.seq) as f64
    }

    /// Counted ops of a step of `micros` micro-batches on a GPU.
    #[allow(dead_code, reason = "of the benchmarks that know GPUs' data sheets")]
    pub fn ops(&self, precision: &str, micros: usize) -> anyhow::Result<Tally> {
        let mut manifest = self.manifest(precision)?;
        manifest.batch.global *= micros;
        let device = Dry::gpu();
        let engine = Engine::new(&device, Groups::solo(), &manifest, true)?;
        device.take();
        engine.step(&mut |_| Ok(()), micros, 0.0)?;
        Ok(device.take())
    }

    /// Manifest of a run on one rank of its device.
    pub fn manifest(&self, precision: &str) -> anyhow::Result<Manifest> {
        let Shape { device, layers, hidden, heads, vocab, seq, samples, recompute, more, .. } =
            self;
        let text = format!(
            "model: {{layers: {layers}, hidden: {hidden}, heads: {heads}, vocab: {vocab}, seq_len: {seq}, {more}}}
precision: {precision}
data: {{train: none}}
batch: {{micro: {samples}, global: {samples}}}
topology: {{recompute: {recompute}}}
lr: {{peak: 3e-4, decay: constant}}
train: {{steps: 100, device: {device}}}"
        );
        Ok(manifest::parse(&text, "bench", Path::new("."), &[])?.manifest)
    }
}
