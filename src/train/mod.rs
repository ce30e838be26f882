//! The loop around the optimizer step: start-up, resume, training, evaluation, checkpoints, a clean
//! stop. All ranks of a run execute it in the same order; rank 0 reports.

mod start;
mod run;
mod watch;

pub mod trace;

pub mod changed_settings;
pub mod energy;
mod fetch;
mod mirror;
mod node_memory;
mod preflight;
pub mod file_checks;
mod gpu_faults;
pub mod last_checkpoint;
pub mod loader;
pub mod memory;
mod not_finite;
pub mod probe;
mod op_table;
mod step_parts;
pub mod resume;
pub mod saving;
mod roll_back;
mod tokenizers;
pub mod status;
pub mod spikes;
pub mod stragglers;
pub mod time_limit;
pub mod report;

pub mod eval;
pub mod replay;
#[cfg(feature = "testing")]
pub mod testing;

pub use start::RunOptions;
pub use watch::Ended;

use anyhow::Result;
use comm::Failed;
use launch::live::{RankPlace, Responder};
use launch::messages::Messages;
use launch::rank::Rank;
use launch::{LocalRanks, crash_loop, events, job_end, live, sick_nodes};
use manifest::Loaded;
use std::ffi::OsString;
use std::path::Path;

/// Supervises this task's rank to the end of the job. Returns false if this process is to be the
/// rank itself.
pub fn supervise(loaded: &Loaded) -> Result<bool> {
    launch::supervise(loaded, &|| saving::newest_step(&loaded.manifest))
}

/// Runs the ranks as processes of the arguments `words`, to their end. Returns false if this process
/// runs the ranks itself.
pub fn start_processes(loaded: &Loaded, words: &[OsString]) -> Result<bool> {
    let m = &loaded.manifest;
    launch::start_processes(loaded, words, || {
        m.runnable()?;
        eval::read_tasks(m).map(drop)
    })
}

/// Starts the processes of a probe, as `start_processes`. A failure is not recorded in the run's folder.
pub fn start_probe_processes(loaded: &Loaded, words: &[OsString]) -> Result<bool> {
    launch::start_unrecorded_processes(loaded, words, || Ok(loaded.manifest.runnable()?))
}

/// Trains the manifest, from the newest checkpoint in its folder to the end or to a signal. The
/// outcome is returned in the process of rank 0, None in the others.
pub fn run(loaded: &Loaded, options: &RunOptions, messages: &Messages) -> Result<Option<Ended>> {
    loaded.manifest.runnable()?;
    let tasks = eval::read_tasks(&loaded.manifest)?;
    let clean_up = launch::clean_up_on_signal(&loaded.manifest)?;
    let mut ranks = LocalRanks::rendezvous(loaded, &format!("{options:?}"))?;
    let launched = ranks.are_processes();
    let process = start::Process::new(loaded, options, messages, tasks, &ranks)?;
    drop(clean_up); // the process listens
    let folder = &loaded.manifest.log.folder;
    let _responder = Responder::start(folder, &ranks.node, ranks.recorders())?;
    let node = ranks.node.clone();
    let ended = ranks.run(&loaded.manifest, messages, |rank, device| {
        let lock = start::lock(rank, &loaded.manifest)?;
        let opened = start::open(&process, rank, device);
        if let (Err(_), Some(lock)) = (&opened, &lock) {
            lock.remove_unused();
        }
        let Some(mut run) = opened? else {
            return Ok((rank.is_first(), Ended::NothingLeft));
        };
        announce_places(rank, folder, &node)?;
        let from = run.progress.step;
        let ended = run.train();
        run.end(&ended);
        match &ended {
            Ok(Ended::JobEnds) if rank.is_first() => {
                crash_loop::count_leave(folder, from..run.progress.step);
            }
            Ok(_) if rank.is_first() => crash_loop::reset(folder),
            _ => {}
        }
        Ok((rank.is_first(), ended?))
    });
    if let Err(error) = &ended {
        note_failure(folder, error, launched);
    }
    let (first, ended) = ended?;
    process.signals.suppress_message();
    if first && ended == Ended::JobEnds {
        job_end::queue_again(&loaded.manifest);
    }
    Ok(first.then_some(ended))
}

/// Writes the places of all ranks, for live reports. Without the file the run continues.
fn announce_places(rank: &Rank, folder: &Path, node: &str) -> Result<()> {
    let place =
        RankPlace { node: node.into(), coord: rank.coord.name(), process: std::process::id() };
    let places = rank.gather(&place)?;
    if rank.is_first()
        && let Err(error) = live::announce(folder, &places)
    {
        tracing::warn!("`gptrain diagnose --now` will not know the ranks: {error:#}");
    }
    Ok(())
}

/// Records the verdict, in the process that prints it, and the node of the rank at fault.
fn note_failure(folder: &Path, error: &anyhow::Error, launched: bool) {
    let Some(failed) = error.downcast_ref::<Failed>().filter(|failed| failed.print) else { return };
    events::add(folder, events::Kind::Failure, &failed.line);
    if !launched {
        return;
    }
    let Some(host) = comm::blamed_node(&failed.line) else { return };
    if let Err(error) = sick_nodes::add(folder, host, sick_nodes::Reason::Failed, &failed.line) {
        tracing::warn!("{host} is not recorded: {error:#}");
    }
}
