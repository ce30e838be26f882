//! Mistakes in one manifest, each located by its key's path. Also records the keys that are
//! unreliable, so that no mistake is reported twice in different words.

use super::tree::{self, Location, Node};
use base::{Problem, Problems, redact};

pub struct Report<'a> {
    name: &'a str,
    root: &'a Node,
    found: Vec<(usize, Problem)>,
    invalid: Vec<String>,
}

/// Maximum number of listed mistakes. A file that is not a manifest may have thousands.
const MAX_PROBLEMS: usize = 100;

impl<'a> Report<'a> {
    pub fn new(name: &'a str, root: &'a Node) -> Report<'a> {
        Report { name, root, found: Vec::new(), invalid: Vec::new() }
    }

    /// Tree in which paths are looked up.
    pub fn root(&self) -> &'a Node {
        self.root
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether `MAX_PROBLEMS` are listed.
    pub fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    /// Adds a mistake in the value at `path`, or in its absence.
    pub fn add(&mut self, path: &str, what: impl Into<String>, remedy: impl Into<String>) {
        let place = &self.root.nearest(path).place;
        let order = match place {
            Location::File => usize::MAX - 1,
            Location::Line(line) => *line,
            Location::Set(_) => usize::MAX,
        };
        let place = tree::show(place, self.name);
        if !self.is_full() {
            let what = sanitize(&what.into());
            let remedy = sanitize(&remedy.into());
            self.found.push((order, Problem { place, what, remedy }));
        }
        self.invalid.push(path.to_string());
    }

    /// Adds a conflict between several values, located at the one from `--set`, or else at the
    /// first.
    pub fn add_conflict(
        &mut self,
        paths: &[&str],
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let path = paths
            .iter()
            .find(|path| matches!(self.root.nearest(path).place, Location::Set(_)))
            .unwrap_or(&paths[0]);
        self.add(path, what, remedy);
    }

    /// Marks the value at `path` as possibly misspelt elsewhere, so that its absence is not
    /// reported.
    pub fn mark_invalid(&mut self, path: &str) {
        self.invalid.push(path.to_string());
    }

    /// Whether no mistake was found in, above or below any of these paths.
    pub fn are_valid(&self, paths: &[&str]) -> bool {
        let within = |a: &str, b: &str| {
            b.is_empty() || a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('.'))
        };
        paths.iter().all(|path| {
            let mut invalid = self.invalid.iter();
            invalid.all(|invalid| !within(path, invalid) && !within(invalid, path))
        })
    }

    /// All mistakes in the order of the file's lines, then missing keys, then those of `--set`.
    pub fn problems(mut self) -> Problems {
        self.found.sort_by_key(|(order, _)| *order);
        Problems { list: self.found.into_iter().map(|(_, problem)| problem).collect() }
    }
}

/// Quotes text from a file: at most 500 characters, without control characters.
fn sanitize(text: &str) -> String {
    redact(text)
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .take(500)
        .collect()
}

/// At most 40 characters of a quoted text.
pub fn short(text: &str) -> String {
    let text = redact(text);
    match text.char_indices().nth(40) {
        None => text.replace('\n', " "),
        Some((end, _)) => format!("{}…", text[..end].replace('\n', " ")),
    }
}
