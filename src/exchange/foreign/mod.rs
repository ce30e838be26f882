//! Checkpoints of other trainers, with their optimizer's states: detected, described, and read
//! parameter by parameter in gptrain's order.
//!
//! | file | contents |
//! |---|---|
//! | `format` | table of the formats, and a step's format by the names in its folder |
//! | `detect` | format of a folder that a user named, and its newest step |
//! | `resemblance` | formats that a folder which is none of them resembles, for its message |
//! | `settings` | rows of the new run's manifest, each with its source |
//! | `compare` | comparison of a folder's tensors with the model's parameters |
//! | `arguments` | Megatron's arguments as settings |
//! | `topology` | the stages' layers as `topology.layer_split` |
//! | `run` | reads a run: the table of its tensors, the check against the model, parameters and states |
//! | `replica_merger` | merges the copies that tensor ranks hold of one parameter |
//! | `deepspeed` | reader of Megatron-DeepSpeed's folders: ZeRO-1, ZeRO-3, universal |
//! | `megatron` | reader of Megatron-LM's folders (mp_rank_TT_PPP), and Megatron's names |
//! | `dcp` | distributed checkpoints of PyTorch: the container, torchtitan, OLMo-core, names of the user |
//! | `dist` | distributed checkpoints of Megatron-Core (torch_dist) |
//! | `export` | writes Megatron-LM's folder and DeepSpeed's universal one from a checkpoint |
//!
//! A new format is a file with two things: `open`, which makes the table of its tensors, and a `PartReader`.
//! A trainer that writes PyTorch's distributed checkpoints is a table of names in `dcp`. Checkpoints of
//! Hugging Face's Trainer, whose tensors are those of `hf`, are read by `source::trainer`.
//!
//! A parameter is assembled whole in host memory, one state at a time: memory is bounded by the
//! largest parameter, not by the model.
//!
//! Does not know how a checkpoint of gptrain is written, nor how a run begins.

mod arguments;
mod compare;
mod dcp;
mod deepspeed;
mod detect;
mod dist;
mod export;
mod format;
mod megatron;
mod replica_merger;
mod resemblance;
mod run;
mod settings;
mod topology;

pub(crate) use arguments::Arguments;
pub use detect::{Format, detect};
pub(crate) use detect::{list_names, step_folder};
pub use export::{MegatronExport, UniversalExport, Written};
pub use replica_merger::Drift;
pub use resemblance::resemblance;
pub use run::ForeignRun;
pub use settings::{Row, Settings, Wanted, asked};
pub(crate) use settings::{number, quoted, wanted};
pub use topology::keep_asked_stages;
pub(crate) use topology::{set_grid, set_replicas, set_said_split};

use super::torch::Value;
use base::Problems;
use engine::{MASTER, SECOND};
use manifest::dialects::Dialect;
use std::path::{Path, PathBuf};

/// The remedy for a folder that was not copied whole.
const COPY_AGAIN: &str = "copy the folder of the step whole";

/// Error for a folder that lacks a file, or part of one.
fn incomplete(dir: &Path, what: impl Into<String>) -> anyhow::Error {
    Problems::one(dir.display().to_string(), what, COPY_AGAIN).into()
}

/// Error if a rank's file is not of the step that the first file has; `first` is its name in the
/// message.
fn same_step(root: &Value, step: u64, first: &str) -> anyhow::Result<()> {
    let iteration = root.need("iteration")?;
    if iteration.count()? == step {
        return Ok(());
    }
    Err(iteration.problem(format!("iteration is {iteration}, in {first} it is {step}")))
}

/// Error if a rank's count of updates is not the first file's.
fn same_updates(value: &Value, updates: u64, first: u64) -> anyhow::Result<()> {
    if updates == first {
        return Ok(());
    }
    Err(value.problem(format!("Adam's step is {updates}, in the first file it is {first}")))
}

/// Files of one stage or tensor rank, which remain open until those of another are read.
struct Opened<T>(Option<(usize, T)>);

