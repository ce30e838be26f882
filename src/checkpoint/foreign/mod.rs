//! Checkpoints of other trainers, with their optimizer's states: found out what they are, described,
//! and read parameter by parameter in gptrain's order.
//!
//! | file | what it is for |
//! |---|---|
//! | `detect` | which trainer wrote a folder, by the files in it |
//! | `settings` | rows of the new run's manifest, each with where it came from |
//! | `arguments` | Megatron's arguments as such rows |
//! | `deepspeed` | Megatron-DeepSpeed's folders with ZeRO-1: layers, partitions, copies |
//!
//! A parameter is assembled whole in host memory, one state at a time: memory is bounded by the
//! largest parameter, not by the model.
//!
//! Does not know how a checkpoint of gptrain is written, nor how a run begins.

mod arguments;
mod deepspeed;
mod detect;
mod settings;

pub use detect::{Format, detect};
pub use settings::{Row, Settings};

use manifest::Model;
use model::Param;
use std::path::Path;

/// One of AdamW's states of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Master,
    FirstMoment,
    SecondMoment,
}

impl Kept {
    pub const ALL: [Kept; 3] = [Kept::Master, Kept::FirstMoment, Kept::SecondMoment];

    pub fn name(self) -> &'static str {
        match self {
            Kept::Master => "weight",
            Kept::FirstMoment => "first moment",
            Kept::SecondMoment => "second moment",
        }
    }
}

/// Value taken where the copies that ranks had of one parameter differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicated {
    #[default]
    Mean,
    First,
}

/// Choices of an import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices {
    /// None: the format is found out.
    pub format: Option<Format>,
    pub replicated: Replicated,
    /// Whether rows that pad the vocabulary are left out though they were trained.
    pub mask_padding: bool,
}

/// The loss scale of an fp16 run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    pub scale: f64,
    /// Updates since it changed.
    pub updates_in_a_row: u64,
    pub overflows_left: i64,
}

/// Description of a folder, from its small values alone.
#[derive(Clone, Debug)]
pub struct Found {
    pub format: Format,
    /// "Megatron-DeepSpeed (DeepSpeed 0.7.0)".
    pub trainer: String,
    /// The folder of the step, which may be inside the one that was given.
    pub folder: String,
    pub step: u64,
    pub samples: u64,
    pub tokens: u64,
    /// Tensor, pipeline and data ranks that the files were cut for.
    pub grid: [usize; 3],
    /// Adam's count of updates: what its bias corrections use.
    pub updates: u64,
    /// The rate of the last update.
    pub lr: f64,
    pub loss_scale: Option<LossScale>,
    pub settings: Settings,
    /// Arguments without a setting.
    pub aside: Vec<String>,
    /// Sentences for the owner of the run.
    pub notes: Vec<String>,
}

/// A run of another trainer.
pub trait ForeignRun {
    fn found(&self) -> &Found;

    /// Whether every parameter of the model is there with its shape; an error lists what is not.
    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()>;

    /// One state of a whole parameter, of the shape that checkpoints have, row by row.
    fn read(&mut self, param: &Param, shape: &[usize], kept: Kept) -> anyhow::Result<Vec<f32>>;

    /// Sentences about what reading found, such as copies that differ.
    fn remarks(&mut self) -> Vec<String>;
}

/// Opens a folder of another trainer; `format` is what `detect` found, or the user asked for.
pub fn open(from: &Path, format: Format, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    match format {
        Format::MegatronDeepSpeed => deepspeed::open(from, choices),
        other => Err(other.refused(from).into()),
    }
}
