//! Closed choices: the words that may be written, and what the program matches on.

use base::choices;

choices! {
/// Element types.
Precision {
    /// 32-bit floats.
    F32 = "f32",
    /// 32-bit floats, of which matrix products on a GPU read 10 bits of fraction.
    Tf32 = "tf32",
    /// bfloat16 weights and activations, 32-bit master weights and gradient accumulation.
    Bf16 = "bf16",
    /// The same in half precision, with a loss scale.
    Fp16 = "fp16",
    /// As bf16, with the matrix products of the blocks in 8-bit floats: E4M3, and E5M2 for the gradients
    /// of outputs, scaled by the largest number of each row.
    Fp8 = "fp8",
}

/// Families of models: each has its defaults, and its names in Hugging Face's folders.
Family {
    /// GPT-2: learned positions.
    Gpt2 = "gpt2",
    /// BLOOM: ALiBi, and a layernorm after the embedding.
    Bloom = "bloom",
    /// Llama 2 and 3: RMS norms, SwiGLU, rotary positions, no biases.
    Llama = "llama",
    /// Mistral: as Llama, often with a window.
    Mistral = "mistral",
    /// Qwen2 and Qwen2.5: as Llama, with biases of queries, keys and values.
    Qwen2 = "qwen2",
    /// Qwen3: as Llama, with norms of queries and keys.
    Qwen3 = "qwen3",
}

/// Positions.
PositionName {
    /// A table of learned vectors (GPT-2), as many as `positions` says.
    Learned = "learned",
    /// Attention with linear biases, no table (BLOOM).
    Alibi = "alibi",
    /// Rotated queries and keys (Llama).
    Rope = "rope",
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

/// Which products of a block add a bias.
Bias {
    /// None.
    None = "none",
    /// That of queries, keys and values.
    Qkv = "qkv",
    /// Those of attention: of queries, keys and values, and of its output.
    Attention = "attention",
    /// All of them.
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

/// What is learned.
ObjectiveName {
    /// The next token from all before it.
    Causal = "causal",
    /// A random prefix of each sample sees itself whole; the loss is on the rest.
    PrefixLm = "prefix_lm",
}

/// Shapes after the warm-up.
DecayName {
    /// Stays at the peak.
    Constant = "constant",
    /// A straight line to the minimum, over the run.
    Linear = "linear",
    /// Half a cosine wave to the minimum, over the run.
    Cosine = "cosine",
    /// Flat, and a straight line to the minimum in the last tenth of the run.
    Wsd = "wsd",
}

/// Samples that the learning rate of a step is of.
LrCounted {
    /// Those that will have been seen after it.
    After = "after",
    /// Those that were seen before it: Megatron updates first and steps its schedule then.
    Before = "before",
}

/// Update rules.
OptimizerName {
    /// Adam with decoupled weight decay.
    Adamw = "adamw",
    /// The same with the moments of the blocks' matrices in 8 bits.
    Adam8bit = "adam8bit",
    /// Adafactor: second moments of matrices by row and by column.
    Adafactor = "adafactor",
    /// Muon: orthogonalised momentum for the blocks' matrices, AdamW for the rest.
    Muon = "muon",
}

/// What Muon multiplies the step of a matrix [rows, cols] by, whose singular values are near 1.
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
}

/// Cuts into stages.
LayerSplitName {
    /// The same number of layers everywhere.
    Uniform = "uniform",
    /// Embedding and head count as a layer each (Megatron-DeepSpeed's
    /// --pp-partition-method type:transformer|embedding).
    TransformerAndEmbedding = "transformer_and_embedding",
    /// As equal in cost as whole layers allow.
    Balanced = "balanced",
}

/// Which parallel groups are laid side by side, next after the tensor-parallel ranks.
#[schemars(rename = "Neighbours")]
RankOrder {
    /// Replicas (Megatron's order: tensor, data, pipeline).
    Data = "data",
    /// Pipeline stages.
    Pipeline = "pipeline",
}

/// What is sent of gradients.
CompressionName {
    /// All of them.
    None = "none",
    /// Low-rank factors of the blocks' matrices.
    PowerSgd = "powersgd",
}

/// How much is computed twice.
Recompute {
    /// Nothing.
    None = "none",
    /// What is cheap to rebuild: norms and the activation function.
    Selective = "selective",
    /// Everything but each block's input (--checkpoint-activations).
    Full = "full",
}

/// What lies on the host.
OffloadWhat {
    /// Nothing.
    None = "none",
    /// Master weights and optimizer states, which the host's processor updates.
    Optimizer = "optimizer",
    /// Weights too, of which the device has those in use.
    Full = "full",
}

/// Memories in which gradients can wait for the update.
GradientHome {
    /// The device's where they fit, else the host's.
    Auto = "auto",
    /// The device's.
    Device = "device",
    /// The host's, but for those of embedding and head.
    Host = "host",
}

/// Programs whose needs are known.
Framework {
    /// This one.
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

/// What carries tensors between ranks that compute on GPUs.
GpuTransport {
    /// NVIDIA's library, from GPU to GPU: each rank has one of its own.
    Nccl = "nccl",
    /// The memory of the hosts and TCP: slow, but several ranks may share a GPU.
    Host = "host",
}

/// What is done about loss spikes.
SpikeAction {
    /// Nothing: nobody looks.
    Off = "off",
    /// They are named.
    Warn = "warn",
    /// Their updates are skipped; if that does not help, the run goes back.
    Act = "act",
}

/// What a run does before the end of its Slurm job.
OnEnd {
    /// It saves and ends.
    Leave = "leave",
    /// The same, and puts its job back into the queue (scontrol requeue).
    Requeue = "requeue",
    /// The same, and submits the job's script again (sbatch), where requeueing is not allowed.
    Resubmit = "resubmit",
    /// It does not look at the job's end.
    Ignore = "ignore",
}

/// What log lines look like.
LogFormat {
    /// Short on a terminal, Megatron's elsewhere.
    Auto = "auto",
    /// For the eye: a step's loss, gradient norm, learning rate, speed, and the time left.
    Short = "short",
    /// Megatron-DeepSpeed's, which people's parsers know.
    Megatron = "megatron",
}

/// Where it is computed.
#[schemars(rename = "Device")]
DeviceChoice {
    /// A GPU for each rank if all nodes have so many, else the processor.
    Auto = "auto",
    /// The processor.
    Cpu = "cpu",
    /// An NVIDIA GPU.
    Cuda = "cuda",
}
}
