//! Experiment as declared by the user. YAML is parsed (`tree`), read by the table of settings (`forms`
//! and the files of its sections), and checked (`check`). The result is a valid `Manifest`, or all
//! mistakes at once, each with its line, the numbers and a remedy.
//!
//! Does not know devices, nor any file but its own and those that name or weigh its datasets. No other crate validates settings or fills in
//! defaults.

mod batch;
mod check;
pub mod choices;
mod cluster;
mod data;
mod data_files;
mod define;
pub mod dialects;
mod edit;
mod family;
mod forms;
mod inference;
mod keys;
mod layers;
mod loss_scale;
mod lr;
mod model;
mod notes;
mod optimizers;
mod overrides;
mod paths;
pub mod place;
mod read;
mod record;
mod removed;
mod report;
mod rewrite;
mod rope;
mod run;
mod shard;
mod suggest;
mod topology;
mod tree;

pub use self::data::{Data, DataStage, Dataset, Eod, Objective, PrefixLm, Sequences, ValidSet};
pub use self::model::{Dropout, Init, Model, Mup, Sizes};
pub use base::Gelu;
pub use batch::{Batch, LengthRampUp, MicroStage, RampUp};
pub use check::{FREE_MODEL_SETTINGS, Split, model_section, model_settings, settings_json};
pub use choices::{
    Bias, DataRule, DeviceChoice, Ffn, Framework, GpuTransport, GradientHome, LayerAttention,
    LogFormat, LrCounted, MuonScale, NormKind, OffloadWhat, OnEnd, Precision, RankOrder, Recompute,
    Schedule, SpikeAction, StateReplicas,
};
pub use cluster::{Comm, Restart, Slurm};
pub use data_files::list_weight_groups;
pub use family::{Architecture, Family};
pub use inference::for_inference;
pub use keys::{editor_schema, schema, settings, suggest_setting};
pub use layers::LayerKind;
pub use loss_scale::LossScale;
pub use lr::{Decay, Lr, Span, Wsd};
pub use optimizers::{Adafactor, Adam8bit, AdamW, Muon, MuonAdamW, Optimizer, OptimizerName};
pub use read::{IN_FOLDER, Loaded, Validity, load, load_for, load_with, parse, parse_saved};
pub use rewrite::rewrite;
pub use rope::{Linear, Llama3, Position, Rope, RopeScaling, Yarn};
pub use run::{Checkpoint, Divergence, EvalTask, Log, Plan, Train, is_hardware_file};
pub use shard::{replicas_on_node, resolve_shard};
pub use suggest::Suggestion;
pub use topology::{LayerSplit, Offload, PowerSgd, Ranks, Shard, Topology};

use plan::segments::BatchSchedule;
use plan::step_samples::StepSamples;

/// One experiment, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub name: String,
    pub model: Model,
    pub precision: Precision,
    /// Only `Some` with precision fp16.
    pub loss_scale: Option<LossScale>,
    pub data: Data,
    pub batch: Batch,
    pub optimizer: Optimizer,
    pub lr: Lr,
    pub topology: Topology,
    pub comm: Comm,
    pub restart: Restart,
    pub checkpoint: Checkpoint,
    pub divergence: Divergence,
    pub slurm: Slurm,
    pub log: Log,
    pub plan: Plan,
    pub train: Train,
}

impl Manifest {
    /// Whether the home of gradients (host or device) is still to be decided.
    pub fn gradients_are_open(&self) -> bool {
        self.topology
            .gradients_are_open(matches!(self.optimizer, Optimizer::Adafactor(_)))
    }

    /// Global batch, micro-batch and length of samples over the run.
    pub fn schedule(&self) -> BatchSchedule {
        self.batch.schedule(self.model.seq_len)
    }

    /// Samples of the run's steps.
    pub fn step_samples(&self) -> StepSamples {
        let skip = self.data.skip.iter().map(|range| range.0.clone());
        StepSamples::new(self.schedule(), skip.collect())
    }

    /// The same manifest with gradients in `home`.
    pub fn with_gradients(&self, home: GradientHome) -> Manifest {
        let mut m = self.clone();
        m.topology.offload.gradients = home;
        m
    }
}

/// Manifest for tests of any crate.
#[cfg(any(test, feature = "testing"))]
pub fn for_test<S: ToString>(text: &str, sets: &[S]) -> Manifest {
    let sets: Vec<String> = sets.iter().map(S::to_string).collect();
    let loaded = parse(text, "test", std::path::Path::new("."), &sets);
    loaded
        .unwrap_or_else(|problems| panic!("{problems}"))
        .manifest
}
