//! Copies of checkpoints in another place: a folder of another file system (`file:///FOLDER`), or a
//! bucket that speaks S3 (`s3://BUCKET/PREFIX`).
//!
//! ```text
//! PLACE/run                          whose copies these are
//!       step-00000040/index.json     written last: a copy is whole when its index is there
//!                     master-00000.safetensors, …
//! ```
//!
//! What is read, here or there, is compared with the digests of the index: a damaged checkpoint is
//! not copied, a damaged copy is not called whole, and none is fetched. Of what a store was given it
//! has to prove that it holds it: by its own digest of it, or what it holds is read again.
//!
//! Does not know when to copy.

#[cfg_attr(not(feature = "object-store"), path = "no_bucket.rs")]
mod bucket;
mod fetch;
mod mount;
mod send;
mod stretch;

pub use fetch::Fetched;
pub use send::{Copy, Sent};

use super::disk::Disk;
use super::folder::{self, Keep};
use super::index;
use anyhow::{Context, Result, bail};
use base::Problems;
use manifest::place::PlaceUrl;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The file that says whose copies these are.
const RUN: &str = "run";

/// Files that are copied at once, each by a thread.
const AT_ONCE: usize = 4;

/// Variables of S3 that are set: `AWS_REGION` and others.
pub type Settings = BTreeMap<String, String>;

/// A place, and a step of it if one was named.
pub struct Place {
    url: String,
    step: Option<u64>,
    store: Box<dyn Store>,
}

/// What a place has to do. A file's name is `FOLDER/FILE`, or `FILE`.
trait Store: Send + Sync {
    /// Of all that lies in the place itself.
    fn folders(&self) -> Result<Vec<String>>;
    /// A file's length; None where there is none.
    fn bytes(&self, file: &str) -> Result<Option<u64>>;
    fn read(&self, file: &str, range: Range<u64>) -> Result<Vec<u8>>;
    /// Writes a file of so many bytes anew. `next` gives as many of them as it is asked for, fewer at
    /// the end. Whether the store's own digest proves that it holds them.
    fn write(&self, file: &str, bytes: u64, next: Next) -> Result<bool>;
    fn remove(&self, folder: &str) -> Result<()>;
    /// Makes a checkpoint one no more, and keeps its files.
    fn set_aside(&self, step: u64) -> Result<()>;
    /// Where the files of a checkpoint are written, until `publish`.
    fn fresh(&self, step: u64) -> String;
    fn begin(&self, step: u64) -> Result<()>;
    /// Its index is written.
    fn publish(&self, step: u64) -> Result<()>;
}

type Next<'a> = &'a mut dyn FnMut(usize) -> Result<Vec<u8>>;

impl Place {
    /// Whether a command's argument names one, and no path.
    pub fn is_url(asked: &Path) -> Option<&str> {
        asked.to_str().filter(|asked| asked.contains("://"))
    }

    /// Of a URL, with the environment's settings; nothing is read yet. An error is the user's mistake.
    pub fn open(url: &str) -> Result<Place> {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Place::with(url, &all.filter(|(name, _)| name.starts_with("AWS_")).collect())
    }

    /// The same with others.
    pub fn with(url: &str, settings: &Settings) -> Result<Place> {
        let whole = url.trim_end_matches('/');
        let (place, last) = whole.rsplit_once('/').unwrap_or(("", whole));
        let (place, step) = match folder::step(last) {
            Some(step) => (place, Some(step)),
            None => (whole, None),
        };
        let wrong = |what| Problems::one(url, format!("is {what}"), PlaceUrl::REMEDY);
        let store: Box<dyn Store> = match PlaceUrl::read(place).map_err(wrong)? {
            PlaceUrl::Folder(path) => Box::new(mount::Mount::new(Path::new(path), Arc::default())),
            PlaceUrl::Bucket(path) => Box::new(bucket::Bucket::open(path, settings)?),
        };
        Ok(Place { url: place.to_string(), step, store })
    }

    /// A folder, by system calls that tests make fail.
    pub fn on(disk: impl Into<Arc<Disk>>, path: &Path) -> Place {
        let url = format!("file://{}", path.display());
        Place { url, step: None, store: Box::new(mount::Mount::new(path, disk.into())) }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Notes that this place holds a run's copies, which shows that it can be written and read. The
    /// user's mistake if they are another's.
    pub fn claim(&self, run: &str) -> Result<()> {
        let own = format!("{run}\n");
        let owner = self.read_whole(RUN)?.unwrap_or_default();
        if !owner.ends_with(b"\n") {
            return self.write_small(RUN, own.as_bytes()); // none, or one that was cut short
        }
        if owner == own.as_bytes() {
            return Ok(());
        }
        let owner = String::from_utf8_lossy(&owner[..owner.len().min(40)]).trim_end().to_string();
        let what = format!("{} holds the copies of another run, {owner}; this is {run}", self.url);
        let remedy = "choose another place, or remove what is there";
        Err(Problems::one("checkpoint.also", what, remedy).into())
    }

    /// The whole checkpoints, oldest first.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let mut steps = Vec::new();
        for step in self.store.folders()?.iter().filter_map(|name| folder::step(name)) {
            if self.store.bytes(&index_of(&folder::name(step)))?.is_some() {
                steps.push(step);
            }
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// Sets aside the checkpoints after `step`, of a run that goes on from there: they are not of its
    /// past.
    pub fn go_back(&self, step: u64) -> Result<Vec<u64>> {
        let later: Vec<u64> = self.steps()?.into_iter().filter(|later| *later > step).collect();
        later.iter().try_for_each(|later| self.store.set_aside(*later))?;
        Ok(later)
    }

    /// Removes the checkpoints that need not be kept, as `folder::prune` does.
    pub fn prune(&self, keep: Keep) -> Result<()> {
        if keep.last.is_none() {
            return Ok(());
        }
        let old = folder::outdated(&self.steps()?, keep);
        old.iter().try_for_each(|step| self.store.remove(&folder::name(*step)))
    }

    /// A small file whole; None where there is none.
    fn read_whole(&self, file: &str) -> Result<Option<Vec<u8>>> {
        match self.store.bytes(file)? {
            Some(0) => Ok(Some(Vec::new())),
            Some(bytes) => self.store.read(file, 0..bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Writes a small file, and reads it again: what a store took wrong is written once more.
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
        bail!("{}/{file}: what is there is not what was written", self.url)
    }

    /// The text of a checkpoint's index; None where it is not whole.
    fn index(&self, step: u64) -> Result<Option<String>> {
        let file = index_of(&folder::name(step));
        let Some(text) = self.read_whole(&file)? else { return Ok(None) };
        let text = String::from_utf8(text);
        text.map(Some).with_context(|| format!("{}/{file} is damaged", self.url))
    }
}

fn index_of(folder: &str) -> String {
    format!("{folder}/{}", index::NAME)
}
