//! Files that a user names.

use super::Problems;
use std::io::ErrorKind;
use std::path::Path;

/// An error where nothing is at a path. Whatever else keeps it from being read is told when it is.
pub fn is_there(path: &Path) -> Result<(), Problems> {
    match std::fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(Problems::one(path.display().to_string(), "does not exist", "check the path"))
        }
        _ => Ok(()),
    }
}
