//! Table of the runs below a folder, one row each.

use base::table::{Cell, Column, Printout, Table};
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
    // Cell of a run's status; absent if it cannot be read.
    fn of_status<'a>(
        now: f64,
        cell: impl Fn(&Status, RunState) -> Cell + 'a,
    ) -> impl Fn(&RunRow) -> Cell + 'a {
        move |row| match (&row.status, row.state(now)) {
            (Ok(status), Some(state)) => cell(status, state),
            _ => Cell::default(),
        }
    }
    let steps = |s: &Status| format!("{} of {}", Count(s.step), Count(s.total_steps));
    let columns = [
        Column::new("run", "run", |row: &RunRow| row.folder.display().to_string()),
        Column::new("state", "state", |row: &RunRow| match row.state(now) {
            Some(state) => Cell::new(json!(state), state.to_string()),
            None => Cell::without_value(format!("{NAME} is damaged")),
        }),
        Column::json("error", |row: &RunRow| match &row.status {
            Ok(_) => Cell::default(),
            Err(error) => format!("{error:#}").into(),
        }),
        Column::json("status", of_status(now, |s, _| Cell::new(json!(s), ""))),
        Column::text("step", of_status(now, |s, _| steps(s).into())),
        Column::text(
            "loss",
            of_status(now, |s, _| Cell::optional(s.loss().map(|loss| Cell::fixed(loss, 4)))),
        ),
        Column::text(
            "tokens/s",
            of_status(now, |s, _| {
                Cell::new(s.last.0.tokens_per_s, Format::Rate.show(s.last.0.tokens_per_s))
            }),
        ),
        Column::text(
            "left",
            of_status(now, |s, state| {
                let left = s.left_s.filter(|_| state == RunState::Running);
                Cell::optional(left.map(seconds))
            }),
        ),
        Column::text("updated", of_status(now, |s, _| seconds((now - s.updated).max(0.0)))),
    ];
    let table = Table::new(&columns, rows);
    let mut out = Printout::new(json!({ "runs": table.json() }));
    out.table(table);
    out
}

fn seconds(seconds: f64) -> Cell {
    Cell::new(seconds, Seconds(seconds).to_string())
}

/// Error for a folder that contains no run.
pub fn none(folder: &Path) -> Problems {
    Problems::one(
        folder.display().to_string(),
        format!("no folder below it, {LEVELS} levels deep, holds a run's {NAME}"),
        "give a run's folder (log.folder of its manifest), or a folder that holds runs",
    )
}
