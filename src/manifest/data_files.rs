//! Datasets that a manifest names by a file of weights, by a pattern, or without weights. Before the
//! data section is checked, explicit datasets take their place, each with its prefix, weight and
//! range. The run's folder records those, so that a resume does not depend on the file or on the
//! folder of the datasets.

use super::data::{
    Blend, DEFAULT_SPLIT, DatasetForm, DatasetSection, Named, list_sections, raw, split_shares,
};
use super::paths::resolve;
use super::report::Report;
use base::input;
use std::fs;
use std::path::{Path, PathBuf};

/// Form of a group of a file of weights.
const GROUP: &str = "\"NAME: WEIGHT FROM:TO PREFIX, WEIGHT FROM:TO PREFIX\"";

/// Name in `data.valid` of one set for each match or group.
const EACH: &str = "*";

/// Group of datasets with a name.
type Group = (String, Vec<DatasetSection>);

/// Replaces files of weights, patterns and `data.size_exponent` of the section. Relative paths start at
/// `folder`.
pub fn expand(data: &mut raw::Data, folder: &Path, report: &mut Report) {
    let fallback = match (&data.split, &data.valid) {
        (Some(split), _) => Some(split.clone()),
        (None, None) => Some(DEFAULT_SPLIT.to_string()),
        (None, Some(_)) => None,
    };
    let mut files = DataFiles { folder, report };
    let exponent = data.size_exponent.take();
    let stages = data.stages.iter_mut().flatten().enumerate();
    let stages = stages.map(|(i, stage)| (format!("data.stages.{i}.train"), &mut stage.train));
    let train = std::iter::once(("data.train".to_string(), &mut data.train));
    for (path, blend) in train.chain(stages) {
        files.expand_blend(blend, &path);
        if let (Some(exponent), Some(blend)) = (exponent, blend) {
            files.weigh(blend, &path, exponent, fallback.as_deref());
        }
    }
    if let Some(sets) = &mut data.valid {
        files.expand_sets(sets);
    }
}

struct DataFiles<'a, 'r> {
    folder: &'a Path,
    report: &'a mut Report<'r>,
}

