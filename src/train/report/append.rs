//! A file that grows at its end, by a thread of its own: training does not wait for the disk, and
//! what is written while the folder is full or gone is kept in memory and follows in its order.

use crate::storage::Storage;
use anyhow::{Context, Result, anyhow};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// At most so often is the file synced, until it is closed. A file server tells only then that it
/// did not take what was written; what came after the last sync is written again.
const SYNC: Duration = Duration::from_secs(1);

/// The writing end.
pub struct Appender {
    path: PathBuf,
    shared: Arc<Mutex<Shared>>,
    /// None once closed.
    texts: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Texts that are not in the file yet.
    waiting: usize,
    failed: Option<anyhow::Error>,
}

impl Appender {
    /// To the file at `path`, which is made if it is missing.
    pub fn open(path: &Path, storage: &Arc<Storage>) -> Result<Appender> {
        let mut tail = Tail::open(path)?;
        let (storage, shared) = (storage.clone(), Arc::<Mutex<Shared>>::default());
        let (texts, todo) = channel();
        let of_thread = shared.clone();
        let span = tracing::Span::current();
        let work = move || {
            let _of_rank = span.enter();
            if let Err(error) = write_all(&todo, &mut tail, &storage, &of_thread) {
                of_thread.lock().failed = Some(error);
            }
        };
        let thread = base::threads::spawn("report", work)?;
        let path = path.to_path_buf();
        Ok(Appender { path, shared, texts: Some(texts), thread: Some(thread) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a text; an error if an earlier one could not be written.
    pub fn append(&mut self, text: Vec<u8>) -> Result<()> {
        self.is_written()?;
        self.shared.lock().waiting += 1;
        let sent = self.texts.as_ref().is_some_and(|texts| texts.send(text).is_ok());
        if sent { Ok(()) } else { self.is_written().map(drop) }
    }

    /// Whether all is in the file; an error if something cannot be.
    pub fn is_written(&self) -> Result<bool> {
        let mut shared = self.shared.lock();
        let closed = || anyhow!("cannot write to {}: it is closed", self.path.display());
        match &shared.failed {
            // Whoever asks first is told why.
            Some(_) => Err(shared.failed.replace(closed()).unwrap_or_else(closed)),
            None => Ok(shared.waiting == 0),
        }
    }

    /// Waits until all is in the file and on the disk.
    pub fn close(&mut self) -> Result<()> {
        drop(self.texts.take());
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| anyhow!("the thread \"report\" died"))?;
        }
        self.is_written().map(drop)
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        // Whoever wants to know of an error has closed it before.
        self.close().ok();
    }
}

/// Writes what comes, several texts at once where they wait, and syncs now and then and at the end.
fn write_all(
    todo: &Receiver<Vec<u8>>,
    tail: &mut Tail,
    storage: &Storage,
    shared: &Mutex<Shared>,
) -> Result<()> {
    let mut synced = Instant::now();
    for text in todo {
        let mut texts = 1;
        tail.kept.extend(text);
        while let Ok(text) = todo.try_recv() {
            tail.kept.extend(text);
            texts += 1;
        }
        let sync = synced.elapsed() >= SYNC;
        storage.patiently(|| tail.write(sync))?;
        if sync {
            synced = Instant::now();
        }
        shared.lock().waiting -= texts;
    }
    storage.patiently(|| tail.write(true))
}

/// The file, and what of its end may not be on the disk.
struct Tail {
    path: PathBuf,
    /// None after an error: the file is opened anew.
    file: Option<File>,
    /// Bytes that are on the disk.
    synced: u64,
    /// What comes after them.
    kept: Vec<u8>,
    /// Bytes of that which have been written.
    written: usize,
}

impl Tail {
    fn open(path: &Path) -> Result<Tail> {
        let file = open(path, true)?;
        let synced = file.metadata()?.len();
        let path = path.to_path_buf();
        Ok(Tail { path, file: Some(file), synced, kept: Vec::new(), written: 0 })
    }

    /// Writes what is kept, and after an error all that may be lost.
    fn write(&mut self, sync: bool) -> Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open_again()?,
        };
        let context = || format!("cannot write to {}", self.path.display());
        file.write_all(&self.kept[self.written..]).with_context(context)?;
        self.written = self.kept.len();
        if sync && !self.kept.is_empty() {
            file.sync_data().with_context(context)?;
            self.synced += self.kept.len() as u64;
            (self.kept, self.written) = (Vec::new(), 0);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Without what an error has left of the last write.
    fn open_again(&mut self) -> Result<File> {
        let file = open(&self.path, false)?;
        if file.metadata()?.len() > self.synced {
            file.set_len(self.synced)
                .with_context(|| format!("cannot write to {}", self.path.display()))?;
        }
        self.written = 0;
        Ok(file)
    }
}

fn open(path: &Path, create: bool) -> Result<File> {
    let file = OpenOptions::new().create(create).append(true).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::patience::until;
    use std::fs;
    use std::os::unix::fs::symlink;

    const LONG: Duration = Duration::from_secs(3600);

    /// /dev/full is a disk that is full: an appender that meets it, while training goes on.
    #[test]
    fn lines_written_while_the_disk_is_full_follow_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        symlink("/dev/full", &path).unwrap();
        let storage = Storage::new(folder.path(), LONG);
        let mut appender = Appender::open(&path, &storage).unwrap();
        appender.append(b"0\n".to_vec()).unwrap();
        until("it waits for the disk", || storage.is_away());
        for line in 1..1000 {
            appender.append(format!("{line}\n").into_bytes()).unwrap();
        }
        assert!(!appender.is_written().unwrap());
        let room = folder.path().join("room");
        fs::write(&room, "").unwrap();
        fs::rename(&room, &path).unwrap();
        until("it is written", || appender.is_written().unwrap());
        appender.close().unwrap();
        let expected: String = (0..1000).map(|line| format!("{line}\n")).collect();
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert!(!storage.is_away());
    }

    #[test]
    fn half_a_line_that_an_error_left_is_written_again_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old\n").unwrap();
        let mut tail = Tail::open(&path).unwrap();
        tail.kept.extend(b"one\n");
        tail.write(true).unwrap();
        tail.kept.extend(b"two\n");
        tail.write(false).unwrap();
        tail.kept.extend(b"three\n");
        // The next write stops in the middle, and what was not synced is lost in part.
        fs::write(&path, "old\none\ntw").unwrap();
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"?three").unwrap();
        tail.file = None;
        tail.write(true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\none\ntwo\nthree\n");
    }

    #[test]
    fn an_error_that_does_not_pass_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        symlink("/dev/full", &path).unwrap();
        let storage = Storage::new(folder.path(), Duration::ZERO);
        let mut appender = Appender::open(&path, &storage).unwrap();
        appender.append(b"0\n".to_vec()).unwrap();
        until("it failed", || appender.shared.lock().failed.is_some());
        let told = format!("{:#}", appender.append(b"1\n".to_vec()).unwrap_err());
        assert!(told.contains("No space left") && told.contains("/a"), "{told}");
        assert!(appender.close().unwrap_err().to_string().contains("closed"));
    }
}
