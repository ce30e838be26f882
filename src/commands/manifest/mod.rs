//! `gptrain manifest`: makes or checks a manifest, shows its effective values, prints the schema.

mod check;
pub mod new;

use crate::completions::SETTINGS;
use check::Check;
use clap::{Args, Subcommand};
use manifest::Ranks;
use new::New;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a first manifest, with comments, from a dataset, a tokenizer and a model size.
    New(New),
    /// Check a manifest: print every mistake with its line and a remedy, or "ok" and a summary.
    Check(Check),
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

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::New(new) => return new.run(),
            Command::Check(check) => return check.run(),
            Command::Show(source) => {
                let loaded = manifest::load_for(&source.manifest, &source.sets, Ranks::OneReplica)?;
                base::say!("{}", loaded.effective.trim_end());
            }
            Command::Schema => base::say!("{:#}", manifest::editor_schema()),
        }
        Ok(())
    }
}
