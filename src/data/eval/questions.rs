//! Multiple-choice questions in JSON lines, in the formats of `formats`, after examples (`shots`) or none.
//!
//! Prompts, tokens and scores are those of EleutherAI's lm-evaluation-harness. The score of an answer is
//! the sum of log p of its tokens, given the question. `acc` is the fraction of questions whose right
//! answer has the highest score; `acc_norm` first divides by the answer's length in characters.

use super::formats::{QuestionText, Wrong, read_lines, wrong};
use super::packed::{Packed, Sequence};
use super::shots::Shots;
use crate::tokenizer::{Encoder, Tokenizer};
use anyhow::Result;
use base::Problems;
use serde::{Deserialize, Serialize};
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
    /// Index of the right answer.
    right: usize,
    /// Length of each answer in characters.
    lengths: Vec<usize>,
}

/// Scores on a task: fractions of questions that a model answers correctly; of questions with one
/// answer (LAMBADA) its perplexity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    pub questions: u64,
    /// By log p of the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acc: Option<f64>,
    /// By log p per character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acc_norm: Option<f64>,
    /// exp of the mean of −log p of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

impl Accuracy {
    /// The scores that the task has, by name.
    pub fn scores(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [("acc", self.acc), ("acc_norm", self.acc_norm), ("perplexity", self.perplexity)];
        all.into_iter()
            .filter_map(|(name, score)| Some((name, score?)))
    }
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

impl Task {
    /// Reads the file's first `limit` questions, each after the examples of `shots`. Reports every line
    /// that is not a question, by its number.
    pub fn read(
        path: &Path,
        questions_encoder: &QuestionEncoder,
        mut shots: Option<Shots>,
        limit: Option<usize>,
    ) -> Result<Task> {
        let place = path.display().to_string();
        let bytes = read_lines(path)?;
        let mut questions = Vec::new();
        let mut sequences = Vec::new();
        let mut problems = Problems::default();
        let mut encoder = Encoder::new(questions_encoder.tokenizer);
        let lines = bytes
            .split(|byte| *byte == b'\n')
            .enumerate()
            .filter(|(_, line)| !line.trim_ascii().is_empty());
        for (i, line) in lines.take(limit.unwrap_or(usize::MAX)) {
            let text = QuestionText::parse(line).map(|mut text| {
                let before = match &mut shots {
                    Some(shots) => shots.text_before(&text),
                    None => text.description(),
                };
                text.question.insert_str(0, &before);
                text
            });
            match text.and_then(|text| questions_encoder.encode(text, &mut encoder)) {
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
            problems.add(place, "holds no question", "give one JSON object per line");
        }
        problems.or(())?;
        Ok(Task { questions, packed: Packed::new(sequences, questions_encoder.seq_len) })
    }

    /// Computes the accuracy from −log p of each sequence, in order.
    pub fn accuracy(&self, losses: &[f64]) -> Accuracy {
        let mut plain = 0;
        let mut by_length = 0;
        let mut first = 0;
        for Question { right, lengths } in &self.questions {
            let losses = &losses[first..first + lengths.len()]; // every answer was scored
            first += lengths.len();
            let normed: Vec<f64> = losses
                .iter()
                .zip(lengths)
                .map(|(loss, length)| loss / *length as f64)
                .collect();
            plain += u64::from(first_minimum(losses) == Some(*right));
            by_length += u64::from(first_minimum(&normed) == Some(*right));
        }
        let questions = self.questions.len() as u64;
        let is_perplexity = self.questions.iter().all(|one| one.lengths.len() == 1);
        if is_perplexity {
            let mean = losses.iter().sum::<f64>() / questions as f64;
            return Accuracy { questions, perplexity: Some(mean.exp()), ..Accuracy::default() };
        }
        let share = |count| Some(count as f64 / questions as f64);
        Accuracy { questions, acc: share(plain), acc_norm: share(by_length), perplexity: None }
    }
}

/// Index of the first minimum; None if a loss is NaN.
fn first_minimum(losses: &[f64]) -> Option<usize> {
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let has_nan = losses.iter().any(|loss| loss.is_nan());
    losses
        .iter()
        .position(|loss| *loss == least)
        .filter(|_| !has_nan)
}

impl QuestionEncoder<'_> {
    fn encode(
        &self,
        text: QuestionText,
        encoder: &mut Encoder,
    ) -> Result<(Question, Vec<Sequence>), Wrong> {
        let sequences = text
            .answers
            .iter()
            .map(|answer| self.encode_answer(encoder, &text.question, answer))
            .collect::<Result<_, _>>()?;
        let lengths = text
            .answers
            .iter()
            .map(|answer| answer.chars().count())
            .collect();
        Ok((Question { right: text.right, lengths }, sequences))
    }

