//! One rank's part of a checkpoint that has no index: the file `part-00003-of-00008.json` beside its
//! shards, which says what they hold.
//!
//! Ranks that save into the memory of their nodes write no common file. A start puts the parts of all
//! ranks together (`index_text`), after it has compared every byte with its digest.

use super::disk::Disk;
use super::index::{Shard, State, check_seal, seal};
use super::place::digest_range::{VerifiedReader, list_part_ranges};
use super::save::WrittenPart;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that are verified at a time.
const TOGETHER: usize = 4 << 20;

/// Contents of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartFile {
    pub name: PartName,
    /// State of the run, as this rank has it.
    pub state: State,
    pub part: WrittenPart,
}

/// Rank that wrote a part, and number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartName {
    pub rank: usize,
    pub ranks: usize,
}

impl PartName {
    /// Name of the file.
    pub fn file(self) -> String {
        format!("part-{:05}-of-{:05}.json", self.rank, self.ranks)
    }

    /// Parses the name of a file; None if it is not that of a part.
    pub fn parse(file: &str) -> Option<PartName> {
        let (rank, ranks) = file
            .strip_prefix("part-")?
            .strip_suffix(".json")?
            .split_once("-of-")?;
        let name = PartName { rank: rank.parse().ok()?, ranks: ranks.parse().ok()? };
        (name.rank < name.ranks && name.file() == file).then_some(name)
    }
}

impl PartFile {
    /// Writes the file, when the shards are complete.
    pub fn write(&self, disk: &Disk, folder: &Path) -> Result<()> {
        let path = folder.join(self.name.file());
        let temporary = path.with_extension("tmp");
        disk.write_file(&temporary, seal(self)?.as_bytes())?;
        disk.rename(&temporary, &path)
    }

    /// Reads the part of a rank from the folder of `step`, and compares every byte of its shards with
    /// the digests. Fails for a part that is damaged, cut short, or of another step, and for shards that
    /// are missing.
    pub fn verify(folder: &Path, name: PartName, step: u64) -> Result<PartFile> {
        let path = folder.join(name.file());
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let parse = || -> Result<PartFile> {
            check_seal(&text)?;
            Ok(serde_json::from_str(&text)?)
        };
        let found = parse().with_context(|| format!("{} is damaged", path.display()))?;
        let found_step = found.state.progress.step;
        ensure!(
            (found.name, found_step) == (name, step),
            "{} is that of step {found_step}, rank {} of {}",
            path.display(),
            found.name.rank,
            found.name.ranks
        );
        let WrittenPart { shards, tensors, .. } = &found.part;
        let ranges = list_part_ranges(shards, tensors.values())
            .with_context(|| path.display().to_string())?;
        for (shard, ranges) in shards.iter().zip(&ranges) {
            let file = Path::new(&shard.file).file_name();
            ensure!(
                file.is_some_and(|file| *file == *shard.file),
                "{:?} is not a name",
                shard.file
            );
            let mut reader = VerifiedReader::open(&folder.join(&shard.file), shard.bytes, ranges)?;
            while !reader.next(TOGETHER)?.is_empty() {}
        }
        Ok(found)
    }

    /// Files of the part in a folder, with itself as the last.
    pub fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let shards = self
            .part
            .shards
            .iter()
            .map(|shard: &Shard| shard.file.clone());
        shards
            .chain([self.name.file()])
            .map(|file| folder.join(file))
            .collect()
    }
}
