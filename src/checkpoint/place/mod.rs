//! Copies of checkpoints in another place: a folder of another file system (`file:///FOLDER`), or a
//! bucket with the S3 protocol (`s3://BUCKET/PREFIX`).
//!
//! ```text
//! PLACE/run                       id of the run that owns these copies
//!       step-00000040/index.json  written last: a copy is complete when its index exists
//!             master-00000.safetensors, …
//! ```
//!
//! Everything read, from either side, is compared with the digests of the index. A damaged
//! checkpoint is not copied, and a damaged copy is neither called complete nor fetched. A store
//! must prove that it holds what it was sent, before the index is written: by its own digest or by
//! reading back, and by listing the file.
//!
//! Does not know when to copy.

#[cfg(feature = "object-store")]
mod bucket;
mod fetch;
mod folder_store;
mod send;
pub(super) mod digest_range;

pub use fetch::Fetched;
pub use send::{CopyResult, SentFiles};

use super::disk::Disk;
use super::folder::{self, Keep, Kept};
use super::index::{self, Index, Shard};
use anyhow::{Context, Result, bail};
use base::{Problems, WrongInput, in_order};
use digest_range::DigestRange;
use engine::MASTER;
use manifest::place::PlaceUrl;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// File with the id of the run that owns these copies.
const RUN: &str = "run";

/// Files that are copied concurrently, one thread each.
const AT_ONCE: usize = 4;

/// S3 variables from the environment: `AWS_REGION` and others.
pub type Settings = BTreeMap<String, String>;

/// Place, and a step in it if one was named.
pub struct Place {
    url: String,
    step: Option<u64>,
    store: Box<dyn Store>,
    /// Steps of which only weights are left. No later `prune` lists their files, until they are copied again.
    reduced: Mutex<BTreeSet<u64>>,
}

/// Calls `job` with every shard and its ranges, several concurrently. Returns the first error.
fn for_each_shard(
    index: &Index,
    ranges: &[Vec<DigestRange>],
    job: impl Fn(&Shard, &[DigestRange]) -> Result<()> + Sync,
) -> Result<()> {
    in_order(
        AT_ONCE,
        AT_ONCE,
        index.shards.iter().zip(ranges),
        || (),
        |(): &mut (), (shard, ranges): (&Shard, &Vec<DigestRange>)| job(shard, ranges),
        |done: Result<()>| done,
    )
}

/// Flag that makes pending requests to a place fail soon.
pub type Stopped = Arc<AtomicBool>;

/// Storage operations of a place. A file's name is `FOLDER/FILE`, or `FILE`.
trait Store: Send + Sync {
    /// Sets the flag that makes requests fail soon.
    fn set_stop_flag(&mut self, _: Stopped) {}
    /// Names of folders in the place.
    fn folders(&self) -> Result<Vec<String>>;
    /// Files of a folder by name, with their lengths.
    fn files(&self, folder: &str) -> Result<BTreeMap<String, u64>>;
    /// Length of a file; None if it does not exist.
    fn bytes(&self, file: &str) -> Result<Option<u64>>;
    fn read(&self, file: &str, range: Range<u64>) -> Result<Vec<u8>>;
    /// Creates or replaces a file of `bytes` bytes: readers find the old one or the whole new one. `next`
    /// returns the requested number of bytes, fewer at the end. Returns whether the store's own digest
    /// proves the contents.
    fn write(&self, file: &str, bytes: u64, next: Next) -> Result<bool>;
    fn remove(&self, folder: &str) -> Result<()>;
    /// Removes what failed removals have left.
    fn remove_leftovers(&self) -> Result<()> {
        Ok(())
    }
    fn remove_file(&self, file: &str) -> Result<()>;
    /// Invalidates a checkpoint, but keeps its files.
    fn set_aside(&self, step: u64) -> Result<()>;
    /// Folder in which the files of a checkpoint are written until `publish`.
    fn upload_folder(&self, step: u64) -> String;
    fn begin(&self, step: u64) -> Result<()>;
    /// Called when its index is written.
    fn publish(&self, step: u64) -> Result<()>;
}

type Next<'a> = &'a mut dyn FnMut(usize) -> Result<Vec<u8>>;

