//! Command substitutions that only compute: `pwd`, `echo`, `dirname`, `cat`, and numbers that `bc`, `expr`,
//! `perl` or Python print.

use super::arithmetic::{evaluate, written};
use super::expand::unset;
use super::lexer::{Placed, Token, tokens};
use super::{Shell, Step};

impl Shell {
    /// Output of a command substitution, or `$(COMMAND)` if it is not followed.
    pub(super) fn substitute(&mut self, inside: &str, line: usize) -> Step<String> {
        let tokens = tokens(inside, line).map_err(|unclosed| self.problem(line, unclosed.what))?;
        let mut output: Option<String> = None;
        let mut first = None;
        for pipe in tokens.split(|placed| placed.token == Token::Operator("|")) {
            let (words, input) = self.words_of(pipe, line)?;
            first = first.or_else(|| words.first().cloned());
            let read = input.or(output);
            output = match self.print(&words, read.clone()) {
                Some(text) => Some(text),
                None => {
                    let name = first.unwrap_or_default();
                    let computes =
                        matches!(name.as_str(), "bc" | "echo" | "expr" | "perl" | "python");
                    let needs = words.iter().chain(&read).find_map(|text| unset_in(text));
                    let needs = needs.filter(|_| computes);
                    return Ok(needs.unwrap_or_else(|| format!("$({name})")));
                }
            };
        }
        Ok(output
            .unwrap_or_default()
            .trim_end_matches('\n')
            .to_string())
    }

    /// Words of one command, and the text that it reads.
    fn words_of(&mut self, tokens: &[Placed], line: usize) -> Step<(Vec<String>, Option<String>)> {
        let mut words = Vec::new();
        let mut input = None;
        let mut into_input = false;
        for placed in tokens {
            match &placed.token {
                Token::Word(raw) if into_input => {
                    input = Some(self.text(raw, line)?);
                    into_input = false;
                }
                Token::Word(raw) => words.extend(self.fields(raw, line)?),
                Token::Here { body, .. } => input = Some(self.document(body, line)?),
                Token::Operator(name) => into_input = *name == "<<<",
            }
        }
        Ok((words, input))
    }

    /// Output of a command that only computes.
    fn print(&mut self, words: &[String], input: Option<String>) -> Option<String> {
        let (name, arguments) = words.split_first()?;
        let last = arguments.last().map(String::as_str);
        let code = || {
            let flag = arguments
                .iter()
                .position(|word| word == "-e" || word == "-c")?;
            arguments.get(flag + 1).map(String::as_str)
        };
        match name.as_str() {
            "pwd" => Some(".".to_string()),
            "echo" | "printf" | "cat" => self.written_text(name, arguments, input),
            "dirname" => {
                let path = last?.trim_end_matches('/');
                Some(
                    path.rsplit_once('/')
                        .map_or(".", |(folder, _)| folder)
                        .to_string(),
                )
            }
            "basename" => {
                let path = arguments.first()?.trim_end_matches('/');
                Some(path.rsplit('/').next().unwrap_or(path).to_string())
            }
            "realpath" | "readlink" => last.map(str::to_string),
            "bc" => {
                // `scale=3; A/10`
                let text = input?;
                let expression = text.trim().rsplit(';').next()?.to_string();
                self.number(
                    &expression,
                    !arguments.iter().any(|word| word == "-l") && !text.contains("scale"),
                )
            }
            "expr" => self.number(&arguments.join(" "), true),
            "perl" => {
                self.number(code()?.trim().strip_prefix("print ")?.trim_end_matches(';'), false)
            }
            "python" | "python3" => {
                let printed = code()?.trim().strip_prefix("print(")?.strip_suffix(')')?;
                let whole = printed
                    .strip_prefix("int(")
                    .and_then(|rest| rest.strip_suffix(')'));
                match whole {
                    Some(inside) => {
                        let value = evaluate(inside, false, &|_| None)?;
                        Some(written(value.trunc()))
                    }
                    None => self.number(printed, false),
                }
            }
            _ => None,
        }
    }

    fn number(&self, expression: &str, whole: bool) -> Option<String> {
        evaluate(expression, whole, &|_| None).map(written)
    }
}

/// First variable without a value in a text, as it is kept.
fn unset_in(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("${")?;
    Some(unset(rest.split('}').next()?))
}
