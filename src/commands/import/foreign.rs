//! Imports a run of another trainer: its checkpoint becomes the checkpoint of the same step in a new
//! run, with AdamW's states, the number of updates, the learning rates and the place in the data.

use super::{new_manifest, one_line, quoted, run_name};
use crate::new_checkpoint::{whole_share, write};
use anyhow::Context;
use base::output::Existing;
use base::{Bytes, Count, DType, Problems};
use checkpoint::atomic_folder::{self, FolderKind};
use checkpoint::disk::Disk;
use checkpoint::{self, Progress, Share, State, WrittenPart, validate};
use data::indexed::index_path;
use engine::{MASTER, MODEL, SECOND, ScaleState, model_dtype, optimizer_rule, saved_shape};
use exchange::foreign::{self, AdamState, Choices, ForeignRun, RunDescription};
use manifest::{self, Loaded, Manifest};
use model::{Layout, ModelShard, Param};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use train::{last_checkpoint, resume, saving};

/// Split of the layers among the stages.
const LAYER_SPLIT: &str = "topology.layer_split";

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

/// Makes the folder `to` of a new run from the folder `from` of another trainer, completely or not at
/// all. Without `to`, only reads what `from` contains.
pub fn import_run(
    from: &Path,
    format: foreign::Format,
    to: Option<(&Path, Existing)>,
    choices: &Choices,
) -> anyhow::Result<ImportedRun> {
    if let Some((to, existing)) = to {
        atomic_folder::check_vacant(to, FolderKind::Run, existing)?;
    }
    let mut foreign = foreign::open(from, format, choices)?;
    if !foreign.description().wanted.is_empty() {
        if to.is_some() {
            return Err(wanted(foreign.description()).into());
        }
        let found = foreign.description().clone();
        let remarks = Vec::new();
        return Ok(ImportedRun { found, size: None, checkpoint: None, remarks });
    }
    let run = to.map_or(Path::new("imported"), |(to, _)| to);
    let run = std::path::absolute(run).with_context(|| format!("cannot find {}", run.display()))?;
    let (text, loaded) = manifest_of(foreign.description(), &run, &choices.sets)?;
    let m = &loaded.manifest;
    adamw(m)?;
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let params: Vec<&Param> = layout.params().collect();
    foreign.check(&m.model, &params)?;
    let largest = params.iter().map(|param| param.numel()).max().unwrap_or(0);
    let done = |found: &RunDescription, checkpoint, remarks| ImportedRun {
        found: found.clone(),
        // The parameter in f32 and its share of one rank, or the parameter in 16 bits.
        size: Some((model::parameters(&m.model), Bytes(8 * largest as u64))),
        checkpoint,
        remarks,
    };
    let Some((to, existing)) = to else { return Ok(done(foreign.description(), None, Vec::new())) };
    let state = state(foreign.description(), &loaded)?;
    atomic_folder::write(to, FolderKind::Run, existing, |staging| {
        let path = staging.join(manifest::IN_FOLDER);
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        save(m, &staging.join("checkpoints"), &params, &mut foreign, &state)?;
        last_checkpoint::note(staging, state.progress.step)
    })?;
    let checkpoint = run
        .join("checkpoints")
        .join(checkpoint::name(state.progress.step));
    let remarks = foreign.remarks();
    Ok(done(foreign.description(), Some(checkpoint), remarks))
}

/// Manifest of the run that a folder would become, for its plan. Missing settings get example values,
/// except those of the model and the batch.
pub fn planned_run(from: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    let run = Path::new("imported");
    let format = foreign::detect(from)?;
    if format == foreign::Format::HuggingFace {
        let model = super::hugging_face::model_section(from)?;
        let text = format!(
            "{model}\nprecision: bf16\ndata: {{train: corpus}}\nbatch: {{micro: 1, global: 512}}\n\
             lr: {{peak: 3e-5}}\ntrain: {{steps: 1000}}\n"
        );
        return Ok(new_manifest(&text, &from.display().to_string(), run, sets)?.1);
    }
    let choices = Choices { sets: sets.to_vec(), ..Choices::default() };
    let foreign = foreign::open(from, format, &choices)?;
    let mut found = foreign.description().clone();
    let (examples, missing): (Vec<_>, Vec<_>) = found
        .wanted
        .drain(..)
        .partition(|row| !row.key.starts_with("model.") && !row.key.starts_with("batch."));
    found.wanted = missing;
    if !found.wanted.is_empty() {
        return Err(wanted(&found).into());
    }
    for row in examples {
        found.settings.set(row.key, row.example, "an example");
    }
    Ok(manifest_of(&found, run, sets)?.1)
}

/// An error that lists the settings that the folder does not have.
fn wanted(found: &RunDescription) -> Problems {
    let mut problems = Problems::default();
    for row in &found.wanted {
        problems.add(
            found.folder.clone(),
            format!("has no {}: {}", row.key, row.why),
            format!("name it: --set {}={}", row.key, row.example),
        );
    }
    problems
}

/// Manifest of the new run: its text, and the parsed manifest. Includes the settings of the command
/// line.
fn manifest_of(
    found: &RunDescription,
    run: &Path,
    sets: &[String],
) -> Result<(String, Loaded), Problems> {
    let from = one_line(&found.folder);
    let mut settings = found.settings.clone();
    // The split of the files is that of their number of stages.
    if settings.get(LAYER_SPLIT).is_some() && foreign::asked(sets, "topology.pipeline").is_some() {
        settings.set(LAYER_SPLIT, "balanced", "--set topology.pipeline");
    }
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
        quoted(run_name(run)),
        settings.yaml(),
        quoted(&run.display().to_string()),
    );
    new_manifest(&text, &found.folder, run, sets)
}

