//! Paths and places in a manifest.

use super::super::Checkpoint;
use super::super::report::{Report, short};
use std::path::{Component, Path, PathBuf};

/// `path` as seen from the folder, whose links are resolved, without leading `..`.
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

/// The place of copies: a folder by its whole path, or a bucket whose name S3 takes.
pub fn also(checkpoint: &Checkpoint, report: &mut Report) {
    let Some(also) = &checkpoint.also else { return };
    let what = match also.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => return,
        Some(("file", _)) => "no whole path",
        Some(("s3", path)) if is_bucket(path.split('/').next().unwrap_or_default()) => return,
        Some(("s3", _)) => "no bucket: 3 to 63 lower-case letters, digits, dots and hyphens",
        _ => "no place of copies",
    };
    let what = format!("{} is {what}", short(also));
    report.add("checkpoint.also", what, "write s3://BUCKET/PREFIX or file:///FOLDER");
}

fn is_bucket(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (3..=63).contains(&name.len())
        && name.chars().all(|c| plain(c) || c == '.' || c == '-')
        && name.starts_with(plain)
        && name.ends_with(plain)
}
