//! Several ranks: as threads, as processes, under Slurm, on GPUs; and what can happen to them.
//!
//! | module | what it holds |
//! |---|---|
//! | `ranks` | `gptrain run` on several ranks equals one rank, and resumes on another grid |
//! | `rank_faults` | ranks of a run killed, stopped, slow, out of memory, with a flipped bit or a cut cable |
//! | `comm_faults` | groups of processes over TCP: killed, stopped, out of step |
//! | `throttled` | PowerSGD between ranks that send slowly: the bytes of a step |
//! | `bench` | `gptrain bench`: a slow node is named, groups of a grid, the plan learns from it |
//! | `run_cuda` | `gptrain run` on the software stand-in for GPUs, one and several |
//! | `trace` | `gptrain run --trace`: the file of threads, of processes, of a run that stops or fails |
//! | `job_end` | a run before the end of its Slurm job: stand-ins of squeue, scontrol and sbatch |
//! | `restart` | ranks killed, stopped and lost while a job goes on: spares, fewer replicas, the limit |
//! | `stragglers` | a slow rank is named, live |
//! | `slurm` | `srun gptrain run` under a real Slurm on this machine; and a week of a job's there |

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod comm_faults;
mod job_end;
mod rank_faults;
mod ranks;
mod run_cuda;
mod restart;
mod slurm;
mod stragglers;
mod throttled;
mod trace;
