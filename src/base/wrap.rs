//! Lines that fit their terminal: broken at spaces, never inside a word.

use std::borrow::Cow;
use std::io;
use std::os::fd::AsFd;

/// Columns of standard output: those of its terminal, without limit in a pipe or a file.
pub fn output_width() -> usize {
    width(io::stdout())
}

/// Columns of standard error, likewise.
pub fn error_width() -> usize {
    width(io::stderr())
}

fn width(stream: impl AsFd) -> usize {
    match rustix::termios::tcgetwinsize(stream) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => usize::MAX,
    }
}

/// Columns of a text on a terminal, where each character takes one and escape codes none.
pub fn columns(text: &str) -> usize {
    without_escapes(text)
        .chars()
        .filter(|c| !c.is_control())
        .count()
}

fn without_escapes(text: &str) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return text.into();
    }
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain += before;
        let end = after.find(|c: char| c.is_ascii_alphabetic());
        rest = end.map_or("", |end| &after[end + 1..]);
    }
    (plain + rest).into()
}

/// Breaks lines longer than `width` at spaces. What follows is indented by two columns more than the
/// line. JSON remains as it is, because its strings must not be broken.
pub fn wrap(text: &str, width: usize) -> Cow<'_, str> {
    if text.lines().all(|line| columns(line) <= width) {
        return text.into();
    }
    let lines: Vec<Cow<str>> = text
        .split('\n')
        .map(|line| wrap_line(line, width))
        .collect();
    lines.join("\n").into()
}

fn wrap_line(line: &str, width: usize) -> Cow<'_, str> {
    if columns(line) <= width || line.trim_start().starts_with(['"', '{']) {
        return line.into();
    }
    let plain = without_escapes(line);
    let indent = " ".repeat(plain.len() - plain.trim_start().len() + 2);
    let mut wrapped = String::new();
    let mut used = 0;
    for word in words(line) {
        let is_first = wrapped.trim_start().is_empty();
        if used + columns(word.trim_end()) > width && !is_first {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped += "\n";
            wrapped += &indent;
            used = indent.len();
        }
        wrapped += word;
        used += columns(word);
    }
    wrapped.into()
}

/// Words of a line, each with the spaces behind it. An option and its value are one word.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut start = 0;
    for (space, _) in line.match_indices(' ') {
        let end = space + 1;
        let is_option = line[start..].starts_with("--") && !line[end..].starts_with('-');
        let has_value = line[start..space].contains(' ');
        if !is_option || has_value {
            words.push(&line[start..end]);
            start = end;
        }
    }
    words.push(&line[start..]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_at_spaces() {
        assert_eq!(wrap("a line of words\nshort", 10), "a line of\n  words\nshort");
        assert_eq!(wrap("  → set model.hidden", 12), "  → set\n    model.hidden");
        assert_eq!(wrap("a/path/without/spaces b", 10), "a/path/without/spaces\n  b");
        assert_eq!(wrap("one  two", 8), "one  two");
        assert_eq!(wrap("text", usize::MAX), "text");
    }

    #[test]
    fn an_option_remains_with_its_value() {
        let flags = "  --set a=1 --json --set b=2";
        assert_eq!(wrap(flags, 12), "  --set a=1\n    --json\n    --set b=2");
    }

    #[test]
    fn colours_take_no_columns_and_json_is_not_broken() {
        let red = "\x1b[31m  a red line\x1b[0m";
        assert_eq!((wrap(red, 12), columns(red)), (red.into(), 12));
        assert_eq!(wrap(red, 9), "\x1b[31m  a red\n    line\x1b[0m");
        let json = "  \"what\": \"several words\"";
        assert_eq!(wrap(json, 10), json);
    }
}
