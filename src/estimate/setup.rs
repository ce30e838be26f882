//! What is estimated: a model, cut in some way, on some machines, by some program. A manifest and a
//! row of measured runs both become this.

use super::counts::Counts;
use super::hardware::Hardware;
use crate::manifest::{LayerSplit, Model, Recompute, Topology};
use crate::plan::split;
use std::ops::Range;

/// Whose memory and time are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    MegatronLm,
    MegatronDeepSpeed,
    DeepSpeedZero,
    HfDeepSpeed,
    Ddp,
    Fsdp,
}

impl Framework {
    /// By the words it is written with, here and in tables of measured runs.
    pub const NAMES: [(&str, Framework); 9] = [
        ("megatron-deepspeed", Framework::MegatronDeepSpeed),
        ("megatron-deepspeed-3d", Framework::MegatronDeepSpeed),
        ("megatron-lm", Framework::MegatronLm),
        ("deepspeed-zero3", Framework::DeepSpeedZero),
        ("megatron-deepspeed-zero", Framework::DeepSpeedZero),
        ("hf-trainer+deepspeed", Framework::HfDeepSpeed),
        ("hf-deepspeed", Framework::HfDeepSpeed),
        ("pytorch-ddp", Framework::Ddp),
        ("pytorch-fsdp", Framework::Fsdp),
    ];

    pub fn named(name: &str) -> Option<Framework> {
        Framework::NAMES.iter().find(|(known, _)| *known == name).map(|(_, framework)| *framework)
    }

    /// Whether layers run op by op as PyTorch has them, without Megatron's fused kernels.
    pub fn eager(self) -> bool {
        matches!(self, Framework::HfDeepSpeed | Framework::Ddp | Framework::Fsdp)
    }
}

/// Element types in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    F32,
    Fp16,
    Bf16,
    /// bf16 with gradients accumulated in fp32.
    Bf16Fp32Grad,
}

/// What the optimizer keeps of each parameter, in bytes, beside the fp32 master copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    Adam,
    Adam8bit,
    Adafactor,
}

impl Moments {
    pub fn bytes(self) -> f64 {
        match self {
            Moments::Adam => 8.0,
            Moments::Adam8bit => 2.0,
            Moments::Adafactor => 0.0,
        }
    }
}

/// What waits in the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    pub optimizer: bool,
    pub weights: bool,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub model: Model,
    /// Parameters of a rank: `Counts::new` of model and topology.
    pub counts: Counts,
    pub topology: Topology,
    /// Samples of a micro-batch and of a step.
    pub micro: usize,
    pub global: usize,
    pub numbers: Numbers,
    pub moments: Moments,
    pub offload: Offload,
    pub framework: Framework,
    pub hardware: &'static Hardware,
    /// Devices of a node.
    pub per_node: usize,
    /// Each kernel is waited for before the next is launched (CUDA_LAUNCH_BLOCKING=1).
    pub blocking: bool,
    /// Gradients are compressed to low rank before they travel.
    pub power_sgd: bool,
    /// Period with the same machines and software, of measured runs.
    pub regime: Option<String>,
}

impl Setup {
    /// Micro-batches of a replica in a step.
    pub fn micros(&self) -> usize {
        self.global / (self.micro * self.topology.data)
    }

    /// A head dimension that tensor cores do not take well.
    pub fn odd_heads(&self) -> bool {
        !(self.model.hidden / self.model.heads).is_multiple_of(8)
    }

    pub fn ranks(&self) -> usize {
        self.topology.ranks()
    }

    /// Layers of each stage.
    pub fn stages(&self) -> Vec<Range<usize>> {
        let (layers, stages) = (self.model.layers, self.topology.pipeline);
        match &self.topology.layer_split {
            LayerSplit::TransformerAndEmbedding => split::with_ends(layers, stages),
            LayerSplit::Explicit(sizes) => split::explicit(sizes),
            LayerSplit::Uniform | LayerSplit::Balanced => split::uniform(layers, stages),
        }
    }

    /// How often a layer's forward runs.
    pub fn forwards(&self) -> f64 {
        if self.topology.recompute == Recompute::Full { 2.0 } else { 1.0 }
    }
}
