//! Settings of ranks, their launcher and their failures.

use super::choices::{GpuTransport, OnEnd};
use super::define::{checked, read, sections, settings, written};
use super::settings::Written;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
/// Ranks among each other.
Comm(raw) {
    /// Seconds that a rank may wait for others in one operation; then the run ends, and one line
    /// says who was at fault. Default: 300.
    timeout_s: f64 = 300.0, in 0.1..=1e6;
    /// Seconds that ranks wait for each other at the start. Default: 120.
    start_timeout_s: f64 = 120.0, in 0.1..=1e6;
    /// host:port at which rank 0 is found, instead of what the launcher's variables give; the
    /// variable GPTRAIN_RENDEZVOUS comes before it. Default: from the job.
    rendezvous: String;
    /// What carries tensors between GPUs. Default: nccl.
    gpu_transport: GpuTransport = GpuTransport::Nccl;
}

#[derive(Copy)]
/// Restarts in the job: where a rank dies or hangs, all ranks begin anew from the newest checkpoint,
/// as processes that one supervisor in each task starts.
Restart(raw) {
    /// Restarts in a row that may bring no newer checkpoint; with 0 the run ends at the first
    /// failure. Default: 0.
    max: u32 = 0, in 0..=1000;
    /// Seconds that the tasks wait for those that do not come back, before they go on without
    /// them: longer than the run's folder takes to show a new file to other nodes. Default: 90.
    wait_s: f64 = 90.0, in 0.1..=1e6;
}

/// Under Slurm: what happens as the job's end comes near.
Slurm(raw) {
    /// What a run does before its job ends. Default: leave.
    on_end: OnEnd = OnEnd::Leave;
    /// Seconds before the job's end by which the run has saved and left, however long its steps and
    /// saves are. Default: 60.
    margin_s: f64 = 60.0, in 0.0..=1e6;
    /// Whether a job that is submitted again leaves out nodes that were slower than their peers
    /// while training. Default: false, they are named alone.
    exclude_stragglers: bool = false;
}
}