impl DataFiles<'_, '_> {
    /// Validation sets: one for each group or match of the set `*`, and the others with explicit datasets.
    fn expand_sets(&mut self, sets: &mut Named) {
        let mut expanded: Vec<(String, Blend)> = Vec::new();
        for (name, blend) in std::mem::take(&mut sets.0) {
            let path = format!("data.valid.{name}");
            if name != EACH {
                let mut blend = Some(blend);
                self.expand_blend(&mut blend, &path);
                expanded.extend(blend.map(|blend| (name, blend)));
                continue;
            }
            for (place, section) in list_sections(blend, &path) {
                for (name, datasets) in self.groups(&section, &place) {
                    let plain = |c: char| if c.is_alphanumeric() || c == '-' { c } else { '_' };
                    let name: String = name.chars().map(plain).collect();
                    let name = if name.is_empty() { "valid".to_string() } else { name };
                    expanded.push((name, several(datasets)));
                }
            }
        }
        let mut names: Vec<&String> = expanded.iter().map(|(name, _)| name).collect();
        names.sort();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let what = format!("data.valid: two sets have the name {}", twice[0]);
            self.report
                .add("data.valid", what, "rename one, or write the sets one by one");
            expanded.dedup_by(|a, b| a.0 == b.0);
        }
        sets.0 = expanded;
    }

    /// Groups of a section of the set `*`: those of its file of weights, or a dataset for each match.
    fn groups(&mut self, section: &DatasetSection, path: &str) -> Vec<Group> {
        if let Some(file) = &section.weights_file {
            return self.read_weights(section, file, path);
        }
        match pattern(section) {
            Some(pattern) => self
                .matches(&pattern, path)
                .into_iter()
                .map(|(prefix, name)| (name, vec![with_prefix(section, prefix)]))
                .collect(),
            None => {
                self.report.add(
                    path,
                    format!("{path}: the set `*` names neither a pattern nor a weights_file"),
                    "give the set a name of its own, or a prefix with a *",
                );
                Vec::new()
            }
        }
    }

    /// Replaces files of weights and patterns in a blend; another blend keeps its form.
    fn expand_blend(&mut self, blend: &mut Option<Blend>, path: &str) {
        let Some(given) = blend else { return };
        let sections = list_sections(given.clone(), path);
        let is_explicit =
            |section: &DatasetSection| section.weights_file.is_none() && pattern(section).is_none();
        if sections.iter().all(|(_, section)| is_explicit(section)) {
            return;
        }
        let mut datasets = Vec::new();
        for (place, section) in sections {
            if let Some(file) = &section.weights_file {
                let mut groups = self.read_weights(&section, file, &place);
                if groups.len() > 1 {
                    let names: Vec<&str> = groups.iter().map(|(name, _)| &name[..]).collect();
                    let what = format!(
                        "{place}: {} has {} groups ({}), and a blend is one",
                        file.display(),
                        groups.len(),
                        names.join(", ")
                    );
                    self.report.add(
                        &place,
                        what,
                        "keep one group; in data.valid, the set \"*\" makes a set of each",
                    );
                }
                datasets.extend(groups.drain(..).flat_map(|(_, datasets)| datasets));
            } else if let Some(pattern) = pattern(&section) {
                let found = self.matches(&pattern, &place);
                datasets.extend(
                    found
                        .into_iter()
                        .map(|(prefix, _)| with_prefix(&section, prefix)),
                );
            } else {
                datasets.push(section);
            }
        }
        // A problem is in the report; the blend itself has none.
        if !datasets.is_empty() {
            *given = several(datasets);
        } else {
            *blend = None;
            self.report.mark_invalid(path);
        }
    }

    /// Groups of a file of weights, as Megatron's `--train-weighted-split-paths-path` reads them.
    fn read_weights(&mut self, section: &DatasetSection, file: &Path, path: &str) -> Vec<Group> {
        let others = [
            ("prefix", section.prefix.is_some()),
            ("weight", section.weight.is_some()),
            ("split", section.split.is_some()),
            ("part", section.part.is_some()),
            ("range", section.range.is_some()),
        ];
        for (key, _) in others.iter().filter(|(_, given)| *given) {
            self.report.add(
                &format!("{path}.{key}"),
                format!("{path} has a weights_file and a {key}"),
                "keep one of them: the file has prefixes, weights and ranges",
            );
        }
        let file = resolve(self.folder, file);
        let text = match input::read(&file, input::SMALL) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                self.report.add(
                    &format!("{path}.weights_file"),
                    format!("{path}.weights_file: cannot read {}: {error}", file.display()),
                    "give a file; a relative path starts at the manifest's folder",
                );
                return Vec::new();
            }
        };
        let base = file.parent().unwrap_or(Path::new("/"));
        let mut groups = Vec::new();
        for (number, group) in (1..).zip(list_weight_groups(&text)) {
            match read_group(group, base) {
                Ok(group) => groups.push(group),
                Err(what) => {
                    let what = format!("{}, group {number}: {what}", file.display());
                    let remedy = format!("write {GROUP}, with ranges within 0:1");
                    self.report
                        .add(&format!("{path}.weights_file"), what, remedy);
                }
            }
        }
        if groups.is_empty() && self.report.are_valid(&[path]) {
            self.report.add(
                &format!("{path}.weights_file"),
                format!("{} has no group of datasets", file.display()),
                format!("write {GROUP}"),
            );
        }
        groups
    }

    /// Prefixes of the datasets that match a pattern, each with what its wildcards matched, by name.
    fn matches(&mut self, pattern: &Path, path: &str) -> Vec<(PathBuf, String)> {
        let mut found = vec![(PathBuf::new(), Vec::new())];
        let whole = resolve(self.folder, pattern);
        let parts: Vec<String> = whole
            .components()
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .collect();
        for (i, part) in parts.iter().enumerate() {
            let index = i + 1 == parts.len();
            let mut next = Vec::new();
            for (folder, words) in found {
                if !has_wildcard(part) {
                    next.push((folder.join(part), words));
                    continue;
                }
                let file = if index { format!("{part}.idx") } else { part.clone() };
                for (name, matched) in list_matches(&folder, &file) {
                    let name = if index { name[..name.len() - 4].to_string() } else { name };
                    next.push((folder.join(name), [&words[..], &[matched]].concat()));
                }
            }
            found = next;
        }
        let mut found: Vec<(PathBuf, String)> = found
            .into_iter()
            .filter(|(prefix, _)| with_ending(prefix, "idx").is_file())
            .map(|(prefix, words)| (prefix, words.join("_")))
            .collect();
        found.sort();
        if found.is_empty() {
            self.report.add(
                path,
                format!("{path}: no dataset matches {}", whole.display()),
                "write a PREFIX of PREFIX.idx, in which * matches a part of a name; a relative one \
                 starts at the manifest's folder",
            );
        }
        found
    }

    /// Sets the weights of a blend to tokens^exponent, which add up to 1.
    fn weigh(&mut self, blend: &mut Blend, path: &str, exponent: f64, split: Option<&str>) {
        let mut sections = list_sections(blend.clone(), path);
        let mut weights = Vec::new();
        for (place, section) in &sections {
            if section.weight.is_some() {
                self.report.add(
                    &format!("{place}.weight"),
                    format!("{place} has a weight, and data.size_exponent computes the weights"),
                    "remove one of them",
                );
                return;
            }
            let prefix = resolve(self.folder, &section.prefix.clone().unwrap_or_default());
            match count_tokens(&prefix) {
                Ok(tokens) => weights.push((tokens as f64 * share(section, split)).powf(exponent)),
                Err(error) => {
                    self.report.add(
                        place,
                        format!("{place}: cannot count the tokens of {}: {error}", prefix.display()),
                        "data.size_exponent needs the datasets: give their PREFIX, or weights in its \
                         place",
                    );
                    return;
                }
            }
        }
        let sum: f64 = weights.iter().sum();
        for ((_, section), weight) in sections.iter_mut().zip(weights) {
            section.weight = Some(weight / sum);
        }
        *blend = several(sections.into_iter().map(|(_, section)| section).collect());
    }
}

