//! Splits a script into words and operators. A word keeps its quotes and variables: they are expanded when
//! the command of the word runs.

/// A part of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// Raw word: `"$A"/b`, `NAME=(a b)`.
    Word(String),
    /// `;` (also for an end of line), `;;`, `&`, `&&`, `||`, `|`, `(`, `)`, `>`, `>>`, `2>`, `<`, `<<<`.
    Operator(&'static str),
    /// Body of a here-document, and whether its variables are expanded.
    Here { body: String, expanded: bool },
}

/// A token and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub token: Token,
    pub line: usize,
}

/// Line and reason why a script cannot be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclosed {
    pub line: usize,
    pub what: String,
}

/// Operators, the longest first.
const OPERATORS: [&str; 10] = [";;", "&&", "||", "|&", ";", "&", "|", "(", ")", "\n"];

/// Tokens of a script whose first line is `line`.
pub fn tokens(text: &str, line: usize) -> Result<Vec<Placed>, Unclosed> {
    let chars: Vec<char> = text.replace("\r\n", "\n").chars().collect();
    Lexer { chars, at: 0, line, tokens: Vec::new(), pending: Vec::new() }.run()
}

/// Here-document whose body follows the line.
struct Pending {
    token: usize,
    end: String,
    /// Whether tabs are removed from the beginning of lines (`<<-`).
    tabs: bool,
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    tokens: Vec<Placed>,
    pending: Vec<Pending>,
}

impl Lexer {
    fn run(mut self) -> Result<Vec<Placed>, Unclosed> {
        while let Some(&c) = self.chars.get(self.at) {
            match c {
                ' ' | '\t' => self.at += 1,
                '\\' if self.chars.get(self.at + 1) == Some(&'\n') => {
                    self.at += 2;
                    self.line += 1;
                }
                '#' => self.skip_line(),
                '>' | '<' => self.redirect()?,
                '&' if self.starts_with("&>") => {
                    self.at += 1;
                    self.redirect()?;
                    self.discard_output();
                }
                _ => match OPERATORS.into_iter().find(|known| self.starts_with(known)) {
                    Some("\n") => self.end_line()?,
                    Some(operator) => {
                        self.at += operator.len();
                        self.push(Token::Operator(if operator == "|&" { "|" } else { operator }));
                    }
                    None => self.word()?,
                },
            }
        }
        self.end_line()?;
        Ok(self.tokens)
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars()
            .enumerate()
            .all(|(i, c)| self.chars.get(self.at + i) == Some(&c))
    }

    fn push(&mut self, token: Token) {
        self.tokens.push(Placed { token, line: self.line });
    }

    fn skip_line(&mut self) {
        while self.chars.get(self.at).is_some_and(|c| *c != '\n') {
            self.at += 1;
        }
    }

    fn word(&mut self) -> Result<(), Unclosed> {
        let line = self.line;
        let end = word_end(&self.chars, self.at).map_err(|what| Unclosed { line, what })?;
        let raw: String = self.chars[self.at..end].iter().collect();
        self.at = end;
        let digits = raw.chars().all(|c| c.is_ascii_digit());
        let next = self.chars.get(end);
        if digits && matches!(next, Some('>' | '<')) {
            self.redirect()?;
            if raw != "1" {
                self.discard_output();
            }
            return Ok(());
        }
        self.push(Token::Word(raw.clone()));
        self.line += raw.matches('\n').count();
        Ok(())
    }

    /// Turns the redirect that was read last into one of messages.
    fn discard_output(&mut self) {
        if let Some(Placed { token: Token::Operator(name), .. }) = self.tokens.last_mut()
            && name.starts_with('>')
        {
            *name = "2>";
        }
    }

    /// Reads a redirect. One that copies a descriptor (`>&1`) has no token.
    fn redirect(&mut self) -> Result<(), Unclosed> {
        for (text, token) in [("<<<", "<<<"), (">>", ">>"), (">|", ">"), ("<&", ""), (">&", "")] {
            if !self.starts_with(text) {
                continue;
            }
            self.at += text.len();
            if token.is_empty() {
                let end = word_end(&self.chars, self.at);
                self.at = end.map_err(|what| Unclosed { line: self.line, what })?;
            } else {
                self.push(Token::Operator(token));
            }
            return Ok(());
        }
        if self.starts_with("<<") {
            return self.here_document();
        }
        let token = if self.chars[self.at] == '>' { ">" } else { "<" };
        self.at += 1;
        self.push(Token::Operator(token));
        Ok(())
    }

    /// Reads the word that ends a here-document; its body follows the line.
    fn here_document(&mut self) -> Result<(), Unclosed> {
        self.at += 2;
        let tabs = self.chars.get(self.at) == Some(&'-');
        self.at += usize::from(tabs);
        while matches!(self.chars.get(self.at), Some(' ' | '\t')) {
            self.at += 1;
        }
        let line = self.line;
        let end = word_end(&self.chars, self.at).map_err(|what| Unclosed { line, what })?;
        let raw: String = self.chars[self.at..end].iter().collect();
        self.at = end;
        let quotes = |c: char| matches!(c, '\'' | '"' | '\\');
        self.pending
            .push(Pending { token: self.tokens.len(), end: raw.replace(quotes, ""), tabs });
        self.push(Token::Here { body: String::new(), expanded: !raw.contains(quotes) });
        Ok(())
    }

