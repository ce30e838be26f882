//! Imports a run of another trainer: its checkpoint becomes the checkpoint of the same step in a new
//! run, with AdamW's states, the number of updates, the learning rates and the place in the data.

use anyhow::Context;
use base::output::Existing;
use base::{Bytes, Problems};
use checkpoint::aside::{self, Kind};
use checkpoint::disk::Disk;
use checkpoint::foreign::{self, Choices, ForeignRun, Found, Kept, Request};
use checkpoint::{self, Progress, Share, State, WrittenPart};
use data::indexed::index_path;
use engine::{
    MASTER, MODEL, ScaleState, StateSpec, TensorSlice, model_dtype, optimizer_rule, saved_shape,
};
use manifest::{self, Loaded, Manifest};
use model::{Layout, ModelShard, Param};
use std::fs;
use std::path::{Path, PathBuf};
use train::{last_checkpoint, resume, saving};

/// Result of an import: the checkpoint that was found, and the one that was written.
pub struct Brought {
    pub found: Found,
    /// Parameters, and host memory for the largest one; None while a setting is missing.
    pub size: Option<(u64, Bytes)>,
    /// Written checkpoint; None in a dry run.
    pub checkpoint: Option<PathBuf>,
    /// Notes for the user from reading.
    pub remarks: Vec<String>,
}

/// Makes the folder `to` of a new run from the folder `from` of another trainer, completely or not at
/// all. Without `to`, only reads what `from` contains.
pub fn bring(
    from: &Path,
    format: foreign::Format,
    to: Option<(&Path, Existing)>,
    choices: &Choices,
) -> anyhow::Result<Brought> {
    if let Some((to, existing)) = to {
        aside::vacant(to, Kind::Run, existing)?;
    }
    let mut foreign = foreign::open(from, format, choices)?;
    if !foreign.found().wanted.is_empty() {
        if to.is_some() {
            return Err(wanted(foreign.found()).into());
        }
        let (found, remarks) = (foreign.found().clone(), Vec::new());
        return Ok(Brought { found, size: None, checkpoint: None, remarks });
    }
    let run = to.map_or(Path::new("imported"), |(to, _)| to);
    let run = std::path::absolute(run).with_context(|| format!("cannot find {}", run.display()))?;
    let (text, loaded) = new_manifest(foreign.found(), &run, &choices.sets)?;
    let m = &loaded.manifest;
    adamw(m)?;
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let params: Vec<&Param> = layout.params().collect();
    foreign.check(&m.model, &params)?;
    let largest = params.iter().map(|param| param.numel()).max().unwrap_or(0);
    let done = |found: &Found, checkpoint, remarks| Brought {
        found: found.clone(),
        // The parameter in f32 and its share of one rank, or the parameter in 16 bits.
        size: Some((model::parameters(&m.model), Bytes(8 * largest as u64))),
        checkpoint,
        remarks,
    };
    let Some((to, existing)) = to else { return Ok(done(foreign.found(), None, Vec::new())) };
    let state = state(foreign.found(), &loaded)?;
    aside::write_folder(to, Kind::Run, existing, |fresh| {
        let path = fresh.join(manifest::IN_FOLDER);
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        save(m, &fresh.join("checkpoints"), &params, &mut *foreign, &state)?;
        last_checkpoint::note(fresh, state.progress.step)
    })?;
    let checkpoint = run.join("checkpoints").join(checkpoint::name(state.progress.step));
    let remarks = foreign.remarks();
    Ok(done(foreign.found(), Some(checkpoint), remarks))
}

/// Manifest of the run that a folder would become, for its plan. Missing settings get example values,
/// except those of the model and the batch.
pub fn planned(from: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    let run = Path::new("imported");
    let format = foreign::detect(from)?;
    if format == foreign::Format::HuggingFace {
        let model = super::import::model_section(from)?;
        let text = format!(
            "{model}\nprecision: bf16\ndata: {{train: corpus}}\nbatch: {{micro: 1, global: 512}}\n\
             lr: {{peak: 3e-5}}\ntrain: {{steps: 1000}}\n"
        );
        return Ok(manifest::parse(&text, &from.display().to_string(), run, sets)?);
    }
    let choices = Choices { sets: sets.to_vec(), ..Choices::default() };
    let foreign = foreign::open(from, format, &choices)?;
    let mut found = foreign.found().clone();
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
    Ok(new_manifest(&found, run, sets)?.1)
}

/// An error that lists the settings that the folder does not have.
fn wanted(found: &Found) -> Problems {
    let mut problems = Problems::default();
    for row in &found.wanted {
        let what = format!("has no {}: {}", row.key, row.why);
        let remedy = format!("name it: --set {}={}", row.key, row.example);
        problems.add(found.folder.clone(), what, remedy);
    }
    problems
}