impl<T> Opened<T> {
    fn get(
        &mut self,
        number: usize,
        open: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<&T> {
        if self.0.as_ref().is_none_or(|(opened, _)| *opened != number) {
            self.0 = None;
            self.0 = Some((number, open()?));
        }
        Ok(&self.0.as_ref().expect("opened above").1)
    }
}

/// One of AdamW's states of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdamState {
    Master,
    FirstMoment,
    SecondMoment,
}

impl AdamState {
    pub const ALL: [AdamState; 3] =
        [AdamState::Master, AdamState::FirstMoment, AdamState::SecondMoment];

    pub fn name(self) -> &'static str {
        match self {
            AdamState::Master => "weight",
            AdamState::FirstMoment => "first moment",
            AdamState::SecondMoment => "second moment",
        }
    }

    /// Name in gptrain's checkpoints.
    pub fn saved_name(self) -> &'static str {
        match self {
            AdamState::Master => MASTER,
            AdamState::FirstMoment => "first_moment",
            AdamState::SecondMoment => SECOND,
        }
    }

    /// Name in PyTorch's AdamW and in the files of most trainers, whose name of the f32 weights is
    /// `master`.
    fn key(self, master: &str) -> &str {
        match self {
            AdamState::Master => master,
            AdamState::FirstMoment => "exp_avg",
            AdamState::SecondMoment => "exp_avg_sq",
        }
    }
}

/// Value taken where the copies that ranks had of one parameter differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicated {
    #[default]
    Mean,
    First,
    /// That of one tensor rank.
    Rank(usize),
}

/// Parameters besides the blocks' matrices to which AdamW applied weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decayed {
    pub embedding: bool,
    /// Norms and biases.
    pub vectors: bool,
}

/// Choices of an import.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    pub replicated: Replicated,
    /// Whether rows that pad the vocabulary are left out though they were trained.
    pub mask_padding: bool,
    /// `KEY=VALUE` of settings in place of those that are found.
    pub sets: Vec<String>,
    /// Format of the folder; None to detect it.
    pub format: Option<Format>,
    /// Folder of the new run, if one is made.
    pub run: Option<PathBuf>,
    pub needed: Needed,
    /// Table of the names of a distributed checkpoint's tensors, of a program that is not known.
    pub names: Option<PathBuf>,
    /// Whether options that an import refuses are recorded in the description, for a dry import.
    pub dry: bool,
}

/// Settings that have to be known. Others that the files do not have get an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Needed {
    /// All: the run will train.
    #[default]
    All,
    /// Those of the model and of the batch: for an estimate.
    Plan,
    /// Those of the model: for its tensors.
    Tensors,
}

