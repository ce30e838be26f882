//! The state of a run on disk: saved so that it cannot lie, read by any grid, verified by digest.
//!
//! ```text
//! checkpoints/step-00000040/index.json                 what there is, where it lies, its digests
//!                           master-00000.safetensors   a state (f32 weights) as rank 0 holds it
//!                           first_moment-00000.safetensors
//!                           second_moment-00000.safetensors
//! ```
//!
//! A shard holds rectangles of tensors under their global names; the index maps every tensor onto
//! the rectangles of all ranks' shards. Vectors are matrices of one row.
//!
//! A save goes into a fresh folder: digests from memory, files and folder synced, then the name.
//! Whatever stands at `step-N` was therefore whole once, and everything read from it is compared
//! with its digest first.
//!
//! Copies of whole checkpoints elsewhere, in a bucket of S3 too: `place`.
//!
//! Does not know which grid wrote a file, nor when to save.

pub mod aside;
mod digest;
pub mod disk;
mod folder;
pub mod hf;
mod index;
pub mod inspect;
mod load;
pub mod place;
mod read;
mod replicas;
pub mod safetensors;
mod save;
mod snapshot;
mod validate;

pub use digest::{CHUNK, Digest};
pub use disk::nonce;
pub use folder::{
    Found, Keep, clean, find, fresh, hint, latest, name, prune, published, set_aside, write_hint,
};
pub use index::{
    Copied, DataId, Group, Index, Optimizer, Past, Piece, Progress, Rng, SHARD_END, Shard, State,
    Tensor, TensorState,
};
pub use load::{exchange_restarts, load, load_weights, read_into, read_weights_into};
pub use read::{Buffer, Checkpoint, row_blocks};
pub use replicas::{ReplicaDigest, replica_digests, verify};
pub use save::{
    Share, WrittenPart, abandon, begin, discard, index_text, not_saved, publish, publish_index,
    remove_part, save, saved_bytes, space, write_part,
};
pub use snapshot::Snapshot;

/// A weight's type as the setting `precision` calls it: fp16 is kept in f16.
pub fn precision(dtype: base::DType) -> String {
    if dtype == base::DType::F16 { "fp16".into() } else { dtype.to_string() }
}
