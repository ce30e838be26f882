//! Formats of questions in JSON lines, as the sets are published. Prompts are those of
//! lm-evaluation-harness's tasks hellaswag, arc_easy and arc_challenge, piqa, sciq, mmlu and
//! lambada_openai.

use anyhow::Result;
use base::{Problems, WrongInput, input};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Question as text. The prompt is `question`; each answer follows after a space.
#[derive(Clone, Debug, PartialEq)]
pub struct QuestionText {
    pub question: String,
    /// One answer alone (LAMBADA) is scored by its perplexity.
    pub answers: Vec<String>,
    /// Index of the right answer.
    pub right: usize,
    /// MMLU's subject: examples are the first ones of the same subject.
    pub subject: Option<String>,
}

/// Format of a line.
struct Format {
    name: &'static str,
    /// Keys that only this format has, and its other keys.
    own_keys: &'static [&'static str],
    other_keys: &'static str,
    read: fn(&Value) -> Result<QuestionText, Wrong>,
}

impl Format {
    fn keys(&self) -> String {
        let others = self.other_keys.split_terminator(", ");
        let keys: Vec<&str> = self.own_keys.iter().copied().chain(others).collect();
        format!("{} with {}", self.name, keys.join(", "))
    }
}

/// Formats in the order in which a line is compared with their own keys.
const FORMATS: [Format; 6] = [
    Format { name: "HellaSwag", own_keys: &["endings"], other_keys: "ctx, label", read: hellaswag },
    Format {
        name: "MMLU",
        own_keys: &["choices", "answer"],
        other_keys: "question, subject",
        read: mmlu,
    },
    Format { name: "ARC", own_keys: &["choices"], other_keys: "question, answerKey", read: arc },
    Format { name: "PIQA", own_keys: &["goal"], other_keys: "sol1, sol2, label", read: piqa },
    Format {
        name: "SciQ",
        own_keys: &["correct_answer"],
        other_keys: "support, question, distractor1, distractor2, distractor3",
        read: sciq,
    },
    Format { name: "LAMBADA", own_keys: &["text"], other_keys: "", read: lambada },
];

/// Names of the formats, and their keys.
pub fn list_formats() -> String {
    let all: Vec<String> = FORMATS.iter().map(Format::keys).collect();
    format!("write one JSON object per line, as {}", all.join("; "))
}

/// Problem with a line, and the remedy.
pub type Wrong = (String, String);

pub fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Wrong {
    (what.into(), remedy.into())
}

/// Reads a file of questions.
pub fn read_lines(path: &Path) -> Result<Vec<u8>> {
    let place = path.display().to_string();
    if !path.exists() {
        return Err(Problems::one(
            place,
            "there is no such file",
            format!("a task is a file: {}", list_formats()),
        )
        .into());
    }
    input::read_named(path, input::LARGE)
        .map_err(|error| WrongInput::reading(error, format!("cannot read {place}")))
}

impl QuestionText {
    /// Parses a line in the format that its keys indicate.
    pub fn parse(line: &[u8]) -> Result<QuestionText, Wrong> {
        let read = base::json::from_python::<Row>(line);
        let Row(row) = read.map_err(|error| wrong(format!("not JSON: {error}"), list_formats()))?;
        let row = Value::Object(row.into_iter().collect());
        let format = FORMATS
            .iter()
            .find(|format| format.own_keys.iter().all(|key| row.get(key).is_some()))
            .ok_or_else(|| wrong("has the keys of no known format", list_formats()))?;
        let text = (format.read)(&row)
            .map_err(|(what, _)| wrong(what, format!("write {}", format.keys())))?;
        let QuestionText { answers, right, .. } = &text;
        if *right >= answers.len() {
            return Err(wrong(
                format!("the right answer is number {right} of {}", answers.len()),
                "answers are numbered from 0 on",
            ));
        }
        match answers.iter().position(String::is_empty) {
            Some(i) => Err(wrong(format!("answer {i} is empty"), "")),
            None => Ok(text),
        }
    }

    fn new(question: String, answers: Vec<String>, right: usize) -> QuestionText {
        QuestionText { question, answers, right, subject: None }
    }

    /// QuestionText before all examples.
    pub fn description(&self) -> String {
        self.subject.as_ref().map_or(String::new(), |subject| {
            let subject = subject.replace('_', " ");
            format!(
                "The following are multiple choice questions (with answers) about {subject}.\n\n"
            )
        })
    }

    /// The question with its right answer, as an example before other questions.
    pub fn example(&self) -> String {
        // The harness writes LAMBADA's space twice in an example.
        let space = if self.answers.len() == 1 { " " } else { "" };
        format!("{} {space}{}\n\n", self.question, self.answers[self.right])
    }
}

