//! gptrain: pretrains GPT models, from a laptop's CPU to a GPU cluster.
//!
//! The rooms, ground floor first. Imports point down (`tests/tidy` holds them to it):
//! each room may use only rooms listed above it.

/// Words everybody speaks: dtypes, units, the counter-based generator, the problems list.
pub mod base;

/// Decisions as data: batch ramp-up, pipeline schedule. Pure values that print.
pub mod plan;
/// The user's wishes: raw YAML in, a checked `Manifest` out, or every mistake at once.
pub mod manifest;
/// Tokens: Megatron's datasets, sample order, masks, tokenizers.
pub mod data;

/// Tensors, arenas, and the one trait a device fills.
pub mod device;

/// Groups of ranks.
pub mod comm;

/// The network, as forward and backward.
pub mod model;

/// One optimizer step.
pub mod engine;
/// The state of a run on disk.
pub mod checkpoint;

/// What a run will need, before it is run: memory, time, days, and what to change.
pub mod estimate;
/// The loop around the step: launch, guard, report.
pub mod train;
/// A check of the machine before a run: who is slow.
pub mod bench;
/// The command line: one file per subcommand.
pub mod cli;
