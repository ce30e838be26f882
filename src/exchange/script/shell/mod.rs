//! Reads a shell script as far as its variables determine its commands. Nothing is executed: assignments,
//! arithmetic, conditions on text, loops over words, functions and here-documents are followed, and all
//! other commands are collected with their words.
//!
//! A variable without a value is kept as `${NAME}`, and a command substitution that is not followed as
//! `$(COMMAND)`, so that an argument that needs one can be named.
//!
//! Does not know which command trains.

mod arithmetic;
mod condition;
mod expand;
mod lexer;
mod substitute;
mod variables;

use arithmetic::evaluate;
use base::Problems;
use lexer::{Placed, Token, tokens};
use std::collections::BTreeMap;
use std::path::PathBuf;
use variables::{assignment, is_declaration};

/// Functions, `bash -c`, `eval` and sourced files inside each other, at most.
const MAX_DEPTH: usize = 32;
/// Commands, at most: loops end.
const MAX_COMMANDS: usize = 100_000;
/// Words that end a list of commands.
const CLOSING: [&str; 8] = ["then", "elif", "else", "fi", "do", "done", "esac", "}"];

/// A command that was not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Line of the script.
    pub line: usize,
    /// Words, expanded. Those before `bash -c TEXT` come first.
    pub words: Vec<String>,
}

/// Variables, files and commands of a script.
pub struct Shell {
    /// The script's name, in messages.
    place: String,
    /// Folder of the script, from which files are sourced.
    folder: PathBuf,
    /// Values: one of a plain variable, several of an array.
    variables: BTreeMap<String, Vec<String>>,
    /// Texts that the script writes into files, by name.
    pub files: BTreeMap<String, String>,
    /// Tokens of the body of each function.
    functions: BTreeMap<String, Vec<Placed>>,
    pub commands: Vec<Command>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Output of the last command, for the next one of its pipe.
    output: Option<String>,
    /// Words before the text of `bash -c` that is read.
    launcher: Vec<String>,
    /// Line of the command around `bash -c` or `eval`; None in the script itself.
    outer_line: Option<usize>,
    depth: usize,
    count: usize,
}

/// Result of a part of a script.
type Step<T = ()> = Result<T, Problems>;

/// Whether a command succeeds; None if that is not known.
type Status = Option<bool>;

/// Commands of one list, of which the next is at `at`.
struct Cursor<'t> {
    tokens: &'t [Placed],
    at: usize,
}

impl<'t> Cursor<'t> {
    fn peek(&self) -> Option<&'t Token> {
        self.tokens.get(self.at).map(|placed| &placed.token)
    }

    fn line(&self) -> usize {
        let last = self.tokens.last();
        self.tokens
            .get(self.at)
            .or(last)
            .map_or(0, |placed| placed.line)
    }

    /// Skips this operator, or this word, if it is next.
    fn take(&mut self, text: &str) -> bool {
        let is = match self.peek() {
            Some(Token::Operator(name)) => *name == text,
            Some(Token::Word(word)) => word == text,
            _ => false,
        };
        self.at += usize::from(is);
        is
    }

    fn skip_ends(&mut self) {
        while self.take(";") {}
    }

    fn word(&mut self) -> Option<&'t str> {
        let Some(Token::Word(word)) = self.peek() else { return None };
        self.at += 1;
        Some(word)
    }
}