    /// Ends a line: the bodies of its here-documents follow.
    fn end_line(&mut self) -> Result<(), Unclosed> {
        self.push(Token::Operator(";"));
        if self.at < self.chars.len() {
            self.at += 1;
            self.line += 1;
        }
        for Pending { token, end, tabs } in std::mem::take(&mut self.pending) {
            let first = self.tokens[token].line;
            let mut text = String::new();
            loop {
                if self.at >= self.chars.len() {
                    let what = format!("the here-document has no line {end:?} at its end");
                    return Err(Unclosed { line: first, what });
                }
                let rest = &self.chars[self.at..];
                let length = rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.at += (length + 1).min(rest.len());
                self.line += 1;
                let line = if tabs { line.trim_start_matches('\t') } else { &line };
                if line == end {
                    break;
                }
                text += line;
                text.push('\n');
            }
            if let Token::Here { body, .. } = &mut self.tokens[token].token {
                *body = text;
            }
        }
        Ok(())
    }
}

/// End of the raw word that begins at `start`.
pub fn word_end(chars: &[char], start: usize) -> Result<usize, String> {
    let mut at = start;
    while let Some(&c) = chars.get(at) {
        at = match c {
            ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | ')' => break,
            '(' if is_array(&chars[start..at]) => closed(chars, at)?,
            '(' => break,
            _ => part_end(chars, at)?,
        };
    }
    Ok(at.min(chars.len()))
}

/// End of the character, quoted text or expansion that begins at `at`.
fn part_end(chars: &[char], at: usize) -> Result<usize, String> {
    Ok(match chars[at] {
        '\\' => at + 2,
        '\'' => 1 + find(chars, at + 1, '\'')?,
        '"' => quoted_end(chars, at)?,
        '`' => 1 + find(chars, at + 1, '`')?,
        '$' if matches!(chars.get(at + 1), Some('(' | '{')) => closed(chars, at + 1)?,
        _ => at + 1,
    })
}

/// Whether `NAME=` or `NAME+=` is before a parenthesis.
fn is_array(before: &[char]) -> bool {
    let Some((&'=', name)) = before.split_last() else { return false };
    let name = name.strip_suffix(&['+']).unwrap_or(name);
    !name.is_empty() && name.iter().all(|c| c.is_ascii_alphanumeric() || *c == '_')
}

fn find(chars: &[char], from: usize, end: char) -> Result<usize, String> {
    let mut at = from;
    while let Some(&c) = chars.get(at) {
        if c == end {
            return Ok(at);
        }
        at += if c == '\\' && end != '\'' { 2 } else { 1 };
    }
    Err(format!("a {end} is not closed"))
}

/// End of text in double quotes that begins at `at`.
fn quoted_end(chars: &[char], at: usize) -> Result<usize, String> {
    let mut at = at + 1;
    while let Some(&c) = chars.get(at) {
        at = match c {
            '"' => return Ok(at + 1),
            '\'' => at + 1,
            _ => part_end(chars, at)?,
        };
    }
    Err("a \" is not closed".to_string())
}

/// End of a bracket that begins at `at`, behind its partner.
pub fn closed(chars: &[char], at: usize) -> Result<usize, String> {
    let open = chars[at];
    let close = if open == '(' { ')' } else { '}' };
    let mut i = at + 1;
    let mut depth = 1;
    while let Some(&c) = chars.get(i) {
        i = match c {
            _ if c == open => {
                depth += 1;
                i + 1
            }
            _ if c == close => {
                depth -= 1;
                if depth == 0 {
                    return Ok(i + 1);
                }
                i + 1
            }
            // A comment between the words of an array.
            '#' if open == '(' && chars[i - 1].is_whitespace() => {
                i + chars[i..]
                    .iter()
                    .position(|c| *c == '\n')
                    .unwrap_or(chars.len() - i)
            }
            _ => part_end(chars, i)?,
        };
    }
    Err(format!("a {open} is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let tokens = tokens(text, 1).unwrap().into_iter();
        let show = |placed: Placed| match placed.token {
            Token::Word(word) => word,
            Token::Operator(name) => format!("<{name}>"),
            Token::Here { body, expanded } => format!("{body:?} {expanded}"),
        };
        tokens.map(show).collect()
    }

    #[test]
    fn words_keep_their_quotes_and_commands_their_ends() {
        let cases: [(&str, &[&str]); 6] = [
            ("a 'b c' \"d $(e \"f g\")\" # h", &["a", "'b c'", "\"d $(e \"f g\")\"", "<;>"]),
            ("A=\"1 \\\n 2\"\nb", &["A=\"1 \\\n 2\"", "<;>", "b", "<;>"]),
            ("X=(a # one)\n b) c", &["X=(a # one)\n b)", "c", "<;>"]),
            ("a 2>&1 | tee -a l 2> e", &["a", "<|>", "tee", "-a", "l", "<2>>", "e", "<;>"]),
            ("a \\\n  b && c || d;;", &["a", "b", "<&&>", "c", "<||>", "d", "<;;>", "<;>"]),
            (
                "cat <<EOT > f\n{$A}\nEOT\ncat <<-'E'\n\tb\n\tE\n",
                &[
                    "cat",
                    "\"{$A}\\n\" true",
                    "<>>",
                    "f",
                    "<;>",
                    "cat",
                    "\"b\\n\" false",
                    "<;>",
                    "<;>",
                ],
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(shown(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_names_its_line() {
        for (text, line, what) in [
            ("a\nB=\"c\n", 2, "a \" is not closed"),
            ("x 'y", 1, "a ' is not closed"),
            ("\n\ncat <<EOT\nb\n", 3, "the here-document has no line \"EOT\" at its end"),
            ("A=(b\nc", 1, "a ( is not closed"),
        ] {
            assert_eq!(
                tokens(text, 1).unwrap_err(),
                Unclosed { line, what: what.into() },
                "{text}"
            );
        }
    }
}
