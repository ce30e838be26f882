//! Append-only file with its own writer thread. Training does not wait for the disk. Text written
//! while the folder is full or gone is kept in memory and written later, in order.

use anyhow::{Context, Result, anyhow};
use base::Moment;
use base::output::{Existing, Output};
use launch::storage::Storage;
use parking_lot::Mutex;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Minimum interval between syncs, until the file is closed. A file server reports lost writes only
/// on sync; text after the last sync is then written again.
const SYNC: Duration = Duration::from_secs(1);

/// Sending end.
pub struct Appender {
    path: PathBuf,
    shared: Arc<Mutex<Shared>>,
    /// None once closed.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Text(Vec<u8>),
    /// Syncs the texts so far, and answers.
    Sync(Sender<()>),
}

/// Promise that the texts appended so far get on disk.
pub struct SyncReceipt {
    done: Receiver<()>,
    path: PathBuf,
    shared: Arc<Mutex<Shared>>,
}

impl SyncReceipt {
    /// Waits until they are on disk. Fails if they cannot be written.
    pub fn wait(&self) -> Result<()> {
        if self.done.recv().is_ok() {
            return Ok(());
        }
        let cause = self
            .shared
            .lock()
            .failed
            .as_ref()
            .map(|error| format!("{error:#}"));
        Err(anyhow!(cause.unwrap_or_else(|| format!("cannot write to {}", self.path.display()))))
    }
}

#[derive(Default)]
struct Shared {
    /// Number of texts that are not in the file yet.
    waiting: usize,
    failed: Option<anyhow::Error>,
}

impl Appender {
    /// Opens the file at `path`, and creates it if it is missing.
    pub fn open(path: &Path, storage: &Arc<Storage>) -> Result<Appender> {
        let mut tail = Tail::open(path)?;
        let storage = storage.clone();
        let shared = Arc::<Mutex<Shared>>::default();
        let (jobs, todo) = channel();
        let span = tracing::Span::current();
        let results = shared.clone();
        let thread = base::threads::spawn("report", move || {
            let _rank = span.enter();
            let mut receipts = Vec::new(); // dropped after the error is there to be read
            if let Err(error) = write_all(&todo, &mut tail, &storage, &results, &mut receipts) {
                results.lock().failed = Some(error);
            }
        })?;
        let path = path.to_path_buf();
        Ok(Appender { path, shared, jobs: Some(jobs), thread: Some(thread) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a text. Fails if an earlier one could not be written.
    pub fn append(&mut self, text: Vec<u8>) -> Result<()> {
        self.is_written()?;
        self.shared.lock().waiting += 1;
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(Job::Text(text)).is_ok());
        if sent { Ok(()) } else { self.is_written().map(drop) }
    }

    /// Requests that the texts so far are synced now.
    pub fn sync(&self) -> SyncReceipt {
        let (reply, done) = channel();
        // If the thread has ended, the receipt reports it.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(Job::Sync(reply)));
        SyncReceipt { done, path: self.path.clone(), shared: self.shared.clone() }
    }

    /// Whether all text is in the file. Fails if some cannot be written.
    pub fn is_written(&self) -> Result<bool> {
        let mut shared = self.shared.lock();
        let closed = || anyhow!("cannot write to {}: it is closed", self.path.display());
        match &shared.failed {
            // The first caller receives the original error.
            Some(_) => Err(shared.failed.replace(closed()).unwrap_or_else(closed)),
            None => Ok(shared.waiting == 0),
        }
    }

    /// Waits until all text is in the file and on disk.
    pub fn close(&mut self) -> Result<()> {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            thread
                .join()
                .map_err(|_| anyhow!("the thread \"report\" died"))?;
        }
        self.is_written().map(drop)
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        // Errors are returned by `close`; `drop` ignores them.
        self.close().ok();
    }
}

/// Writes received texts, several at once if they have queued up, and syncs at intervals, on request
/// and at the end.
fn write_all(
    todo: &Receiver<Job>,
    tail: &mut Tail,
    storage: &Storage,
    shared: &Mutex<Shared>,
    receipts: &mut Vec<Sender<()>>,
) -> Result<()> {
    let mut synced = Moment::now();
    while let Ok(first) = todo.recv() {
        let mut texts = 0;
        for job in std::iter::once(first).chain(todo.try_iter()) {
            match job {
                Job::Text(text) => {
                    tail.kept.extend(text);
                    texts += 1;
                }
                Job::Sync(reply) => receipts.push(reply),
            }
        }
        let sync = !receipts.is_empty() || synced.elapsed() >= SYNC;
        storage.retry(|| tail.write(sync))?;
        if sync {
            synced = Moment::now();
        }
        shared.lock().waiting -= texts;
        for reply in receipts.drain(..) {
            reply.send(()).ok();
        }
    }
    storage.retry(|| tail.write(true))
}

/// File, and the text at its end that may not be on disk.
struct Tail {
    path: PathBuf,
    /// None after an error: the file is opened again.
    file: Option<File>,
    /// Bytes on disk.
    synced: u64,
    /// Text after them.
    kept: Vec<u8>,
    /// Written bytes of that text.
    written: usize,
    /// Whether the file lost its name, which was reported.
    is_lost: bool,
}

impl Tail {
    fn open(path: &Path) -> Result<Tail> {
        let (file, synced) = open_at_end(path, true)?;
        let path = path.to_path_buf();
        Ok(Tail { path, file: Some(file), synced, kept: Vec::new(), written: 0, is_lost: false })
    }

