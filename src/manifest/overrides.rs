//! `--set a.b=c`: inserts values from the command line into the tree, as if they were in the file.

use super::define::OneOf;
use super::lr::DecaySection;
use super::optimizers::OptimizerSection;
use super::paths::resolve;
use super::report::short;
use super::run::is_hardware_file;
use super::tree::{self, Entry, Location, Node, Value};
use base::Problems;
use std::path::Path;

/// Alias: `optimizer.lr` means `lr.peak`.
pub const SECOND_NAME: (&str, &str) = ("optimizer.lr", "lr.peak");

/// Training datasets.
const TRAIN: &str = "data.train";

/// Maximum number of levels; no key has as many.
const LEVELS: usize = 16;

/// Mutually exclusive keys: one on the command line replaces another in the file.
const EXCLUSIVE: &[&[&str]] = &[
    &["train.samples", "train.tokens", "train.steps"],
    &["lr.warmup_samples", "lr.warmup_tokens"],
    DecaySection::KEYS,
    OptimizerSection::KEYS,
];

/// Settings that only some values of another have: with any other value, the file's are dropped.
const OF_SOME_VALUES: &[(&str, &[&str], &str)] = &[
    ("topology.schedule", &["interleaved", "breadth_first"], "topology.chunks"),
    ("topology.schedule", &["breadth_first"], "topology.zero_every"),
    ("precision", &["fp16"], "loss_scale"),
    ("model.ffn", &["gelu"], "model.gelu"),
    ("model.position", &["learned"], "model.positions"),
];

/// The same `KEY=VALUE` with absolute paths of data: on a command line a relative path starts at the
/// working folder, in a file at the file.
pub fn from_working_folder(sets: &[String]) -> Vec<String> {
    let Ok(folder) = std::env::current_dir() else { return sets.to_vec() };
    sets.iter()
        .map(|set| made_absolute(set, &folder).unwrap_or_else(|| set.clone()))
        .collect()
}

/// `set` with absolute paths; None if it has no relative one.
fn made_absolute(set: &str, folder: &Path) -> Option<String> {
    let (key, text) = set.split_once('=')?;
    let mut node = tree::parse(text, "", Some(key)).ok()?;
    let mut steps: Vec<String> = key.trim().split('.').map(String::from).collect();
    resolve_paths(&mut node, &mut steps, folder).then(|| format!("{key}={}", tree::flow(&node)))
}

/// Resolves relative paths below the key `steps`. Returns whether there were any.
fn resolve_paths(node: &mut Node, steps: &mut Vec<String>, folder: &Path) -> bool {
    let mut below = |step: String, node: &mut Node| {
        steps.push(step);
        let found = resolve_paths(node, steps, folder);
        steps.pop();
        found
    };
    match &mut node.value {
        Value::Null => false,
        Value::Map(entries) => entries
            .iter_mut()
            .fold(false, |found, entry| below(entry.key.clone(), &mut entry.node) | found),
        Value::List(items) => items
            .iter_mut()
            .enumerate()
            .fold(false, |found, (at, item)| below(at.to_string(), item) | found),
        Value::Scalar { text, quoted } => {
            let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
            let is_hardware = steps == ["plan", "hardware"] && is_hardware_file(text);
            let relative =
                (is_data_path(&steps) || is_hardware) && !text.is_empty() && !text.starts_with('/');
            let whole = resolve(folder, Path::new(text))
                .into_os_string()
                .into_string();
            if let Ok(whole) = whole
                && relative
            {
                (*text, *quoted) = (whole, true);
            }
            relative
        }
    }
}

/// Whether a key's value is a path that starts at the manifest's folder.
fn is_data_path(steps: &[&str]) -> bool {
    match steps {
        ["data", "tokenizer"] | ["train", "eval_tasks", _, "file"] => true,
        ["data", "train", rest @ ..]
        | ["data", "valid", _, rest @ ..]
        | ["data", "stages", _, "train", rest @ ..] => match rest {
            [] | ["prefix" | "weights_file"] => true,
            [item] | [item, "prefix" | "weights_file"] => item.parse::<usize>().is_ok(),
            _ => false,
        },
        _ => false,
    }
}

/// Applies every `PATH=VALUE`. Later ones override earlier ones.
pub fn apply(root: &mut Node, sets: &[String]) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let splits = sets
        .iter()
        .any(|set| set.trim_start().starts_with("data.split"));
    for set in sets {
        let Some((path, text)) = set.split_once('=') else {
            problems.add(
                format!("--set {set}"),
                "there is no `=`",
                "write --set KEY=VALUE, such as --set lr.peak=3e-4",
            );
            continue;
        };
        let path = path.trim();
        if path.split('.').any(str::is_empty) || path.split('.').nth(LEVELS).is_some() {
            let set = short(set);
            problems.add(
                format!("--set {set}"),
                format!("`{}` is not a key", short(path)),
                "write --set KEY=VALUE, such as --set lr.peak=3e-4",
            );
            continue;
        }
        match tree::parse(text, "", Some(path)) {
            Err(found) => problems.list.extend(found.list),
            Ok(mut node) => {
                let target = if path == SECOND_NAME.0 { SECOND_NAME.1 } else { path };
                if target == TRAIN && !splits {
                    keep_split(root, &mut node);
                }
                let steps: Vec<&str> = target.split('.').collect();
                // An empty value does not replace the other keys.
                let others = replaced(target).filter(|_| node.value != Value::Null);
                others.for_each(|other| remove(root, other));
                drop_settings_of_other_values(root, target, text.trim());
                if let Err(what) = put(root, &steps, node, path) {
                    problems.add(format!("--set {path}"), what, "give the path of one key");
                }
            }
        }
    }
    problems.or(())
}

