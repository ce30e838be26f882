//! Parser of the command line, and the start and end of every command.
//!
//! Exit codes: `EXIT_CODES`. A signal that interrupts a command other than `run` also ends it.

use crate::completions as shell;
use crate::{
    average, bench, compare, data, diagnose, estimate, eval, export, import, inspect_ckpt,
    interrupt, job, manifest, nodes, prune, report, run, sample, status, sweep, track, unknown,
};
use base::Bytes;
use base::memory::{HostMemory, MemoryLimit};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use launch::console::Form;
use launch::exit;
use launch::messages::Messages;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::LazyLock;
use tracing::level_filters::LevelFilter;

/// Pretrains GPT models, from a laptop's CPU to a GPU cluster
#[derive(Parser)]
#[command(name = "gptrain", version, long_version = VERSION.as_str(), about, max_term_width = 100)]
#[command(after_long_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print messages of at least this severity
    #[arg(long, global = true, value_name = "LEVEL", env = "GPTRAIN_LOG", default_value = "info")]
    #[arg(value_parser = level_parser())]
    log_level: LevelFilter,
    /// Print only warnings and errors: no log lines, no progress bar
    #[arg(short, long, global = true)]
    quiet: bool,
}

/// Exit codes as `--help` lists them; docs/runs.md has the same table.
const EXIT_CODES: &str = "\
Exit codes:
  0    done, or stopped by a signal after saving
  1    an operation failed: disk, the only GPU, memory, values that are not finite;
       inspect-ckpt: the checkpoint is damaged, or the two are different
  2    the input is wrong: command line, manifest, dataset, a missing or damaged checkpoint
  3    a group of ranks failed: a rank died, hung or differs
  4    estimate: the plan does not fit
  5    bench: a node, link or rank is slow
  130  a second Ctrl-C: nothing was saved
  101  a bug in gptrain: please report what was printed";

/// Text of `--version`: commit, kernels, features.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let kernels = device::Gpu::kernels().unwrap_or_else(|| "none: for the CPU alone".into());
    let all = [
        ("tokenizers", cfg!(feature = "tokenizers")),
        ("parquet", cfg!(feature = "parquet")),
        ("object-store", cfg!(feature = "object-store")),
    ];
    let features: Vec<&str> = all
        .iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| *name)
        .collect();
    let features = if features.is_empty() { "none".into() } else { features.join(", ") };
    let number = env!("CARGO_PKG_VERSION");
    let commit = base::commit();
    format!("{number}, commit {commit}\nGPU kernels: {kernels}\nfeatures: {features}")
});

fn level_parser() -> impl TypedValueParser<Value = LevelFilter> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    PossibleValuesParser::new(levels).try_map(|level| level.parse::<LevelFilter>())
}

#[derive(Subcommand)]
enum Command {
    /// Train a manifest; resumes from its last checkpoint if there is one
    Run(run::Args),
    /// Generate text with a trained model
    Sample(sample::Args),
    /// Score a checkpoint or a Hugging Face folder: loss, perplexity, accuracy
    Eval(eval::options::Args),
    /// Average the weights of several checkpoints into a new run
    Average(average::Args),
    /// Make a self-contained HTML page of a run's curves
    Report(report::command::Args),
    /// Compare runs: losses at the same step and tokens, speed, settings that differ
    Compare(compare::Args),
    /// Show what a run is doing (step, speed, time left, last save, warnings), or all runs of a folder
    Status(status::Args),
    /// Send a run's metrics to Weights & Biases, live, by its own Python client
    Wandb(track::Args),
    /// Send a run's metrics to MLflow, live, by its own Python client
    Mlflow(track::Args),
    /// Write the Slurm script of a manifest: its nodes, tasks, GPUs or CPUs
    Job(job::Args),
    /// Run a manifest with every combination of several values, and compare the runs
    Sweep(sweep::Args),
    /// Show the nodes that a run excludes, or clear their records
    Nodes(nodes::Args),
    /// Inspect a checkpoint, verify it, or compare two
    InspectCkpt(inspect_ckpt::Args),
    /// Remove old checkpoints of a run
    Prune(prune::Args),
    /// Write a checkpoint as a Hugging Face folder
    Export(export::Args),
    /// Start a run from another trainer's checkpoint, or from a Hugging Face folder
    Import(import::command::Args),
    /// Name the rank that stopped a failed run, from its dump folder
    Diagnose(diagnose::Args),
    /// Estimate what a run needs: memory, time, days, and what to change
    Estimate(Box<estimate::Args>),
    /// Check the machine before a run: products, copies, files, groups, and which node is slow
    Bench(bench::Args),
    /// Check, show or describe manifests
    #[command(subcommand)]
    Manifest(manifest::Command),
    /// Make, join and inspect datasets and tokenizers
    #[command(subcommand)]
    Data(data::Command),
    /// Print a completion script: source <(gptrain completions bash)
    Completions(shell::Completions),
    /// Write the manual pages
    Man(shell::Man),
}

