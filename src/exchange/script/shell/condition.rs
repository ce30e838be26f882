//! Conditions of a script: `[ … ]`, `[[ … ]]` and `case`.

use super::lexer::Token;
use super::{Cursor, Shell, Status, Step};

impl Shell {
    /// Status of `[ … ]`, whose words are expanded; None if it needs more than text.
    pub(super) fn test(&self, words: &[String]) -> Status {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words = words.strip_suffix(&["]"]).unwrap_or(&words);
        for (word, both) in [("-o", false), ("-a", true)] {
            if let Some(at) = words
                .iter()
                .position(|found| *found == word)
                .filter(|at| *at > 0)
            {
                let sides = [self.compare(&words[..at]), self.compare(&words[at + 1..])];
                return combine(sides, both);
            }
        }
        self.compare(words)
    }

    /// Status of one comparison.
    fn compare(&self, words: &[&str]) -> Status {
        // A variable without a value is empty.
        let text = |word: &str| {
            let unset = word.starts_with("${") && word.ends_with('}');
            if unset { String::new() } else { word.to_string() }
        };
        match words {
            ["!", rest @ ..] => self.compare(rest).map(|status| !status),
            [] => Some(false),
            ["-z"] => Some(true),
            ["-n"] => Some(false),
            ["-z", word] => Some(text(word).is_empty()),
            ["-n", word] => Some(!text(word).is_empty()),
            ["-v", name] => Some(self.variables.contains_key(*name)),
            ["-f" | "-e" | "-s", name] if self.files.contains_key(*name) => Some(true),
            [flag, _] if flag.starts_with('-') => None,
            [word] => Some(!text(word).is_empty()),
            [a, operator, b] => {
                let [a, b] = [text(a), text(b)];
                match *operator {
                    "=" | "==" => Some(matches_pattern(&a, &b)),
                    "!=" => Some(!matches_pattern(&a, &b)),
                    _ if a.contains('$') || b.contains('$') => None,
                    operator => {
                        let [a, b] = [self.whole(&a)?, self.whole(&b)?];
                        match operator {
                            "-eq" => Some(a == b),
                            "-ne" => Some(a != b),
                            "-lt" | "<" => Some(a < b),
                            "-le" => Some(a <= b),
                            "-gt" | ">" => Some(a > b),
                            "-ge" => Some(a >= b),
                            _ => None,
                        }
                    }
                }
            }
            _ => None,
        }
    }

    /// Status of `[[ … ]]`.
    pub(super) fn double_brackets(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let line = cursor.line();
        cursor.at += 1;
        let mut status = None;
        let mut both = None;
        let mut words: Vec<String> = Vec::new();
        loop {
            let ends = match cursor.peek() {
                None => return Err(self.problem(line, "[[ has no ]]")),
                Some(Token::Word(word)) if word == "]]" => None,
                Some(Token::Operator(name @ ("&&" | "||"))) => Some(*name == "&&"),
                Some(Token::Word(raw)) => {
                    if run {
                        words.push(self.text(raw, line)?);
                    }
                    cursor.at += 1;
                    continue;
                }
                Some(Token::Operator(name)) => {
                    words.extend((*name != ";").then(|| name.to_string()));
                    cursor.at += 1;
                    continue;
                }
                Some(Token::Here { .. }) => {
                    cursor.at += 1;
                    continue;
                }
            };
            cursor.at += 1;
            let words: Vec<String> = std::mem::take(&mut words);
            let found = self.compare(&words.iter().map(String::as_str).collect::<Vec<_>>());
            status = both.map_or(found, |both| combine([status, found], both));
            match ends {
                Some(is_and) => both = Some(is_and),
                None => return Ok(if run { status } else { Some(true) }),
            }
        }
    }

    /// `case WORD in PATTERN) … ;; esac`
    pub(super) fn case(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let line = cursor.line();
        cursor.at += 1;
        let raw = cursor.word().unwrap_or_default();
        let value = if run { self.text(raw, line)? } else { String::new() };
        self.need(cursor, line, "in", "case")?;
        let mut open = run;
        loop {
            cursor.skip_ends();
            if cursor.take("esac") {
                return Ok(Some(true));
            }
            cursor.take("(");
            let mut matched = false;
            while let Some(raw) = cursor.word() {
                let pattern = if run { self.text(raw, line)? } else { String::new() };
                matched |= matches_pattern(&value, &pattern);
                cursor.take("|");
            }
            self.need(cursor, line, ")", "case")?;
            let taken = open && matched;
            self.list(cursor, taken)?;
            open &= !taken;
            if !cursor.take(";;")
                && !matches!(cursor.peek(), Some(Token::Word(word)) if word == "esac")
            {
                return Err(self.problem(line, "case has no esac"));
            }
        }
    }
}

/// `a && b` or `a || b`, of which one side may decide.
fn combine(sides: [Status; 2], both: bool) -> Status {
    match sides {
        [Some(side), _] | [_, Some(side)] if side != both => Some(side),
        [Some(_), Some(_)] => Some(both),
        _ => None,
    }
}

/// Whether a text is a pattern with `*` and `?`.
fn matches_pattern(text: &str, pattern: &str) -> bool {
    let [text, pattern]: [Vec<char>; 2] = [text, pattern].map(|text| text.chars().collect());
    // Whether the pattern so far matches each beginning of the text.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for p in pattern {
        let mut next = vec![false; text.len() + 1];
        for i in 0..=text.len() {
            next[i] = match p {
                '*' => reached[i] || (i > 0 && next[i - 1]),
                _ => i > 0 && reached[i - 1] && (p == '?' || text[i - 1] == p),
            };
        }
        reached = next;
    }
    reached[text.len()]
}
