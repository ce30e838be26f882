//! Paths in a manifest.

use std::path::{Component, Path, PathBuf};

/// Resolves `path` against `folder`, whose links are resolved, without leading `..`.
pub fn resolve(folder: &Path, path: &Path) -> PathBuf {
    let mut whole = if path.is_absolute() { PathBuf::new() } else { folder.to_path_buf() };
    let mut at_start = true;
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if at_start && !path.is_absolute() => {
                whole.pop();
            }
            other => {
                at_start = false;
                whole.push(other);
            }
        }
    }
    whole
}
