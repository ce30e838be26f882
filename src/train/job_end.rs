//! What a run does with its Slurm job after it has saved and left before the job's end: nothing,
//! `scontrol requeue`, or `sbatch` of the job's own script. It comes here only with steps left to
//! take and a durable checkpoint: a run that is complete, or that fails, starts nothing.

use super::crash_loop;
use super::sick_nodes;
use super::slurm::Job;
use manifest::{Manifest, OnEnd};

/// By rank 0, once all ranks have left. A chain of jobs in which the run does not get on ends here.
pub fn act(m: &Manifest) {
    let Some(job) = Job::of_environment() else { return };
    if !matches!(m.slurm.on_end, OnEnd::Requeue | OnEnd::Resubmit) {
        return;
    }
    let id = job.id();
    if let Err(starts) = crash_loop::may_chain(&m.log.folder) {
        tracing::warn!(
            "job {id} is not queued again: {starts} starts in a row ended before a step; the time \
             limit is too short for this run, or the cluster too slow"
        );
        return;
    }
    let without = stay_away(m, &job);
    let told = without.as_ref().map_or(String::new(), |nodes| format!(", without {nodes}"));
    let done = match m.slurm.on_end {
        OnEnd::Requeue => {
            // From here on Slurm may end this process.
            tracing::info!("job {id} goes back into the queue{told}");
            let queued = job.requeue();
            if let (Ok(()), Some(Err(error))) =
                (&queued, without.map(|nodes| job.stay_away(&nodes)))
            {
                tracing::warn!("job {id} is queued with all its nodes: {error:#}");
            }
            queued
        }
        _ => job.resubmit(&m.log.folder, without.as_deref()).map(|next| {
            tracing::info!("job {next} goes on when job {id} has ended{told}");
        }),
    };
    if let Err(error) = done {
        tracing::warn!("job {id} is not queued again: {error:#}");
    }
}

/// The nodes that the job is to do without, as Slurm takes them; None where none is sick, or where
/// there would be too few.
fn stay_away(m: &Manifest, job: &Job) -> Option<String> {
    let sick = sick_nodes::excluded(&m.log.folder, m.slurm.exclude_stragglers);
    if sick.is_empty() {
        return None;
    }
    match job.without(&sick) {
        Ok(nodes) => Some(nodes),
        Err(error) => {
            tracing::warn!("the job keeps its nodes, {} too: {error:#}", sick.join(", "));
            None
        }
    }
}