fn several(datasets: Vec<DatasetSection>) -> Blend {
    let forms: Vec<DatasetForm> = datasets.into_iter().map(DatasetForm::Full).collect();
    forms.into()
}

fn with_prefix(section: &DatasetSection, prefix: PathBuf) -> DatasetSection {
    DatasetSection { prefix: Some(prefix), ..section.clone() }
}

/// Prefix of a section if it is a pattern.
fn pattern(section: &DatasetSection) -> Option<PathBuf> {
    let prefix = section.prefix.as_ref()?;
    has_wildcard(&prefix.to_string_lossy()).then(|| prefix.clone())
}

fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?'])
}

fn with_ending(prefix: &Path, ending: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Names in a folder that match a pattern, each with what its wildcards matched.
fn list_matches(folder: &Path, pattern: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let pattern: Vec<char> = pattern.chars().collect();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .filter_map(|name| {
            let matched = match_name(&pattern, &name.chars().collect::<Vec<_>>())?;
            Some((name, matched))
        })
        .collect()
}

/// Parts of a name that the wildcards of a pattern match, joined by `_`. None if the name does not match.
fn match_name(pattern: &[char], name: &[char]) -> Option<String> {
    let Some((first, rest)) = pattern.split_first() else {
        return name.is_empty().then(String::new);
    };
    let lengths = match first {
        '*' => 0..=name.len(),
        '?' => 1..=1,
        letter => {
            let (own, after) = name.split_first()?;
            return if own == letter { match_name(rest, after) } else { None };
        }
    };
    lengths.filter(|n| *n <= name.len()).find_map(|n| {
        let others = match_name(rest, &name[n..])?;
        let own: String = name[..n].iter().collect();
        Some(if others.is_empty() { own } else { format!("{own}_{others}") })
    })
}

/// Groups of a file of weights, each `NAME: WEIGHT FROM:TO PREFIX, …`: texts in quotes, or, without any,
/// lines.
pub fn list_weight_groups(text: &str) -> Vec<&str> {
    if text.contains('"') {
        return text.split('"').skip(1).step_by(2).collect();
    }
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// Reads `NAME: WEIGHT FROM:TO PREFIX, …`. Relative prefixes start at `base`.
fn read_group(group: &str, base: &Path) -> Result<Group, String> {
    let named = group.split_once(':');
    let Some((name, list)) = named.filter(|(name, _)| name.split_whitespace().count() == 1) else {
        return Err(format!("`{}` does not begin with a name and a colon", excerpt(group)));
    };
    let mut datasets = Vec::new();
    for item in list.split(',') {
        let words: Vec<&str> = item.split_whitespace().collect();
        let [weight, range, prefix] = words[..] else {
            return Err(format!("`{}` is not a weight, a range and a prefix", excerpt(item)));
        };
        let ends = range
            .split_once(':')
            .and_then(|(from, to)| Some((from.parse::<f64>().ok()?, to.parse::<f64>().ok()?)));
        let weight = weight
            .parse::<f64>()
            .ok()
            .filter(|weight| (0.0..=1e12).contains(weight));
        let (Some(weight), Some((from, to))) = (weight, ends) else {
            return Err(format!("`{}` has no number as its weight or range", excerpt(item)));
        };
        if !(0.0 <= from && from < to && to <= 1.0) {
            return Err(format!("`{}`: the range {range} is not within 0:1", excerpt(item)));
        }
        datasets.push(DatasetSection {
            prefix: Some(resolve(base, Path::new(prefix))),
            weight: Some(weight),
            range: Some(format!("{from:?}..{to:?}")),
            ..DatasetSection::default()
        });
    }
    Ok((name.trim().to_string(), datasets))
}

/// Start of a text, for messages.
fn excerpt(text: &str) -> String {
    text.trim().chars().take(60).collect()
}

/// Share of a dataset's sequences that a section reads, as far as it is written well.
fn share(section: &DatasetSection, fallback: Option<&str>) -> f64 {
    let ends = section.range.as_ref().and_then(|range| {
        let (from, to) = range.split_once("..").or(range.split_once(':'))?;
        Some((from.trim().parse::<f64>().ok()?, to.trim().parse::<f64>().ok()?))
    });
    if let Some((from, to)) = ends {
        return to - from;
    }
    let part = section.part.map_or(0, |part| part as usize);
    let split = section.split.as_deref().or(fallback);
    split
        .and_then(split_shares)
        .map_or(1.0, |shares| shares[part] / shares.iter().sum::<f64>())
}

/// Tokens of a dataset, by the size of PREFIX.bin and the token type in PREFIX.idx.
fn count_tokens(prefix: &Path) -> Result<u64, String> {
    let index = with_ending(prefix, "idx");
    let header = read_header(&index).map_err(|error| format!("{}: {error}", index.display()))?;
    // As Megatron numbers its types of integers: u8, i8, i16, i32, i64, and u16.
    let size = match header {
        Some(1 | 2) => 1,
        Some(3 | 8) => 2,
        Some(4) => 4,
        Some(5) => 8,
        _ => return Err(format!("{} is not an index of Megatron's", index.display())),
    };
    let bin = with_ending(prefix, "bin");
    let about = fs::metadata(&bin).map_err(|error| format!("{}: {error}", bin.display()))?;
    Ok(about.len() / size)
}

/// Number of the token type in an index; None if the file is none.
fn read_header(index: &Path) -> std::io::Result<Option<u8>> {
    use std::io::Read;
    let mut header = [0; 18];
    let mut file = input::open(index)?;
    Ok(match file.read_exact(&mut header) {
        Ok(()) if header.starts_with(b"MMIDIDX\0\0") => Some(header[17]),
        Ok(()) => None,
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
        Err(error) => return Err(error),
    })
}
