//! One reader of every checkpoint: gptrain's own, Hugging Face folders, and the formats of `foreign`. It
//! has a description, the manifest of the run that it is or would become, and the parameters, one state
//! at a time.
//!
//! | file | contents |
//! |---|---|
//! | `own` | checkpoints of gptrain |
//! | `hugging_face` | Hugging Face folders, and the manifest of a run that begins from one |
//! | `dry` | what an import would refuse |
//! | `foreign` | checkpoints of other trainers, and the manifest of a run that continues one |
//! | `trainer` | checkpoints of Hugging Face's Trainer, with AdamW's states |
//! | `new_run` | manifest of a new run: name, folder, settings of the command line |

mod dry;
mod foreign;
mod hugging_face;
mod new_run;
mod own;
mod trainer;

pub use dry::{DryRun, dry_run};
pub use foreign::planned_run;
pub use hugging_face::open_for as open_hugging_face_for;
pub use new_run::new_manifest;
pub(crate) use trainer::training_arguments;

use super::foreign::{AdamState, Choices, ForeignRun, Format, RunDescription, detect};
use super::hf::HfConfig;
use super::tokenizer::OwnTokenizer;
use anyhow::Context;
use base::progress::{Progress, Unit};
use base::{DType, Problems};
use checkpoint::{safetensors, validate};
use engine::model_dtype;
use manifest::{Loaded, Manifest, Model};
use model::Param;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Settings of a grid of one rank, for readers to which the grid of the files does not matter: it may not
/// suit the batch.
pub const ONE_RANK: [&str; 4] =
    ["topology.tensor=1", "topology.pipeline=1", "topology.data=1", "topology.zero=0"];

