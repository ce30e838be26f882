//! Numbers of a step, one row each. The log line, `metrics.jsonl`, TensorBoard, the page, the
//! comparison of runs, the status and Prometheus read the rows. A new number is a row here, beside
//! the code that measures it.

pub use super::format::Format;

use super::logged::Logged;
use super::{RunInfo, TokenFlops};
use crate::energy::Energy;
use crate::memory::FullestRank;
use base::null_is_nan;
use base::svg::{Scale, Stroke};
use device::Health;
use engine::Outcome;
use manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Finished step.
pub struct StepRecord {
    pub step: u64,
    pub samples: Range<u64>,
    pub lr: f64,
    /// Wall time from the end of the previous step to the end of this one.
    pub seconds: f64,
    /// Time that the host spent waiting for the step's data.
    pub data_wait: Duration,
    /// Seconds that the rank's thread waited for others while it queued the step.
    pub waited: f64,
    pub outcome: Outcome,
}

/// Source of a step's numbers.
pub struct Source<'a> {
    pub manifest: &'a Manifest,
    pub done: &'a StepRecord,
    /// Readings of rank 0's GPU, at a log line.
    pub gpu: Health,
    /// Memory of the fullest rank, at a log line and at the first step.
    pub memory: Option<FullestRank>,
    /// Energy of the run until now, at a log line and at the first step.
    pub energy: Energy,
}

impl Source<'_> {
    fn batch(&self) -> u64 {
        self.done.samples.end - self.done.samples.start
    }

    /// Tokens of each sample of the step.
    fn length(&self) -> u64 {
        self.manifest.schedule().lengths.at(self.done.samples.end) as u64
    }

    /// Number of the fullest rank, and of its stage; None without others.
    fn fullest(&self) -> Option<u32> {
        let several = self.manifest.topology.ranks() > 1;
        Some(self.memory.filter(|_| several)?.rank as u32)
    }

    fn fullest_stage(&self) -> Option<u32> {
        let several = self.manifest.topology.pipeline > 1;
        Some(self.memory.filter(|_| several)?.stage as u32)
    }
}

/// Row of the table.
pub struct Number {
    /// Key in `metrics.jsonl` and `status.json`.
    pub key: &'static str,
    pub unit: &'static str,
    /// Meaning, for the docs.
    pub about: &'static str,
    pub shown: &'static [Shown],
    /// Value in a step's record; None if the step has none.
    pub value: fn(&StepRow) -> Option<f64>,
}

impl Number {
    /// Value in a step's record; NaN if the step has none.
    pub fn value_or_nan(&self, row: &StepRow) -> f64 {
        (self.value)(row).unwrap_or(f64::NAN)
    }
}

