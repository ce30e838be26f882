//! Processes of a run: ranks and their devices, supervisor and restarts, Slurm's job, messages, signals,
//! and the files of a run's folder that the next start reads.
//!
//! | file | contents |
//! |---|---|
//! | `ranks`, `rank` | start of this process's ranks with their devices; one rank and its small collectives |
//! | `supervise` | restarts within a job: a process per rank, a rendezvous after a failure |
//! | `series` | several commands of this program, a process each (`sweep`) |
//! | `crash_loop`, `sick_nodes` | counts of starts without progress; nodes to avoid |
//! | `slurm`, `job_end` | Slurm's commands; the job goes back into the queue |
//! | `run_folder`, `storage` | lock of a run's folder; waits for a full disk or a lost file server |
//! | `live` | state of running ranks, on request |
//! | `events`, `alerts` | record of a run's events; the user's command for them |
//! | `messages`, `console`, `spans` | layers of `tracing`: lines for the user, spans for a trace |
//! | `signals`, `exit` | requests by signal; exit codes |
//!
//! Does not depend on the training loop, which passes a closure for the step of the newest checkpoint.

mod ranks;
pub mod rank;

pub mod supervise;
pub mod series;
pub mod crash_loop;
pub mod sick_nodes;
pub mod slurm;
pub mod job_end;

pub mod run_folder;
pub mod signals;
pub mod storage;
pub mod events;
pub mod live;
pub mod alerts;

pub mod messages;
pub mod console;
pub mod spans;
pub mod exit;

pub use ranks::{
    Device, GroupFactory, LocalRank, LocalRanks, clean_up_on_signal, gpu_for_each_rank, launcher,
    name_rank,
};
pub use supervise::{RANKS, start_processes, start_unrecorded_processes, supervise};
