//! Parser of the command line, and the start and end of every command.
//!
//! Exit codes: `EXIT_CODES`. A signal that interrupts a command other than `run` also ends it.

use crate::average::Average;
use crate::bench::Bench;
use crate::check_run::CheckRun;
use crate::compare::Compare;
use crate::completions::{Completions, Man};
use crate::convert::Convert;
use crate::diagnose::Diagnose;
use crate::estimate::Estimate;
use crate::eval::Eval;
use crate::export::Export;
use crate::import::Import;
use crate::inspect_ckpt::InspectCkpt;
use crate::job::Job;
use crate::nodes::Nodes;
use crate::prune::Prune;
use crate::report::Report;
use crate::run::Run;
use crate::sample::Sample;
use crate::status::ShowStatus;
use crate::sweep::Sweep;
use crate::track::Track;
use crate::tune::Tune;
use crate::{completions, data, interrupt, manifest, unknown};
use base::Bytes;
use base::memory::{HostMemory, MemoryLimit};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use launch::console::Form;
use launch::exit;
use launch::messages::Messages;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::LazyLock;
use tracing::level_filters::LevelFilter;

#[derive(Parser)]
#[command(name = "gptrain", version, long_version = VERSION.as_str(), max_term_width = 100)]
#[command(about = ABOUT, after_long_help = EXIT_CODES)]
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

const ABOUT: &str = "Pretrains GPT models: one binary, from a laptop's CPU to a GPU cluster";

/// Exit codes as `--help` lists them; docs/runs.md has the same table.
const EXIT_CODES: &str = "\
Exit codes:
  0    done, or stopped on request after saving
  1    an operation failed: disk, the only GPU, memory, values that are not finite;
       inspect-ckpt: the checkpoint is damaged, or the two are different;
       check-run: the log differs
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
    Run(Run),
    /// Generate text with a trained model
    Sample(Sample),
    /// Score a checkpoint or a Hugging Face folder: loss, perplexity, accuracy
    Eval(Eval),
    /// Average the weights of several checkpoints into a new run
    Average(Average),
    /// Make a self-contained HTML page of a run's curves
    Report(Report),
    /// Compare runs: losses at the same step and tokens, speed, settings that differ
    Compare(Compare),
    /// Show what a run is doing (step, speed, time left, last save, warnings), or all runs of a folder
    Status(ShowStatus),
    /// Send a run's metrics to Weights & Biases, live, by its own Python client
    Wandb(Track),
    /// Send a run's metrics to MLflow, live, by its own Python client
    Mlflow(Track),
    /// Write the Slurm script of a manifest: its nodes, tasks, GPUs or CPUs
    Job(Job),
    /// Run a manifest with every combination of several values, and compare the runs
    Sweep(Sweep),
    /// Measure several topologies of a manifest, each for a few steps, in one table
    Tune(Box<Tune>),
    /// Show the nodes that a run excludes, or clear their records
    Nodes(Nodes),
    /// Inspect a checkpoint, verify it, or compare two
    InspectCkpt(InspectCkpt),
    /// Check another trainer's loss: compute its next steps from its checkpoint, and compare with its log
    CheckRun(CheckRun),
    /// Remove old checkpoints of a run
    Prune(Prune),
    /// Convert a checkpoint of any trainer to another format
    Convert(Convert),
    /// Write a checkpoint as a Hugging Face folder, or for Megatron-LM or DeepSpeed
    Export(Export),
    /// Start a run from another trainer's checkpoint, or from a Hugging Face folder
    Import(Import),
    /// Name the rank that stopped a failed run, from its dump folder
    Diagnose(Diagnose),
    /// Estimate what a run needs: memory, time, days, and what to change
    Estimate(Box<Estimate>),
    /// Check the machine before a run: products, copies, files, groups, and which node is slow
    Bench(Bench),
    /// Check, show or describe manifests
    #[command(subcommand)]
    Manifest(manifest::Command),
    /// Make, join and inspect datasets and tokenizers
    #[command(subcommand)]
    Data(data::Command),
    /// Print a completion script: source <(gptrain completions bash)
    Completions(Completions),
    /// Write the manual pages
    Man(Man),
}

/// Whether standard output is only JSON, so that messages are off.
fn prints_json(mut matches: &ArgMatches) -> bool {
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    ["json", "logprobs"]
        .iter()
        .any(|flag| matches!(matches.try_get_one(flag), Ok(Some(true))))
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
    for flag in all {
        let kind = flag.get_value_parser().type_id();
        let is_word = !flag.get_possible_values().is_empty();
        if is_word || !numbers.iter().any(|number| kind == *number) {
            continue;
        }
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
        let is_number = reads("1k") || reads("0.000_1k");
        // A time has a unit instead: ten minutes.
        if !is_number && reads("10m") {
            continue;
        }
        assert!(is_number, "{}", flag.get_id());
        checked += 1;
    }
    assert!(checked > 25, "{checked}");
}