    /// Writes the kept text; after an error, all text that may be lost.
    fn write(&mut self, sync: bool) -> Result<()> {
        if sync {
            self.recover_lost_name();
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open_again()?,
        };
        let context = || format!("cannot write to {}", self.path.display());
        file.write_all(&self.kept[self.written..])
            .with_context(context)?;
        self.written = self.kept.len();
        if sync && !self.kept.is_empty() {
            file.sync_data().with_context(context)?;
            self.synced += self.kept.len() as u64;
            (self.kept, self.written) = (Vec::new(), 0);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Handles a file that lost its name during writing (removed, moved away, replaced), which
    /// would lose all further lines. Writing continues in the file that has the name now. A missing
    /// file is created again with everything that was written.
    fn recover_lost_name(&mut self) {
        let Some(file) = &self.file else { return };
        let id = |about: Metadata| (about.dev(), about.ino());
        let open = file.metadata().map(id);
        let named = self.path.metadata().map(id);
        let is_gone = matches!(&named, Err(error) if error.kind() == ErrorKind::NotFound);
        if !is_gone && (named.is_err() || named.ok() == open.ok()) {
            return;
        }
        let made = if is_gone { copy(file, &self.path) } else { Ok(()) };
        let shown = self.path.display();
        let (opened, bytes) = match made.and_then(|()| open_at_end(&self.path, false)) {
            Ok(opened) => opened,
            Err(error) => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    tracing::warn!("{shown} was removed, and cannot be made again: {error:#}");
                }
                return;
            }
        };
        if is_gone {
            tracing::warn!("{shown} was removed: it is made again, with all its lines");
        } else {
            tracing::warn!("{shown} was replaced: the next lines go to the new file");
        }
        self.kept.drain(..self.written);
        (self.file, self.synced, self.written) = (Some(opened), bytes, 0);
    }

    /// Opens the file again, without the remains of a failed write.
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

/// Opens a file, and returns its length.
fn open_at_end(path: &Path, create: bool) -> Result<(File, u64)> {
    let file = open(path, create)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// Copies an open file without a name to a new file.
fn copy(from: &File, to: &Path) -> Result<()> {
    let mut from = File::open(format!("/proc/self/fd/{}", from.as_raw_fd()))?;
    let mut to = Output::create(to, Existing::Refused)?;
    io::copy(&mut from, &mut to)?;
    to.finish()
}

fn open(path: &Path, create: bool) -> Result<File> {
    let file = OpenOptions::new().create(create).append(true).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::testing::until;
    use std::fs;
    use std::os::unix::fs::symlink;

    const LONG: Duration = Duration::from_secs(3600);

    /// /dev/full is a full disk: an appender encounters it while training continues.
    #[test]
    fn lines_written_while_the_disk_is_full_follow_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        symlink("/dev/full", &path).unwrap();
        let storage = Storage::new(folder.path(), LONG);
        let mut appender = Appender::open(&path, &storage).unwrap();
        appender.append(b"0\n".to_vec()).unwrap();
        until("it waits for the disk", || storage.is_waiting());
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
        assert!(!storage.is_waiting());
    }

    #[test]
    fn a_receipt_means_that_the_text_is_on_disk_or_says_why_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let storage = Storage::new(folder.path(), Duration::ZERO);
        let mut appender = Appender::open(&path, &storage).unwrap();
        appender.append(b"0\n".to_vec()).unwrap();
        let receipt = appender.sync();
        appender.append(b"1\n".to_vec()).unwrap();
        receipt.wait().unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("0\n"));
        let late = appender.sync();
        appender.close().unwrap();
        late.wait().unwrap();
        fs::remove_file(&path).unwrap();
        symlink("/dev/full", &path).unwrap();
        let mut appender = Appender::open(&path, &storage).unwrap();
        appender.append(b"2\n".to_vec()).unwrap();
        for receipt in [appender.sync(), appender.sync()] {
            let refused = receipt.wait().unwrap_err().to_string();
            assert!(refused.contains("No space left") && refused.contains("/a"), "{refused}");
        }
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
        // The next write stops in the middle, and part of the unsynced text is lost.
        fs::write(&path, "old\none\ntw").unwrap();
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"?three")
            .unwrap();
        tail.file = None;
        tail.write(true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\none\ntwo\nthree\n");
    }

    #[test]
    fn a_file_that_is_removed_is_made_again_with_all_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old\n").unwrap();
        let mut tail = Tail::open(&path).unwrap();
        let mut write = |line: &str, sync| {
            tail.kept.extend(line.as_bytes());
            tail.write(sync).unwrap();
        };
        write("one\n", true);
        write("two\n", false);
        fs::remove_file(&path).unwrap();
        write("three\n", false);
        write("four\n", true);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\none\ntwo\nthree\nfour\n");
        // Another file has the name: that of an editor, with the lines so far.
        fs::write(folder.path().join("edited"), "one\n").unwrap();
        fs::rename(folder.path().join("edited"), &path).unwrap();
        write("five\n", true);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\nfive\n");
        fs::remove_dir_all(folder.path()).unwrap();
        write("six\n", true); // nothing can be done: the run continues
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
