//! Action on the Slurm job after a run has saved and left before the job's end: nothing, `scontrol
//! requeue`, or `sbatch` of the job's own script. Only for a run with remaining steps and a durable
//! checkpoint: a complete or failed run starts nothing.

use super::crash_loop;
use super::events::{self, Kind};
use super::sick_nodes;
use super::slurm::Job;
use base::Seconds;
use manifest::{Manifest, OnEnd};

/// Runs on rank 0, once all ranks have ended. Ends a chain of jobs in which the run makes no
/// progress.
pub fn queue_again(m: &Manifest) {
    let Some(job) = Job::from_environment() else { return };
    if !matches!(m.slurm.on_end, OnEnd::Requeue | OnEnd::Resubmit) {
        return;
    }
    let id = job.id();
    if let Err(starts) = crash_loop::check_restart(&m.log.folder) {
        let margin = Seconds(m.slurm.margin_s);
        tracing::warn!(
            "job {id} is not queued again: {starts} starts in a row took at most one step before \
             they left; give it more time (sbatch --time), or lower slurm.margin_s ({margin})"
        );
        return;
    }
    let excluded = nodes_to_exclude(m, &job);
    let without = excluded
        .as_ref()
        .map_or(String::new(), |nodes| format!(", without {nodes}"));
    let done = match m.slurm.on_end {
        OnEnd::Requeue => {
            // Slurm may end this process from now on.
            tracing::info!("job {id} goes back into the queue{without}");
            events::add(&m.log.folder, Kind::Queued, &format!("job {id}{without}"));
            let queued = job.requeue();
            if let (Ok(()), Some(Err(error))) = (&queued, excluded.map(|nodes| job.exclude(&nodes)))
            {
                tracing::warn!("job {id} is queued with all its nodes: {error:#}");
            }
            queued
        }
        _ => job
            .resubmit(&m.log.folder, excluded.as_deref())
            .map(|next| {
                tracing::info!("job {next} continues when job {id} has ended{without}");
                events::add(&m.log.folder, Kind::Queued, &format!("as job {next}{without}"));
            }),
    };
    if let Err(error) = done {
        let text = format!("job {id} is not queued again: {error:#}");
        tracing::warn!("{text}");
        events::add(&m.log.folder, Kind::Warning, &text);
    }
}

/// Nodes to exclude from the job, in Slurm's notation; None if none is sick, or if too few would
/// remain.
fn nodes_to_exclude(m: &Manifest, job: &Job) -> Option<String> {
    let sick = sick_nodes::hosts_to_exclude(&m.log.folder, m.slurm.exclude_stragglers);
    if sick.is_empty() {
        return None;
    }
    match job.exclusion_list(&sick) {
        Ok(nodes) => Some(nodes),
        Err(error) => {
            tracing::warn!("the job keeps its nodes, {} too: {error:#}", sick.join(", "));
            None
        }
    }
}
