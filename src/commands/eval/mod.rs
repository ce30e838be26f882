//! `gptrain eval`: losses and accuracies of a checkpoint or of a Hugging Face folder, on any grid.

mod model;

use crate::completions::SETTINGS;
use crate::model_place::Source;
use anyhow::{Context, Result};
use base::progress::{Progress, Unit};
use base::{Count, Problems, number};
use data::eval::{Accuracy, Samples, Task, Tokens, Validation, Windows};
use data::{Record, Tokenizer};
use engine::Scorer;
use launch::messages::Messages;
use launch::rank::Rank;
use launch::{Device, LocalRanks};
use manifest::{Loaded, Manifest, Position};
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use train::eval::{Prompts, Scoring, read_task};
use train::loader::DataShard;

#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Eval {
    /// Run folder (its newest checkpoint), checkpoint, Hugging Face folder, or s3://BUCKET/PREFIX
    model: PathBuf,
    /// Dataset PREFIX, or file of UTF-8 text, on which loss and perplexity are computed [default,
    /// without --tasks: the run's own validation sets]
    #[arg(long, value_name = "PREFIX|FILE")]
    data: Option<PathBuf>,
    /// Tokens per sample [default: the model's]
    #[arg(long, value_name = "N", value_parser = number::whole_in(1..=u32::MAX as usize))]
    seq_len: Option<usize>,
    /// Questions in JSON lines, in the format of HellaSwag, ARC, PIQA, MMLU, SciQ or LAMBADA: accuracy on
    /// them
    #[arg(long, value_name = "FILE", num_args = 1..)]
    tasks: Vec<PathBuf>,
    /// Examples before each question of --tasks (few-shot), chosen as lm-evaluation-harness does
    #[arg(long, value_name = "K", requires = "tasks")]
    #[arg(value_parser = number::whole_in(1..=1000usize))]
    shots: Option<usize>,
    /// File with the examples, in the format of the task [default: the task's own questions]
    #[arg(long, value_name = "FILE", requires = "shots")]
    shots_from: Option<PathBuf>,
    /// Number of samples of the data, and of questions of each file, to score [default: all]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = number::whole_in(1..=u32::MAX as usize))]
    limit: Option<usize>,
    /// Begin each question with the tokens that the tokenizer's template puts before a text
    /// (add_bos_token=True of lm-evaluation-harness, whose default is without)
    #[arg(long, requires = "tasks")]
    add_bos_token: bool,
    /// Print a line of JSON for each sample of the data: log p of every next token
    #[arg(long, requires = "data")]
    logprobs: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Tokenizer to use instead of the model's: tokenizer.json, a folder with it, or `bytes`
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Change a setting, as in `--set topology.tensor=2` or `--set batch.micro=8`
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
}

/// Scores of a model.
#[derive(Clone, Debug, Serialize)]
pub struct EvalScores {
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataScore>,
    /// Losses on the run's own validation sets, measured as its evaluations do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<DataScore>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskScore>,
    /// Beginning of the prompts of the questions, if the tokenizer has a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<String>,
}

/// Score on a stream of tokens.
#[derive(Clone, Debug, Serialize)]
pub struct DataScore {
    pub data: String,
    /// Mean of −log p, in nats.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// Bits per byte of a whole text: the sum of −log₂ p, divided by its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// Number of scored tokens: all of a stream except the first.
    pub tokens: u64,
    pub samples: u64,
    pub seq_len: usize,
}

/// Score on a file of questions.
#[derive(Clone, Debug, Serialize)]
pub struct TaskScore {
    pub task: String,
    #[serde(flatten)]
    pub accuracy: Accuracy,
}

/// Data to score, read before the ranks start.
struct EvalData {
    data: Option<(PathBuf, Windows)>,
    validation: Vec<(String, Validation)>,
    tasks: Vec<(PathBuf, Task)>,
    prompts: Option<String>,
    seq_len: usize,
}

