//! Copies of a run's checkpoints in another place (`checkpoint.also`). A thread of rank 0 copies
//! each durable checkpoint. Training waits for it only at the end of the run, with a time limit.
//! Also fetches a checkpoint from such a place into the run's folder.

use anyhow::{Context, Result, ensure};
use base::output::{self, Existing};
use base::{Bytes, Problems, Seconds, input, threads};
use checkpoint::place::{CopyResult, Place, SentFiles, Stopped};
use checkpoint::{self, CheckpointFolder, Keep};
use launch::events::{self, Kind};
use launch::guard::Signals;
use launch::rank::Rank;
use manifest::Manifest;
use parking_lot::{Condvar, Mutex};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limits for the last upload: `[run complete, run continues]`.
const PATIENCE: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(10)];

/// Pauses between retries: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Poll interval of waits.
const LOOK: Duration = Duration::from_millis(200);

/// Time limit for a pending request at the end of a run.
const LAST_REQUEST: Duration = Duration::from_secs(2);

/// Copies of a run, on rank 0.
pub struct Copies {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    begun_to_wait: Option<Instant>,
}

/// State shared between the training loop and the copy thread.
pub struct Shared {
    place: Place,
    run: String,
    folder: PathBuf,
    keep: Keep,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Newest checkpoint that is not copied yet; older ones are skipped.
    wanted: Option<CheckpointFolder>,
    /// Step of the checkpoint being copied, which must not be removed meanwhile.
    copying: Option<u64>,
    /// Whether the run rolled back, so that the checkpoint being copied is no longer part of its
    /// history.
    abandoned: bool,
    /// Step that the run continues from, until the place was opened: later checkpoints in the place
    /// are set aside.
    back: Option<u64>,
    /// Last checkpoint to be copied, and the last that was.
    last: Option<u64>,
    newest: Option<u64>,
    /// Time of the first failed upload since the last success; None while uploads succeed.
    away: Option<Instant>,
    ended: bool,
}

impl Copies {
    /// Starts copying for a run that continues from `step`, first the newest of its checkpoints,
    /// unless an earlier process copied it. None if the manifest names no other place. A new run
    /// requires a writable place; a resumed one may find it later.
    pub fn start(m: &Manifest, run: &str, step: u64, checkpoints: &Path) -> Result<Option<Copies>> {
        let Some(url) = &m.checkpoint.also else { return Ok(None) };
        let newest = checkpoint::latest(checkpoints)?;
        let keep =
            Keep { last: m.checkpoint.keep_last, every: m.checkpoint.keep_every, read: None };
        let shared = Arc::new(Shared {
            place: Place::open(url)?,
            run: run.to_string(),
            folder: m.log.folder.clone(),
            keep,
            state: Mutex::new(State { back: Some(step), ..State::default() }),
            changed: Condvar::new(),
        });
        match shared.open() {
            Err(error) if error.is::<Problems>() => return Err(error),
            Err(error) if step == 0 => {
                let _ = fs::remove_file(m.log.folder.join(RUN)); // it claimed nothing
                let what = format!("{url} cannot be written: {error:#}");
                let remedy = "choose another place, or leave it out; S3 takes AWS_ACCESS_KEY_ID, \
                              AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL";
                return Err(Problems::one("checkpoint.also", what, remedy).into());
            }
            Err(error) => shared.fails(&error),
            Ok(()) => {}
        }
        let (of_thread, span) =
            (shared.clone(), tracing::error_span!(parent: None, "rank", rank = 0));
        let thread = Some(threads::spawn("copies", move || {
            let _rank = span.enter();
            of_thread.work();
        })?);
        newest.into_iter().for_each(|newest| shared.want(newest));
        Ok(Some(Copies { shared, thread, begun_to_wait: None }))
    }

    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Polled at the end of the run: whether the newest checkpoint is copied, or the time limit has
    /// passed. It is longer for `complete` runs.
    pub fn is_done(&mut self, complete: bool, stop: bool) -> bool {
        let (shared, begun) = (&self.shared, self.begun_to_wait);
        let patience = PATIENCE[usize::from(!complete)];
        let mut state = shared.state.lock();
        if begun.is_none() && !state.is_idle() {
            let (url, patience) = (shared.place.url(), Seconds(patience.as_secs_f64()));
            tracing::info!("waiting up to {patience} for the copy in {url}");
        }
        let begun = *self.begun_to_wait.get_or_insert_with(Instant::now);
        if !state.is_idle() {
            shared.changed.wait_for(&mut state, LOOK);
        }
        state.is_idle() || begun.elapsed() >= patience || complete && stop
    }

