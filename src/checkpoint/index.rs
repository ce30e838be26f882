//! `index.json`: everything about a checkpoint but its tensors.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Raised when an older gptrain could not read what is written now.
const FORMAT: u32 = 1;

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps taken.
    pub step: u64,
    pub consumed_samples: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Index {
    pub format: u32,
    pub gptrain: String,
    #[serde(flatten)]
    pub progress: Progress,
    /// Of the last step, to look at.
    pub loss: f64,
    /// The effective manifest, as YAML.
    pub manifest: String,
    /// Digest (xxh3, 64 bit, hex) of each tensor's bytes: file → name → digest.
    pub digests: BTreeMap<String, BTreeMap<String, String>>,
}

impl Index {
    pub fn new(progress: Progress, loss: f64, manifest: &str) -> Index {
        Index {
            format: FORMAT,
            gptrain: env!("CARGO_PKG_VERSION").to_string(),
            progress,
            loss,
            manifest: manifest.to_string(),
            digests: BTreeMap::new(),
        }
    }

    pub fn read(folder: &Path) -> anyhow::Result<Index> {
        let path = folder.join("index.json");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} is not a checkpoint", folder.display()))?;
        let index: Index = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged", path.display()))?;
        ensure!(
            index.format == FORMAT,
            "{}: format {}, this gptrain reads format {FORMAT}: use the version that wrote it ({})",
            path.display(),
            index.format,
            index.gptrain
        );
        Ok(index)
    }
}
