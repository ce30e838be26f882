//! Progress bar of a run, below the lines on standard output.

use super::RunInfo;
use super::numbers::StepRow;
use base::progress::{self, ProgressBar};
use base::svg::short_number;
use base::{Count, Seconds};
use launch::console::{Console, Form};

/// Progress bar of a run, on standard error.
pub(super) struct Screen {
    console: Console,
    bar: ProgressBar,
    total_steps: u64,
    total_tokens: u64,
    /// Running mean over the last steps; None before the first step.
    rate: Option<f64>,
    loss: Option<f64>,
}

/// Weight of the newest step in the bar's running means: about the last 10 steps count.
const NEWEST: f64 = 0.2;

impl Screen {
    /// Draws a bar if standard error is a terminal.
    pub(super) fn new(console: &Console, info: &RunInfo) -> Screen {
        let bar = match console.form() {
            Form::Quiet => ProgressBar::hidden(),
            _ => progress::bar(Some(info.total_samples)),
        };
        bar.set_message("starting");
        let total_steps = info.total_steps;
        let total_tokens = info.total_tokens();
        let console = console.clone();
        Screen { console, bar, total_steps, total_tokens, rate: None, loss: None }
    }

    /// Moves the bar to the end of a step. Its length is in samples: under a batch ramp-up, steps
    /// grow and say little about the time left.
    pub(super) fn advance(&mut self, row: &StepRow) {
        if self.bar.is_hidden() {
            return;
        }
        let blend = |old: Option<f64>, new: f64| old.map_or(new, |old| old + NEWEST * (new - old));
        let rate = blend(self.rate, row.tokens_per_s);
        let loss = if row.lm_loss.is_finite() { blend(self.loss, row.lm_loss) } else { f64::NAN };
        (self.rate, self.loss) = (Some(rate), Some(loss).filter(|loss| loss.is_finite()));
        let scale = row
            .loss_scale
            .map(|scale| format!(" · loss scale {scale:.0}"));
        self.bar.set_position(row.consumed_samples);
        self.bar.set_message(format!(
            "step {}/{} · loss {loss:.3}{} · {} tokens/s · {} left",
            Count(row.step),
            Count(self.total_steps),
            scale.unwrap_or_default(),
            short_number(rate),
            time_left(self.total_tokens, row.tokens, rate)
        ));
    }

    /// Prints a line above the bar, in the form of the console.
    pub(super) fn print(&self, line: impl FnOnce(Form) -> String) {
        match self.console.form() {
            Form::Quiet => {}
            form => self.console.print(&line(form)),
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Remaining time at `rate` tokens/s. The bar's own estimate would count steps before a resume.
pub(super) fn time_left(total: u64, consumed: u64, rate: f64) -> Seconds {
    Seconds((total.saturating_sub(consumed) as f64 / rate).ceil())
}