    /// Warns if the newest checkpoint is not copied.
    pub fn summary(&self) {
        let (state, url) = (self.shared.state.lock(), self.shared.place.url());
        if state.last > state.newest {
            let newest = state.newest.map_or("none is".into(), |step| {
                format!("the newest there is {}", checkpoint::name(step))
            });
            tracing::warn!(
                "{url}: the last checkpoint is not there, {newest}; the next start of the run copies it"
            );
        }
    }
}

impl Drop for Copies {
    /// Leaves uncopied checkpoints to the next start of the run. A longer request ends with the
    /// process: a copy is incomplete until its index exists.
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        let end = Instant::now() + LAST_REQUEST;
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        if thread.is_finished() {
            thread.join().ok(); // a panic has been printed
        }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.wanted.is_none() && self.copying.is_none()
    }
}

impl Shared {
    /// Requests the copy of a durable checkpoint.
    pub fn want(&self, found: CheckpointFolder) {
        let mut state = self.state.lock();
        state.last = Some(found.step);
        state.wanted = Some(found);
        drop(state);
        self.changed.notify_all();
    }

    /// Step of the checkpoint being copied.
    pub fn reads(&self) -> Option<u64> {
        self.state.lock().copying
    }

    /// Continues from an older step.
    pub fn go_back(&self, step: u64) {
        let mut state = self.state.lock();
        state.back = Some(step);
        state.wanted = None;
        state.abandoned = state.copying.is_some_and(|copying| copying > step);
        state.last = state.last.min(Some(step));
        state.newest = state.newest.min(Some(step));
    }

    fn work(&self) {
        while let Some(found) = self.next() {
            let (sent, mut pause) = (SentFiles::default(), PAUSES[0]);
            loop {
                let begun = Instant::now();
                match self.copy(&found, &sent) {
                    Ok(copy) => break self.done(&copy, begun.elapsed()),
                    Err(error) if self.is_to_go_on() && found.folder.exists() => self.fails(&error),
                    Err(_) => break,
                }
                if !self.retries_after(pause, found.step) {
                    break;
                }
                pause = (2 * pause).min(PAUSES[1]);
            }
            self.state.lock().copying = None;
            self.changed.notify_all();
        }
    }

    fn copy(&self, found: &CheckpointFolder, sent: &SentFiles) -> Result<CopyResult> {
        self.open()?;
        let go_on = || self.is_to_go_on();
        let copied = self.place.copy(&found.folder, sent, &go_on)?;
        self.place.prune(self.keep)?;
        Ok(copied)
    }

    /// Claims the place for this run, and sets aside checkpoints that are not part of its history.
    fn open(&self) -> Result<()> {
        let Some(step) = self.state.lock().back else { return Ok(()) };
        self.place.claim(&self.run)?;
        let url = self.place.url();
        for later in self.place.go_back(step)?.into_iter().map(checkpoint::name) {
            tracing::warn!("{url}: {later} is set aside, since the run continues from step {step}");
        }
        let mut state = self.state.lock();
        if state.back == Some(step) {
            state.back = None;
        }
        Ok(())
    }

    fn done(&self, copy: &CopyResult, took: Duration) {
        let mut state = self.state.lock();
        state.newest = Some(copy.step);
        let url = self.place.url();
        if let Some(since) = state.away.take() {
            let away = Seconds(since.elapsed().as_secs_f64());
            tracing::info!("{url} takes copies again, after {away}");
        }
        if let Some(bytes) = copy.bytes.map(Bytes) {
            let (name, took) = (checkpoint::name(copy.step), Seconds(took.as_secs_f64()));
            let text = format!("{name} to {url}, {bytes} in {took}");
            tracing::info!("copied {text}");
            events::add(&self.folder, Kind::Copy, &text);
        }
    }

