//! The command of a script that trains: its arguments, and the ranks that its launcher starts.

use super::missing_variable;
use super::shell::Shell;
use super::slurm::Slurm;
use base::Problems;
use manifest::dialects::{self, Conversion, Dialect, Meaning, ROWS, Row};
use serde_json::Value as Json;

/// Known arguments from which a command is one that trains.
const ENOUGH: usize = 4;

/// Parts of the names of programs that train other models.
const OTHER_MODELS: [&str; 8] =
    ["bert", "t5", "ict", "retro", "mamba", "multimodal", "vision", "vlm"];

/// Settings whose values are text, also if it is a number.
const TEXTS: &[&str] = &[
    "name",
    "data.train",
    "data.valid",
    "data.split",
    "data.tokenizer",
    "data.cache",
    "log.folder",
];

/// A trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    MegatronLm,
    MegatronDeepSpeed,
    /// Hugging Face's Trainer.
    Trainer,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::MegatronLm => "Megatron-LM",
            Program::MegatronDeepSpeed => "Megatron-DeepSpeed",
            Program::Trainer => "Hugging Face's Trainer",
        }
    }

    pub fn dialect(self) -> Dialect {
        match self {
            Program::Trainer => Dialect::HuggingFace,
            _ => Dialect::Megatron,
        }
    }
}

/// An argument of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// As it is written: `--num-layers`.
    pub flag: String,
    /// Name in the program, with underscores.
    pub name: String,
    /// Values; none of a flag.
    pub words: Vec<String>,
}

/// Command that trains.
#[derive(Debug)]
pub struct Launch {
    pub program: Program,
    /// The last of equal ones.
    pub arguments: Vec<Given>,
    /// Words of the launchers before the program.
    launcher: Vec<String>,
    pub notes: Vec<String>,
}

/// Name and value under which argparse stores a flag.
fn stored(flag: &str) -> Option<(&'static str, &'static str)> {
    let is_second = |setting: &str| Dialect::Megatron.names(setting).get(1) == Some(&flag);
    match flag {
        "no_query_key_layer_scaling" => Some(("apply_query_key_layer_scaling", "false")),
        _ if is_second("model.bias") => Some((Dialect::Megatron.name("model.bias"), "false")),
        _ if is_second("topology.recompute") => {
            Some((Dialect::Megatron.name("topology.recompute"), "selective"))
        }
        _ => None,
    }
}

impl Given {
    pub fn new(flag: &str, words: Vec<String>) -> Given {
        let name = dialects::plain(flag);
        let negative = name
            .strip_prefix("no_")
            .filter(|rest| !Dialect::Megatron.knows(&name) && Dialect::Megatron.knows(rest));
        let (name, words) = match (stored(&name), negative) {
            (Some((name, value)), _) => (name.to_string(), vec![value.to_string()]),
            (None, Some(rest)) => (rest.to_string(), vec!["false".to_string()]),
            (None, None) => (name, words),
        };
        Given { flag: flag.to_string(), name, words }
    }

