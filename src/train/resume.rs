//! Resuming from a checkpoint: only a complete one, and only with a manifest and datasets that
//! continue the same run.

use super::changed_settings::{self, SettingChange};
use super::{last_checkpoint, saving};
use anyhow::{Context, Result};
use base::{Count, Problems};
use checkpoint::disk::Disk;
use checkpoint::{
    self, Checkpoint, CheckpointFolder, DataId, Digest, Index, Progress, RemoteShards, Rng, State,
};
use data::MixturePlan;
use data::indexed::digest::{sampled_digest, whole_digest};
use data::indexed::{index_path, tokens_path};
use engine::Engine;
use launch::events::{self, Kind};
use launch::rank::Rank;
use manifest::{self, Dropout, Loaded, Manifest};
use std::path::Path;
use std::sync::Arc;

/// Checkpoint to resume from: the one that is `named`, else the newest; None for a new run. Also
/// removes the remains of interrupted saves: this run holds the folder's lock.
pub fn find(m: &Manifest, named: Option<&Path>) -> Result<Option<CheckpointFolder>> {
    let checkpoints = saving::folder(m);
    for (path, bytes) in checkpoint::clean(&Disk::default(), &checkpoints)? {
        tracing::info!("removed {} ({bytes}), left by an interrupted save", path.display());
    }
    if let Some(hint) = checkpoint::hint(&checkpoints)? {
        tracing::warn!("{hint}");
    }
    let Some(named) = named else {
        let latest = checkpoint::latest(&checkpoints)?;
        if latest.is_none() {
            last_checkpoint::check(&m.log.folder)?;
        }
        return Ok(latest);
    };
    let published = checkpoint::published(&checkpoints)?;
    let name = named.file_name().unwrap_or_default();
    let describe = |found: &CheckpointFolder| {
        let weights = if found.has_weights_only() { " (weights only)" } else { "" };
        checkpoint::name(found.step) + weights
    };
    let names: Vec<String> = published.iter().map(describe).collect();
    let found = published
        .into_iter()
        .find(|found| found.folder.file_name() == Some(name));
    if found.is_none() {
        return Err(Problems::one(
            "--resume-from",
            format!("{} holds no {}", checkpoints.display(), named.display()),
            format!("there are: {}", names.join(", ")),
        )
        .into());
    }
    Ok(found)
}

/// Continues the checkpoint's mixture of datasets: the manifest's datasets follow after its sample. No
/// sample is skipped or read twice. `now` are the manifest's existing datasets; a missing one is
/// reported when it is opened.
pub fn continue_mixture(
    found: Option<&CheckpointFolder>,
    m: &Manifest,
    now: &[DataId],
) -> Result<MixturePlan> {
    let Some(found) = found else { return Ok(MixturePlan::from_data(&m.data, m.train.samples)) };
    let index = Index::read(&found.folder).map_err(|error| name_other(error, found, m))?;
    let state = index.state;
    if state.imported.is_some() && state.data.is_empty() {
        // Another trainer read the samples so far: its order is that of the manifest's datasets,
        // wherever they are here.
        return Ok(MixturePlan::from_data(&m.data, m.train.samples));
    }
    // A dataset that was moved is still the same one.
    let moved = state.data.iter().filter_map(|saved| {
        let gone = now.iter().all(|now| now.prefix != saved.prefix);
        let same = now
            .iter()
            .find(|now| saved.same_content(now))
            .filter(|_| gone);
        same.map(|now| (&saved.prefix, &now.prefix))
    });
    let plan =
        moved.fold(state.mixture.clone(), |plan, (from, to)| plan.with_moved_dataset(from, to));
    let consumed = state.progress.consumed_samples;
    let reseeded = state.rng.data_seed != m.data.seed;
    let plan = plan.continue_with(&m.data, state.rng.data_seed, m.train.samples, consumed);
    let mut changes = plan.stages.windows(2).map(|two| (&two[0], &two[1]));
    if changes.any(|(before, now)| now.from == consumed && before.datasets != now.datasets) {
        tracing::warn!("another mixture of datasets from sample {consumed} on");
    }
    if reseeded {
        tracing::warn!(
            "another order of samples from sample {consumed} on: the samples of the epoch that were \
             not read yet are shuffled again, and none is read twice or left out; validation sets \
             keep their order"
        );
    }
    Ok(plan)
}

