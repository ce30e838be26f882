//! A checkpoint's way to a place: its shards, several at once, then its index.

use super::super::folder;
use super::super::index::{Index, Shard};
use super::stretch::{self, Stretch, Verified};
use super::{AT_ONCE, Place, index_of};
use anyhow::{Context, Result, ensure};
use base::in_order;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    pub step: u64,
    /// Bytes of the checkpoint; None where the copy was there.
    pub bytes: Option<u64>,
}

/// Files of one checkpoint that are known to be whole in the place: what a try that failed has sent
/// is not sent again.
#[derive(Default)]
pub struct Sent(Mutex<BTreeSet<String>>);

impl Place {
    /// Copies the checkpoint in `from`, in place of what stands at its step. `go_on` is asked before
    /// some MiB each. An error leaves a copy that is not whole, for the next try.
    pub fn copy(
        &self,
        from: &Path,
        sent: &Sent,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Copy> {
        let index = Index::read(from)?;
        let text = fs::read_to_string(from.join(super::index::NAME))
            .with_context(|| format!("cannot read the index of {}", from.display()))?;
        let step = index.progress.step;
        if self.index(step)?.as_ref() == Some(&text) {
            return Ok(Copy { step, bytes: None });
        }
        self.store.begin(step)?;
        let fresh = self.store.fresh(step);
        let stretches = stretch::of_shards(&index)?;
        let work = |(): &mut (), (shard, stretches): (&Shard, &Vec<Stretch>)| {
            let to = format!("{fresh}/{}", shard.file);
            if sent.0.lock().contains(&to) || self.holds(&to, shard.bytes, stretches)? {
                sent.0.lock().insert(to);
                return Ok(());
            }
            let path = from.join(&shard.file);
            let mut source = Verified::open(&path, shard.bytes, stretches)?;
            let proven = self.store.write(&to, shard.bytes, &mut |bytes| {
                ensure!(go_on(), "the copy was interrupted");
                source.next(bytes)
            })?;
            if !proven {
                self.verify(&to, stretches)?;
            }
            sent.0.lock().insert(to);
            Ok(())
        };
        let jobs = index.shards.iter().zip(&stretches);
        in_order(AT_ONCE, AT_ONCE, jobs, || (), work, |done: Result<()>| done)?;
        ensure!(go_on(), "the copy was interrupted");
        self.write_small(&index_of(&fresh), text.as_bytes())?;
        self.store.publish(step)?;
        let bytes = index.shards.iter().map(|shard| shard.bytes).sum::<u64>();
        Ok(Copy { step, bytes: Some(bytes + text.len() as u64) })
    }

    /// Whether an earlier process has sent a file whole.
    fn holds(&self, file: &str, bytes: u64, stretches: &[Stretch]) -> Result<bool> {
        Ok(self.store.bytes(file)? == Some(bytes) && self.verify(file, stretches).is_ok())
    }

    /// Reads a file of the place, and compares it.
    pub(super) fn verify(&self, file: &str, stretches: &[Stretch]) -> Result<()> {
        self.read_verified(file, stretches, &mut |_, _| Ok(()))
    }

    /// Gives the bytes of a file of the place, each with its offset.
    pub(super) fn read_verified(
        &self,
        file: &str,
        stretches: &[Stretch],
        put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let name = format!("{}/{file}", self.url);
        for together in stretches.chunks(STRETCHES) {
            let (first, last) = (&together[0], &together[together.len() - 1]);
            let at = first.bytes.start;
            let compared = |bytes: &[u8]| {
                ensure!(bytes.len() as u64 == last.bytes.end - at, "{name}: cut short");
                let of = |stretch: &Stretch| {
                    let start = (stretch.bytes.start - at) as usize;
                    stretch.compare(&name, &bytes[start..start + stretch.len()])
                };
                together.iter().try_for_each(of)
            };
            let range = at..last.bytes.end;
            let mut bytes = self.store.read(file, range.clone())?;
            if compared(&bytes).is_err() {
                bytes = self.store.read(file, range)?; // it may have been damaged on its way
                compared(&bytes)?;
            }
            put(at, &bytes)?;
        }
        Ok(())
    }

    /// The name of a published file.
    pub(super) fn file(step: u64, shard: &Shard) -> String {
        format!("{}/{}", folder::name(step), shard.file)
    }
}

/// Stretches that are read in one request: up to 16 MiB.
const STRETCHES: usize = 4;
