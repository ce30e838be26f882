//! Logs of other trainers: losses, gradient norms and rates by step.
//!
//! A format is a row of `FORMATS` with a parser of one line. Prefixes of ranks, time stamps and colours
//! are allowed before and inside a line. Of a step that was logged several times, as in a log with
//! resumed segments, the last attempt counts.

use anyhow::Context;
use base::{Problems, WrongInput, input};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Trainer's form of a line with a step's results.
pub struct LogFormat {
    pub trainer: &'static str,
    /// Whether a logged loss is the mean since the line before.
    averages: bool,
    /// Whether zeros at the end of a number are omitted, as Python does: then the number with most digits
    /// has the unit of all.
    drops_zeros: bool,
    parse: fn(&str) -> Option<Line>,
}

static FORMATS: [LogFormat; 3] = [
    LogFormat { trainer: "Megatron", averages: true, drops_zeros: false, parse: parse_megatron },
    LogFormat { trainer: "torchtitan", averages: false, drops_zeros: false, parse: parse_titan },
    LogFormat {
        trainer: "Hugging Face Trainer",
        averages: true,
        drops_zeros: true,
        parse: parse_hugging_face,
    },
];

/// The file that Hugging Face's Trainer writes into each checkpoint.
static TRAINER_STATE: LogFormat = LogFormat {
    trainer: "Hugging Face Trainer",
    averages: true,
    drops_zeros: true,
    parse: |_| None,
};

/// Numbers of a line.
struct Line {
    /// None if the line does not name its step.
    step: Option<u64>,
    loss: Number,
    grad_norm: Option<Number>,
}

/// Logged number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    pub value: f64,
    /// Unit of its last digit.
    pub unit: f64,
}

impl Number {
    /// Reads `6.905420E+00`, `7.1` or `nan`.
    fn parse(text: &str) -> Option<Number> {
        let text = text.trim_matches(|c: char| matches!(c, ',' | '\'' | '"' | '}' | '{' | ' '));
        let value: f64 = text.parse().ok()?;
        let split = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let decimals = split.0.split_once('.').map_or(0, |(_, rest)| rest.len()) as i32;
        let exponent: i32 = split.1.parse().unwrap_or(0);
        Some(Number { value, unit: 10f64.powi(exponent - decimals) })
    }
}

/// Results of a step, as logged.
#[derive(Clone, Debug)]
pub struct LoggedStep {
    pub step: u64,
    /// Mean over this number of steps, of which `step` is the last.
    pub averaged: u64,
    pub loss: Number,
    pub grad_norm: Option<Number>,
}

/// Log of a run.
pub struct RunLog {
    pub trainer: &'static str,
    pub steps: BTreeMap<u64, LoggedStep>,
}

impl RunLog {
    /// Reads the files in order, as one log. `interval` is the number of steps for each line of a log whose
    /// lines do not name their step.
    pub fn read(paths: &[impl AsRef<Path>], interval: u64) -> anyhow::Result<RunLog> {
        let mut found: Option<(&'static LogFormat, Vec<Line>)> = None;
        for path in paths {
            let path = path.as_ref();
            let read = input::read_named(path, input::LARGE);
            let bytes =
                read.map_err(|error| WrongInput::reading(error, path.display().to_string()))?;
            let text = String::from_utf8_lossy(&bytes);
            let (format, lines) = match serde_json::from_str::<Value>(&text) {
                Ok(value) => (&TRAINER_STATE, read_trainer_state(&value)),
                Err(_) => read_lines(&text),
            };
            if lines.is_empty() {
                return Err(unknown(path).into());
            }
            match &mut found {
                None => found = Some((format, lines)),
                Some((first, all)) if first.trainer == format.trainer => all.extend(lines),
                Some((first, _)) => {
                    return Err(Problems::one(
                        path.display().to_string(),
                        format!(
                            "is a log of {}, the one before of {}",
                            format.trainer, first.trainer
                        ),
                        "give logs of one run",
                    )
                    .into());
                }
            }
        }
        let (format, lines) = found.context("a log is given")?;
        Ok(RunLog { trainer: format.trainer, steps: collect_steps(format, lines, interval) })
    }

    /// First and last logged step.
    pub fn range(&self) -> [u64; 2] {
        let first = self.steps.keys().next().copied().unwrap_or(0);
        let last = self.steps.keys().last().copied().unwrap_or(0);
        [first, last]
    }
}

fn unknown(path: &Path) -> Problems {
    let known: Vec<&str> = FORMATS.iter().map(|format| format.trainer).collect();
    Problems::one(
        path.display().to_string(),
        format!("has no line with a step's loss; known are logs of {}", known.join(", ")),
        "give the trainer's own log, or trainer_state.json",
    )
}

/// The lines of the format that reads most of them.
fn read_lines(text: &str) -> (&'static LogFormat, Vec<Line>) {
    let plain = strip_colours(text);
    let mut best: (&'static LogFormat, Vec<Line>) = (&FORMATS[0], Vec::new());
    for format in &FORMATS {
        let lines: Vec<Line> = plain.lines().filter_map(format.parse).collect();
        if lines.len() > best.1.len() {
            best = (format, lines);
        }
    }
    best
}

/// Text without the escape sequences of a terminal.
fn strip_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        let end = after.find(|c: char| c.is_ascii_alphabetic());
        rest = end.map_or("", |end| &after[end + 1..]);
    }
    plain + rest
}

