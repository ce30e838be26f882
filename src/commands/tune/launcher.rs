//! Command that starts the ranks of a cut: none on this machine, srun in an allocation of Slurm.

use base::Problems;
use comm::LauncherEnv;
use launch::slurm::Job;
use std::ffi::OsString;

/// Start of the ranks.
pub enum Launcher {
    /// `gptrain run` starts them here.
    Here,
    /// One srun each; whether this process is a step of the job itself.
    Srun { in_step: bool },
}

impl Launcher {
    /// Launcher of this process's surroundings. Fails in one of several tasks.
    pub fn detect() -> Result<Launcher, Problems> {
        let launched = LauncherEnv::from_variables(&|name| std::env::var(name).ok())?;
        if let Some(launched) = launched.as_ref().filter(|launched| launched.world > 1) {
            return Err(Problems::one(
                "gptrain tune",
                format!("was started as one of {} tasks", launched.world),
                "start it once, without srun: in an allocation it starts an srun for each cut",
            ));
        }
        Ok(match Job::from_environment() {
            Some(_) => Launcher::Srun { in_step: launched.is_some() },
            None => Launcher::Here,
        })
    }

    /// Whether the ranks compute on this machine.
    pub fn is_here(&self) -> bool {
        matches!(self, Launcher::Here)
    }

    /// Words before the command of `ranks` ranks, `per_node` of them on a node if that is known. `limit`
    /// is their time limit in seconds.
    pub fn words(&self, ranks: usize, per_node: Option<usize>, limit: f64) -> Vec<OsString> {
        let Launcher::Srun { in_step } = self else { return Vec::new() };
        // If srun itself is killed, Slurm ends the step, in whole minutes.
        let minutes = (limit / 60.0).ceil() as u64 + 1;
        let mut words = vec![
            "srun".to_string(),
            format!("--ntasks={ranks}"),
            "--kill-on-bad-exit=1".to_string(),
            format!("--time={minutes}"),
        ];
        if let Some(per_node) = per_node {
            let nodes = ranks.div_ceil(per_node);
            words.push(format!("--nodes={nodes}"));
            words.push(format!("--ntasks-per-node={}", ranks.div_ceil(nodes)));
        }
        // Since 22.05 srun does not take it from the job.
        let cpus = std::env::var("SLURM_CPUS_PER_TASK").ok();
        words.extend(cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
        words.extend(in_step.then(|| "--overlap".to_string()));
        words.into_iter().map(OsString::from).collect()
    }
}
