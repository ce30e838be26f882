//! The model that a user names: a run's folder, a checkpoint, a mirror of checkpoints
//! (`s3://BUCKET/PREFIX`), or a Hugging Face folder. Every command that reads a model resolves it here.

use crate::import::hugging_face::import_run;
use crate::local_checkpoint::{LocalCheckpoint, stored_manifest, temporary_folder};
use anyhow::Context;
use base::Problems;
use base::output::Existing;
use base::progress::{Progress, Unit};
use checkpoint::place::Place;
use checkpoint::{self, Index};
use engine::Frozen;
use exchange::foreign::{self, Choices, Format};
use exchange::hf::{self, HfConfig};
use exchange::source::{self, ParamSource};
use manifest::{Eod, Family, Manifest};
use std::path::{Path, PathBuf};

/// File of a checkpoint of gptrain.
const INDEX: &str = "index.json";

/// Folder of a run's checkpoints.
const CHECKPOINTS: &str = "checkpoints";

/// File of a Hugging Face model.
const CONFIG: &str = "config.json";

/// File of an adapter of one.
const ADAPTER: &str = "adapter_config.json";

/// Model, open for reading.
pub struct ModelPlace {
    pub source: Source,
    /// Settings of its run; of a Hugging Face folder, its model and its tokenizer.
    pub manifest: Manifest,
}

/// Source of the weights.
pub enum Source {
    Checkpoint(LocalCheckpoint),
    HuggingFace { folder: PathBuf, family: Family },
}

impl ModelPlace {
    /// Opens what a user named.
    pub fn open(path: &Path) -> anyhow::Result<ModelPlace> {
        if let Some(folder) = hugging_face_folder(path)? {
            return hugging_face(folder);
        }
        let local = LocalCheckpoint::find(path)?;
        let index = Index::read(&local.folder)?;
        let manifest = stored_manifest(&index.manifest, &[])?.manifest;
        Ok(ModelPlace { source: Source::Checkpoint(local), manifest })
    }
}

impl Source {
    /// Checkpoint's folder; None for a Hugging Face folder.
    pub fn checkpoint(&self) -> Option<&Path> {
        match self {
            Source::Checkpoint(local) => Some(&local.folder),
            Source::HuggingFace { .. } => None,
        }
    }

    /// Hugging Face folder: the source itself, or the copy in an imported run.
    pub fn hugging_face(&self) -> Option<PathBuf> {
        match self {
            Source::Checkpoint(local) => {
                let checkpoint = std::path::absolute(&local.folder).ok()?;
                let kept = checkpoint.parent()?.parent()?.join(hf::FOLDER);
                Some(kept).filter(|folder| folder.is_dir())
            }
            Source::HuggingFace { folder, .. } => Some(folder.clone()),
        }
    }

    /// Reads this rank's share of the weights, with a progress bar if `shown`. Returns a description of
    /// the source for the user.
    pub fn load(&self, weights: &Frozen, shown: bool) -> anyhow::Result<String> {
        let bytes = 4 * weights
            .slices()
            .iter()
            .map(|slice| slice.slice.size.iter().product::<usize>())
            .sum::<usize>();
        let progress = shown.then(|| Progress::new("loading", bytes as u64, Unit::Bytes));
        let loaded = &|bytes: usize| {
            if let Some(progress) = &progress {
                progress.add(bytes as u64);
            }
        };
        match self {
            Source::Checkpoint(local) => {
                let step = checkpoint::load_weights_with(&local.folder, weights, loaded)?.step;
                Ok(format!("{}, step {step}", local.name()))
            }
            Source::HuggingFace { folder, family } => {
                hf::load_weights(folder, *family, weights, loaded)?;
                Ok(format!("{}, {}", folder.display(), family.name()))
            }
        }
    }
}

/// Checkpoint that a user named. A Hugging Face folder is imported into a temporary run, as
/// `gptrain import --hf` does.
pub fn find_checkpoint(path: &Path) -> anyhow::Result<LocalCheckpoint> {
    let Some(folder) = hugging_face_folder(path)? else { return LocalCheckpoint::find(path) };
    let temporary = temporary_folder()?;
    let run = temporary.path().join("run");
    let tokenizer = hf::tokenizer_in(folder)
        .map(std::path::absolute)
        .transpose()?
        .map(|path| serde_json::to_string(&path))
        .transpose()?;
    let sets: Vec<String> = tokenizer
        .iter()
        .map(|path| format!("data.tokenizer={path}"))
        .collect();
    import_run(folder, &run, &sets, Existing::Refused, None)?;
    let at = run.join("checkpoints").join(checkpoint::name(0));
    Ok(LocalCheckpoint::fetched(at, folder.display().to_string(), temporary))
}

/// Checkpoint that is open for reading.
pub struct OpenedSource {
    pub source: ParamSource,
    /// Its folder or mirror; None for a folder of another program.
    local: Option<LocalCheckpoint>,
}

