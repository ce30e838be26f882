//! From a file to a checked manifest.

use super::report::Report;
use super::tree::Node;
use super::{Manifest, check, forms::Raw, keys::Keys, overrides, tree};
use anyhow::Context;
use base::Problems;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The name of the manifest in a run's folder.
pub const IN_FOLDER: &str = "manifest.yaml";

/// A manifest, and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub manifest: Manifest,
    /// The effective YAML: every key with its value, defaults included. It loads back to the same
    /// `manifest` from any folder.
    pub effective: String,
    /// The file it was read from.
    pub source: PathBuf,
}

/// Finds more that is wrong with a manifest than its text tells.
pub type Also<'a> = &'a dyn Fn(&Manifest) -> Problems;

/// Reads the manifest at `path`, with the values of `sets` (`KEY=VALUE`) in place of the file's.
/// Every mistake is in the error, which is a `Problems`. Of a run's folder it is the manifest there,
/// and the run is the one in this folder, even if it was moved.
pub fn load(path: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    load_also(path, sets, &|_| Problems::default())
}

/// The same; where there are mistakes, they are joined by those that `also` finds in what could be
/// read: defaults stand where a value could not.
pub fn load_also(path: &Path, sets: &[String], also: Also) -> anyhow::Result<Loaded> {
    let inside = path.join(IN_FOLDER);
    if path.is_dir() && inside.is_file() {
        let elsewhere = sets.iter().any(|set| set.starts_with("log.folder="));
        let here = serde_json::Value::from(path.display().to_string());
        let here = (!elsewhere).then(|| format!("log.folder={here}"));
        let sets: Vec<_> = here.into_iter().chain(sets.iter().cloned()).collect();
        return load_also(&inside, &sets, also);
    }
    let name = path.display().to_string();
    let text = text(path, &name)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let root = tree(&text, &name, sets)?;
    Ok(finish(&root, &name, folder, PathBuf::from(&name), also)?)
}

/// Checks the manifest in `text`. `name` is what messages call it; relative paths to data start at
/// `folder`.
pub fn parse(text: &str, name: &str, folder: &Path, sets: &[String]) -> Result<Loaded, Problems> {
    let root = tree(text, name, sets)?;
    finish(&root, name, folder, PathBuf::from(name), &|_| Problems::default())
}

fn tree(text: &str, name: &str, sets: &[String]) -> Result<Node, Problems> {
    let mut root = tree::parse(text, name, None)?;
    overrides::rename(&mut root, name)?;
    overrides::apply(&mut root, sets)?;
    Ok(root)
}

/// The manifest in a tree.
pub(super) fn finish(
    root: &Node,
    name: &str,
    folder: &Path,
    source: PathBuf,
    also: Also,
) -> Result<Loaded, Problems> {
    let mut report = Report::new(name, root);
    let json = Keys::new().read(&mut report);
    let raw = serde_json::from_value::<Raw>(json).unwrap_or_else(|error| {
        report.add("", format!("not understood: {error}"), "please report this as a bug");
        Raw::default()
    });
    let folder = folder.canonicalize().or_else(|_| std::path::absolute(folder));
    let folder = folder.unwrap_or_else(|_| PathBuf::from("/"));
    let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or("run");
    let manifest = check::manifest(raw, &mut report, &folder, stem);
    report.or(()).map_err(|mut problems| {
        problems.list.extend(also(&manifest).list);
        problems
    })?;
    let effective = check::effective(&manifest);
    Ok(Loaded { manifest, effective, source })
}

fn text(path: &Path, name: &str) -> anyhow::Result<String> {
    let user = |what: &str, remedy: &str| Err(Problems::one(name, what, remedy).into());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return user("there is no such file", "give the path of a manifest");
        }
        Err(error) => return Err(error).with_context(|| format!("reading {name}")),
    };
    let about = file.metadata().with_context(|| format!("reading {name}"))?;
    if about.is_dir() {
        return user("this is a folder", "give the path of a manifest, such as FOLDER/run.yaml");
    }
    if about.len() > tree::MAX_BYTES {
        return Err(tree::too_large(name, about.len()).into());
    }
    // A device or a pipe has no length: read no more than is allowed, and a byte to tell.
    let mut bytes = Vec::new();
    let mut limited = (&mut file).take(tree::MAX_BYTES + 1);
    limited.read_to_end(&mut bytes).with_context(|| format!("reading {name}"))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
            let what = "not UTF-8 text from here on";
            Err(Problems::one(format!("{name}:{line}"), what, "save the file as UTF-8").into())
        }
    }
}