/// Runs the command line. `commit` is the one that the program was built from.
pub fn main(commit: &'static str) -> ExitCode {
    device::Gpu::set_environment(); // before any thread
    base::set_commit(commit);
    base::threads::report_refused_memory();
    if let Some(line) = check_memory() {
        base::warn!("{line}");
        return ExitCode::from(1);
    }
    base::input::allow_many_files();
    let (Cli { command, log_level, quiet }, matches) = match parse() {
        Ok(parsed) => parsed,
        Err(problems) => {
            base::warn!("{}", colour_lines(&problems.to_string()));
            return ExitCode::from(2);
        }
    };
    let messages = Messages::default();
    let _ = launch::signals::ignore_size_limit_signal(); // without it the signal's own end is as clear
    let traces = matches!(&command, Command::Run(args) if args.trace.is_some());
    let log_level =
        if prints_json(&matches) { log_level.min(LevelFilter::ERROR) } else { log_level };
    let log_level = if quiet { log_level.min(LevelFilter::WARN) } else { log_level };
    if quiet {
        base::progress::silence();
        messages.console().set_form(Form::Quiet);
    }
    messages.install(log_level, traces);
    let (code, line) = match run_command(command, &messages) {
        Ok(()) => check_output(),
        Err(error) => exit::code_and_line(&error),
    };
    if let Some(line) = line {
        base::warn!("{}", colour_lines(&line));
    }
    ExitCode::from(code)
}

/// Parses the command line. Prints help, and clap's messages about mistakes, and exits; a setting given
/// as an option is the error.
fn parse() -> Result<(Cli, ArgMatches), base::Problems> {
    let parsed = parser()
        .try_get_matches()
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    parsed.map_err(|error| {
        let words: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let mut parser = parser();
        parser.build();
        unknown::explain(&error, &parser, &words).unwrap_or_else(|| {
            exit_with(&completions::remove_long_lists(error.format(&mut parser)))
        })
    })
}

/// Prints the help, the version or the parser's error, and ends the process.
fn exit_with(error: &clap::Error) -> ! {
    let text = error.render();
    let coloured = |stream: &dyn IsTerminal| {
        if has_colours(stream) { text.ansi().to_string() } else { text.to_string() }
    };
    if error.use_stderr() {
        base::warn!("{}", coloured(&std::io::stderr()).trim_end());
    } else {
        base::say!("{}", coloured(&std::io::stdout()).trim_end());
    }
    std::process::exit(error.exit_code())
}

/// Whether a stream is a terminal with colours, and NO_COLOR is not set.
fn has_colours(stream: &dyn IsTerminal) -> bool {
    stream.is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
        && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Address space that every command needs beside the program: stacks of threads, buffers.
const LEAST_MEMORY: Bytes = Bytes(16 << 20);

/// Message if `ulimit -v` leaves less than `LEAST_MEMORY`. Threads that cannot start would abort the
/// process without one.
fn check_memory() -> Option<String> {
    let HostMemory { free, total, limited, .. } = HostMemory::detect()?;
    let little = limited == MemoryLimit::ByProcess && free.0 < LEAST_MEMORY.0;
    little.then(|| {
        format!(
            "gptrain: {free} of address space is free of the limit of {total} (ulimit -v), and a \
             command needs {LEAST_MEMORY}\n    → raise it: ulimit -v unlimited, or the job's memory"
        )
    })
}

/// Colours an error's lines where standard error has colours: mistakes red, remedies cyan.
fn colour_lines(lines: &str) -> String {
    if !has_colours(&std::io::stderr()) {
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
fn check_output() -> (u8, Option<String>) {
    match base::say::write_error() {
        None => (0, None),
        Some(error) => (1, Some(format!("gptrain: cannot write to standard output: {error}"))),
    }
}

fn run_command(command: Command, messages: &Messages) -> anyhow::Result<()> {
    if !matches!(command, Command::Run(_) | Command::Sweep(_) | Command::Tune(_)) {
        interrupt::listen()?;
    }
    match command {
        Command::Run(run) => run.run(messages),
        Command::Sample(sample) => sample.run(),
        Command::Eval(eval) => eval.run(messages),
        Command::Average(average) => average.run(),
        Command::Report(report) => report.run(),
        Command::Compare(compare) => compare.run(),
        Command::Status(status) => status.run(),
        Command::Wandb(track) => track.run("wandb"),
        Command::Mlflow(track) => track.run("mlflow"),
        Command::Job(job) => job.run(),
        Command::Sweep(sweep) => sweep.run(),
        Command::Tune(tune) => tune.run(),
        Command::Nodes(nodes) => nodes.run(),
        Command::InspectCkpt(inspect) => inspect.run(),
        Command::CheckRun(check) => check.run(),
        Command::Prune(prune) => prune.run(),
        Command::Convert(convert) => convert.run(),
        Command::Export(export) => export.run(),
        Command::Import(import) => import.run(),
        Command::Diagnose(diagnose) => diagnose.run(),
        Command::Estimate(estimate) => estimate.run(),
        Command::Bench(bench) => bench.run(messages),
        Command::Manifest(manifest) => manifest.run(),
        Command::Data(data) => data.run(),
        Command::Completions(completions) => {
            completions.run(Cli::command());
            Ok(())
        }
        Command::Man(man) => man.run(Cli::command()),
    }
}
