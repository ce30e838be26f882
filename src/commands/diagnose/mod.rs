//! `gptrain diagnose`: names the rank that stopped a failed run, from the dumps of its ranks; with `--now`
//! the rank that others wait for in a run that is running.

mod now;

use anyhow::Context;
use base::input::is_there;
use base::{Seconds, number};
use comm::{Dump, End, Event, LogLine, RankReport};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Diagnose {
    /// Folder of a failed run, or of one of its dumps: verdict.json, rank-00000.json … With --now: of a
    /// run that is running
    folder: PathBuf,
    /// Ask the ranks of a running job what they do, who waits for whom, and which do not answer. Needs
    /// write permission in the run's folder, on any machine that reaches it
    #[arg(long)]
    now: bool,
    /// Time limit for the ranks' answers; the command ends as soon as all have answered
    #[arg(long, value_name = "SECONDS", requires = "now", default_value = "10",
          value_parser = number::whole_in(2u64..=3600))]
    wait: u64,
    /// Also show the last messages and operations of these ranks, and with --now their threads
    #[arg(long, value_name = "RANK", value_parser = number::whole::<usize>)]
    rank: Vec<usize>,
}

impl Diagnose {
    /// Prints the diagnosis of a failed run or of one of its dumps, and the last messages and operations
    /// of some ranks.
    pub fn run(self) -> anyhow::Result<()> {
        if self.now {
            return now::diagnose(&self.folder, Duration::from_secs(self.wait), &self.rank);
        }
        let dump = Dump::read(&dump_folder(&self.folder)?)?;
        let found = dump.diagnose();
        match (&dump.line, &found) {
            (Some(line), _) => base::say!("{line}"),
            (None, Some(line)) => {
                base::say!("no verdict can be read; the ranks' reports say: {line}")
            }
            (None, None) => base::say!("no verdict can be read, and no rank waits for another"),
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
            base::say!("{}", summarize(report));
        }
        for report in self.rank.iter().filter_map(|rank| dump.ranks.get(*rank)) {
            print_details(report);
        }
        Ok(())
    }
}

/// Prints the last messages and operations of a rank.
fn print_details(report: &RankReport) {
    base::say!("\n{}", report.name());
    for line in &report.log {
        base::say!("{}", format_message(line));
    }
    for event in &report.events {
        base::say!("{}", format_operation(event));
    }
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
        base::say!("older dump: {}", older.display());
    }
    base::say!("");
    Ok(newest)
}

/// State of one rank, in one line.
fn summarize(report: &RankReport) -> String {
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
        .map(|event| describe_pending(report, event))
        .collect();
    let within = if within.is_empty() { "in no collective".into() } else { within.join(", ") };
    format!("{name}: {doing}; {within}{end}")
}

/// Pending operation: "in all_reduce #7 of group dp for 41 s, waits for rank 3".
fn describe_pending(report: &RankReport, event: &Event) -> String {
    let Event { op, sequence, group, .. } = event;
    let since = Seconds(report.now - event.started.unwrap_or(report.now));
    let awaits = event
        .awaiting
        .map_or(String::new(), |rank| format!(", waits for rank {rank}"));
    format!("in {op} #{sequence} of group {group} for {since}{awaits}")
}

/// Log message: `12.345678 s  WARN in step 7: a newer checkpoint is now called …`.
fn format_message(line: &LogLine) -> String {
    let LogLine { at, level, step, text } = line;
    let step = step.map_or(String::new(), |step| format!(" in step {step}"));
    format!("{at:14.6} s  {level}{step}: {text}")
}

/// Operation: `12.345678 s  all_reduce #7 of dp  4,000 bytes f32  3 ms`.
fn format_operation(event: &Event) -> String {
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