/// Fails unless the optimizer is AdamW, whose states were found.
fn adamw(m: &Manifest) -> Result<(), Problems> {
    match m.optimizer.name() {
        "adamw" => Ok(()),
        other => Err(Problems::one(
            "optimizer",
            format!("is {other}, but the checkpoint has the states of adamw"),
            "import with adamw, and change it in the manifest",
        )),
    }
}

/// State of the run after the imported step.
fn state(found: &RunDescription, loaded: &Loaded) -> anyhow::Result<State> {
    let m = &loaded.manifest;
    let exist = m
        .data
        .train_prefixes()
        .into_iter()
        .all(|prefix| index_path(prefix).exists());
    let data = if exist { resume::data_ids(m)? } else { Vec::new() };
    let mut state = saving::initial_state(loaded, data);
    let RunDescription { step, samples, tokens, updates, lr, .. } = *found;
    state.progress = Progress { step, consumed_samples: samples };
    state.consumed_tokens = tokens;
    state.next_batch = m.batch.ramp().batch_at(samples) as u64;
    state.lr = lr;
    match found.without_states {
        Some(_) => state.optimizer.began = step,
        None => {
            state.skipped_updates = step.saturating_sub(updates);
            state.optimizer.ahead = updates.saturating_sub(step);
        }
    }
    for group in &mut state.optimizer.groups {
        group.step = updates;
    }
    if m.loss_scale.is_some() {
        let initial = ScaleState::initial(m);
        let scale = match found.loss_scale {
            None => initial,
            Some(scale) => ScaleState {
                scale: scale.scale,
                updates_in_a_row: scale.updates_in_a_row,
                overflows_left: scale.overflows_left,
                ..initial
            },
        };
        state.loss_scale = Some(ScaleState { updates, skipped: state.skipped_updates, ..scale });
    }
    state.imported = Some(format!("{} in {}", found.trainer, found.folder));
    let mut problems = Problems::default();
    for what in validate::numbers(state.lr, state.loss_scale) {
        problems.add(found.folder.clone(), what, "import an earlier step");
    }
    Ok(problems.or(state)?)
}

/// Writes the checkpoint, one state of one parameter at a time, each into its own file.
fn save(
    m: &Manifest,
    checkpoints: &Path,
    params: &[&Param],
    foreign: &mut ForeignRun,
    state: &State,
) -> anyhow::Result<PathBuf> {
    write(checkpoints, state, checkpoint::saved_bytes(m), |disk, staging| {
        let mut parts = Vec::new();
        for (number, param) in params.iter().enumerate() {
            let shape = saved_shape(param, m.model.vocab);
            // A run from step 0 starts with moments of its own.
            let states = if state.is_import() { &[AdamState::Master][..] } else { &AdamState::ALL };
            for kept in states.iter().copied() {
                let values = foreign.read(&m.model, param, kept)?;
                check_values(&values, param, kept)?;
                let whole = WholeState { number, param, shape: &shape, values: &values, kept };
                parts.push(whole.write(m, disk, staging, state)?);
            }
        }
        Ok(parts)
    })
}

/// Fails on values that no update writes.
fn check_values(values: &[f32], param: &Param, kept: AdamState) -> Result<(), Problems> {
    let found = validate::values(saved_name(kept), DType::F32, bytemuck::cast_slice(values));
    if found.is_empty() {
        return Ok(());
    }
    Err(Problems::one(
        param.name.clone(),
        format!("the {} has {}", kept.name(), found.join(", ")),
        "import an earlier step",
    ))
}

/// Name of a state in checkpoints.
fn saved_name(kept: AdamState) -> &'static str {
    match kept {
        AdamState::Master => MASTER,
        AdamState::FirstMoment => "first_moment",
        AdamState::SecondMoment => SECOND,
    }
}

/// State of a whole parameter.
struct WholeState<'a> {
    number: usize,
    param: &'a Param,
    shape: &'a [usize],
    values: &'a [f32],
    kept: AdamState,
}

impl WholeState<'_> {
    /// Writes it. For a master weight, also records the digest of the model weight.
    fn write(
        &self,
        m: &Manifest,
        disk: &Disk,
        staging: &Path,
        state: &State,
    ) -> anyhow::Result<WrittenPart> {
        let WholeState { number, param, shape, values, kept } = *self;
        let rounded = model_dtype(m.precision)
            .halves(values)
            .filter(|_| kept == AdamState::Master);
        let wanted =
            |name: &str| name == saved_name(kept) || name == MODEL && kept == AdamState::Master;
        let states = optimizer_rule(m).states(&param.spec).into_iter();
        let shares: Vec<Share> = states
            .filter(|spec| wanted(spec.name))
            .map(|spec| {
                let bytes: &[u8] = match (&rounded, spec.name == MODEL) {
                    (Some(bits), true) => bytemuck::cast_slice(bits),
                    _ => bytemuck::cast_slice(values),
                };
                whole_share(number, param, shape, spec, bytes)
            })
            .collect();
        checkpoint::write_part(disk, staging, number, &shares, state)
    }
}
