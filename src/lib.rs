//! gptrain: pretrains GPT models, from a laptop's CPU to a GPU cluster.
//!
//! The floors, ground floor first, each a crate that may use only crates listed above it.

/// Words everybody speaks: dtypes, units, the counter-based generator, the problems list.
pub use ::base;

/// Decisions as data: batch ramp-up, pipeline schedule. Pure values that print.
pub use ::plan;

/// The user's wishes: raw YAML in, a checked `Manifest` out, or every mistake at once.
pub use ::manifest;

/// Tokens: Megatron's datasets, sample order, masks, tokenizers.
pub use ::data;

/// Tensors, arenas, and the one trait a device fills.
pub use ::device;

/// Groups of ranks.
pub use ::comm;

/// The network, as forward and backward.
pub use ::model;

/// One optimizer step.
pub use ::engine;

/// The state of a run on disk.
pub use ::checkpoint;

/// What a run will need, before it is run: memory, time, days, and what to change.
pub use ::estimate;

/// The loop around the step: launch, guard, report.
pub use ::train;

/// A check of the machine before a run: who is slow.
pub use ::bench;

/// The command line: one file per subcommand.
pub mod cli;
