//! Replaces `parquet` in a build without that feature.

use std::io::Read;
use std::path::Path;

use anyhow::Result;

use super::position::Position;
use base::Problems;

/// Always fails with the remedy.
pub fn lines(path: &Path, _key: &str, _position: Position) -> Result<Box<dyn Read>> {
    let what = "this gptrain was built without Parquet (`make run` leaves it out)";
    let remedy = "build it with `make build`";
    Err(Problems::one(path.display().to_string(), what, remedy).into())
}
