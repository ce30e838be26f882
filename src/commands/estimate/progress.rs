//! Progress of a search: a bar on a terminal, else a line every ten seconds. Short searches show none.

use base::{Count, Seconds};
use estimate::search::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time after which progress is shown.
const QUICK: Duration = Duration::from_secs(2);

/// Interval of lines without a terminal.
const EVERY: Duration = Duration::from_secs(10);

pub struct Bar {
    started: Instant,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    bar: Option<ProgressBar>,
    line: Option<Instant>,
}

impl Bar {
    pub fn new() -> Bar {
        Bar { started: Instant::now(), shown: Mutex::default() }
    }

    pub fn show(&self, progress: Progress) {
        if base::progress::is_silent() || self.started.elapsed() < QUICK {
            return;
        }
        let shown = &mut *self.shown.lock().expect("no panic");
        if std::io::stderr().is_terminal() {
            let bar = shown.bar.get_or_insert_with(bar);
            if let Progress::Cuts { evaluated, cuts, .. } = progress {
                bar.set_length(cuts as u64);
                bar.set_position(evaluated as u64);
            }
            bar.set_message(describe(progress));
        } else if shown.line.is_none_or(|line| line.elapsed() >= EVERY) {
            shown.line = Some(Instant::now());
            base::warn!("searching: {}", describe(progress));
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = self.shown.lock().expect("no panic").bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn describe(progress: Progress) -> String {
    match progress {
        Progress::Cuts { evaluated, cuts, fastest } => {
            let best = fastest.map_or("none fits yet".to_string(), |seconds| {
                format!("the fastest so far takes {} per step", Seconds(seconds))
            });
            format!("{} of {} topologies, {best}", Count(evaluated as u64), Count(cuts as u64))
        }
        Progress::TooFew(devices) => format!("{} devices are too few", Count(devices as u64)),
        Progress::Fits(parameters) => format!("{:.1} B parameters fit", parameters as f64 / 1e9),
        Progress::FitsNot(parameters) => {
            format!("{:.1} B parameters do not fit", parameters as f64 / 1e9)
        }
    }
}

/// The message ends where the terminal does: a line that wraps is not redrawn.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("searching [{bar:24}] {wide_msg}");
    bar.with_style(style.expect("a fixed template"))
}
