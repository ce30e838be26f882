//! The few constants of the cost formulas: name, what is known before any run is measured, and how
//! surely.

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
    Gemm: "gemm", 0.80, 0.08, "share of the peak that large products reach";
    Attention: "attention", 0.34, 0.15, "share of the peak of attention's batched products";
    OddHeads: "odd_heads", 0.034, 0.3, "the same where the head dimension is not a multiple of 8";
    Hbm: "hbm", 0.70, 0.12, "share of the memory's bandwidth that element-wise work reaches";
    Elements: "elements", 1.0, 0.2, "element-wise traffic beside the formula's";
    Scores: "scores", 1.0, 0.2, "traffic per attention score beside the formula's";
    Bus: "bus", 0.60, 0.15, "share of a node's links that an all-reduce reaches";
    Network: "network", 0.9, 0.2, "share of a node's adapters that a pipeline reaches";
    SlowNetwork: "slow_network", 0.8, 0.2, "the same before the network was repaired (regime slownet)";
    Replicas: "replicas", 0.4, 0.4, "share of a node's adapters that sums over replicas reach";
    Crowd: "crowd", 0.5, 0.5, "power of the replicas' nodes by which those sums slow down";
    Flatten: "flatten", 20.0, 0.7, "bytes a parameter and step, of copies and checks of gradients";
    Launch: "launch", 5.0, 0.3, "ms a layer and micro-batch, where launches block";
    Micro: "micro", 3.0, 0.7, "ms a stage and micro-batch, of the program around it";
    Step: "step", 0.3, 1.0, "seconds a step, of the program around it";
    Accumulate: "accumulate", 1.0, 0.3, "gradient accumulation's traffic beside the formula's";
    Eager: "eager", 0.35, 0.3, "compute rate of op-by-op PyTorch beside Megatron's";
    EagerBus: "eager_bus", 0.35, 0.3, "what op-by-op PyTorch reaches of a node's links, beside Megatron";
    Ring: "ring", 0.1, 0.5, "share of a node's adapters that one ring of replicas reaches";
    EagerStep: "eager_step", 4.0, 0.7, "optimizer's time in op-by-op PyTorch, beside its traffic";
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
    /// Before any run is measured.
    pub fn prior() -> Constants {
        let values = |table: &[Prior]| table.iter().map(|prior| prior.value).collect();
        Constants { time: values(TIME), memory: values(MEMORY) }
    }
}