    /// Warns once, until a copy succeeds.
    fn fails(&self, error: &anyhow::Error) {
        let mut state = self.state.lock();
        if state.away.is_none() {
            state.away = Some(Instant::now());
            tracing::warn!(
                "checkpoints are not copied: {error:#}; training continues, and so do the retries"
            );
        }
    }

    /// Whether the checkpoint being copied is still wanted.
    fn is_to_go_on(&self) -> bool {
        let state = self.state.lock();
        !state.ended && !state.abandoned
    }

    /// Sleeps. Returns whether to retry the same checkpoint; false if there is a newer one.
    fn retries_after(&self, pause: Duration, step: u64) -> bool {
        let end = Instant::now() + pause;
        let mut state = self.state.lock();
        let retries = |state: &State| {
            let newer = state.wanted.as_ref().is_some_and(|wanted| wanted.step != step);
            !state.ended && !newer && !state.abandoned
        };
        while retries(&state) && !self.changed.wait_until(&mut state, end).timed_out() {}
        retries(&state)
    }

    /// Waits for a checkpoint to copy; None when the run ends.
    fn next(&self) -> Option<CheckpointFolder> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(found) = state.wanted.take() {
                (state.copying, state.abandoned) = (Some(found.step), false);
                return Some(found);
            }
            self.changed.wait(&mut state);
        }
    }
}

/// File with the id of a new run until its first checkpoint. Without it a run killed between
/// claiming a place and that checkpoint would appear as another run to the place.
const RUN: &str = "run.id";

/// Id of a new run: that of an earlier start, otherwise `fresh`, which is recorded.
pub fn name_run(folder: &Path, fresh: String) -> Result<String> {
    let path = folder.join(RUN);
    if let Ok(text) = input::read(&path, input::SMALL)
        && let Some(name) = std::str::from_utf8(&text).ok().and_then(|text| text.strip_suffix('\n'))
    {
        return Ok(name.to_string());
    }
    output::write(&path, Existing::Replaced, format!("{fresh}\n").as_bytes())?;
    Ok(fresh)
}

/// Fetches the checkpoint of the URL `asked` into the run's folder, unless it is there. Returns its
/// name. Other paths are returned unchanged. A collective: rank 0 fetches, because all ranks read
/// the run's folder, and the others wait.
pub fn fetch(
    rank: &Rank,
    signals: &Signals,
    checkpoints: PathBuf,
    asked: Option<&Path>,
) -> Result<Option<PathBuf>> {
    let Some(url) = asked.and_then(Place::is_url) else { return Ok(asked.map(Path::to_path_buf)) };
    rank.set_phase("fetching the checkpoint to resume from");
    let (url, from) = (url.to_string(), url.to_string());
    let stopped = Stopped::default();
    let heeded = stopped.clone();
    let bring = move || -> Result<PathBuf> {
        let begun = Instant::now();
        let fetched = Place::open(&url)?.until(heeded).fetch(&checkpoints)?;
        let name = fetched.folder.file_name().context("a checkpoint has a name")?;
        if let Some(aside) = fetched.set_aside {
            tracing::warn!("what was {} in the run's folder is now called {aside}", name.display());
        }
        if let Some(bytes) = fetched.bytes.map(Bytes) {
            let took = Seconds(begun.elapsed().as_secs_f64());
            tracing::info!("fetched {} from {url}, {bytes} in {took}", name.display());
        }
        Ok(PathBuf::from(name))
    };
    let mut thread = match rank.is_first() {
        true => Some(threads::spawn("fetch", bring)?),
        false => None,
    };
    let mut name = None;
    let fetched = rank.wait_until(|| {
        ensure!(!signals.stop(), "stopped while {from} was fetched; nothing of it is kept");
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::sleep(LOOK);
            return Ok(false);
        }
        if let Some(thread) = thread.take() {
            name = Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(true)
    });
    stopped.store(true, Ordering::Relaxed);
    if let Some(thread) = thread {
        thread.join().ok(); // it cleans up
    }
    fetched?;
    rank.on_first(|| Ok(name.expect("fetched above"))).map(Some)
}