/// Removes the file's settings that the new value of `target` does not have. Those of another `--set`
/// remain, and are refused.
fn drop_settings_of_other_values(root: &mut Node, target: &str, value: &str) {
    let dropped = OF_SOME_VALUES
        .iter()
        .filter(|(key, owners, _)| *key == target && !owners.contains(&value));
    for (_, _, setting) in dropped {
        if root
            .at(setting)
            .is_some_and(|node| !matches!(node.place, Location::Set(_)))
        {
            remove(root, setting);
        }
    }
}

/// Gives the datasets that replace those of `data.train` the split of the latter, unless they have one:
/// data that was moved is split as before, and the run does not train on what validates it.
fn keep_split(root: &Node, new: &mut Node) {
    let Some(old) = root.at(TRAIN).filter(|_| root.at("data.split").is_none()) else { return };
    let old = match &old.value {
        Value::List(items) => &items[..],
        _ => std::slice::from_ref(old),
    };
    let splits: Vec<_> = old
        .iter()
        .map(|old| old.child("split").map(|split| &split.value))
        .collect();
    let Some(Some(split)) = splits
        .first()
        .filter(|first| splits.iter().all(|s| s == *first))
    else {
        return;
    };
    let entry = |key: &str, node| Entry { key: key.to_string(), node };
    let give = |dataset: &mut Node| {
        if let Value::Scalar { .. } = dataset.value {
            dataset.value = Value::Map(vec![entry("prefix", dataset.clone())]);
        }
        let given = ["split", "range"]
            .iter()
            .any(|key| dataset.child(key).is_some());
        if let Value::Map(entries) = &mut dataset.value
            && !given
        {
            let node = Node { place: dataset.place.clone(), value: (*split).clone() };
            entries.push(entry("split", node));
        }
    };
    if let Value::List(items) = &mut new.value {
        items.iter_mut().for_each(give);
    } else {
        give(new);
    }
}

/// Moves the file's value under the alias to the main name.
pub fn rename(root: &mut Node, name: &str) -> Result<(), Problems> {
    let (from, to) = SECOND_NAME;
    let Some(node) = root.at(from).cloned() else { return Ok(()) };
    if let Some(other) = root.at(to) {
        let here = tree::show(&node.place, name);
        let there = tree::show(&other.place, name);
        return Err(Problems::one(
            here,
            format!("{from} and {to} ({there}) are the same setting, given twice"),
            "remove one of them",
        ));
    }
    remove(root, from);
    let steps: Vec<&str> = to.split('.').collect();
    let place = tree::show(&node.place, name);
    put(root, &steps, node, from).map_err(|what| Problems::one(place, what, ""))
}

/// Other keys of the exclusive group that contains `path`.
pub fn replaced(path: &str) -> impl Iterator<Item = &'static str> {
    let is_below = |key: &str| {
        path.strip_prefix(key)
            .is_some_and(|r| r.is_empty() || r.starts_with('.'))
    };
    let group = EXCLUSIVE
        .iter()
        .find(|group| group.iter().any(|key| is_below(key)));
    let others = group.into_iter().flat_map(|group| group.iter().copied());
    others
        .filter(|key| !is_below(key))
        .collect::<Vec<_>>()
        .into_iter()
}

/// Removes the key at a dotted path.
pub fn remove(node: &mut Node, path: &str) {
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    if let Value::Map(entries) = &mut node.value {
        match rest {
            "" => entries.retain(|entry| entry.key != step),
            _ => entries
                .iter_mut()
                .filter(|entry| entry.key == step)
                .for_each(|entry| remove(&mut entry.node, rest)),
        }
    }
}

/// `cosine`, `adam8bit`.
fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c == '_';
    text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// Puts `new` at the path `steps` below `node`, making sections that are missing.
fn put(node: &mut Node, steps: &[&str], new: Node, path: &str) -> Result<(), String> {
    let Some((step, rest)) = steps.split_first() else {
        *node = new;
        return Ok(());
    };
    if node.value == Value::Null {
        node.value = Value::Map(Vec::new());
    }
    match &mut node.value {
        Value::Map(entries) => {
            let found = entries.iter().position(|entry| entry.key == *step);
            let index = found.unwrap_or_else(|| {
                let node = Node::empty(Location::Set(path.to_string()));
                entries.push(Entry { key: step.to_string(), node });
                entries.len() - 1
            });
            put(&mut entries[index].node, rest, new, path)
        }
        Value::List(items) => {
            let count = items.len();
            match step
                .parse::<usize>()
                .ok()
                .and_then(|index| items.get_mut(index))
            {
                Some(item) => put(item, rest, new, path),
                None => Err(format!("`{step}` is not an item of a list of {count}, from 0")),
            }
        }
        // A name (`decay: cosine`) is replaced by the settings that the path names.
        Value::Scalar { text, .. } if is_name(text) => {
            node.value = Value::Map(Vec::new());
            put(node, steps, new, path)
        }
        Value::Scalar { text, .. } => {
            Err(format!("there is no `{step}` in the value \"{text}\": set that value as a whole"))
        }
        Value::Null => unreachable!("made a section above"),
    }
}
