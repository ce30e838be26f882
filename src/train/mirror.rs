//! Mirror of a run's checkpoints and logs in another place (`checkpoint.also`). A thread of rank 0 copies each
//! durable checkpoint, and with it the log files that have changed. Training waits for it only at the end of the run, with a time limit.

use super::watch::{Ended, Event, RunView, Watcher};
use anyhow::{Context, Result};
use base::output::{self, Existing};
use base::{Bytes, Deadline, Moment, Problems, Seconds, input, threads};
use checkpoint::place::{CopyResult, Place, SentFiles};
use checkpoint::{self, CheckpointFolder, Keep};
use launch::events::{self, Kind};
use manifest::Manifest;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limits for the last upload, of a complete run and of one that continues later.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses between retries: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Poll interval of the wait at the end of a run.
const POLL: Duration = Duration::from_millis(200);

/// Time limit for a pending request at the end of a run.
const LAST_REQUEST: Duration = Duration::from_secs(2);

/// Mirror of a run, on rank 0.
pub struct Mirror {
    queue: Arc<MirrorQueue>,
    thread: Option<JoinHandle<()>>,
    /// Start of the wait at the end of the run.
    waiting_since: Option<Moment>,
}

/// State shared between the training loop and the copy thread.
pub struct MirrorQueue {
    place: Place,
    run: String,
    folder: PathBuf,
    keep: Keep,
    /// Length and time of change (seconds, nanoseconds) of each log file when it was last copied.
    logs: Mutex<BTreeMap<PathBuf, (u64, i64, i64)>>,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Newest checkpoint that is not copied yet; older ones are skipped.
    next: Option<CheckpointFolder>,
    /// Step of the checkpoint being copied, which must not be removed meanwhile.
    copying: Option<u64>,
    /// Whether the run rolled back, so that the checkpoint being copied is no longer part of its
    /// history.
    abandoned: bool,
    /// Step that the run continues from, until the place was opened: later checkpoints in the place
    /// are set aside.
    from: Option<u64>,
    /// Last checkpoint to be copied, and the last that was.
    newest: Option<u64>,
    copied: Option<u64>,
    /// Time of the first failed upload since the last success; None while uploads succeed.
    failing_since: Option<Moment>,
    ended: bool,
}

impl Mirror {
    /// Starts copying for a run that continues from `step`, first the newest of its checkpoints,
    /// unless an earlier process copied it. None if the manifest names no other place. A new run
    /// requires a writable place; a resumed one may find it later.
    pub fn start(m: &Manifest, run: &str, step: u64, checkpoints: &Path) -> Result<Option<Mirror>> {
        let Some(url) = &m.checkpoint.also else { return Ok(None) };
        let newest = checkpoint::latest(checkpoints)?;
        let queue = Arc::new(MirrorQueue {
            place: Place::open(url)?,
            run: run.to_string(),
            folder: m.log.folder.clone(),
            keep: Keep::from(&m.checkpoint),
            logs: Mutex::default(),
            state: Mutex::new(QueueState { from: Some(step), ..QueueState::default() }),
            changed: Condvar::new(),
        });
        match queue.open() {
            Err(error) if error.is::<Problems>() => return Err(error),
            Err(error) if step == 0 => {
                let _ = fs::remove_file(m.log.folder.join(RUN_ID)); // it claimed nothing
                let what = format!("{url} cannot be written: {error:#}");
                return Err(Problems::one(
                    "checkpoint.also",
                    what,
                    "choose another place, or leave it out; S3 takes AWS_ACCESS_KEY_ID, \
                     AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
                )
                .into());
            }
            Err(error) => queue.report_failure(&error),
            Ok(()) => {}
        }
        let copier = queue.clone();
        let span = tracing::error_span!(parent: None, "rank", rank = 0);
        let thread = Some(threads::spawn("copies", move || {
            let _rank = span.enter();
            copier.copy_all();
        })?);
        if let Some(newest) = newest {
            queue.push(newest);
        }
        Ok(Some(Mirror { queue, thread, waiting_since: None }))
    }

    pub fn queue(&self) -> Arc<MirrorQueue> {
        self.queue.clone()
    }

    /// Waits briefly at the end of the run. Returns whether the newest checkpoint is copied, or the
    /// time limit has passed. It is longer for `complete` runs.
    fn poll_end(&mut self, complete: bool, stop: bool) -> bool {
        let queue = &self.queue;
        let timeout = if complete { COMPLETE_TIMEOUT } else { TIMEOUT };
        let mut state = queue.state.lock();
        if self.waiting_since.is_none() && !state.is_idle() {
            let url = queue.place.url();
            let timeout = Seconds(timeout.as_secs_f64());
            tracing::info!("waiting up to {timeout} for the copy in {url}");
        }
        let since = *self.waiting_since.get_or_insert_with(Moment::now);
        if !state.is_idle() {
            queue.changed.wait_for(&mut state, POLL);
        }
        state.is_idle() || since.waited() >= timeout || complete && stop
    }

