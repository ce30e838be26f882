//! Reads a file into a checked manifest.

use super::data_files;
use super::record::{self, Given};
use super::report::Report;
use super::shard::resolve_shard;
use super::tree::Node;
use super::{
    Manifest, Ranks, check, edit,
    forms::Raw,
    keys::{self, Keys},
    overrides, removed, suggest, tree,
};
use anyhow::Context;
use base::{Problems, input};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Name of the manifest in a run's folder.
pub const IN_FOLDER: &str = "manifest.yaml";

/// Manifest and its origin.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub manifest: Manifest,
    /// Effective YAML: every key with its value, including defaults. It loads to the same
    /// `manifest` from any folder.
    pub effective: String,
    /// File that it was read from.
    pub source: PathBuf,
    /// Whether `topology.data` is `auto` in it.
    pub replicas_are_auto: bool,
    text: Text,
}

/// Origin of the text that a run keeps in its folder.
#[derive(Clone, Debug)]
enum Text {
    /// Written from the settings.
    Made(Box<Given>),
    /// The folder's own, in which the lines of `--set` are changed.
    Edited(String),
}

impl Loaded {
    /// Text of the manifest for the run's folder. It loads to the same `manifest` from any folder, and
    /// values that follow from other settings still do.
    pub fn record(&self) -> String {
        match &self.text {
            Text::Made(given) => record::record(&self.manifest, given),
            Text::Edited(text) => text.clone(),
        }
    }

    /// Replaces `topology.shard: node` by the number of replicas on a node of `per_node` ranks. The run's
    /// folder keeps `node`.
    pub fn with_node(mut self, per_node: usize) -> Result<Loaded, Problems> {
        resolve_shard(&mut self.manifest.topology, per_node)?;
        self.effective = check::effective(&self.manifest);
        Ok(self)
    }
}

/// Whether no mistake was found in the values of these keys.
pub type Validity<'a> = &'a dyn Fn(&[&str]) -> bool;

/// Checks for problems in a manifest that cannot be found in its text.
pub type Checks<'a> = &'a dyn Fn(&Manifest, Validity) -> Problems;

/// Reads the manifest at `path`, with the values of `sets` (`KEY=VALUE`) instead of the file's. The
/// error is a `Problems` with every mistake. For a run's folder, reads the manifest in it; the run
/// is then the one in this folder, even if it was moved. Relative paths of `sets` start at the working
/// folder, those of the file at the file.
pub fn load(path: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    load_for(path, sets, Ranks::Unknown)
}

/// Like `load`, for this number of ranks.
pub fn load_for(path: &Path, sets: &[String], ranks: Ranks) -> anyhow::Result<Loaded> {
    load_with(path, sets, ranks, &|_, _| Problems::default())
}

/// Like `load`. If there are mistakes, adds those that `checks` find in the readable part, in which
/// defaults replace unreadable values, whose keys are not valid.
pub fn load_with(
    path: &Path,
    sets: &[String],
    ranks: Ranks,
    checks: Checks,
) -> anyhow::Result<Loaded> {
    let sets = &overrides::from_working_folder(sets)[..];
    if let Some(run) = run_folder(path) {
        let inside = run.join(IN_FOLDER);
        let mut sets = sets.to_vec();
        if !sets.iter().any(|set| set.starts_with("log.folder=")) {
            let folder = serde_json::Value::from(run.display().to_string());
            sets.insert(0, format!("log.folder={folder}"));
        }
        input::open(&inside).with_context(|| format!("cannot read {}", inside.display()))?;
        return load_file(&inside, &sets, true, ranks, checks);
    }
    load_file(path, sets, false, ranks, checks)
}

/// Folder of the run whose manifest is meant by `path`: the folder itself, or its manifest.
fn run_folder(path: &Path) -> Option<&Path> {
    if path.is_dir() {
        return Some(path).filter(|run| run.join(IN_FOLDER).exists());
    }
    let run = path
        .parent()
        .filter(|_| path.file_name().is_some_and(|name| name == IN_FOLDER))?;
    Some(run).filter(|run| run.join("checkpoints").is_dir() && path.exists())
}

/// Loads a file. `saved` is true for the manifest in a run's folder.
fn load_file(
    path: &Path,
    sets: &[String],
    saved: bool,
    ranks: Ranks,
    checks: Checks,
) -> anyhow::Result<Loaded> {
    let name = path.display().to_string();
    let text = text(path, &name)?;
    refuse_script(&text, &name)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let read = |text: &str, sets: &[String], ranks: Ranks| {
        let root = tree(text, &name, sets, saved)?;
        finish(&root, &name, folder, ranks, checks)
    };
    let mut loaded = read(&text, sets, ranks)?;
    // The run's own manifest keeps its author's comments.
    let own = loaded.manifest.log.folder.join(IN_FOLDER);
    if path
        .canonicalize()
        .ok()
        .is_some_and(|path| own.canonicalize().ok() == Some(path))
    {
        let (place, sets): (Vec<String>, Vec<String>) = sets
            .iter()
            .cloned()
            .partition(|set| set.starts_with("log.folder="));
        // A run's manifest has a number of replicas: its other readers know no ranks.
        let same = |text: &str| {
            read(text, &place, Ranks::Unknown).is_ok_and(|read| read.manifest == loaded.manifest)
        };
        if let Some(text) = edit::edit(&text, &sets, same) {
            loaded.text = Text::Edited(text);
        }
    }
    Ok(loaded)
}

/// Checks the manifest in `text`. Messages use `name`; relative data paths are resolved against
/// `folder`.
pub fn parse(text: &str, name: &str, folder: &Path, sets: &[String]) -> Result<Loaded, Problems> {
    let root = tree(text, name, sets, false)?;
    finish(&root, name, folder, Ranks::Unknown, &|_, _| Problems::default())
}

