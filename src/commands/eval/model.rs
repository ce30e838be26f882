//! Model to score: a run's checkpoint, or a Hugging Face folder.

use super::Eval;
use crate::model_place::{ModelPlace, Source};
use checkpoint::Index;
use comm::LauncherEnv;
use data::tokenizer::BYTES;
use exchange::tokenizer;
use manifest::{self, Loaded, Manifest, Position};
use std::path::Path;

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
pub fn open(folder: &Path, options: &Eval) -> anyhow::Result<Opened> {
    let ModelPlace { source, manifest: mut m } = ModelPlace::open(folder)?;
    let checkpoint = source.checkpoint();
    let run = checkpoint
        .map(|folder| run_manifest(folder, &m))
        .transpose()?;
    let named = m.data.tokenizer.as_deref();
    let own = checkpoint.and_then(|folder| tokenizer::own(folder, named));
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
    let gridded = options.set.iter().any(|set| set.starts_with("topology"));
    let replicas = (!gridded).then(|| format!("topology.data={ranks}"));
    let sets: Vec<String> = replicas
        .into_iter()
        .chain(options.set.iter().cloned())
        .collect();
    let mut loaded = manifest::for_inference(&m, &sets)?;
    // A name, which the manifest would take for a path.
    if m.data.tokenizer.as_deref() == Some(Path::new(BYTES)) {
        loaded.manifest.data.tokenizer = m.data.tokenizer;
    }
    Ok(Opened { source, loaded, run })
}

/// Manifest of a checkpoint's run, with the seed of the run's validation sets: that with which it began.
fn run_manifest(checkpoint: &Path, m: &Manifest) -> anyhow::Result<Manifest> {
    let mut run = m.clone();
    let first_seed = Index::read(checkpoint)?.mixture.first_seed();
    run.data.seed = first_seed.unwrap_or(run.data.seed);
    Ok(run)
}
