//! The tokenizer of a run: a copy in the run's folder, `tokenizer/`, made when the run starts.
//! `sample` and `export` use it, so that they work after `data.tokenizer` was moved or replaced.

use super::hf;
use anyhow::Context;
use base::output::Existing;
use base::{Count, Problems};
use checkpoint::atomic_folder::{self, FolderKind};
use data::record::describe_file;
use data::tokenizer::{self, NamedFile, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};

/// The copy's folder, in the run's.
pub const FOLDER: &str = "tokenizer";

/// The tokenizer of a run's weights.
#[derive(Clone, Debug)]
pub struct OwnTokenizer {
    pub path: PathBuf,
    /// Whether it is in the run's folder: a copy, or what an import came with. Otherwise it is the
    /// file that `data.tokenizer` names, which may have been replaced since.
    pub kept: bool,
    /// Whether it came with an import.
    pub came_with_weights: bool,
}

impl OwnTokenizer {
    fn new(path: PathBuf, kept: bool) -> OwnTokenizer {
        let folder = path.parent();
        let came_with_weights = kept && folder.is_some_and(|folder| folder.ends_with(hf::FOLDER));
        OwnTokenizer { path, kept, came_with_weights }
    }
}

/// The tokenizer of a checkpoint: the copy in its run's folder; of runs without one the file that
/// `data.tokenizer` names; of imports that were moved the one that came with the weights.
pub fn own(checkpoint: &Path, named: Option<&Path>) -> Option<OwnTokenizer> {
    let run = std::path::absolute(checkpoint).ok();
    let run = run.as_deref().and_then(Path::parent).and_then(Path::parent);
    let kept = |path: PathBuf| OwnTokenizer::new(path, true);
    let copy = run
        .map(|run| run.join(FOLDER))
        .filter(|path| path.exists())
        .map(kept);
    let named = named.filter(|path| path.exists()).map(|path| {
        let kept = run.is_some_and(|run| is_inside(path, run));
        OwnTokenizer::new(path.to_path_buf(), kept)
    });
    let came = run.and_then(|run| hf::tokenizer_in(&run.join(hf::FOLDER)));
    copy.or(named).or(came.map(kept))
}

fn is_inside(path: &Path, folder: &Path) -> bool {
    let path = path.canonicalize().ok();
    let folder = folder.canonicalize().ok();
    path.zip(folder)
        .is_some_and(|(path, folder)| path.starts_with(folder))
}

/// The tokenizer that a user asks for (`--tokenizer`), which has to be the run's own; or else that
/// one. None if there is none. One with more ids than the model's `vocab` is refused, unless the
/// weights came with it: such folders exist, with a token for padding that the model never sees.
pub fn choose(
    asked: Option<&Path>,
    own: Option<OwnTokenizer>,
    vocab: usize,
) -> anyhow::Result<Option<PathBuf>> {
    let remedy = "it is another model's: take the one that the training data was made with";
    let Some(path) = asked.or(own.as_ref().map(|own| own.path.as_path())) else {
        return Ok(None);
    };
    let ids = |path: &Path| {
        Tokenizer::load(path)
            .ok()
            .map(|tokenizer| tokenizer.vocab())
    };
    let has = ids(path);
    let came = asked.is_none() && own.as_ref().is_some_and(|own| own.came_with_weights);
    if let Some(has) = has.filter(|has| *has > vocab && !came) {
        let has = Count(has as u64);
        let model = Count(vocab as u64);
        return Err(Problems::one(
            path.display().to_string(),
            format!("has {has} ids; the model's vocabulary has {model}"),
            remedy,
        )
        .into());
    }
    if let (Some(asked), Some(own)) = (asked, &own)
        && let [Ok(digest), Ok(kept)] = [asked, &own.path].map(tokenizer::digest)
        && digest != kept
        // A file that may have been replaced proves less: only another vocabulary is refused.
        && (own.kept || ids(&own.path) != has)
    {
        let named = describe_file(asked, &digest);
        let own = describe_file(&own.path, &kept);
        return Err(Problems::one(
            "--tokenizer",
            format!("is {named}; the run's own tokenizer is {own}"),
            remedy,
        )
        .into());
    }
    Ok(Some(path.to_path_buf()))
}

/// Copies a tokenizer into a run's folder, with the files that belong to it. An existing copy is
/// kept: if it is another tokenizer, the result says so.
pub fn keep(run: &Path, path: &Path) -> anyhow::Result<Option<String>> {
    let copy = run.join(FOLDER);
    if is_inside(path, run) {
        return Ok(None);
    }
    if copy.exists() {
        let digests = [path, &copy].map(tokenizer::digest);
        let [Ok(now), Ok(kept)] = digests else { return Ok(None) };
        return Ok((now != kept).then(|| {
            let now = describe_file(path, &now);
            let kept = describe_file(&copy, &kept);
            format!(
                "data.tokenizer is now {now}; the run began with {kept}, which `sample` and \
                 `export` use. If the new one is right, remove that folder"
            )
        }));
    }
    let files = tokenizer::files(path)?;
    atomic_folder::write(&copy, FolderKind::Run, Existing::Refused, |temporary| {
        for NamedFile { path, name } in &files {
            fs::copy(path, temporary.join(name))
                .with_context(|| format!("cannot copy {}", path.display()))?;
        }
        hf::carry_beside(&files[0].path, temporary)
    })?;
    Ok(None)
}
