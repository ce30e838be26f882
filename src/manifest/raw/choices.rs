//! Closed choices, by the words they are written with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Derives shared by all closed choices.
macro_rules! choice {
    ($($item:item)*) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
        $item
    )*};
}

choice! {
/// Element types.
pub enum Precision {
    /// 32-bit floats.
    #[serde(rename = "f32")]
    F32,
    /// 32-bit floats, of which matrix products on a GPU read 10 bits of fraction.
    #[serde(rename = "tf32")]
    Tf32,
    /// bfloat16 weights and activations, 32-bit master weights and gradient accumulation.
    #[serde(rename = "bf16")]
    Bf16,
    /// The same in half precision, with a loss scale.
    #[serde(rename = "fp16")]
    Fp16,
    /// 8-bit floats: not in this version.
    #[serde(rename = "fp8")]
    Fp8,
}

/// Positions.
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// A table of seq_len learned vectors (GPT-2).
    Learned,
    /// Attention with linear biases, no table (BLOOM).
    Alibi,
}

/// Formulas of the activation function.
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// The approximation by tanh (GPT-2, Megatron, BLOOM).
    Tanh,
    /// By the error function.
    Exact,
}

/// Sample orders.
pub enum DataRule {
    /// NVIDIA Megatron-Core.
    #[serde(rename = "mcore")]
    MegatronCore,
    /// BigScience's Megatron-DeepSpeed.
    #[serde(rename = "megatron-deepspeed")]
    MegatronDeepSpeed,
}

/// Shares of a split.
#[serde(rename_all = "snake_case")]
pub enum PartName {
    /// The first number.
    Train,
    /// The second number.
    Valid,
    /// The third number.
    Test,
}

/// What is learned.
#[serde(rename_all = "snake_case")]
pub enum ObjectiveName {
    /// The next token from all before it.
    Causal,
    /// A random prefix of each sample sees itself whole; the loss is on the rest.
    PrefixLm,
}

/// Shapes after the warm-up.
#[serde(rename_all = "snake_case")]
pub enum DecayName {
    /// Stays at the peak.
    Constant,
    /// A straight line to the minimum, over the run.
    Linear,
    /// Half a cosine wave to the minimum, over the run.
    Cosine,
    /// Flat, and a straight line to the minimum in the last tenth of the run.
    Wsd,
}

/// Update rules.
#[serde(rename_all = "snake_case")]
pub enum OptimizerName {
    /// Adam with decoupled weight decay.
    Adamw,
    /// Not in this version.
    Adam8bit,
    /// Not in this version.
    Adafactor,
}

/// Orders of the pipeline.
pub enum Schedule {
    /// One forward, one backward.
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// Several chunks of layers per stage, for a smaller bubble.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// All forwards, then all backwards.
    #[serde(rename = "gpipe")]
    GPipe,
}

/// Cuts into stages.
#[serde(rename_all = "snake_case")]
pub enum LayerSplitName {
    /// The same number of layers everywhere.
    Uniform,
    /// Embedding and head count as a layer each (Megatron-DeepSpeed's
    /// --pp-partition-method type:transformer|embedding).
    TransformerAndEmbedding,
    /// As equal in cost as whole layers allow.
    Balanced,
}

/// Which parallel groups are laid side by side, next after the tensor-parallel ranks.
#[serde(rename_all = "snake_case")]
pub enum Neighbours {
    /// Replicas (Megatron's order: tensor, data, pipeline).
    Data,
    /// Pipeline stages.
    Pipeline,
}

/// How much is computed twice.
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing.
    None,
    /// What is cheap to rebuild: norms and the activation function.
    Selective,
    /// Everything but each block's input (--checkpoint-activations).
    Full,
}

/// Programs whose needs are known.
#[serde(rename_all = "kebab-case")]
pub enum Framework {
    /// This one.
    Gptrain,
    /// Megatron-DeepSpeed's 3D parallelism, with ZeRO-1.
    #[serde(rename = "megatron-deepspeed")]
    MegatronDeepSpeed,
    /// NVIDIA Megatron-LM.
    MegatronLm,
    /// Megatron-DeepSpeed with ZeRO-3 and tensor parallelism.
    #[serde(rename = "deepspeed-zero3")]
    DeepSpeedZero3,
    /// Hugging Face's trainer with DeepSpeed.
    #[serde(rename = "hf-deepspeed")]
    HfDeepSpeed,
    /// PyTorch's DistributedDataParallel.
    Ddp,
    /// PyTorch's FullyShardedDataParallel.
    Fsdp,
}

/// What carries tensors between ranks that compute on GPUs.
#[serde(rename_all = "snake_case")]
pub enum GpuTransport {
    /// NVIDIA's library, from GPU to GPU: each rank has one of its own.
    Nccl,
    /// The memory of the hosts and TCP: slow, but several ranks may share a GPU.
    Host,
}

/// Where it is computed.
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A GPU for each rank if all nodes have so many, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}
}
