//! Options that do not exist: each is answered with the option or setting that was meant.

use base::Problems;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use manifest::Suggestion;
use manifest::dialects::{self, Meaning};

/// Other names of options: the command, the names, and the option, which takes the value that was given,
/// or a remedy.
#[rustfmt::skip]
const OPTIONS: &[(&str, &str, &str)] = &[
    ("sample", "max_new_tokens max_tokens num_tokens n_predict max_length length", "--tokens"),
    ("sample", "num_samples num_return_sequences n", "--samples"),
    ("sample", "start text input", "--prompt"),
    ("sample", "model checkpoint ckpt out_dir model_path", "name the model alone: `gptrain sample DIR`"),
    ("sample", "temp t", "--temperature"),
    ("sample", "k", "--top-k"),
    ("sample", "p nucleus", "--top-p"),
    ("sample", "eos stop_string stop_sequence", "--stop"),
    ("eval", "model model_args checkpoint ckpt", "name the model alone: `gptrain eval DIR`"),
    ("eval", "num_fewshot fewshot few_shot n_shot", "--shots"),
    ("eval", "max_samples num_samples samples eval_iters", "--limit"),
    ("eval", "log_samples", "--logprobs"),
    ("eval", "sequence_length max_length block_size context", "--seq-len"),
    ("eval", "batch_size micro_batch_size eval_batch_size batch", "--set batch.micro"),
    ("estimate", "top top_k n num_plans", "leave it out: --search --gpus N prints the best plans"),
    ("estimate", "nodes num_nodes nnodes", "say how many devices: --gpus N"),
    ("estimate", "num_gpus n_gpus ngpus world_size devices ranks", "--gpus"),
    ("estimate", "gpu device", "--hardware"),
    ("estimate", "spot_price cost", "--price"),
    ("estimate", "framework trainer program", "--as"),
    ("estimate", "html chart", "--plot"),
    ("convert", "output output_dir save save_dir out", "name it alone: `gptrain convert IN OUT --to FORMAT`"),
    ("convert", "loader model_type", "leave it out: the format of IN is detected, or named by --format"),
    ("convert", "saver target type", "give --to hf, megatron, deepspeed-universal or gptrain"),
    ("convert", "load load_dir input model_path", "name it alone: `gptrain convert IN OUT --to FORMAT`"),
    ("convert", "tp tensor_model_parallel_size target_tensor_parallel_size", "--tensor"),
    ("convert", "pp pipeline_model_parallel_size target_pipeline_parallel_size", "--pipeline"),
    ("convert", "max_shard_size", "--shard-size"),
    ("convert", "torch_dtype precision", "--dtype"),
    ("export", "format type target", "give --to megatron, --to deepspeed-universal, or nothing"),
    ("export", "megatron megatron_lm mcore", "--to megatron"),
    ("export", "universal deepspeed deepspeed_universal", "--to deepspeed-universal"),
    ("export", "huggingface hugging_face safetensors", "leave it out: that is what is written without --to"),
    ("export", "tp tensor_model_parallel_size target_tensor_parallel_size", "--tensor"),
    ("export", "pp pipeline_model_parallel_size target_pipeline_parallel_size", "--pipeline"),
    ("export", "max_shard_size", "--shard-size"),
    ("export", "torch_dtype precision", "--dtype"),
    ("import", "dry_run", "--dry"),
    ("sweep", "dry_run", "--dry"),
    ("prune", "dry_run", "--dry"),
    ("prune", "keep last save_total_limit", "--keep-last"),
    ("run", "dry_run dry", "give the manifest to `gptrain manifest check` or `gptrain estimate`"),
    ("run", "config manifest", "name the manifest alone: `gptrain run FILE`"),
    ("run", "resume resume_from_checkpoint load", "leave it out: a run resumes; or --resume-from STEP"),
    ("run", "time max_minutes", "--minutes"),
    ("compare", "html page plot out", "--output"),
    ("report", "html page out", "--output"),
    ("status", "follow live tail", "--watch"),
    ("diagnose", "ranks", "--rank"),
    ("job", "gpus gres ntasks_per_node", "--gpus-per-node"),
    ("job", "mem qos constraint reservation mail_user", "write it into the script, with --output FILE"),
    ("build", "input", "name the files alone: `gptrain data build FILE …`"),
    ("build", "json_keys json_key column field", "--key"),
    ("build", "workers num_workers num_proc n_workers", "--threads"),
    ("build", "tokenizer_model tokenizer_name_or_path vocab_file", "--tokenizer"),
    ("build", "tokenizer_type merge_file split_sentences", "leave it out: the files of --tokenizer say it"),
    ("train-tokenizer", "vocab_size", "--vocab"),
    ("new", "size model_size", "--params"),
];