impl Eval {
    pub fn run(self, messages: &Messages) -> Result<()> {
        let Some(scored) = self.score(messages)? else { return Ok(()) };
        let mut out = std::io::stdout();
        match (self.json, self.logprobs) {
            (true, _) => writeln!(out, "{}", serde_json::to_string(&scored)?),
            (false, true) => writeln!(std::io::stderr(), "{scored}"),
            (false, false) => writeln!(out, "{scored}"),
        }
        .context("cannot write the scores")
    }

    /// Scores a model, alone or as one of the ranks that a launcher started. Returns the scores in the
    /// process of rank 0, None in the others.
    fn score(&self, messages: &Messages) -> Result<Option<EvalScores>> {
        let model::Opened { source, loaded, run } = model::open(&self.model, self)?;
        let m = &loaded.manifest;
        let eval_data = EvalData::read(self, m, run.as_ref())?;
        check_shares(m, eval_data.seq_len)?;
        let folder = &m.log.folder;
        let existed = folder.exists();
        let asked = Eval { model: PathBuf::new(), ..self.clone() };
        let scored =
            LocalRanks::rendezvous(&loaded, &format!("eval {asked:?}")).and_then(|mut ranks| {
                ranks.run(m, messages, |rank, device| {
                    score_on(rank, device, &source, &loaded, &eval_data)
                })
            });
        if !existed {
            let _ = std::fs::remove_dir(folder); // unless a failure was recorded in it
        }
        scored
    }
}

/// Fails unless sequence parallelism gives ranks equal shares of a micro-batch.
fn check_shares(m: &Manifest, seq_len: usize) -> Result<(), Problems> {
    let tokens = m.batch.micro * seq_len;
    let ranks = m.topology.tensor;
    if m.topology.sequence_parallel && !tokens.is_multiple_of(ranks) {
        return Err(Problems::one(
            "--seq-len",
            format!("a micro-batch's {tokens} tokens are not divisible by {ranks} ranks"),
            "--set topology.sequence_parallel=false",
        ));
    }
    Ok(())
}

impl EvalData {
    fn read(options: &Eval, m: &Manifest, run: Option<&Manifest>) -> Result<EvalData> {
        let seq_len = options.seq_len.unwrap_or(m.model.seq_len);
        if m.model.position == Position::Learned && seq_len > m.model.context() {
            let rows = m.model.context();
            return Err(Problems::one(
                "--seq-len",
                format!("{seq_len} is more than the model's {rows} positions"),
                format!("give at most {rows}"),
            )
            .into());
        }
        let tokenizer = m
            .data
            .tokenizer
            .as_deref()
            .map(Tokenizer::load)
            .transpose()?;
        let notes = tokenizer.as_ref().map_or(&[][..], Tokenizer::notes);
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        let mut problems = Problems::default();
        let mut data = None;
        if let Some(path) = &options.data {
            let tokens = open_tokens(path, m, tokenizer.as_ref());
            let vocab = m.model.vocab;
            let limit = options.limit.map(|n| n as u64);
            let windows =
                tokens.and_then(|t| Windows::new(path, t, seq_len, vocab, limit, options.logprobs));
            data = problems
                .collect(windows)?
                .map(|windows| (path.clone(), windows));
        }
        let validation = if options.data.is_none() && options.tasks.is_empty() {
            validation(options, run, seq_len)?
        } else {
            Vec::new()
        };
        let mut tasks = Vec::new();
        let Eval { limit, add_bos_token, .. } = *options;
        for path in &options.tasks {
            let Eval { shots, .. } = *options;
            let shots_from = options.shots_from.as_deref();
            let prompts = Prompts { seq_len, limit, add_bos_token, shots, shots_from };
            let task = read_task(path, m, tokenizer.as_ref(), &prompts);
            tasks.extend(problems.collect(task)?.map(|task| (path.clone(), task)));
        }
        let prompts = tokenizer
            .filter(|_| !tasks.is_empty())
            .map(|tokenizer| prompt_rule(&tokenizer, add_bos_token));
        let prompts = problems
            .collect(prompts.transpose().map_err(Into::into))?
            .flatten()
            .flatten();
        Ok(problems.or(EvalData { data, validation, tasks, prompts, seq_len })?)
    }
}

