//! The commands as a user runs them, on one rank.
//!
//! | module | tests |
//! |---|---|
//! | `status` | `gptrain status`, and the files for Prometheus |
//! | `compare` | `gptrain compare`: text, JSON and page |
//! | `step_parts` | parts of a step, planned and measured, and what a plan learns from them |
//! | `ops` | `gptrain run --ops`: a step op by op, against its plan |
//! | `track` | `gptrain wandb`, `gptrain mlflow`, with stand-ins of these modules |
//! | `job` | `gptrain job`: the script of a manifest |
//! | `scripts` | launch scripts and logs of other trainers: `import --args`, `estimate --log` |
//! | `sweep` | `gptrain sweep`: combinations of values, killed, failed, and as Slurm's jobs |
//! | `probe` | `gptrain run --probe`: the steps of the run, and nothing left of them |
//! | `tune` | `gptrain tune`: cuts that are measured, do not fit, fail; killed; by srun |
//! | `places` | models by their place, options that name a setting, examples before questions |
//! | `upkeep` | `gptrain prune`, and the user's command for events |
//! | `run` | `gptrain run`: training, stopping, resuming, and everything that can be wrong |
//! | `hints` | the next steps that a run prints, typed back |
//! | `remedies` | the remedies of refusals, typed back |
//! | `newcomer` | the first hour: mistakes reported at the start, closed pipes, paths |
//! | `attacks` | former causes of panics, restarts from zero and lost data |
//! | `bars` | on a terminal: progress bars, lines and tables of its width |
//! | `codes` | exit codes: every command against the table of docs/runs.md |
//! | `faults` | a kill and an error at each system call of commands that write |
//! | `leftovers` | leftovers of killed commands: found, named, removed |
//! | `random` | random attacks: a few in the suite, for a time by hand and in CI |
//! | `json` | `--json`: one object alone on standard output |
//! | `docs` | the commands of `docs/`: all are parsed, most are run |
//! | `readme` | the README's commands as they are printed, the example, new manifests |
//! | `report` | the record of a run on disk: metrics, TensorBoard, the page, after kills and damage |
//! | `estimate` | the planner's arithmetic against the formulas and worked examples of the field |
//! | `estimate_own` | gptrain's own plan: the search, and suggested changes |
//! | `estimate_parts` | what each part of the predictor of other programs carries, by leaving it out |
//! | `estimate_pytorch` | the planner's counts against PyTorch's, of published models of all families |
//! | `estimate_scale` | plans for more GPUs than were measured, and rings over nodes |
//! | `estimate_applied` | every set of flags that the planner prints, applied to its manifest |
//! | `estimate_cli` | `gptrain estimate`: relations between its answers, pages, this machine |
//! | `estimate_experts` | plans of other programs with experts and context parallelism |
//! | `estimate_verdicts` | whether plans fit; config.json; rows of changes; unknown programs and machines |
//! | `estimate_snapshots` | `gptrain estimate`: whole tables, messages and exit codes, and figures with limits |

#[path = "../common/mod.rs"]
mod common;

mod attacks;
mod bars;
mod codes;
mod compare;
mod docs;
mod estimate;
mod estimate_applied;
mod estimate_cli;
mod estimate_experts;
mod estimate_own;
mod estimate_parts;
mod estimate_pytorch;
mod estimate_scale;
mod estimate_snapshots;
mod estimate_verdicts;
mod faults;
mod hints;
mod job;
mod json;
mod leftovers;
mod newcomer;
mod ops;
mod places;
mod probe;
mod random;
mod readme;
mod remedies;
mod report;
mod run;
mod scripts;
mod status;
mod step_parts;
mod sweep;
mod tune;
mod track;
mod upkeep;
