//! Settings of ranks, their launcher and their failures.

use super::choices::{GpuTransport, OnEnd};
use super::define::{Written, checked, read, sections, settings, written};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
/// Communication between ranks.
Comm(raw) {
    /// Seconds that a rank may wait for others in one operation; then the run ends, and one line names
    /// the rank at fault. Default: 300.
    timeout_s: f64 = 300.0, in 0.1..=1e6;
    /// Seconds that ranks wait for each other at the start. Default: 120.
    start_timeout_s: f64 = 120.0, in 0.1..=1e6;
    /// Address host:port of rank 0, instead of that in the launcher's variables. The variable
    /// GPTRAIN_RENDEZVOUS overrides it. Default: from the job.
    rendezvous: String;
    /// Transport of tensors between GPUs. Default: nccl.
    gpu_transport: GpuTransport = GpuTransport::Nccl;
}

#[derive(Copy)]
/// Restarts within the job: if a rank dies or hangs, a supervisor in each task restarts its rank as a
/// new process, from the newest checkpoint.
Restart(raw) {
    /// Maximum number of restarts in a row without a newer checkpoint; with 0 the run ends at the
    /// first failure. Default: 0.
    max: u32 = 0, in 0..=1000;
    /// Seconds after which the tasks continue without those that did not join. Must be longer than a
    /// new file in the run's folder takes to appear on other nodes. Default: 90.
    wait_s: f64 = 90.0, in 0.1..=1e6;
}

/// Behaviour before the end of a Slurm job.
Slurm(raw) {
    /// Action before the job ends. Default: leave.
    on_end: OnEnd = OnEnd::Leave;
    /// Seconds before the job's end at which the run has saved and ended, regardless of the duration of
    /// its steps and saves; at most half of the job's time limit. Default: 60.
    margin_s: f64 = 60.0, in 0.0..=1e6;
    /// Whether a job that is submitted again excludes nodes that were slower than their peers during
    /// training. Default: false, which only reports them.
    exclude_stragglers: bool = false;
}
}
