//! `gptrain convert`: writes a checkpoint of any format that import reads in another format, in one pass.

use crate::completions::SETTINGS;
use crate::import::{ForeignChoices, Import, parse_format};
use crate::model_place::{OpenedSource, open_source};
use crate::options::{Choice, Json, Overwrite, one_of};
use anyhow::Context;
use base::{Bytes, Count, DType, Problems, number};
use checkpoint::atomic_folder::{self, FolderKind};
use exchange::foreign::{
    Choices, Format, MegatronExport, Needed, UniversalExport, Written, detect,
};
use exchange::hf;
use exchange::source::ONE_RANK;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};

/// Convert a checkpoint of any trainer to another format
///
/// IN is a checkpoint or a run of gptrain, a Hugging Face folder, or a checkpoint that `gptrain import`
/// reads. OUT has the bytes that an import and an export of it would have, without the run between them.
#[derive(clap::Args)]
pub struct Convert {
    /// Checkpoint to read, also s3://BUCKET/PREFIX
    #[arg(value_name = "IN")]
    from: PathBuf,
    /// Folder to write, complete or not at all
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Format of OUT
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Target,
    #[command(flatten)]
    options: TargetOptions,
    /// Set what IN does not say, or change it, as in an import
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    /// Format of IN [default: detected from its file names]
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    format: Option<Format>,
    #[command(flatten)]
    foreign: ForeignChoices,
}

/// Options of the written folder.
#[derive(clap::Args)]
pub struct TargetOptions {
    /// Tensor ranks of --to megatron
    #[arg(long, value_name = "RANKS", value_parser = number::whole::<usize>)]
    tensor: Option<usize>,
    /// Pipeline stages of --to megatron
    #[arg(long, value_name = "STAGES", value_parser = number::whole::<usize>)]
    pipeline: Option<usize>,
    /// Type of the weights of --to hf [default: that in which the run computes]; f32 writes the master
    /// weights
    #[arg(long, value_parser = one_of(&DTYPES))]
    dtype: Option<DType>,
    /// Largest size of a weights file of --to hf; larger weights are split into several
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    shard_size: Bytes,
    /// File tokenizer.json of --to hf, if the run's own is missing
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
    #[command(flatten)]
    pub json: Json,
}

/// Words of --dtype.
const DTYPES: [Choice<DType>; 3] = [
    Choice("f32|fp32", DType::F32, ""),
    Choice("bf16", DType::BF16, ""),
    Choice("f16|fp16", DType::F16, ""),
];

/// Format that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// Hugging Face: config.json and safetensors
    Hf,
    /// Megatron-LM (--ckpt-format torch), with the optimizer's states
    Megatron,
    /// Universal checkpoint of Megatron-DeepSpeed (--universal-checkpoint), with the optimizer's states
    DeepspeedUniversal,
    /// Run of gptrain, as `gptrain import` makes
    Gptrain,
}

impl Convert {
    pub fn run(self) -> anyhow::Result<()> {
        self.options.ensure_apply(self.to)?;
        if self.to == Target::Gptrain {
            return self.import();
        }
        let mut sets = self.set.clone();
        if self.has_a_grid() {
            sets.splice(0..0, ONE_RANK.map(String::from));
        }
        let choices = Choices {
            replicated: self.foreign.replicated.unwrap_or_default(),
            mask_padding: self.foreign.mask_padding,
            names: self.foreign.names.clone(),
            sets,
            // A Hugging Face folder has the model alone.
            needed: if self.to == Target::Hf { Needed::Tensors } else { Needed::All },
            format: self.format,
            ..Choices::default()
        };
        let mut opened = open_source(&self.from, &choices)?;
        self.ensure_choices_apply(opened.source.facts().format)?;
        write(&mut opened, &self.output, self.to, &self.options)
    }

    /// Whether IN is cut for a grid of ranks, which OUT does not depend on.
    fn has_a_grid(&self) -> bool {
        let format = self.format.or_else(|| detect(&self.from).ok());
        !matches!(format, None | Some(Format::Gptrain | Format::HuggingFace | Format::HfTrainer))
    }

    fn import(self) -> anyhow::Result<()> {
        if checkpoint::find(&self.from).is_ok_and(|found| found.join("index.json").exists()) {
            return Err(Problems::one(
                self.from.display().to_string(),
                "is a checkpoint of gptrain already",
                "name another format with --to, or copy the folder",
            )
            .into());
        }
        let Convert { from, output, options, set, format, foreign, .. } = self;
        Import::new_run(from, output, options.overwrite, set, format, foreign, options.json).run()
    }

    /// Fails on choices of an import that the format of IN does not have.
    fn ensure_choices_apply(&self, format: Format) -> Result<(), Problems> {
        let mut problems = Problems::default();
        if format == Format::Gptrain && !self.set.is_empty() {
            problems.add(
                "--set",
                "says what other trainers' files do not, and IN is a checkpoint of gptrain",
                "leave it out",
            );
        }
        self.foreign.refuse(format, &mut problems);
        problems.or(())
    }
}

impl TargetOptions {
    /// Tensor ranks and stages.
    fn grid(&self) -> [usize; 2] {
        [self.tensor.unwrap_or(1), self.pipeline.unwrap_or(1)]
    }

