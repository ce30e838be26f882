//! `gptrain eval`: losses and accuracies of a checkpoint or of a Hugging Face folder, on any grid.

mod model;
mod scoring;

pub use scoring::Scoring;

use super::launch::{Device, LocalRanks};
use super::loader::DataShard;
use super::messages::Messages;
use super::rank::Rank;
use base::{Count, Problems};
use data::Tokenizer;
use data::eval::{Accuracy, Reading, Task, Tokens, Windows};
use engine::Scorer;
use manifest::{EvalTask, Loaded, Manifest, Position};
use model::Source;
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Options of `gptrain eval`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A run's folder, a checkpoint, or a Hugging Face folder.
    pub model: PathBuf,
    /// A dataset's prefix or a file of text.
    pub data: Option<PathBuf>,
    /// Tokens of a sample; the model's own where it is not given.
    pub seq_len: Option<usize>,
    /// Files of questions, and how many of each are read.
    pub tasks: Vec<PathBuf>,
    pub limit: Option<usize>,
    /// Whether a line of JSON is printed for each sample of the data.
    pub logprobs: bool,
    /// Another tokenizer than the model's own.
    pub tokenizer: Option<PathBuf>,
    /// Changes of settings, such as the topology.
    pub sets: Vec<String>,
}

/// What a model scored.
#[derive(Clone, Debug, Serialize)]
pub struct Scored {
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataScore>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskScore>,
}

/// On a stream of tokens.
#[derive(Clone, Debug, Serialize)]
pub struct DataScore {
    pub data: String,
    /// Mean of −log p, in nats.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// Of a text: the sum of −log₂ p over its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// Tokens that were scored: all but the first.
    pub tokens: u64,
    pub samples: u64,
    pub seq_len: usize,
}

/// On a file of questions.
#[derive(Clone, Debug, Serialize)]
pub struct TaskScore {
    pub task: String,
    #[serde(flatten)]
    pub accuracy: Accuracy,
}

/// What is scored, as read before the ranks start.
struct Exam {
    data: Option<(PathBuf, Windows)>,
    tasks: Vec<(PathBuf, Task)>,
    seq_len: usize,
}

/// Scores a model, alone or as one of the ranks that a launcher started. Some in the process of
/// rank 0.
pub fn run(options: &Options, messages: &Messages) -> anyhow::Result<Option<Scored>> {
    let (source, loaded) = model::open(&options.model, options)?;
    let m = &loaded.manifest;
    let exam = Exam::read(options, m)?;
    check_shares(m, exam.seq_len)?;
    let folder = &m.log.folder;
    let existed = folder.exists();
    let asked = Options { model: PathBuf::new(), ..options.clone() };
    let scored =
        LocalRanks::rendezvous(&loaded, &format!("eval {asked:?}")).and_then(|mut ranks| {
            ranks.run(m, messages, |rank, device| score(rank, device, &source, &loaded, &exam))
        });
    if !existed {
        let _ = std::fs::remove_dir(folder); // unless a failure was recorded in it
    }
    scored
}

/// Under sequence parallelism ranks have equal shares of a micro-batch.
fn check_shares(m: &Manifest, seq_len: usize) -> Result<(), Problems> {
    let (tokens, ranks) = (m.batch.micro * seq_len, m.topology.tensor);
    if m.topology.sequence_parallel && !tokens.is_multiple_of(ranks) {
        let what = format!("{tokens} tokens of a micro-batch are no equal shares of {ranks} ranks");
        return Err(Problems::one("--seq-len", what, "--set topology.sequence_parallel=false"));
    }
    Ok(())
}

impl Exam {
    fn read(options: &Options, m: &Manifest) -> anyhow::Result<Exam> {
        let seq_len = options.seq_len.unwrap_or(m.model.seq_len);
        if m.model.position == Position::Learned && seq_len > m.model.seq_len {
            let what = format!("{seq_len} is more than the model's {} positions", m.model.seq_len);
            return Err(Problems::one("--seq-len", what, "say fewer").into());
        }
        let tokenizer = m.data.tokenizer.as_deref().map(Tokenizer::load).transpose()?;
        let mut problems = Problems::default();
        let mut data = None;
        if let Some(path) = &options.data {
            let tokens = Tokens::open(path, tokenizer.as_ref());
            let vocab = m.model.vocab;
            let windows =
                tokens.and_then(|t| Windows::new(path, t, seq_len, vocab, options.logprobs));
            data = problems.collect(windows)?.map(|windows| (path.clone(), windows));
        }
        let mut tasks = Vec::new();
        for path in &options.tasks {
            let task = read_task(path, m, tokenizer.as_ref(), seq_len, options.limit);
            tasks.extend(problems.collect(task)?.map(|task| (path.clone(), task)));
        }
        Ok(problems.or(Exam { data, tasks, seq_len })?)
    }
}

