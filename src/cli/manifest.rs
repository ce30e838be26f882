//! `gptrain manifest`: make a manifest, check a manifest, show its effective values, print the schema for editors.

use base::Count;
use base::output::{self, Existing};
use clap::{Args, Subcommand};
use estimate::words;
use manifest::{self, Loaded, Manifest};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a first manifest, commented, from a dataset, a tokenizer and a wanted size.
    New(New),
    /// Check a manifest: every mistake with its line and a remedy, or "ok" and a summary.
    Check(Source),
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
    pub sets: Vec<String>,
}

#[derive(Debug, Args)]
pub struct New {
    /// PREFIX of the dataset (`gptrain data build`).
    #[arg(long, value_name = "PREFIX")]
    data: Option<PathBuf>,
    /// Its tokenizer; unless given, tokenizer.json beside the dataset.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// About so many parameters, as in 124M; unless given, a twentieth of the dataset's tokens.
    #[arg(long, value_parser = words::tokens)]
    params: Option<f64>,
    /// Write this file; unless given, the manifest is printed.
    #[arg(short, long)]
    output: Option<PathBuf>,
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
    let text = train::recipe::Recipe { name, data, tokenizer, params }.write()?;
    match args.output {
        Some(path) => {
            output::write(&path, Existing::Refused, text.as_bytes())?;
            base::say!("{}: gptrain run {}", path.display(), path.display());
        }
        None => base::say!("{}", text.trim_end()),
    }
    Ok(())
}

pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::New(args) => new(args)?,
        Command::Check(source) => {
            let loaded = manifest::load(&source.manifest, &source.sets)?;
            let files = train::files::check(&loaded.manifest)?;
            files.wrong.or(())?;
            base::say!("{}", summary(&loaded));
            for missing in files.missing.list {
                base::say!("  not here   {}: {}", missing.place, missing.what);
            }
        }
        Command::Show(source) => {
            let loaded = manifest::load(&source.manifest, &source.sets)?;
            base::say!("{}", loaded.effective.trim_end());
        }
        Command::Schema => base::say!("{:#}", manifest::schema()),
    }
    Ok(())
}

fn summary(loaded: &Loaded) -> String {
    let m = &loaded.manifest;
    let model = &m.model;
    let mut lines = vec![
        format!("{}: ok", loaded.source.display()),
        format!(
            "  model     {} layers, hidden {}, {} heads, vocab {} (padded {}), seq_len {}",
            model.layers,
            model.hidden,
            model.heads,
            Count(model.vocab as u64),
            Count(model.vocab_padded as u64),
            model.seq_len
        ),
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

fn batch(m: &Manifest) -> String {
    let text = format!("micro {}, global {}", m.batch.micro, m.batch.global);
    match m.batch.ramp_up {
        None => text,
        Some(ramp) => format!(
            "{text}, growing from {} by {} over {} samples",
            ramp.start,
            ramp.increment,
            Count(ramp.samples)
        ),
    }
}

fn length(m: &Manifest) -> String {
    let samples = m.train.samples;
    let tokens = samples.saturating_mul(m.model.seq_len as u64);
    let steps = m.batch.ramp().steps(samples);
    format!("{} steps, {} samples, {} tokens", Count(steps), Count(samples), Count(tokens))
}
