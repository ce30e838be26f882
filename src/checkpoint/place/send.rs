//! Copies a checkpoint to a place: its shards, several concurrently, then its index.

use super::super::folder;
use super::super::index::{Index, Shard};
use super::digest_range::{self, DigestRange, VerifiedReader};
use super::{Place, for_each_shard, index_name};
use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Result of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyResult {
    pub step: u64,
    /// Bytes of the checkpoint; None if the copy existed already.
    pub bytes: Option<u64>,
}

/// Files of one checkpoint known to be complete in the place. A retry does not send them again.
#[derive(Default)]
pub struct SentFiles(Mutex<BTreeSet<String>>);

impl Place {
    /// Copies the checkpoint in `from`, replacing any other of the same step. Calls `go_on` before
    /// every few MiB. After an error the copy is incomplete and can be retried.
    pub fn copy(
        &self,
        from: &Path,
        sent: &SentFiles,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<CopyResult> {
        let index = Index::read(from)?;
        let text = fs::read_to_string(from.join(super::index::NAME))
            .with_context(|| format!("cannot read the index of {}", from.display()))?;
        let step = index.progress.step;
        if self.index(step)?.as_ref() == Some(&text) {
            return Ok(CopyResult { step, bytes: None });
        }
        self.reduced.lock().remove(&step);
        self.store.begin(step)?;
        let temporary = self.store.upload_folder(step);
        let ranges = digest_range::list_ranges(&index)?;
        for_each_shard(&index, &ranges, |shard, ranges| {
            let to = format!("{temporary}/{}", shard.file);
            if sent.0.lock().contains(&to) || self.holds(&to, shard.bytes, ranges)? {
                sent.0.lock().insert(to);
                return Ok(());
            }
            let path = from.join(&shard.file);
            let mut source = VerifiedReader::open(&path, shard.bytes, ranges)?;
            let proven = self.store.write(&to, shard.bytes, &mut |bytes| {
                ensure!(go_on(), "the copy was interrupted");
                source.next(bytes)
            })?;
            if !proven {
                self.verify(&to, ranges)?;
            }
            sent.0.lock().insert(to);
            Ok(())
        })?;
        ensure!(go_on(), "the copy was interrupted");
        self.lists(&temporary, &index.shards)
            .inspect_err(|_| sent.0.lock().clear())?;
        self.write_small(&index_name(&temporary), text.as_bytes())?;
        self.store.publish(step)?;
        let bytes = index.shards.iter().map(|shard| shard.bytes).sum::<u64>();
        Ok(CopyResult { step, bytes: Some(bytes + text.len() as u64) })
    }

    /// Fails unless the place lists all files that it was sent.
    fn lists(&self, folder: &str, shards: &[Shard]) -> Result<()> {
        let listed = self.store.files(folder)?;
        let missing = shards
            .iter()
            .find(|shard| listed.get(&shard.file) != Some(&shard.bytes));
        let Some(Shard { file, bytes, .. }) = missing else { return Ok(()) };
        let listed = listed
            .get(file)
            .map_or("nothing".into(), |bytes| format!("{bytes} bytes"));
        bail!("{}/{folder}/{file}: {bytes} bytes were sent, and the store lists {listed}", self.url)
    }

    /// Whether an earlier process sent a complete file.
    fn holds(&self, file: &str, bytes: u64, ranges: &[DigestRange]) -> Result<bool> {
        Ok(self.store.bytes(file)? == Some(bytes) && self.verify(file, ranges).is_ok())
    }

    /// Reads a file of the place and verifies it.
    pub(super) fn verify(&self, file: &str, ranges: &[DigestRange]) -> Result<()> {
        self.read_verified(file, ranges, &mut |_, _| Ok(()))
    }

    /// Passes the verified bytes of a file of the place to `put`, each with its offset.
    pub(super) fn read_verified(
        &self,
        file: &str,
        ranges: &[DigestRange],
        put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let name = format!("{}/{file}", self.url);
        for together in ranges.chunks(RANGES_AT_ONCE) {
            let first = &together[0];
            let last = &together[together.len() - 1];
            let at = first.bytes.start;
            let compared = |bytes: &[u8]| {
                ensure!(bytes.len() as u64 == last.bytes.end - at, "{name}: cut short");
                together.iter().try_for_each(|range: &DigestRange| {
                    let start = (range.bytes.start - at) as usize;
                    range.compare(&name, &bytes[start..start + range.len()])
                })
            };
            let range = at..last.bytes.end;
            let mut bytes = self.store.read(file, range.clone())?;
            if compared(&bytes).is_err() {
                bytes = self.store.read(file, range)?; // it may have been damaged in transit
                compared(&bytes)?;
            }
            put(at, &bytes)?;
        }
        Ok(())
    }

    /// Name of a published file.
    pub(super) fn file(step: u64, shard: &Shard) -> String {
        format!("{}/{}", folder::name(step), shard.file)
    }
}

/// Ranges per request: up to 16 MiB.
const RANGES_AT_ONCE: usize = 4;