    fn warn_if_incomplete(&self) {
        let state = self.queue.state.lock();
        let url = self.queue.place.url();
        if state.newest > state.copied {
            let newest = state.copied.map_or("none".into(), checkpoint::name);
            tracing::warn!(
                "{url} does not have the last checkpoint (its newest: {newest}); the next start of the run \
                 copies it"
            );
        }
    }
}

/// None on ranks other than 0, and without `checkpoint.also`.
impl Watcher for Option<Mirror> {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn notice(&mut self, _: &RunView, event: &Event) -> Result<()> {
        if let (Event::RolledBack(state), Some(mirror)) = (event, self) {
            mirror.queue.roll_back(state.progress.step);
        }
        Ok(())
    }

    /// Waits for the copy of the last checkpoint, with a time limit. A collective.
    fn complete(&mut self, run: &RunView, ended: Ended) -> Result<()> {
        run.rank.set_phase("copying the last checkpoint");
        let complete = matches!(ended, Ended::Complete | Ended::Reached);
        run.rank.wait_until(|| {
            let Some(mirror) = self else { return Ok(true) };
            Ok(mirror.poll_end(complete, run.signals.stop_requested()))
        })?;
        if let Some(mirror) = self {
            mirror.warn_if_incomplete();
        }
        Ok(())
    }
}

impl Drop for Mirror {
    /// Leaves uncopied checkpoints to the next start of the run. A longer request ends with the
    /// process: a copy is incomplete until its index exists.
    fn drop(&mut self) {
        self.queue.state.lock().ended = true;
        self.queue.changed.notify_all();
        let end = Deadline::after(LAST_REQUEST);
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() && !end.has_passed() {
            std::thread::sleep(Duration::from_millis(5));
        }
        if thread.is_finished() {
            thread.join().ok(); // a panic has been printed
        }
    }
}

impl QueueState {
    fn is_idle(&self) -> bool {
        self.next.is_none() && self.copying.is_none()
    }
}

impl MirrorQueue {
    /// Requests the copy of a durable checkpoint.
    pub fn push(&self, found: CheckpointFolder) {
        let mut state = self.state.lock();
        state.newest = Some(found.step);
        state.next = Some(found);
        drop(state);
        self.changed.notify_all();
    }

    /// Step of the checkpoint being copied.
    pub fn copying_step(&self) -> Option<u64> {
        self.state.lock().copying
    }

    /// Continues from an older step.
    fn roll_back(&self, step: u64) {
        let mut state = self.state.lock();
        state.from = Some(step);
        state.next = None;
        state.abandoned = state.copying.is_some_and(|copying| copying > step);
        state.newest = state.newest.min(Some(step));
        state.copied = state.copied.min(Some(step));
    }

