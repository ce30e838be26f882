//! gptrain: pretrains GPT models, from a laptop's CPU to a GPU cluster.
//!
//! The floors, ground floor first, each a crate that may use only crates listed above it.

/// Common types: dtypes, units, the counter-based generator, the list of problems.
pub use ::base;

/// Decisions as plain values: batch ramp-up, pipeline schedule.
pub use ::plan;

/// Manifests: parses YAML into a checked `Manifest`, or reports every mistake at once.
pub use ::manifest;

/// Megatron's datasets, sample order, masks, tokenizers.
pub use ::data;

/// Tensors, arenas, and the trait that each device implements.
pub use ::device;

/// Groups of ranks.
pub use ::comm;

/// Forward and backward of the network.
pub use ::model;

/// Optimizer step.
pub use ::engine;

/// Checkpoints: the state of a run on disk.
pub use ::checkpoint;

/// Files of other programs: their checkpoints, Hugging Face folders, tokenizers.
pub use ::exchange;

/// Estimates of a run's memory, time and cost, with changes that help.
pub use ::estimate;

/// Predictions for other trainers.
#[cfg(feature = "predict")]
pub use ::predict;

/// Processes of a run: ranks, supervisor, Slurm, messages.
pub use ::launch;

/// Check of the machine before a run, which finds slow nodes and links.
pub use ::bench;

/// The loop around the step: start, watch, save, report.
pub use ::train;

/// The command line: one file per command.
pub use ::commands;