/// With activity_label, ctx_a and ctx_b as published; otherwise with ctx alone.
fn hellaswag(row: &Value) -> Result<QuestionText, Wrong> {
    let parts = ["activity_label", "ctx_a", "ctx_b"].map(|key| row[key].as_str());
    let question = match parts {
        [Some(activity), Some(a), Some(b)] => format!("{activity}: {a} {}", capitalise(b)),
        _ => string(row, "ctx")?.to_string(),
    };
    let answers = strings(&row["endings"], "endings")?
        .into_iter()
        .map(strip_markup)
        .collect();
    Ok(QuestionText::new(strip_markup(&question), answers, number(row, "label")?))
}

fn arc(row: &Value) -> Result<QuestionText, Wrong> {
    let question = format!("Question: {}\nAnswer:", string(row, "question")?);
    let answers = strings(&row["choices"]["text"], "choices.text")?;
    let labels = strings(&row["choices"]["label"], "choices.label")?;
    let key = string(row, "answerKey")?;
    let right = labels.iter().position(|label| *label == key);
    let answers = answers.into_iter().map(str::to_string).collect();
    Ok(QuestionText::new(
        question,
        answers,
        right.ok_or_else(|| wrong(format!("answerKey {key:?} is not in choices.label"), ""))?,
    ))
}

fn piqa(row: &Value) -> Result<QuestionText, Wrong> {
    let question = format!("Question: {}\nAnswer:", string(row, "goal")?);
    let answers = ["sol1", "sol2"].map(|key| string(row, key).map(str::to_string));
    let [first, second] = answers;
    Ok(QuestionText::new(question, vec![first?, second?], number(row, "label")?))
}

fn mmlu(row: &Value) -> Result<QuestionText, Wrong> {
    let choices = strings(&row["choices"], "choices")?;
    const LETTERS: [&str; 4] = ["A", "B", "C", "D"];
    if choices.len() != LETTERS.len() {
        return Err(wrong(format!("choices has {} answers; MMLU has 4", choices.len()), ""));
    }
    let letter = row["answer"]
        .as_str()
        .and_then(|key| LETTERS.iter().position(|l| *l == key.trim()));
    let right = letter.map_or_else(|| number(row, "answer"), Ok)?;
    let mut question = string(row, "question")?.trim().to_string();
    for (letter, choice) in LETTERS.iter().zip(&choices) {
        question += &format!("\n{letter}. {choice}");
    }
    let answers = LETTERS.map(str::to_string).to_vec();
    let subject = row["subject"].as_str().map(str::to_string);
    Ok(QuestionText { subject, ..QuestionText::new(question + "\nAnswer:", answers, right) })
}

fn sciq(row: &Value) -> Result<QuestionText, Wrong> {
    let support = string(row, "support")?.trim_start();
    let asked = string(row, "question")?;
    let keys = ["distractor1", "distractor2", "distractor3", "correct_answer"];
    let answers = keys.iter().map(|key| string(row, key).map(str::to_string));
    let question = format!("{support}\nQuestion: {asked}\nAnswer:");
    Ok(QuestionText::new(question, answers.collect::<Result<_, _>>()?, 3))
}

/// The last word of a passage follows from the words before it.
fn lambada(row: &Value) -> Result<QuestionText, Wrong> {
    let text = string(row, "text")?;
    let (question, word) = text
        .rsplit_once(' ')
        .ok_or_else(|| wrong("text has no word after a space", ""))?;
    Ok(QuestionText::new(question.to_string(), vec![word.to_string()], 0))
}

/// Fields of the formats that are read.
const KEYS: [&str; 20] = [
    "activity_label",
    "answer",
    "answerKey",
    "choices",
    "correct_answer",
    "ctx",
    "ctx_a",
    "ctx_b",
    "distractor1",
    "distractor2",
    "distractor3",
    "endings",
    "goal",
    "label",
    "question",
    "sol1",
    "sol2",
    "subject",
    "support",
    "text",
];

type Fields = BTreeMap<String, Value>;

/// Object of a line, without other fields than `KEYS`, whatever they hold.
struct Row(Fields);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Row, D::Error> {
        json.deserialize_map(Row(Fields::new()))
    }
}

impl<'de> Visitor<'de> for Row {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Row, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if KEYS.contains(&key.as_str()) {
                self.0.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(self)
    }
}

fn string<'v>(row: &'v Value, key: &str) -> Result<&'v str, Wrong> {
    row[key]
        .as_str()
        .ok_or_else(|| wrong(format!("{key} is {}, not text", row[key]), ""))
}

fn strings<'v>(list: &'v Value, key: &str) -> Result<Vec<&'v str>, Wrong> {
    let texts = list
        .as_array()
        .and_then(|list| list.iter().map(Value::as_str).collect());
    texts.ok_or_else(|| wrong(format!("{key} is not a list of texts"), ""))
}

