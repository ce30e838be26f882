//! Going on from a checkpoint: only with a manifest that continues the same run.

use crate::base::Problems;
use crate::checkpoint::{self, Found, Index, Progress};
use crate::engine::Engine;
use crate::manifest::{self, Loaded, Manifest};
use std::path::Path;

/// Loads the checkpoint into the engine, or says what in the manifest forbids it.
pub fn resume(found: &Found, loaded: &Loaded, engine: &Engine) -> anyhow::Result<Progress> {
    let index = Index::read(&found.folder)?;
    let base = loaded.source.parent().unwrap_or(Path::new("."));
    let saved = manifest::parse(&index.manifest, "the checkpoint's manifest", base, &[])?;
    unchanged(&saved.manifest, &loaded.manifest, found)?;
    let progress = checkpoint::load(&found.folder, engine)?;
    println!(
        "resuming from {} (step {}, {} samples)",
        found.folder.display(),
        progress.step,
        progress.consumed_samples
    );
    Ok(progress)
}

/// What must stay for the run to be the same run. Lengths, the learning rate, logging, saving,
/// threads and recompute may change.
fn unchanged(saved: &Manifest, now: &Manifest, found: &Found) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let mut same = |section: &str, equal: bool| {
        if !equal {
            problems.add(
                found.folder.display().to_string(),
                format!("was trained with another `{section}` than the manifest has now"),
                format!(
                    "restore `{section}` (see manifest.yaml in the run's folder), \
                     or start a new run: --set log.folder=DIR"
                ),
            );
        }
    };
    same("model", saved.model == now.model);
    same("precision", saved.precision == now.precision);
    same("data", saved.data == now.data);
    same("batch", saved.batch == now.batch);
    same("optimizer", saved.optimizer == now.optimizer);
    same("train.seed", saved.train.seed == now.train.seed);
    problems.or(())
}
