//! Reads a checkpoint of another trainer as the run that continues it.

use super::new_run::{new_manifest, one_line, quoted, run_name};
use super::{ParamReader, ParamSource, absolute};
use crate::foreign::{AdamState, Choices, ForeignRun, LossScale, RunDescription, asked};
use crate::tokenizer::OwnTokenizer;
use base::Problems;
use engine::ScaleState;
use manifest::{Loaded, Manifest, Model};
use model::{Layout, ModelShard, Param};
use std::path::Path;

/// Split of the layers among the stages.
const LAYER_SPLIT: &str = "topology.layer_split";

/// Run of the manifest, where none is made.
const NO_RUN: &str = "imported";

impl ParamReader for ForeignRun {
    fn read(&mut self, model: &Model, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>> {
        ForeignRun::read(self, model, param, state)
    }

    fn remarks(&mut self) -> Vec<String> {
        ForeignRun::remarks(self)
    }
}

/// Manifest of the run that would continue this one.
pub fn planned_run(run: &ForeignRun, choices: &Choices) -> anyhow::Result<Loaded> {
    let mut facts = run.description().clone();
    give_examples(&mut facts, choices)?;
    Ok(write_manifest(&facts, choices)?.1)
}

pub fn from_run(run: ForeignRun, choices: &Choices) -> anyhow::Result<ParamSource> {
    let mut facts = run.description().clone();
    give_examples(&mut facts, choices)?;
    let (text, loaded) = write_manifest(&facts, choices)?;
    let m = &loaded.manifest;
    check_optimizer(m)?;
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let params: Vec<&Param> = layout.params().collect();
    run.check(&m.model, &params)?;
    if m.loss_scale.is_some() {
        let scale = facts
            .loss_scale
            .unwrap_or_else(|| ScaleState::initial(m).into());
        facts.loss_scale = Some(scale);
    } else {
        facts.loss_scale = None;
    }
    let named = m.data.tokenizer.clone().filter(|path| path.exists());
    let tokenizer = named.map(|path| OwnTokenizer { path, kept: false, came_with_weights: false });
    Ok(ParamSource {
        facts,
        loaded,
        text,
        hugging_face: None,
        tensor_types: Default::default(),
        carried: None,
        tokenizer,
        reader: Box::new(run),
        progress: None,
    })
}

impl From<ScaleState> for LossScale {
    fn from(state: ScaleState) -> LossScale {
        let ScaleState { scale, updates_in_a_row, overflows_left, .. } = state;
        LossScale { scale, updates_in_a_row, overflows_left }
    }
}

/// Sets examples of missing settings that `choices` do not need. Fails if others are missing.
fn give_examples(facts: &mut RunDescription, choices: &Choices) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for row in std::mem::take(&mut facts.wanted) {
        if !choices.needed.has(row.key) {
            facts.settings.set(row.key, row.example, "an example");
            continue;
        }
        problems.add(
            facts.folder.clone(),
            format!("has no {}: {}", row.key, row.why),
            format!("name it: --set {}={}", row.key, row.example),
        );
    }
    problems.or(())
}

/// Manifest of the new run: its text, and the parsed manifest. Includes the settings of the command
/// line.
fn write_manifest(found: &RunDescription, choices: &Choices) -> anyhow::Result<(String, Loaded)> {
    let from = one_line(&found.folder);
    let sets = &choices.sets;
    let mut settings = found.settings.clone();
    // The split of the files is that of their number of stages.
    if settings.get(LAYER_SPLIT).is_some() && asked(sets, "topology.pipeline").is_some() {
        settings.set(LAYER_SPLIT, "balanced", "--set topology.pipeline");
    }
    let run = absolute(choices.run.as_deref().unwrap_or(Path::new(NO_RUN)))?;
    let text = format!(
        "\
# The run of {} in {from}, from step {} on: {} samples were trained.
# Each line names the argument it came from. topology may be changed at will, and the paths in data
# to where the datasets are here: the next sample is the one that the other trainer would have taken.
# All settings: gptrain manifest show {}
name: {}
{}
log:
  folder: {}
",
        found.trainer,
        found.step,
        found.samples,
        one_line(&run.display().to_string()),
        quoted(run_name(&run)),
        settings.yaml(),
        quoted(&run.display().to_string()),
    );
    // Without a new run, relative paths are those of the working folder.
    let folder = if choices.run.is_some() { run } else { Path::new(".").to_path_buf() };
    Ok(new_manifest(&text, &found.folder, &folder, sets)?)
}

/// Fails unless the optimizer is AdamW, whose states were found.
fn check_optimizer(m: &Manifest) -> Result<(), Problems> {
    match m.optimizer.name() {
        "adamw" => Ok(()),
        other => Err(Problems::one(
            "optimizer",
            format!("is {other}, but the checkpoint has the states of adamw"),
            "import with adamw, and change it in the manifest",
        )),
    }
}