impl Place {
    /// Returns the argument if it is a URL, not a path.
    pub fn is_url(asked: &Path) -> Option<&str> {
        asked.to_str().filter(|asked| asked.contains("://"))
    }

    /// Opens a URL, with the environment's settings. Reads nothing yet. An error is the user's
    /// mistake.
    pub fn open(url: &str) -> Result<Place> {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Place::with(url, &all.filter(|(name, _)| name.starts_with("AWS_")).collect())
    }

    /// Opens a URL with other settings.
    pub fn with(url: &str, settings: &Settings) -> Result<Place> {
        let whole = url.trim_end_matches('/');
        let (place, last) = whole.rsplit_once('/').unwrap_or(("", whole));
        let (place, step) = match folder::step(last) {
            Some(step) => (place, Some(step)),
            None => (whole, None),
        };
        let store: Box<dyn Store> = match PlaceUrl::read(place)
            .map_err(|what| Problems::one(url, format!("is {what}"), PlaceUrl::REMEDY))?
        {
            PlaceUrl::Folder(path) => {
                Box::new(folder_store::FolderStore::new(Path::new(path), Arc::default()))
            }
            #[cfg(feature = "object-store")]
            PlaceUrl::Bucket(path) => Box::new(bucket::BucketStore::open(path, settings)?),
            #[cfg(not(feature = "object-store"))]
            PlaceUrl::Bucket(_) => {
                let _ = settings;
                return Err(refuse_without_s3(url).into());
            }
        };
        Ok(Place { url: place.to_string(), step, store, reduced: Mutex::default() })
    }

    /// Opens a folder, with system calls that tests can make fail.
    pub fn on(disk: impl Into<Arc<Disk>>, path: &Path) -> Place {
        let url = format!("file://{}", path.display());
        Place {
            url,
            step: None,
            store: Box::new(folder_store::FolderStore::new(path, disk.into())),
            reduced: Mutex::default(),
        }
    }

