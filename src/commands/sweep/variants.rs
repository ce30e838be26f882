//! Variants of a manifest: every combination of several values of its settings, each in its own folder.

use anyhow::{Context, Result};
use base::Problems;
use device::Gpu;
use launch::series::{self, Task};
use manifest::{DeviceChoice, Loaded};
use std::path::{Path, PathBuf};
use train::report::metrics::Metrics;
use train::status::{REACHED, RunState, Status};

/// Maximum number of variants: more are a mistake in the values.
const MOST: usize = 1000;

/// Maximum length of a variant's name, which is a folder's.
const LONGEST_NAME: usize = 120;

/// Combination of values.
pub struct Variant {
    /// Its values, as the name of its folder: `lr.peak=3e-4_batch.global=64`.
    pub name: String,
    /// `KEY=VALUE` for every changed setting, its folder included.
    pub sets: Vec<String>,
    pub loaded: Loaded,
}

impl Variant {
    pub fn folder(&self) -> &Path {
        &self.loaded.manifest.log.folder
    }

    /// Whether its run has made its last step, or reached train.stop_at_loss.
    pub fn is_complete(&self) -> bool {
        Status::read(self.folder()).is_ok_and(|status| {
            status.state(self.folder(), f64::MAX) == RunState::Complete || status.phase == REACHED
        })
    }
}

/// All variants.
pub struct Variants {
    pub folder: PathBuf,
    pub all: Vec<Variant>,
    manifest: PathBuf,
}

/// Setting with its values, as written.
pub struct Axis<'a> {
    pub key: &'a str,
    pub values: Vec<&'a str>,
}

impl Variants {
    /// Reads the manifest with every combination of the values in `sets` (`KEY=VALUE,VALUE`). The error
    /// lists the mistakes of all variants. `folder` has the variants' folders; by default it is
    /// the manifest's own with `-sweep`.
    pub fn read(manifest: &Path, sets: &[String], folder: Option<&Path>) -> Result<Variants> {
        let axes = parse_axes("--set", sets)?;
        require_several("--set", &axes)?;
        let fewest: Vec<String> = axes
            .iter()
            .map(|axis| format!("{}={}", axis.key, axis.values[0]))
            .collect();
        let folder = match folder {
            Some(folder) => folder.to_path_buf(),
            None => {
                let first = manifest::load(manifest, &fewest)?.manifest.log.folder;
                let mut name = first.file_name().unwrap_or_default().to_os_string();
                name.push("-sweep");
                first.with_file_name(name)
            }
        };
        let mut problems = Problems::default();
        let mut all = Vec::new();
        for values in combine_values("--set", &axes)? {
            let name = name_variant(&axes, &values);
            let mut sets: Vec<String> = std::iter::zip(&axes, &values)
                .map(|(axis, value)| format!("{}={value}", axis.key))
                .collect();
            let own = serde_json::to_string(&folder.join(&name)).context("a path as text")?;
            sets.push(format!("log.folder={own}"));
            let loaded = problems.collect(manifest::load(manifest, &sets))?;
            all.extend(loaded.map(|loaded| Variant { name, sets, loaded }));
        }
        Ok(problems.or(Variants { folder, all, manifest: manifest.to_path_buf() })?)
    }

    /// Commands that run the variants.
    pub fn tasks(&self) -> Vec<Task> {
        self.all
            .iter()
            .map(|variant| {
                let mut words = vec!["run".into(), self.manifest.clone().into_os_string()];
                words.extend(
                    variant
                        .sets
                        .iter()
                        .flat_map(|set| ["--set".into(), set.into()]),
                );
                Task {
                    name: variant.name.clone(),
                    input: variant.loaded.effective.clone(),
                    launcher: Vec::new(),
                    words,
                    limit: None,
                    output: self.folder.join(format!("{}.log", variant.name)),
                    leaves: variant.folder().join(manifest::IN_FOLDER),
                }
            })
            .collect()
    }

    /// Whether the run of a task is complete.
    pub fn is_complete(&self, task: &Task) -> bool {
        self.all
            .iter()
            .any(|variant| variant.name == task.name && variant.is_complete())
    }

    /// Environment of each of `parallel` variants that run at the same time: its own GPUs, if this
    /// machine has any and the manifest uses them.
    pub fn environments(&self, parallel: usize) -> Result<Vec<Vec<(String, String)>>, Problems> {
        let manifests = || self.all.iter().map(|variant| &variant.loaded.manifest);
        let on_gpus = manifests().any(|m| m.train.device != DeviceChoice::Cpu);
        let count = if on_gpus && parallel > 1 { Gpu::count() } else { 0 };
        if count == 0 {
            return Ok(vec![Vec::new(); parallel]);
        }
        let ranks = manifests().map(|m| m.topology.ranks()).max().unwrap_or(1);
        if parallel * ranks > count {
            return Err(Problems::one(
                "--parallel",
                format!(
                    "{parallel} variants of {ranks} ranks need {} GPUs; this machine has {count}",
                    parallel * ranks
                ),
                format!("--parallel {}", (count / ranks).max(1)),
            ));
        }
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let names: Vec<String> = match &visible {
            Some(list) => list
                .split(',')
                .map(|name| name.trim().to_string())
                .collect(),
            None => (0..count).map(|number| number.to_string()).collect(),
        };
        let own = names.chunks(ranks).take(parallel);
        Ok(own
            .map(|own| vec![("CUDA_VISIBLE_DEVICES".to_string(), own.join(","))])
            .collect())
    }

