//! Expands the raw words of a command: quotes, variables, arithmetic, command substitutions.

use super::arithmetic::written;
use super::lexer::closed;
use super::{Shell, Step};

/// Fields of a raw word.
#[derive(Default)]
struct Fields {
    done: Vec<String>,
    /// The field that is being built; None between fields.
    current: Option<String>,
    /// Whether unquoted values are split at blanks.
    split: bool,
}

impl Fields {
    fn push(&mut self, text: &str) {
        self.current.get_or_insert_default().push_str(text);
    }

    fn end(&mut self) {
        self.done.extend(self.current.take());
    }

    /// Adds an unquoted value: its blanks separate fields.
    fn push_value(&mut self, text: &str) {
        if !self.split {
            return self.push(text);
        }
        if text.starts_with(char::is_whitespace) {
            self.end();
        }
        for (number, part) in text.split_whitespace().enumerate() {
            if number > 0 {
                self.end();
            }
            self.push(part);
        }
        if text.ends_with(char::is_whitespace) {
            self.end();
        }
    }

    /// Adds the elements of an array in quotes: each is a field.
    fn push_elements(&mut self, elements: &[String]) {
        for (number, element) in elements.iter().enumerate() {
            if number > 0 {
                self.end();
            }
            self.push(element);
        }
    }
}

/// Value of an expansion.
pub enum Expanded {
    Text(String),
    /// `${NAME[@]}`: each element is a field.
    Elements(Vec<String>),
}

/// A variable without a value, as it is kept.
pub fn unset(name: &str) -> String {
    format!("${{{name}}}")
}

impl Shell {
    /// Fields of a raw word.
    pub(super) fn fields(&mut self, raw: &str, line: usize) -> Step<Vec<String>> {
        let mut fields = Fields { split: true, ..Fields::default() };
        self.expand(raw, line, &mut fields)?;
        fields.end();
        Ok(fields.done)
    }

    /// Value of a raw word that is not split, such as that of an assignment.
    pub(super) fn text(&mut self, raw: &str, line: usize) -> Step<String> {
        let mut fields = Fields::default();
        self.expand(raw, line, &mut fields)?;
        fields.end();
        Ok(fields.done.join(" "))
    }

    /// Text of a here-document: quotes mean nothing in it.
    pub(super) fn document(&mut self, body: &str, line: usize) -> Step<String> {
        let quoted = format!("\"{}\"", body.replace('"', "\\\""));
        self.text(&quoted, line)
    }

    fn expand(&mut self, raw: &str, line: usize, fields: &mut Fields) -> Step {
        let chars: Vec<char> = raw.chars().collect();
        let mut quoted = false;
        let mut at = 0;
        while let Some(&c) = chars.get(at) {
            let next = chars.get(at + 1).copied();
            at += 1;
            match (c, next) {
                ('"', _) => {
                    quoted = !quoted;
                    // An empty pair is a field too.
                    fields.push("");
                }
                ('\'', _) if !quoted => {
                    let length = chars[at..].iter().take_while(|c| **c != '\'').count();
                    let text: String = chars[at..at + length].iter().collect();
                    fields.push(&text);
                    at += length + 1;
                }
                ('\\', Some('\n')) => at += 1,
                ('\\', Some(next)) if !quoted || matches!(next, '$' | '`' | '"' | '\\') => {
                    fields.push(next.encode_utf8(&mut [0; 4]));
                    at += 1;
                }
                ('`', _) => {
                    let length = chars[at..].iter().take_while(|c| **c != '`').count();
                    let inside: String = chars[at..at + length].iter().collect();
                    let value = self.substitute(&inside.replace("\\$", "$"), line)?;
                    add(fields, Expanded::Text(value), quoted);
                    at += length + 1;
                }
                ('$', Some('(' | '{')) => {
                    let end = closed(&chars, at).map_err(|what| self.problem(line, what))?;
                    let inside: String = chars[at..end].iter().collect();
                    let value = self.expansion(&inside, line)?;
                    add(fields, value, quoted);
                    at = end;
                }
                ('$', Some(next)) if is_name(next) || "@*#?!".contains(next) => {
                    let length = match next {
                        'a'..='z' | 'A'..='Z' | '_' => {
                            chars[at..].iter().take_while(|c| is_name(**c)).count()
                        }
                        _ => 1,
                    };
                    let name: String = chars[at..at + length].iter().collect();
                    add(fields, self.variable(&name), quoted);
                    at += length;
                }
                _ => fields.push(c.encode_utf8(&mut [0; 4])),
            }
        }
        Ok(())
    }

