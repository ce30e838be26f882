//! Several ranks: as threads, as processes, under Slurm, on GPUs; and their failures.
//!
//! | module | tests |
//! |---|---|
//! | `ranks` | `gptrain run` on several ranks equals one rank, and resumes on another grid |
//! | `rank_faults` | ranks killed, stopped, slow, out of memory, with a flipped bit or a cut connection |
//! | `comm_faults` | groups of processes over TCP: killed, stopped, out of step |
//! | `throttled` | PowerSGD between ranks that send slowly: the bytes of a step |
//! | `bench` | `gptrain bench`: a slow node, groups of a grid, calibration of the plan |
//! | `live` | `gptrain diagnose --now` of ranks that run, and of one that is stopped |
//! | `run_cuda` | `gptrain run` on the software stand-in for GPUs, one and several |
//! | `trace` | `gptrain run --trace`: the file of threads, of processes, of a run that stops or fails |
//! | `job_end` | a run before the end of its Slurm job: stand-ins of squeue, scontrol and sbatch |
//! | `month` | a played month: lost ranks, nodes, neighbours and jobs, with checkpoints in memory |
//! | `node_memory` | checkpoints in the nodes' memory: lost nodes, damaged parts, a full file system |
//! | `restart` | ranks killed, stopped and lost while a job continues: spares, fewer replicas, the limit |
//! | `stragglers` | a slow rank is reported during training |
//! | `slurm` | `srun gptrain run` under a real Slurm on this machine; and a simulated week of a job |

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod comm_faults;
mod job_end;
mod live;
mod month;
mod node_memory;
mod rank_faults;
mod ranks;
mod run_cuda;
mod restart;
mod slurm;
mod stragglers;
mod throttled;
mod trace;
