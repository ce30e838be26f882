//! Follows one run until it ends.

use super::{Status, text};
use anyhow::bail;
use base::{Count, Seconds, escape_control, unix_time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;
use train::report::numbers::Format;
use train::status::State;

/// Poll interval. The run writes its status every five seconds.
const POLL: Duration = Duration::from_millis(500);

/// Number of polls after which an unchanged status is drawn again, because its ages grow.
const REDRAW: u32 = 2;

/// Redraws on a terminal; prints a line or JSON object per change in a pipe. Ends with the run,
/// with an error if the run failed or has no heartbeat.
pub fn follow(folder: &Path, json: bool) -> anyhow::Result<()> {
    let screen = (std::io::stdout().is_terminal() && !json).then(screen);
    let (mut before, mut polls) = (None, 0);
    loop {
        let status = Status::read(folder)?;
        let now = unix_time().as_secs_f64();
        let state = status.state(now);
        let seen = Some((status.step, state, status.started.to_bits()));
        let changed = seen != before;
        match &screen {
            Some(screen) if changed || polls >= REDRAW => {
                screen.set_message(escape_control(&text(&status, folder, now)).into_owned());
                polls = 0;
            }
            None if changed && json => base::say!("{}", serde_json::to_value(&status)?),
            None if changed => base::say!("{}", escape_control(&line(&status, now))),
            _ => {}
        }
        if let Some(screen) = screen.as_ref().filter(|_| state != State::Running) {
            screen.abandon(); // the last text remains
        }
        match state {
            State::Running => {}
            State::Complete | State::Stopped => return Ok(()),
            State::Failed => bail!("{}: the run {}", folder.display(), status.phase),
            State::Silent => bail!("{}: the run has no heartbeat", folder.display()),
        }
        (before, polls) = (seen, polls + 1);
        std::thread::sleep(POLL);
    }
}

/// Text on the terminal that each redraw replaces.
fn screen() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}").expect("a valid template");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout()).with_style(style)
}

/// Status line: "step 120 of 1,000 (12.0 %) · loss 3.4512 · 12,345 tokens/s · 3 m 05 s left".
fn line(status: &Status, now: f64) -> String {
    let (step, steps) = (Count(status.step), Count(status.total_steps));
    let loss = status.loss().map_or(String::new(), |loss| format!(" · loss {loss:.4}"));
    let speed = Format::Rate.show(status.last.0.tokens_per_s);
    let end = match (status.state(now), status.left_s) {
        (State::Running, Some(left)) => format!("{} left", Seconds(left)),
        (State::Running, None) => status.phase.clone(),
        (State::Silent, _) => {
            format!("no heartbeat for {}", Seconds(now - status.updated))
        }
        _ => status.phase.clone(),
    };
    let share = status.share();
    format!("step {step} of {steps} ({share:.1} %){loss} · {speed} tokens/s · {end}")
}
