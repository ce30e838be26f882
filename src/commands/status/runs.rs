//! Table of the runs below a folder, one row each.

use base::table::{Cell, Printout, Rows};
use base::{Count, Problems, Seconds};
use serde_json::json;
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
}

/// A row per run.
pub fn printout(rows: &[RunRow], now: f64) -> Printout {
    let status = |row: &RunRow, cell: fn(&Status) -> Cell| match &row.status {
        Ok(status) => cell(status),
        Err(_) => Cell::default(),
    };
    let table = Rows::new(rows)
        .column("run", "run", |row| row.folder.display().to_string())
        .column("state", "state", |row| match row.state(now) {
            Some(state) => Cell::new(json!(state), state.to_string()),
            None => Cell::without_value(format!("{NAME} is damaged")),
        })
        .json("error", |row| match &row.status {
            Ok(_) => Cell::default(),
            Err(error) => format!("{error:#}").into(),
        })
        .json("status", |row| status(row, |s| Cell::new(json!(s), "")))
        .text("step", |row| {
            status(row, |s| format!("{} of {}", Count(s.step), Count(s.total_steps)).into())
        })
        .text("loss", |row| {
            status(row, |s| Cell::optional(s.loss().map(|loss| Cell::fixed(loss, 4))))
        })
        .text("tokens/s", |row| status(row, |s| rate(s.last.0.tokens_per_s)))
        .text("left", |row| match row.state(now) {
            Some(RunState::Running) => status(row, |s| Cell::optional(s.left_s.map(seconds))),
            Some(_) => Cell::without_value("–"),
            None => Cell::default(),
        })
        .text("updated", |row| match &row.status {
            Ok(status) => seconds((now - status.updated).max(0.0)),
            Err(_) => Cell::default(),
        })
        .table();
    let mut out = Printout::new(json!({ "runs": table.json() }));
    out.table(table);
    out
}

fn rate(tokens_per_s: f64) -> Cell {
    Cell::new(tokens_per_s, Format::Rate.show(tokens_per_s))
}

fn seconds(seconds: f64) -> Cell {
    Cell::new(seconds, Seconds(seconds).to_string())
}

/// Error for a folder that contains no run.
pub fn no_run_error(folder: &Path) -> Problems {
    Problems::one(
        folder.display().to_string(),
        format!("no folder below it, {LEVELS} levels deep, holds a run's {NAME}"),
        "give a run's folder (log.folder of its manifest), or a folder that holds runs",
    )
}
