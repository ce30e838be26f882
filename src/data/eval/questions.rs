//! Multiple-choice questions in JSON lines, in the formats of HellaSwag, ARC and PIQA.
//!
//! Prompts, tokens and scores are those of EleutherAI's lm-evaluation-harness (tasks hellaswag,
//! arc_easy and arc_challenge, piqa, zero-shot). The score of an answer is the sum of log p over
//! its own tokens, after the question. `acc` is the fraction of questions whose right answer scores
//! highest; `acc_norm` first divides by the answer's length in characters.

use super::packed::{Packed, Sequence};
use crate::tokenizer::{Encoder, Tokenizer};
use anyhow::Result;
use base::{Problems, WrongInput, input};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Maximum number of wrong lines listed.
const MOST_LISTED: usize = 20;

/// Questions of a file, and the samples to score for them.
#[derive(Debug)]
pub struct Task {
    questions: Vec<Question>,
    /// One sequence for each answer of each question.
    pub packed: Packed,
}

#[derive(Debug)]
struct Question {
    right: usize,
    /// Length of each answer in characters.
    lengths: Vec<usize>,
}

/// Fraction of questions that a model answers correctly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    pub questions: u64,
    /// By log p of the answers.
    pub acc: f64,
    /// By log p per character.
    pub acc_norm: f64,
}

/// Parameters for converting text to sequences.
pub struct QuestionEncoder<'a> {
    pub tokenizer: &'a Tokenizer,
    /// Token before an answer whose question has no tokens.
    pub eod: Option<u32>,
    /// Whether prompts begin with the tokens that the tokenizer's template puts before a text
    /// (`add_bos_token` of the harness).
    pub add_bos_token: bool,
    /// Tokens per sample; longer questions are truncated at their start.
    pub seq_len: usize,
    /// Vocabulary size of the model.
    pub vocab: usize,
}

/// Question as text.
#[derive(Debug, PartialEq)]
struct Text {
    question: String,
    answers: Vec<String>,
    right: usize,
}

impl Task {
    /// Reads the file's first `limit` questions. Reports every line that is not a question, by its
    /// number.
    pub fn read(path: &Path, how: &QuestionEncoder, limit: Option<usize>) -> Result<Task> {
        let place = path.display().to_string();
        let failed = |error| WrongInput::reading(error, format!("cannot read {place}"));
        let bytes = input::read_named(path, input::LARGE).map_err(failed)?;
        let (mut questions, mut sequences) = (Vec::new(), Vec::new());
        let mut problems = Problems::default();
        let mut encoder = Encoder::new(how.tokenizer);
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        for (i, line) in lines.take(limit.unwrap_or(usize::MAX)) {
            match Text::parse(line).and_then(|text| how.question(text, &mut encoder)) {
                Ok((question, answers)) => {
                    questions.push(question);
                    sequences.extend(answers);
                }
                Err((what, remedy)) => problems.add(format!("{place}:{}", i + 1), what, remedy),
            }
            if problems.list.len() == MOST_LISTED {
                break;
            }
        }
        if problems.list.is_empty() && questions.is_empty() {
            problems.add(place, "holds no question", "give one JSON object a line");
        }
        problems.or(())?;
        Ok(Task { questions, packed: Packed::new(sequences, how.seq_len) })
    }

    /// Computes the accuracy from −log p of each sequence, in order.
    pub fn accuracy(&self, losses: &[f64]) -> Accuracy {
        let (mut plain, mut by_length, mut first) = (0, 0, 0);
        for Question { right, lengths } in &self.questions {
            let losses = &losses[first..first + lengths.len()]; // every answer was scored
            first += lengths.len();
            let mean = |(loss, length): (&f64, &usize)| loss / *length as f64;
            let normed: Vec<f64> = losses.iter().zip(lengths).map(mean).collect();
            plain += u64::from(lowest(losses) == Some(*right));
            by_length += u64::from(lowest(&normed) == Some(*right));
        }
        let questions = self.questions.len() as u64;
        let share = |count| count as f64 / questions as f64;
        Accuracy { questions, acc: share(plain), acc_norm: share(by_length) }
    }
}

/// Index of the first minimum; None if a loss is NaN.
fn lowest(losses: &[f64]) -> Option<usize> {
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let has_nan = losses.iter().any(|loss| loss.is_nan());
    losses.iter().position(|loss| *loss == least).filter(|_| !has_nan)
}