/// `iteration 6/ 100 | … | lm loss: 6.905420E+00 | loss scale: 1.0 | grad norm: 1.234 |`
fn parse_megatron(line: &str) -> Option<Line> {
    let (_, rest) = line.split_once("iteration ")?;
    let (step, rest) = rest.split_once('/')?;
    let step = step.trim().parse().ok()?;
    let field = |name: &str| {
        let found = rest
            .split('|')
            .find_map(|part| part.trim().strip_prefix(name));
        Number::parse(found?.trim_start_matches(':').trim())
    };
    Some(Line { step: Some(step), loss: field("lm loss:")?, grad_norm: field("grad norm:") })
}

/// `step: 10  loss:  7.11020  grad_norm:  1.2345  memory: …`
fn parse_titan(line: &str) -> Option<Line> {
    let word = |name: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == name)?;
        words.next()
    };
    let step = word("step:")?.parse().ok()?;
    let loss = Number::parse(word("loss:")?)?;
    let grad_norm = word("grad_norm:").and_then(Number::parse);
    Some(Line { step: Some(step), loss, grad_norm })
}

/// `{'loss': 6.9054, 'grad_norm': 1.23, 'learning_rate': 1e-05, 'epoch': 0.01}`
fn parse_hugging_face(line: &str) -> Option<Line> {
    let begin = line.find("{'")?;
    let end = line.rfind('}')?;
    let inner = line.get(begin + 1..end)?;
    let field = |name: &str| {
        let pairs = inner.split(',').filter_map(|pair| pair.split_once(':'));
        let mut values = pairs.filter(|(key, _)| key.trim().trim_matches('\'') == name);
        Number::parse(values.next()?.1.trim())
    };
    Some(Line { step: None, loss: field("loss")?, grad_norm: field("grad_norm") })
}

/// Entries of `log_history` with a loss.
fn read_trainer_state(value: &Value) -> Vec<Line> {
    let history = value["log_history"].as_array().into_iter().flatten();
    let number = |entry: &Value, name: &str| Number::parse(&entry[name].as_number()?.to_string());
    let mut lines = Vec::new();
    for entry in history {
        if let Some(loss) = number(entry, "loss") {
            let step = entry["step"].as_u64();
            lines.push(Line { step, loss, grad_norm: number(entry, "grad_norm") });
        }
    }
    lines
}

/// Steps of the lines, the last attempt of each.
fn collect_steps(format: &LogFormat, lines: Vec<Line>, interval: u64) -> BTreeMap<u64, LoggedStep> {
    let mut steps = BTreeMap::<u64, LoggedStep>::new();
    let mut named = Vec::new();
    for (number, line) in (1..).zip(lines) {
        named.push((line.step.unwrap_or(number * interval), line));
    }
    let usual = usual_interval(&named);
    if format.drops_zeros {
        share_units(&mut named);
    }
    let mut before: Option<u64> = None;
    for (step, line) in named {
        let averaged = match (before, steps.get(&step)) {
            _ if !format.averages => 1,
            (Some(before), Some(known)) if before == step => known.averaged,
            (Some(before), _) if before < step => step - before,
            _ => usual.min(step),
        };
        let Line { loss, grad_norm, .. } = line;
        steps.insert(step, LoggedStep { step, averaged, loss, grad_norm });
        before = Some(step);
    }
    steps
}

/// Gives all losses, and all norms, the unit of the one with most digits.
fn share_units(named: &mut [(u64, Line)]) {
    let mut finest_loss = f64::INFINITY;
    let mut finest_norm = f64::INFINITY;
    for (_, line) in named.iter() {
        finest_loss = finest_loss.min(line.loss.unit);
        finest_norm = line
            .grad_norm
            .map_or(finest_norm, |norm| finest_norm.min(norm.unit));
    }
    for (_, line) in named {
        line.loss.unit = finest_loss;
        if let Some(norm) = &mut line.grad_norm {
            norm.unit = finest_norm;
        }
    }
}

