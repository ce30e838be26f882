//! `gptrain completions`, `gptrain man`: files that a package installs beside the binary.

use anyhow::{Context, Result};
use base::output::{self, Existing};
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::LazyLock;

#[derive(clap::Args, Debug)]
pub struct Completions {
    /// Shell
    shell: Shell,
}

#[derive(clap::Args, Debug)]
pub struct Man {
    /// Folder for gptrain.1, gptrain-run.1, …
    folder: PathBuf,
}

/// Parser that accepts any text (it is checked where it is used); shells complete these texts.
#[derive(Clone)]
pub struct Offered(fn() -> Vec<&'static str>);

/// Completes manifest keys: `lr.peak=`.
pub const SETTINGS: Offered = Offered(|| SETS.iter().map(String::as_str).collect());
/// Completes rows of the hardware table.
pub const HARDWARE: Offered = Offered(|| {
    estimate::hardware::table()
        .iter()
        .map(|row| row.name.as_str())
        .collect()
});
/// Completes the programs of `estimate --as`.
pub const PROGRAMS: Offered = Offered(estimate::trainers::names);

static SETS: LazyLock<Vec<String>> = LazyLock::new(|| {
    manifest::settings()
        .into_iter()
        .map(|key| key + "=")
        .collect()
});

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// Values that an error message may list.
const LISTED: usize = 20;

/// An error of the command line without a list of all settings.
pub fn without_long_lists(mut error: clap::Error) -> clap::Error {
    let values = error.get(ContextKind::ValidValue);
    if matches!(values, Some(ContextValue::Strings(values)) if values.len() > LISTED) {
        error.remove(ContextKind::ValidValue);
    }
    error
}

pub fn completions<Cli: CommandFactory>(args: Completions) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gptrain", &mut script);
    base::say!("{}", String::from_utf8_lossy(&script).trim_end());
}

pub fn man<Cli: CommandFactory>(args: Man) -> Result<()> {
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot make {}", args.folder.display()))?;
    let mut command = Cli::command();
    command.build();
    let pages = pages(&command)?;
    for (name, page) in &pages {
        output::write(&args.folder.join(format!("{name}.1")), Existing::Replaced, page)?;
    }
    base::say!("{}: {}", args.folder.display(), base::Count(pages.len() as u64).with_noun("page"));
    Ok(())
}

/// Manual pages of a built command and its subcommands, each with its name: `gptrain-run`.
fn pages(command: &clap::Command) -> Result<Vec<(String, Vec<u8>)>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    let name = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_string();
    let mut all = vec![(name, page)];
    for below in command
        .get_subcommands()
        .filter(|below| below.get_name() != "help")
    {
        all.extend(pages(below)?);
    }
    Ok(all)
}
