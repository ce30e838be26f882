//! The compiled kernels.

use std::path::PathBuf;

/// Folder in which `kernels/build.sh` leaves fat binaries and PTX; empty or absent without a compiler.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/kernels")
}