    /// Tokens of question and answer, divided as in the harness: the answer has the tokens of both
    /// together that follow the number of tokens of the question alone. Spaces at the end of the
    /// question belong to the answer. Tokens that the template puts after a text are left out: an answer
    /// continues the question, and an end is not a part of it.
    fn encode_answer(
        &self,
        encoder: &mut Encoder,
        question: &str,
        answer: &str,
    ) -> Result<Sequence, Wrong> {
        let whole_text = format!("{question} {answer}");
        let question = question.trim_end();
        let template = self.tokenizer.head();
        let head = if self.add_bos_token { template } else { &[] };
        let mut encode = |text: &str| {
            let mut ids = head.to_vec();
            encoder
                .encode_text(text, &mut ids)
                .map_err(|error| wrong(error.to_string(), "use the model's own tokenizer"))?;
            Ok::<_, Wrong>(ids)
        };
        let mut tokens = encode(&whole_text)?;
        let before = encode(question)?.len();
        let scored = tokens.len().saturating_sub(before);
        if scored == 0 {
            return Err(wrong(format!("the answer {answer:?} has no tokens of its own"), ""));
        }
        if before == 0 {
            let Some(first) = template.first().copied().or(self.eod) else {
                return Err(wrong("the question is empty", "name data.eod.token, to begin with"));
            };
            tokens.insert(0, first);
        }
        if scored > self.seq_len {
            return Err(wrong(
                format!("an answer of {scored} tokens in samples of {}", self.seq_len),
                "say a longer --seq-len",
            ));
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= self.vocab) {
            return Err(wrong(
                format!("gives token {id}, the model's vocabulary is {}", self.vocab),
                "use the model's own tokenizer",
            ));
        }
        tokens.drain(..tokens.len().saturating_sub(self.seq_len + 1));
        Ok(Sequence { tokens, scored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a template `<s> $A </s>` the harness adds nothing, or the first token; the last is not scored.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn an_answer_has_no_token_of_the_template() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/data/tokenizers");
        let tokenizer = Tokenizer::load(&Path::new(folder).join("saved/template.json")).unwrap();
        let seq_len = 40;
        let vocab = tokenizer.vocab();
        let sequence = |add_bos_token, question: &str| {
            let eod = None;
            let tokenizer = &tokenizer;
            let encoder = QuestionEncoder { tokenizer, eod, add_bos_token, seq_len, vocab };
            encoder
                .encode_answer(&mut Encoder::small(tokenizer), question, "the house")
                .unwrap()
        };
        let ids = tokenizer.encode("the cat the house");
        let whole = &ids[1..ids.len() - 1];
        let answer = tokenizer.encode(" the house").len() - 2;
        let plain = sequence(false, "the cat");
        assert_eq!((&plain.tokens[..], plain.scored), (whole, answer));
        let first = sequence(true, "the cat");
        assert_eq!((&first.tokens[..], first.scored), (&ids[..ids.len() - 1], answer));
        assert_eq!(sequence(false, "").tokens[0], 340, "an empty question is the first token");
    }

    #[test]
    fn the_longer_answer_wins_by_its_length() {
        let question = Question { right: 1, lengths: vec![2, 10] };
        let sequence = Sequence { tokens: vec![1, 2], scored: 1 };
        let packed = Packed::new(vec![sequence; 2], 8);
        let task = Task { questions: vec![question], packed };
        let scored = task.accuracy(&[4.0, 9.0]);
        let scores: Vec<_> = scored.scores().collect();
        assert_eq!(scores, [("acc", 0.0), ("acc_norm", 1.0)]);
        assert_eq!(task.accuracy(&[f64::NAN, 9.0]).acc_norm, Some(0.0));
    }

    #[test]
    fn one_answer_is_scored_by_its_perplexity() {
        let question = || Question { right: 0, lengths: vec![3] };
        let sequence = Sequence { tokens: vec![1, 2], scored: 1 };
        let packed = Packed::new(vec![sequence; 2], 8);
        let task = Task { questions: vec![question(), question()], packed };
        let scores: Vec<_> = task.accuracy(&[1.0, 3.0]).scores().collect();
        assert_eq!(scores, [("perplexity", 2f64.exp())]);
    }
}
