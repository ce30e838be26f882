//! No two files import each other, directly or through others.
//!
//! A path is followed through `pub use` to the file that has the item. What a folder's `mod.rs` and
//! the files below it take from one another does not count: the folder is then one thing.

use crate::source::{code, files};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// `data::order` as ["data", "order"].
type Module = Vec<String>;

/// The floors, as a path to one begins.
const FLOORS: [&str; 16] = [
    "base::",
    "plan::",
    "manifest::",
    "data::",
    "device::",
    "comm::",
    "model::",
    "engine::",
    "checkpoint::",
    "exchange::",
    "estimate::",
    "predict::",
    "launch::",
    "bench::",
    "train::",
    "commands::",
];

fn is_floor(name: &str) -> bool {
    FLOORS
        .iter()
        .any(|floor| floor.trim_end_matches(':') == name)
}

struct File {
    /// Every path named, from the crate on.
    paths: BTreeSet<Module>,
    /// Names given by `pub use`: (name, module of the original; the name `*` means all).
    exports: Vec<(String, Module)>,
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let files: BTreeMap<Module, File> = files("src", "rs")
        .into_iter()
        .filter(|(path, _)| !path.ends_with("tests.rs"))
        .map(|(path, text)| (module(&path), File::read(&module(&path), &code(&text))))
        .collect();
    let mut imports: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for (from, file) in &files {
        let targets = file
            .paths
            .iter()
            .filter_map(|path| resolve(&files, path, 0));
        let related = |to: &&Module| !to.starts_with(from) && !from.starts_with(to);
        imports.insert(from, targets.filter(related).collect());
    }
    let circles: Vec<String> = circles(&imports).iter().map(|c| names(c)).collect();
    assert!(circles.is_empty(), "files that import each other:\n{}", circles.join("\n"));
}

fn names(circle: &[&Module]) -> String {
    circle
        .iter()
        .map(|module| module.join("::"))
        .collect::<Vec<_>>()
        .join(" → ")
}

fn module(path: &Path) -> Module {
    let path = path.strip_prefix("src").unwrap().with_extension("");
    let mut module: Module = path
        .iter()
        .map(|part| part.to_str().unwrap().to_string())
        .collect();
    module.pop_if(|last| *last == "mod");
    module.pop_if(|last| *last == "lib" || *last == "main");
    module
}

/// The file that a path leads to.
fn resolve<'f>(
    files: &'f BTreeMap<Module, File>,
    path: &[String],
    depth: usize,
) -> Option<&'f Module> {
    if depth > 8 {
        return None;
    }
    let length = (0..=path.len())
        .rev()
        .find(|n| files.contains_key(&path[..*n]))?;
    let (found, file) = files.get_key_value(&path[..length])?;
    let Some(name) = path.get(length) else { return Some(found) };
    let named = file.exports.iter().find(|(export, _)| export == name);
    if let Some((_, target)) = named {
        let path: Module = target.iter().chain(&path[length + 1..]).cloned().collect();
        return resolve(files, &path, depth + 1);
    }
    Some(found)
}

impl File {
    fn read(module: &Module, code: &str) -> File {
        let code = code.split("#[cfg(test)]").next().unwrap();
        let mut file = File { paths: BTreeSet::new(), exports: Vec::new() };
        for (at, _) in code.match_indices("use ") {
            let before = code[..at].trim_end();
            let is_item = before.is_empty()
                || before.ends_with([';', '}', '{', ']', ')'])
                || before.ends_with("pub");
            if !is_item {
                continue;
            }
            let tree = code[at + 4..].split(';').next().unwrap();
            let public = before.ends_with("pub") || before.ends_with(')');
            for (path, name) in expand(tree) {
                let Some(path) = absolute(module, &path) else { continue };
                if public {
                    file.exports.push((name, path.clone()));
                }
                file.paths.insert(path);
            }
        }
        for start in ["crate::", "super::"].into_iter().chain(FLOORS) {
            for (at, _) in code.match_indices(start) {
                let inside =
                    code[..at].ends_with(|c: char| c == ':' || c == '_' || c.is_alphanumeric());
                let end = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
                let path = code[at..].split(end).next().unwrap();
                let parts: Module = path
                    .split("::")
                    .filter(|p| !p.is_empty())
                    .map(String::from)
                    .collect();
                file.paths
                    .extend(absolute(module, &parts).filter(|_| !inside));
            }
        }
        file
    }
}

/// `a::{b, c::d as e}` as (a::b, b), (a::c::d, e).
fn expand(tree: &str) -> Vec<(Module, String)> {
    let tree = tree.trim();
    let Some((head, body)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut parts: Module = path
            .split("::")
            .map(|part| part.trim().to_string())
            .collect();
        parts.pop_if(|last| *last == "self" || *last == "*");
        let name = if name.is_empty() {
            parts.last().cloned().unwrap_or_default()
        } else {
            name.trim().into()
        };
        return vec![(parts, name)];
    };
    let body = body.trim_end().strip_suffix('}').unwrap_or(body);
    let mut depth = 0;
    let parts = body.split(|c: char| {
        depth += (c == '{') as i32 - (c == '}') as i32;
        c == ',' && depth == 0
    });
    let parts = parts.filter(|part| !part.trim().is_empty());
    parts
        .flat_map(|part| expand(&format!("{head}{}", part.trim())))
        .collect()
}

/// A path from `src/` on; none for crates of others.
fn absolute(module: &Module, path: &[String]) -> Option<Module> {
    let mut at: Module = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            let floor = module.first().filter(|floor| is_floor(floor));
            return Some(floor.into_iter().chain(&path[1..]).cloned().collect());
        }
        floor if is_floor(floor) => return Some(path.to_vec()),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        // A child of this module, or another crate, which is then no file.
        _ => (),
    }
    at.extend_from_slice(rest);
    Some(at)
}

/// One circle for each group of files that reach each other.
fn circles<'m>(imports: &BTreeMap<&'m Module, BTreeSet<&'m Module>>) -> Vec<Vec<&'m Module>> {
    let mut found: Vec<Vec<&Module>> = Vec::new();
    for start in imports.keys() {
        if found.iter().flatten().any(|module| module == start) {
            continue;
        }
        found.extend(back_to(start, imports));
    }
    found
}

/// The shortest way from a file back to itself.
fn back_to<'m>(
    start: &&'m Module,
    imports: &BTreeMap<&'m Module, BTreeSet<&'m Module>>,
) -> Option<Vec<&'m Module>> {
    let mut ways = vec![vec![*start]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in imports.get(way.last()?).into_iter().flatten() {
                let way: Vec<&Module> = way.iter().copied().chain([*next]).collect();
                if next == start {
                    return Some(way);
                }
                if seen.insert(*next) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}