/// Options of a resume.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResumeOptions {
    /// Whether the user named the checkpoint.
    pub is_named: bool,
    /// Whether to reset the optimizer's states.
    pub reset_optimizer: bool,
}

/// Loads this rank's share of the checkpoint into the engine. An error names the obstacle in the
/// checkpoint, the manifest or the data. Renames checkpoints that are newer than one that the user
/// named, once all ranks have loaded it. `remote` has the shards that are not in the folder. A
/// collective.
pub fn resume(
    rank: &Rank,
    found: &CheckpointFolder,
    options: ResumeOptions,
    loaded: &Loaded,
    data: &[DataId],
    engine: &Engine,
    remote: Option<Arc<dyn RemoteShards>>,
) -> Result<State> {
    let (checkpoint, changes) =
        rank.run_phase("loading", || load(found, options, loaded, data, engine, remote))?;
    engine.store().cast_master_to_model();
    let held = rank.gather(&checkpoint::replica_digests(engine))?;
    let arrived = if rank.is_first() { checkpoint::verify(&checkpoint, &held) } else { Ok(()) };
    rank.agree(arrived.map_err(|error| name_other(error, found, &loaded.manifest)))?;
    let state = checkpoint.index.state.clone();
    let Progress { step, consumed_samples } = state.progress;
    tracing::info!(
        "resuming from {} (step {step}, {consumed_samples} samples), every digest verified",
        found.folder.display()
    );
    if rank.is_first() {
        for change in &changes {
            tracing::warn!("{change}");
            events::add(&loaded.manifest.log.folder, Kind::Setting, &change.to_string());
        }
        if state.rng.seed != loaded.manifest.train.seed && !state.is_import() {
            tracing::warn!("{}", explain_seed(&loaded.manifest));
        }
    }
    let checkpoints = saving::folder(&loaded.manifest);
    for name in rank.on_first(|| {
        if options.is_named { checkpoint::set_aside(&checkpoints, step) } else { Ok(Vec::new()) }
    })? {
        tracing::warn!("a newer checkpoint is now called {name}");
    }
    if state.is_import() {
        let State { run, imported, .. } = state;
        let begun = saving::initial_state(loaded, data.to_vec());
        return Ok(State { run, imported, ..begun });
    }
    let (began, ahead) = if options.reset_optimizer {
        (step, 0)
    } else {
        (state.optimizer.began, state.optimizer.ahead)
    };
    let optimizer =
        checkpoint::Optimizer { began, ahead, ..saving::initial_optimizer(&loaded.manifest) };
    let manifest = loaded.effective.clone();
    let data = data.to_vec();
    let rng = continue_seeds(&state.rng, &loaded.manifest);
    Ok(State { manifest, data, optimizer, rng, pending: None, ..state })
}

/// Effect of another `train.seed` on a run that continues.
fn explain_seed(m: &Manifest) -> &'static str {
    let Dropout { embedding, attention, residual } = m.model.dropout;
    if embedding.max(attention).max(residual) > 0.0 {
        "train.seed: dropout is drawn from the new seed from here on; the weights stay as they are"
    } else {
        "train.seed changes nothing: the weights stay as they are, and model.dropout is 0. The order of \
         samples has its own seed, data.seed"
    }
}

/// Seeds of a run that continues with the manifest's.
fn continue_seeds(saved: &Rng, m: &Manifest) -> Rng {
    let Rng { generator, seed, initial_seed, .. } = saved.clone();
    let changed = Some(seed).filter(|seed| *seed != m.train.seed);
    let initial_seed = initial_seed.or(changed);
    Rng { generator, seed: m.train.seed, data_seed: m.data.seed, initial_seed }
}