/// Place that shows a number. The first field is the order among places of the same kind.
#[derive(Clone, Copy)]
pub enum Shown {
    /// Field of Megatron-DeepSpeed's log line.
    Line(u8, &'static str, Summary, Format),
    /// Field of Megatron-LM's log line.
    LmLine(u8, &'static str, Summary, Format),
    /// Field of the short log line. `{}` is the value.
    Short(u8, &'static str, Summary, Format),
    /// Tag of a TensorBoard curve.
    Curve(&'static str),
    /// Chart of the page; a scale of None depends on the values.
    Chart(u8, &'static str, Stroke, Option<Scale>, fn(&StepRow) -> f64),
    /// Row of the page's table of the last step.
    Last(&'static str, Format),
    /// Chart of a comparison.
    Overlay(u8, &'static str, Scale),
    /// Row of a comparison, with the median of the last steps.
    Median(u8, &'static str, Format),
    /// Key of `status.json`.
    Status,
    /// Part of the text of `gptrain status`. `{}` is the value.
    Text(&'static str, Format),
    /// Metric for Prometheus: its name after `gptrain_`, its type and its help.
    Prometheus(&'static str, &'static str, &'static str),
}

/// Value that summarises the steps between two log lines.
#[derive(Clone, Copy)]
pub enum Summary {
    /// Value of the last one.
    LastStep,
    /// Value for all of them; None to omit the field.
    Steps(fn(&Interval, &RunInfo) -> Option<f64>),
}

macro_rules! numbers {
    ($source:ident => $(
        $(#[doc = $about:literal])+
        $(#[serde($($serde:tt)*)])?
        $key:ident: $kind:ty = $value:expr, $unit:literal, [$($shown:expr),* $(,)?];
    )*) => {
        /// Record of a step.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct StepRow {
            $($(#[doc = $about])+ $(#[serde($($serde)*)])? pub $key: $kind,)*
        }

        impl StepRow {
            pub fn new($source: &Source) -> StepRow {
                StepRow { $($key: $value,)* }
            }
        }

        /// All numbers, in the order of `metrics.jsonl`.
        pub const NUMBERS: &[Number] = &[$(Number {
            key: stringify!($key),
            unit: $unit,
            about: concat!($($about),+),
            shown: &[$($shown),*],
            value: |row| row.$key.number(),
        }),*];
    };
}

use Format::*;
use Shown::*;
use Summary::{LastStep, Steps};

numbers! { source =>
    /// Number of the step, 1 for the first.
    step: u64 = source.done.step, "steps", [Last("step", Count)];

    /// Samples consumed by the run up to and with this step.
    consumed_samples: u64 = source.done.samples.end, "samples", [
        Line(10, "consumed samples", LastStep, Whole(12)),
        LmLine(10, "consumed samples", LastStep, Whole(12)),
        Last("samples", Count),
    ];

    /// Tokens consumed by the run up to and with this step.
    tokens: u64 = source.manifest.schedule().tokens(source.done.samples.end), "tokens", [
        Line(130, "consumed tokens", LastStep, Whole(12)),
        Last("tokens", Count),
        Status,
        Prometheus("tokens", "counter", "Tokens consumed"),
    ];

    /// Mean loss over the step's tokens, without the z-loss.
    #[serde(deserialize_with = "null_is_nan")]
    lm_loss: f64 = source.done.outcome.loss, "nats", [
        Line(50, "lm loss", Steps(|all, _| all.loss()), Scientific(6)),
        LmLine(60, "lm loss", Steps(|all, _| all.loss()), Scientific(6)),
        Line(100, "number of nan iterations", Steps(|all, _| Some(all.nan as f64)), Whole(3)),
        LmLine(120, "number of nan iterations", Steps(|all, _| Some(all.nan as f64)), Whole(3)),
        Short(10, "loss {}", Steps(|all, _| all.loss()), Fixed(4)),
        Curve("lm-loss-training/lm loss"),
        Last("training loss", Digits),
        Status,
        Text("loss {}", Fixed(4)),
        Prometheus("lm_loss", "gauge", "Loss of the last step, in nats"),
    ];

    /// Global norm of the gradient before clipping.
    #[serde(deserialize_with = "null_is_nan")]
    grad_norm: f64 = source.done.outcome.grad_norm, "", [
        Line(80, "grad norm", LastStep, Fixed(3)),
        LmLine(80, "grad norm", LastStep, Fixed(3)),
        Short(30, "grad norm {}", LastStep, Fixed(2)),
        Curve("grad-norm/grad-norm"),
        Chart(20, "gradient norm, before clipping", Stroke::Faint, None, |row| row.grad_norm),
        Last("gradient norm", Digits),
        Overlay(20, "gradient norm, before clipping", Scale::Log),
        Status,
        Text("gradient norm {}", Fixed(3)),
        Prometheus("grad_norm", "gauge", "Gradient norm of the last step"),
    ];

    /// Learning rate.
    lr: f64 = source.done.lr, "", [
        Line(30, "learning rate", LastStep, Scientific(3)),
        LmLine(40, "learning rate", LastStep, Scientific(6)),
        Short(40, "lr {}", LastStep, Exponent(2)),
        Curve("learning-rate/learning-rate"),
        Chart(10, "learning rate", Stroke::Line, ZERO, |row| row.lr),
        Last("learning rate", Exponent(3)),
        Overlay(30, "learning rate", Scale::FromZero),
        Status,
        Text("learning rate {}", Exponent(3)),
        Prometheus("learning_rate", "gauge", "Learning rate of the last step"),
    ];

    /// Samples in this step.
    global_batch: u64 = source.batch(), "samples", [
        Line(40, "global batch size", LastStep, Whole(5)),
        LmLine(50, "global batch size", LastStep, Whole(5)),
        Line(110, "samples per second", Steps(Interval::samples_per_s), Fixed(3)),
        Curve("batch-size/batch-size"),
        Chart(50, "batch, samples", Stroke::Stairs, ZERO, |row| row.global_batch as f64),
        Last("batch, samples", Count),
    ];

    /// Tokens of each sample of this step, with `batch.length_ramp_up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seq_len: Option<u64> =
        source.manifest.batch.length_ramp_up.map(|_| source.length()), "tokens", [
        Line(87, "curriculum seqlen", LastStep, Whole(5)),
        Short(45, "{} tokens a sample", LastStep, Whole(0)),
        Curve("seqlen/curriculum_seqlen"),
        Last("tokens of a sample", Count),
    ];

    /// Wall time from the end of the previous step to the end of this one.
    sec: f64 = source.done.seconds, "s", [
        Line(20, "elapsed time per iteration (s)", Steps(|all, _| all.mean(all.seconds)), Fixed(4)),
        LmLine(20, "elapsed time per iteration (ms)", Steps(|all, _| all.mean(1e3 * all.seconds)), Fixed(1)),
        Curve("iteration-time/iteration-time"),
        Last("step time", Seconds),
        Median(20, "step time", Seconds),
    ];

    /// Tokens of this step per second.
    #[serde(deserialize_with = "null_is_nan")]
    tokens_per_s: f64 = (source.batch() * source.length()) as f64 / source.done.seconds, "tokens/s", [
        Line(120, "TFLOPs", Steps(Interval::tflops), Fixed(2)),
        Line(121, "TFLOPs (simple)", Steps(Interval::simple_tflops), Fixed(2)),
        LmLine(30, "throughput per GPU (TFLOP/s/GPU)", Steps(Interval::tflops), Fixed(1)),
        Line(140, "tokens per second", Steps(Interval::tokens_per_s), Fixed(1)),
        Line(160, "MFU (%)", Steps(Interval::mfu), Fixed(2)),
        Short(50, "{} tokens/s", Steps(Interval::tokens_per_s), Brief),
        Short(60, "MFU {} %", Steps(Interval::mfu), Fixed(1)),
        Curve("iteration-time/tokens per second"),
        Chart(30, "tokens a second", Stroke::Faint, ZERO, |row| row.tokens_per_s),
        Last("tokens a second", Rate),
        Overlay(10, "tokens a second", Scale::FromZero),
        Median(10, "tokens/s", Rate),
        Status,
        Prometheus("tokens_per_second", "gauge", "Of the last step"),
    ];

    /// Time that the host waited for the step's data; the device may have computed the step before.
    data_wait_s: f64 = source.done.data_wait.as_secs_f64(), "s", [
        Line(150, "data wait (s)", Steps(|all, _| all.mean(all.data_wait)), Fixed(4)),
        Short(90, "{} % waiting for data", Steps(Interval::long_wait), Fixed(0)),
        Curve("iteration-time/data wait"),
        Chart(40, "data wait, % of the step", Stroke::Faint, ZERO, |row| {
            (1000.0 * row.data_wait_s / row.sec).round() / 10.0
        }),
        Last("data wait", Seconds),
    ];

    /// The z-loss, with `train.z_loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    z_loss: Option<f64> = source.manifest.train.z_loss.map(|_| source.done.outcome.z_loss), "nats", [
        Line(60, "z loss", LastStep, Scientific(6)),
        Short(20, "z loss {}", LastStep, Fixed(4)),
        Curve("z-loss/z-loss"),
    ];

    /// Scale of the next step's loss, in fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss_scale: Option<f64> =
        source.manifest.loss_scale.is_some().then_some(source.done.outcome.loss_scale), "", [
        Line(70, "loss scale", LastStep, Fixed(1)),
        LmLine(70, "loss scale", Steps(Interval::loss_scale), Fixed(1)),
        Short(70, "loss scale {}", LastStep, Fixed(0)),
        Curve("loss-scale/loss-scale"),
    ];

    /// Zeros of the gradients, with `log.zeros`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    num_zeros: Option<u64> = source.manifest.log.zeros.then_some(source.done.outcome.zeros), "", [
        Line(81, "num zeros", LastStep, Fixed(1)),
        LmLine(90, "num zeros", LastStep, Fixed(1)),
        Short(31, "{} zeros", LastStep, Brief),
        Curve("num-zeros/num-zeros"),
        Last("zeros of the gradients", Count),
        Status,
        Prometheus("num_zeros", "gauge", "Zeros of the last step's gradients"),
    ];

    /// Norm of the weights after the step, with `log.params_norm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params_norm: Option<f64> =
        source.manifest.log.params_norm.then_some(source.done.outcome.params_norm), "", [
        Line(82, "params norm", LastStep, Fixed(3)),
        LmLine(100, "params norm", LastStep, Fixed(3)),
        Short(32, "params norm {}", LastStep, Fixed(2)),
        Curve("params-norm/params-norm"),
        Last("norm of the weights", Digits),
        Status,
        Prometheus("params_norm", "gauge", "Norm of the weights after the last step"),
    ];

    /// Whether the update was skipped: the gradient overflowed (fp16), or the step was a loss spike.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    skipped: bool = source.done.outcome.skipped, "", [
        Line(90, "number of skipped iterations", Steps(|all, _| Some(all.skipped as f64)), Whole(3)),
        LmLine(110, "number of skipped iterations", Steps(|all, _| Some(all.skipped as f64)), Whole(3)),
        Short(80, "{} skipped", Steps(Interval::some_skipped), Fixed(0)),
    ];

    /// Clock of rank 0's GPU at a log line, if NVML reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu_mhz: Option<u32> = source.gpu.gpu_mhz, "MHz", [Curve("gpu/clock MHz")];

    /// Power of rank 0's GPU at a log line, if NVML reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu_watts: Option<f64> = source.gpu.gpu_watts, "W", [Curve("gpu/power W")];

    /// Temperature of rank 0's GPU at a log line, if NVML reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu_celsius: Option<u32> = source.gpu.gpu_celsius, "°C", [Curve("gpu/temperature C")];

    /// Device memory that the allocator of the fullest rank has reserved, at a log line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_reserved: Option<u64> = source.memory.map(|full| full.memory.reserved), "bytes", [
        Line(170, "device reserved (MB)", LastStep, Megabytes),
        Short(61, "device {}", LastStep, Memory),
        Curve("memory/device reserved bytes"),
        Last("device memory reserved", Memory),
        Status,
        Text("device memory {}", Memory),
        Prometheus("device_reserved_bytes", "gauge", "Device memory that the fullest rank reserved"),
    ];

    /// The part of it that tensors use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_in_use: Option<u64> = source.memory.map(|full| full.memory.in_use), "bytes", [
        Line(180, "device in use (MB)", LastStep, Megabytes),
        Curve("memory/device in use bytes"),
        Status,
        Prometheus("device_in_use_bytes", "gauge", "Device memory of the fullest rank's tensors"),
    ];

    /// Memory of the fullest rank's process on its GPU, with the driver's context and NCCL's buffers,
    /// if NVML reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_process: Option<u64> = source.memory.and_then(|full| full.memory.gpu.process), "bytes", [
        Line(190, "device process (MB)", LastStep, Megabytes),
        Short(62, "process {}", LastStep, Memory),
        Curve("memory/device process bytes"),
        Last("device memory of the process", Memory),
        Status,
        Prometheus("device_process_bytes", "gauge", "Memory of the fullest rank's process on its GPU"),
    ];

    /// Memory of that GPU that its driver keeps, if NVML reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_driver: Option<u64> = source.memory.and_then(|full| full.memory.gpu.driver), "bytes", [
        Line(200, "device driver (MB)", LastStep, Megabytes),
        Curve("memory/device driver bytes"),
        Status,
    ];

    /// Memory of the fullest rank's process on its host. Ranks that are threads share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_rss: Option<u64> = source.memory.and_then(|full| full.memory.host), "bytes", [
        Line(210, "host RSS (MB)", LastStep, Megabytes),
        Short(63, "host {}", LastStep, Memory),
        Curve("memory/host RSS bytes"),
        Last("host memory", Memory),
        Status,
        Text("host memory {}", Memory),
        Prometheus("host_rss_bytes", "gauge", "Host memory of the fullest rank's process"),
    ];

    /// The fullest rank of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fullest_rank: Option<u32> = source.fullest(), "", [
        Line(220, "fullest rank", LastStep, Whole(3)),
        Short(64, "fullest rank {}", LastStep, Fixed(0)),
        Status,
        Text("fullest rank {}", Fixed(0)),
        Prometheus("fullest_rank", "gauge", "Rank that uses most of its device's memory"),
    ];

    /// Its pipeline stage, of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fullest_stage: Option<u32> = source.fullest_stage(), "", [
        Line(230, "fullest stage", LastStep, Whole(3)),
        Short(65, "stage {}", LastStep, Fixed(0)),
        Status,
        Text("stage {}", Fixed(0)),
    ];

    /// Energy of the ranks' GPUs since the run's start, at a log line, if NVML reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu_kwh: Option<f64> = source.energy.gpu, "kWh", [
        Line(240, "GPU energy (kWh)", LastStep, Fixed(4)),
        Curve("energy/GPUs kWh"),
        Last("energy of GPUs, kWh", Digits),
        Status,
        Text("GPUs {} kWh", Digits),
        Prometheus("gpu_kwh", "counter", "Energy of the GPUs, in kWh"),
    ];

    /// Energy of the processors of the ranks' nodes since the run's start, at a log line, if they report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu_kwh: Option<f64> = source.energy.cpu, "kWh", [
        Line(245, "CPU energy (kWh)", LastStep, Fixed(4)),
        Curve("energy/CPUs kWh"),
        Last("energy of CPUs, kWh", Digits),
        Status,
        Text("CPUs {} kWh", Digits),
        Prometheus("cpu_kwh", "counter", "Energy of the processors of the nodes, in kWh"),
    ];

    /// CO₂ of this energy, with `plan.carbon`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    co2_kg: Option<f64> = source.energy.co2_kg(source.manifest.plan.carbon), "kg", [
        Line(250, "CO2 (kg)", LastStep, Fixed(4)),
        Curve("energy/CO2 kg"),
        Last("CO₂, kg", Digits),
        Status,
        Text("CO₂ {} kg", Digits),
        Prometheus("co2_kg", "counter", "CO2 of the energy, in kg"),
    ];
}

