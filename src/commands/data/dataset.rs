//! Datasets as the commands name them.

use std::path::{Path, PathBuf};

use anyhow::Result;

use base::escape_control;
use data::Indexed;
use data::record::DatasetTokenizer;

/// Tokenizer of a dataset. Prints a note if it is a guess or missing.
pub fn tokenizer(named: Option<&Path>, dataset: &Indexed) -> Result<DatasetTokenizer> {
    let found = DatasetTokenizer::find(dataset, named)?;
    if let Some(note) = &found.note {
        base::warn!("note: {}", escape_control(note));
    }
    Ok(found)
}

/// Prefix of a dataset, also if the user named one of its two files.
pub fn prefix(named: &Path) -> PathBuf {
    let text = named.to_string_lossy();
    let cut = text.strip_suffix(".bin").or(text.strip_suffix(".idx"));
    cut.map_or(named.into(), PathBuf::from)
}
