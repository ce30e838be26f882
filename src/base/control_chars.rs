//! Escapes control characters in untrusted text for a terminal.

use std::borrow::Cow;

/// Spells out control characters except line ends and tabs (`\u{1b}[2J`), so that text from a file
/// or an argument cannot move the cursor or change colours. Also spells out Unicode's bidirectional
/// embeddings, overrides and isolates, which reorder text on the screen.
pub fn escape_control(text: &str) -> Cow<'_, str> {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hidden = |c: char| c.is_control() && !matches!(c, '\n' | '\t') || turns(c);
    if !text.contains(hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hidden(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::escape_control;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(escape_control("a\x1b[2Jb\u{9b}1m\r\n\tc é"), "a\\u{1b}[2Jb\\u{9b}1m\\r\n\tc é");
        assert_eq!(escape_control("a\u{202e}b\u{2066}"), "a\\u{202e}b\\u{2066}");
        assert_eq!(escape_control("plain\n"), "plain\n");
    }
}