/// Linear scale from 0.
const ZERO: Option<Scale> = Some(Scale::FromZero);

/// Numbers with a place of one kind, in the order of the places.
pub fn placed_numbers<T>(
    pick: impl Fn(Shown) -> Option<(u8, T)>,
) -> impl Iterator<Item = (&'static Number, T)> {
    let all = NUMBERS
        .iter()
        .flat_map(|number| number.shown.iter().map(move |place| (number, *place)));
    let mut found: Vec<_> = all
        .filter_map(|(number, at)| Some((number, pick(at)?)))
        .collect();
    found.sort_by_key(|(_, (order, _))| *order);
    found
        .into_iter()
        .map(|(number, (_, place))| (number, place))
}

/// Steps since the last log line.
#[derive(Default)]
pub struct Interval {
    steps: u64,
    samples: u64,
    /// Samples by their tokens; None for those of the whole length.
    samples_by_length: BTreeMap<Option<u64>, u64>,
    /// Steps without an update, and how many of them had a non-finite loss.
    skipped: u64,
    nan: u64,
    /// Sum of the losses of the other steps.
    loss: f64,
    seconds: f64,
    data_wait: f64,
    last: Option<StepRow>,
}

impl Interval {
    pub(super) fn add(&mut self, row: &StepRow) {
        self.steps += 1;
        self.samples += row.global_batch;
        *self.samples_by_length.entry(row.seq_len).or_default() += row.global_batch;
        if row.skipped {
            self.skipped += 1;
            self.nan += u64::from(!row.lm_loss.is_finite());
        } else {
            self.loss += row.lm_loss;
        }
        self.seconds += row.sec;
        self.data_wait += row.data_wait_s;
        self.last = Some(*row);
    }

