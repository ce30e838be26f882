//! Tasks of a run, and the scoring of samples on its ranks.

mod scoring;

pub use scoring::Scoring;

use base::Problems;
use data::Tokenizer;
use data::eval::{QuestionEncoder, Shots, Task};
use manifest::{EvalTask, Manifest};
use std::path::Path;

/// Tasks of a run, by name.
pub fn read_tasks(m: &Manifest) -> anyhow::Result<Vec<(String, Task)>> {
    if m.train.eval_tasks.is_empty() {
        return Ok(Vec::new());
    }
    let tokenizer = m
        .data
        .tokenizer
        .as_deref()
        .map(Tokenizer::load)
        .transpose()?;
    let mut problems = Problems::default();
    let mut tasks = Vec::new();
    for (name, EvalTask { file, limit, shots, shots_from }) in &m.train.eval_tasks {
        let limit = *limit;
        let shots = *shots;
        let shots_from = shots_from.as_deref();
        let seq_len = m.model.seq_len;
        let add_bos_token = false;
        let prompts = Prompts { seq_len, limit, add_bos_token, shots, shots_from };
        let task = read_task(file, m, tokenizer.as_ref(), &prompts);
        tasks.extend(problems.collect(task)?.map(|task| (name.clone(), task)));
    }
    Ok(problems.or(tasks)?)
}

/// Questions to read of a file, and their form.
pub struct Prompts<'a> {
    /// Tokens per sample.
    pub seq_len: usize,
    /// Maximum number of questions.
    pub limit: Option<usize>,
    /// Whether prompts begin with the tokens that the tokenizer's template puts before a text.
    pub add_bos_token: bool,
    /// Number of examples before each question.
    pub shots: Option<usize>,
    /// File with the examples; None for the questions themselves.
    pub shots_from: Option<&'a Path>,
}

/// Reads a task for a model with a tokenizer.
pub fn read_task(
    path: &Path,
    m: &Manifest,
    tokenizer: Option<&Tokenizer>,
    prompts: &Prompts,
) -> anyhow::Result<Task> {
    let tokenizer = tokenizer.ok_or_else(|| {
        let place = path.display().to_string();
        Problems::one(place, "questions need a tokenizer", "name one: --tokenizer tokenizer.json")
    })?;
    let eod = m.data.eod.map(|eod| eod.token).or(tokenizer.eod());
    let Prompts { seq_len, limit, add_bos_token, shots, shots_from } = *prompts;
    let shots = shots
        .map(|count| Shots::read(path, shots_from, count))
        .transpose()?;
    let vocab = m.model.vocab;
    let encoder = QuestionEncoder { tokenizer, eod, add_bos_token, seq_len, vocab };
    Task::read(path, &encoder, shots, limit)
}
