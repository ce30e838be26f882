//! The status in Prometheus's text format, version 0.0.4, for the textfile collector of
//! node_exporter: `metrics.prom` in the run's folder, and a file in the collector's folder.

use super::state::Status;
use crate::report::numbers::{Shown, placed_numbers};
use base::output::{self, Existing};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Name of the file in the run's folder.
const NAME: &str = "metrics.prom";

/// Files that are written with each heartbeat.
pub struct Files {
    own: PathBuf,
    /// File in the collector's folder, removed when the run ends: the collector would report its
    /// last numbers for ever.
    collected: Option<PathBuf>,
    /// Whether the last write to the collector's folder failed, which is reported once.
    failed: bool,
}

impl Files {
    /// Files of the run `name` in `folder`. Two runs of one name on a node share a file, because the
    /// collector refuses metrics that are there twice.
    pub fn new(folder: &Path, name: &str, collector: Option<&Path>) -> Files {
        let collected = collector.map(|folder| folder.join(format!("gptrain-{name}.prom")));
        Files { own: folder.join(NAME), collected, failed: false }
    }

    /// Writes both files aside and renames them, so that no reader sees half a file.
    pub fn write(&mut self, status: &Status) {
        let text = text(status);
        // The next save reports a folder that is full or missing.
        let _ = output::write(&self.own, Existing::Replaced, text.as_bytes());
        let Some(collected) = &self.collected else { return };
        let written = if status.ended {
            output::remove(collected)
        } else {
            output::write(collected, Existing::Replaced, text.as_bytes())
        };
        if let Err(error) = &written
            && !self.failed
        {
            tracing::warn!("log.prometheus: {error:#}; the run continues without it");
        }
        self.failed = written.is_err();
    }
}

/// Text of all metrics, with their descriptions.
fn text(status: &Status) -> String {
    let progress = [
        ("step", "counter", "Optimizer steps taken", status.step as f64),
        ("steps", "gauge", "Optimizer steps of the whole run", status.total_steps as f64),
    ];
    let numbers = placed_numbers(|place| match place {
        Shown::Prometheus(name, kind, help) => Some((0, (name, kind, help))),
        _ => None,
    })
    .filter_map(|(number, (name, kind, help))| {
        Some((name, kind, help, (number.value)(&status.last.0)?))
    });
    #[rustfmt::skip]
    let run = [
        ("seconds_left", "gauge", "Expected to the end of the run", status.left_s.unwrap_or(f64::NAN)),
        ("goodput_ratio", "gauge", "Share of running time in steps that count", status.goodput()),
        ("skipped_steps", "counter", "Steps without an update", status.skipped_steps as f64),
        ("warnings", "gauge", "Warnings kept", status.warnings.len() as f64),
        ("heartbeat_seconds", "gauge", "Time of this heartbeat, since 1970", status.updated),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in progress.into_iter().chain(numbers).chain(run) {
        let value = if value.is_finite() { value.to_string() } else { "NaN".to_string() };
        let _ = writeln!(
            text,
            "# HELP gptrain_{name} {help}\n# TYPE gptrain_{name} {kind}\n\
             gptrain_{name}{{run=\"{}\"}} {value}",
            status.name
        );
    }
    text
}