impl QuestionEncoder<'_> {
    fn question(
        &self,
        text: Text,
        encoder: &mut Encoder,
    ) -> Result<(Question, Vec<Sequence>), Wrong> {
        let sequence = |answer: &String| self.sequence(encoder, &text.question, answer);
        let sequences = text.answers.iter().map(sequence).collect::<Result<_, _>>()?;
        let lengths = text.answers.iter().map(|answer| answer.chars().count()).collect();
        Ok((Question { right: text.right, lengths }, sequences))
    }

    /// Tokens of question and answer, divided as in the harness: the answer has the tokens of both
    /// together that follow the number of tokens of the question alone. Spaces at the end of the
    /// question belong to the answer. Tokens that the template puts after a text are left out: an answer
    /// continues the question, and an end is not a part of it.
    fn sequence(
        &self,
        encoder: &mut Encoder,
        question: &str,
        answer: &str,
    ) -> Result<Sequence, Wrong> {
        let whole_text = format!("{question} {answer}");
        let question = question.trim_end();
        let template = self.tokenizer.head();
        let head = if self.add_bos_token { template } else { &[] };
        let mut ids = |text: &str| {
            let mut ids = head.to_vec();
            let known = encoder.encode_text(text, &mut ids);
            known.map_err(|error| wrong(error.to_string(), "use the model's own tokenizer"))?;
            Ok::<_, Wrong>(ids)
        };
        let (mut tokens, before) = (ids(&whole_text)?, ids(question)?.len());
        let scored = tokens.len().saturating_sub(before);
        if scored == 0 {
            return Err(wrong(format!("the answer {answer:?} has no tokens of its own"), ""));
        }
        if before == 0 {
            let none = || wrong("the question is empty", "name data.eod.token, to begin with");
            tokens.insert(0, template.first().copied().or(self.eod).ok_or_else(none)?);
        }
        if scored > self.seq_len {
            let what = format!("an answer of {scored} tokens in samples of {}", self.seq_len);
            return Err(wrong(what, "say a longer --seq-len"));
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= self.vocab) {
            let what = format!("gives token {id}, the model's vocabulary is {}", self.vocab);
            return Err(wrong(what, "use the model's own tokenizer"));
        }
        tokens.drain(..tokens.len().saturating_sub(self.seq_len + 1));
        Ok(Sequence { tokens, scored })
    }
}

/// Problem with a line, and the remedy.
type Wrong = (String, String);

fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Wrong {
    (what.into(), remedy.into())
}

const FORMATS: &str = "write HellaSwag's ctx, endings, label; ARC's question, choices, answerKey; \
                       or PIQA's goal, sol1, sol2, label";

impl Text {
    /// Parses a line in the format that its keys indicate.
    fn parse(line: &[u8]) -> Result<Text, Wrong> {
        let read = base::json::from_python::<Row>(line);
        let Row(row) = read.map_err(|error| wrong(format!("not JSON: {error}"), FORMATS))?;
        let text = match () {
            () if row.contains_key("endings") => Text::hellaswag(&row)?,
            () if row.contains_key("choices") => Text::arc(&row)?,
            () if row.contains_key("goal") => Text::piqa(&row)?,
            () => return Err(wrong("neither endings, nor choices, nor goal is there", FORMATS)),
        };
        let Text { answers, right, .. } = &text;
        if answers.len() < 2 || *right >= answers.len() {
            let what = format!("the right answer is number {right} of {}", answers.len());
            return Err(wrong(what, "answers are numbered from 0 on"));
        }
        match answers.iter().position(String::is_empty) {
            Some(i) => Err(wrong(format!("answer {i} is empty"), "")),
            None => Ok(text),
        }
    }

    /// With activity_label, ctx_a and ctx_b as published; otherwise with ctx alone.
    fn hellaswag(row: &Fields) -> Result<Text, Wrong> {
        let parts = ["activity_label", "ctx_a", "ctx_b"].map(|key| field(row, key).as_str());
        let question = match parts {
            [Some(activity), Some(a), Some(b)] => format!("{activity}: {a} {}", capitalised(b)),
            _ => string(row, "ctx")?.to_string(),
        };
        let answers = strings(field(row, "endings"), "endings")?;
        let answers = answers.into_iter().map(without_marks).collect();
        Ok(Text { question: without_marks(&question), answers, right: number(row, "label")? })
    }

    fn arc(row: &Fields) -> Result<Text, Wrong> {
        let question = format!("Question: {}\nAnswer:", string(row, "question")?);
        let choices = field(row, "choices");
        let answers = strings(&choices["text"], "choices.text")?;
        let labels = strings(&choices["label"], "choices.label")?;
        let key = string(row, "answerKey")?;
        let right = labels.iter().position(|label| *label == key);
        let none = || wrong(format!("answerKey {key:?} is not in choices.label"), "");
        let answers = answers.into_iter().map(str::to_string).collect();
        Ok(Text { question, answers, right: right.ok_or_else(none)? })
    }

    fn piqa(row: &Fields) -> Result<Text, Wrong> {
        let question = format!("Question: {}\nAnswer:", string(row, "goal")?);
        let answers = ["sol1", "sol2"].map(|key| string(row, key).map(str::to_string));
        let [first, second] = answers;
        Ok(Text { question, answers: vec![first?, second?], right: number(row, "label")? })
    }
}