impl Needed {
    pub fn has(self, key: &str) -> bool {
        match self {
            Needed::All => true,
            Needed::Plan => key.starts_with("model.") || key.starts_with("batch."),
            Needed::Tensors => key.starts_with("model."),
        }
    }
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
pub struct RunDescription {
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
    pub decayed: Decayed,
    pub loss_scale: Option<LossScale>,
    pub settings: Settings,
    /// Reason why the optimizer restarts; None if its states are read.
    pub without_states: Option<String>,
    /// Settings that the folder does not have and that were not given.
    pub wanted: Vec<Wanted>,
    /// Arguments without a setting.
    pub ignored: Vec<String>,
    /// Options that an import refuses; empty unless `Choices::dry`.
    pub refusals: Problems,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl RunDescription {
    /// Folder of which no value is read.
    pub fn new(format: Format, trainer: impl Into<String>, folder: &Path) -> RunDescription {
        RunDescription {
            format,
            trainer: trainer.into(),
            folder: folder.display().to_string(),
            step: 0,
            samples: 0,
            tokens: 0,
            grid: [1; 3],
            updates: 0,
            lr: 0.0,
            decayed: Decayed { embedding: true, vectors: false },
            loss_scale: None,
            settings: Settings::default(),
            without_states: None,
            wanted: Vec::new(),
            ignored: Vec::new(),
            refusals: Problems::default(),
            notes: Vec::new(),
        }
    }

    /// Adds the progress and the settings of Megatron's arguments, in the file of `root`.
    fn with_args(self, root: &Value, args: &Arguments) -> anyhow::Result<RunDescription> {
        let scheduler = root
            .some("opt_param_scheduler")
            .or_else(|| root.some("lr_scheduler"));
        let (mut settings, mut notes) = args.settings(scheduler)?;
        args.length_ramp_up(root.some("ds_config"), &mut settings, &mut notes)?;
        let step = root.need("iteration")?.count()?;
        let samples = args.count("consumed_train_samples")?;
        let tokens = samples * args.count("model.seq_len")?;
        Ok(RunDescription { step, samples, tokens, settings, notes, ..self })
    }

    /// Decides the model's vocabulary: `original` of the padded `rows`, if those that pad it are left
    /// out (`strip`).
    fn vocabulary(
        &mut self,
        [original, rows]: [usize; 2],
        args: &Arguments,
        strip: bool,
    ) -> anyhow::Result<()> {
        let settings = &mut self.settings;
        if strip {
            settings.set("model.vocab", original, "original_vocab_size");
            let multiple = args.optional_count("model.vocab_multiple")?.unwrap_or(128);
            let from = Dialect::Megatron.name("model.vocab_multiple");
            settings.set("model.vocab_multiple", multiple, from);
            self.notes
                .push(format!("rows {original} to {} of the embedding pad it: left out", rows - 1));
            return Ok(());
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
        Ok(())
    }

    /// States that are read.
    pub fn read_states(&self) -> &'static [AdamState] {
        if self.without_states.is_none() { &AdamState::ALL } else { &[AdamState::Master] }
    }

    /// Notes that AdamW restarts, and why.
    pub(crate) fn restart_optimizer(&mut self, why: String) {
        self.notes
            .push(format!("AdamW begins again: its states are not read ({why})"));
        self.without_states = Some(why);
    }

    /// Notes the difference between Adam's count and the steps.
    pub(crate) fn note_updates(&mut self) {
        let step = self.step;
        let updates = self.updates;
        if updates > step {
            self.notes.push(format!(
                "Adam has counted {updates} updates in {step} steps (DeepSpeed's BF16_Optimizer began \
                 with one of zero gradients): its bias corrections go by that count here too"
            ));
        } else if updates < step {
            let skipped = step - updates;
            self.notes
                .push(format!("{skipped} of {step} steps were skipped: no update"));
        }
    }
}

/// Opens a folder of another trainer; `format` is what `detect` found, or the user asked for.
pub fn open(from: &Path, format: Format, choices: &Choices) -> anyhow::Result<ForeignRun> {
    let opened = read(from, format, choices);
    let Err(error) = &opened else { return opened };
    let Ok(found) = detect(from) else { return opened };
    if found == format || !error.is::<Problems>() {
        return opened;
    }
    Err(Problems::one(
        from.display().to_string(),
        format!("does not have the files of {}, but those of {}", format.name(), found.name()),
        format!("leave --format out, or give --format {}", found.word()),
    )
    .into())
}

fn read(from: &Path, format: Format, choices: &Choices) -> anyhow::Result<ForeignRun> {
    match format {
        Format::MegatronDeepSpeed => deepspeed::zero1::open(from, choices),
        Format::DeepSpeedZero3 => deepspeed::zero3::open(from, choices),
        Format::DeepSpeedUniversal => deepspeed::universal::open(from, choices),
        Format::MegatronLegacy => megatron::open(from, choices),
        Format::MegatronDist => dist::open(from, choices),
        Format::PytorchDcp => dcp::open(from, choices),
        Format::Gptrain | Format::HfTrainer => Err(Problems::one(
            from.display().to_string(),
            "is read as another trainer's folder, and gptrain is not another",
            "leave --format out",
        )
        .into()),
        Format::HuggingFace => Err(Problems::one(
            from.display().to_string(),
            "is a Hugging Face folder, which has no optimizer's states",
            "leave --format out, or name hf",
        )
        .into()),
    }
}
