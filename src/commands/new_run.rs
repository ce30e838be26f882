//! Writes the folder of a new run from another program's checkpoint: the manifest, and the weights and
//! states as the checkpoint of its step.

use crate::new_checkpoint::save_source;
use anyhow::Context;
use base::Problems;
use base::output::Existing;
use checkpoint::atomic_folder::{self, FolderKind};
use checkpoint::{self, DataId, Progress, State, validate};
use data::indexed::index_path;
use engine::ScaleState;
use exchange::foreign::Format;
use exchange::hf;
use exchange::source::ParamSource;
use manifest::Manifest;
use std::fs;
use std::path::{Path, PathBuf};
use train::{last_checkpoint, resume, saving};

/// Makes the folder `to`, completely or not at all. `check` is called with the checkpoint before the folder
/// gets its name. Returns the final path of the checkpoint.
pub fn write_run(
    source: &mut ParamSource,
    to: &Path,
    existing: Existing,
    check: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let run = std::path::absolute(to).with_context(|| format!("cannot find {}", to.display()))?;
    let state = make_state(source, data_of(source)?)?;
    atomic_folder::write(to, FolderKind::Run, existing, |staging| {
        let path = staging.join(manifest::IN_FOLDER);
        fs::write(&path, source.manifest_text())
            .with_context(|| format!("cannot write {}", path.display()))?;
        if let Some(from) = &source.carried {
            let beside = staging.join(hf::FOLDER);
            fs::create_dir(&beside)
                .with_context(|| format!("cannot create {}", beside.display()))?;
            hf::carry(from, &beside)?;
        }
        let written = save_source(source, &staging.join("checkpoints"), &state)?;
        last_checkpoint::note(staging, state.progress.step)?;
        check(&written)
    })?;
    let step = checkpoint::name(state.progress.step);
    Ok(run.join("checkpoints").join(step))
}

/// Identities of the datasets of a run that continues another, if they are here.
fn data_of(source: &ParamSource) -> anyhow::Result<Vec<DataId>> {
    let m = source.manifest();
    let exist = |m: &Manifest| {
        let mut prefixes = m.data.train_prefixes().into_iter();
        prefixes.all(|prefix| index_path(prefix).exists())
    };
    if source.facts().format == Format::HuggingFace || !exist(m) {
        return Ok(Vec::new());
    }
    resume::data_ids(m, m.data.seed)
}

/// State of the run after the step of the source.
pub fn make_state(source: &ParamSource, data: Vec<DataId>) -> anyhow::Result<State> {
    let m = source.manifest();
    let found = source.facts();
    let mut state = saving::initial_state(source.loaded(), data);
    state.progress = Progress { step: found.step, consumed_samples: found.samples };
    state.consumed_tokens = found.tokens;
    state.next_batch = m.batch.ramp().batch_at(found.samples) as u64;
    state.lr = found.lr;
    match found.without_states {
        Some(_) => state.optimizer.began = found.step,
        None => {
            state.skipped_updates = found.step.saturating_sub(found.updates);
            state.optimizer.ahead = found.updates.saturating_sub(found.step);
        }
    }
    for group in &mut state.optimizer.groups {
        group.step = found.updates;
    }
    state.loss_scale = found.loss_scale.map(|scale| ScaleState {
        scale: scale.scale,
        updates_in_a_row: scale.updates_in_a_row,
        overflows_left: scale.overflows_left,
        updates: found.updates,
        skipped: state.skipped_updates,
    });
    state.imported = Some(format!("{} in {}", found.trainer, found.folder));
    state.imported_types = source.other_types();
    let mut problems = Problems::default();
    for what in validate::numbers(state.lr, state.loss_scale) {
        problems.add(found.folder.clone(), what, "import an earlier step");
    }
    Ok(problems.or(state)?)
}