/// Like `parse`, for the manifest that a run or a checkpoint saved, maybe with settings that no
/// longer exist.
pub fn parse_saved(
    text: &str,
    name: &str,
    folder: &Path,
    sets: &[String],
) -> Result<Loaded, Problems> {
    let root = tree(text, name, sets, true)?;
    finish(&root, name, folder, Ranks::Unknown, &|_, _| Problems::default())
}

fn tree(text: &str, name: &str, sets: &[String], saved: bool) -> Result<Node, Problems> {
    let mut root = tree::parse(text, name, None)?;
    if saved {
        removed::strip(&mut root);
    }
    overrides::rename(&mut root, name)?;
    overrides::apply(&mut root, sets)?;
    removed::check(&mut root, name)?;
    Ok(root)
}

/// Checks the manifest in a tree.
pub(super) fn finish(
    root: &Node,
    name: &str,
    folder: &Path,
    ranks: Ranks,
    checks: Checks,
) -> Result<Loaded, Problems> {
    let mut report = Report::new(name, root);
    let json = Keys::new().read(&mut report);
    let mut raw = serde_json::from_value::<Raw>(json).unwrap_or_else(|error| {
        report.add("", format!("not understood: {error}"), "please report this as a bug");
        Raw::default()
    });
    let topology = raw.topology.as_mut();
    let replicas_are_auto =
        topology.is_some_and(|topology| topology.resolve_replicas(ranks, &mut report));
    let folder = folder
        .canonicalize()
        .or_else(|_| std::path::absolute(folder))
        .unwrap_or_else(|_| PathBuf::from("/"));
    if let Some(data) = &mut raw.data {
        data_files::expand(data, &folder, &mut report);
    }
    let given = Box::new(Given { raw: raw.clone(), folder: folder.clone() });
    let stem = Path::new(name)
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or("run");
    let manifest = check::manifest(raw, &mut report, &folder, stem);
    if report.is_empty() {
        let effective = check::effective(&manifest);
        let source = PathBuf::from(name);
        let text = Text::Made(given);
        return Ok(Loaded { manifest, effective, source, replicas_are_auto, text });
    }
    let more = checks(&manifest, &|paths| report.are_valid(paths));
    let Problems { mut list } = report.problems();
    list.extend(more.list);
    Err(Problems { list })
}

/// Fails for a script that starts another trainer.
fn refuse_script(text: &str, name: &str) -> Result<(), Problems> {
    if !text.starts_with("#!")
        && !text.lines().any(|line| {
            ["#SBATCH", "#PBS", "#BSUB"]
                .iter()
                .any(|word| line.starts_with(word))
        })
    {
        return Ok(());
    }
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, '=' | '"' | '\''));
    let options = words.filter(|word| word.starts_with("--"));
    let mut known: Vec<String> = options
        .filter_map(|word| {
            let key = keys::suggest_setting(word)?.key()?.to_string();
            Some(format!("{word} is {key}"))
        })
        .collect();
    known.dedup();
    known.truncate(3);
    let such =
        if known.is_empty() { String::new() } else { format!(": {}, …", known.join(", ")) };
    Err(Problems::one(
        name,
        "this is a shell script, not a manifest",
        format!(
            "make one of it: gptrain import --args {name}; docs/coming-from.md has the settings of other \
             trainers' options{such}"
        ),
    ))
}

fn text(path: &Path, name: &str) -> anyhow::Result<String> {
    let user = |what: &str, remedy: &str| Err(Problems::one(name, what, remedy).into());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let remedy = match find_nearest(path) {
                Some(nearest) => format!("did you mean {}?", nearest.display()),
                None => "give the path of a manifest".to_string(),
            };
            return user("there is no such file", &remedy);
        }
        Err(error) => return Err(error).with_context(|| format!("reading {name}")),
    };
    let about = file.metadata().with_context(|| format!("reading {name}"))?;
    if about.is_dir() {
        return user("this is a folder", "give the path of a manifest, such as FOLDER/run.yaml");
    }
    if about.len() > tree::MAX_MANIFEST_BYTES {
        return Err(tree::too_large(name, about.len()).into());
    }
    // A device or a pipe has no length: read at most the limit and one byte more.
    let mut bytes = Vec::new();
    let mut limited = (&mut file).take(tree::MAX_MANIFEST_BYTES + 1);
    limited
        .read_to_end(&mut bytes)
        .with_context(|| format!("reading {name}"))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let line = 1 + error.as_bytes()[..at]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count();
            Err(Problems::one(
                format!("{name}:{line}"),
                "not UTF-8 text from here on",
                "save the file as UTF-8",
            )
            .into())
        }
    }
}

/// Manifest or run with a similar path: each part that does not exist is replaced by the nearest name.
/// Also finds a manifest without its extension, and a run by its name.
fn find_nearest(path: &Path) -> Option<PathBuf> {
    let is_found = |path: &PathBuf| path.is_file() || run_folder(path).is_some();
    let short =
        [path.with_extension("yaml"), path.with_extension("yml"), Path::new("runs").join(path)];
    if let Some(found) = short.into_iter().find(is_found) {
        return Some(found);
    }
    let mut found = PathBuf::new();
    for part in path.components() {
        if found.join(part).exists() {
            found.push(part);
            continue;
        }
        let folder = if found == Path::new("") { Path::new(".") } else { &found };
        let mut names: Vec<String> = fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        found.push(suggest::word(part.as_os_str().to_str()?, names.iter().map(String::as_str))?);
    }
    Some(found).filter(is_found)
}
