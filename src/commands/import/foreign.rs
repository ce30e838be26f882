//! Imports a run of another trainer: its checkpoint becomes the checkpoint of the same step in a new
//! run, with AdamW's states, the number of updates, the learning rates and the place in the data.

use super::{lines, say_refused};
use crate::estimate::config::{self, ModelFile, Planned};
use crate::new_run::write_run;
use base::output::Existing;
use base::{Bytes, Count, DType, Problems};
use checkpoint::atomic_folder::{self, FolderKind};
use exchange::foreign::{self, Choices, Format, Needed, RunDescription};
use exchange::hf::read_config;
use exchange::source::{self, DryRun};
use manifest::Manifest;
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
    /// Refusals of an import; empty unless it is dry.
    pub refused: Problems,
}

impl ImportedRun {
    /// Prints the result. `output` is the folder of the new run; without it the settings are listed.
    pub fn say(&self, output: Option<&Path>) {
        let RunDescription { trainer, folder, step, samples, tokens, grid, updates, .. } =
            &self.found;
        let [tensor, pipeline, data] = grid;
        base::say!("{folder}: {trainer}");
        if self.found.settings.0.is_empty() {
            return say_refused(&self.refused);
        }
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
        say_refused(&self.refused);
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
            "notes": self.notes().collect::<Vec<_>>(), "refused": lines(&self.refused),
            "manifest": output.map(|output| output.join(manifest::IN_FOLDER)),
        })
    }
}

/// Makes the folder of a new run, `choices.run`, from the folder `from` of another trainer, completely or
/// not at all. If `choices` are dry, only reads what `from` contains and lists what an import would refuse.
pub fn import_run(
    from: &Path,
    format: Format,
    choices: &Choices,
    existing: Existing,
) -> anyhow::Result<ImportedRun> {
    if choices.dry {
        return dry_run(from, format, choices, existing);
    }
    let to = choices.run.as_deref();
    if let Some(to) = to {
        atomic_folder::check_vacant(to, FolderKind::Run, existing)?;
    }
    let mut source = source::open(from, &Choices { format: Some(format), ..choices.clone() })?;
    let found = source.facts().clone();
    let size = Some(size(source.manifest()));
    let checkpoint = match to {
        Some(to) => Some(write_run(&mut source, to, existing, &mut |_| Ok(()))?),
        None => None,
    };
    let remarks = source.remarks();
    Ok(ImportedRun { found, size, checkpoint, remarks, refused: Problems::default() })
}

/// Describes a folder as far as it can be read, and lists what an import would refuse.
fn dry_run(
    from: &Path,
    format: Format,
    choices: &Choices,
    existing: Existing,
) -> anyhow::Result<ImportedRun> {
    let mut refused = Problems::default();
    if let Some(to) = &choices.run {
        refused.collect(atomic_folder::check_vacant(to, FolderKind::Run, existing))?;
    }
    let DryRun { found, refused: more, loaded } = source::dry_run(from, format, choices)?;
    refused.list.extend(more.list);
    let size = loaded.map(|loaded| size(&loaded.manifest));
    Ok(ImportedRun { found, size, checkpoint: None, remarks: Vec::new(), refused })
}

/// Parameters of a run's model, and the host memory for the largest: in f32, and in 16 bits if the run
/// computes so.
fn size(m: &Manifest) -> (u64, Bytes) {
    let model = &m.model;
    let layout = Layout::new(model, ModelShard::whole(model));
    let largest = layout
        .params()
        .map(|param| param.numel())
        .max()
        .unwrap_or(0);
    let half = engine::model_dtype(m.precision) != DType::F32;
    let bytes_of_value = if half { 6 } else { 4 };
    (model::parameters(model), Bytes(bytes_of_value * largest as u64))
}

/// Run that a folder would become, for its plan. Missing settings get example values,
/// except those of the model and the batch.
pub fn planned_run(from: &Path, sets: &[String]) -> anyhow::Result<Planned> {
    let format = foreign::detect(from)?;
    if format == Format::HuggingFace {
        let file = match config::read(from)? {
            Some(file) => file,
            None => {
                ModelFile { config: read_config(from)?, mixture: None, place: from.to_path_buf() }
            }
        };
        return config::planned_run(file, sets);
    }
    let choices = Choices { sets: sets.to_vec(), needed: Needed::Plan, ..Choices::default() };
    if format == Format::HfTrainer {
        return Ok(source::open(from, &choices)?.loaded().clone().into());
    }
    Ok(source::planned_run(&foreign::open(from, format, &choices)?, &choices)?.into())
}
