//! Log lines: those of Megatron-DeepSpeed, which existing parsers read, and short ones for people.
//!
//! Fields, widths and number formats are those of its `training_log` and
//! `evaluate_and_print_results` as the BLOOM-176B run printed them, with OpenGPT-X's four digits of
//! seconds (a small model's step is shorter than 10 ms). The loss scale is printed in fp16 only, as
//! NVIDIA's Megatron does. gptrain's own fields follow after `TFLOPs`.

use super::screen::time_left;
use super::{RunInfo, StepLine};
use base::Count;
use base::svg::short;
use data::eval::Accuracy;
use launch::console::Form;

/// Steps since the last log line.
#[derive(Default)]
pub(super) struct Interval {
    steps: u64,
    samples: u64,
    /// Steps without an update, and those of them whose loss was not finite.
    skipped: u64,
    nan: u64,
    /// Sum of the losses of the other steps.
    loss: f64,
    seconds: f64,
    data_wait: f64,
    last: Option<StepLine>,
}

impl Interval {
    pub(super) fn add(&mut self, line: &StepLine) {
        self.steps += 1;
        self.samples += line.global_batch as u64;
        if line.skipped {
            self.skipped += 1;
            self.nan += u64::from(!line.lm_loss.is_finite());
        } else {
            self.loss += line.lm_loss;
        }
        self.seconds += line.seconds;
        self.data_wait += line.data_wait_seconds;
        self.last = Some(*line);
    }

    /// Takes the added steps and the last of them, and starts a new interval. None if there are none.
    pub(super) fn take(&mut self) -> Option<(Interval, StepLine)> {
        let interval = std::mem::take(self);
        interval.last.map(|last| (interval, last))
    }

    /// Line of the interval.
    pub(super) fn text(&self, form: Form, last: &StepLine, info: &RunInfo) -> String {
        match form {
            Form::Megatron | Form::Quiet => self.megatron(last, info),
            Form::Short => self.short(last, info),
        }
    }

    /// Short line: the values that change, and the remaining time.
    fn short(&self, last: &StepLine, info: &RunInfo) -> String {
        let rate = info.tokens(self.samples) as f64 / self.seconds;
        let advanced = self.steps - self.skipped;
        let (total, consumed) =
            (info.tokens(info.total_samples), info.tokens(last.consumed_samples));
        let loss = (advanced > 0).then(|| format!("loss {:.4}", self.loss / advanced as f64));
        let skipped = (self.skipped > 0).then(|| format!("{} skipped", self.skipped));
        let scale = last.loss_scale.map(|scale| format!("loss scale {scale:.0}"));
        let waited = self.data_wait / self.seconds;
        let waited = (waited > 0.05).then(|| format!("{:.0} % waiting for data", 100.0 * waited));
        let mfu = info.peak_flops.map(|peak| rate * info.model_flops_per_token / peak);
        let fields = [
            Some(format!("step {}/{}", Count(last.step), Count(info.total_steps))),
            loss,
            last.z_loss.map(|loss| format!("z loss {loss:.4}")),
            Some(format!("grad norm {:.2}", last.grad_norm)),
            Some(format!("lr {:.2e}", last.lr)),
            Some(format!("{} tokens/s", short(rate))),
            mfu.map(|mfu| format!("MFU {:.1} %", 100.0 * mfu)),
            scale,
            skipped,
            waited,
            Some(format!("{} left", time_left(total, consumed, rate))),
        ];
        fields.into_iter().flatten().collect::<Vec<_>>().join(" · ")
    }

    /// Megatron's line. As in Megatron, loss and times are means over the interval, and all other
    /// values are the last step's. Skipped steps do not count for the loss.
    fn megatron(&self, last: &StepLine, info: &RunInfo) -> String {
        let steps = self.steps as f64;
        let tokens_per_second = info.tokens(self.samples) as f64 / self.seconds;
        let advanced = self.steps - self.skipped;
        let loss = (advanced > 0).then(|| scientific(self.loss / advanced as f64, 6));
        let scale = last.loss_scale.map(|scale| format!("loss scale: {scale:.1}"));
        let first = [
            format!(" iteration {:8}/{:8}", last.step, info.total_steps),
            format!("consumed samples: {:12}", last.consumed_samples),
            format!("elapsed time per iteration (s): {:.4}", self.seconds / steps),
            format!("learning rate: {}", scientific(last.lr, 3)),
            format!("global batch size: {:5}", last.global_batch),
        ];
        let rest = [
            format!("grad norm: {}", fixed(last.grad_norm, 3)),
            format!("number of skipped iterations: {:3}", self.skipped),
            format!("number of nan iterations: {:3}", self.nan),
            format!("samples per second: {:.3}", self.samples as f64 / self.seconds),
            format!("TFLOPs: {:.2}", tokens_per_second * info.hardware_flops_per_token / 1e12),
            format!("consumed tokens: {:12}", info.tokens(last.consumed_samples)),
            format!("tokens per second: {tokens_per_second:.1}"),
            format!("data wait (s): {:.4}", self.data_wait / steps),
        ];
        let loss = loss.map(|loss| format!("lm loss: {loss}"));
        let z = last.z_loss.map(|loss| format!("z loss: {}", scientific(loss, 6)));
        let between = [loss, z, scale].into_iter().flatten();
        let fields: Vec<String> = first.into_iter().chain(between).chain(rest).collect();
        let mut text = fields.join(" | ");
        if let Some(peak) = info.peak_flops {
            let mfu = tokens_per_second * info.model_flops_per_token / peak;
            text += &format!(" | MFU (%): {:.2}", 100.0 * mfu);
        }
        text + " |"
    }
}

/// Megatron's validation line, without the lines of dashes around it. The set's name follows as an
/// additional field.
pub(super) fn validation(form: Form, step: u64, set: &str, loss: f64) -> String {
    if form == Form::Short {
        let perplexity = loss.min(20.0).exp();
        return format!("step {}: {set} loss {loss:.4}, perplexity {perplexity:.2}", Count(step));
    }
    let perplexity = scientific(loss.min(20.0).exp(), 6);
    let loss = scientific(loss, 6);
    format!(
        " validation loss at iteration {step} | lm loss value: {loss} | \
         lm loss PPL: {perplexity} | validation set: {set} |"
    )
}

/// Line for a task, in the format of the validation line.
pub(super) fn task(form: Form, step: u64, task: &str, accuracy: &Accuracy) -> String {
    let Accuracy { questions, acc, acc_norm } = accuracy;
    if form == Form::Short {
        let (acc, normed) = (100.0 * acc, 100.0 * acc_norm);
        let step = Count(step);
        return format!(
            "step {step}: {task} {acc:.1} % right, {normed:.1} % by length-normed score"
        );
    }
    format!(
        " task accuracy at iteration {step} | acc: {acc:.4} | acc_norm: {acc_norm:.4} | \
         questions: {questions} | task: {task} |"
    )
}

/// Python's `{:.{digits}E}`: the exponent has a sign and at least two digits.
fn scientific(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return fixed(value, digits).to_uppercase();
    }
    let text = format!("{value:.digits$E}");
    let (mantissa, exponent) = text.split_once('E').expect("{:E} writes an E");
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{mantissa}E-{exponent:0>2}"),
        None => format!("{mantissa}E+{exponent:0>2}"),
    }
}

/// Python's `{:.{digits}f}`, where a NaN is `nan`.
fn fixed(value: f64, digits: usize) -> String {
    format!("{value:.digits$}").to_lowercase()
}