/// Reader of the parameters of one checkpoint.
trait ParamReader {
    /// A state of a whole parameter, row by row, in the shape that gptrain's checkpoints have.
    fn read(&mut self, model: &Model, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>>;

    /// Notes for the user from reading.
    fn remarks(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Checkpoint of any format, open for reading.
pub struct ParamSource {
    facts: RunDescription,
    /// Manifest of its run, or of the run that an import would make.
    loaded: Loaded,
    /// Text of that manifest.
    text: String,
    /// Settings and types of a Hugging Face folder.
    pub hugging_face: Option<HfFacts>,
    /// Types that the tensors of a Hugging Face folder have, by name.
    tensor_types: BTreeMap<String, String>,
    /// Folder with the files beside the weights in a Hugging Face folder, if it has a config.json.
    pub carried: Option<PathBuf>,
    pub tokenizer: Option<OwnTokenizer>,
    reader: Box<dyn ParamReader>,
    progress: Option<Progress>,
}

/// Description of a Hugging Face folder.
pub struct HfFacts {
    pub config: HfConfig,
    /// Number of values of each type.
    pub types: BTreeMap<String, usize>,
}

/// Opens a checkpoint of gptrain's, a run folder (its newest checkpoint), or a checkpoint of any format
/// that an import reads. Fails if a setting that `choices` need is missing.
pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ParamSource> {
    let own = checkpoint::find(from);
    if let (None, Ok(folder)) = (choices.format, &own)
        && folder.join(own::INDEX).exists()
    {
        return own::open(folder);
    }
    let format = match (choices.format, detect(from), &own) {
        (Some(format), ..) | (None, Ok(format), _) => format,
        // A checkpoint's name without its index.
        (None, Err(_), Ok(_)) => Format::Gptrain,
        (None, Err(error), Err(_)) => {
            let run = !from.exists()
                || from.join("checkpoints").exists()
                || from.join(manifest::IN_FOLDER).exists();
            return Err(own.err().filter(|_| run).unwrap_or(error));
        }
    };
    match format {
        Format::Gptrain => own::open(&own?),
        Format::HuggingFace => hugging_face::open(from, choices),
        Format::HfTrainer => trainer::open(from, choices),
        _ => ParamSource::from_foreign(super::foreign::open(from, format, choices)?, choices),
    }
}

impl ParamSource {
    /// Source that reads an opened run of another trainer.
    pub fn from_foreign(run: ForeignRun, choices: &Choices) -> anyhow::Result<ParamSource> {
        foreign::from_run(run, choices)
    }

    /// Description of the checkpoint.
    pub fn facts(&self) -> &RunDescription {
        &self.facts
    }

    /// Manifest of its run, or of the run that an import would make.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    pub fn manifest(&self) -> &Manifest {
        &self.loaded.manifest
    }

    /// Text of the manifest.
    pub fn manifest_text(&self) -> &str {
        &self.text
    }

    /// Types that the tensors of a Hugging Face folder have, by name, without those of the run's own type.
    pub fn other_types(&self) -> BTreeMap<String, String> {
        let usual = safetensors::dtype_name(model_dtype(self.manifest().precision));
        let mut types = self.tensor_types.clone();
        types.retain(|_, dtype| dtype != usual);
        types
    }

    /// States that a checkpoint made of this one has. At step 0 a run makes its own moments; moments that
    /// are not read are zero.
    pub fn written_states(&self) -> &'static [AdamState] {
        let facts = &self.facts;
        match facts.format {
            Format::Gptrain => facts.read_states(),
            _ if facts.step == 0 => &[AdamState::Master],
            _ => &AdamState::ALL,
        }
    }

    /// Whether AdamW's moments are among the written states.
    pub fn has_moments(&self) -> bool {
        self.written_states().len() > 1
    }

    /// Shows a bar that advances with each read, until `reads` bytes are read.
    pub fn show_progress(&mut self, doing: &'static str, reads: u64) {
        self.progress = Some(Progress::new(doing, reads, Unit::Bytes));
    }

    /// A state of a whole parameter, row by row, in the shape of `engine::saved_shape`. The values are as
    /// in the files.
    pub fn read(&mut self, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>> {
        let values = self
            .reader
            .read(&self.loaded.manifest.model, param, state)?;
        if let Some(progress) = &self.progress {
            progress.add(size_of_val(&values[..]) as u64);
        }
        Ok(values)
    }

    /// Like `read`; fails on values that no update writes and that the run's precision does not have.
    /// gptrain's own checkpoints were checked when they were saved.
    pub fn read_valid(&mut self, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>> {
        let values = self.read(param, state)?;
        match self.facts.format {
            Format::Gptrain => {}
            Format::HuggingFace => self.ensure_in_range(param, &values)?,
            _ => ensure_valid(param, state, &values)?,
        }
        Ok(values)
    }

    /// Fails on weights that become infinite in fp16.
    fn ensure_in_range(&self, param: &Param, values: &[f32]) -> Result<(), Problems> {
        let dtype = model_dtype(self.manifest().precision);
        if dtype != DType::F16 {
            return Ok(());
        }
        let bits = dtype.halves(values).unwrap_or_default();
        if !bits.iter().any(|bits| bits & 0x7c00 == 0x7c00) {
            return Ok(());
        }
        Err(Problems::one(
            self.facts.folder.clone(),
            format!("{} has values beyond 65,504, the largest of fp16", param.name),
            "set precision to bf16 or f32",
        ))
    }

    /// Notes for the user from reading.
    pub fn remarks(&mut self) -> Vec<String> {
        self.reader.remarks()
    }
}

/// Fails on values that no update writes.
fn ensure_valid(param: &Param, state: AdamState, values: &[f32]) -> Result<(), Problems> {
    let found = validate::values(state.saved_name(), DType::F32, bytemuck::cast_slice(values));
    if found.is_empty() {
        return Ok(());
    }
    Err(Problems::one(
        param.name.clone(),
        format!("the {} has {}", state.name(), found.join(", ")),
        "import an earlier step",
    ))
}

/// Absolute path of the folder of a new run.
fn absolute(run: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(run).with_context(|| format!("cannot find {}", run.display()))
}
