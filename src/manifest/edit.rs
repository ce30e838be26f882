//! Lines of a manifest that `--set` names: they change, the comments stay.

use super::overrides::{self, SECOND_NAME, replaced};
use super::tree;

/// The text with the lines of `sets` changed; None if it then does not have the same meaning.
pub fn edit(text: &str, sets: &[String], is_same: impl Fn(&str) -> bool) -> Option<String> {
    let edited = sets
        .iter()
        .try_fold(text.to_string(), |text, set| edit_line(&text, set));
    edited.filter(|text| is_same(text))
}

fn edit_line(text: &str, set: &str) -> Option<String> {
    let (path, value) = set.split_once('=')?;
    let path = if path.trim() == SECOND_NAME.0 { SECOND_NAME.1 } else { path.trim() };
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    for other in replaced(path) {
        let steps: Vec<&str> = other.split('.').collect();
        if let Ok((at, indent)) = find(&lines, &steps) {
            lines.drain(at..end_of_key(&lines, at, indent));
        }
    }
    let steps: Vec<&str> = path.split('.').collect();
    match find(&lines, &steps) {
        Ok((at, indent)) => {
            let line = line(indent, &steps[steps.len() - 1..], value);
            lines.splice(at..end_of_key(&lines, at, indent), [line]);
        }
        Err((at, _, known)) if known > 0 && has_value(&lines[at - 1]) => {
            let key = &steps[..known];
            lines[at - 1] = line(2 * (known - 1), &key[known - 1..], &value_with(text, key, set)?);
        }
        Err((at, indent, known)) => lines.insert(at, line(indent, &steps[known..], value)),
    }
    Some(lines.join("\n") + "\n")
}

/// Whether a key's value is on its line: `eod: {token: 3}`.
fn has_value(line: &str) -> bool {
    let value = line.split_once(':').map_or("", |(_, value)| value.trim());
    !value.is_empty() && !value.starts_with('#')
}

/// Value of a key in one line, after `set`.
fn value_with(text: &str, key: &[&str], set: &str) -> Option<String> {
    let mut root = tree::parse(text, "", None).ok()?;
    overrides::apply(&mut root, &[set.to_string()]).ok()?;
    Some(tree::flow(root.at(&key.join("."))?))
}

/// `key: {key: value}`.
fn line(indent: usize, steps: &[&str], value: &str) -> String {
    let first = steps[0];
    let rest = &steps[1..];
    let opened: String = rest.iter().map(|step| format!("{{{step}: ")).collect();
    let closed = "}".repeat(rest.len());
    format!("{}{first}: {opened}{value}{closed} # --set", " ".repeat(indent))
}

/// The line of a key, and its indentation. The error is where a line for it belongs, with the
/// indentation there and the number of steps that have lines.
fn find(lines: &[String], steps: &[&str]) -> Result<(usize, usize), (usize, usize, usize)> {
    let mut range = 0..lines.len();
    let mut indent = 0;
    for (found, step) in steps.iter().enumerate() {
        let key = format!("{}{step}:", " ".repeat(indent));
        let Some(at) = range.clone().find(|at| lines[*at].starts_with(&key)) else {
            let at = if found == 0 { lines.len() } else { range.start };
            return Err((at, indent, found));
        };
        if found + 1 == steps.len() {
            return Ok((at, indent));
        }
        range = at + 1..end_of_key(lines, at, indent);
        indent += 2;
    }
    unreachable!("a key has a step")
}

/// Index after the lines of a key: after the last line that is indented further.
fn end_of_key(lines: &[String], at: usize, indent: usize) -> usize {
    let mut end = at + 1;
    for (i, line) in lines.iter().enumerate().skip(at + 1) {
        let text = line.trim_start();
        if text.is_empty() {
            continue;
        }
        if line.len() - text.len() <= indent {
            break;
        }
        end = i + 1;
    }
    end
}
