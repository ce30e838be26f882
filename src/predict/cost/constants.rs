//! Constants of the cost formulas: name, prior value, and its uncertainty.

/// One constant. All are positive; `spread` is the standard deviation of its logarithm.
#[derive(Clone, Copy, Debug)]
pub struct Prior {
    pub name: &'static str,
    pub value: f64,
    pub spread: f64,
    pub about: &'static str,
}

macro_rules! constants {
    ($($kind:ident = $first:ident {
        $($variant:ident: $name:literal, $value:literal, $spread:literal, $about:literal;)*
    })*) => {
        $(
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $($variant,)* }
        pub const $first: &[Prior] = &[
            $(Prior { name: $name, value: $value, spread: $spread, about: $about },)*
        ];
        )*
    };
}

constants! {
T = TIME {
    Gemm: "gemm", 0.80, 0.08, "share of an A100's peak that large products reach";
    Fast: "fast", 0.15, 0.1, "power of a faster device's peak by which it reaches less";
    Attention: "attention", 0.34, 0.15, "share of the peak of attention's batched products";
    OddHeads: "odd_heads", 0.034, 0.3, "the same where the head dimension is not a multiple of 8";
    Flash: "flash", 0.45, 0.15, "share of the peak of attention that keeps no scores";
    Aged: "aged", 0.35, 0.15, "`fast` for such attention, tuned for an A100";
    Hbm: "hbm", 0.70, 0.12, "share of the memory's bandwidth that element-wise work reaches";
    Elements: "elements", 1.0, 0.2, "element-wise traffic beside the formula's";
    Scores: "scores", 1.0, 0.2, "traffic per attention score beside the formula's";
    Bus: "bus", 0.60, 0.15, "share of a node's links that an all-reduce reaches";
    BusLatency: "bus_latency", 20.0, 0.5, "µs of a sum over tensor ranks, beside its bytes";
    Network: "network", 0.9, 0.2, "share of a node's adapters that pipelines and tensor ranks reach";
    SlowNetwork: "slow_network", 0.8, 0.2, "the same before the network was repaired (regime slownet)";
    Replicas: "replicas", 0.6, 0.3, "share of a node's adapters that sums over replicas reach";
    Crowd: "crowd", 0.3, 0.5, "power of the replicas' nodes by which those sums slow down";
    RingLatency: "ring_latency", 50.0, 0.7, "µs of a layer's sum over replicas, beside its bytes";
    Hidden: "hidden", 0.8, 0.2, "share of messages that runs beside work, where the program overlaps";
    Flatten: "flatten", 20.0, 0.7, "bytes per parameter and step, of copies and checks of gradients";
    Launch: "launch", 5.0, 0.3, "ms a layer and micro-batch, where launches block";
    Floor: "floor", 1.0, 0.5, "ms a layer and micro-batch that launches take at least";
    Micro: "micro", 3.0, 0.7, "ms a stage and micro-batch, of the program around it";
    Step: "step", 0.1, 1.0, "seconds per step, of the program around it";
    Accumulate: "accumulate", 1.0, 0.3, "gradient accumulation's traffic beside the formula's";
    Eager: "eager", 0.6, 0.15, "rate of element-wise work in op-by-op PyTorch beside fused kernels'";
    Unfused: "unfused", 1.5, 0.4, "time of Hugging Face's models op by op beside the formulas'";
    UnfusedRing: "unfused_ring", 0.5, 0.7, "share of the others' bandwidth that their sums over nodes reach";
    EagerStep: "eager_step", 4.0, 0.7, "Adafactor's time in op-by-op PyTorch, beside its traffic";
    Quantize: "quantize", 0.6, 0.3, "share of the 8-bit peak that casts leave, squared for 4 bits";
    Host: "host", 0.7, 0.3, "share of the link to the host that offload reaches";
}
M = MEMORY {
    Fixed: "fixed", 2.6, 0.3, "GB of communicators and the allocator's slack, beside the CUDA context";
    Replicated: "replicated", 1.0, 0.1, "weights and gradients beside the formula's";
    Sharded: "sharded", 1.05, 0.1, "optimizer states beside the formula's";
    Stash: "stash", 1.0, 0.2, "activations in flight beside the formula's";
    Working: "working", 1.0, 0.3, "one layer's working set beside the formula's";
    Logits: "logits", 1.0, 0.4, "the last stage's logits beside the formula's";
    Fp32Grad: "fp32_grad", 1.0, 0.2, "fp32 gradients beside the formula's";
}
}

/// Values of all constants of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    pub time: Vec<f64>,
    pub memory: Vec<f64>,
}

impl Constants {
    /// Prior values, before any run is measured.
    pub fn prior() -> Constants {
        let values = |table: &[Prior]| table.iter().map(|prior| prior.value).collect();
        Constants { time: values(TIME), memory: values(MEMORY) }
    }
}