/// Reads this rank's tensors, after checking that manifest and data continue the run. Also returns the
/// settings that changed.
fn load(
    found: &CheckpointFolder,
    options: ResumeOptions,
    loaded: &Loaded,
    data: &[DataId],
    engine: &Engine,
    remote: Option<Arc<dyn RemoteShards>>,
) -> Result<(Checkpoint, Vec<SettingChange>)> {
    let checkpoint = Checkpoint::open_with(&found.folder, remote)
        .map_err(|error| name_other(error, found, &loaded.manifest))?;
    let changes = compare_settings(&checkpoint.index, found, loaded, data)?;
    let import = checkpoint.index.is_import();
    let before = &checkpoint.index.optimizer.rule;
    let now = loaded.manifest.optimizer.name();
    let continues = before == now || engine.rule().resumes_from(before);
    if !import
        && let Some(message) =
            check_optimizer(before, now, continues, options.reset_optimizer, found)?
    {
        tracing::info!("{message}");
    }
    let read = if options.reset_optimizer {
        checkpoint::read_weights_into(&checkpoint, engine)
    } else {
        checkpoint::read_into(&checkpoint, engine)
    };
    read.map_err(|error| name_other(error, found, &loaded.manifest))?;
    if let Some(line) = checkpoint::exchange_restarts(&checkpoint, engine) {
        tracing::info!("{line}");
    }
    Ok((checkpoint, changes))
}

/// Changes for the run that continues from a checkpoint. Fails if it would be a different run.
fn compare_settings(
    index: &Index,
    found: &CheckpointFolder,
    loaded: &Loaded,
    data: &[DataId],
) -> Result<Vec<SettingChange>> {
    let base = loaded.source.parent().unwrap_or(Path::new("."));
    let saved = manifest::parse_saved(&index.manifest, "the checkpoint's manifest", base, &[])?;
    let changes =
        changed_settings::compare(&saved.effective, &loaded.effective, index.is_import(), found)?;
    check_datasets(&index.data, data, found)?;
    Ok(changes)
}

/// Fails if the run has trained longer than the manifest asks for.
pub fn check_length(found: &CheckpointFolder, loaded: &Loaded, data: &[DataId]) -> Result<()> {
    let m = &loaded.manifest;
    let index = Index::read(&found.folder).map_err(|error| name_other(error, found, m))?;
    let Progress { step, consumed_samples } = index.progress;
    if consumed_samples <= m.train.samples || index.is_import() {
        return Ok(());
    }
    compare_settings(&index, found, loaded, data)?; // another batch makes another number of steps
    let asked = m.batch.ramp().steps(m.train.samples);
    let earlier = find_whole(m, |step| step <= asked && step > 0);
    let back = earlier.map_or(String::new(), |other| {
        let name = checkpoint::name(other.step);
        format!(", or go back, which sets newer checkpoints aside: --resume-from {name}")
    });
    Err(Problems::one(
        m.log.folder.display().to_string(),
        format!("{} are done, {} asked for", Count(step).with_noun("step"), Count(asked)),
        format!("to train further: --set train.steps=N, with N above {step}{back}"),
    )
    .into())
}

/// Whether the run has no remaining steps after a checkpoint. Fails if it would be a different run.
pub fn is_complete(found: &CheckpointFolder, loaded: &Loaded, data: &[DataId]) -> Result<bool> {
    let m = &loaded.manifest;
    let index = Index::read(&found.folder).map_err(|error| name_other(error, found, m))?;
    let consumed = index.progress.consumed_samples;
    let next = m.step_samples().after(consumed);
    let complete = next.end > m.train.samples && !index.is_import();
    if complete {
        for change in compare_settings(&index, found, loaded, data)? {
            tracing::warn!("{change}");
        }
    }
    Ok(complete)
}

/// Message about the optimizer's states, unless they continue unchanged. Fails if the manifest's
/// optimizer cannot continue from the states of the previous one.
fn check_optimizer(
    before: &str,
    now: &str,
    continues: bool,
    reset: bool,
    found: &CheckpointFolder,
) -> Result<Option<String>, Problems> {
    let step = found.step;
    match (reset, continues) {
        (true, _) => Ok(Some(format!(
            "the optimizer's states are reset at step {step} ({now}; it was {before}): the weights \
             are kept, updates are counted from here"
        ))),
        (false, true) if before == now => Ok(None),
        (false, true) => Ok(Some(format!(
            "the optimizer was {before}, is {now} from step {step} on: its states are converted once"
        ))),
        (false, false) => Err(Problems::one(
            found.folder.display().to_string(),
            format!(
                "was trained with the optimizer {before}: {now} cannot continue from its states"
            ),
            format!(
                "set optimizer to {before}, or keep the weights and reset its states: \
                 --reset-optimizer"
            ),
        )),
    }
}

