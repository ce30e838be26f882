//! `gptrain status`

mod watch;

use base::{Count, Problems, Seconds, escape_control, unix_time};
use commands::runs;
use estimate::parts::PartTable;
use launch::events::{self, Event, Kind};
use std::path::{Path, PathBuf};
use train::report::numbers::{Format, Shown, shown};
use train::status::{NAME, State, Status};

#[derive(clap::Args)]
pub struct Args {
    /// Run folder (`log.folder` of its manifest), or a folder that holds runs
    #[arg(value_name = "FOLDER", default_value = "runs")]
    folder: PathBuf,
    /// Follow one run until it ends: redraws on a terminal, prints a line per change in a pipe
    #[arg(long)]
    watch: bool,
    /// Print JSON: one run's status.json, or {"runs": […]}; with --watch an object per change
    #[arg(long)]
    json: bool,
}

pub fn run(Args { folder, watch, json }: Args) -> anyhow::Result<()> {
    let now = unix_time().as_secs_f64();
    let is_run = folder.join(NAME).exists();
    if !is_run && folder.is_dir() {
        return list(&folder, now, watch, json);
    }
    if watch {
        return watch::follow(&folder, json);
    }
    let status = Status::read(&folder)?;
    match json {
        true => base::say!("{:#}", serde_json::to_value(&status)?),
        false => base::say!("{}", escape_control(&text(&status, &folder, now))),
    }
    Ok(())
}

/// Prints the runs below a folder.
fn list(folder: &Path, now: f64, watch: bool, json: bool) -> anyhow::Result<()> {
    let rows = runs::find(folder, now);
    if rows.is_empty() {
        return Err(runs::none(folder).into());
    }
    if watch {
        let remedy =
            format!("give one run's folder, as gptrain status {} prints them", folder.display());
        return Err(Problems::one("--watch", "it follows one run", remedy).into());
    }
    match json {
        true => base::say!("{:#}", runs::object(&rows, now)),
        false => base::say!("{}", runs::text(&rows, now)),
    }
    Ok(())
}

/// Status of a run as text, at the time `now`.
fn text(status: &Status, folder: &Path, now: f64) -> String {
    let since = |at: f64| Seconds((now - at).max(0.0));
    let silent = now - status.updated;
    let doing = match status.state(now) {
        State::Complete | State::Stopped | State::Failed => {
            format!("ended {} ago: {}", since(status.updated), status.phase)
        }
        State::Silent => format!(
            "no heartbeat for {}: it was {}; look at process {} on {}",
            Seconds(silent),
            status.phase,
            status.process,
            status.host
        ),
        State::Running => format!("{}, {} ago", status.phase, since(status.updated)),
    };
    let job = status.job.as_ref().map_or(String::new(), |job| format!(", Slurm job {job}"));
    let place =
        format!("{}, rank 0 on {}{job}", Count(status.ranks as u64).with_noun("rank"), status.host);
    let mut lines = vec![format!("{} ({place}): {doing}", status.name)];
    let (step, steps) = (Count(status.step), Count(status.total_steps));
    let share = status.share();
    lines.push(format!(
        "step {step} of {steps} ({share:.1} %), {} tokens",
        Count(status.last.0.tokens)
    ));
    if status.loss().is_some() {
        let parts = shown(|place| match place {
            Shown::Text(label, format) => Some((0, (label, format))),
            _ => None,
        });
        let parts = parts.map(|(number, part)| (number.or_nan(&status.last.0), part));
        let parts = parts.filter(|(value, _)| value.is_finite());
        let part = |(value, (label, format)): (_, (&str, Format))| {
            label.replace("{}", &format.show(value))
        };
        lines.push(parts.map(part).collect::<Vec<_>>().join(", "));
    }
    let left = status.left_s.filter(|_| !status.ended).map(Seconds);
    let left = left.map_or(String::new(), |left| format!(", {left} left"));
    lines.push(format!("{} tokens/s{left}", Format::Rate.show(status.last.0.tokens_per_s)));
    lines.push(status.goodput_line());
    lines.push(saved(folder, now));
    let events = events::read(folder).unwrap_or_default();
    lines.extend(copied(&events, now));
    lines.extend(since_start(&events, now));
    lines.extend(status.parts.as_ref().map(PartTable::text));
    if status.skipped_steps > 0 {
        lines.push(format!("{} without an update", Count(status.skipped_steps).with_noun("step")));
    }
    for warning in &status.warnings {
        lines.push(format!("note, {} ago: {}", since(warning.at), warning.text));
    }
    lines.join("\n")
}

/// Newest checkpoint and its age.
fn saved(folder: &Path, now: f64) -> String {
    let found = checkpoint::published(&folder.join("checkpoints")).ok();
    let Some(newest) = found.and_then(|mut found| found.pop()) else {
        return "no checkpoint yet".to_string();
    };
    let made = newest.folder.metadata().and_then(|about| about.modified()).ok();
    let made = made.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let age = made.map(|at| Seconds((now - at.as_secs_f64()).max(0.0)));
    let age = age.map_or(String::new(), |age| format!(", {age} ago"));
    format!("saved step {}{age}", Count(newest.step))
}

/// Newest copy in the mirror.
fn copied(events: &[Event], now: f64) -> Option<String> {
    let newest = events.iter().rfind(|event| event.kind == Kind::Copy)?;
    let age = Seconds((now - newest.at).max(0.0));
    Some(format!("copied {}, {age} ago", newest.text))
}

/// Last failure since the last start, or that the job is in the queue again.
fn since_start(events: &[Event], now: f64) -> Vec<String> {
    let start = events.iter().rposition(|event| matches!(event.kind, Kind::Start | Kind::Restart));
    let since = events.iter().skip(start.map_or(0, |start| start + 1));
    let line = |event: &Event| {
        let age = Seconds((now - event.at).max(0.0));
        match event.kind {
            Kind::Failure => Some(format!("failed {age} ago: {}", event.text)),
            Kind::Queued => Some(format!("queued again {age} ago, {}", event.text)),
            _ => None,
        }
    };
    since.filter_map(line).collect()
}
