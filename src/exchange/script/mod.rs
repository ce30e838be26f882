//! Launch scripts and command lines of other trainers, as the manifest of a new run.
//!
//! | file | contents |
//! |---|---|
//! | `shell` | follows the script's variables to its commands; nothing is executed |
//! | `launch` | the command that trains: its arguments, and the ranks that its launcher starts |
//! | `slurm` | options of Slurm |
//! | `megatron` | arguments of Megatron-LM and Megatron-DeepSpeed |
//! | `deepspeed` | DeepSpeed's JSON as arguments |
//! | `printed` | arguments that Megatron prints in its log |
//! | `trainer` | arguments of Hugging Face's Trainer |
//! | `listing` | what becomes of each argument |
//!
//! The names are those of `manifest::dialects`, and arguments become settings as those of a checkpoint do.
//!
//! Does not know how a manifest is written to disk.

mod deepspeed;
mod launch;
mod listing;
mod megatron;
mod printed;
mod shell;
mod slurm;
mod trainer;

pub use listing::{ArgumentRow, Outcome};
pub use printed::read_log;
pub use slurm::Slurm;

use crate::foreign::{Settings, quoted};
use crate::source::new_manifest;
use base::Problems;
use launch::{Given, Launch, Program};
use manifest::Loaded;
use manifest::dialects::Dialect;
use serde_json::{Map, Value as Json};
use shell::Shell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Choices of the user for a script.
#[derive(Clone, Debug, Default)]
pub struct ScriptChoices {
    /// Values of variables that the script does not set: `NAME=VALUE`.
    pub variables: Vec<String>,
    /// DeepSpeed's JSON, in place of the file that the arguments name.
    pub deepspeed: Option<PathBuf>,
    /// `KEY=VALUE` of settings in place of those that are found.
    pub sets: Vec<String>,
    /// Folder from which relative paths of the manifest start.
    pub folder: PathBuf,
    /// `plan.hardware` of Slurm's options, if the planner has such a machine.
    pub hardware: Option<fn(&Slurm) -> Option<String>>,
}

/// Manifest that a script becomes.
#[derive(Debug)]
pub struct ScriptRun {
    /// "Megatron-DeepSpeed".
    pub program: &'static str,
    pub text: String,
    pub loaded: Loaded,
    /// Row of each argument.
    pub arguments: Vec<ArgumentRow>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Arguments of `gptrain job`, besides the manifest; None without options of Slurm.
    pub job: Option<Vec<String>>,
}

/// Script with its command found.
struct Script<'c> {
    place: String,
    text: String,
    slurm: Slurm,
    shell: Shell,
    launch: Launch,
    choices: &'c ScriptChoices,
}

/// Settings that a program's arguments become.
#[derive(Default)]
struct Read {
    settings: Settings,
    notes: Vec<String>,
    /// Arguments that were read without a setting of their own.
    read: BTreeSet<String>,
    /// DeepSpeed's JSON, flattened, and the arguments that it sets.
    json: BTreeMap<String, Json>,
    more: Vec<Given>,
}

/// Reads a script: a file, or the text of a command line.
pub fn read(from: &str, choices: &ScriptChoices) -> anyhow::Result<ScriptRun> {
    let (place, text, folder) = open(from)?;
    let slurm = Slurm::read(&text);
    let mut variables = slurm.variables();
    for pair in &choices.variables {
        let Some((name, value)) = pair.split_once('=') else {
            let what = format!("{pair:?} has no value");
            return Err(Problems::one("--var", what, "write NAME=VALUE").into());
        };
        variables.insert(name.to_string(), value.to_string());
    }
    let mut shell = Shell::new(place.clone(), folder, variables);
    shell.read(&text)?;
    let launch = launch::find(&shell, &place)?;
    let script = Script { place, text, slurm, shell, launch, choices };
    script.run()
}

