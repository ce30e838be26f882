//! Assignments: `NAME=VALUE`, `NAME+=VALUE`, `NAME=(WORDS)`.

use super::lexer::{Token, tokens};
use super::{Shell, Step};

/// Bytes of a value, at most.
const MAX_VALUE: usize = 1 << 20;

impl Shell {
    /// Sets a variable from a raw `NAME=VALUE`, `NAME+=VALUE` or `NAME=(WORDS)`.
    pub(super) fn assign_raw(&mut self, raw: &str, line: usize) -> Step {
        let Some((name, more, value)) = assignment(raw) else { return Ok(()) };
        let mut values = match value
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
        {
            Some(inside) => self.array(inside, line)?,
            None => vec![self.text(value, line)?],
        };
        if more && let Some(before) = self.variables.get(name) {
            values = if value.starts_with('(') {
                [&before[..], &values].concat()
            } else {
                vec![format!("{}{}", before.join(" "), values[0])]
            };
        }
        self.assign(name, values, line)
    }

    fn array(&mut self, inside: &str, line: usize) -> Step<Vec<String>> {
        let tokens = tokens(inside, line).map_err(|unclosed| self.problem(line, unclosed.what))?;
        let mut values = Vec::new();
        for placed in tokens {
            if let Token::Word(raw) = placed.token {
                values.extend(self.fields(&raw, line)?);
            }
        }
        Ok(values)
    }

    /// Sets a variable, or an array.
    pub(super) fn assign(&mut self, name: &str, values: Vec<String>, line: usize) -> Step {
        if values.iter().map(String::len).sum::<usize>() > MAX_VALUE {
            return Err(self.problem(line, format!("{name} has over {MAX_VALUE} bytes")));
        }
        // An element, `NAME[2]`, and the rest of a script that is not followed.
        let name = name.split('[').next().unwrap_or(name);
        self.variables.insert(name.to_string(), values);
        Ok(())
    }
}

/// Whether a command declares variables: `export`, `local`.
pub fn is_declaration(word: &str) -> bool {
    matches!(word, "export" | "declare" | "local" | "readonly" | "typeset")
}

/// Name, whether it is `+=`, and raw value of an assignment.
pub fn assignment(raw: &str) -> Option<(&str, bool, &str)> {
    let (name, value) = raw.split_once('=')?;
    let (name, more) = match name.strip_suffix('+') {
        Some(name) => (name, true),
        None => (name, false),
    };
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, more, value))
}