/// The tasks of a run, by name.
pub fn tasks(m: &Manifest) -> anyhow::Result<Vec<(String, Task)>> {
    if m.train.eval_tasks.is_empty() {
        return Ok(Vec::new());
    }
    let tokenizer = m.data.tokenizer.as_deref().map(Tokenizer::load).transpose()?;
    let (mut problems, mut tasks) = (Problems::default(), Vec::new());
    for (name, EvalTask { file, limit }) in &m.train.eval_tasks {
        let task = read_task(file, m, tokenizer.as_ref(), m.model.seq_len, *limit);
        tasks.extend(problems.collect(task)?.map(|task| (name.clone(), task)));
    }
    Ok(problems.or(tasks)?)
}

/// A task of a model with a tokenizer.
fn read_task(
    path: &Path,
    m: &Manifest,
    tokenizer: Option<&Tokenizer>,
    seq_len: usize,
    limit: Option<usize>,
) -> anyhow::Result<Task> {
    let none = || {
        let place = path.display().to_string();
        Problems::one(place, "questions need a tokenizer", "name one: --tokenizer tokenizer.json")
    };
    let tokenizer = tokenizer.ok_or_else(none)?;
    let eod = m.data.eod.map(|eod| eod.token).or(tokenizer.eod());
    Task::read(path, &Reading { tokenizer, eod, seq_len, vocab: m.model.vocab }, limit)
}

fn score(
    rank: &Rank,
    device: &Device,
    source: &Source,
    loaded: &Loaded,
    exam: &Exam,
) -> anyhow::Result<Option<Scored>> {
    let (m, be, seq_len) = (&loaded.manifest, device.backend(), exam.seq_len);
    let groups = rank.phase("creating process groups", || Ok(device.groups(rank.world(), m)?))?;
    let scorer = rank.phase("reserving memory", || Ok(Scorer::new(be, groups, m, seq_len)?))?;
    tracing::info!("memory: {}", scorer.memory_plan().total());
    let model = rank.phase("loading", || source.load(&scorer))?;
    rank.set_phase("scoring");
    let scoring = Scoring { rank, be, model: &scorer, shard: DataShard::of(rank, m), seq_len };
    let data = exam.data.as_ref().map(|(path, windows)| stream(&scoring, path, windows));
    let data = data.transpose()?;
    let mut tasks = Vec::new();
    for (path, task) in &exam.tasks {
        let accuracy = scoring.task(task)?;
        let task = path.display().to_string();
        tasks.extend(accuracy.map(|accuracy| TaskScore { task, accuracy }));
    }
    Ok(rank.is_first().then_some(Scored { model, data, tasks }))
}

/// The loss on a stream. Prints a line for each sample where each token's loss is kept.
fn stream(scoring: &Scoring, path: &Path, windows: &Windows) -> anyhow::Result<DataScore> {
    let mut total = 0.0;
    let mut samples = 0;
    scoring.each(windows, &mut |number, losses| {
        total += losses.iter().sum::<f64>();
        samples += 1;
        match windows.each {
            true => print_logprobs(number, losses),
            false => Ok(()),
        }
    })?;
    let (tokens, bits) = (windows.scored(), total / std::f64::consts::LN_2);
    let bytes = match &windows.tokens {
        Tokens::Text { bytes, .. } => Some(*bytes as f64),
        Tokens::Dataset(_) => None,
    };
    let loss = total / tokens as f64;
    Ok(DataScore {
        data: path.display().to_string(),
        loss,
        perplexity: loss.exp(),
        bits_per_byte: bytes.map(|bytes| bits / bytes),
        tokens,
        samples,
        seq_len: scoring.seq_len,
    })
}

#[derive(Serialize)]
struct LogProbs {
    sample: u64,
    /// Of each next token, as f32.
    logprobs: Vec<f32>,
}

fn print_logprobs(sample: u64, losses: &[f64]) -> anyhow::Result<()> {
    let logprobs = losses.iter().map(|loss| -*loss as f32).collect();
    let mut line = serde_json::to_vec(&LogProbs { sample, logprobs })?;
    line.push(b'\n');
    match std::io::stdout().lock().write_all(&line) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()), // `| head`
        written => Ok(written?),
    }
}

impl fmt::Display for Scored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.model)?;
        if let Some(score) = &self.data {
            let DataScore { data, loss, perplexity, tokens, .. } = score;
            write!(f, "\n{data}: loss {loss:.6} | perplexity {perplexity:.6}")?;
            if let Some(bits) = score.bits_per_byte {
                write!(f, " | bits per byte {bits:.6}")?;
            }
            let (samples, seq_len) = (Count(score.samples), score.seq_len);
            write!(f, " | {} tokens in {samples} samples of {seq_len}", Count(*tokens))?;
        }
        for TaskScore { task, accuracy } in &self.tasks {
            let Accuracy { questions, acc, acc_norm } = accuracy;
            let questions = Count(*questions);
            write!(f, "\n{task}: acc {acc:.4} | acc_norm {acc_norm:.4} | {questions} questions")?;
        }
        Ok(())
    }
}