/// Name in messages, text and folder of a script.
fn open(from: &str) -> anyhow::Result<(String, String, PathBuf)> {
    let path = Path::new(from);
    if from.trim().contains(char::is_whitespace) && !path.exists() {
        return Ok(("--args".to_string(), from.to_string(), PathBuf::from(".")));
    }
    base::input::is_there(path)?;
    let failed = |what: String| Problems::one(from, what, "give a shell script, as text");
    let bytes =
        base::input::read(path, base::input::SMALL).map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("is not text".to_string()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    Ok((from.to_string(), text, folder.to_path_buf()))
}

impl Script<'_> {
    fn run(self) -> anyhow::Result<ScriptRun> {
        let read = match self.launch.program {
            Program::Trainer => trainer::settings(&self),
            _ => megatron::settings(&self),
        };
        let read = read.map_err(|error| self.explain(error))?;
        let mut settings = Settings::default();
        settings.set("name", quoted(&self.name()), "");
        settings.0.extend(read.settings.0.iter().cloned());
        settings.set("plan.framework", self.launch.framework(), "for `gptrain estimate`");
        let hardware = self.choices.hardware.and_then(|find| find(&self.slurm));
        if let Some(hardware) = &hardware {
            settings.set("plan.hardware", hardware, "of the job's options, for `gptrain estimate`");
        }
        let program = self.launch.program.name();
        let text = format!(
            "# Made by `gptrain import --args` from {}, a script of {program}.\n# Each line names the \
             argument it came from. The paths in data are those of the script, without their files.\n{}",
            self.place.replace(['\n', '\r'], " "),
            settings.yaml(),
        );
        let sets = &self.choices.sets;
        let (text, loaded) = new_manifest(&text, &self.place, &self.choices.folder, sets)?;
        let arguments = listing::rows(&self, &read, &loaded);
        let mut notes = self.shell.notes.clone();
        let plain = |note: String| note.strip_prefix("args.").map_or(note.clone(), Into::into);
        notes.extend(read.notes.into_iter().map(plain));
        notes.extend(self.launch.notes.iter().cloned());
        Ok(ScriptRun { program, text, loaded, arguments, notes, job: self.slurm.job() })
    }

    /// Name of the run: that of the job, or of the script.
    fn name(&self) -> String {
        let stem = Path::new(&self.place).file_stem();
        let stem = stem.and_then(|stem| stem.to_str()).unwrap_or_default();
        let name = self.slurm.get("job-name").unwrap_or(stem);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name: String = name.chars().filter(|c| plain(*c)).take(200).collect();
        let name = name.trim_start_matches(['-', '.']);
        if name.is_empty() { "imported".to_string() } else { name.to_string() }
    }

    /// Line of the script on which an argument is first written.
    fn line(&self, flag: &str) -> Option<usize> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let has = |line: &str| {
            line.match_indices(flag).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                let after = line[at + flag.len()..].chars().next();
                !before.is_some_and(is_word) && !after.is_some_and(is_word)
            })
        };
        let code = |line: &str| !line.trim_start().starts_with('#') && has(line);
        self.text.lines().position(code).map(|line| line + 1)
    }

    /// Place of an argument: "train.slurm:84".
    fn place_of(&self, flag: &str) -> String {
        match self.line(flag) {
            Some(line) => format!("{}:{line}", self.place),
            None => self.place.clone(),
        }
    }

    /// Problems of a checkpoint's arguments in the words of a script.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let mut problems = match error.downcast::<Problems>() {
            Ok(problems) => problems,
            Err(error) => return error,
        };
        for problem in &mut problems.list {
            let first = problem
                .what
                .split([' ', '.', ','])
                .find(|word| *word != "args");
            let name = first.unwrap_or_default().to_string();
            let given = self
                .launch
                .arguments
                .iter()
                .find(|given| given.name == name);
            if let Some(given) = given
                && problem.place == self.place
            {
                problem.place = self.place_of(&given.flag);
                let bare = problem.what.strip_prefix("args.").unwrap_or(&problem.what);
                problem.what = bare.replacen(&name, &given.flag, 1);
            }
            if problem.remedy.ends_with("copied whole?") {
                problem.remedy = "correct the script".to_string();
            }
        }
        problems.into()
    }

    /// Arguments as JSON by their names, those of `more` in place of the command's. Fails if one that
    /// matters has no value, or needs a variable without one, and `--set` does not give its setting.
    fn values(
        &self,
        dialect: Dialect,
        more: &[Given],
        problems: &mut Problems,
    ) -> Map<String, Json> {
        let mut values = Map::new();
        for given in self.launch.arguments.iter().chain(more) {
            let missing = given.missing(dialect);
            let lacks = given.lacks(dialect);
            let key = given.setting(dialect).unwrap_or("KEY");
            if let Some(asked) = self.asked(key)
                && (missing.is_some() || lacks.is_some())
            {
                let words = asked.split_whitespace().map(str::to_string).collect();
                let asked = Given { words, ..given.clone() };
                values.insert(given.name.clone(), asked.json(dialect));
                continue;
            }
            if let Some(wanted) = lacks {
                problems.add(
                    self.place_of(&given.flag),
                    format!("{} has no value: it needs {wanted}", given.flag),
                    match key {
                        "data.valid" => {
                            "write it in the script, or leave the argument out".to_string()
                        }
                        _ => format!(
                            "write it in the script, or give the setting: --set {key}=VALUE"
                        ),
                    },
                );
                continue;
            }
            if let Some(missing) = missing {
                problems.add(
                    self.place_of(&given.flag),
                    format!("{} needs {missing}, which the script does not set", given.flag),
                    match missing.strip_prefix("$(") {
                        Some(_) => format!("give the setting: --set {key}=VALUE"),
                        None => format!(
                            "give its value: --var {}=VALUE",
                            missing.trim_start_matches('$')
                        ),
                    },
                );
                continue;
            }
            values.insert(given.name.clone(), given.json(dialect));
        }
        values
    }

    /// Value that `--set` gives a setting.
    fn asked(&self, key: &str) -> Option<&str> {
        crate::foreign::asked(&self.choices.sets, key)
    }

    /// Number of ranks, or a problem.
    fn ranks(&self, problems: &mut Problems) -> Option<usize> {
        let printed = self
            .launch
            .get("world_size")
            .and_then(|given| given.text().parse().ok());
        let ranks = printed
            .or_else(|| self.launch.ranks(&self.slurm))
            .or_else(|| {
                ["WORLD_SIZE", "NUM_GPUS", "N_GPUS"]
                    .into_iter()
                    .find_map(|name| self.shell.value(name)?.parse().ok())
            });
        if ranks.is_none() && self.asked("topology.data").is_none() {
            problems.add(
                self.place.clone(),
                "does not say how many ranks it starts",
                "give the number of GPUs: --var WORLD_SIZE=512, or --set topology.data=N",
            );
        }
        ranks
    }

    /// Replicas of `replica` ranks each.
    fn replicas(&self, replica: usize, problems: &mut Problems) -> Option<usize> {
        if let Some(asked) = self.asked("topology.data") {
            return asked.parse().ok();
        }
        let ranks = self.ranks(problems)?;
        if replica == 0 || !ranks.is_multiple_of(replica) {
            problems.add(
                self.place.clone(),
                format!("starts {ranks} ranks, which tensor × pipeline {replica} does not divide"),
                "correct the script, or set the replicas: --set topology.data=N",
            );
            return None;
        }
        Some(ranks / replica)
    }
}

/// First variable or command in a text that has no value: `$NAME` or `$(COMMAND)`.
fn missing_variable(text: &str) -> Option<String> {
    let at = text.find("${").into_iter().chain(text.find("$(")).min()?;
    let rest = &text[at + 2..];
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '@';
    let mut words = rest.split(|c: char| !is_name(c));
    if text[at..].starts_with("${") {
        return words.next().map(|name| format!("${name}"));
    }
    if !rest.starts_with('(') {
        return Some(format!("$({})", rest.split(')').next().unwrap_or(rest)));
    }
    let name = words.find(|word| word.starts_with(|c: char| !c.is_ascii_digit()));
    missing_variable(rest).or_else(|| Some(format!("${}", name?)))
}
