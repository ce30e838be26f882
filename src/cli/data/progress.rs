//! How far a long command has come: a bar on a terminal, a line every ten seconds elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use base::{Bytes, Seconds};

pub struct Progress {
    doing: &'static str,
    total: u64,
    started: Instant,
    printed: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `total` bytes to read; 0 where that is not known.
    pub fn new(doing: &'static str, total: u64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = match total {
                0 => ProgressBar::no_length(),
                _ => ProgressBar::new(total),
            };
            let template = match total {
                0 => "{spinner} {prefix} {bytes} read ({bytes_per_sec}) · {msg}",
                _ => "{prefix} [{bar:24}] {percent} % · {bytes_per_sec} · {eta} left · {msg}",
            };
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
            bar.set_prefix(doing);
            bar.with_style(ProgressStyle::with_template(template).expect("a fixed template"))
        });
        let now = Instant::now();
        Progress { doing, total, started: now, printed: now, bar }
    }

    /// `read` bytes have been read.
    pub fn show(&mut self, read: u64, message: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_position(read);
            bar.set_message(message());
        } else if self.printed.elapsed() >= Duration::from_secs(10) {
            self.printed = Instant::now();
            let seconds = self.started.elapsed().as_secs_f64();
            let rate = read as f64 / seconds;
            let left = self.total.saturating_sub(read) as f64 / rate;
            let left = match self.total {
                0 => String::new(),
                total => {
                    format!(", {:.0} %, {} left", 100.0 * read as f64 / total as f64, Seconds(left))
                }
            };
            let rate = Bytes(rate as u64);
            base::warn!("{}: {rate}/s{left} · {}", self.doing, message());
        }
    }

    /// Takes the bar away; returns the time it took.
    pub fn finish(self) -> Seconds {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        Seconds(self.started.elapsed().as_secs_f64())
    }
}
