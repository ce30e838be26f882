//! What a manifest may say in more than one way: values with a short and a long form, and the
//! sections that stand for one value once checked (`check` turns them into each other).

use super::choices::*;
use super::cluster::raw::{Comm, Restart, Slurm};
use super::define::{forms, sections};
use super::optimizers::raw::{Adafactor, Adam8bit, AdamW, Muon};
use super::settings::raw::{self, Dropout, Linear, Llama3, PowerSgd, PrefixLm, RampUp, Yarn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

sections! {
/// A gptrain manifest: one whole experiment.
#[schemars(title = "gptrain manifest")]
Raw {
    /// The experiment's name. Default: the file's name without its ending.
    name: String;
    /// The network's shape.
    #[schemars(required)]
    model: raw::Model;
    /// Element type of weights and activations. Default: f32.
    precision: Precision;
    /// What fp16's loss is multiplied by so that small gradients do not vanish: a number that stays
    /// (--loss-scale), or settings. Default: dynamic, from 2^32 on.
    loss_scale: LossScaleForm;
    /// What is read, in which order, and how it is masked.
    #[schemars(required)]
    data: raw::Data;
    /// How many samples make a step.
    #[schemars(required)]
    batch: raw::Batch;
    /// The update rule. Default: adamw.
    optimizer: OptimizerForm;
    /// The learning rate over the run.
    #[schemars(required)]
    lr: raw::Lr;
    /// How the work is divided over ranks. Default: one rank.
    topology: raw::Topology;
    /// How ranks find each other, and how long they wait for each other.
    comm: Comm;
    /// Whether the ranks begin anew in the same job after one of them died or hung.
    restart: Restart;
    /// When the run's state is saved.
    checkpoint: raw::Checkpoint;
    /// What is done about loss spikes: off, warn, act, or act with settings. Default: warn.
    divergence: DivergenceForm;
    /// What happens as the end of a Slurm job comes near.
    slurm: Slurm;
    /// What is reported, and where.
    log: raw::Log;
    /// What `gptrain estimate` plans for, where its flags say nothing else.
    plan: raw::Plan;
    /// How long (samples, tokens or steps), on what, and from which seed.
    #[schemars(required)]
    train: raw::Train;
}

/// A scale that doubles after updates in a row and halves after overflows, whose steps are skipped;
/// or one that stays.
LossScale {
    /// One that stays, instead of initial and min (--loss-scale).
    constant: f64, in 1e-9..=1e18;
    /// The first (--initial-loss-scale). Default: 4_294_967_296.
    initial: f64, in 1e-9..=1e18;
    /// The lowest; a run that overflows even there ends (--min-loss-scale). Default: 1.
    min: f64, in 1e-9..=1e18;
    /// Updates in a row after which it doubles (--loss-scale-window). Default: 1000.
    window: u64, in 1..=1_000_000_000_000u64;
    /// Overflows before it halves, and then at each, until it doubles again (--hysteresis).
    /// Default: 2.
    hysteresis: u64, in 1..=1_000_000;
}

/// What is trained on from a point of the run on, in place of what was before.
DataStage {
    /// Its first sample, counted from the start of the run.
    from_samples: u64, in 1..=1_000_000_000_000_000u64;
    /// The same in tokens, instead of from_samples.
    from_tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// A prefix, or a list of datasets with weights, as data.train.
    #[schemars(required)]
    train: Blend;
}

/// One dataset of a blend.
Dataset {
    /// PREFIX of PREFIX.bin and PREFIX.idx.
    #[schemars(required)]
    prefix: PathBuf;
    /// Its share of the samples, relative to the other weights. Default: 1.
    weight: f64, in 0.0..=1e12;
    /// Its own shares of train, valid and test, instead of data.split.
    split: String;
    /// Which share of the split is read. Default: train below data.train, valid below data.valid.
    part: PartName;
    /// A range of its sequences instead of a split: `0.95..1.0` reads the last twentieth.
    range: String;
}

#[derive(Copy)]
/// How tokens know their place, with settings.
PositionSettings {
    /// Rotated queries and keys.
    #[schemars(required)]
    rope: raw::Rope;
}

#[derive(Copy)]
/// How the wavelengths of a rotation are stretched, for longer samples: one of these.
Scaling {
    /// All by the same factor (Chen et al. 2023).
    linear: Linear;
    /// The long ones by the factor, the short ones not (Llama 3.1).
    llama3: Llama3;
    /// The same by turns in the original length, and sharper attention (Peng et al. 2023).
    yarn: Yarn;
    /// Dynamic NTK: refused, since it depends on the length of what is read.
    dynamic: Dynamic;
}

#[derive(Copy)]
/// Dynamic NTK, which is refused.
Dynamic {
    /// Its factor.
    factor: f64, in 1.0..=1e6;
}

/// What is learned, with its settings.
Objective {
    /// Prefix language modelling.
    #[schemars(required)]
    prefix_lm: PrefixLm;
}

/// The update rule: one of these. Default: adamw.
Optimizer {
    /// Adam with decoupled weight decay.
    adamw: AdamW;
    /// The same with 8-bit moments.
    adam8bit: Adam8bit;
    /// Adafactor: second moments of matrices by row and by column.
    adafactor: Adafactor;
    /// Muon: orthogonalised momentum for the blocks' matrices, AdamW for the rest.
    muon: Muon;
    /// Another name of lr.peak.
    lr: f64, in 0.0..=1000.0;
}

/// How gradients are compressed on their way between replicas, with its settings.
Compression {
    /// Low-rank factors with error feedback.
    #[schemars(required)]
    powersgd: PowerSgd;
}

/// The shape after the warm-up, with its lengths: one of these.
Decay {
    /// A straight line to the minimum.
    linear: Span;
    /// Half a cosine wave to the minimum.
    cosine: Span;
    /// Warm-up, stable, decay: flat, then a straight line to the minimum at the end.
    wsd: Wsd;
}

/// How far a decay reaches, counted from the start of the run (--lr-decay-samples). Default: the
/// run's length.
Span {
    /// In samples.
    samples: u64, in 1..=1_000_000_000_000_000u64;
    /// In tokens.
    tokens: u64, in 1..=1_000_000_000_000_000u64;
}

/// Lengths of warm-up, stable, decay.
Wsd {
    /// Length of the decay at the end, in samples (--lr-wsd-decay-samples). Default: a tenth.
    decay_samples: u64, in 1..=1_000_000_000_000_000u64;
    /// Length of the decay at the end, in tokens.
    decay_tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// Where the decay ends, in samples from the start of the run. Default: the run's length.
    samples: u64, in 1..=1_000_000_000_000_000u64;
    /// Where the decay ends, in tokens.
    tokens: u64, in 1..=1_000_000_000_000_000u64;
}

}

forms! {
    /// One rate for all three places, or one each.
    DropoutForm {
        /// One rate for all.
        Same(Rate),
        /// One each.
        Each(Dropout),
    }
    /// How tokens know their place, by name or with settings.
    PositionForm {
        /// By name.
        Name(PositionName),
        /// With settings.
        Settings(PositionSettings),
    }
    /// A number that stays, or settings.
    LossScaleForm {
        /// One that stays.
        Constant(Factor),
        /// Settings.
        Settings(LossScale),
    }
    /// One dataset or several.
    Blend {
        /// PREFIX of PREFIX.bin and PREFIX.idx.
        Prefix(PathBuf),
        /// One dataset.
        One(Dataset),
        /// Several, each with a weight.
        Several(Vec<DatasetForm>),
    }
    /// A dataset, or only its prefix.
    DatasetForm {
        /// PREFIX of PREFIX.bin and PREFIX.idx.
        Prefix(PathBuf),
        /// With a weight, a split or a range.
        Full(Dataset),
    }
    /// What is learned, by name or with settings.
    ObjectiveForm {
        /// By name.
        Name(ObjectiveName),
        /// With settings.
        Settings(Objective),
    }
    /// The ramp-up, by keys or as Megatron writes it.
    RampUpForm {
        /// Megatron's `START INCREMENT SAMPLES`, such as `16 16 9_765_625`.
        Text(String),
        /// By keys.
        Keys(RampUp),
    }
    /// What is sent of gradients, by name or with settings.
    CompressionForm {
        /// By name, with its defaults.
        Name(CompressionName),
        /// With settings.
        Settings(Compression),
    }
    /// The update rule, by name or with settings.
    OptimizerForm {
        /// By name, with its defaults.
        Name(OptimizerName),
        /// With settings.
        Settings(Optimizer),
    }
    /// The shape after the warm-up, by name or with lengths.
    DecayForm {
        /// By name, over the run.
        Name(DecayName),
        /// With lengths.
        Lengths(Decay),
    }
    /// What is done about loss spikes, by name or with settings.
    DivergenceForm {
        /// By name, with its defaults.
        Name(SpikeAction),
        /// With settings.
        Settings(raw::Divergence),
    }
    /// What lies on the host, by name or with settings.
    OffloadForm {
        /// By name, with its defaults.
        Name(OffloadWhat),
        /// With settings.
        Settings(raw::Offload),
    }
    /// A rule, or the layers of each stage.
    LayerSplitForm {
        /// By a rule.
        Rule(LayerSplitName),
        /// Layers of each stage, first to last.
        Layers(Vec<LayerCount>),
    }
}

/// A drop rate.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Rate(#[schemars(range(min = 0.0, max = 0.999))] pub f32);

/// A loss scale.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Factor(#[schemars(range(min = 1e-9, max = 1e18))] pub f64);

/// Layers of one stage.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct LayerCount(#[schemars(range(min = 1, max = 10_000))] pub usize);

/// Validation sets by name, in the order written.
#[derive(Clone, Debug, Default)]
pub struct Named(pub Vec<(String, Blend)>);

impl Serialize for Named {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, blend)| (name, blend)))
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Named, D::Error> {
        let sorted = BTreeMap::<String, Blend>::deserialize(deserializer)?;
        Ok(Named(sorted.into_iter().collect()))
    }
}