    /// Row of the table of dialects.
    pub fn row(&self, dialect: Dialect) -> Option<&'static Row> {
        let mut exact = ROWS.iter();
        let is_exact = |row: &&Row| row.names(dialect).any(|name| name == self.name);
        exact
            .find(is_exact)
            .or_else(|| ROWS.iter().find(|row| row.has(dialect, &self.name)))
    }

    /// Key of its setting.
    pub fn setting(&self, dialect: Dialect) -> Option<&'static str> {
        match self.row(dialect)?.meaning {
            Meaning::Setting { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Values as text.
    pub fn text(&self) -> String {
        if self.words.is_empty() { "true".to_string() } else { self.words.join(" ") }
    }

    /// Variable or command of which an argument that matters needs the value.
    pub fn missing(&self, dialect: Dialect) -> Option<String> {
        let row = self.row(dialect)?;
        match row.meaning {
            Meaning::Setting { key, .. } if TEXTS.contains(&key) => None,
            Meaning::Setting { .. } | Meaning::Only { .. } => {
                self.words.iter().find_map(|word| missing_variable(word))
            }
            _ => None,
        }
    }

    /// Kind of the value that the argument lacks: it is given like a flag, and is none.
    pub fn lacks(&self, dialect: Dialect) -> Option<&'static str> {
        let row = self.row(dialect).filter(|_| self.words.is_empty())?;
        match (row.meaning, row.conversion) {
            (Meaning::Setting { key: "data.train" | "data.valid", .. }, _) => {
                Some("the path of a dataset")
            }
            (Meaning::Setting { key, .. }, _) if TEXTS.contains(&key) => Some("text"),
            (Meaning::Setting { .. }, Conversion::Count) => Some("a whole number"),
            (Meaning::Setting { .. }, Conversion::Number) => Some("a number"),
            _ => None,
        }
    }

    /// Value as a program reads it: a flag is true, a number is a number, several values are a list.
    pub fn json(&self, dialect: Dialect) -> Json {
        let row = self.row(dialect);
        let is_text = match row.map(|row| (row.meaning, row.conversion)) {
            Some((Meaning::Setting { key, .. }, _)) if TEXTS.contains(&key) => true,
            Some((_, Conversion::Choice(_))) => true,
            _ => false,
        };
        let one = |word: &String| {
            let digits = word.replace('_', "");
            let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
            match word.as_str() {
                _ if is_text => Json::from(word.as_str()),
                "true" | "True" => Json::from(true),
                "false" | "False" => Json::from(false),
                "none" | "None" | "null" => Json::Null,
                _ if is_number && let Ok(whole) = digits.parse::<i64>() => Json::from(whole),
                _ if is_number && let Ok(number) = digits.parse::<f64>() => Json::from(number),
                _ => Json::from(word.as_str()),
            }
        };
        match self.words.as_slice() {
            [] => Json::from(true),
            [word] => one(word),
            words => words.iter().map(one).collect(),
        }
    }
}

impl Launch {
    pub fn new(arguments: Vec<Given>, launcher: Vec<String>) -> Launch {
        Launch { program: program(&arguments), arguments, launcher, notes: Vec::new() }
    }

    pub fn get(&self, name: &str) -> Option<&Given> {
        self.arguments.iter().find(|given| given.name == name)
    }

    /// Value of `plan.framework`.
    pub fn framework(&self) -> &'static str {
        match self.program {
            Program::MegatronLm => "megatron-lm",
            Program::MegatronDeepSpeed => "megatron-deepspeed",
            Program::Trainer if self.get("deepspeed").is_some() => "hf-deepspeed",
            Program::Trainer if self.get("fsdp").is_some() => "fsdp",
            Program::Trainer => "ddp",
        }
    }

    /// Number of ranks by the launcher's options, or by the job's; None if neither says.
    pub fn ranks(&self, slurm: &Slurm) -> Option<usize> {
        let of_node = self.option(&["nproc_per_node", "num_gpus", "gpus_per_node"]);
        let nodes = self.option(&["nnodes", "num_nodes", "nodes", "N", "num_machines"]);
        let nodes = nodes.or_else(|| slurm.count("nodes"));
        if let Some(of_node) = of_node {
            return of_node.checked_mul(nodes.unwrap_or(1));
        }
        // A launcher that was named starts a rank for each GPU; so do the tasks of srun and mpirun.
        let launches = |name: &str| self.launcher.iter().any(|word| word.ends_with(name));
        let by_gpus = || slurm.gpus_per_node()?.checked_mul(nodes?);
        if launches("torchrun") || launches("deepspeed") || launches("torch.distributed.launch") {
            return by_gpus();
        }
        let tasks = self.option(&["ntasks", "n", "np", "num_processes"]);
        let per_node = self.option(&["ntasks_per_node"]);
        tasks
            .or_else(|| per_node?.checked_mul(nodes?))
            .or_else(|| slurm.tasks().max(by_gpus()))
    }

    /// First count among options of the launcher, by their plain names.
    fn option(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|wanted| {
            let words = self.launcher.iter().enumerate();
            words
                .filter(|(_, word)| word.starts_with('-'))
                .find_map(|(at, word)| {
                    let (name, value) = match word.split_once('=') {
                        Some((name, value)) => (name, Some(value)),
                        None => (word.as_str(), self.launcher.get(at + 1).map(String::as_str)),
                    };
                    let name = name.trim_start_matches('-').replace('-', "_");
                    (name == *wanted).then(|| value?.parse().ok()).flatten()
                })
        })
    }
}