impl OpenedSource {
    /// Name for the user.
    pub fn name(&self) -> String {
        match &self.local {
            Some(local) => local.name(),
            None => self.source.facts().folder.clone(),
        }
    }
}

/// Fails for a checkpoint of another trainer.
pub fn ensure_own_or_hugging_face(path: &Path) -> anyhow::Result<()> {
    hugging_face_folder(path).map(drop)
}

/// Opens a checkpoint of any format that a user named, a local one or that of a mirror.
pub fn open_source(path: &Path, choices: &Choices) -> anyhow::Result<OpenedSource> {
    let is_own = choices.format.is_none()
        && (Place::is_url(path).is_some()
            || checkpoint::find(path).is_ok_and(|found| found.join(INDEX).exists()));
    if is_own {
        let local = LocalCheckpoint::find(path)?;
        let source = source::open(&local.folder, choices)?;
        return Ok(OpenedSource { source, local: Some(local) });
    }
    ensure_fetched(path)?;
    ensure_whole_model(path)?;
    Ok(OpenedSource { source: source::open(path, choices)?, local: None })
}

/// Fails for the name of a model on Hugging Face's hub, which is not fetched.
pub fn ensure_fetched(path: &Path) -> Result<(), Problems> {
    if path.exists() || !is_hub_name(path) {
        return Ok(());
    }
    let name = path.display().to_string();
    let folder = path.file_name().unwrap_or_default().to_string_lossy();
    Err(Problems::one(
        &*name,
        "there is no such folder, and a model of Hugging Face's hub is not fetched",
        format!("hf download {name} --local-dir {folder}, then give {folder}"),
    ))
}

/// Fails for a folder with an adapter's weights alone.
pub fn ensure_whole_model(path: &Path) -> Result<(), Problems> {
    if !path.join(ADAPTER).exists() || path.join(CONFIG).exists() {
        return Ok(());
    }
    Err(Problems::one(
        path.display().to_string(),
        "is an adapter: its weights are changes of another model's",
        "merge it into that model, with peft's merge_and_unload() and save_pretrained(DIR), \
         then give DIR",
    ))
}

/// The path, if it is a Hugging Face folder; None if it may be a checkpoint. The error says what else
/// it is, and what to do with it.
fn hugging_face_folder(path: &Path) -> anyhow::Result<Option<&Path>> {
    match foreign_format(path)? {
        None => Ok(None),
        Some(Format::HuggingFace | Format::HfTrainer) => Ok(Some(path)),
        Some(format) => {
            let name = path.display();
            Err(Problems::one(name.to_string(), format!("is a checkpoint of {}", format.name()), format!(
                "import it first: `gptrain import {name} --output RUN`; with --dry it shows what \
                 that run would be"
            )).into())
        }
    }
}

/// Format of a folder that another program wrote. None for a checkpoint of gptrain, and for a folder that
/// resembles none: the search for a checkpoint says so.
pub fn foreign_format(path: &Path) -> anyhow::Result<Option<Format>> {
    if Place::is_url(path).is_some() {
        return Ok(None);
    }
    ensure_fetched(path)?;
    ensure_whole_model(path)?;
    if !path.is_dir() || checkpoint::find(path).is_ok_and(|found| found.join(INDEX).exists()) {
        return Ok(None);
    }
    if let Ok(format) = foreign::detect(path) {
        return Ok(Some(format));
    }
    if path.join(CHECKPOINTS).exists() || path.join(manifest::IN_FOLDER).exists() {
        return Ok(None); // a run that has not saved yet
    }
    match foreign::resemblance(path)? {
        Some(problems) => Err(problems.into()),
        None => Ok(None),
    }
}

/// Whether a path that does not exist has the form of a name on Hugging Face's hub.
fn is_hub_name(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let [owner, model] = &parts[..] else { return false };
    let named = |part: &str| {
        part.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
            && !part.starts_with('.')
    };
    named(owner) && named(model) && owner != "runs" && !Path::new(&**owner).exists()
}

fn hugging_face(folder: &Path) -> anyhow::Result<ModelPlace> {
    let HfConfig { family, model, .. } = hf::read_config(folder)?;
    let tokenizer = hf::tokenizer_in(folder)
        .map(|path| path.canonicalize())
        .transpose();
    let mut manifest = Manifest::for_model(&model);
    manifest.data.tokenizer = tokenizer.with_context(|| format!("in {}", folder.display()))?;
    let end = hf::end_tokens(folder)
        .into_iter()
        .next()
        .filter(|token| (*token as usize) < model.vocab);
    manifest.data.eod = end.map(|token| Eod {
        token,
        mask_loss: false,
        reset_positions: false,
        reset_attention: false,
    });
    let source = Source::HuggingFace { folder: folder.into(), family };
    Ok(ModelPlace { source, manifest })
}
