//! Diagnosis of a failed run from the dump of its ranks.

use anyhow::Context;
use base::Seconds;
use base::input::is_there;
use comm::{Dump, End, Event, LogLine, RankReport};
use std::fs;
use std::path::{Path, PathBuf};

/// Prints the diagnosis of a failed run or of one of its dumps, and the last messages and operations
/// of some ranks.
pub fn diagnose(folder: &Path, ranks: &[usize]) -> anyhow::Result<()> {
    let dump = Dump::read(&dump_folder(folder)?)?;
    let found = dump.diagnose();
    match (&dump.line, &found) {
        (Some(line), _) => base::say!("{line}"),
        (None, Some(line)) => {
            base::say!("there is no verdict file; the ranks' reports say: {line}")
        }
        (None, None) => base::say!("there is no verdict file, and no rank waits for another"),
    }
    if let (Some(line), Some(found)) = (&dump.line, &found)
        && line != found
    {
        base::say!("the ranks' reports, written a moment later, say: {found}");
    }
    for damaged in &dump.damaged {
        base::say!("unreadable: {damaged}");
    }
    base::say!("");
    for report in &dump.ranks {
        base::say!("{}", summary(report));
    }
    for report in ranks.iter().filter_map(|rank| dump.ranks.get(*rank)) {
        base::say!("\n{}", report.name());
        for line in &report.log {
            base::say!("{}", logged(line));
        }
        for event in &report.events {
            base::say!("{}", detail(event));
        }
    }
    Ok(())
}

/// Dump folder: `folder` itself, or the newest dump of a run's folder. Prints the older ones.
fn dump_folder(folder: &Path) -> anyhow::Result<PathBuf> {
    is_there(folder)?;
    let dumps = folder.join("failures");
    if !dumps.is_dir() {
        return Ok(folder.to_path_buf());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&dumps).with_context(|| format!("reading {}", dumps.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    found.sort();
    let Some((_, newest)) = found.pop() else { return Ok(dumps) };
    base::say!("{}", newest.display());
    for (_, older) in found.iter().rev() {
        base::say!("there is also {}", older.display());
    }
    base::say!("");
    Ok(newest)
}

/// State of one rank, in one line.
fn summary(report: &RankReport) -> String {
    let name = report.name();
    if report.events.is_empty() && report.groups.is_empty() && report.now < 1e-3 {
        return format!("{name}: wrote no report");
    }
    let end = match &report.ended {
        Some(End::Left) => "; it had ended".to_string(),
        Some(End::Died(how)) => format!("; it died: {how}"),
        None => report
            .silent
            .map_or(String::new(), |s| format!("; silent for {}", Seconds(s))),
    };
    let doing = format!("{} for {}", report.phase, Seconds(report.now - report.phase_since));
    let within: Vec<String> = report
        .active_ops()
        .map(|event| waiting(report, event))
        .collect();
    let within = if within.is_empty() { "in no collective".into() } else { within.join(", ") };
    format!("{name}: {doing}; {within}{end}")
}

/// Pending operation: "in all_reduce #7 of group dp for 41 s, waits for rank 3".
fn waiting(report: &RankReport, event: &Event) -> String {
    let Event { op, sequence, group, .. } = event;
    let since = Seconds(report.now - event.started.unwrap_or(report.now));
    let awaits = event
        .awaiting
        .map_or(String::new(), |rank| format!(", waits for rank {rank}"));
    format!("in {op} #{sequence} of group {group} for {since}{awaits}")
}

/// Log message: `12.345678 s  WARN in step 7: a newer checkpoint is now called …`.
fn logged(line: &LogLine) -> String {
    let LogLine { at, level, step, text } = line;
    let step = step.map_or(String::new(), |step| format!(" in step {step}"));
    format!("{at:14.6} s  {level}{step}: {text}")
}

/// Operation: `12.345678 s  all_reduce #7 of dp  4,000 bytes f32  3 ms`.
fn detail(event: &Event) -> String {
    let Event { op, sequence, group, dtype, bytes, .. } = event;
    let took = match (event.started, event.finished) {
        (Some(started), Some(finished)) => Seconds(finished - started).to_string(),
        (Some(_), None) => "unfinished".to_string(),
        _ => "not started".to_string(),
    };
    let peer = event
        .peer
        .map_or(String::new(), |peer| format!(" with rank {peer}"));
    let at = event.enqueued;
    format!("{at:14.6} s  {op} #{sequence} of {group}{peer}  {bytes} bytes {dtype}  {took}")
}