/// Most frequent distance between two lines.
fn usual_interval(named: &[(u64, Line)]) -> u64 {
    let mut counts = BTreeMap::<u64, usize>::new();
    for two in named.windows(2) {
        if two[1].0 > two[0].0 {
            *counts.entry(two[1].0 - two[0].0).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map_or(1, |(interval, _)| interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(text: &str) -> RunLog {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.log");
        fs::write(&path, text).unwrap();
        RunLog::read(&[path], 1).unwrap()
    }

    fn values(log: &RunLog) -> Vec<(u64, u64, f64, Option<f64>)> {
        let row = |row: &LoggedStep| {
            (row.step, row.averaged, row.loss.value, row.grad_norm.map(|norm| norm.value))
        };
        log.steps.values().map(row).collect()
    }

    #[test]
    fn megatrons_lines_have_prefixes_and_the_last_attempt_counts() {
        let line = |rank: &str, step: u64, loss: &str| {
            format!(
                "{rank}[2026-08-21 10:00:00]  iteration {step:8}/     100 | consumed samples:  48 | \
                 learning rate: 1.0E-02 | lm loss: {loss} | loss scale: 1.0 | grad norm: 1.250 |\n"
            )
        };
        let log = read(
            &(line("7: ", 10, "6.905420E+00")
                + "saving checkpoint at iteration 10 to runs\n"
                + &line("7: ", 20, "6.5E+00")
                + &line("", 30, "6.25E+00")
                + &line("", 20, "6.75E+00")
                + "validation loss at iteration 20 | lm loss value: 6.6E+00 | lm loss PPL: 7.3E+02 |\n"),
        );
        assert_eq!(log.trainer, "Megatron");
        let expected = vec![
            (10, 10, 6.90542, Some(1.25)),
            (20, 10, 6.75, Some(1.25)),
            (30, 10, 6.25, Some(1.25)),
        ];
        assert_eq!(values(&log), expected);
        assert_eq!(log.steps[&10].loss.unit, 1e-6);
    }

    #[test]
    fn torchtitans_lines_are_coloured_and_not_averaged() {
        let log = read(
            "[rank0]:[titan] 2026-08-21 10:02:17,006 - root - INFO - \u{1b}[31mstep:  1  \u{1b}[32mloss: \
             12.26420  \u{1b}[38;2;180;60;0mgrad_norm:  1.4210  \u{1b}[33mmemory:  0.41GiB\u{1b}[39m\n\
             [rank0]:[titan] INFO - step: 10  loss:  7.10000  grad_norm:  0.9  memory: 1\n",
        );
        assert_eq!(log.trainer, "torchtitan");
        let expected = vec![(1, 1, 12.2642, Some(1.421)), (10, 1, 7.1, Some(0.9))];
        assert_eq!(values(&log), expected);
        assert_eq!(log.steps[&10].loss.unit, 1e-5);
    }

    #[test]
    fn hugging_faces_lines_are_counted() {
        let log = read(
            "{'loss': 6.9054, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'epoch': 0.01}\n\
             {'eval_loss': 5.0, 'epoch': 0.01}\n\
             100%|###| 2/2 {'loss': '6.5', 'grad_norm': nan, 'learning_rate': '1e-05', 'epoch': '0.02'}\n",
        );
        let rows = values(&log);
        assert_eq!(rows[0], (1, 1, 6.9054, Some(1.25)));
        assert_eq!((rows[1].0, rows[1].2), (2, 6.5));
        assert!(rows[1].3.unwrap().is_nan());
        assert_eq!(log.steps[&2].loss.unit, 1e-4, "6.5 is 6.5000");
    }

    #[test]
    fn trainer_state_names_its_steps_and_averages() {
        let log = read(
            r#"{"global_step": 30, "log_history": [
                {"step": 10, "loss": 6.9054, "grad_norm": 1.25}, {"step": 20, "loss": 6.5},
                {"step": 20, "eval_loss": 6.4}, {"step": 30, "train_loss": 6.0}]}"#,
        );
        assert_eq!(values(&log), vec![(10, 10, 6.9054, Some(1.25)), (20, 10, 6.5, None)]);
    }

    #[test]
    fn a_file_without_losses_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.log");
        fs::write(&path, "nothing\n").unwrap();
        let refusal = RunLog::read(&[path], 1).err().unwrap().to_string();
        assert!(refusal.contains("known are logs of Megatron, torchtitan"), "{refusal}");
    }
}
