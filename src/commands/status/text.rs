//! Status of a run as text.

use base::{Count, Seconds};
use launch::events::{self, Event, Kind};
use std::path::Path;
use train::report::numbers::{Format, Shown, placed_numbers};
use train::status::{RunState, Status};

/// Status of a run as text, at the time `now`.
pub fn text(status: &Status, folder: &Path, now: f64) -> String {
    let since = |time: f64| Seconds((now - time).max(0.0));
    let silent = now - status.updated;
    let doing = match status.state(folder, now) {
        RunState::Complete | RunState::Stopped | RunState::Failed => {
            format!("ended {} ago: {}", since(status.updated), status.phase)
        }
        RunState::Silent => format!(
            "no heartbeat for {}: it was {}; look at process {} on {}",
            Seconds(silent),
            status.phase,
            status.process,
            status.host
        ),
        RunState::Killed => format!(
            "killed after its heartbeat {} ago: it was {}; process {} on this machine is gone",
            since(status.updated),
            status.phase,
            status.process
        ),
        RunState::Running => format!("{}, {} ago", status.phase, since(status.updated)),
    };
    let job = status
        .job
        .as_ref()
        .map_or(String::new(), |job| format!(", Slurm job {job}"));
    let place =
        format!("{}, rank 0 on {}{job}", Count(status.ranks as u64).with_noun("rank"), status.host);
    let mut lines = vec![format!("{} ({place}): {doing}", status.name)];
    let step = Count(status.step);
    let steps = Count(status.total_steps);
    let share = status.share();
    lines.push(format!(
        "step {step} of {steps} ({share:.1} %), {} tokens",
        Count(status.last.0.tokens)
    ));
    if status.loss().is_some() {
        let parts = placed_numbers(|place| match place {
            Shown::Text(label, format) => Some((0, (label, format))),
            _ => None,
        })
        .map(|(number, part)| (number.value_or_nan(&status.last.0), part))
        .filter(|(value, _)| value.is_finite());
        lines.push(
            parts
                .map(|(value, (label, format))| label.replace("{}", &format.show(value)))
                .collect::<Vec<_>>()
                .join(", "),
        );
    }
    let left = status.left_s.filter(|_| !status.ended).map(Seconds);
    let left = left.map_or(String::new(), |left| format!(", {left} left"));
    lines.push(format!("{} tokens/s{left}", Format::Rate.show(status.last.0.tokens_per_s)));
    lines.push(status.goodput_line());
    lines.push(describe_newest_checkpoint(folder, now));
    let events = events::read(folder).unwrap_or_default();
    lines.extend(describe_newest_copy(&events, now));
    lines.extend(since_start(&events, now));
    if let Some(parts) = &status.parts {
        lines.push(parts.table().text(usize::MAX) + &parts.summary());
    }
    if status.skipped_steps > 0 {
        lines.push(format!("{} without an update", Count(status.skipped_steps).with_noun("step")));
    }
    for warning in &status.warnings {
        lines.push(format!("note, {} ago: {}", since(warning.at), warning.text));
    }
    lines.join("\n")
}

/// Status line: "step 120 of 1,000 (12.0 %) · loss 3.4512 · 12,345 tokens/s · 3 m 05 s left".
pub fn line(status: &Status, state: RunState, now: f64) -> String {
    let step = Count(status.step);
    let steps = Count(status.total_steps);
    let loss = status
        .loss()
        .map_or(String::new(), |loss| format!(" · loss {loss:.4}"));
    let speed = Format::Rate.show(status.last.0.tokens_per_s);
    let end = match (state, status.left_s) {
        (RunState::Running, Some(left)) => format!("{} left", Seconds(left)),
        (RunState::Running, None) => status.phase.clone(),
        (RunState::Silent, _) => {
            format!("no heartbeat for {}", Seconds(now - status.updated))
        }
        (RunState::Killed, _) => format!("killed: process {} is gone", status.process),
        _ => status.phase.clone(),
    };
    let share = status.share();
    format!("step {step} of {steps} ({share:.1} %){loss} · {speed} tokens/s · {end}")
}

/// Newest checkpoint and its age.
fn describe_newest_checkpoint(folder: &Path, now: f64) -> String {
    let found = checkpoint::published(&folder.join("checkpoints")).ok();
    let Some(newest) = found.and_then(|mut found| found.pop()) else {
        return "no checkpoint yet".to_string();
    };
    let modified = newest
        .folder
        .metadata()
        .and_then(|about| about.modified())
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let age = modified.map(|time| Seconds((now - time.as_secs_f64()).max(0.0)));
    let age = age.map_or(String::new(), |age| format!(", {age} ago"));
    format!("saved step {}{age}", Count(newest.step))
}

/// Newest copy in the mirror.
fn describe_newest_copy(events: &[Event], now: f64) -> Option<String> {
    let newest = events.iter().rfind(|event| event.kind == Kind::Copy)?;
    let age = Seconds((now - newest.at).max(0.0));
    Some(format!("copied {}, {age} ago", newest.text))
}

/// Last failure since the last start, or that the job is in the queue again.
fn since_start(events: &[Event], now: f64) -> Vec<String> {
    let start = events
        .iter()
        .rposition(|event| matches!(event.kind, Kind::Start | Kind::Restart));
    let since = events.iter().skip(start.map_or(0, |start| start + 1));
    since
        .filter_map(|event| {
            let age = Seconds((now - event.at).max(0.0));
            match event.kind {
                Kind::Failure => Some(format!("failed {age} ago: {}", event.text)),
                Kind::Queued => Some(format!("queued again {age} ago, {}", event.text)),
                _ => None,
            }
        })
        .collect()
}
