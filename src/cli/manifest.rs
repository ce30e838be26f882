//! `gptrain manifest`: make a manifest, check a manifest, show its effective values, print the schema for editors.

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
    /// Write a first manifest, commented, from a dataset, a tokenizer and a wanted size.
    New(New),
    /// Check a manifest: every mistake with its line and a remedy, or "ok" and a summary.
    Check(CheckArgs),
    /// Print the effective manifest: every key with its value, defaults included.
    Show(Source),
    /// Print the JSON Schema of manifests, for completion and checks in an editor.
    Schema,
}

/// A manifest and the settings changed on the command line.
#[derive(Debug, Args)]
pub struct Source {
    /// The manifest.
    pub manifest: PathBuf,
    /// A value in place of the file's, such as --set lr.peak=3e-4; may be repeated.
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
    /// Its tokenizer; unless given, the recorded one, or without a record tokenizer.json beside it.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// About so many parameters, as in 124M or 7B; unless given, a twentieth of the dataset's tokens.
    #[arg(long, value_parser = words::tokens)]
    params: Option<f64>,
    /// Family of the model: gpt2 or llama; unless given, that of the published model of this size.
    #[arg(long, value_parser = family)]
    family: Option<Family>,
    /// Write this file; unless given, the manifest is printed.
    #[arg(short, long)]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: super::Overwrite,
}

/// A family of models that can be drawn up.
pub fn family(text: &str) -> Result<Family, String> {
    let all = [Family::Gpt2, Family::Llama];
    let found = all.into_iter().find(|family| family.name() == text);
    found.ok_or_else(|| "take gpt2 or llama; other families need a manifest".into())
}

fn new(args: New) -> anyhow::Result<()> {
    let stem = args.output.as_ref().and_then(|path| path.file_stem()?.to_str());
    let name = stem.unwrap_or("mine").to_string();
    // A manifest's paths begin at its folder; where that is another one, they are written whole.
    let beside = |path: &PathBuf| path.parent().is_none_or(|folder| folder == Path::new(""));
    let here = args.output.as_ref().is_none_or(beside);
    let placed = |path: PathBuf| if here { Ok(path) } else { std::path::absolute(path) };
    let data = args.data.map(|path| super::data::prefix(&path)).map(placed).transpose()?;
    let tokenizer = args.tokenizer.map(placed).transpose()?;
    let params = args.params.map(|params| params as u64);
    let family = args.family;
    let text = train::recipe::Recipe { name, data, tokenizer, params, family }.write()?;
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
            base::say!("  not here   {}: {}", missing.place, missing.what);
        }
    };
    json.say(lines, object(&loaded, &missing, &notes));
    Ok(())
}

/// The manifest, and its files, of which some may be missing; every mistake is an error.
fn checked(source: &Source) -> anyhow::Result<(Loaded, files::Files)> {
    // Of a manifest with mistakes, what is wrong with its files may be their doing.
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

/// A plan.hardware that is no row of the table.
fn hardware(m: &Manifest) -> Problems {
    let found = m.plan.hardware.as_deref().map(|name| hardware::find(name, "plan.hardware"));
    found.and_then(Result::err).unwrap_or_default()
}

/// What `summary` says, for scripts.
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
            Count(model.layers as u64).of("layer"),
            model.hidden,
            Count(model.heads as u64).of("head"),
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
        lines.push("  This version can plan it, but not run it:".to_string());
        lines.extend(problems.list.iter().map(|problem| format!("  - {}", problem.what)));
    }
    lines.join("\n")
}

/// Parameters, and the memory of the fullest rank.
fn size(m: &Manifest) -> String {
    let parameters = Count(model::parameters(&m.model)).of("parameter");
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
            Count(ramp.samples).of("sample")
        ),
    }
}

fn length(m: &Manifest) -> String {
    let samples = m.train.samples;
    let tokens = samples.saturating_mul(m.model.seq_len as u64);
    let steps = m.batch.ramp().steps(samples);
    let [steps, samples, tokens] = [(steps, "step"), (samples, "sample"), (tokens, "token")]
        .map(|(count, noun)| Count(count).of(noun));
    format!("{steps}, {samples}, {tokens}")
}