impl Command {
    /// Whether standard output is only JSON, so that info messages are off.
    fn prints_json(&self) -> bool {
        match self {
            Command::Average(args) => args.json.json,
            Command::Bench(args) => args.json,
            Command::Data(command) => command.prints_json(),
            Command::Eval(args) => args.json(),
            Command::Export(args) => args.json.json,
            Command::Prune(args) => args.json.json,
            Command::Import(args) => args.json.json,
            Command::Manifest(manifest::Command::Check(args)) => args.json.json,
            Command::Sample(args) => args.json,
            _ => false,
        }
    }
}

/// Parses a command line, the program's name first, without running it. For tests of the
/// documentation.
#[doc(hidden)]
pub fn understands(words: &[impl AsRef<str>]) -> Result<(), String> {
    let words = words.iter().map(AsRef::as_ref);
    parser()
        .try_get_matches_from(words)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Parser of the command line. A value may be a negative number, which its flag refuses with the range
/// that it takes; otherwise clap would report an unknown flag.
fn parser() -> clap::Command {
    fn accept_negative_numbers(command: clap::Command) -> clap::Command {
        command
            .mut_args(|arg: clap::Arg| {
                let takes_value = arg.get_action().takes_values();
                arg.allow_negative_numbers(takes_value)
            })
            .mut_subcommands(accept_negative_numbers)
    }
    accept_negative_numbers(Cli::command())
}

/// Every flag takes numbers as a manifest does.
#[test]
fn all_flags_have_one_grammar_of_numbers() {
    use std::any::TypeId;
    fn flags(command: &clap::Command) -> Vec<clap::Arg> {
        let below = command.get_subcommands().flat_map(flags);
        command.get_arguments().cloned().chain(below).collect()
    }
    let numbers =
        [TypeId::of::<usize>(), TypeId::of::<u64>(), TypeId::of::<u32>(), TypeId::of::<f64>()];
    let all = flags(&parser());
    let mut checked = 0;
    for flag in all.iter().filter(|flag| {
        numbers
            .iter()
            .any(|number| flag.get_value_parser().type_id() == *number)
    }) {
        let alone = || {
            clap::Arg::new("n")
                .long("n")
                .value_parser(flag.get_value_parser().clone())
        };
        let reads = |text: &str| {
            let command = clap::Command::new("gptrain").arg(alone());
            command
                .try_get_matches_from(["gptrain", "--n", text])
                .is_ok()
        };
        assert!(reads("1k") || reads("0.000_1k"), "{flag}");
        checked += 1;
    }
    assert!(checked > 25, "{checked}");
}

/// Runs the command line. `commit` is the one that the program was built from.
pub fn main(commit: &'static str) -> ExitCode {
    device::Gpu::set_environment(); // before any thread
    base::set_commit(commit);
    base::threads::report_refused_memory();
    if let Some(line) = too_little_memory() {
        base::warn!("{line}");
        return ExitCode::from(1);
    }
    base::input::allow_many_files();
    let Cli { command, log_level, quiet } = match parse() {
        Ok(parsed) => parsed,
        Err(problems) => {
            base::warn!("{}", coloured(&problems.to_string()));
            return ExitCode::from(2);
        }
    };
    let messages = Messages::default();
    let _ = launch::signals::ignore_size_limit_signal(); // without it the signal's own end is as clear
    let traces = matches!(&command, Command::Run(args) if args.trace.is_some());
    let log_level =
        if command.prints_json() { log_level.min(LevelFilter::ERROR) } else { log_level };
    let log_level = if quiet { log_level.min(LevelFilter::WARN) } else { log_level };
    if quiet {
        base::progress::silence();
        messages.console().set_form(Form::Quiet);
    }
    messages.install(log_level, traces);
    let (code, line) = match run(command, &messages) {
        Ok(()) => unwritten(),
        Err(error) => exit::code_and_line(&error),
    };
    if let Some(line) = line {
        base::warn!("{}", coloured(&line));
    }
    ExitCode::from(code)
}

/// Parses the command line. Prints help, and clap's messages about mistakes, and exits; a setting given
/// as an option is the error.
fn parse() -> Result<Cli, base::Problems> {
    let parsed = parser()
        .try_get_matches()
        .and_then(|found| Cli::from_arg_matches(&found));
    parsed.map_err(|error| {
        let words: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        unknown::explain(&error, &parser(), &words)
            .unwrap_or_else(|| shell::without_long_lists(error.format(&mut parser())).exit())
    })
}

/// Address space that every command needs beside the program: stacks of threads, buffers.
const LEAST_MEMORY: Bytes = Bytes(16 << 20);

/// Message if `ulimit -v` leaves less than `LEAST_MEMORY`. Threads that cannot start would abort the
/// process without one.
fn too_little_memory() -> Option<String> {
    let HostMemory { free, total, limited, .. } = HostMemory::detect()?;
    let little = limited == MemoryLimit::ByProcess && free.0 < LEAST_MEMORY.0;
    little.then(|| {
        format!(
            "gptrain: {free} of address space is free of the limit of {total} (ulimit -v), and a \
             command needs {LEAST_MEMORY}\n    → raise it: ulimit -v unlimited, or the job's memory"
        )
    })
}

/// Colours an error's lines on a terminal, unless NO_COLOR is set: mistakes red, remedies cyan.
fn coloured(lines: &str) -> String {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    if !(wanted && std::io::stderr().is_terminal()) {
        return lines.to_string();
    }
    let colour = |line: &str| if line.starts_with("    →") { 36 } else { 31 };
    let lines = lines
        .lines()
        .map(|line| format!("\x1b[{}m{line}\x1b[0m", colour(line)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Exit code of a command that succeeded: 1 with a message if writing to standard output failed, as
/// on a full disk.
fn unwritten() -> (u8, Option<String>) {
    match base::say::failed() {
        None => (0, None),
        Some(error) => (1, Some(format!("gptrain: cannot write to standard output: {error}"))),
    }
}

fn run(command: Command, messages: &Messages) -> anyhow::Result<()> {
    if !matches!(command, Command::Run(_) | Command::Sweep(_)) {
        interrupt::listen()?;
    }
    match command {
        Command::Run(args) => run::run(args, messages),
        Command::Sample(args) => sample::run(args),
        Command::Eval(args) => eval::options::run(args, messages),
        Command::Average(args) => average::run(args),
        Command::Report(args) => report::command::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Status(args) => status::run(args),
        Command::Wandb(args) => track::run(args, "wandb"),
        Command::Mlflow(args) => track::run(args, "mlflow"),
        Command::Job(args) => job::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Nodes(args) => nodes::run(args),
        Command::InspectCkpt(args) => inspect_ckpt::run(args),
        Command::Prune(args) => prune::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::command::run(args),
        Command::Diagnose(args) => diagnose::run(args),
        Command::Estimate(args) => estimate::run(*args),
        Command::Bench(args) => bench::run(args, messages),
        Command::Manifest(command) => manifest::run(command),
        Command::Data(command) => data::run(command),
        Command::Completions(args) => {
            shell::completions::<Cli>(args);
            Ok(())
        }
        Command::Man(args) => shell::man::<Cli>(args),
    }
}
