//! Imports a run of another trainer: its checkpoint becomes the checkpoint of the same step in a new
//! run, with AdamW's states, the number of updates, the learning rates and the place in the data.

use crate::new_run::write_run;
use base::output::Existing;
use base::{Bytes, Count};
use checkpoint::atomic_folder::{self, FolderKind};
use exchange::foreign::{self, Choices, Format, Needed, RunDescription};
use exchange::source::{self, ParamSource};
use manifest::Loaded;
use model::{Layout, ModelShard};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Result of an import: the checkpoint that was found, and the one that was written.
pub struct ImportedRun {
    pub found: RunDescription,
    /// Parameters, and host memory for the largest one; None while a setting is missing.
    pub size: Option<(u64, Bytes)>,
    /// Written checkpoint; None in a dry run.
    pub checkpoint: Option<PathBuf>,
    /// Notes for the user from reading.
    pub remarks: Vec<String>,
}

impl ImportedRun {
    /// Prints the result. `output` is the folder of the new run; without it the settings are listed.
    pub fn say(&self, output: Option<&Path>) {
        let RunDescription { trainer, folder, step, samples, tokens, grid, updates, .. } =
            &self.found;
        let [tensor, pipeline, data] = grid;
        base::say!("{folder}: {trainer}");
        match self.size {
            Some(_) => base::say!("  step {step}, {samples} samples, {} tokens", Count(*tokens)),
            None => base::say!("  step {step}"),
        }
        base::say!("  cut for tensor {tensor} × pipeline {pipeline} × data {data}");
        let states = match self.found.without_states {
            Some(_) => "without AdamW's states".to_string(),
            None => format!("with AdamW's states after {updates} updates"),
        };
        match self.size {
            Some((parameters, memory)) => base::say!(
                "  {} parameters {states}; memory for the largest: {memory}",
                Count(parameters)
            ),
            None => base::say!("  parameters {states}"),
        }
        if output.is_none() {
            self.say_settings();
        }
        for note in self.notes() {
            base::say!("note: {note}");
        }
        let (Some(checkpoint), Some(output)) = (&self.checkpoint, output) else { return };
        base::say!("wrote {}", checkpoint.display());
        base::say!(
            "next: check the paths and the topology in {}, then `gptrain run {}`",
            output.join(manifest::IN_FOLDER).display(),
            output.display()
        );
    }

    fn say_settings(&self) {
        base::say!("settings:");
        for row in &self.found.settings.0 {
            let from = Some(&row.from).filter(|from| !from.is_empty());
            let from = from.map_or(String::new(), |from| format!("  ({from})"));
            base::say!("  {}: {}{from}", row.key, row.value);
        }
        for row in &self.found.wanted {
            base::say!("  {}: not in the files, --set it ({})", row.key, row.why);
        }
        if !self.found.ignored.is_empty() {
            base::say!("ignored: {}", self.found.ignored.join(", "));
        }
    }

    fn notes(&self) -> impl Iterator<Item = &String> {
        self.found.notes.iter().chain(&self.remarks)
    }

    /// Result as JSON.
    pub fn object(&self, output: Option<&Path>) -> Value {
        let found = &self.found;
        let settings: Map<String, Value> = found
            .settings
            .0
            .iter()
            .map(|row| (row.key.clone(), json!(row.value)))
            .collect();
        let wanted: Vec<&str> = found.wanted.iter().map(|row| row.key).collect();
        json!({
            "checkpoint": self.checkpoint, "format": found.format.word(), "trainer": found.trainer,
            "step": found.step, "samples": self.size.map(|_| found.samples),
            "tokens": self.size.map(|_| found.tokens), "grid": found.grid,
            "updates": found.updates, "parameters": self.size.map(|(parameters, _)| parameters),
            "settings": settings, "wanted": wanted, "left_aside": found.ignored,
            "notes": self.notes().collect::<Vec<_>>(),
            "manifest": output.map(|output| output.join(manifest::IN_FOLDER)),
        })
    }
}

/// Makes the folder of a new run, `choices.run`, from the folder `from` of another trainer, completely or
/// not at all. If `dry`, only reads what `from` contains.
pub fn import_run(
    from: &Path,
    format: Format,
    choices: &Choices,
    existing: Existing,
    dry: bool,
) -> anyhow::Result<ImportedRun> {
    let to = choices.run.as_deref().filter(|_| !dry);
    if let Some(to) = to {
        atomic_folder::check_vacant(to, FolderKind::Run, existing)?;
    }
    let foreign = foreign::open(from, format, choices)?;
    let found = foreign.description().clone();
    if dry && !found.wanted.is_empty() {
        return Ok(ImportedRun { found, size: None, checkpoint: None, remarks: Vec::new() });
    }
    let mut source = ParamSource::from_foreign(foreign, choices)?;
    let model = &source.manifest().model;
    let layout = Layout::new(model, ModelShard::whole(model));
    let largest = layout
        .params()
        .map(|param| param.numel())
        .max()
        .unwrap_or(0);
    // The parameter in f32 and its share of one rank, or the parameter in 16 bits.
    let size = Some((model::parameters(model), Bytes(8 * largest as u64)));
    let checkpoint = match to {
        Some(to) => Some(write_run(&mut source, to, existing, &mut |_| Ok(()))?),
        None => None,
    };
    Ok(ImportedRun { found, size, checkpoint, remarks: source.remarks() })
}

/// Manifest of the run that a folder would become, for its plan. Missing settings get example values,
/// except those of the model and the batch.
pub fn planned_run(from: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    let format = foreign::detect(from)?;
    if format == Format::HuggingFace {
        let model = super::hugging_face::model_section(from)?;
        let text = format!(
            "{model}\nprecision: bf16\ndata: {{train: corpus}}\nbatch: {{micro: 1, global: 512}}\n\
             lr: {{peak: 3e-5}}\ntrain: {{steps: 1000}}\n"
        );
        let place = from.display().to_string();
        return Ok(source::new_manifest(&text, &place, Path::new("imported"), sets)?.1);
    }
    let choices = Choices { sets: sets.to_vec(), needed: Needed::Plan, ..Choices::default() };
    source::planned_run(&foreign::open(from, format, &choices)?, &choices)
}
