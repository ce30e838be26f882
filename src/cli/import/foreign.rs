//! `gptrain import DIR`: imports a checkpoint of another trainer, in any supported format.

use base::Problems;
use base::output::Existing;
use checkpoint::foreign::{Choices, Format, Replicated, RunDescription, detect};
use commands::bring::{self, Brought};
use serde_json::{Value, json};
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
    found.map(|(format, ..)| format).ok_or_else(|| format!("is not one of {known}"))
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
    json: super::super::Json,
) -> anyhow::Result<()> {
    if output.is_none() && !options.dry {
        let name = format.name();
        let what = format!("is a checkpoint of {name}, but no folder for the new run is given");
        let remedy = "add --output RUN, or show its contents with --dry";
        return Err(Problems::one(from.display().to_string(), what, remedy).into());
    }
    let choices = Choices {
        replicated: options.replicated.unwrap_or_default(),
        mask_padding: options.mask_padding,
        sets: sets.to_vec(),
    };
    let output = output.filter(|_| !options.dry);
    let brought = bring::bring(from, format, output, &choices)?;
    let output = output.map(|(run, _)| run);
    json.say(|| say(&brought, output), object(&brought, output));
    Ok(())
}

fn say(brought: &Brought, output: Option<&Path>) {
    let RunDescription { trainer, folder, step, samples, tokens, grid, updates, .. } =
        &brought.found;
    let [tensor, pipeline, data] = grid;
    base::say!("{folder}: {trainer}");
    match brought.size {
        Some(_) => {
            base::say!("  step {step}, {samples} samples, {} tokens", base::Count(*tokens));
        }
        None => base::say!("  step {step}"),
    }
    base::say!("  cut for tensor {tensor} × pipeline {pipeline} × data {data}");
    let states = match brought.found.without_states {
        Some(_) => "without AdamW's states".to_string(),
        None => format!("with AdamW's states after {updates} updates"),
    };
    match brought.size {
        Some((parameters, memory)) => base::say!(
            "  {} parameters {states}; memory for the largest: {memory}",
            base::Count(parameters)
        ),
        None => base::say!("  parameters {states}"),
    }
    if output.is_none() {
        base::say!("settings:");
        for row in &brought.found.settings.0 {
            let from =
                if row.from.is_empty() { String::new() } else { format!("  ({})", row.from) };
            base::say!("  {}: {}{from}", row.key, row.value);
        }
        for row in &brought.found.wanted {
            base::say!("  {}: not in the files, --set it ({})", row.key, row.why);
        }
        if !brought.found.ignored.is_empty() {
            base::say!("ignored: {}", brought.found.ignored.join(", "));
        }
    }
    for note in brought.found.notes.iter().chain(&brought.remarks) {
        base::say!("note: {note}");
    }
    let (Some(checkpoint), Some(output)) = (&brought.checkpoint, output) else { return };
    base::say!("wrote {}", checkpoint.display());
    let manifest = output.join(manifest::IN_FOLDER);
    base::say!(
        "next: check the paths and the topology in {}, then `gptrain run {}`",
        manifest.display(),
        output.display()
    );
}

fn object(brought: &Brought, output: Option<&Path>) -> Value {
    let found = &brought.found;
    let settings: serde_json::Map<String, Value> =
        found.settings.0.iter().map(|row| (row.key.clone(), json!(row.value))).collect();
    let wanted: Vec<&str> = found.wanted.iter().map(|row| row.key).collect();
    let known = brought.size;
    let notes: Vec<&String> = found.notes.iter().chain(&brought.remarks).collect();
    json!({
        "checkpoint": brought.checkpoint, "format": found.format.word(), "trainer": found.trainer,
        "step": found.step, "samples": known.map(|_| found.samples),
        "tokens": known.map(|_| found.tokens), "grid": found.grid, "updates": found.updates,
        "parameters": known.map(|(parameters, _)| parameters), "settings": settings,
        "wanted": wanted,
        "left_aside": found.ignored, "notes": notes,
        "manifest": output.map(|output| output.join(manifest::IN_FOLDER)),
    })
}