    /// Takes the added steps and the last of them, and starts a new interval. None if there are none.
    pub(super) fn take(&mut self) -> Option<(Interval, StepRow)> {
        let interval = std::mem::take(self);
        interval.last.map(|last| (interval, last))
    }

    /// Values of the places that `pick` selects, as text.
    pub(super) fn fields(
        &self,
        last: &StepRow,
        info: &RunInfo,
        pick: impl Fn(Shown) -> Option<(u8, (&'static str, Summary, Format))>,
    ) -> impl Iterator<Item = (&'static str, String)> {
        placed_numbers(pick).filter_map(move |(number, (label, summary, format))| {
            let value = match summary {
                LastStep => (number.value)(last),
                Steps(value) => value(self, info),
            };
            value.map(|value| (label, format.show(value)))
        })
    }

    fn mean(&self, sum: f64) -> Option<f64> {
        Some(sum / self.steps as f64)
    }

    /// Mean loss of the steps with an update.
    fn loss(&self) -> Option<f64> {
        let advanced = self.steps - self.skipped;
        (advanced > 0).then(|| self.loss / advanced as f64)
    }

    fn some_skipped(&self, _: &RunInfo) -> Option<f64> {
        (self.skipped > 0).then_some(self.skipped as f64)
    }

    /// Share of the time in which the host waited for data, in percent, if it is above 5 %.
    fn long_wait(&self, _: &RunInfo) -> Option<f64> {
        let share = self.data_wait / self.seconds;
        (share > 0.05).then_some(100.0 * share)
    }

    fn samples_per_s(&self, _: &RunInfo) -> Option<f64> {
        Some(self.samples as f64 / self.seconds)
    }

    pub(super) fn tokens_per_s(&self, info: &RunInfo) -> Option<f64> {
        let tokens = self.by_length(info).map(|(tokens, _)| tokens as f64);
        Some(tokens.sum::<f64>() / self.seconds)
    }

    /// Tokens, and FLOPs of each, of samples of the same length.
    fn by_length(&self, info: &RunInfo) -> impl Iterator<Item = (u64, TokenFlops)> {
        self.samples_by_length.iter().map(|(length, samples)| {
            let shorter = length.and_then(|length| Some((length, *info.shorter.get(&length)?)));
            let (length, flops) = shorter.unwrap_or((info.seq_len as u64, info.flops));
            (samples * length, flops)
        })
    }

    /// TFLOP/s of a device, recomputation included.
    fn tflops(&self, info: &RunInfo) -> Option<f64> {
        let flops = self
            .by_length(info)
            .map(|(tokens, flops)| tokens as f64 * flops.hardware);
        Some(flops.sum::<f64>() / self.seconds / info.devices as f64 / 1e12)
    }

    fn simple_tflops(&self, info: &RunInfo) -> Option<f64> {
        let flops = self.tokens_per_s(info)? * info.simple_flops_per_token?;
        Some(flops / info.devices as f64 / 1e12)
    }

    /// Loss scale of the last step; 1 without loss scaling.
    fn loss_scale(&self, _: &RunInfo) -> Option<f64> {
        Some(self.last?.loss_scale.unwrap_or(1.0))
    }

    /// Model FLOPs utilization in percent, if the peak is known.
    fn mfu(&self, info: &RunInfo) -> Option<f64> {
        let peak = info.peak_flops?;
        let flops = self
            .by_length(info)
            .map(|(tokens, flops)| tokens as f64 * flops.model);
        Some(100.0 * (flops.sum::<f64>() / self.seconds / peak))
    }
}