    /// Copies checkpoints until the run ends, then its last log lines.
    fn copy_all(&self) {
        while let Some(found) = self.pop() {
            let sent = SentFiles::default();
            let mut pause = FIRST_PAUSE;
            loop {
                let begun = Moment::now();
                match self.copy(&found, &sent) {
                    Ok(copy) => break self.report_copy(&copy, begun.elapsed()),
                    Err(error) if self.is_wanted() && found.folder.exists() => {
                        self.report_failure(&error);
                    }
                    Err(_) => break,
                }
                if !self.retries_after(pause, found.step) {
                    break;
                }
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            self.state.lock().copying = None;
            self.changed.notify_all();
        }
        let is_open = self.state.lock().from.is_none();
        if is_open {
            let _ = self.copy_logs(); // the next start of the run copies what is missing
        }
    }

    fn copy(&self, found: &CheckpointFolder, sent: &SentFiles) -> Result<CopyResult> {
        self.open()?;
        let copied = self.place.copy(&found.folder, sent, &|| self.is_wanted())?;
        self.place.prune(self.keep)?;
        self.copy_logs()?;
        Ok(copied)
    }

    /// Copies the run's logs that have changed since they were last copied.
    fn copy_logs(&self) -> Result<()> {
        let mut copied = self.logs.lock();
        for file in list_logs(&self.folder)? {
            let about = file.metadata()?;
            let now = (about.len(), about.mtime(), about.mtime_nsec());
            if copied.get(&file) != Some(&now) {
                let name = file.strip_prefix(&self.folder)?.display();
                self.place.copy_file(&file, &format!("{LOGS}/{name}"))?;
                copied.insert(file, now);
            }
        }
        Ok(())
    }

    /// Claims the place for this run, and sets aside checkpoints that are not part of its history.
    fn open(&self) -> Result<()> {
        let Some(step) = self.state.lock().from else { return Ok(()) };
        self.place.claim(&self.run)?;
        let url = self.place.url();
        for later in self.place.go_back(step)?.into_iter().map(checkpoint::name) {
            tracing::warn!("{url}: {later} is set aside, since the run continues from step {step}");
        }
        let mut state = self.state.lock();
        if state.from == Some(step) {
            state.from = None;
        }
        Ok(())
    }

    fn report_copy(&self, copy: &CopyResult, took: Duration) {
        let mut state = self.state.lock();
        state.copied = Some(copy.step);
        let url = self.place.url();
        if let Some(since) = state.failing_since.take() {
            let outage = Seconds(since.elapsed().as_secs_f64());
            tracing::info!("{url} takes copies again, after {outage}");
        }
        if let Some(bytes) = copy.bytes.map(Bytes) {
            let name = checkpoint::name(copy.step);
            let took = Seconds(took.as_secs_f64());
            let text = format!("{name} to {url}, {bytes} in {took}");
            tracing::info!("copied {text}");
            events::add(&self.folder, Kind::Copy, &text);
        }
    }

    /// Warns once, until a copy succeeds.
    fn report_failure(&self, error: &anyhow::Error) {
        let mut state = self.state.lock();
        if state.failing_since.is_none() {
            state.failing_since = Some(Moment::now());
            tracing::warn!(
                "checkpoints are not copied: {error:#}; training continues, and so do the retries"
            );
        }
    }

    /// Whether the checkpoint being copied is still wanted.
    fn is_wanted(&self) -> bool {
        let state = self.state.lock();
        !state.ended && !state.abandoned
    }

    /// Sleeps. Returns whether to retry the same checkpoint; false if there is a newer one.
    fn retries_after(&self, pause: Duration, step: u64) -> bool {
        let begun = Moment::now();
        let mut state = self.state.lock();
        let retries = |state: &QueueState| {
            let newer = state.next.as_ref().is_some_and(|next| next.step != step);
            !state.ended && !newer && !state.abandoned
        };
        while retries(&state) && begun.elapsed() < pause {
            self.changed
                .wait_for(&mut state, pause.saturating_sub(begun.elapsed()));
        }
        retries(&state)
    }

    /// Waits for a checkpoint to copy; None when the run ends.
    fn pop(&self) -> Option<CheckpointFolder> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(found) = state.next.take() {
                (state.copying, state.abandoned) = (Some(found.step), false);
                return Some(found);
            }
            self.changed.wait(&mut state);
        }
    }
}

/// Folder of the logs in the place.
const LOGS: &str = "logs";

/// The run's record, events, effective manifest, text logs and TensorBoard files.
fn list_logs(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_log = |path: &Path| {
        let end = path.extension().and_then(|end| end.to_str());
        path.is_file() && matches!(end, Some("jsonl" | "log" | "yaml"))
    };
    let mut files = list(folder)?;
    files.retain(|path| is_log(path));
    let boards = folder.join("tensorboard");
    let mut folders = Vec::from_iter(boards.is_dir().then_some(boards));
    while let Some(folder) = folders.pop() {
        let (inner, found): (Vec<PathBuf>, Vec<PathBuf>) =
            list(&folder)?.into_iter().partition(|path| path.is_dir());
        folders.extend(inner);
        files.extend(found);
    }
    Ok(files)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let names = fs::read_dir(folder).and_then(input::names);
    let names = names.with_context(|| format!("cannot list {}", folder.display()))?;
    Ok(names.iter().map(|name| folder.join(name)).collect())
}

/// File with the id of a new run until its first checkpoint. Without it a run killed between
/// claiming a place and that checkpoint would appear as another run to the place.
const RUN_ID: &str = "run.id";

/// Id of a new run: the id of an earlier start, otherwise `new`, which is recorded.
pub fn run_id(folder: &Path, new: String) -> Result<String> {
    let path = folder.join(RUN_ID);
    if let Ok(text) = input::read(&path, input::SMALL)
        && let Some(id) = std::str::from_utf8(&text)
            .ok()
            .and_then(|text| text.strip_suffix('\n'))
    {
        return Ok(id.to_string());
    }
    output::write(&path, Existing::Replaced, format!("{new}\n").as_bytes())?;
    Ok(new)
}
