//! Processes of a run: ranks and their devices, supervisor and restarts, Slurm's job, messages, signals,
//! and the files in which one start leaves notes for the next.
//!
//! Independent of the training loop: a closure returns the step of the newest checkpoint.

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
