//! Text of a stranger's making on a terminal.

use std::borrow::Cow;

/// The text with its control characters spelled out, but for line ends and tabs: what a file or an
/// argument holds cannot move the cursor or change colours (`\u{1b}[2J`).
pub fn visible(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match hidden(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(visible("a\x1b[2Jb\u{9b}1m\r\n\tc é"), "a\\u{1b}[2Jb\\u{9b}1m\\r\n\tc é");
        assert_eq!(visible("plain\n"), "plain\n");
    }
}
