//! `gptrain manifest`: makes or checks a manifest, shows its effective values, prints the schema.

mod check;
pub mod new;

use crate::completions::SETTINGS;
use crate::options::Json;
use base::Problems;
use base::output;
use check::CheckedManifest;
use clap::{Args, Subcommand};
use estimate::words;
use manifest::{self, Family};
use new::NewManifest;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a first manifest, with comments, from a dataset, a tokenizer and a model size.
    New(New),
    /// Check a manifest: print every mistake with its line and a remedy, or "ok" and a summary.
    Check(CheckArgs),
    /// Print the effective manifest: every key with its value, including defaults.
    Show(Source),
    /// Print the JSON Schema of manifests, for completion and validation in an editor.
    Schema,
}

/// Manifest, and the settings changed on the command line.
#[derive(Debug, Args)]
pub struct Source {
    /// Manifest.
    pub manifest: PathBuf,
    /// Value that replaces the file's, such as --set lr.peak=3e-4; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    #[arg(value_parser = SETTINGS, hide_possible_values = true)]
    pub sets: Vec<String>,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct New {
    /// PREFIX of the dataset (`gptrain data build`).
    #[arg(long, value_name = "PREFIX")]
    data: Option<PathBuf>,
    /// Tokenizer of the dataset [default: the recorded one, else tokenizer.json beside the dataset].
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// Approximate number of parameters, as in 124M or 7B [default: a twentieth of the dataset's
    /// tokens].
    #[arg(long, value_parser = words::tokens)]
    params: Option<f64>,
    /// Family of the model: gpt2 or llama [default: that of the published model of this size].
    #[arg(long, value_parser = family)]
    family: Option<Family>,
    /// Write the manifest to this file instead of printing it.
    #[arg(short, long)]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: crate::options::Overwrite,
}

/// Family for which `manifest new` has recipes.
pub fn family(text: &str) -> Result<Family, String> {
    let all = [Family::Gpt2, Family::Llama];
    let found = all.into_iter().find(|family| family.name() == text);
    found.ok_or_else(|| "take gpt2 or llama; other families need a manifest".into())
}

fn new(args: New) -> anyhow::Result<()> {
    let stem = args
        .output
        .as_ref()
        .and_then(|path| path.file_stem()?.to_str());
    let name = stem.unwrap_or("mine").to_string();
    // Paths in a manifest start at its folder; in another folder they are written as absolute paths.
    let beside = |path: &PathBuf| path.parent().is_none_or(|folder| folder == Path::new(""));
    let here = args.output.as_ref().is_none_or(beside);
    let placed = |path: PathBuf| if here { Ok(path) } else { std::path::absolute(path) };
    let data = args
        .data
        .map(|path| crate::data::dataset::prefix(&path))
        .map(placed)
        .transpose()?;
    let tokenizer = args.tokenizer.map(placed).transpose()?;
    let params = args.params.map(|params| params as u64);
    let family = args.family;
    let text = NewManifest { name, data, tokenizer, params, family }.text()?;
    match args.output {
        Some(path) => {
            output::write(&path, args.overwrite.existing(), text.as_bytes())?;
            base::say!("{}: gptrain run {}", path.display(), path.display());
        }
        None => base::say!("{}", text.trim_end()),
    }
    Ok(())
}

pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::New(args) => new(args)?,
        Command::Check(args) => check(args)?,
        Command::Show(source) => {
            let loaded = manifest::load(&source.manifest, &source.sets)?;
            base::say!("{}", loaded.effective.trim_end());
        }
        Command::Schema => base::say!("{:#}", manifest::schema()),
    }
    Ok(())
}

fn check(CheckArgs { source, json }: CheckArgs) -> anyhow::Result<()> {
    let checked = CheckedManifest::load(&source.manifest, &source.sets);
    if let Err(error) = &checked
        && let Some(mistakes) = error.downcast_ref::<Problems>()
    {
        json.object(json!({ "ok": false, "mistakes": mistakes.list }));
    }
    let checked = checked?;
    json.say(|| checked.say(), checked.object());
    Ok(())
}
