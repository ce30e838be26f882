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
    let done = match m.slurm.on_end {
        OnEnd::Requeue => {
            tracing::info!("job {id} goes back into the queue");
            job.requeue()
        }
        _ => {
            let exclude = sick_nodes::excluded(&m.log.folder, m.slurm.exclude_stragglers);
            job.resubmit(&m.log.folder, &exclude).map(|next| {
                let list = exclude.join(", ");
                let without = if list.is_empty() { list } else { format!(", without {list}") };
                tracing::info!("job {next} goes on when job {id} has ended{without}");
            })
        }
    };
    if let Err(error) = done {
        tracing::warn!("job {id} is not queued again: {error:#}");
    }
}
