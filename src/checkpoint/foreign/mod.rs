//! Checkpoints of other trainers, with their optimizer's states: found out what they are, described,
//! and read parameter by parameter in gptrain's order.
//!
//! | file | what it is for |
//! |---|---|
//! | `detect` | which trainer wrote a folder, by the files in it |
//! | `settings` | rows of the new run's manifest, each with where it came from |
//! | `compare` | a folder's tensors against the model's parameters |
//! | `copies` | copies that differ between tensor ranks, as one |
//! | `cut` | rows and columns of a parameter that one of their tensors holds, in both directions |
//! | `arguments` | Megatron's arguments as such rows |
//! | `deepspeed` | Megatron-DeepSpeed's folders with ZeRO-1: layers, partitions, copies; ZeRO-3; universal |
//! | `megatron` | Megatron-LM's folders: mp_rank_TT_PPP, names, states of the plain optimizer |
//! | `export` | Megatron-LM's and DeepSpeed's universal folder, written from a checkpoint |
//! | `dcp` | distributed checkpoints of PyTorch, as torchtitan and OLMo-core write them |
//! | `dist` | those of Megatron-Core (torch_dist): the same container, Megatron's names and arguments |
//!
//! A parameter is assembled whole in host memory, one state at a time: memory is bounded by the
//! largest parameter, not by the model.
//!
//! Does not know how a checkpoint of gptrain is written, nor how a run begins.

mod arguments;
mod compare;
mod copies;
mod cut;
mod dcp;
mod deepspeed;
mod detect;
mod dist;
mod export;
mod megatron;
mod settings;

pub use detect::{Format, detect};
pub use export::{Written, export, export_universal};
pub use settings::{Row, Settings, Wanted};

use super::torch::Value;
use arguments::Arguments;
use base::Problems;
use manifest::Model;
use model::Param;
use std::path::Path;

/// Block number of a parameter; None outside of the blocks.
fn layer_of(param: &Param) -> Option<usize> {
    param.name.strip_prefix("block.")?.split_once('.')?.0.parse().ok()
}

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
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// None: the format is found out.
    pub format: Option<Format>,
    pub replicated: Replicated,
    /// Whether rows that pad the vocabulary are left out though they were trained.
    pub mask_padding: bool,
    /// `KEY=VALUE` of settings in place of those that are found.
    pub sets: Vec<String>,
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
    /// Samples and tokens that were trained; unknown, and 0, while a setting is wanted.
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
    /// Why the optimizer begins again; None if its states are read.
    pub without_states: Option<String>,
    /// Settings that the folder does not have and that were not given.
    pub wanted: Vec<Wanted>,
    /// Arguments without a setting.
    pub aside: Vec<String>,
    /// Sentences for the owner of the run.
    pub notes: Vec<String>,
}

impl Found {
    /// Folder of which no value is read.
    fn new(format: Format, trainer: impl Into<String>, folder: &Path) -> Found {
        Found {
            format,
            trainer: trainer.into(),
            folder: folder.display().to_string(),
            step: 0,
            samples: 0,
            tokens: 0,
            grid: [1; 3],
            updates: 0,
            lr: 0.0,
            loss_scale: None,
            settings: Settings::default(),
            without_states: None,
            wanted: Vec::new(),
            aside: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds the progress and the settings of Megatron's arguments, in the file of `root`.
    fn with_args(
        self,
        root: &Value,
        args: &Arguments,
        scheduler: Option<Value>,
    ) -> anyhow::Result<Found> {
        let (settings, notes) = args.settings(scheduler)?;
        let step = root.need("iteration")?.count()?;
        let samples = args.count("consumed_train_samples")?;
        let tokens = samples * args.count("seq_length")?;
        Ok(Found { step, samples, tokens, settings, notes, ..self })
    }

    /// Decides the model's vocabulary: `original` of the padded `rows`, if those that pad it are left
    /// out (`strip`).
    fn vocabulary(&mut self, [original, rows]: [usize; 2], multiple: Option<u64>, strip: bool) {
        let settings = &mut self.settings;
        if strip {
            settings.set("model.vocab", original, "original_vocab_size");
            let multiple = multiple.unwrap_or(128);
            settings.set("model.vocab_multiple", multiple, "make_vocab_size_divisible_by");
            let what = format!("rows {original} to {} of the embedding pad it: left out", rows - 1);
            self.notes.push(what);
            return;
        }
        settings.set("model.vocab", rows, "padded_vocab_size: its rows were trained");
        settings.set("model.vocab_multiple", 1, "the vocabulary is padded already");
        if original < rows {
            self.notes.push(format!(
                "rows {original} to {} of the embedding pad it, and Megatron's softmax counts them: they \
                 are part of the model here too (--mask-padding leaves them out)",
                rows - 1
            ));
        }
    }

    /// States that are read.
    fn kept(&self) -> &'static [Kept] {
        if self.without_states.is_none() { &Kept::ALL } else { &[Kept::Master] }
    }

    /// Notes why the optimizer's states are not read: AdamW begins again.
    fn without(&mut self, why: String) {
        self.notes.push(format!("AdamW begins again: its states are not read ({why})"));
        self.without_states = Some(why);
    }

    /// Notes the difference between Adam's count and the steps.
    fn counts(&mut self) {
        let (step, updates) = (self.step, self.updates);
        if updates > step {
            self.notes.push(format!(
                "Adam has counted {updates} updates in {step} steps (DeepSpeed's BF16_Optimizer began \
                 with one of zero gradients): its bias corrections go by that count here too"
            ));
        } else if updates < step {
            let skipped = step - updates;
            self.notes.push(format!("{skipped} of {step} steps were skipped: no update"));
        }
    }
}

/// Arguments of `ForeignRun::read`.
pub struct Request<'a> {
    pub model: &'a Model,
    pub param: &'a Param,
    /// Shape that the parameter has in checkpoints.
    pub shape: &'a [usize],
    pub kept: Kept,
}

/// A run of another trainer.
pub trait ForeignRun {
    fn found(&self) -> &Found;

    /// Whether every parameter of the model is there with its shape; an error lists what is not.
    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()>;

    /// One state of a whole parameter, row by row.
    fn read(&mut self, request: Request) -> anyhow::Result<Vec<f32>>;

    /// Sentences about what reading found, such as copies that differ.
    fn remarks(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Opens a folder of another trainer; `format` is what `detect` found, or the user asked for.
pub fn open(from: &Path, format: Format, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    match format {
        Format::MegatronDeepSpeed => deepspeed::open(from, choices),
        Format::DeepSpeedZero3 => deepspeed::zero3::open(from, choices),
        Format::DeepSpeedUniversal => deepspeed::universal::open(from, choices),
        Format::MegatronLegacy => megatron::open(from, choices),
        Format::MegatronDist => dist::open(from, choices),
        Format::PytorchDcp => dcp::open(from, choices),
        Format::HuggingFace => {
            let what = "is a Hugging Face folder, which has no optimizer's states";
            let remedy = "leave --format out, or name hf";
            Err(Problems::one(from.display().to_string(), what, remedy).into())
        }
    }
}