/// Message for an unknown option, unless the parser found one with similar letters. `root` is built,
/// `words` are the command line without the program's name.
pub fn explain(error: &clap::Error, root: &Command, words: &[String]) -> Option<Problems> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = typed.split('=').next()?;
    let command = find_command(root, words);
    let has_similar = error.get(ContextKind::SuggestedArg).is_some();
    let remedy = find_option(command, name, words).or_else(|| find_setting(command, name, words));
    if remedy.is_none() && has_similar {
        return None;
    }
    let remedy = remedy.unwrap_or_else(|| list_options(command));
    let command = command.get_bin_name().unwrap_or("gptrain");
    Some(Problems::one(name, format!("is not an option of `{command}`"), remedy))
}

/// Remedy for another program's name of an option.
fn find_option(command: &Command, name: &str, words: &[String]) -> Option<String> {
    let plain = dialects::plain(name);
    let (_, _, option) = OPTIONS.iter().find(|(of, names, _)| {
        *of == command.get_name() && names.split(' ').any(|other| other == plain)
    })?;
    let Some(long) = option.strip_prefix("--") else { return Some(option.to_string()) };
    let takes_value = match long.split_once(' ') {
        Some(("set", key)) => {
            return Some(format!("did you mean `--set {key}={}`?", value(name, words)));
        }
        Some(_) => false,
        None => command
            .get_arguments()
            .any(|arg| arg.get_long() == Some(long) && arg.get_action().takes_values()),
    };
    let value = if takes_value { format!(" {}", value(name, words)) } else { String::new() };
    Some(format!("did you mean `{option}{value}`?"))
}

/// Remedy for the name of a setting, or another trainer's name of one, in a command with `--set`.
fn find_setting(command: &Command, name: &str, words: &[String]) -> Option<String> {
    command
        .get_arguments()
        .find(|arg| arg.get_long() == Some("set"))?;
    let row = match manifest::suggest_setting(name)? {
        Suggestion::Key(key) => return Some(set(&key, value(name, words))),
        Suggestion::Row(row) => row,
    };
    Some(match row.meaning {
        Meaning::Setting { key, value: Some(value) } => set(key, value),
        Meaning::Setting { key, value: None } => {
            let note = if row.unit.is_empty() { "" } else { "; its value is " };
            format!("{}{note}{}", set(key, value(name, words)), row.unit)
        }
        Meaning::Unneeded(why)
        | Meaning::Lacking(why)
        | Meaning::Only { why, .. }
        | Meaning::Noted { why, .. } => {
            format!("leave it out: {why}")
        }
    })
}

fn set(key: &str, value: &str) -> String {
    format!("settings are given by --set: `--set {key}={value}`")
}

/// Remedy for a name without a known meaning: all options of the command.
fn list_options(command: &Command) -> String {
    if command.has_subcommands() {
        return "name a command first: --help lists them".to_string();
    }
    let mut names = Vec::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_global_set()) {
        names.extend(
            arg.get_long()
                .filter(|long| *long != "help")
                .map(|long| format!("--{long}")),
        );
    }
    if names.is_empty() {
        "it has no options".into()
    } else {
        format!("it has {}", names.join(", "))
    }
}

/// Subcommand that the words name.
fn find_command<'c>(root: &'c Command, words: &[String]) -> &'c Command {
    let mut command = root;
    for word in words {
        match command.find_subcommand(word) {
            Some(below) => command = below,
            None if word.starts_with('-') => {}
            None => break,
        }
    }
    command
}

/// Value that the command line gives to an option, in either form; VALUE if there is none.
fn value<'w>(name: &str, words: &'w [String]) -> &'w str {
    for (at, word) in words.iter().enumerate() {
        let next = || words.get(at + 1).filter(|next| !next.starts_with("--"));
        let value = match word.strip_prefix(name) {
            Some("") => next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            return value;
        }
    }
    "VALUE"
}
