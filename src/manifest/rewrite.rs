//! `--set` in the text of a manifest: the lines that it names change, the comments stay.

use super::overrides::{self, SECOND_NAME, from_working_folder, replaced};
use super::read::parse;
use super::tree;
use base::Problems;
use std::ops::Range;
use std::path::Path;

/// The text with `sets` applied, for a manifest that is called `name` and is to be stored in
/// `folder`. Mistakes in the sets are those that `parse` finds. Where the lines cannot be changed
/// (settings written in one line), it is the record of the manifest, without comments. Relative paths
/// of the sets start at the working folder.
pub fn rewrite(text: &str, name: &str, folder: &Path, sets: &[String]) -> Result<String, Problems> {
    let sets = from_working_folder(sets);
    let wanted = parse(text, name, folder, &sets)?;
    let same = |text: &str| {
        parse(text, name, folder, &[]).is_ok_and(|read| read.manifest == wanted.manifest)
    };
    Ok(edit(text, &sets, same).unwrap_or_else(|| wanted.record()))
}

/// The text with the lines of `sets` changed; None if it then does not have the same meaning.
pub fn edit(text: &str, sets: &[String], is_same: impl Fn(&str) -> bool) -> Option<String> {
    let edited = sets.iter().try_fold(text.to_string(), |text, set| edited(&text, set));
    edited.filter(|text| is_same(text))
}

fn edited(text: &str, set: &str) -> Option<String> {
    let (path, value) = set.split_once('=')?;
    let path = if path.trim() == SECOND_NAME.0 { SECOND_NAME.1 } else { path.trim() };
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    for other in replaced(path) {
        let steps: Vec<&str> = other.split('.').collect();
        if let Ok((at, indent)) = find(&lines, &steps) {
            lines.drain(at..end(&lines, at, indent));
        }
    }
    let steps: Vec<&str> = path.split('.').collect();
    match find(&lines, &steps) {
        Ok((at, indent)) => {
            let line = line(indent, &steps[steps.len() - 1..], value);
            lines.splice(at..end(&lines, at, indent), [line]);
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
    let (first, rest) = (steps[0], &steps[1..]);
    let opened: String = rest.iter().map(|step| format!("{{{step}: ")).collect();
    let closed = "}".repeat(rest.len());
    format!("{}{first}: {opened}{value}{closed} # --set", " ".repeat(indent))
}

/// The line of a key, and its indentation. The error is where a line for it belongs, with the
/// indentation there and the number of steps that have lines.
fn find(lines: &[String], steps: &[&str]) -> Result<(usize, usize), (usize, usize, usize)> {
    let (mut range, mut indent): (Range<usize>, usize) = (0..lines.len(), 0);
    for (known, step) in steps.iter().enumerate() {
        let key = format!("{}{step}:", " ".repeat(indent));
        let Some(at) = range.clone().find(|at| lines[*at].starts_with(&key)) else {
            let at = if known == 0 { lines.len() } else { range.start };
            return Err((at, indent, known));
        };
        if known + 1 == steps.len() {
            return Ok((at, indent));
        }
        range = at + 1..end(lines, at, indent);
        indent += 2;
    }
    unreachable!("a key has a step")
}

/// The line after those of a key: after the last line that is indented further.
fn end(lines: &[String], at: usize, indent: usize) -> usize {
    let deep = |line: &String| line.len() - line.trim_start().len() > indent;
    let is_blank = |line: &String| line.trim().is_empty();
    let below = lines[at + 1..].iter().take_while(|line| deep(line) || is_blank(line));
    let below: Vec<&String> = below.collect();
    at + 1 + below.iter().rposition(|line| !is_blank(line)).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
name: a
model: # of a model
  layers: 1
  hidden: 16
  heads: 1
  vocab: 16
  seq_len: 16
precision: f32 # exact

# on data
data:
  train: none
batch: {micro: 1, global: 1}
lr:
  peak: 1e-3 # of the rate
  decay: constant
train:
  steps: 10
";

    fn with(sets: &[&str]) -> Result<String, Problems> {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        rewrite(TEXT, "a.yaml", Path::new("/"), &sets)
    }

    #[test]
    fn the_lines_that_are_set_change_and_comments_stay() {
        let text = with(&[
            "precision=bf16",
            "optimizer.lr=2e-3",
            "train.tokens=3200",
            "lr.decay={linear: {samples: 100}}",
            "data.eod.token=3",
            "optimizer.adamw.beta2=0.95",
        ])
        .unwrap();
        for line in [
            "# a comment\n",
            "model: # of a model\n  layers: 1\n",
            "\nprecision: bf16 # --set\n\n# on data\n",
            "\ndata:\n  eod: {token: 3} # --set\n  train: none\n",
            "\n  peak: 2e-3 # --set\n  decay: {linear: {samples: 100}} # --set\n",
            "\ntrain:\n  tokens: 3200 # --set\n",
            "\noptimizer: {adamw: {beta2: 0.95}} # --set\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in:\n{text}");
        }
    }

    #[test]
    fn a_setting_within_a_line_changes_that_line() {
        let text = with(&["batch.global=4", "data={train: none, eod: {token: 3}}"]).unwrap();
        let line = "\nbatch: {micro: 1, global: 4} # --set\n";
        assert!(text.contains(line) && text.starts_with("# a comment\n"), "{text}");
        let sets = ["batch.micro=2", "data.eod.mask_loss=true"].map(String::from);
        let text = rewrite(&text, "a.yaml", Path::new("/"), &sets).unwrap();
        assert!(text.starts_with("# a comment\n"), "{text}");
        let read = parse(&text, "a.yaml", Path::new("/"), &[]).unwrap().manifest;
        assert_eq!((read.batch.micro, read.batch.global, read.train.samples), (2, 4, 40));
        assert!(read.data.eod.unwrap().mask_loss);
        for wrong in ["train.steps=-4", "nonsense.key=1", "precision=bf17"] {
            assert!(with(&[wrong]).is_err(), "{wrong}");
        }
    }
}