    /// Folders of the variants that have made a step.
    pub fn started_folders(&self) -> Vec<PathBuf> {
        let folders = self
            .all
            .iter()
            .map(|variant| variant.folder().to_path_buf());
        folders
            .filter(|folder| Metrics::read(folder).is_ok())
            .collect()
    }
}

/// The settings of `option`, `KEY=VALUE,VALUE`, each with its values.
pub fn parse_axes<'a>(option: &str, sets: &'a [String]) -> Result<Vec<Axis<'a>>, Problems> {
    let example = format!("write {option} KEY=VALUE,VALUE, such as {option} lr.peak=1e-4,3e-4");
    let mut problems = Problems::default();
    let mut axes: Vec<Axis> = Vec::new();
    for set in sets {
        let place = format!("{option} {set}");
        let Some((key, values)) = set.split_once('=') else {
            problems.add(place, "there is no `=`", example.as_str());
            continue;
        };
        let key = key.trim();
        let values = split_values(values);
        if axes.iter().any(|axis| axis.key == key) {
            problems.add(
                place,
                format!("{key} is given twice"),
                format!("write its values in one {option}"),
            );
        } else if key == "log.folder" {
            problems.add(place, "each variant has its own folder", "name theirs with --output");
        } else if let Some(twice) = values.iter().find(|v| count(&values, v) > 1) {
            problems.add(place, format!("has the value {twice} twice"), "write it once");
        } else if values.contains(&"") {
            problems.add(place, "has an empty value", "remove a comma");
        }
        axes.push(Axis { key, values });
    }
    problems.or(axes)
}

/// Fails if there is nothing to combine.
fn require_several(option: &str, axes: &[Axis]) -> Result<(), Problems> {
    if axes.iter().any(|axis| axis.values.len() > 1) {
        return Ok(());
    }
    let remedy = format!("write {option} KEY=VALUE,VALUE, such as {option} lr.peak=1e-4,3e-4");
    Err(Problems::one(option, "no setting has several values", remedy))
}

fn count(values: &[&str], value: &str) -> usize {
    values.iter().filter(|other| **other == value).count()
}

/// Splits at commas outside brackets, braces and quotes.
pub fn split_values(values: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut depth = 0;
    let mut quote = None;
    for (at, c) in values.char_indices() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(c),
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            (',', None) if depth <= 0 => {
                parts.push(values[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(values[begin..].trim());
    parts
}

/// Every combination of the values; the last setting varies first.
pub fn combine_values<'a>(option: &str, axes: &[Axis<'a>]) -> Result<Vec<Vec<&'a str>>, Problems> {
    let number = axes
        .iter()
        .try_fold(1usize, |n, axis| n.checked_mul(axis.values.len()));
    if number.is_none_or(|number| number > MOST) {
        return Err(Problems::one(
            option,
            format!("the values have more than {MOST} combinations"),
            "write fewer values",
        ));
    }
    let mut all = vec![Vec::new()];
    for axis in axes {
        all = all
            .iter()
            .flat_map(|begin| {
                axis.values
                    .iter()
                    .map(|value| [&begin[..], &[*value]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    Ok(all)
}

/// Name of a combination: the values of the settings that have several.
fn name_variant(axes: &[Axis], values: &[&str]) -> String {
    let varied = std::iter::zip(axes, values).filter(|(axis, _)| axis.values.len() > 1);
    let parts: Vec<String> = varied
        .map(|(axis, value)| format!("{}={value}", axis.key))
        .collect();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '=' | '-' | '+' | '_');
    let name: String = parts
        .join("_")
        .chars()
        .map(|c| if plain(c) { c } else { '-' })
        .collect();
    if name.len() <= LONGEST_NAME && parts.iter().all(|part| part.chars().all(plain)) {
        return name;
    }
    // Other characters or a cut could make two names equal: the digest distinguishes them.
    let short: String = name.chars().take(LONGEST_NAME - 20).collect();
    format!("{short}_{:08x}", series::digest(&parts.join("\n")) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_brackets_and_quotes_belong_to_a_value() {
        assert_eq!(split_values("1e-4, 3e-4"), ["1e-4", "3e-4"]);
        assert_eq!(split_values("[a, b],{x: 1, y: 2}"), ["[a, b]", "{x: 1, y: 2}"]);
        assert_eq!(split_values("\"95,5,0\",'90,10,0'"), ["\"95,5,0\"", "'90,10,0'"]);
    }

    #[test]
    fn every_combination_has_its_own_name() {
        let sets = ["a=1,2", "b=7", "c=[x],[y],{z: 1}"].map(str::to_string);
        let axes = parse_axes("--set", &sets).unwrap();
        let all = combine_values("--set", &axes).unwrap();
        let names: std::collections::BTreeSet<_> =
            all.iter().map(|v| name_variant(&axes, v)).collect();
        assert_eq!((all.len(), names.len()), (6, 6));
        assert_eq!(all[1], ["1", "7", "[y]"]);
        let axes = parse_axes("--set", &sets[..2]).unwrap();
        assert_eq!(name_variant(&axes, &["2", "7"]), "a=2");
    }

    #[test]
    fn mistakes_in_values_are_named() {
        let wrong = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
            parse_axes("--set", &sets)
                .and_then(|axes| require_several("--set", &axes))
                .unwrap_err()
                .to_string()
        };
        assert!(wrong(&["a=1"]).contains("no setting has several values"));
        assert!(wrong(&["a=1,1"]).contains("the value 1 twice"));
        assert!(wrong(&["a=1,2", "a=3"]).contains("a is given twice"));
        assert!(wrong(&["a=1,,2"]).contains("an empty value"));
        assert!(wrong(&["a"]).contains("there is no `=`"));
        assert!(wrong(&["log.folder=a,b"]).contains("--output"));
    }
}
