//! Where lines are printed, and the progress bar below them when a person is watching.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle};

use super::RunInfo;
use super::axis::short;
use super::metrics::StepRow;
use crate::base::{Count, Seconds};

/// Lines go to `out`, the bar to stderr.
pub(super) struct Screen {
    out: Box<dyn Write + Send>,
    bar: ProgressBar,
    total_steps: u64,
    /// Mean over the last steps, for the eye; none before the first step.
    rate: Option<f64>,
    loss: Option<f64>,
}

/// The weight of the newest step in the bar's running means: about the last 10 steps count.
const NEWEST: f64 = 0.2;

impl Screen {
    /// Lines to stdout; a bar on stderr if that is a terminal, else none. Colours follow
    /// `NO_COLOR`.
    pub(super) fn standard(info: &RunInfo) -> Screen {
        Screen::new(Box::new(io::stdout()), ProgressDrawTarget::stderr_with_hz(10), info)
    }

    pub(super) fn new(
        out: Box<dyn Write + Send>,
        target: ProgressDrawTarget,
        info: &RunInfo,
    ) -> Screen {
        // A run that ends in an error drops its bar unfinished: it must not stay in the way.
        let bar = ProgressBar::with_draw_target(Some(info.total_samples), target)
            .with_finish(ProgressFinish::AndClear);
        bar.set_style(style());
        if !bar.is_hidden() {
            bar.set_message("starting");
            // Redrawn between steps too: a step may take a minute, and the clock shows life.
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Screen { out, bar, total_steps: info.total_steps, rate: None, loss: None }
    }

    /// Moves the bar to the end of a step. Its length is in samples: under a batch ramp-up, steps
    /// grow and say little about the time left.
    pub(super) fn advance(&mut self, row: &StepRow) {
        if self.bar.is_hidden() {
            return;
        }
        if self.rate.is_none() {
            // A resumed run starts in the middle, and its rate counts from there.
            self.bar.set_position(row.consumed_samples.saturating_sub(row.global_batch));
            self.bar.reset_eta();
        }
        let blend = |old: Option<f64>, new: f64| old.map_or(new, |old| old + NEWEST * (new - old));
        let rate = blend(self.rate, row.tokens_per_s);
        let loss = if row.lm_loss.is_finite() { blend(self.loss, row.lm_loss) } else { f64::NAN };
        (self.rate, self.loss) = (Some(rate), Some(loss).filter(|loss| loss.is_finite()));
        let scale = row.loss_scale.map(|scale| format!(" · loss scale {scale:.0}"));
        self.bar.set_position(row.consumed_samples);
        self.bar.set_message(format!(
            "step {}/{} · loss {loss:.3}{} · {} tokens/s",
            Count(row.step),
            Count(self.total_steps),
            scale.unwrap_or_default(),
            short(rate)
        ));
    }

    /// Prints a whole line above the bar.
    pub(super) fn print(&mut self, text: &str) {
        let out = &mut self.out;
        // Nobody reading (`gptrain run | head`) is no reason to lose a run: its record is on disk.
        let _ = self.bar.suspend(|| writeln!(out, "{text}").and_then(|()| out.flush()));
    }

    pub(super) fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    let template = "{bar:24.cyan/dim} {percent:>3}% {msg} · {left} left";
    let left = |state: &ProgressState, to: &mut dyn std::fmt::Write| {
        let seconds = state.eta().as_secs_f64();
        let _ = match state.pos() {
            0 => write!(to, "…"),
            _ => write!(to, "{}", Seconds(seconds.ceil())),
        };
    };
    ProgressStyle::with_template(template)
        .expect("the template is well-formed")
        .with_key("left", left)
        .progress_chars("━╸─")
}