/// Manifest of the new run: its text, and the parsed manifest. Includes the settings of the command
/// line.
fn new_manifest(found: &Found, run: &Path, sets: &[String]) -> anyhow::Result<(String, Loaded)> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let name = run.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = !name.starts_with('.') && name.chars().all(plain) && name.len() <= 200;
    let name = if fits && !name.is_empty() { name } else { "imported" };
    let line = |text: &str| text.replace(['\n', '\r'], " ");
    let from = line(&found.folder);
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
        line(&run.display().to_string()),
        quoted(name),
        found.settings.yaml(),
        quoted(&run.display().to_string()),
    );
    let path = run.join(manifest::IN_FOLDER).display().to_string();
    let text = manifest::rewrite(&text, &path, run, sets)?;
    let loaded = manifest::parse(&text, &path, run, &[])?;
    Ok((text, loaded))
}

/// Fails unless the optimizer is AdamW, whose states were found.
fn adamw(m: &Manifest) -> Result<(), Problems> {
    match m.optimizer.name() {
        "adamw" => Ok(()),
        other => {
            let what = format!("is {other}, but the checkpoint has the states of adamw");
            Err(Problems::one(
                "optimizer",
                what,
                "import with adamw, and change it in the manifest",
            ))
        }
    }
}

/// State of the run after the imported step.
fn state(found: &Found, loaded: &Loaded) -> anyhow::Result<State> {
    let m = &loaded.manifest;
    let there = m.data.train_prefixes().into_iter().all(|prefix| index_path(prefix).exists());
    let data = if there { resume::data_ids(m)? } else { Vec::new() };
    let mut state = saving::initial_state(loaded, data);
    let Found { step, samples, tokens, updates, lr, .. } = *found;
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
    state.optimizer.groups.iter_mut().for_each(|group| group.step = updates);
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
    Ok(state)
}

/// Writes the checkpoint, one state of one parameter at a time, each into its own file.
fn save(
    m: &Manifest,
    checkpoints: &Path,
    params: &[&Param],
    foreign: &mut dyn ForeignRun,
    state: &State,
) -> anyhow::Result<PathBuf> {
    let disk = Disk::default();
    fs::create_dir_all(checkpoints)
        .with_context(|| format!("cannot create {}", checkpoints.display()))?;
    let step = state.progress.step;
    let fresh = checkpoint::fresh(checkpoints, step);
    checkpoint::begin(&disk, &fresh, step, checkpoint::saved_bytes(m))?;
    let mut write = || {
        let mut parts = Vec::new();
        for (number, param) in params.iter().enumerate() {
            let shape = saved_shape(param, m.model.vocab);
            // A run from step 0 starts with moments of its own.
            let states = if state.is_import() { &[Kept::Master][..] } else { &Kept::ALL };
            for kept in states.iter().copied() {
                let request = Request { model: &m.model, param, shape: &shape, kept };
                let values = foreign.read(request)?;
                finite(&values, param, kept)?;
                let whole = Whole { number, param, shape: &shape, values: &values };
                parts.push(whole.write(m, &disk, &fresh, kept, state)?);
            }
        }
        checkpoint::publish(&disk, &fresh, parts, state)
    };
    let written = write();
    written.map_err(|error| checkpoint::abandon(&disk, &fresh, step, error))
}

fn finite(values: &[f32], param: &Param, kept: Kept) -> Result<(), Problems> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let what = format!("the {} holds a number that is not finite, number {at}", kept.name());
    Err(Problems::one(param.name.clone(), what, "import an earlier step"))
}

/// State of a whole parameter.
struct Whole<'a> {
    number: usize,
    param: &'a Param,
    shape: &'a [usize],
    values: &'a [f32],
}

impl Whole<'_> {
    /// Writes it. For a master weight, also records the digest of the model weight.
    fn write(
        &self,
        m: &Manifest,
        disk: &Disk,
        fresh: &Path,
        kept: Kept,
        state: &State,
    ) -> anyhow::Result<WrittenPart> {
        let Whole { number, param, shape, values } = *self;
        let rounded = match kept {
            Kept::Master => model_dtype(m.precision).halves(values),
            _ => None,
        };
        let wanted: &[&str] = match kept {
            Kept::Master => &[MASTER, MODEL],
            Kept::FirstMoment => &["first_moment"],
            Kept::SecondMoment => &["second_moment"],
        };
        let states = optimizer_rule(m).states(&param.spec).into_iter();
        let share = |spec: StateSpec| {
            let bytes: &[u8] = match (&rounded, spec.name == MODEL) {
                (Some(bits), true) => bytemuck::cast_slice(bits),
                _ => bytemuck::cast_slice(values),
            };
            let cols = shape[shape.len() - 1];
            let size = spec.extent.shape([values.len() / cols, cols]);
            let slice = TensorSlice { at: [0, 0], size };
            let (name, decay, replica) = (&param.name, param.spec.decay, Default::default());
            Share { name, number, shape, decay, state: spec, slice, replica, bytes }
        };
        let shares: Vec<Share> =
            states.filter(|spec| wanted.contains(&spec.name)).map(share).collect();
        checkpoint::write_part(disk, fresh, number, &shares, state)
    }
}
