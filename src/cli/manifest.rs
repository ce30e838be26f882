//! `gptrain manifest`: makes or checks a manifest, shows its effective values, prints the schema.

use super::Json;
use super::shell::SETTINGS;
use base::output;
use base::{Count, Problems};
use clap::{Args, Subcommand};
use estimate::gptrain::dry_run;
use estimate::{hardware, words};
use manifest::{self, Family, Loaded, Manifest, Sound};
use serde_json::json;
use std::path::{Path, PathBuf};
use train::files;

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
    overwrite: super::Overwrite,
}

/// Family for which `manifest new` has recipes.
pub fn family(text: &str) -> Result<Family, String> {
    let all = [Family::Gpt2, Family::Llama];
    let found = all.into_iter().find(|family| family.name() == text);
    found.ok_or_else(|| "take gpt2 or llama; other families need a manifest".into())
}

fn new(args: New) -> anyhow::Result<()> {
    let stem = args.output.as_ref().and_then(|path| path.file_stem()?.to_str());
    let name = stem.unwrap_or("mine").to_string();
    // Paths in a manifest start at its folder; in another folder they are written as absolute paths.
    let beside = |path: &PathBuf| path.parent().is_none_or(|folder| folder == Path::new(""));
    let here = args.output.as_ref().is_none_or(beside);
    let placed = |path: PathBuf| if here { Ok(path) } else { std::path::absolute(path) };
    let data = args.data.map(|path| commands::data::prefix(&path)).map(placed).transpose()?;
    let tokenizer = args.tokenizer.map(placed).transpose()?;
    let params = args.params.map(|params| params as u64);
    let family = args.family;
    let text = commands::recipe::Recipe { name, data, tokenizer, params, family }.write()?;
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
    let checked = checked(&source);
    if let Err(error) = &checked
        && let Some(mistakes) = error.downcast_ref::<Problems>()
    {
        json.object(json!({ "ok": false, "mistakes": mistakes.list }));
    }
    let (loaded, files::Files { missing, notes, .. }) = checked?;
    let lines = || {
        base::say!("{}", summary(&loaded));
        notes.iter().for_each(|note| base::say!("  note       {note}"));
        for missing in &missing.list {
            base::say!("  missing    {}: {}", missing.place, missing.what);
        }
    };
    json.say(lines, object(&loaded, &missing, &notes));
    Ok(())
}

/// Loads a manifest and checks its files, of which some may be missing; every mistake is an error.
fn checked(source: &Source) -> anyhow::Result<(Loaded, files::Files)> {
    // A mistake in the manifest may cause the mistakes in its files: those are left out.
    let also = |m: &Manifest, sound: Sound| {
        let mut also = hardware(m);
        let files = files::check(m).unwrap_or_default();
        also.list.extend(files.missing.list);
        let caused = |place: &str| match place {
            "data.eod.token" => !sound(&["data.eod", "data.tokenizer"]),
            "checkpoint.also" => !sound(&["checkpoint.also"]),
            _ => !sound(&["model.vocab"]), // what is compared with it
        };
        also.list.extend(files.wrong.list.into_iter().filter(|wrong| !caused(&wrong.place)));
        also
    };
    let loaded = manifest::load_also(&source.manifest, &source.sets, &also)?;
    hardware(&loaded.manifest).or(())?;
    let mut files = files::check(&loaded.manifest)?;
    if files.wrong.list.is_empty() && files.missing.list.is_empty() {
        files = files::Files { notes: files.notes, ..files::samples(&loaded.manifest)? };
    }
    let wrong = std::mem::take(&mut files.wrong);
    wrong.or(())?;
    Ok((loaded, files))
}

/// Error if plan.hardware is not a row of the table.
fn hardware(m: &Manifest) -> Problems {
    let found = m.plan.hardware.as_deref().map(|name| hardware::find(name, "plan.hardware"));
    found.and_then(Result::err).unwrap_or_default()
}

/// Contents of `summary` as JSON.
fn object(loaded: &Loaded, missing: &Problems, of_files: &[String]) -> serde_json::Value {
    let m = &loaded.manifest;
    let notes = [&m.notes()[..], of_files].concat();
    let cannot_run = m.runnable().err().unwrap_or_default();
    json!({
        "ok": true, "name": m.name, "manifest": loaded.source, "mistakes": [],
        "missing": missing.list, "cannot_run": cannot_run.list, "notes": notes,
        "ranks": m.topology.ranks(), "steps": m.batch.ramp().steps(m.train.samples),
        "samples": m.train.samples,
        "tokens": m.train.samples.saturating_mul(m.model.seq_len as u64),
        "parameters": model::parameters(&m.model), "memory_bytes": dry_run::memory(m).0,
        "vocab_padded": m.model.vocab_padded, "run_folder": m.log.folder,
    })
}

fn summary(loaded: &Loaded) -> String {
    let m = &loaded.manifest;
    let model = &m.model;
    let mut lines = vec![
        format!("{}: ok", loaded.source.display()),
        format!(
            "  model     {}, hidden {}, {}, vocab {} (padded {}), seq_len {}",
            Count(model.layers as u64).with_noun("layer"),
            model.hidden,
            Count(model.heads as u64).with_noun("head"),
            Count(model.vocab as u64),
            Count(model.vocab_padded as u64),
            model.seq_len
        ),
        format!("  size      {}", size(m)),
        format!("  batch     {}", batch(m)),
        format!("  run       {}", length(m)),
    ];
    let topology = &m.topology;
    if topology.ranks() > 1 {
        lines.push(format!(
            "  topology  {} ranks: tensor {} × pipeline {} × data {}, ZeRO-{}",
            topology.ranks(),
            topology.tensor,
            topology.pipeline,
            topology.data,
            topology.zero
        ));
    }
    lines.extend(m.notes().iter().map(|note| format!("  note      {note}")));
    if let Err(problems) = m.runnable() {
        lines.push("  This version can plan this run, but not execute it:".to_string());
        lines.extend(problems.list.iter().map(|problem| format!("  - {}", problem.what)));
    }
    lines.join("\n")
}

/// Number of parameters, and memory of the fullest rank.
fn size(m: &Manifest) -> String {
    let parameters = Count(model::parameters(&m.model)).with_noun("parameter");
    let most = if m.topology.ranks() > 1 { " on the fullest rank" } else { "" };
    format!("{parameters}; {} of memory{most}", dry_run::memory(m))
}

fn batch(m: &Manifest) -> String {
    let text = format!("micro {}, global {}", m.batch.micro, m.batch.global);
    match m.batch.ramp_up {
        None => text,
        Some(ramp) => format!(
            "{text}, growing from {} by {} over {}",
            ramp.start,
            ramp.increment,
            Count(ramp.samples).with_noun("sample")
        ),
    }
}

fn length(m: &Manifest) -> String {
    let samples = m.train.samples;
    let tokens = samples.saturating_mul(m.model.seq_len as u64);
    let steps = m.batch.ramp().steps(samples);
    let [steps, samples, tokens] = [(steps, "step"), (samples, "sample"), (tokens, "token")]
        .map(|(count, noun)| Count(count).with_noun(noun));
    format!("{steps}, {samples}, {tokens}")
}