/// Finds the command with the most known arguments; of equal ones the last.
pub fn find(shell: &Shell, place: &str) -> Result<Launch, Problems> {
    let counted = shell
        .commands
        .iter()
        .map(|command| (known(&command.words), command));
    let best = counted.max_by_key(|(count, _)| *count);
    let Some((_, command)) = best.filter(|(count, _)| *count >= ENOUGH) else {
        let names: Vec<&str> = shell
            .commands
            .iter()
            .filter_map(|command| command.words.first().map(String::as_str))
            .take(8)
            .collect();
        let commands = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        return Err(Problems::one(
            place,
            format!(
                "no command has arguments of Megatron or of Hugging Face's Trainer; commands: {commands}"
            ),
            "give the script that starts the training, or its command line: --args \"pretrain_gpt.py \
             --num-layers …\"",
        ));
    };
    let words = &command.words;
    let begin = program_at(words);
    let launcher = words[..begin].to_vec();
    let file = launcher
        .last()
        .map_or("", |word| word.rsplit('/').next().unwrap_or(word));
    if let Some(model) = OTHER_MODELS.into_iter().find(|model| file.contains(model)) {
        return Err(Problems::one(
            format!("{place}:{}", command.line),
            format!("{file} trains another kind of model ({model})"),
            "gptrain trains decoders of text: give a script of pretrain_gpt.py",
        ));
    }
    let mut notes = Vec::new();
    let mut arguments: Vec<Given> = Vec::new();
    let is_flag = |word: &str| {
        let bare = word.trim_start_matches('-');
        word.starts_with('-') && bare.starts_with(|c: char| c.is_ascii_alphabetic())
    };
    let mut rest = words[begin..].iter().peekable();
    while let Some(word) = rest.next() {
        if !is_flag(word) {
            if let Some(name) = missing_variable(word) {
                let line = command.line;
                notes.push(format!("line {line}: {name} has no value here: it is left out"));
            }
            continue;
        }
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_string())),
            None => (word.as_str(), None),
        };
        let mut values: Vec<String> = value.into_iter().collect();
        while let Some(value) = rest.next_if(|next| !is_flag(next)) {
            values.push(value.clone());
        }
        let given = Given::new(flag, values);
        arguments.retain(|known| known.name != given.name);
        arguments.push(given);
    }
    Ok(Launch { notes, ..Launch::new(arguments, launcher) })
}

/// Number of a command's known arguments.
fn known(words: &[String]) -> usize {
    let flags = words.iter().filter(|word| word.starts_with("--"));
    flags
        .filter(|flag| {
            let name = dialects::plain(flag.split('=').next().unwrap_or(flag));
            // Launchers have the names of ranks too.
            !matches!(name.as_str(), "local_rank" | "rank")
                && [Dialect::Megatron, Dialect::HuggingFace]
                    .iter()
                    .any(|dialect| dialect.knows(&name))
        })
        .count()
}

/// Index of the first argument of the program: behind its file, or the first known one.
fn program_at(words: &[String]) -> usize {
    let file = words
        .iter()
        .position(|word| word.ends_with(".py") && !word.starts_with('-'));
    let first = || {
        let mut words = words.iter();
        words.position(|word| known(std::slice::from_ref(word)) > 0)
    };
    file.map(|at| at + 1).or_else(first).unwrap_or(0)
}

fn program(arguments: &[Given]) -> Program {
    let known = |dialect: Dialect| {
        let known = arguments
            .iter()
            .filter(|given| given.row(dialect).is_some());
        known.count()
    };
    let deepspeed = |given: &Given| {
        given.words != ["False"] && given.name.starts_with("deepspeed")
            || given.name == "zero_stage"
            || given.name == "kill_switch_path"
    };
    let has_shape = arguments
        .iter()
        .any(|given| given.name == Dialect::Megatron.name("model.layers"));
    if !has_shape && known(Dialect::HuggingFace) > known(Dialect::Megatron) {
        Program::Trainer
    } else if arguments.iter().any(deepspeed) {
        Program::MegatronDeepSpeed
    } else {
        Program::MegatronLm
    }
}
