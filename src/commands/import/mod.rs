//! `gptrain import`: starts a run from Hugging Face weights, from another trainer's checkpoint, or from its
//! launch script.

mod divergence;
pub mod foreign;
pub mod hugging_face;
pub mod script;

use crate::completions::SETTINGS;
use crate::model_place;
use crate::options::{Json, Overwrite};
use base::Problems;
use exchange::foreign::{Choices, Format, Replicated, detect};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Start a run from another trainer's checkpoint or script, or from a Hugging Face folder
///
/// DIR is a checkpoint of Megatron-DeepSpeed (ZeRO-1, ZeRO-3, universal), Megatron-LM, Megatron-Core
/// (torch_dist), torchtitan, OLMo-core or Hugging Face's Trainer, whose optimizer's states are kept, or a
/// Hugging Face folder: GPT-2, BLOOM, Llama, Mistral, Qwen2, Qwen3. With --names, any distributed
/// checkpoint of PyTorch.
#[derive(clap::Args)]
pub struct Import {
    /// The folder to import; with --hf, the manifest of the run to import into: without it and
    /// without --output, its `model` section is printed
    #[arg(value_name = "DIR")]
    path: Option<PathBuf>,
    /// A Hugging Face folder: config.json and safetensors
    #[arg(long, value_name = "DIR")]
    hf: Option<PathBuf>,
    /// A launch script, or the text of a command line: prints the manifest that it becomes, or writes
    /// it to the file of --output
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["path", "hf", "reference", "format"])]
    args: Option<String>,
    #[command(flatten)]
    script: script::ScriptArgs,
    /// Folder of the new run; its manifest is made from the checkpoint's settings. With --args, the
    /// manifest's file
    #[arg(short, long, value_name = "RUN")]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Change a setting of the manifest, including the one that --output makes
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    /// Format of the folder [default: detected from its file names]
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    format: Option<Format>,
    /// Print the contents of the folder and the resulting settings; write nothing
    #[arg(long)]
    dry: bool,
    #[command(flatten)]
    foreign: ForeignChoices,
    /// Compare the first logits with those in this file: safetensors with input_ids [samples,
    /// tokens] and logits [samples, tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

/// Choices of other trainers' checkpoints.
#[derive(clap::Args)]
pub struct ForeignChoices {
    /// Value for norms and biases whose copies on tensor ranks differ: their mean (the default), or
    /// the first rank's
    #[arg(long, value_name = "mean|first", value_parser = parse_replicated)]
    pub replicated: Option<Replicated>,
    /// Mask the rows that pad the vocabulary, which Megatron trains
    #[arg(long)]
    pub mask_padding: bool,
    /// File that says what the tensors of an unknown program's distributed checkpoint are: lines
    /// `NAME -> PARAMETER`
    #[arg(long, value_name = "FILE")]
    pub names: Option<PathBuf>,
}

impl ForeignChoices {
    /// Adds a problem if one is made that a folder of the format does not have.
    pub fn refuse(&self, format: Format, problems: &mut Problems) {
        let name = format.name();
        if self.names.is_some() && format != Format::PytorchDcp {
            problems.add(
                "--names",
                format!("is for distributed checkpoints of PyTorch, and this is one of {name}"),
                "leave it out",
            );
        }
        if !matches!(format, Format::HuggingFace | Format::Gptrain) {
            return;
        }
        if self.replicated.is_some() || self.mask_padding {
            problems.add(
                "--replicated and --mask-padding",
                format!("are for Megatron's checkpoints, and this is one of {name}"),
                "leave them out",
            );
        }
    }
}

impl Import {
    /// Import of `path` into the new run `output`.
    pub fn new_run(
        path: PathBuf,
        output: PathBuf,
        overwrite: Overwrite,
        set: Vec<String>,
        format: Option<Format>,
        foreign: ForeignChoices,
        json: Json,
    ) -> Import {
        Import {
            path: Some(path),
            hf: None,
            args: None,
            script: script::ScriptArgs::default(),
            output: Some(output),
            overwrite,
            set,
            format,
            dry: false,
            foreign,
            reference: None,
            json,
        }
    }

    pub fn run(self) -> anyhow::Result<()> {
        if let Some(script) = &self.args {
            return self.import_script(script);
        }
        if let Some(from) = self.hf.as_ref().or(self.path.as_ref()) {
            model_place::ensure_fetched(from)?;
            model_place::ensure_whole_model(from)?;
        }
        let (hf, into) = match (&self.hf, &self.path) {
            (Some(hf), into) => (hf.as_path(), into.as_deref()),
            (None, None) => {
                return Err(Problems::one(
                    "import",
                    "no folder is named",
                    "give a checkpoint's folder: gptrain import DIR --output RUN",
                )
                .into());
            }
            (None, Some(path)) => match self.format.map_or_else(|| detect(path), Ok) {
                Ok(Format::HuggingFace) => (path.as_path(), None),
                Ok(other) => return self.import_foreign(path, other),
                Err(error) if self.dry && path.is_dir() => return self.say_unknown(path, error),
                Err(error) => return Err(error),
            },
        };
        self.import_hugging_face(hf, into)
    }