/// Number from 0 on, possibly written as text.
fn number(row: &Value, key: &str) -> Result<usize, Wrong> {
    let value = &row[key];
    let number = value
        .as_u64()
        .or_else(|| value.as_str()?.trim().parse().ok());
    number
        .map(|number| number as usize)
        .ok_or_else(|| wrong(format!("{key} is {value}, not the number of an answer"), ""))
}

/// Python's `str.capitalize`.
fn capitalise(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().into_iter().flat_map(char::to_uppercase);
    first.chain(rest.flat_map(char::to_lowercase)).collect()
}

/// HellaSwag's text without remaining WikiHow markup, cleaned as in the harness.
fn strip_markup(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut clean = String::new();
    let mut rest = text.as_str();
    while let Some(open) = rest.find('[') {
        let inside = rest[open..].find([']', '\n']);
        match inside.filter(|end| rest.as_bytes()[open + end] == b']') {
            Some(end) => {
                clean += &rest[..open];
                rest = &rest[open + end + 1..];
            }
            None => {
                clean += &rest[..=open];
                rest = &rest[open + 1..];
            }
        }
    }
    (clean + rest).replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(question: &str, answers: &[&str], right: usize) -> QuestionText {
        let answers = answers.iter().map(|answer| answer.to_string()).collect();
        QuestionText::new(question.into(), answers, right)
    }

    /// Python writes numbers that are not finite; JavaScript cuts strings within a character.
    #[test]
    fn other_fields_may_hold_anything() {
        let line = r#"{"score": NaN, "goal": "Sit", "meta": {"p": [1, -Infinity, 1e999]},
            "cut": "\ud83d", "sol1": "on", "sol2": "under", "label": 1, "last": Infinity}"#;
        let piqa = text("Question: Sit\nAnswer:", &["on", "under"], 1);
        assert_eq!(QuestionText::parse(line.as_bytes()).unwrap(), piqa);
        let (what, _) =
            QuestionText::parse(br#"{"goal": NaN, "sol1": "a", "label": 0}"#).unwrap_err();
        assert_eq!(what, "goal is null, not text");
        let (what, _) = QuestionText::parse(b"[1]").unwrap_err();
        assert!(what.contains("expected a JSON object"), "{what}");
    }

    /// Expected texts from lm-evaluation-harness.
    #[test]
    fn lines_become_the_prompts_of_the_harness() {
        let parse = |line: &str| QuestionText::parse(line.as_bytes()).unwrap();
        let hellaswag = r#"{"activity_label": "Roof", "ctx_a": "A man sits.", "ctx_b": "he Then",
            "ctx": "unused", "endings": ["runs [step] off.", "[header] Naps [title] now"],
            "label": "1"}"#;
        let answers = ["runs off.", " Naps. now"];
        assert_eq!(parse(hellaswag), text("Roof: A man sits. He then", &answers, 1));
        let short = r#"{"ctx": "A [x man", "endings": ["a", "b"], "label": 0}"#;
        assert_eq!(parse(short), text("A [x man", &["a", "b"], 0));
        let arc = r#"{"question": "Why?", "choices": {"text": ["a", "b", "c"],
            "label": ["1", "2", "3"]}, "answerKey": "3"}"#;
        assert_eq!(parse(arc), text("Question: Why?\nAnswer:", &["a", "b", "c"], 2));
        let piqa = r#"{"goal": "Sit", "sol1": "on", "sol2": "under", "label": 1}"#;
        assert_eq!(parse(piqa), text("Question: Sit\nAnswer:", &["on", "under"], 1));
        let mmlu = r#"{"question": " Why? ", "subject": "high_school_biology",
            "choices": ["a", "b", "c", "d"], "answer": 2}"#;
        let asked = "Why?\nA. a\nB. b\nC. c\nD. d\nAnswer:";
        let found = parse(mmlu);
        assert_eq!((&*found.question, found.right), (asked, 2));
        let head =
            "The following are multiple choice questions (with answers) about high school biology.";
        assert_eq!(found.description(), format!("{head}\n\n"));
        assert_eq!(found.example(), format!("{asked} C\n\n"));
        assert_eq!(parse(&mmlu.replace('2', "\"D\"")).right, 3);
        let sciq = r#"{"question": "Who?", "support": " Cells.", "distractor1": "a",
            "distractor2": "b", "distractor3": "c", "correct_answer": "d"}"#;
        assert_eq!(parse(sciq), text("Cells.\nQuestion: Who?\nAnswer:", &["a", "b", "c", "d"], 3));
        let lambada = parse(r#"{"text": "He saw the dog"}"#);
        assert_eq!(lambada, text("He saw the", &["dog"], 0));
        assert_eq!(lambada.example(), "He saw the  dog\n\n");
    }
}
