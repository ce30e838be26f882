//! Table of the runs below a folder, one row each.

use base::{Count, Problems, Seconds, columns, escape_control};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use train::report::numbers::Format;
use train::status::{NAME, RunState, Status};

/// Depth of the search below the given folder: `runs/sweep/lr/a`.
const LEVELS: usize = 4;

/// Folders of a run that are skipped: they contain no other run and are slow to list.
const SKIPPED: [&str; 3] = ["checkpoints", "tensorboard", "failures"];

/// Folder of a run, and its status or the error of reading it.
pub struct RunRow {
    folder: PathBuf,
    status: anyhow::Result<Status>,
}

/// All runs below a folder: running ones first, then by time of start, the newest first.
pub fn find(folder: &Path, now: f64) -> Vec<RunRow> {
    let root = folder
        .metadata()
        .map(|about| (about.dev(), about.ino()))
        .ok();
    let mut found = Vec::new();
    let mut seen = BTreeSet::from_iter(root);
    search(folder, LEVELS, &mut found, &mut seen);
    let mut rows: Vec<RunRow> = found
        .into_iter()
        .map(|folder| RunRow { status: Status::read(&folder), folder })
        .collect();
    let running = |row: &RunRow| row.state(now) == Some(RunState::Running);
    let started = |row: &RunRow| row.status.as_ref().map_or(0.0, |status| status.started);
    rows.sort_by(|a, b| {
        let order = running(b)
            .cmp(&running(a))
            .then(started(b).total_cmp(&started(a)));
        order.then_with(|| a.folder.cmp(&b.folder))
    });
    rows
}

/// Folders with a status. Skips unreadable folders; follows links, and visits each folder once.
fn search(folder: &Path, levels: usize, found: &mut Vec<PathBuf>, seen: &mut BTreeSet<(u64, u64)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        if hidden || SKIPPED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        let path = entry.path();
        let Some(about) = path.metadata().ok().filter(|about| about.is_dir()) else { continue };
        if !seen.insert((about.dev(), about.ino())) {
            continue;
        }
        if path.join(NAME).exists() {
            found.push(path);
        } else if levels > 1 {
            search(&path, levels - 1, found, seen);
        }
    }
}

impl RunRow {
    fn state(&self, now: f64) -> Option<RunState> {
        self.status
            .as_ref()
            .ok()
            .map(|status| status.state(&self.folder, now))
    }

    fn cells(&self, now: f64) -> Vec<String> {
        let folder = escape_control(&self.folder.display().to_string()).into_owned();
        let Ok(status) = &self.status else {
            return vec![folder, format!("{NAME} is damaged")];
        };
        let state = status.state(&self.folder, now);
        let step = format!("{} of {}", Count(status.step), Count(status.total_steps));
        let loss = status
            .loss()
            .map_or("–".into(), |loss| format!("{loss:.4}"));
        let speed = Format::Rate.show(status.last.0.tokens_per_s);
        let left = status
            .left_s
            .filter(|_| state == RunState::Running)
            .map(Seconds);
        let left = left.map_or("–".into(), |left| left.to_string());
        let age = Seconds((now - status.updated).max(0.0)).to_string();
        vec![folder, state.to_string(), step, loss, speed, left, age]
    }

    fn object(&self, now: f64) -> Value {
        let folder = self.folder.display().to_string();
        match &self.status {
            Ok(status) => {
                let state = status.state(&self.folder, now);
                json!({ "run": folder, "state": state, "status": status })
            }
            Err(error) => json!({ "run": folder, "error": format!("{error:#}") }),
        }
    }
}

pub fn text(rows: &[RunRow], now: f64) -> String {
    let head = ["run", "state", "step", "loss", "tokens/s", "left", "updated"];
    let mut cells = vec![head.map(str::to_string).to_vec()];
    cells.extend(rows.iter().map(|row| row.cells(now)));
    columns(&cells, 2)
}

pub fn object(rows: &[RunRow], now: f64) -> Value {
    json!({ "runs": rows.iter().map(|row| row.object(now)).collect::<Vec<_>>() })
}

/// Error for a folder that contains no run.
pub fn none(folder: &Path) -> Problems {
    Problems::one(
        folder.display().to_string(),
        format!("no folder below it, {LEVELS} levels deep, holds a run's {NAME}"),
        "give a run's folder (log.folder of its manifest), or a folder that holds runs",
    )
}
