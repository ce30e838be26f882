//! Start of a probe: data, memory and new weights as a run has them, and nothing of a run's folder.

use super::{Origin, Process, announce, announce_plan, open_data, reserve_engine};
use crate::file_checks::check_files;
use crate::loader::{DataShard, Loader};
use crate::resume;
use crate::run::{InFlight, Run};
use crate::watch::{RunContext, Watcher, Watchers};
use anyhow::Result;
use checkpoint::Progress;
use launch::Device;
use launch::rank::Rank;

/// State of a rank before the step after `progress`, whose only watcher is `watcher`. A collective.
pub fn open<'a>(
    process: &'a Process,
    rank: &'a Rank,
    device: &'a Device,
    progress: Progress,
    watcher: Box<dyn Watcher + 'a>,
) -> Result<Run<'a>> {
    let loaded = process.loaded;
    let m = &loaded.manifest;
    rank.run_phase_on_rank0("looking at files", || Ok(check_files(m)?.into_result()?))?;
    let origin = rank.run_phase_on_rank0("opening data", || {
        let digest_seed = resume::digest_seed(None, m);
        let ids = resume::data_ids(m, digest_seed).ok();
        let mixture = resume::continue_mixture(None, m, ids.as_deref().unwrap_or_default())?;
        Ok(Origin { found: None, mixture, ids, digest_seed })
    })?;
    let (data, data_ids) = open_data(process, rank, &origin)?;
    announce_plan(process, rank, device, &data, progress.step)?;
    let engine = reserve_engine(process, rank, device)?;
    announce::announce_ranks(process, rank, device, &engine)?;
    rank.set_phase("setting initial weights");
    engine.init();
    let steps = m.step_samples();
    let shard = DataShard::for_rank(rank, m);
    let loader = rank.run_phase("starting the data loader", || {
        Loader::training(
            &data.train,
            steps.clone(),
            shard,
            progress.consumed_samples,
            m.train.samples,
        )
    })?;
    Ok(Run {
        cx: RunContext {
            loaded,
            manifest: m,
            rank,
            shard,
            steps,
            be: device.backend(),
            data,
            data_ids,
            tasks: process.tasks.clone(),
            signals: &process.signals,
            monitor: device.monitor(),
        },
        engine,
        loader,
        progress,
        in_flight: InFlight::default(),
        watchers: Watchers::only(watcher),
    })
}
