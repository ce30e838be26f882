//! Starts a run from Hugging Face weights: into the run of a manifest, or into a new run's folder
//! with a manifest made from config.json.

use super::divergence::{self, Divergence};
use crate::new_checkpoint::save_source;
use crate::new_run::{make_state, write_run};
use base::output::{self, Existing};
use base::{Count, Problems};
use checkpoint::atomic_folder::{self, FolderKind};
use checkpoint::disk::Disk;
use exchange::foreign::{Choices, Format};
use exchange::hf::read_config;
use exchange::source::{self, ParamSource};
use launch::run_folder::FolderLock;
use manifest::Loaded;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use train::{last_checkpoint, resume, saving};

/// Result of an import.
pub struct Imported {
    /// Checkpoint of step 0.
    pub checkpoint: PathBuf,
    /// One line, such as "LlamaForCausalLM, 2,100,000 parameters in bf16".
    pub what: String,
    /// Keys of config.json that were ignored.
    pub unknown: Vec<String>,
    pub divergence: Option<Divergence>,
}

impl Imported {
    fn new(source: &ParamSource, checkpoint: PathBuf, divergence: Option<Divergence>) -> Imported {
        let found = source
            .hugging_face
            .as_ref()
            .expect("opened as a Hugging Face folder");
        let types: Vec<String> = found
            .types
            .iter()
            .map(|(name, count)| {
                format!("{} parameters in {}", Count(*count as u64), name.to_lowercase())
            })
            .collect();
        let what = format!("{}: {}", found.config.family.name(), types.join(", "));
        Imported { checkpoint, what, unknown: found.config.unknown.clone(), divergence }
    }

    /// Prints the result. `manifest` is that of the run, `output` the folder of a new run.
    pub fn say(&self, manifest: &Path, output: Option<&Path>) {
        base::say!("wrote {} of {}", self.checkpoint.display(), self.what);
        if !self.unknown.is_empty() {
            base::say!("ignored unknown keys of config.json: {}", self.unknown.join(", "));
        }
        if let Some(divergence) = &self.divergence {
            base::say!("{divergence}");
        }
        let manifest = manifest.display();
        match output.map(Path::display) {
            Some(output) => {
                base::say!("next: name a dataset in {manifest}, then `gptrain run {output}`");
            }
            None => base::say!("next: `gptrain run {manifest}` continues from it"),
        }
    }

    /// Result as JSON.
    pub fn object(&self, manifest: &Path) -> Value {
        json!({
            "checkpoint": self.checkpoint, "weights": self.what, "manifest": manifest,
            "unknown_keys": self.unknown,
            "divergence": self.divergence.as_ref().map(ToString::to_string),
        })
    }
}

/// Writes the weights in `from` as the checkpoint of step 0 of the manifest's run. `reference`:
/// logits to compare the first ones with.
pub fn import_into(
    from: &Path,
    loaded: &Loaded,
    reference: Option<&Path>,
) -> anyhow::Result<Imported> {
    let m = &loaded.manifest;
    let lock = FolderLock::take(&m.log.folder)?;
    import_locked(from, loaded, reference).inspect_err(|_| lock.remove_unused())
}

/// Like `import_into`, by the process that has locked the run's folder.
fn import_locked(
    from: &Path,
    loaded: &Loaded,
    reference: Option<&Path>,
) -> anyhow::Result<Imported> {
    let m = &loaded.manifest;
    let checkpoints = saving::folder(m);
    output::name_removed(&checkpoint::clean(&Disk::default(), &checkpoints)?);
    if let Some(found) = checkpoint::latest(&checkpoints)? {
        return Err(Problems::one(
            loaded.source.display().to_string(),
            format!("the run has a checkpoint already: {}", found.folder.display()),
            "import into a new run: --set log.folder=DIR",
        )
        .into());
    }
    let mut source = source::open_hugging_face_for(from, loaded)?;
    let state = make_state(&source, resume::data_ids(m, m.data.seed)?)?;
    let checkpoint = save_source(&mut source, &checkpoints, &state)?;
    last_checkpoint::note(&m.log.folder, 0)?;
    let compare = |reference| divergence::divergence(&checkpoint, m, reference);
    let divergence = reference.map(compare).transpose()?;
    Ok(Imported::new(&source, checkpoint, divergence))
}

/// Makes the folder `to` of a new run: a manifest, the weights as the checkpoint of step 0, and the
/// other files of the folder. Completely or not at all. `sets` change the manifest.
pub fn import_run(
    from: &Path,
    to: &Path,
    sets: &[String],
    existing: Existing,
    reference: Option<&Path>,
) -> anyhow::Result<Imported> {
    atomic_folder::check_vacant(to, FolderKind::Run, existing)?;
    let choices =
        Choices { sets: sets.to_vec(), run: Some(to.to_path_buf()), ..Choices::default() };
    let mut source = open(from, &choices)?;
    let loaded = source.loaded().clone();
    let run = std::path::absolute(to)?;
    if loaded.manifest.log.folder != run {
        return Err(Problems::one(
            "--set",
            format!("log.folder is the folder of --output, {}", run.display()),
            "leave log.folder out",
        )
        .into());
    }
    let mut divergence = None;
    let checkpoint = write_run(&mut source, to, existing, &mut |written| {
        let compare = |reference| divergence::divergence(written, &loaded.manifest, reference);
        divergence = reference.map(compare).transpose()?;
        Ok(())
    })?;
    Ok(Imported::new(&source, checkpoint, divergence))
}

/// The section `model` of a folder, and what an import of it would refuse. `into` is the manifest of a run.
pub fn dry_run(
    from: &Path,
    into: Option<&Path>,
    choices: &Choices,
    existing: Existing,
) -> anyhow::Result<(Option<String>, Problems)> {
    let mut refused = Problems::default();
    let section = refused.collect(model_section(from))?;
    if let Some(to) = &choices.run {
        refused.collect(atomic_folder::check_vacant(to, FolderKind::Run, existing))?;
    }
    // Mistakes of config.json are those of the section.
    if section.is_none() {
        return Ok((section, refused));
    }
    match into {
        None => {
            refused.collect(open(from, choices))?;
        }
        Some(path) => {
            if let Some(loaded) = refused.collect(manifest::load(path, &choices.sets))? {
                refused.collect(source::open_hugging_face_for(from, &loaded))?;
            }
        }
    }
    Ok((section, refused))
}

/// Opens the folder, which is not another format's whatever else it has.
fn open(from: &Path, choices: &Choices) -> anyhow::Result<ParamSource> {
    source::open(from, &Choices { format: Some(Format::HuggingFace), ..choices.clone() })
}

/// Section `model` of a manifest for a Hugging Face folder.
pub fn model_section(from: &Path) -> anyhow::Result<String> {
    Ok(manifest::model_section(&read_config(from)?.model))
}
