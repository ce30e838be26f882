//! State of a run on disk: saved with proof of integrity, readable by any grid, verified by digest.
//!
//! ```text
//! checkpoints/step-00000040/index.json                  contents, locations, digests
//!                           master-00000.safetensors    a state (f32 weights) of rank 0
//!                           first_moment-00000.safetensors
//!                           second_moment-00000.safetensors
//! ```
//!
//! A shard holds rectangles of tensors under their global names. The index maps every tensor to the
//! rectangles in all ranks' shards. Vectors are matrices of one row.
//!
//! A save writes a temporary folder: digests from memory, files and folder synced, then renamed.
//! Any folder `step-N` was therefore complete once. Everything read from it is compared with its
//! digest first.
//!
//! Copies of whole checkpoints in other locations, including S3 buckets: `place`.
//!
//! Does not know which grid wrote a file, nor when to save.

pub mod atomic_folder;
mod digest;
pub mod disk;
mod folder;
mod index;
pub mod inspect;
mod load;
mod part;
pub mod place;
mod read;
mod replicas;
pub mod safetensors;
mod save;
mod snapshot;
pub mod validate;

pub use digest::{CHUNK, Digest};
pub use disk::nonce;
pub use folder::{
    CheckpointFolder, Keep, Kept, LATEST, clean, find, find_whole, hint, latest, name, published,
    set_aside, step, temporary_folder, write_hint,
};
pub use index::{
    Copied, DataId, Group, Index, NAME as INDEX, Optimizer, PastStep, Piece, Progress, Rng,
    SHARD_END, Shard, State, Tensor, TensorState,
};
pub use load::{
    exchange_restarts, load, load_weights, load_weights_with, read_into, read_weights_into,
};
pub use part::{PartFile, PartName};
pub use read::{Buffer, Checkpoint, RemoteShards, row_blocks};
pub use replicas::{ReplicaDigest, replica_digests, verify};
pub use save::{
    Share, WrittenPart, abandon, begin, discard, free_space, index_text, is_in_memory, not_saved,
    publish, publish_index, remove_part, save, space, write_part,
};
pub use snapshot::Snapshot;

/// Name of a weight's dtype in the setting `precision`, where f16 is called fp16.
pub fn precision(dtype: base::DType) -> String {
    if dtype == base::DType::F16 { "fp16".into() } else { dtype.to_string() }
}
