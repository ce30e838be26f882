//! Describes a checkpoint as far as it can be read, and collects what an import would refuse.

use super::foreign::{check_optimizer, give_examples, write_manifest};
use super::trainer::TrainerRun;
use crate::foreign::{self, Choices, ForeignRun, Format, RunDescription, step_folder};
use base::Problems;
use manifest::Loaded;
use model::{Layout, ModelShard, Param};
use std::path::Path;

/// Outcome of a dry import.
pub struct DryRun {
    /// Without settings if the folder cannot be read.
    pub found: RunDescription,
    pub refused: Problems,
    /// Manifest that would be written; None if a setting is missing or refused.
    pub loaded: Option<Loaded>,
}

/// Reads only small values. `choices` are dry.
pub fn dry_run(from: &Path, format: Format, choices: &Choices) -> anyhow::Result<DryRun> {
    let mut refused = Problems::default();
    let mut found = RunDescription::new(format, format.name(), from);
    let mut loaded = None;
    if format == Format::HfTrainer {
        let folder = step_folder(from)?;
        if let Some(run) = refused.collect(TrainerRun::open(&folder, choices))? {
            found = run.found.clone();
            loaded = refused
                .collect(run.plan(choices))?
                .map(|(_, loaded)| loaded);
        }
    } else if let Some(run) = refused.collect(foreign::open(from, format, choices))? {
        found = run.description().clone();
        loaded = plan(&run, choices, &mut refused)?;
    }
    let loaded = loaded.filter(|_| found.wanted.is_empty());
    Ok(DryRun { found, refused, loaded })
}

/// Manifest of a run that would continue `run`. Adds each refusal.
fn plan(
    run: &ForeignRun,
    choices: &Choices,
    refused: &mut Problems,
) -> anyhow::Result<Option<Loaded>> {
    let mut facts = run.description().clone();
    refused.list.extend(facts.refusals.list.clone());
    let wanted = facts.wanted.clone();
    refused.collect(give_examples(&mut facts, choices).map_err(Into::into))?;
    if wanted.iter().any(|row| row.key.starts_with("model.")) {
        return Ok(None);
    }
    for row in wanted {
        facts.settings.set(row.key, row.example, "an example");
    }
    let Some((_, loaded)) = refused.collect(write_manifest(&facts, choices))? else {
        return Ok(None);
    };
    let m = &loaded.manifest;
    refused.collect(check_optimizer(m).map_err(Into::into))?;
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let params: Vec<&Param> = layout.params().collect();
    refused.collect(run.check(&m.model, &params))?;
    Ok(Some(loaded))
}