    fn variable(&self, name: &str) -> Expanded {
        match (self.variables.get(name), name) {
            (Some(values), "@") => Expanded::Elements(values.clone()),
            (Some(values), _) => Expanded::Text(values.first().cloned().unwrap_or_default()),
            (None, "@" | "*" | "#" | "?") => Expanded::Text(String::new()),
            (None, _) => Expanded::Text(unset(name)),
        }
    }

    /// Value of `(…)` or `{…}` behind a `$`.
    fn expansion(&mut self, inside: &str, line: usize) -> Step<Expanded> {
        let arithmetic = inside
            .strip_prefix("((")
            .and_then(|rest| rest.strip_suffix("))"));
        if let Some(expression) = arithmetic {
            let expression = self.text(&format!("\"{expression}\""), line)?;
            let value = self.whole(&expression);
            let text = value.map_or_else(|| self.unknown(&expression), written);
            return Ok(Expanded::Text(text));
        }
        let body = &inside[1..inside.len() - 1];
        if inside.starts_with('(') {
            return Ok(Expanded::Text(self.substitute(body, line)?));
        }
        self.parameter(body, line)
    }

    /// An expression without a value, as it is kept: in one word, without the names that have values.
    fn unknown(&self, expression: &str) -> String {
        let mut text = String::new();
        let mut rest = expression;
        while let Some(c) = rest.chars().next() {
            let length = rest.chars().take_while(|c| is_name(*c)).count();
            let name = &rest[..length.max(c.len_utf8())];
            match self
                .value(name)
                .filter(|value| !value.contains(char::is_whitespace))
            {
                Some(value) if !c.is_ascii_digit() => text += value,
                _ if c.is_whitespace() => {}
                _ => text += name,
            }
            rest = &rest[name.len()..];
        }
        format!("$(({text}))")
    }

    /// Value of `${…}`.
    fn parameter(&mut self, body: &str, line: usize) -> Step<Expanded> {
        let (counts, body) = match body.strip_prefix('#') {
            Some(rest) if !rest.is_empty() => (true, rest),
            _ => (false, body),
        };
        let length = body.chars().take_while(|c| is_name(*c)).count();
        let length = if body.starts_with(['@', '*']) { 1 } else { length };
        let (name, rest) = body.split_at(length);
        let (all, rest) = match rest.strip_prefix("[@]").or(rest.strip_prefix("[*]")) {
            Some(rest) => (true, rest),
            None => (name == "@" || name == "*", rest),
        };
        let values = self.variables.get(name).cloned();
        if counts {
            let values = values.unwrap_or_default();
            let count = if all { values.len() } else { values.first().map_or(0, String::len) };
            return Ok(Expanded::Text(count.to_string()));
        }
        let has_text = values
            .as_ref()
            .is_some_and(|values| values.iter().any(|value| !value.is_empty()));
        let plain = match values.clone() {
            Some(values) if all => Expanded::Elements(values),
            Some(values) => Expanded::Text(values.first().cloned().unwrap_or_default()),
            None if all => Expanded::Elements(Vec::new()),
            None => Expanded::Text(unset(name)),
        };
        let (colon, operation) = match rest.strip_prefix(':') {
            Some(operation) => (true, operation),
            None => (false, rest),
        };
        let is_set = if colon { has_text } else { values.is_some() };
        let mut operations = operation.chars();
        match operations.next() {
            None => Ok(plain),
            Some('-' | '=') if is_set => Ok(plain),
            Some(kind @ ('-' | '=')) => {
                let value = self.text(&format!("\"{}\"", operations.as_str()), line)?;
                if kind == '=' {
                    self.assign(name, vec![value.clone()], line)?;
                }
                Ok(Expanded::Text(value))
            }
            Some('+') if is_set => Ok(Expanded::Text(self.text(operations.as_str(), line)?)),
            Some('+') => Ok(Expanded::Text(String::new())),
            Some('?') => Ok(plain),
            Some(_) => {
                self.note(line, format_args!("${{{body}}} is not followed"));
                Ok(Expanded::Text(unset(name)))
            }
        }
    }
}

fn add(fields: &mut Fields, value: Expanded, quoted: bool) {
    match (value, quoted) {
        (Expanded::Text(text), true) => fields.push(&text),
        (Expanded::Text(text), false) => fields.push_value(&text),
        (Expanded::Elements(elements), true) => fields.push_elements(&elements),
        (Expanded::Elements(elements), false) => fields.push_value(&elements.join(" ")),
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
