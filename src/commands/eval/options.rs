//! `gptrain eval`

use super::EvalOptions;
use crate::completions::SETTINGS;
use anyhow::Context;
use base::number;
use launch::messages::Messages;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Run folder (its newest checkpoint), checkpoint, Hugging Face folder, or s3://BUCKET/PREFIX
    model: PathBuf,
    /// Dataset PREFIX, or file of UTF-8 text, on which loss and perplexity are computed [default,
    /// without --tasks: the run's own validation sets]
    #[arg(long, value_name = "PREFIX|FILE")]
    data: Option<PathBuf>,
    /// Tokens per sample [default: the model's]
    #[arg(long, value_name = "N", value_parser = number::whole_in(1..=u32::MAX))]
    seq_len: Option<u32>,
    /// Questions in JSON lines, in the format of HellaSwag, ARC, PIQA, MMLU, SciQ or LAMBADA: accuracy on
    /// them
    #[arg(long, value_name = "FILE", num_args = 1..)]
    tasks: Vec<PathBuf>,
    /// Examples before each question of --tasks (few-shot), chosen as lm-evaluation-harness does
    #[arg(long, value_name = "K", requires = "tasks")]
    #[arg(value_parser = number::whole_in(1..=1000u32))]
    shots: Option<u32>,
    /// File with the examples, in the format of the task [default: the task's own questions]
    #[arg(long, value_name = "FILE", requires = "shots")]
    shots_from: Option<PathBuf>,
    /// Number of samples of the data, and of questions of each file, to score [default: all]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = number::whole_in(1..=u32::MAX))]
    limit: Option<u32>,
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

impl Args {
    /// Whether standard output is only JSON.
    pub fn json(&self) -> bool {
        self.json || self.logprobs
    }
}

pub fn run(args: Args, messages: &Messages) -> anyhow::Result<()> {
    let document = args.json();
    let options = EvalOptions {
        model: args.model,
        data: args.data,
        seq_len: args.seq_len.map(|n| n as usize),
        tasks: args.tasks,
        limit: args.limit.map(|n| n as usize),
        shots: args.shots.map(|n| n as usize),
        shots_from: args.shots_from,
        logprobs: args.logprobs,
        add_bos_token: args.add_bos_token,
        tokenizer: args.tokenizer,
        sets: args.set,
    };
    let Some(scored) = super::run(&options, messages)? else { return Ok(()) };
    let mut out = std::io::stdout();
    match (args.json, document) {
        (true, _) => writeln!(out, "{}", serde_json::to_string(&scored)?),
        (false, true) => writeln!(std::io::stderr(), "{scored}"),
        (false, false) => writeln!(out, "{scored}"),
    }
    .context("cannot write the scores")
}
