//! Closed choices: the words of the manifest, and their enums.

use base::choices;

choices! {
/// Rule for the number of replicas.
ReplicaRule {
    /// As many as the ranks have room for.
    Auto = "auto",
}
}

choices! {
/// Element types.
Precision {
    /// 32-bit floats.
    F32 = "f32",
    /// 32-bit floats; matrix products on a GPU use 10 bits of their fraction.
    Tf32 = "tf32",
    /// bfloat16 weights and activations, 32-bit master weights and gradient accumulation.
    Bf16 = "bf16",
    /// As bf16, in half precision with a loss scale.
    Fp16 = "fp16",
    /// As bf16, with the matrix products of the blocks in 8-bit floats: E4M3, and E5M2 for the gradients
    /// of outputs, scaled by the largest magnitude of each row.
    Fp8 = "fp8",
}

/// Keys that the queries of a layer attend to.
LayerAttention {
    /// All earlier keys.
    Full = "full",
    /// The last `model.window` keys.
    Window = "window",
}

/// Normalisations.
NormKind {
    /// By mean and variance, with scale and shift (Ba, Kiros & Hinton 2016).
    Layer = "layer",
    /// By the root mean square, with a scale (Zhang & Sennrich 2019).
    Rms = "rms",
}

/// Feed-forward layers.
Ffn {
    /// Two matrices with GELU between them.
    Gelu = "gelu",
    /// Gates and values, silu(gate)·value, and a matrix back (Shazeer 2020).
    Swiglu = "swiglu",
}

/// Matrix products of a block that add a bias.
Bias {
    /// None.
    None = "none",
    /// The product of queries, keys and values.
    Qkv = "qkv",
    /// Products of attention: queries, keys and values, and its output.
    Attention = "attention",
    /// All products.
    All = "all",
}

/// Sample orders.
DataRule {
    /// NVIDIA Megatron-Core.
    MegatronCore = "mcore",
    /// BigScience's Megatron-DeepSpeed.
    MegatronDeepSpeed = "megatron-deepspeed",
}

/// Shares of a split.
PartName {
    /// The first number.
    Train = "train",
    /// The second number.
    Valid = "valid",
    /// The third number.
    Test = "test",
}

/// Sample count that sets the learning rate of a step.
LrCounted {
    /// Count after the step.
    After = "after",
    /// Count before the step, as in Megatron, which steps its schedule after the update.
    Before = "before",
}

/// Factor of Muon's step of a matrix [rows, cols], whose singular values are near 1.
MuonScale {
    /// 0.2·√max(rows, cols), so that its root mean square is about AdamW's (Liu et al. 2025).
    MatchRmsAdamw = "match_rms_adamw",
    /// √max(1, rows/cols) (Jordan et al. 2024).
    Original = "original",
}

/// Orders of the pipeline.
Schedule {
    /// One forward, one backward.
    OneFOneB = "1f1b",
    /// Several chunks of layers per stage, for a smaller bubble.
    Interleaved = "interleaved",
    /// All forwards, then all backwards.
    GPipe = "gpipe",
    /// As gpipe with several chunks of layers per stage: every micro-batch passes a chunk before the first
    /// one enters the next (Lamy-Poirier 2023).
    BreadthFirst = "breadth_first",
}

/// Rules for the replicas of a shard group.
ShardRule {
    /// All replicas: one level.
    All = "all",
    /// The replicas on a node.
    Node = "node",
}

/// Replicas that divide the optimizer states.
StateReplicas {
    /// All replicas.
    All = "all",
    /// The replicas of a shard group: every copy has all states.
    Shard = "shard",
}

/// Divisions of layers into stages.
LayerSplitName {
    /// The same number of layers in each stage.
    Uniform = "uniform",
    /// Embedding and head count as a layer each (Megatron-DeepSpeed's
    /// --pp-partition-method type:transformer|embedding).
    TransformerAndEmbedding = "transformer_and_embedding",
    /// As equal in cost as whole layers allow.
    Balanced = "balanced",
}

/// Parallel groups with adjacent ranks, next after the tensor-parallel ranks.
#[schemars(rename = "Neighbours")]
RankOrder {
    /// Replicas (Megatron's order: tensor, data, pipeline).
    Data = "data",
    /// Pipeline stages.
    Pipeline = "pipeline",
}

/// Activations that backward recomputes.
Recompute {
    /// Nothing.
    None = "none",
    /// Activations that are cheap to recompute: norms and the activation function.
    Selective = "selective",
    /// Everything but each block's input (--checkpoint-activations).
    Full = "full",
}

/// State in the host's memory.
OffloadWhat {
    /// Nothing.
    None = "none",
    /// Master weights and optimizer states, which the host's processor updates.
    Optimizer = "optimizer",
    /// Also weights; the device has those in use.
    Full = "full",
}

/// Memories in which gradients can wait for the update.
GradientHome {
    /// The device's memory if they fit, else the host's.
    Auto = "auto",
    /// The device's memory.
    Device = "device",
    /// The host's memory, except for those of embedding and head.
    Host = "host",
}

/// Trainers that `gptrain estimate` can plan.
Framework {
    /// gptrain.
    Gptrain = "gptrain",
    /// Megatron-DeepSpeed's 3D parallelism, with ZeRO-1.
    MegatronDeepSpeed = "megatron-deepspeed",
    /// NVIDIA Megatron-LM.
    MegatronLm = "megatron-lm",
    /// Megatron-DeepSpeed with ZeRO-3 and tensor parallelism.
    DeepSpeedZero3 = "deepspeed-zero3",
    /// Hugging Face's trainer with DeepSpeed.
    HfDeepSpeed = "hf-deepspeed",
    /// PyTorch's DistributedDataParallel.
    Ddp = "ddp",
    /// PyTorch's FullyShardedDataParallel.
    Fsdp = "fsdp",
}

/// Transports of tensors between ranks that compute on GPUs.
GpuTransport {
    /// NVIDIA's library, from GPU to GPU; each rank needs its own GPU.
    Nccl = "nccl",
    /// Host memory and TCP: slow, but several ranks may share a GPU.
    Host = "host",
}

/// Reactions to loss spikes.
SpikeAction {
    /// Detection is off.
    Off = "off",
    /// Warn.
    Warn = "warn",
    /// Skip their updates; if that does not help, roll back to a checkpoint.
    Act = "act",
}

/// Actions of a run before the end of its Slurm job.
OnEnd {
    /// Save and end.
    Leave = "leave",
    /// Save, end, and put the job back into the queue (scontrol requeue).
    Requeue = "requeue",
    /// Save, end, and submit the job's script again (sbatch), for clusters that forbid requeueing.
    Resubmit = "resubmit",
    /// Ignore the job's end.
    Ignore = "ignore",
}

/// Formats of log lines.
LogFormat {
    /// Short on a terminal, Megatron's elsewhere.
    Auto = "auto",
    /// Short lines for people: loss, gradient norm, learning rate, speed, and the remaining time.
    Short = "short",
    /// Megatron-DeepSpeed's lines, which existing parsers read.
    Megatron = "megatron",
    /// NVIDIA Megatron-LM's lines: date, milliseconds, TFLOP/s per GPU; nothing else.
    MegatronLm = "megatron-lm",
}

/// Devices.
#[schemars(rename = "Device")]
DeviceChoice {
    /// A GPU for each rank if all nodes have enough GPUs, else the CPU.
    Auto = "auto",
    /// The CPU.
    Cpu = "cpu",
    /// An NVIDIA GPU.
    Cuda = "cuda",
}
}
