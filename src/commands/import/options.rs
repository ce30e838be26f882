//! `gptrain import DIR`: imports a checkpoint of another trainer, in any supported format.

use super::foreign::import_run;
use base::Problems;
use base::output::Existing;
use exchange::foreign::{Choices, Format, Replicated, detect};
use std::path::Path;

/// Options of folders that are not Hugging Face's.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Format of the folder [default: detected from its file names]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub format: Option<Format>,
    /// Print the contents of the folder and the resulting settings; write nothing
    #[arg(long)]
    pub dry: bool,
    /// Value for norms and biases whose copies on tensor ranks differ: their mean (the default), or
    /// the first rank's
    #[arg(long, value_name = "mean|first", value_parser = replicated)]
    pub replicated: Option<Replicated>,
    /// Mask the rows that pad the vocabulary, which Megatron trains
    #[arg(long)]
    pub mask_padding: bool,
}

fn format(word: &str) -> Result<Format, String> {
    let found = Format::ALL.into_iter().find(|(_, known, _)| *known == word);
    let known = Format::ALL.map(|(_, word, _)| word).join(", ");
    found
        .map(|(format, ..)| format)
        .ok_or_else(|| format!("is not one of {known}"))
}

fn replicated(word: &str) -> Result<Replicated, String> {
    match word {
        "mean" => Ok(Replicated::Mean),
        "first" => Ok(Replicated::First),
        _ => Err("is not mean or first".to_string()),
    }
}

/// Format of the folder: the one named, or the one detected.
pub fn format_of(from: &Path, options: &Options) -> anyhow::Result<Format> {
    options.format.map_or_else(|| detect(from), Ok)
}

pub fn run(
    from: &Path,
    format: Format,
    output: Option<(&Path, Existing)>,
    options: &Options,
    sets: &[String],
    json: crate::options::Json,
) -> anyhow::Result<()> {
    if output.is_none() && !options.dry {
        let name = format.name();
        return Err(Problems::one(
            from.display().to_string(),
            format!("is a checkpoint of {name}, but no folder for the new run is given"),
            "add --output RUN, or show its contents with --dry",
        )
        .into());
    }
    let choices = Choices {
        replicated: options.replicated.unwrap_or_default(),
        mask_padding: options.mask_padding,
        sets: sets.to_vec(),
    };
    let output = output.filter(|_| !options.dry);
    let imported = import_run(from, format, output, &choices)?;
    let output = output.map(|(run, _)| run);
    json.say(|| imported.say(output), imported.object(output));
    Ok(())
}
