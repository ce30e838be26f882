//! Log lines: Megatron-DeepSpeed's and Megatron-LM's, which existing parsers read, and short ones for
//! people.
//!
//! Fields, widths and number formats are those of its `training_log` and
//! `evaluate_and_print_results` as the BLOOM-176B run printed them, with OpenGPT-X's four digits of
//! seconds (a small model's step is shorter than 10 ms). The loss scale is printed in fp16 only, as
//! NVIDIA's Megatron does. gptrain's own fields follow after `TFLOPs`.

use super::RunInfo;
use super::numbers::{Format, Interval, Shown, StepRow};
use super::screen::time_left;
use base::{Count, unix_time};
use data::eval::Accuracy;
use launch::console::Form;
use std::time::Duration;

/// Line of an interval of steps.
pub(super) fn steps(form: Form, interval: &Interval, last: &StepRow, info: &RunInfo) -> String {
    match form {
        Form::Megatron | Form::Quiet => megatron(interval, last, info),
        Form::MegatronLm => megatron_lm(interval, last, info, unix_time()),
        Form::Short => short_line(interval, last, info),
    }
}

/// Short line: the values that change, and the remaining time.
fn short_line(interval: &Interval, last: &StepRow, info: &RunInfo) -> String {
    let fields = interval.fields(last, info, |place| match place {
        Shown::Short(order, label, summary, format) => Some((order, (label, summary, format))),
        _ => None,
    });
    let total = info.total_tokens();
    let rate = interval.tokens_per_s(info);
    let left = time_left(total, last.tokens, rate.unwrap_or(f64::NAN));
    let mut text = format!("step {}/{}", Count(last.step), Count(info.total_steps));
    for (label, value) in fields {
        text += &format!(" · {}", label.replace("{}", &value));
    }
    format!("{text} · {left} left")
}

/// Megatron's line. As in Megatron, loss and times are means over the interval, and all other
/// values are the last step's. Skipped steps do not count for the loss.
fn megatron(interval: &Interval, last: &StepRow, info: &RunInfo) -> String {
    let fields = interval.fields(last, info, |place| match place {
        Shown::Line(order, label, summary, format) => Some((order, (label, summary, format))),
        _ => None,
    });
    let mut text = format!(" iteration {:8}/{:8}", last.step, info.total_steps);
    for (label, value) in fields {
        // Python writes `nan`.
        text += &format!(" | {label}: {}", value.replace("NaN", "nan"));
    }
    text + " |"
}

/// Megatron-LM's line, as its `training_log` prints it with `--log-throughput`. In contrast to
/// Megatron-DeepSpeed's, it begins with the date (here in UTC), times are in milliseconds, and the
/// loss scale is printed in every precision.
pub(super) fn megatron_lm(
    interval: &Interval,
    last: &StepRow,
    info: &RunInfo,
    now: Duration,
) -> String {
    let fields = interval.fields(last, info, |place| match place {
        Shown::LmLine(order, label, summary, format) => Some((order, (label, summary, format))),
        _ => None,
    });
    let date = base::calendar::date_and_time(now);
    let mut text = format!(" [{date}] iteration {:8}/{:8}", last.step, info.total_steps);
    for (label, value) in fields {
        text += &format!(" | {label}: {}", value.replace("NaN", "nan"));
    }
    text + " |"
}

/// Megatron's validation line, without the lines of dashes around it. The set's name follows as an
/// additional field.
pub(super) fn validation(form: Form, step: u64, set: &str, loss: f64) -> String {
    if form == Form::Short {
        let perplexity = loss.min(20.0).exp();
        return format!("step {}: {set} loss {loss:.4}, perplexity {perplexity:.2}", Count(step));
    }
    let [perplexity, loss] = [loss.min(20.0).exp(), loss].map(|v| Format::Scientific(6).show(v));
    format!(
        " validation loss at iteration {step} | lm loss value: {loss} | \
         lm loss PPL: {perplexity} | validation set: {set} |"
    )
}

/// Line for a task, in the format of the validation line.
pub(super) fn task(form: Form, step: u64, task: &str, accuracy: &Accuracy) -> String {
    if form == Form::Short {
        let step = Count(step);
        if let Some(perplexity) = accuracy.perplexity {
            return format!("step {step}: {task} perplexity {perplexity:.2}");
        }
        let [acc, normed] = [accuracy.acc, accuracy.acc_norm].map(|acc| 100.0 * acc.unwrap_or(0.0));
        return format!(
            "step {step}: {task} {acc:.1} % right, {normed:.1} % by length-normed score"
        );
    }
    let scores = accuracy
        .scores()
        .map(|(name, score)| format!("{name}: {score:.4} | "))
        .collect::<String>();
    let questions = accuracy.questions;
    format!(" task accuracy at iteration {step} | {scores}questions: {questions} | task: {task} |")
}
