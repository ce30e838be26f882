//! The loop around the optimizer step: start-up, resume, training, evaluation, checkpoints, a clean
//! stop. All ranks of a run execute it in the same order; rank 0 reports.

mod start;
mod run;
mod watch;

pub mod launch;
pub mod rank;
pub mod exit;
pub mod messages;
pub mod trace;

mod also;
mod preflight;
pub mod files;
mod crash_loop;
pub mod events;
mod job_end;
mod gpu_faults;
mod guard;
mod last_checkpoint;
mod loader;
mod op_table;
mod step_parts;
pub mod length;
mod resume;
pub mod saving;
mod roll_back;
mod tokenizers;
pub mod sick_nodes;
mod slurm;
pub mod storage;
pub mod status;
mod spikes;
pub mod stragglers;
mod supervise;
pub mod time_limit;
mod fresh;
pub mod report;
pub mod job_script;

pub mod eval;
pub mod average;
pub mod replay;
pub mod generate;
pub mod divergence;
pub mod import;
pub mod bring;
pub mod recipe;
#[cfg(feature = "testing")]
pub mod testing;

pub use guard::{heed_size_limits, stop_signals};
pub use start::Options;
pub use supervise::{RANKS, start_processes, supervise};
pub use watch::Ended;

use comm::Failed;
use manifest::Loaded;
use messages::Messages;
use std::path::Path;

/// Trains the manifest, from the newest checkpoint in its folder to the end or to a signal. The
/// outcome is returned in the process of rank 0, None in the others.
pub fn run(
    loaded: &Loaded,
    options: &Options,
    messages: &Messages,
) -> anyhow::Result<Option<Ended>> {
    loaded.manifest.runnable()?;
    let tasks = eval::tasks(&loaded.manifest)?;
    let waiting = launch::waiting(&loaded.manifest)?;
    let mut ranks = launch::LocalRanks::rendezvous(loaded, &format!("{options:?}"))?;
    let launched = ranks.are_processes();
    let process = start::Process::new(loaded, options, messages, tasks, &ranks)?;
    drop(waiting); // the process listens
    let ended = ranks.run(&loaded.manifest, messages, |rank, device| {
        let lock = start::lock(rank, &loaded.manifest)?;
        let opened = start::open(&process, rank, device);
        if let (Err(_), Some(lock)) = (&opened, &lock) {
            lock.remove_unused();
        }
        let Some(mut run) = opened? else {
            return Ok((rank.is_first(), Ended::NothingLeft));
        };
        let from = run.progress.step;
        let ended = run.train();
        run.end(&ended);
        let stuck = matches!(ended, Ok(Ended::JobEnds)) && run.progress.step == from;
        if rank.is_first() && ended.is_ok() && !stuck {
            crash_loop::reset(&loaded.manifest.log.folder);
        }
        Ok((rank.is_first(), ended?))
    });
    if let Err(error) = &ended {
        note_failure(&loaded.manifest.log.folder, error, launched);
    }
    let (first, ended) = ended?;
    process.signals.over();
    if first && ended == Ended::JobEnds {
        job_end::act(&loaded.manifest);
    }
    Ok(first.then_some(ended))
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