/// Beginning of the prompts, in words; None if the tokenizer has no template. Fails if there is no
/// token to add.
fn prompt_rule(tokenizer: &Tokenizer, add: bool) -> Result<Option<String>, Problems> {
    let names = |ids: &[u32]| ids.iter().map(|id| tokenizer.name(*id)).collect::<String>();
    let head = names(tokenizer.head());
    let tail = names(tokenizer.tail());
    let rule = match (add, head.is_empty()) {
        (true, true) => {
            return Err(Problems::one(
                "--add-bos-token",
                "the tokenizer puts no token before a text",
                "leave it out",
            ));
        }
        (true, false) => format!("begin with the template's {head} (--add-bos-token)"),
        (false, false) => {
            format!(
                "begin without the template's {head}, the harness's default (--add-bos-token adds it)"
            )
        }
        (false, true) if tail.is_empty() => return Ok(None),
        (false, true) => "end without the template's last token".into(),
    };
    let end =
        if tail.is_empty() || head.is_empty() { "" } else { &format!("; {tail} is not scored") };
    Ok(Some(format!("{rule}{end}")))
}

/// Reads a text or a dataset; the dataset's recorded tokenizer must be the model's.
fn open_tokens(path: &Path, m: &Manifest, tokenizer: Option<&Tokenizer>) -> Result<Tokens> {
    let tokens = Tokens::open(path, tokenizer)?;
    if let (Tokens::Dataset(dataset), Some(own)) = (&tokens, &m.data.tokenizer)
        && let Some(record) = Record::read(dataset)?
    {
        record.compare(dataset.prefix(), "the model's tokenizer", own)?;
    }
    Ok(tokens)
}

/// Validation sets of the run: the samples that its evaluations read, or the first of them.
fn validation(
    options: &Eval,
    run: Option<&Manifest>,
    seq_len: usize,
) -> Result<Vec<(String, Validation)>> {
    let Some(m) = run.filter(|m| !m.data.valid.is_empty()) else {
        let place = options.model.display().to_string();
        return Err(Problems::one(
            place,
            "has no validation set of its own",
            "name what to score: --data PREFIX or FILE, or --tasks FILE",
        )
        .into());
    };
    let shard = DataShard::whole(m);
    let ordered = shard.rounds(m.train.eval_samples) * shard.micro as u64;
    let wanted = options
        .limit
        .map_or(m.train.eval_samples, |limit| limit as u64);
    let mut sets = Vec::new();
    for (name, source) in data::validation(&m.data, seq_len, m.model.vocab, ordered.max(wanted))? {
        let samples = Validation::new(&name, source, wanted)?;
        sets.push((name, samples));
    }
    Ok(sets)
}

/// Scores of this rank's share; Some on rank 0.
fn score_on(
    rank: &Rank,
    device: &Device,
    source: &Source,
    loaded: &Loaded,
    eval_data: &EvalData,
) -> Result<Option<EvalScores>> {
    let m = &loaded.manifest;
    let be = device.backend();
    let seq_len = eval_data.seq_len;
    let groups =
        rank.run_phase("creating process groups", || Ok(device.groups(rank.world(), m)?))?;
    let scorer = rank.run_phase("reserving memory", || Ok(Scorer::new(be, groups, m, seq_len)?))?;
    tracing::info!("memory: {}", scorer.memory_plan().total());
    let model = rank.run_phase("loading", || source.load(&scorer.weights, rank.is_first()))?;
    rank.set_phase("scoring");
    let progress = eval_data.progress(rank);
    let shard = DataShard::for_rank(rank, m);
    let progress = progress.as_ref();
    let scoring = Scoring { rank, be, model: &scorer, shard, seq_len, progress };
    let data = eval_data
        .data
        .as_ref()
        .map(|(path, windows)| score_stream(&scoring, path, windows))
        .transpose()?;
    let mut validation = Vec::new();
    for (name, samples) in &eval_data.validation {
        validation.push(score_validation(&scoring, name, samples)?);
    }
    let mut tasks = Vec::new();
    for (path, task) in &eval_data.tasks {
        let accuracy = scoring.score_task(task)?;
        let task = path.display().to_string();
        tasks.extend(accuracy.map(|accuracy| TaskScore { task, accuracy }));
    }
    let prompts = eval_data.prompts.clone();
    Ok(rank
        .is_first()
        .then_some(EvalScores { model, data, validation, tasks, prompts }))
}

