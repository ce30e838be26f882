//! Rust source as text: files, code without comments and strings, paths that are named.

use std::fs;
use std::path::PathBuf;

/// Every file below a folder whose name ends in `.EXT`, with its text.
pub fn files(folder: &str, ext: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ext) {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    assert!(!files.is_empty(), "{folder}");
    files.sort();
    files
}

/// Names of the crates below `src`, ground floor first.
pub fn floors() -> Vec<String> {
    let workspace = fs::read_to_string("Cargo.toml").unwrap();
    let list = workspace.split("members = [").nth(1).unwrap();
    let members = list.split(']').next().unwrap();
    let floor = |member: &str| member.strip_prefix("src/").unwrap().to_string();
    members.split('"').skip(1).step_by(2).map(floor).collect()
}

/// A file's code: comments, strings and character literals are blanked, lines stay where they are.
pub fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| literal(rest, code.chars().last()));
        match skipped {
            Some(length) => {
                code.push(' ');
                code.extend(rest[..length].chars().filter(|c| *c == '\n'));
                rest = &rest[length..];
            }
            None => {
                code.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    code
}

/// Bytes of the comment that `text` begins with.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    text.starts_with("/*")
        .then(|| text.find("*/").map_or(text.len(), |end| end + 2))
}

/// Bytes of the string or character that `text` begins with.
fn literal(text: &str, before: Option<char>) -> Option<usize> {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if text.starts_with("r\"") || text.starts_with("r#") && !in_word {
        let hashes = text[1..].chars().take_while(|c| *c == '#').count();
        let end = format!("\"{}", "#".repeat(hashes));
        let body = text[1 + hashes..].strip_prefix('"').filter(|_| !in_word)?;
        return Some(hashes + 2 + body.find(&end)? + end.len());
    }
    if text.starts_with('"') {
        return quoted(text, '"');
    }
    // 'x' and '\n', but not the lifetime 'x.
    let mut chars = text.strip_prefix('\'')?.chars();
    match (chars.next()?, chars.next()?) {
        ('\\', _) => quoted(text, '\''),
        (c, '\'') => Some(2 + c.len_utf8()),
        _ => None,
    }
}

fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().skip(1).find_map(|(at, c)| {
        let end = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        end.then_some(at + 1)
    })
}

/// The words of some code: identifiers and keywords.
pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Kind of a piece of prose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Doc,
    Comment,
    Literal,
    Paragraph,
}

/// Comment, string or paragraph, on one line of text, without code spans.
#[derive(Debug)]
pub struct Prose {
    pub kind: Kind,
    /// Line of the file at which it begins, from 1.
    pub line: usize,
    pub text: String,
}

/// Comments and strings of Rust source. Consecutive comment lines of one kind are one piece.
pub fn prose(text: &str) -> Vec<Prose> {
    let (mut all, mut at, mut before) = (Vec::<Prose>::new(), 0, None);
    let mut last_line = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let comment = comment(rest);
        let Some(length) = comment.or_else(|| literal(rest, before)) else {
            (at, before) = (at + c.len_utf8(), Some(c));
            continue;
        };
        let line = text[..at].matches('\n').count() + 1;
        let body = &rest[..length];
        let kind = match comment {
            None => Kind::Literal,
            Some(_) if body.starts_with("///") || body.starts_with("//!") => Kind::Doc,
            Some(_) => Kind::Comment,
        };
        let words = match kind {
            Kind::Literal => body.replace("\\n", " ").replace('\\', " "),
            _ => body.trim_start_matches(['/', '!', '*']).trim().to_string(),
        };
        // A comment behind code is a piece of its own.
        let alone = text[..at]
            .rsplit('\n')
            .next()
            .is_some_and(|code| code.trim().is_empty());
        match all.last_mut() {
            Some(last)
                if last.kind == kind && kind != Kind::Literal && alone && line == last_line + 1 =>
            {
                last.text.push(' ');
                last.text.push_str(&words);
            }
            _ => all.push(Prose { kind, line, text: words }),
        }
        last_line = line;
        (at, before) = (at + length, Some(' '));
    }
    all.iter_mut()
        .for_each(|one| one.text = without_code(&one.text));
    all
}

/// Paragraphs of a page, without code blocks.
pub fn text_of_markdown(text: &str) -> Vec<Prose> {
    let (mut all, mut fenced, mut open) = (Vec::<Prose>::new(), false, false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            (fenced, open) = (!fenced, false);
        } else if fenced || line.starts_with("    ") || line.trim().is_empty() {
            open = false;
        } else if let Some(last) = all.last_mut().filter(|_| open) {
            last.text.push(' ');
            last.text.push_str(line.trim());
        } else {
            all.push(Prose { kind: Kind::Paragraph, line: number + 1, text: line.trim().into() });
            open = true;
        }
    }
    all.iter_mut()
        .for_each(|one| one.text = without_code(&one.text));
    all
}

/// The comment of a line of a script or of settings: all of it, or behind code.
fn script_comment(line: &str) -> Option<&str> {
    let mut places = line.match_indices('#').map(|(at, _)| at);
    let at = places.find(|at| {
        let before = &line[..*at];
        let closed = before.matches('"').count().is_multiple_of(2);
        before.is_empty() || closed && before.ends_with(' ')
    })?;
    Some(&line[at + 1..]).filter(|rest| !rest.starts_with('!'))
}

/// Comments and docstrings of a shell or Python script, a makefile or settings, as doc comments.
pub fn text_of_script(text: &str) -> Vec<Prose> {
    let (mut all, mut open, mut in_docstring) = (Vec::<Prose>::new(), false, false);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let quotes = line.matches("\"\"\"").count();
        let comment = script_comment(line);
        open &= line.starts_with(['#', '"']) || in_docstring;
        let words = match comment {
            Some(words) if !in_docstring => words.trim(),
            _ if in_docstring || line.starts_with("\"\"\"") => line.trim_matches('"'),
            _ => "",
        };
        in_docstring ^= quotes == 1 && (in_docstring || line.starts_with('"'));
        match all.last_mut().filter(|_| open && !words.is_empty()) {
            Some(last) => last.text = format!("{} {words}", last.text),
            None if words.is_empty() => (),
            None => all.push(Prose { kind: Kind::Doc, line: number + 1, text: words.into() }),
        }
        open = !words.is_empty();
    }
    all.iter_mut()
        .for_each(|one| one.text = without_code(&one.text));
    all
}

/// Text with code spans blanked and runs of spaces made one.
fn without_code(text: &str) -> String {
    let outside = text.split('`').step_by(2).collect::<Vec<_>>().join("`");
    outside.split_whitespace().collect::<Vec<_>>().join(" ")
}
