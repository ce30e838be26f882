//! `gptrain status`

mod queue;
mod runs;
mod text;

use anyhow::bail;
use base::wrap::{output_width, wrap};
use base::{Problems, escape_control, unix_time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use text::{line, text};
use train::status::{NAME, RunState, Status};

/// Poll interval. The run writes its status every five seconds.
const POLL: Duration = Duration::from_millis(500);

/// Number of polls after which an unchanged status is drawn again, because its ages grow.
const REDRAW: u32 = 2;

#[derive(clap::Args)]
pub struct ShowStatus {
    /// Run folder (`log.folder` of its manifest), or a folder that holds runs; with --queue also a manifest
    #[arg(value_name = "FOLDER", default_value = "runs")]
    folder: PathBuf,
    /// Follow one run until it ends: redraws on a terminal, prints a line per change in a pipe
    #[arg(long)]
    watch: bool,
    /// Ask Slurm whether the run is running, waiting, or neither: exit code 1, for a cron job
    #[arg(long, conflicts_with = "watch")]
    queue: bool,
    /// Print JSON: one run's status.json, or {"runs": […]}; with --watch an object per change
    #[arg(long)]
    json: bool,
}

impl ShowStatus {
    pub fn run(self) -> anyhow::Result<()> {
        let ShowStatus { folder, watch, queue, json } = self;
        if queue {
            return queue::report(&folder, json);
        }
        let now = unix_time().as_secs_f64();
        let is_run = folder.join(NAME).exists();
        if !is_run && folder.is_dir() {
            return list(&folder, now, watch, json);
        }
        if watch {
            return follow(&folder, json);
        }
        let status = Status::read(&folder)?;
        if json {
            base::say!("{:#}", serde_json::to_value(&status)?);
        } else {
            base::say!("{}", escape_control(&text(&status, &folder, now)));
        }
        Ok(())
    }
}

/// Prints the runs below a folder.
fn list(folder: &Path, now: f64, watch: bool, json: bool) -> anyhow::Result<()> {
    let rows = runs::find(folder, now);
    if rows.is_empty() {
        return Err(runs::no_run_error(folder).into());
    }
    if watch {
        return Err(Problems::one(
            "--watch",
            "it follows one run",
            format!("give one run's folder, as gptrain status {} prints them", folder.display()),
        )
        .into());
    }
    runs::printout(&rows, now).say(json);
    Ok(())
}

/// Follows a run until it ends. Redraws on a terminal; prints a line or JSON object per change in a pipe. Ends with the run,
/// with an error if the run failed or has no heartbeat.
fn follow(folder: &Path, json: bool) -> anyhow::Result<()> {
    let screen = (std::io::stdout().is_terminal() && !json).then(screen);
    let mut before = None;
    let mut polls = 0;
    loop {
        let status = Status::read(folder)?;
        let now = unix_time().as_secs_f64();
        let state = status.state(folder, now);
        let seen = Some((status.step, state, status.started.to_bits()));
        let changed = seen != before;
        match &screen {
            Some(screen) if changed || polls >= REDRAW => {
                let text = text(&status, folder, now);
                let text = wrap(&escape_control(&text), output_width()).into_owned();
                screen.set_message(text);
                polls = 0;
            }
            None if changed && json => base::say!("{}", serde_json::to_value(&status)?),
            None if changed => base::say!("{}", escape_control(&line(&status, state, now))),
            _ => {}
        }
        if let Some(screen) = screen.as_ref().filter(|_| state != RunState::Running) {
            screen.abandon(); // the last text remains
        }
        match state {
            RunState::Running => {}
            RunState::Complete | RunState::Stopped => return Ok(()),
            RunState::Failed => bail!("{}: the run {}", folder.display(), status.phase),
            RunState::Killed => {
                bail!(
                    "{}: the run was killed: process {} is gone",
                    folder.display(),
                    status.process
                )
            }
            RunState::Silent => bail!("{}: the run has no heartbeat", folder.display()),
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