    /// Fails on options of another format than the one that is written.
    pub fn ensure_apply(&self, target: Target) -> Result<(), Problems> {
        let mut problems = Problems::default();
        if target != Target::Megatron && self.grid() != [1, 1] {
            problems.add(
                "--tensor and --pipeline",
                "cut a folder of Megatron-LM; other formats have whole parameters",
                "add --to megatron, or leave them out",
            );
        }
        if target != Target::Hf && (self.dtype.is_some() || self.tokenizer.is_some()) {
            problems.add(
                "--dtype and --tokenizer",
                "are for a Hugging Face folder",
                "add --to hf, or leave them out",
            );
        }
        problems.or(())
    }
}

/// Writes a source in the format of `target`, says the size before and the result after.
pub fn write(
    opened: &mut OpenedSource,
    to: &Path,
    target: Target,
    options: &TargetOptions,
) -> anyhow::Result<()> {
    let name = opened.name();
    let source = &mut opened.source;
    let existing = options.overwrite.existing();
    atomic_folder::check_vacant(to, FolderKind::Model, existing)?;
    let mut notes = source.facts().notes.clone();
    let parameters = Count(model::parameters(&source.manifest().model));
    let announce = |bytes: Bytes| {
        options
            .json
            .lines(|| base::say!("{name}: {parameters} parameters, {bytes} to write"));
        ensure_space(to, bytes)
    };
    let mut object = match target {
        Target::Gptrain => {
            return Err(Problems::one(
                name,
                "is exported to another program, and gptrain is not another",
                "copy the folder, or name hf, megatron or deepspeed-universal",
            )
            .into());
        }
        Target::Hf => {
            let export = hf::Export::new(
                source,
                hf::Options {
                    dtype: options.dtype,
                    shard: options.shard_size,
                    tokenizer: options.tokenizer.clone(),
                    existing,
                },
            )?;
            announce(export.bytes())?;
            let done = export.write(to)?;
            options.json.lines(|| say_hugging_face(&done, to, &name));
            describe_hugging_face(&done)
        }
        Target::Megatron => {
            let export = MegatronExport::new(source, options.grid())?;
            announce(export.bytes())?;
            let done = export.write(to, existing)?;
            let [tensor, pipeline] = options.grid();
            let cut = format!(", for tensor {tensor} × pipeline {pipeline}");
            options.json.lines(|| say_written(&done, &cut, to, &name));
            notes.extend(done.notes.clone());
            describe(&done)
        }
        Target::DeepspeedUniversal => {
            let export = UniversalExport::new(source)?;
            announce(export.bytes())?;
            let done = export.write(to, existing)?;
            options.json.lines(|| say_written(&done, "", to, &name));
            notes.extend(done.notes.clone());
            describe(&done)
        }
    };
    notes.extend(opened.source.remarks());
    options.json.lines(|| {
        for note in &notes {
            base::say!("note: {note}");
        }
        say_next(target, to);
    });
    object["folder"] = json!(to);
    object["from"] = json!(name);
    object["tensor"] = json!(options.grid()[0]);
    object["pipeline"] = json!(options.grid()[1]);
    object["notes"] = json!(notes);
    options.json.object(object);
    Ok(())
}

/// Fails if the disk of a folder does not have so much space.
fn ensure_space(to: &Path, needed: Bytes) -> anyhow::Result<()> {
    let to = std::path::absolute(to)?;
    let Some(folder) = to.ancestors().find(|folder| folder.is_dir()) else { return Ok(()) };
    let free = checkpoint::free_space(folder)?;
    if needed.0 < free.0 {
        return Ok(());
    }
    Err(io::Error::from(Errno::NOSPC)).with_context(|| {
        format!("no space left for {}: it needs {needed}, {free} are free", to.display())
    })
}

fn say_hugging_face(done: &hf::Exported, to: &Path, from: &str) {
    let hf::Exported { family, dtype, bytes, files, tokenizer } = done;
    let family = family.name();
    let dtype = checkpoint::precision(*dtype);
    let files = if *files == 1 { "one file".into() } else { format!("{files} files") };
    base::say!("wrote {bytes} of {family} in {dtype}, {files}, to {}, from {from}", to.display());
    if !tokenizer {
        base::say!(
            "without a tokenizer: the run's manifest names none, or its file no longer exists"
        );
    }
}

fn describe_hugging_face(done: &hf::Exported) -> Value {
    json!({
        "family": done.family.name(), "dtype": checkpoint::precision(done.dtype),
        "files": done.files, "bytes": done.bytes.0, "tokenizer": done.tokenizer,
    })
}

fn say_written(done: &Written, cut: &str, to: &Path, from: &str) {
    let Written { step, bytes, states, padding, .. } = done;
    let what = if *states { "weights and AdamW's states" } else { "weights" };
    base::say!("wrote {bytes} of step {step}, {what}{cut} to {}, from {from}", to.display());
    if *padding > 0 {
        base::say!(
            "note: {padding} rows of zeros pad the vocabulary, and Megatron-LM's softmax counts them"
        );
    }
}

fn describe(done: &Written) -> Value {
    let Written { step, files, bytes, states, padding, .. } = done;
    json!({
        "step": step, "files": files, "bytes": bytes.0, "states": states, "padding": padding,
    })
}

fn say_next(target: Target, to: &Path) {
    let options = match target {
        Target::Megatron => "--ckpt-format torch",
        Target::DeepspeedUniversal => "--universal-checkpoint",
        Target::Hf | Target::Gptrain => return,
    };
    base::say!("next: --load {} {options}, with the model's own arguments", to.display());
}
