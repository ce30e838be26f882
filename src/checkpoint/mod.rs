//! The state of a run on disk: one folder a step, published by rename, topology-free (names and
//! whole shapes; nothing says which grid wrote it).
//!
//! `step-N/` holds `index.json` and three safetensors files of f32 tensors: weights (master),
//! first_moment, second_moment. Does not know which grid wrote a file.

mod index;
pub mod safetensors;
mod store;

pub use index::{Index, Progress};
pub use store::{Found, latest, load, load_weights, prune, save};
