//! Fetches a checkpoint from a mirror (`--resume-from URL`) into the run's folder.

use anyhow::{Context, Result, ensure};
use base::{Bytes, Moment, Seconds, threads};
use checkpoint::place::{Place, Stopped};
use launch::rank::Rank;
use launch::signals::Signals;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Poll interval of the fetching thread.
const POLL: Duration = Duration::from_millis(200);

/// Fetches the checkpoint of the URL `named` into the run's folder, unless it is there. Returns its
/// name. Other paths are returned unchanged. A collective: rank 0 fetches, because all ranks read
/// the run's folder, and the others wait.
pub fn fetch(
    rank: &Rank,
    signals: &Signals,
    checkpoints: PathBuf,
    named: Option<&Path>,
) -> Result<Option<PathBuf>> {
    let Some(url) = named.and_then(Place::is_url) else { return Ok(named.map(Path::to_path_buf)) };
    rank.set_phase("fetching the checkpoint to resume from");
    let (url, from) = (url.to_string(), url.to_string());
    let stopped = Stopped::default();
    let until = stopped.clone();
    let mut thread = if rank.is_first() {
        Some(threads::spawn("fetch", move || -> Result<PathBuf> {
            let begun = Moment::now();
            let fetched = Place::open(&url)?.until(until).fetch(&checkpoints)?;
            let name = fetched
                .folder
                .file_name()
                .context("a checkpoint has a name")?;
            if let Some(aside) = fetched.set_aside {
                tracing::warn!(
                    "what was {} in the run's folder is now called {aside}",
                    name.display()
                );
            }
            if let Some(bytes) = fetched.bytes.map(Bytes) {
                let took = Seconds(begun.elapsed().as_secs_f64());
                tracing::info!("fetched {} from {url}, {bytes} in {took}", name.display());
            }
            Ok(PathBuf::from(name))
        })?)
    } else {
        None
    };
    let mut name = None;
    let fetched = rank.wait_until(|| {
        ensure!(
            !signals.stop_requested(),
            "stopped while {from} was fetched; nothing of it is kept"
        );
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::sleep(POLL);
            return Ok(false);
        }
        if let Some(thread) = thread.take() {
            name = Some(
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            );
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