    /// Sets a flag that makes requests fail soon, even if the store never answers.
    pub fn until(mut self, stopped: Stopped) -> Place {
        self.store.set_stop_flag(stopped);
        self
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Records that this place holds a run's copies, which also tests reading and writing. Fails if
    /// another run owns the place.
    pub fn claim(&self, run: &str) -> Result<()> {
        let own = format!("{run}\n");
        let owner = self.read_whole(RUN)?.unwrap_or_default();
        if !owner.ends_with(b"\n") {
            return self.write_small(RUN, own.as_bytes()); // not claimed, or the file was cut short
        }
        if owner == own.as_bytes() {
            return Ok(());
        }
        let owner = String::from_utf8_lossy(&owner[..owner.len().min(40)])
            .trim_end()
            .to_string();
        Err(Problems::one(
            "checkpoint.also",
            format!("{} holds the copies of another run, {owner}; this is {run}", self.url),
            "choose another place, or remove what is there",
        )
        .into())
    }

    /// Steps of the complete checkpoints, ascending.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let mut steps = Vec::new();
        for step in self
            .store
            .folders()?
            .iter()
            .filter_map(|name| folder::step(name))
        {
            if self
                .store
                .bytes(&index_name(&folder::name(step)))?
                .is_some()
            {
                steps.push(step);
            }
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// Sets aside the checkpoints after `step` when a run resumes from there, because they are no
    /// longer part of its history.
    pub fn go_back(&self, step: u64) -> Result<Vec<u64>> {
        let later: Vec<u64> = self
            .steps()?
            .into_iter()
            .filter(|later| *later > step)
            .collect();
        later
            .iter()
            .try_for_each(|later| self.store.set_aside(*later))?;
        Ok(later)
    }

    /// Removes what need not be kept of the checkpoints.
    pub fn prune(&self, keep: Keep) -> Result<()> {
        if keep.last.is_none() {
            return Ok(());
        }
        self.store.remove_leftovers()?;
        let decided = keep.decide(&self.steps()?);
        decided
            .into_iter()
            .try_for_each(|(step, kept)| match self.reduce(step, kept) {
                // A damaged old checkpoint is left as it is: it must not end a run.
                Err(error) if error.is::<WrongInput>() => Ok(()),
                done => done,
            })
    }

    /// Removes what is not kept of a checkpoint. At every moment it is a whole checkpoint, one of weights
    /// only, or none: a removal takes its name or its index first; without the optimizer's states its
    /// index is replaced first, and the next call removes files that a killed process has left.
    pub fn reduce(&self, step: u64, kept: Kept) -> Result<()> {
        let name = folder::name(step);
        match kept {
            Kept::Whole => Ok(()),
            Kept::Nothing => self.store.remove(&name),
            Kept::Weights if self.reduced.lock().contains(&step) => Ok(()),
            Kept::Weights => {
                let states = self.state_files(step)?;
                if states.is_empty() {
                    self.reduced.lock().insert(step);
                    return Ok(());
                }
                let text = self
                    .index(step)?
                    .with_context(|| format!("{name} has no index"))?;
                let damaged = || WrongInput(format!("{}/{name}: its index is damaged", self.url));
                let index = Index::parse(&text).with_context(damaged)?;
                if !index.weights_only {
                    let text = index.without_states().text()?;
                    self.write_small(&index_name(&name), text.as_bytes())?;
                }
                states
                    .keys()
                    .try_for_each(|file| self.store.remove_file(&format!("{name}/{file}")))?;
                self.reduced.lock().insert(step);
                Ok(())
            }
        }
    }

    /// Files of a checkpoint's optimizer states, with their lengths.
    pub fn state_files(&self, step: u64) -> Result<BTreeMap<String, u64>> {
        let mut files = self.store.files(&folder::name(step))?;
        files.retain(|file, _| {
            let state = file.strip_suffix(index::SHARD_END);
            state.is_some_and(|state| !state.starts_with(MASTER))
        });
        Ok(files)
    }

    /// Copies a file that is not part of a checkpoint, and may grow meanwhile: its bytes up to its present
    /// length.
    pub fn copy_file(&self, from: &Path, to: &str) -> Result<()> {
        let failed = || format!("cannot read {}", from.display());
        let mut file = File::open(from).with_context(failed)?;
        let bytes = file.metadata().with_context(failed)?.len();
        let mut left = bytes;
        self.store.write(to, bytes, &mut |most| {
            let mut part = vec![0; left.min(most as u64) as usize];
            file.read_exact(&mut part).with_context(failed)?;
            left -= part.len() as u64;
            Ok(part)
        })?;
        Ok(())
    }

    /// Reads a small file; None if it does not exist.
    fn read_whole(&self, file: &str) -> Result<Option<Vec<u8>>> {
        match self.store.bytes(file)? {
            Some(0) => Ok(Some(Vec::new())),
            Some(bytes) => self.store.read(file, 0..bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Writes a small file and reads it back. Retries once if they differ.
    fn write_small(&self, file: &str, content: &[u8]) -> Result<()> {
        for _ in 0..2 {
            let mut at = 0;
            let proven = self.store.write(file, content.len() as u64, &mut |bytes| {
                let part = &content[at..(at + bytes).min(content.len())];
                at += part.len();
                Ok(part.to_vec())
            })?;
            if proven || self.read_whole(file)?.as_deref() == Some(content) {
                return Ok(());
            }
        }
        bail!("{}/{file}: the contents read back differ from those written", self.url)
    }

    /// Text of a checkpoint's index; None if the checkpoint is not complete.
    fn index(&self, step: u64) -> Result<Option<String>> {
        let file = index_name(&folder::name(step));
        let Some(text) = self.read_whole(&file)? else { return Ok(None) };
        let text = String::from_utf8(text);
        text.map(Some)
            .with_context(|| format!("{}/{file} is damaged", self.url))
    }
}

/// Error for the URL of a bucket in a build without S3.
#[cfg(any(test, not(feature = "object-store")))]
fn refuse_without_s3(url: &str) -> Problems {
    Problems::without(url, "S3", ", or use file:///FOLDER")
}

fn index_name(folder: &str) -> String {
    format!("{folder}/{}", index::NAME)
}

#[cfg(test)]
mod tests {
    use super::refuse_without_s3;

    #[test]
    fn s3_is_refused_with_the_remedy() {
        let said = refuse_without_s3("s3://bucket/a").to_string();
        for part in ["s3://bucket/a", "without S3", "cargo build --release", "file:///"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