impl EvalData {
    /// Scores over all samples, on rank 0.
    fn progress(&self, rank: &Rank) -> Option<Progress> {
        let data = self.data.iter().map(|(_, windows)| windows.count());
        let validation = self.validation.iter().map(|(_, samples)| samples.count());
        let tasks = self.tasks.iter().map(|(_, task)| task.packed.count());
        let samples: u64 = data.chain(validation).chain(tasks).sum();
        let tokens = samples * self.seq_len as u64;
        rank.is_first()
            .then(|| Progress::new("scoring", tokens, Unit::Items("tokens")))
    }
}

/// Mean loss on a validation set, computed as an evaluation does.
fn score_validation(scoring: &Scoring, name: &str, set: &Validation) -> Result<DataScore> {
    let mut total = 0.0;
    let mut tokens = 0.0;
    let mut samples = 0;
    scoring.score_each(set, &mut |_, values| {
        (total, tokens, samples) = (total + values[0], tokens + values[1], samples + 1);
        Ok(())
    })?;
    let loss = total / samples.max(1) as f64;
    let data = format!("validation set {name}");
    let seq_len = scoring.seq_len;
    let perplexity = loss.exp();
    let tokens = tokens as u64;
    Ok(DataScore { data, loss, perplexity, bits_per_byte: None, tokens, samples, seq_len })
}

/// Loss on a stream. Prints a line for each sample if the loss of each token is kept.
fn score_stream(scoring: &Scoring, path: &Path, windows: &Windows) -> Result<DataScore> {
    let mut total = 0.0;
    let mut samples = 0;
    scoring.score_each(windows, &mut |number, losses| {
        total += losses.iter().sum::<f64>();
        samples += 1;
        if windows.keeps_tokens { print_logprobs(number, losses) } else { Ok(()) }
    })?;
    let tokens = windows.scored_tokens();
    let bits = total / std::f64::consts::LN_2;
    let bytes = match &windows.tokens {
        Tokens::Text { bytes, .. } if !windows.is_cut() => Some(*bytes as f64),
        _ => None,
    };
    let loss = total / tokens as f64;
    let data = path.display().to_string();
    let seq_len = scoring.seq_len;
    let perplexity = loss.exp();
    let bits_per_byte = bytes.map(|bytes| bits / bytes);
    Ok(DataScore { data, loss, perplexity, bits_per_byte, tokens, samples, seq_len })
}

#[derive(Serialize)]
struct LogProbs {
    sample: u64,
    /// Log-probability of each next token, as f32.
    logprobs: Vec<f32>,
}

fn print_logprobs(sample: u64, losses: &[f64]) -> Result<()> {
    let logprobs = losses.iter().map(|loss| -*loss as f32).collect();
    let mut line = serde_json::to_vec(&LogProbs { sample, logprobs })?;
    line.push(b'\n');
    match std::io::stdout().lock().write_all(&line) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()), // `| head`
        written => Ok(written?),
    }
}

impl fmt::Display for EvalScores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.model)?;
        for score in self.data.iter().chain(&self.validation) {
            let DataScore { data, loss, perplexity, tokens, .. } = score;
            write!(f, "\n{data}: loss {loss:.6} | perplexity {perplexity:.6}")?;
            if let Some(bits) = score.bits_per_byte {
                write!(f, " | bits per byte {bits:.6}")?;
            }
            let samples = Count(score.samples).with_noun("sample");
            let seq_len = score.seq_len;
            write!(f, " | {} in {samples} of {seq_len}", Count(*tokens).with_noun("token"))?;
        }
        for TaskScore { task, accuracy } in &self.tasks {
            write!(f, "\n{task}: ")?;
            for (name, score) in accuracy.scores() {
                write!(f, "{name} {score:.4} | ")?;
            }
            write!(f, "{}", Count(accuracy.questions).with_noun("question"))?;
        }
        if let Some(rule) = &self.prompts {
            write!(f, "\nprompts {}", base::escape_control(rule))?;
        }
        Ok(())
    }
}
