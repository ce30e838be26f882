//! Progress of a long command on standard error: a bar on a terminal, a line every ten seconds
//! elsewhere. Lines that are printed meanwhile (`say!`, `warn!`) appear above the bar.

mod terminal;

pub use indicatif::ProgressBar;

use super::svg::short_number;
use super::{Bytes, Seconds};
use indicatif::{ProgressDrawTarget, ProgressFinish, ProgressStyle, WeakProgressBar};
use parking_lot::Mutex;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines without a terminal.
const INTERVAL: Duration = Duration::from_secs(10);

/// Maximum redraws per second, and the time between two.
const REDRAWS: u8 = 10;
const REDRAW: Duration = Duration::from_millis(100);

/// Redraw interval without new progress: the bar follows the window size, and its clock runs.
const TICK: Duration = Duration::from_millis(500);

/// Whether nothing is shown: `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Newest bar.
static BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Shows no progress from now on.
pub fn silence() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether `--quiet` asks for no progress.
pub fn is_silent() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints above the bar, if there is one. `print` must not print by `say!` or `warn!`.
pub fn print_above_bar<T>(print: impl FnOnce() -> T) -> T {
    let bar = BAR.lock().as_ref().and_then(WeakProgressBar::upgrade);
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Creates a bar of this length, hidden unless standard error is a terminal. Dropping it clears it.
/// Colours follow `NO_COLOR`.
pub fn bar(length: Option<u64>) -> ProgressBar {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let shown = std::io::stderr().is_terminal() && !dumb && !is_silent();
    let target = if shown {
        ProgressDrawTarget::term_like_with_hz(Box::<terminal::Terminal>::default(), REDRAWS)
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = match length {
        Some(_) => "{bar:24.cyan/dim} {percent:>3}% {wide_msg}",
        None => "{spinner} {wide_msg}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let bar = ProgressBar::with_draw_target(length, target)
        .with_finish(ProgressFinish::AndClear)
        .with_style(style.progress_chars("━╸─"));
    if shown {
        bar.enable_steady_tick(TICK);
        *BAR.lock() = Some(bar.downgrade());
    }
    bar
}

/// Unit of an amount of work.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    Bytes,
    /// Plural noun: `tokens`.
    Items(&'static str),
}

/// Progress of one piece of work, which several threads may share.
#[derive(Debug)]
pub struct Progress {
    doing: &'static str,
    unit: Unit,
    /// 0 if unknown.
    total: u64,
    done: AtomicU64,
    started: Instant,
    printed: Mutex<Instant>,
    bar: ProgressBar,
}

impl Progress {
    /// `doing` is a word such as `building`; a `total` of 0 is unknown.
    pub fn new(doing: &'static str, total: u64, unit: Unit) -> Progress {
        let bar = bar((total > 0).then_some(total));
        bar.set_message(doing);
        let started = Instant::now();
        let done = AtomicU64::new(0);
        Progress { doing, unit, total, done, started, printed: Mutex::new(started), bar }
    }

    /// Adds `count` to what is done.
    pub fn add(&self, count: u64) {
        let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
        self.print(done, String::new);
    }

    /// Sets what is done to `done`, and appends `more` to the line.
    pub fn show(&self, done: u64, more: impl FnOnce() -> String) {
        self.done.store(done, Ordering::Relaxed);
        self.print(done, more);
    }

    fn print(&self, done: u64, more: impl FnOnce() -> String) {
        if QUIET.load(Ordering::Relaxed) {
            return;
        }
        let on_bar = !self.bar.is_hidden();
        if !self.is_due(if on_bar { REDRAW } else { INTERVAL }) {
            return;
        }
        if on_bar {
            self.bar.set_position(done);
            let text = self.text(done, self.started.elapsed(), more());
            self.bar.set_message(format!("{} · {text}", self.doing));
        } else {
            let share = match self.total {
                0 => String::new(),
                total => format!("{:.0} %, ", 100.0 * done as f64 / total as f64),
            };
            let text = self.text(done, self.started.elapsed(), more());
            crate::warn!("{}: {share}{text}", self.doing);
        }
    }

    /// Whether a line or a redraw is due. Of several threads only one gets true.
    fn is_due(&self, interval: Duration) -> bool {
        let Some(mut printed) = self.printed.try_lock() else { return false };
        let due = printed.elapsed() >= interval;
        if due {
            *printed = Instant::now();
        }
        due
    }

    /// Rate and time left: `1.2 k tokens/s, 3 m 05 s left`.
    fn text(&self, done: u64, elapsed: Duration, more: String) -> String {
        let rate = done as f64 / elapsed.as_secs_f64();
        let mut parts = vec![match self.unit {
            Unit::Bytes => format!("{}/s", Bytes(rate as u64)),
            Unit::Items(name) => format!("{} {name}/s", short_number(rate)),
        }];
        if self.total > 0 && done > 0 {
            let left = self.total.saturating_sub(done) as f64 / rate;
            parts.push(format!("{} left", Seconds(left.ceil())));
        }
        let more = if more.is_empty() { more } else { format!(" · {more}") };
        parts.join(", ") + &more
    }

    /// Clears the bar, and returns the elapsed time.
    pub fn finish(self) -> Seconds {
        self.bar.finish_and_clear();
        Seconds(self.started.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_left_are_said() {
        let progress = Progress::new("scoring", 4000, Unit::Items("tokens"));
        let text = |done, more: &str| progress.text(done, Duration::from_secs(10), more.into());
        assert_eq!(text(1000, ""), "100 tokens/s, 30.0 s left");
        assert_eq!(text(0, ""), "0 tokens/s");
        let progress = Progress::new("building", 0, Unit::Bytes);
        let text = progress.text(3 << 20, Duration::from_secs(1 << 10), "5 documents".into());
        assert_eq!(text, "3.0 KiB/s · 5 documents");
    }

    #[test]
    fn a_line_is_due_every_ten_seconds() {
        let progress = Progress::new("scoring", 4000, Unit::Items("tokens"));
        assert!(!progress.is_due(INTERVAL));
        *progress.printed.lock() -= INTERVAL;
        assert!(progress.is_due(INTERVAL) && !progress.is_due(INTERVAL));
    }
}
