//! Model to score: a run's checkpoint, or a Hugging Face folder.

use super::EvalOptions;
use crate::local_checkpoint::stored_manifest;
use anyhow::Context;
use base::progress::{Progress, Unit};
use checkpoint::hf::{self, HfConfig};
use checkpoint::{self, Index, tokenizer};
use comm::LauncherEnv;
use data::tokenizer::BYTES;
use engine::{Frozen, StateSlice};
use manifest::{self, Family, Loaded, Manifest, Position};
use std::path::{Path, PathBuf};

/// Source of the weights.
pub enum Source {
    Checkpoint(PathBuf),
    HuggingFace { folder: PathBuf, family: Family },
}

impl Source {
    /// Reads this rank's share of the weights, with a progress bar if `shown`. Returns a description of
    /// the source for the user.
    pub fn load(&self, weights: &Frozen, shown: bool) -> anyhow::Result<String> {
        let numbers = |slice: &StateSlice| slice.slice.size.iter().product::<usize>();
        let bytes = 4 * weights.slices().iter().map(numbers).sum::<usize>();
        let progress = shown.then(|| Progress::new("loading", bytes as u64, Unit::Bytes));
        let loaded = &|bytes: usize| {
            if let Some(progress) = &progress {
                progress.add(bytes as u64);
            }
        };
        match self {
            Source::Checkpoint(folder) => {
                let step = checkpoint::load_weights_with(folder, weights, loaded)?.step;
                Ok(format!("{}, step {step}", folder.display()))
            }
            Source::HuggingFace { folder, family } => {
                hf::load_weights(folder, *family, weights, loaded)?;
                Ok(format!("{}, {}", folder.display(), family.name()))
            }
        }
    }
}

/// Model to score.
pub struct Opened {
    pub source: Source,
    /// Manifest with which it is scored.
    pub loaded: Loaded,
    /// Manifest of its run, if it is from a run.
    pub run: Option<Manifest>,
}

/// Model in a folder, and a manifest with which it is scored: its own tokenizer, and as many replicas
/// as ranks were started, unless the options differ.
pub fn open(folder: &Path, options: &EvalOptions) -> anyhow::Result<Opened> {
    let is_run = !folder.join("config.json").exists();
    let (source, mut m) = if is_run { find_checkpoint(folder)? } else { hugging_face(folder)? };
    let run = is_run.then(|| m.clone());
    let own = match &source {
        Source::Checkpoint(folder) => tokenizer::own(folder, m.data.tokenizer.as_deref()),
        Source::HuggingFace { .. } => None,
    };
    // A missing tokenizer of the manifest is reported when it is needed.
    let chosen = tokenizer::choose(options.tokenizer.as_deref(), own, m.model.vocab)?;
    m.data.tokenizer = chosen.or(m.data.tokenizer);
    let seq_len = options.seq_len.unwrap_or(m.model.seq_len);
    match m.model.position {
        Position::Learned => {
            m.model.positions = Some(m.model.context());
            m.model.seq_len = seq_len.min(m.model.context());
        }
        _ => m.model.seq_len = seq_len, // no weight has this size
    }
    let ranks = LauncherEnv::from_variables(&|name| std::env::var(name).ok())?
        .map_or(1, |launch| launch.world);
    let gridded = options.sets.iter().any(|set| set.starts_with("topology"));
    let replicas = (!gridded).then(|| format!("topology.data={ranks}"));
    let sets: Vec<String> = replicas.into_iter().chain(options.sets.iter().cloned()).collect();
    let mut loaded = manifest::for_inference(&m, &sets)?;
    // A name, which the manifest would take for a path.
    if m.data.tokenizer.as_deref() == Some(Path::new(BYTES)) {
        loaded.manifest.data.tokenizer = m.data.tokenizer;
    }
    Ok(Opened { source, loaded, run })
}

fn find_checkpoint(folder: &Path) -> anyhow::Result<(Source, Manifest)> {
    let found = checkpoint::find(folder)?;
    let index = Index::read(&found)?;
    let m = stored_manifest(&index.manifest, &[])?.manifest;
    Ok((Source::Checkpoint(found), m))
}

fn hugging_face(folder: &Path) -> anyhow::Result<(Source, Manifest)> {
    let HfConfig { family, model, .. } = hf::read_config(folder)?;
    let tokenizer = hf::tokenizer_in(folder).map(|path| path.canonicalize()).transpose();
    let mut m = Manifest::for_model(&model);
    m.data.tokenizer = tokenizer.with_context(|| format!("in {}", folder.display()))?;
    Ok((Source::HuggingFace { folder: folder.into(), family }, m))
}