    /// Imports a Hugging Face folder into a new run or into that of a manifest.
    fn import_hugging_face(&self, hf: &Path, into: Option<&Path>) -> anyhow::Result<()> {
        let mut problems = Problems::default();
        if self.output.is_some() && into.is_some() {
            problems.add(
                "--output",
                "makes a manifest, but one is given too",
                "leave one of them out",
            );
        }
        if !self.set.is_empty() && into.is_none() && self.output.is_none() {
            problems.add(
                "--set",
                "changes a manifest, but neither a manifest nor --output is given",
                "give one of them",
            );
        }
        self.foreign.refuse(Format::HuggingFace, &mut problems);
        problems.or(())?;
        if self.dry {
            let (section, refused) =
                hugging_face::dry_run(hf, into, &self.choices(), self.overwrite.existing())?;
            self.json.say(
                || {
                    if let Some(section) = &section {
                        base::say!("{}", section.trim_end());
                    }
                    say_refused(&refused);
                },
                json!({ "manifest_section": section, "refused": lines(&refused) }),
            );
            return Ok(());
        }
        let reference = self.reference.as_deref();
        let (done, next) = match (self.output.as_ref(), into) {
            (Some(output), _) => {
                let existing = self.overwrite.existing();
                let done = hugging_face::import_run(hf, output, &self.set, existing, reference)?;
                (done, output.join(manifest::IN_FOLDER))
            }
            (None, Some(path)) => {
                let loaded = manifest::load(path, &self.set)?;
                (hugging_face::import_into(hf, &loaded, reference)?, path.to_path_buf())
            }
            (None, None) => {
                let section = hugging_face::model_section(hf)?;
                self.json.say(
                    || base::say!("{}", section.trim_end()),
                    json!({ "manifest_section": section }),
                );
                return Ok(());
            }
        };
        let output = self.output.as_deref();
        self.json
            .say(|| done.say(&next, output), done.object(&next));
        Ok(())
    }

    fn choices(&self) -> Choices {
        Choices {
            replicated: self.foreign.replicated.unwrap_or_default(),
            mask_padding: self.foreign.mask_padding,
            names: self.foreign.names.clone(),
            sets: self.set.clone(),
            run: self.output.clone(),
            dry: self.dry,
            ..Choices::default()
        }
    }

    /// Says what an import of a folder refuses that no format is known for.
    fn say_unknown(&self, path: &Path, error: anyhow::Error) -> anyhow::Result<()> {
        let refused = error.downcast::<Problems>()?;
        self.json.say(
            || {
                base::say!("{}: not a known checkpoint", path.display());
                say_refused(&refused);
            },
            json!({ "format": null, "refused": lines(&refused) }),
        );
        Ok(())
    }

    /// Imports a checkpoint of another trainer into a new run, or shows what it contains.
    fn import_foreign(&self, from: &Path, format: Format) -> anyhow::Result<()> {
        if self.output.is_none() && !self.dry {
            return Err(Problems::one(
                from.display().to_string(),
                format!(
                    "is a checkpoint of {}, but no folder for the new run is given",
                    format.name()
                ),
                "add --output RUN, or show its contents with --dry",
            )
            .into());
        }
        let mut problems = Problems::default();
        self.foreign.refuse(format, &mut problems);
        problems.or(())?;
        let choices = self.choices();
        let existing = self.overwrite.existing();
        let imported = foreign::import_run(from, format, &choices, existing)?;
        let output = self.output.as_deref().filter(|_| !self.dry);
        self.json
            .say(|| imported.say(output), imported.object(output));
        Ok(())
    }
}

/// Prints what an import would refuse.
fn say_refused(refused: &Problems) {
    for line in lines(refused) {
        base::say!("would be refused: {line}");
    }
}

/// Problems as lines.
fn lines(refused: &Problems) -> Vec<String> {
    let mut lines = Vec::new();
    for problem in &refused.list {
        let remedy = Some(&problem.remedy).filter(|remedy| !remedy.is_empty());
        let remedy = remedy.map_or(String::new(), |remedy| format!(" → {remedy}"));
        lines.push(format!("{}: {}{remedy}", problem.place, problem.what));
    }
    lines
}

pub fn parse_format(word: &str) -> Result<Format, String> {
    let known: Vec<_> = Format::ALL
        .into_iter()
        .filter(|(format, ..)| *format != Format::Gptrain)
        .collect();
    let words: Vec<&str> = known.iter().map(|(_, word, _)| *word).collect();
    let found = known.iter().find(|(_, known, _)| *known == word);
    found
        .map(|(format, ..)| *format)
        .ok_or_else(|| format!("is not one of {}", words.join(", ")))
}

fn parse_replicated(word: &str) -> Result<Replicated, String> {
    match word {
        "mean" => Ok(Replicated::Mean),
        "first" => Ok(Replicated::First),
        _ => Err("is not mean or first".to_string()),
    }
}
