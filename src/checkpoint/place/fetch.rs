//! Fetches a checkpoint from a place into the run's folder.

use super::super::disk::Disk;
use super::super::folder;
use super::super::index::{self, Index};
use super::super::save;
use super::digest_range::{self, DigestRange, VerifiedReader};
use super::{Place, for_each_shard};
use anyhow::{Context, Result};
use base::Problems;
use base::progress::{Progress, Unit};
use std::fs;
use std::path::{Path, PathBuf};

/// Checkpoint that is now in the run's folder.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub folder: PathBuf,
    /// Bytes that were read; None if the checkpoint existed already.
    pub bytes: Option<u64>,
    /// New name of a different checkpoint that had its name.
    pub set_aside: Option<String>,
}

impl Place {
    /// Copies the checkpoint that the place names, or its newest, into the folder of a run's
    /// checkpoints, and verifies every byte. An error leaves that folder unchanged.
    pub fn fetch(&self, checkpoints: &Path) -> Result<Fetched> {
        let (step, text) = self.named_or_newest()?;
        let damaged = || format!("{}/{}/{}", self.url, folder::name(step), index::NAME);
        let index = Index::parse(&text).with_context(damaged)?;
        let ranges = digest_range::list_ranges(&index).with_context(damaged)?;
        let folder = checkpoints.join(folder::name(step));
        if fs::read(folder.join(index::NAME)).is_ok_and(|own| own == text.as_bytes())
            && is_whole(&folder, &index, &ranges)
        {
            return Ok(Fetched { folder, bytes: None, set_aside: None });
        }
        let disk = Disk::default();
        let temporary = folder::temporary_folder(checkpoints, step);
        let bytes = index.shards.iter().map(|shard| shard.bytes).sum::<u64>();
        fs::create_dir_all(checkpoints)
            .with_context(|| format!("cannot create {}", checkpoints.display()))?;
        save::begin(&disk, &temporary, step, bytes)?;
        let brought = self
            .download(&disk, &temporary, step, &index, &ranges)
            .and_then(|()| {
                let aside = folder.exists().then(|| folder::aside(step));
                if let Some(aside) = &aside {
                    disk.rename(&folder, &checkpoints.join(aside))?;
                }
                save::publish_index(&disk, &temporary, &text, step, false)?;
                Ok(aside)
            });
        let aside = brought.inspect_err(|_| save::discard(&disk, &temporary))?;
        Ok(Fetched { folder, bytes: Some(bytes), set_aside: aside })
    }

    fn named_or_newest(&self) -> Result<(u64, String)> {
        let mistake = |what: String| {
            Problems::one(
                self.url.clone(),
                what,
                "name a place that a run has copied to (checkpoint.also), or a step of it",
            )
        };
        let steps = self.steps()?;
        let newest = steps.last().copied();
        let Some(step) = self.step.or(newest) else {
            return Err(mistake("contains no complete checkpoint".into()).into());
        };
        let Some(text) = self.index(step)? else {
            let there: Vec<String> = steps.into_iter().map(folder::name).collect();
            return Err(mistake(format!(
                "contains no complete {}; complete are: {}",
                folder::name(step),
                if there.is_empty() { "none".into() } else { there.join(", ") }
            ))
            .into());
        };
        Ok((step, text))
    }

    fn download(
        &self,
        disk: &Disk,
        temporary: &Path,
        step: u64,
        index: &Index,
        ranges: &[Vec<DigestRange>],
    ) -> Result<()> {
        let total = index.shards.iter().map(|shard| shard.bytes).sum();
        let progress = Progress::new("fetching", total, Unit::Bytes);
        for_each_shard(index, ranges, |shard, ranges| {
            let path = temporary.join(&shard.file);
            let file = disk.create(&path)?;
            self.read_verified(&Place::file(step, shard), ranges, &mut |at, bytes| {
                progress.add(bytes.len() as u64);
                disk.write_at(&path, &file, bytes, at)
            })?;
            disk.sync(&path, &file)
        })
    }
}

/// Whether every byte of a checkpoint on this machine matches its index.
fn is_whole(folder: &Path, index: &Index, ranges: &[Vec<DigestRange>]) -> bool {
    for_each_shard(index, ranges, |shard, ranges| {
        let mut file = VerifiedReader::open(&folder.join(&shard.file), shard.bytes, ranges)?;
        while !file.next(AT_A_TIME)?.is_empty() {}
        Ok(())
    })
    .is_ok()
}

/// Bytes verified at a time.
const AT_A_TIME: usize = 4 << 20;