impl Shell {
    /// `place` names the script; `variables` have values before it begins.
    pub fn new(place: String, folder: PathBuf, variables: BTreeMap<String, String>) -> Shell {
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name, vec![value]));
        Shell {
            place,
            folder,
            variables: variables.collect(),
            files: BTreeMap::new(),
            functions: BTreeMap::new(),
            commands: Vec::new(),
            notes: Vec::new(),
            output: None,
            launcher: Vec::new(),
            outer_line: None,
            depth: 0,
            count: 0,
        }
    }

    /// Follows a script.
    pub fn read(&mut self, text: &str) -> Step {
        let tokens = match tokens(text, 1) {
            Ok(tokens) => tokens,
            Err(unclosed) => return Err(self.problem(unclosed.line, unclosed.what)),
        };
        self.run_all(&tokens)
    }

    /// Value of a plain variable, or the first of an array.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.variables.get(name)?.first().map(String::as_str)
    }

    fn problem(&self, line: usize, what: impl Into<String>) -> Problems {
        let line = self.outer_line.unwrap_or(line);
        Problems::one(
            format!("{}:{line}", self.place),
            what,
            "correct the script, or give its command line alone: --args \"pretrain_gpt.py --num-layers …\"",
        )
    }

    fn note(&mut self, line: usize, what: impl std::fmt::Display) {
        let line = self.outer_line.unwrap_or(line);
        let note = format!("line {line}: {what}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn run_all(&mut self, tokens: &[Placed]) -> Step {
        let mut cursor = Cursor { tokens, at: 0 };
        self.list(&mut cursor, true)?;
        match cursor.peek() {
            None => Ok(()),
            Some(Token::Word(word)) => {
                Err(self.problem(cursor.line(), format!("{word} has no beginning")))
            }
            Some(_) => Err(self.problem(cursor.line(), "is not a command of a shell script")),
        }
    }

    /// Follows text inside another command: `bash -c`, `eval`, a function, a sourced file.
    fn nested(&mut self, line: usize, tokens: &[Placed], launcher: Vec<String>) -> Step {
        if self.depth >= MAX_DEPTH {
            return Err(self.problem(line, format!("commands are {MAX_DEPTH} deep in each other")));
        }
        self.depth += 1;
        let around = std::mem::replace(&mut self.launcher, launcher);
        let outer = self.outer_line.replace(self.outer_line.unwrap_or(line));
        let result = self.run_all(tokens);
        self.outer_line = outer;
        self.launcher = around;
        self.depth -= 1;
        result
    }

    /// Commands up to a closing word; `run` is false in branches that are not taken.
    fn list(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let mut status = Some(true);
        loop {
            cursor.skip_ends();
            match cursor.peek() {
                None | Some(Token::Operator(")" | ";;")) => return Ok(status),
                Some(Token::Word(word)) if CLOSING.contains(&word.as_str()) => return Ok(status),
                _ => {}
            }
            status = self.and_or(cursor, run)?;
            cursor.take("&");
        }
    }

    /// Pipelines with `&&` and `||` between them.
    fn and_or(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let mut status = self.pipeline(cursor, run)?;
        loop {
            // An unknown status is success: people's scripts continue.
            if cursor.take("&&") {
                cursor.skip_ends();
                let next = self.pipeline(cursor, run && status != Some(false))?;
                status = if status == Some(false) { status } else { next };
            } else if cursor.take("||") {
                cursor.skip_ends();
                let next = self.pipeline(cursor, run && status == Some(false))?;
                status = if status == Some(false) { next } else { status };
            } else {
                return Ok(status);
            }
        }
    }

    fn pipeline(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let opposite = cursor.take("!");
        self.output = None;
        let mut status = self.command(cursor, run)?;
        while cursor.take("|") {
            cursor.skip_ends();
            status = self.command(cursor, run)?;
        }
        self.output = None;
        Ok(if opposite { status.map(|success| !success) } else { status })
    }

    fn command(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let line = cursor.line();
        self.count += 1;
        if self.count > MAX_COMMANDS {
            return Err(self.problem(line, format!("the script has over {MAX_COMMANDS} commands")));
        }
        if cursor.take("(") {
            let status = self.list(cursor, run)?;
            self.need(cursor, line, ")", "(")?;
            return Ok(status);
        }
        let Some(Token::Word(word)) = cursor.peek() else { return self.simple(cursor, run) };
        match word.as_str() {
            "{" => {
                cursor.at += 1;
                let status = self.list(cursor, run)?;
                self.need(cursor, line, "}", "{")?;
                Ok(status)
            }
            "if" => self.branches(cursor, run),
            "for" => self.loop_over_words(cursor, run),
            "while" | "until" => self.skip_loop(cursor),
            "case" => self.case(cursor, run),
            "[[" => self.double_brackets(cursor, run),
            "function" => {
                cursor.at += 1;
                self.function(cursor, run)
            }
            _ => match cursor.tokens.get(cursor.at + 1).map(|placed| &placed.token) {
                Some(Token::Operator("(")) => self.function(cursor, run),
                _ => self.simple(cursor, run),
            },
        }
    }

    fn need(&self, cursor: &mut Cursor, line: usize, end: &str, of: &str) -> Step {
        cursor.skip_ends();
        if cursor.take(end) {
            return Ok(());
        }
        Err(self.problem(line, format!("{of} has no {end}")))
    }

    /// `if … then … elif … else … fi`
    fn branches(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let first = cursor.line();
        let mut open = run;
        let mut status = Some(true);
        while cursor.take("if") || cursor.take("elif") {
            let line = cursor.line();
            let condition = self.list(cursor, open)?;
            self.need(cursor, first, "then", "if")?;
            if open && condition.is_none() {
                self.note(line, "a condition that is not known here is taken as false");
            }
            let taken = open && condition == Some(true);
            let result = self.list(cursor, taken)?;
            if taken {
                open = false;
                status = result;
            }
        }
        if cursor.take("else") {
            let result = self.list(cursor, open)?;
            status = if open { result } else { status };
        }
        self.need(cursor, first, "fi", "if")?;
        Ok(status)
    }

    /// `for NAME in WORDS; do … done`
    fn loop_over_words(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let line = cursor.line();
        cursor.at += 1;
        let name = cursor.word().unwrap_or_default().to_string();
        let mut values = Vec::new();
        if cursor.take("in") {
            while let Some(raw) = cursor.word() {
                if run {
                    values.extend(self.fields(raw, line)?);
                }
            }
        } else {
            // `for ((i = 0; …))`: not followed.
            while !matches!(cursor.peek(), None | Some(Token::Operator(";"))) {
                cursor.at += 1;
            }
            while cursor.peek().is_some()
                && !matches!(cursor.peek(), Some(Token::Word(w)) if w == "do")
            {
                cursor.at += 1;
            }
        }
        self.need(cursor, line, "do", "for")?;
        let body = cursor.at;
        self.list(cursor, false)?;
        let end = cursor.at;
        for value in values {
            self.assign(&name, vec![value], line)?;
            cursor.at = body;
            self.list(cursor, true)?;
        }
        cursor.at = end;
        self.need(cursor, line, "done", "for")?;
        Ok(Some(true))
    }

    /// `while … do … done`, whose body is not followed.
    fn skip_loop(&mut self, cursor: &mut Cursor) -> Step<Status> {
        let line = cursor.line();
        cursor.at += 1;
        self.list(cursor, false)?;
        self.need(cursor, line, "do", "while")?;
        self.list(cursor, false)?;
        self.need(cursor, line, "done", "while")?;
        self.note(line, "a loop is not followed");
        Ok(Some(true))
    }

    /// `NAME() { … }`
    fn function(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let line = cursor.line();
        let name = cursor.word().unwrap_or_default().to_string();
        if cursor.take("(") {
            self.need(cursor, line, ")", "(")?;
        }
        cursor.skip_ends();
        let start = cursor.at;
        self.command(cursor, false)?;
        if run {
            let body = cursor.tokens[start..cursor.at].to_vec();
            self.functions.insert(name, body);
        }
        Ok(Some(true))
    }

    /// A command with its redirects.
    fn simple(&mut self, cursor: &mut Cursor, run: bool) -> Step<Status> {
        let line = cursor.line();
        let mut raw = Vec::new();
        let mut input = None;
        let mut into = None;
        loop {
            match cursor.peek() {
                Some(Token::Word(word)) => raw.push(word.as_str()),
                Some(Token::Here { body, expanded }) if run => {
                    let text = if *expanded { self.document(body, line)? } else { body.clone() };
                    input = Some(text);
                }
                Some(Token::Here { .. }) => {}
                Some(Token::Operator(name @ (">" | ">>" | "2>" | "<" | "<<<"))) => {
                    cursor.at += 1;
                    let target = cursor.word().unwrap_or_default();
                    let target = if run { self.text(target, line)? } else { String::new() };
                    match *name {
                        ">" | ">>" => into = Some((target, *name == ">>")),
                        "<<<" => input = Some(target + "\n"),
                        "<" => input = self.files.get(&target).cloned().or(input),
                        _ => {}
                    }
                    continue;
                }
                _ => break,
            }
            cursor.at += 1;
        }
        if raw.is_empty() && input.is_none() && into.is_none() {
            let what = "is not a command of a shell script";
            return Err(self.problem(line, what));
        }
        if !run {
            return Ok(Some(true));
        }
        let input = input.or(self.output.take());
        let status = self.execute(&raw, input, line)?;
        if let (Some((name, append)), Some(text)) = (into, &self.output) {
            let file = self.files.entry(name).or_default();
            *file = if append { format!("{file}{text}") } else { text.clone() };
        }
        Ok(status)
    }

    /// Follows a command of raw words, with the text that it reads.
    fn execute(&mut self, raw: &[&str], input: Option<String>, line: usize) -> Step<Status> {
        let assignments = raw
            .iter()
            .take_while(|raw| assignment(raw).is_some())
            .count();
        for raw in &raw[..assignments] {
            self.assign_raw(raw, line)?;
        }
        let mut words = Vec::new();
        for raw in &raw[assignments..] {
            let declares = words
                .first()
                .is_some_and(|first: &String| is_declaration(first));
            if declares && assignment(raw).is_some() {
                self.assign_raw(raw, line)?;
            } else {
                words.extend(self.fields(raw, line)?);
            }
        }
        let Some((name, arguments)) = words.split_first() else { return Ok(Some(true)) };
        match name.as_str() {
            ":" | "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            "cd" | "exit" | "return" | "set" | "shift" | "shopt" | "trap" | "ulimit" | "wait" => {
                Ok(Some(true))
            }
            _ if is_declaration(name) => Ok(Some(true)),
            "[" | "test" => Ok(self.test(arguments)),
            "((" => Ok(None),
            "unset" => {
                for name in arguments {
                    self.variables.remove(name);
                }
                Ok(Some(true))
            }
            "eval" => {
                self.nested_text(&arguments.join(" "), line, Vec::new())?;
                Ok(None)
            }
            "source" | "." => self.source(arguments, line),
            "echo" | "printf" | "cat" | "tee" => {
                self.output = self.written_text(name, arguments, input);
                Ok(Some(true))
            }
            _ => self.call(words, line),
        }
    }

    /// Follows a function or `bash -c`, or adds a command.
    fn call(&mut self, words: Vec<String>, line: usize) -> Step<Status> {
        if let Some(body) = self.functions.get(&words[0]).cloned() {
            for (number, argument) in words.iter().enumerate() {
                self.variables
                    .insert(number.to_string(), vec![argument.clone()]);
            }
            self.variables.insert("@".to_string(), words[1..].to_vec());
            self.nested(line, &body, self.launcher.clone())?;
            return Ok(None);
        }
        let is_shell = |word: &str| matches!(word.rsplit('/').next(), Some("bash" | "sh" | "zsh"));
        let text = words.windows(2).position(|pair| {
            is_shell(&pair[0]) && pair[1].starts_with('-') && pair[1].ends_with('c')
        });
        if let Some(shell) = text
            && let Some(text) = words.get(shell + 2)
        {
            let launcher = [&self.launcher[..], &words[..shell]].concat();
            self.nested_text(text, line, launcher)?;
            return Ok(None);
        }
        let line = self.outer_line.unwrap_or(line);
        let words = [&self.launcher[..], &words].concat();
        self.commands.push(Command { line, words });
        Ok(None)
    }

    fn nested_text(&mut self, text: &str, line: usize, launcher: Vec<String>) -> Step {
        match tokens(text, line) {
            Ok(tokens) => self.nested(line, &tokens, launcher),
            Err(unclosed) => Err(self.problem(line, unclosed.what)),
        }
    }

    /// Follows a sourced file that exists.
    fn source(&mut self, arguments: &[String], line: usize) -> Step<Status> {
        let Some(name) = arguments.first() else { return Ok(Some(true)) };
        let path = self.folder.join(name);
        match base::input::read(&path, base::input::SMALL) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                self.nested_text(&text, line, Vec::new())?;
            }
            Err(_) => {
                self.note(line, format_args!("{name} is not here: its variables have no values"))
            }
        }
        Ok(Some(true))
    }

    /// Text that `echo`, `printf`, `cat` or `tee` writes.
    fn written_text(
        &mut self,
        name: &str,
        arguments: &[String],
        input: Option<String>,
    ) -> Option<String> {
        let plain: Vec<&str> = arguments
            .iter()
            .map(String::as_str)
            .filter(|argument| !argument.starts_with('-'))
            .collect();
        match name {
            "echo" => Some(plain.join(" ") + "\n"),
            "printf" => plain.first().map(|text| text.replace("\\n", "\n")),
            "tee" => {
                for name in plain {
                    self.files
                        .insert(name.to_string(), input.clone().unwrap_or_default());
                }
                input
            }
            _ => match plain.first() {
                Some(name) => self.file(name),
                None => input,
            },
        }
    }

    /// Text of a file that the script writes, or that is here.
    pub fn file(&self, name: &str) -> Option<String> {
        if let Some(text) = self.files.get(name) {
            return Some(text.clone());
        }
        let bytes = base::input::read(&self.folder.join(name), base::input::SMALL).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Value of an arithmetic expression in whole numbers.
    fn whole(&self, text: &str) -> Option<f64> {
        evaluate(text, true, &|name| self.value(name).map(str::to_string))
    }
}

#[cfg(test)]
mod tests;
