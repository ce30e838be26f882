//! The mistakes found in one manifest, each placed by its key's path; and which keys can no longer
//! be relied on, so that no mistake is reported twice in different words.

use super::tree::{self, Location, Node};
use base::{Problem, Problems};

pub struct Report<'a> {
    name: &'a str,
    root: &'a Node,
    found: Vec<(usize, Problem)>,
    bad: Vec<String>,
}

/// Mistakes listed at most: a file that is no manifest may have thousands.
const MAX_PROBLEMS: usize = 100;

impl<'a> Report<'a> {
    pub fn new(name: &'a str, root: &'a Node) -> Report<'a> {
        Report { name, root, found: Vec::new(), bad: Vec::new() }
    }

    /// The tree the paths are looked up in.
    pub fn root(&self) -> &'a Node {
        self.root
    }

    /// Whether `MAX_PROBLEMS` are listed.
    pub fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    /// A mistake in the value at `path`, or in its absence.
    pub fn add(&mut self, path: &str, what: impl Into<String>, remedy: impl Into<String>) {
        let place = &self.root.nearest(path).place;
        let order = match place {
            Location::File => usize::MAX - 1,
            Location::Line(line) => *line,
            Location::Set(_) => usize::MAX,
        };
        let place = tree::show(place, self.name);
        if !self.is_full() {
            let (what, remedy) = (tame(&what.into()), tame(&remedy.into()));
            self.found.push((order, Problem { place, what, remedy }));
        }
        self.bad.push(path.to_string());
    }

    /// A mistake between several values: placed at the one that `--set` gave, else at the first.
    pub fn between(&mut self, paths: &[&str], what: impl Into<String>, remedy: impl Into<String>) {
        let set = |path: &&&str| matches!(self.root.nearest(path).place, Location::Set(_));
        let path = paths.iter().find(set).unwrap_or(&paths[0]);
        self.add(path, what, remedy);
    }

    /// The value at `path` may stand elsewhere, misspelt: its absence is no further mistake.
    pub fn distrust(&mut self, path: &str) {
        self.bad.push(path.to_string());
    }

    /// Whether nothing was found wrong in, above or below any of these paths.
    pub fn sound(&self, paths: &[&str]) -> bool {
        let within = |a: &str, b: &str| {
            b.is_empty() || a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('.'))
        };
        paths.iter().all(|path| !self.bad.iter().any(|bad| within(path, bad) || within(bad, path)))
    }

    /// All mistakes in the order of the file's lines, then what is missing, then those of `--set`.
    pub fn or<T>(mut self, value: T) -> Result<T, Problems> {
        self.found.sort_by_key(|(order, _)| *order);
        Problems { list: self.found.into_iter().map(|(_, problem)| problem).collect() }.or(value)
    }
}

/// Text quoted from a file: at most 500 characters, without the control codes of a terminal.
fn tame(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    plain.take(500).collect()
}

/// At most 40 characters of something a message quotes.
pub fn short(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => text.replace('\n', " "),
        Some((end, _)) => format!("{}…", text[..end].replace('\n', " ")),
    }
}