/// Newest checkpoint on disk from which the run can continue and whose step `is_wanted`.
fn find_whole(m: &Manifest, is_wanted: impl Fn(u64) -> bool) -> Option<CheckpointFolder> {
    checkpoint::find_whole(&saving::folder(m), is_wanted)
        .ok()
        .flatten()
}

/// Adds the name of another checkpoint that could be used: an older one, or a newer one if there is none.
/// It is never chosen silently.
fn name_other(error: anyhow::Error, found: &CheckpointFolder, m: &Manifest) -> anyhow::Error {
    let is_other = |step| step < found.step || is_elsewhere(found, m) && step == found.step;
    let older = find_whole(m, is_other).map(|older| ("an older", older));
    let other = older.or_else(|| Some(("a newer", find_whole(m, |step| step > found.step)?)));
    let remedy = match other {
        Some((age, other)) => {
            let name = checkpoint::name(other.step);
            format!("to continue from {age} checkpoint: --resume-from {name}")
        }
        None => "there is no other checkpoint to continue from".to_string(),
    };
    error.context(format!("cannot continue from step {}; {remedy}", found.step))
}

/// Whether a checkpoint is not in the run's folder but in the memory of the nodes.
fn is_elsewhere(found: &CheckpointFolder, m: &Manifest) -> bool {
    found.folder.parent() != Some(&saving::folder(m))
}

/// Fails if the path of a training dataset of the run now has another dataset.
fn check_datasets(
    saved: &[DataId],
    now: &[DataId],
    found: &CheckpointFolder,
) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for saved in saved {
        let Some(now) = now.iter().find(|now| now.prefix == saved.prefix) else { continue };
        if !saved.same_content(now) {
            problems.add(
                now.prefix.clone(),
                format!(
                    "is not the dataset that {} was trained on: it is {}, it was {}",
                    found.folder.display(),
                    describe_files(now),
                    describe_files(saved)
                ),
                "bring the old dataset back, or start a new run: --set log.folder=DIR",
            );
        }
    }
    problems.or(())
}

/// "its .idx of 5,000 bytes (digest 0f…), its .bin of 9,000 (digest of pieces 3a…)".
pub fn describe_files(id: &DataId) -> String {
    let DataId { index_bytes, index_digest, token_bytes, token_digest, .. } = id;
    let pieces = token_digest.map_or(String::new(), |d| format!(" (digest of pieces {d})"));
    format!(
        "an .idx of {index_bytes} bytes (digest {index_digest}) and a .bin of {token_bytes}{pieces}"
    )
}

/// Seed that chooses the pieces of a dataset of which a run keeps a digest: the data seed with which the
/// run began, that of the manifest for a new run.
pub fn digest_seed(found: Option<&CheckpointFolder>, m: &Manifest) -> u64 {
    let index = found.and_then(|found| Index::read(&found.folder).ok());
    let seed = index.map(|index| index.mixture.first_seed().unwrap_or(index.rng.data_seed));
    seed.unwrap_or(m.data.seed)
}

/// Identities of the training datasets, in the manifest's order, by pieces that `seed` chooses.
pub fn data_ids(m: &Manifest, seed: u64) -> Result<Vec<DataId>> {
    m.data
        .train_prefixes()
        .into_iter()
        .map(|prefix| -> Result<DataId> {
            let index = index_path(prefix);
            let tokens = tokens_path(prefix);
            let failed = |path: &Path| format!("cannot read {}", path.display());
            let (index_bytes, index_digest) =
                whole_digest(&index, |_| {}).with_context(|| failed(&index))?;
            let sampled = sampled_digest(&tokens, seed);
            let (token_bytes, token_digest) = sampled.with_context(|| failed(&tokens))?;
            let prefix = prefix.display().to_string();
            let token_digest = Some(Digest(token_digest));
            let index_digest = Digest(index_digest);
            Ok(DataId { prefix, index_bytes, index_digest, token_bytes, token_digest })
        })
        .collect()
}