/// Fields of the formats that are read.
const KEYS: [&str; 12] = [
    "activity_label",
    "answerKey",
    "choices",
    "ctx",
    "ctx_a",
    "ctx_b",
    "endings",
    "goal",
    "label",
    "question",
    "sol1",
    "sol2",
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

/// Value of a field; null if it is absent.
fn field<'v>(row: &'v Fields, key: &str) -> &'v Value {
    row.get(key).unwrap_or(&Value::Null)
}

fn string<'v>(row: &'v Fields, key: &str) -> Result<&'v str, Wrong> {
    let value = field(row, key);
    value.as_str().ok_or_else(|| wrong(format!("{key} is {value}, not text"), FORMATS))
}

fn strings<'v>(list: &'v Value, key: &str) -> Result<Vec<&'v str>, Wrong> {
    let texts = list.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    texts.ok_or_else(|| wrong(format!("{key} is not a list of texts"), FORMATS))
}

/// Number from 0 on, possibly written as text.
fn number(row: &Fields, key: &str) -> Result<usize, Wrong> {
    let value = field(row, key);
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    let none = || wrong(format!("{key} is {value}, not the number of an answer"), FORMATS);
    number.map(|number| number as usize).ok_or_else(none)
}

/// Python's `str.capitalize`.
fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().into_iter().flat_map(char::to_uppercase);
    first.chain(rest.flat_map(char::to_lowercase)).collect()
}

/// HellaSwag's text without remaining WikiHow markup, cleaned as in the harness.
fn without_marks(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let (mut clean, mut rest) = (String::new(), text.as_str());
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

    fn text(question: &str, answers: &[&str], right: usize) -> Text {
        let answers = answers.iter().map(|answer| answer.to_string()).collect();
        Text { question: question.into(), answers, right }
    }

    /// Expected texts from lm-evaluation-harness.
    #[test]
    fn lines_become_the_prompts_of_the_harness() {
        let parse = |line: &str| Text::parse(line.as_bytes()).unwrap();
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
    }

    /// With a template `<s> $A </s>` the harness adds nothing, or the first token; the last is not scored.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn an_answer_has_no_token_of_the_template() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/data/tokenizers");
        let tokenizer = Tokenizer::load(&Path::new(folder).join("saved/template.json")).unwrap();
        let (seq_len, vocab) = (40, tokenizer.vocab());
        let sequence = |add_bos_token, question: &str| {
            let eod = None;
            let tokenizer = &tokenizer;
            let how = QuestionEncoder { tokenizer, eod, add_bos_token, seq_len, vocab };
            how.sequence(&mut Encoder::small(tokenizer), question, "the house").unwrap()
        };
        let ids = tokenizer.encode("the cat the house");
        let (whole, answer) = (&ids[1..ids.len() - 1], tokenizer.encode(" the house").len() - 2);
        let plain = sequence(false, "the cat");
        assert_eq!((&plain.tokens[..], plain.scored), (whole, answer));
        let first = sequence(true, "the cat");
        assert_eq!((&first.tokens[..], first.scored), (&ids[..ids.len() - 1], answer));
        assert_eq!(sequence(false, "").tokens[0], 340, "an empty question is the first token");
    }

    /// Python writes numbers that are not finite; JavaScript cuts strings within a character.
    #[test]
    fn other_fields_may_hold_anything() {
        let line = r#"{"score": NaN, "goal": "Sit", "meta": {"p": [1, -Infinity, 1e999]},
            "cut": "\ud83d", "sol1": "on", "sol2": "under", "label": 1, "last": Infinity}"#;
        let piqa = text("Question: Sit\nAnswer:", &["on", "under"], 1);
        assert_eq!(Text::parse(line.as_bytes()).unwrap(), piqa);
        let (what, _) = Text::parse(br#"{"goal": NaN, "sol1": "a", "label": 0}"#).unwrap_err();
        assert_eq!(what, "goal is null, not text");
        let (what, _) = Text::parse(b"[1]").unwrap_err();
        assert!(what.contains("expected a JSON object"), "{what}");
    }

    #[test]
    fn the_longer_answer_wins_by_its_length() {
        let question = Question { right: 1, lengths: vec![2, 10] };
        let sequence = Sequence { tokens: vec![1, 2], scored: 1 };
        let packed = Packed::new(vec![sequence; 2], 8);
        let task = Task { questions: vec![question], packed };
        let scored = task.accuracy(&[4.0, 9.0]);
        assert_eq!(scored, Accuracy { questions: 1, acc: 0.0, acc_norm: 1.0 });
        assert_eq!(task.accuracy(&[f64::NAN, 9.0]).acc_norm, 0.0);
    }
}
