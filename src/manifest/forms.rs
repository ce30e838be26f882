//! Manifest as written: its sections. Reading, "did you mean", JSON Schema and effective YAML come
//! from the rows of all sections.

use super::batch::raw::Batch;
use super::choices::Precision;
use super::cluster::raw::{Comm, Restart, Slurm};
use super::data::raw::Data;
use super::define::sections;
use super::loss_scale::LossScaleForm;
use super::lr::raw::Lr;
use super::model::raw::Model;
use super::optimizers::OptimizerForm;
use super::run::DivergenceForm;
use super::run::raw::{Checkpoint, Log, Plan, Train};
use super::topology::raw::Topology;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

sections! {
/// Manifest of gptrain: the settings of one experiment.
#[schemars(title = "gptrain manifest")]
Raw {
    /// Name of the experiment. Default: the file's name without its extension.
    name: String;
    /// Architecture of the network.
    #[schemars(required)]
    model: Model;
    /// Element type of weights and activations. Default: f32.
    precision: Precision;
    /// Factor of the loss in fp16, which keeps small gradients from vanishing: a constant
    /// (--loss-scale), or settings. Default: dynamic, starting at 2^32.
    loss_scale: LossScaleForm;
    /// Datasets, their order, and masks.
    #[schemars(required)]
    data: Data;
    /// Samples per step.
    #[schemars(required)]
    batch: Batch;
    /// Optimizer. Default: adamw.
    optimizer: OptimizerForm;
    /// Learning rate over the run.
    #[schemars(required)]
    lr: Lr;
    /// Division of the work among ranks. Default: one rank.
    topology: Topology;
    /// Communication between ranks: address and time limits.
    comm: Comm;
    /// Restarts of all ranks within the same job after one of them died or hung.
    restart: Restart;
    /// Checkpoints of the run.
    checkpoint: Checkpoint;
    /// Reaction to loss spikes: off, warn, act, or act with settings. Default: warn.
    divergence: DivergenceForm;
    /// Behaviour before the end of a Slurm job.
    slurm: Slurm;
    /// Logs, metrics and the run's folder.
    log: Log;
    /// Assumptions of `gptrain estimate`, which its flags override.
    plan: Plan;
    /// Length (samples, tokens or steps), evaluation, device and seed.
    #[schemars(required)]
    train: Train;
}
}
