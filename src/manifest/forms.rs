//! Values with a short and a long form, and sections that become one value once checked (`check`
//! converts them into each other).

use super::choices::*;
use super::cluster::raw::{Comm, Restart, Slurm};
use super::define::{forms, sections};
use super::optimizers::OptimizerForm;
use super::settings::raw::{self, Dropout, RampUp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

sections! {
/// Manifest of gptrain: the settings of one experiment.
#[schemars(title = "gptrain manifest")]
Raw {
    /// Name of the experiment. Default: the file's name without its extension.
    name: String;
    /// Architecture of the network.
    #[schemars(required)]
    model: raw::Model;
    /// Element type of weights and activations. Default: f32.
    precision: Precision;
    /// Factor of the loss in fp16, which keeps small gradients from vanishing: a constant
    /// (--loss-scale), or settings. Default: dynamic, starting at 2^32.
    loss_scale: LossScaleForm;
    /// Datasets, their order, and masks.
    #[schemars(required)]
    data: raw::Data;
    /// Samples per step.
    #[schemars(required)]
    batch: raw::Batch;
    /// Optimizer. Default: adamw.
    optimizer: OptimizerForm;
    /// Learning rate over the run.
    #[schemars(required)]
    lr: raw::Lr;
    /// Division of the work among ranks. Default: one rank.
    topology: raw::Topology;
    /// Communication between ranks: address and time limits.
    comm: Comm;
    /// Restarts of all ranks within the same job after one of them died or hung.
    restart: Restart;
    /// Checkpoints of the run.
    checkpoint: raw::Checkpoint;
    /// Reaction to loss spikes: off, warn, act, or act with settings. Default: warn.
    divergence: DivergenceForm;
    /// Behaviour before the end of a Slurm job.
    slurm: Slurm;
    /// Logs, metrics and the run's folder.
    log: raw::Log;
    /// Assumptions of `gptrain estimate`, which its flags override.
    plan: raw::Plan;
    /// Length (samples, tokens or steps), evaluation, device and seed.
    #[schemars(required)]
    train: raw::Train;
}

/// Loss scale of fp16. A dynamic scale doubles after a number of updates in a row and halves after
/// overflows, whose steps are skipped.
LossScale {
    /// Constant scale, instead of initial and min (--loss-scale).
    constant: f64, in 1e-9..=1e18;
    /// First scale (--initial-loss-scale). Default: 4_294_967_296.
    initial: f64, in 1e-9..=1e18;
    /// Minimum scale; a run that overflows at it ends (--min-loss-scale). Default: 1.
    min: f64, in 1e-9..=1e18;
    /// Updates in a row after which the scale doubles (--loss-scale-window). Default: 1000.
    window: u64, in 1..=1_000_000_000_000u64;
    /// Number of overflows before the scale halves; after that it halves at each overflow, until it
    /// doubles again (--hysteresis). Default: 2.
    hysteresis: u64, in 1..=1_000_000;
}

/// Training data from a point of the run, which replace the previous data.
DataStage {
    /// First sample of the stage, counted from the start of the run.
    from_samples: u64, in 1..=1_000_000_000_000_000u64;
    /// First token of the stage, instead of from_samples.
    from_tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// Prefix, or list of datasets with weights, as in data.train.
    #[schemars(required)]
    train: Blend;
}

/// Dataset of a blend.
Dataset {
    /// PREFIX of PREFIX.bin and PREFIX.idx.
    #[schemars(required)]
    prefix: PathBuf;
    /// Share of the samples, relative to the other weights. Default: 1.
    weight: f64, in 0.0..=1e12;
    /// Shares of train, valid and test, instead of data.split.
    split: String;
    /// Part of the split that is read. Default: train in data.train, valid in data.valid.
    part: PartName;
    /// Range of the sequences, instead of a split: `0.95..1.0` reads the last twentieth.
    range: String;
}

}

forms! {
    /// Dropout: one rate for all three places, or one each.
    DropoutForm {
        /// One rate for all.
        Same(Rate),
        /// One each.
        Each(Dropout),
    }
    /// Loss scale: a constant, or settings.
    LossScaleForm {
        /// Constant scale.
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
    /// Ramp-up, by keys or in Megatron's notation.
    RampUpForm {
        /// Megatron's `START INCREMENT SAMPLES`, such as `16 16 9_765_625`.
        Text(String),
        /// By keys.
        Keys(RampUp),
    }
    /// Reaction to loss spikes, by name or with settings.
    DivergenceForm {
        /// By name, with its defaults.
        Name(SpikeAction),
        /// With settings.
        Settings(raw::Divergence),
    }
    /// State in the host's memory, by name or with settings.
    OffloadForm {
        /// By name, with its defaults.
        Name(OffloadWhat),
        /// With settings.
        Settings(raw::Offload),
    }
    /// Layers of stages: a rule, or the number for each stage.
    LayerSplitForm {
        /// By a rule.
        Rule(LayerSplitName),
        /// Layers of each stage, first to last.
        Layers(Vec<LayerCount>),
    }
}

/// Dropout rate.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Rate(#[schemars(range(min = 0.0, max = 0.999))] pub f32);

/// Loss scale.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Factor(#[schemars(range(min = 1e-9, max = 1e18))] pub f64);

/// Number of layers of a stage.
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
