//! Whether a run computes, waits in Slurm's queue, or does neither: for people, and for a cron job, which
//! goes by the exit code.

use anyhow::bail;
use base::unix_time;
use launch::slurm::{self, QueuedJob};
use manifest::Ranks;
use serde_json::json;
use std::path::Path;
use train::status::{RunState, Status};

/// Prints the place of a run in the queue, named by its folder or, before it has one, by its manifest. Fails
/// if it is neither complete, nor running, nor queued.
pub fn report(run: &Path, json: bool) -> anyhow::Result<()> {
    let (folder, name) = match Status::read(run) {
        Ok(status) => (run.to_path_buf(), status.name),
        Err(_) => {
            let m = manifest::load_for(run, &[], Ranks::OneReplica)?.manifest;
            (m.log.folder, m.name)
        }
    };
    let folder = folder.as_path();
    let status = Status::read(folder).ok();
    let state = status
        .as_ref()
        .map(|status| status.state(folder, unix_time().as_secs_f64()));
    let job = status.and_then(|status| status.job);
    let jobs = match state {
        Some(RunState::Complete) => Vec::new(),
        _ => slurm::queued_jobs(&name, job.as_deref())?,
    };
    let place = place_of(state, &jobs);
    if json {
        base::say!("{}", json!({ "state": place, "run": state, "jobs": jobs }));
    } else if jobs.is_empty() {
        base::say!("{name}: {place}");
    }
    for QueuedJob { id, state, reason } in jobs.iter().filter(|_| !json) {
        base::say!("{name}: {place}: job {id}, {state}, {reason}");
    }
    if place == ABSENT {
        bail!("{}: the run is not complete, and nothing will continue it", folder.display());
    }
    Ok(())
}

const ABSENT: &str = "not running and not queued";

/// Words for a run's place. A job that has started may not have reached the run yet.
fn place_of(state: Option<RunState>, jobs: &[QueuedJob]) -> &'static str {
    let waits = |job: &QueuedJob| job.state == "PENDING";
    match state {
        Some(RunState::Complete) => "complete",
        Some(RunState::Running) => "running",
        _ if jobs.iter().any(|job| !waits(job)) => "running",
        _ if !jobs.is_empty() => "waiting",
        _ => ABSENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_complete_running_waiting_or_absent() {
        let job = |state: &str| QueuedJob {
            id: "7".into(),
            state: state.into(),
            reason: "Priority".into(),
        };
        let both = [job("PENDING"), job("RUNNING")];
        assert_eq!(place_of(Some(RunState::Complete), &[]), "complete");
        assert_eq!(place_of(Some(RunState::Running), &[]), "running");
        assert_eq!(place_of(Some(RunState::Stopped), &both), "running");
        assert_eq!(place_of(Some(RunState::Stopped), &both[..1]), "waiting");
        assert_eq!(place_of(Some(RunState::Failed), &[]), ABSENT);
        assert_eq!(place_of(None, &[]), ABSENT);
    }
}
