//! Sections of a run: its length and evaluations, checkpoints, loss spikes, logs, and the assumptions of
//! estimates.

use super::Batch;
use super::choices::{DeviceChoice, Framework, LogFormat, SpikeAction};
use super::define::{Written, checked, forms, read, sections, settings, written};
use super::paths::resolve;
use super::report::{Report, short};
use base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

settings! {
/// Checkpoints.
Checkpoint(raw) {
    /// Steps between saves (--save-interval); the last step is always saved. Default: 1000.
    interval: u64 = 1000, in 1..=1_000_000_000_000_000u64;
    /// Number of newest checkpoints to keep. Default: all.
    keep_last: usize, in 1..=1_000_000_000;
    /// With keep_last: also keeps checkpoints whose step is a multiple of this. Default: none.
    keep_every: u64, in 1..=1_000_000_000_000_000u64;
    /// With keep_last: of older checkpoints whose step is a multiple of this, also keeps the weights,
    /// without the optimizer's states: a third of the bytes with AdamW. Such a checkpoint can be
    /// evaluated, sampled, exported and averaged; a run continues from it only with --reset-optimizer.
    /// Default: none.
    keep_weights_every: u64, in 1..=1_000_000_000_000_000u64;
    /// Maximum number of saves that are written while training continues, each with a copy of the
    /// run's state in host memory; with 0, training waits for every save (--async-save). Default: 1.
    in_flight: usize = 1, in 0..=8;
    /// Seconds for which writes into the run's folder wait while the disk is full or the file server
    /// is unreachable. Training continues meanwhile, and its logs are written later. 0 ends the run at
    /// once. Default: 600.
    wait_for_storage_s: f64 = 600.0, in 0.0..=1e6;
    /// Second location, to which every durable checkpoint is copied in the background:
    /// s3://BUCKET/PREFIX, with the credentials of the environment, or file:///FOLDER. The run's logs are
    /// copied with them. keep_last, keep_every and keep_weights_every also apply there. Default: none.
    also: String;
    /// Steps between saves into the memory of the nodes, from which a restarted run continues
    /// (--non-persistent-save-interval). Each node keeps the newest one of its ranks, and a copy of a
    /// neighbour node's. A save is skipped while the one before it is being written. Default: none.
    memory_interval: u64, in 1..=1_000_000_000_000_000u64;
    /// Folder for them on each node, whose file system is in memory; an absolute path. Default: /dev/shm,
    /// with memory_interval.
    memory_folder: PathBuf;
}

#[derive(Copy)]
/// Loss spikes: steps whose loss or gradient norm is far above that of the last 128 normal steps.
Divergence(raw) {
    /// Reaction: off, warn, or act. Default: act, if other settings of the section are given.
    action: SpikeAction = SpikeAction::Act;
    /// Threshold: distance above the median, in units of the scatter. Default: 8.
    sigmas: f64 = 8.0, in 1.0..=1e6;
    /// Minimum rise of the loss that counts as a spike, in nats. Default: 0.5.
    loss_rise: f64 = 0.5, in 0.0..=1e6;
    /// Minimum rise of the gradient norm that counts as a spike, as a factor. Default: 10.
    norm_rise: f64 = 10.0, in 1.0..=1e6;
    /// Updates that are skipped in a row before the run rolls back to a checkpoint. Default: 3.
    skips: u32 = 3, in 0..=1000;
    /// Minimum number of steps of a rollback, and number of steps skipped after the spike. Default: 100.
    roll_back: u64 = 100, in 1..=1_000_000_000u64;
    /// Maximum number of rollbacks; then the run stops. Default: 3.
    roll_backs: usize = 3, in 0..=1000;
}

/// Logs, metrics and the run's folder.
Log(raw, name: &str) {
    /// Folder of the run; a relative path starts at the working folder. Default: runs/NAME.
    folder: PathBuf = PathBuf::from("runs").join(name);
    /// Steps between log lines (--log-interval). Default: 1.
    interval: u64 = 1, in 1..=1_000_000_000_000_000u64;
    /// Format of log lines. Default: auto, which is short on a terminal and Megatron's elsewhere.
    format: LogFormat = LogFormat::Auto;
    /// Whether TensorBoard event files are written. Default: true.
    tensorboard: bool = true;
    /// Whether the zeros of the gradients are counted at every step. Default: false.
    zeros: bool = false;
    /// Whether the norm of the weights is taken after every step. Default: false.
    params_norm: bool = false;
    /// Whether log lines also have TFLOPs by the simple formula, of 6 FLOPs per parameter and token (8 with
    /// full recomputation). Default: false.
    simple_tflops: bool = false;
    /// Peak performance of all devices together, in TFLOP/s, with which the log shows MFU. Default:
    /// unknown.
    peak_tflops: f64, in 1e-6..=1e9;
    /// Folder of node_exporter's textfile collector on rank 0's node, in which the run keeps
    /// gptrain-NAME.prom until it ends. Default: none; log.folder always has metrics.prom.
    prometheus: PathBuf;
    /// Shell command that is called when the run ends, fails, diverges, restarts or warns, with the event
    /// as JSON on standard input. It may take 10 s, and its failure does not affect the run. Default: none.
    on_event: String;
}

/// Assumptions of `gptrain estimate`.
Plan(raw, folder: &Path) {
    /// Row of the hardware table, such as a100-80g (`gptrain estimate --list-hardware`), or a YAML file
    /// with columns of your machine; a relative path starts at the manifest's folder.
    hardware: String => Option<String> = hardware(raw.hardware, folder), written hardware.clone();
    /// Trainer whose memory and time are predicted. Default: gptrain.
    framework: Framework;
    /// Price of one device for one hour. Default: the hardware table's.
    price: f64, in 0.0..=1e6;
    /// Budget of the whole run, in the price's currency.
    budget: f64, in 0.0..=1e15;
    /// Budget of the whole run in device-hours, such as an allocation of 3,000,000 GPU-hours.
    hours: f64, in 0.0..=1e12;
    /// CO₂ of the electricity, in g per kWh (the world's mean was 475 in 2018; France's 57), times the
    /// site's PUE if it is to count: with it the log shows kg of CO₂, where energy is measured. Default:
    /// unknown.
    carbon: f64, in 0.0..=1e5;
    /// Share of the wall-clock time in which the run makes progress. Default: 1.
    availability: f64, in 0.01..=1.0;
    /// Mean hours between faults of the whole job. The plan then counts the steps that are repeated, saves
    /// and restarts, and names a better interval of saves. Default: no faults.
    fault_hours: f64, in 0.01..=1e6;
    /// With fault_hours: seconds from a fault to the next step, for detection, start and reading the
    /// checkpoint. `events.jsonl` of a run has them. Default: 300.
    restart_s: f64 = 300.0, in 0.0..=1e6;
    /// With fault_hours: rate at which all ranks together write a checkpoint to the shared file system, in
    /// GB/s. Default: unknown, and the time is not counted.
    storage_gb_s: f64, in 1e-3..=1e6;
}

/// Multiple-choice questions: the model should give the right answer the highest likelihood.
EvalTask(raw) {
    /// File of JSON lines in the format of HellaSwag, ARC, PIQA, MMLU, SciQ or LAMBADA; a relative path
    /// starts at the manifest's folder.
    #[schemars(required)]
    file: PathBuf => PathBuf = raw.file.unwrap_or_default(), written Some(file.clone());
    /// Number of questions to read. Default: all.
    limit: usize, in 1..=1_000_000_000;
    /// Number of examples before each question (few-shot). Default: none.
    shots: usize, in 1..=1000;
    /// File with the examples; a relative path starts at the manifest's folder. Default: the questions
    /// themselves.
    shots_from: PathBuf;
}

/// Length, evaluation, seed, machine.
Train(raw, length: u64, inputs: &EvalInputs, batch: &Batch, report: &mut Report) {
    /// Length of the run in samples (--train-samples). Give one of samples, tokens and steps.
    samples: u64 => u64 = length, in 1..=1_000_000_000_000_000u64,
        written Some(*samples);
    /// Tasks by name, whose accuracy is measured at every evaluation. Requires data.tokenizer.
    /// Default: none.
    eval_tasks: BTreeMap<String, raw::EvalTask>
        => BTreeMap<String, EvalTask> = inputs.tasks(raw.eval_tasks, report);
    /// Steps between evaluations (--eval-interval); 0 is never. Default: 1000 with validation sets or
    /// tasks.
    eval_interval: u64
        => Option<u64> = inputs.interval(raw.eval_interval, &eval_tasks, report),
        in 0..=1_000_000_000_000_000u64, written eval_interval.or(Some(0));
    /// Loss at which the run saves and ends: at an evaluation that on the first validation set; without
    /// one, the mean of the last 16 steps. Default: never.
    stop_at_loss: f64, in 0.0..=1e6;
    /// Samples read from each validation set at an evaluation. Default: 10 × batch.global.
    eval_samples: u64 = 10 * batch.global as u64, in 1..=1_000_000_000_000u64;
    /// Steps between audits: weights that must be equal on several ranks are compared bit by bit;
    /// 0 is never. Default: 100.
    audit_interval: u64
        => Option<u64> = Some(raw.audit_interval.unwrap_or(100)).filter(|steps| *steps > 0),
        in 0..=1_000_000_000_000_000u64, written audit_interval.or(Some(0));
    /// Weight of (ln Σ exp(logit))² in each token's loss, which keeps logits from drifting (PaLM:
    /// 1e-4). Logged separately; validation losses exclude it. Default: none.
    z_loss: f32, in 1e-12..=1.0;
    /// Seed of initial weights and dropout. Default: 1234.
    seed: u64 = 1234, in 0..=18_446_744_073_709_551_615u64;
    /// CPU threads of each rank. Default: all, divided among the ranks of a machine.
    threads: usize, in 1..=1_024;
    /// Device: cpu, cuda, or auto. Default: auto.
    device: DeviceChoice = DeviceChoice::Auto;
    /// Maximum device memory of a rank, such as 30GiB: a rank that needs more does not start. Default:
    /// the free memory.
    device_memory: String => Option<Bytes> = device_memory(raw.device_memory, report),
        written device_memory.map(Bytes::exact);
} [
    /// Length of the run in tokens.
    tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// Length of the run in optimizer steps (--train-iters).
    steps: u64, in 1..=1_000_000_000_000u64;
]
}

forms! {
    /// Reaction to loss spikes, by name or with settings.
    DivergenceForm {
        /// By name, with its defaults.
        Name(SpikeAction),
        /// With settings.
        Settings(raw::Divergence),
    }
}

/// Settings of spike detection. By default spikes are only reported.
pub fn divergence(form: Option<DivergenceForm>) -> Divergence {
    let named = |action| raw::Divergence { action: Some(action), ..Default::default() };
    Divergence::read(match form {
        None => named(SpikeAction::Warn),
        Some(DivergenceForm::Name(action)) => named(action),
        Some(DivergenceForm::Settings(settings)) => settings,
    })
}

/// Inputs for checks of evaluations.
pub struct EvalInputs<'a> {
    /// Whether there is a validation set, and whether there is a tokenizer.
    pub sets: bool,
    pub tokenizer: bool,
    /// Base folder of relative paths.
    pub folder: &'a Path,
}

impl EvalInputs<'_> {
    pub fn tasks(
        &self,
        given: Option<BTreeMap<String, raw::EvalTask>>,
        report: &mut Report,
    ) -> BTreeMap<String, EvalTask> {
        let mut tasks = BTreeMap::new();
        for (name, task) in given.into_iter().flatten() {
            if !name
                .chars()
                .all(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
            {
                report.add(
                    "train.eval_tasks",
                    format!("\"{}\" cannot name a task", short(&name)),
                    "use letters, digits, `-` and `_`",
                );
            }
            let task = EvalTask::read(task);
            let shots_from = task
                .shots_from
                .as_deref()
                .map(|path| resolve(self.folder, path));
            let file = resolve(self.folder, &task.file);
            tasks.insert(name, EvalTask { file, shots_from, ..task });
        }
        if !tasks.is_empty() && !self.tokenizer && report.are_valid(&["train.eval_tasks", "data"]) {
            report.add(
                "train.eval_tasks",
                "train.eval_tasks are text, and data.tokenizer names no tokenizer for it",
                "set data.tokenizer: tokenizer.json",
            );
        }
        tasks
    }

    pub fn interval(
        &self,
        given: Option<u64>,
        tasks: &BTreeMap<String, EvalTask>,
        report: &mut Report,
    ) -> Option<u64> {
        let any = self.sets || !tasks.is_empty();
        let interval = given.unwrap_or(if any { 1000 } else { 0 });
        if interval > 0 && !any && report.are_valid(&["data", "train"]) {
            report.add(
                "train.eval_interval",
                format!("evaluation every {interval} steps, but no validation set"),
                "add data.valid, or a split with a second share, or set it to 0",
            );
        }
        Some(interval).filter(|steps| *steps > 0)
    }
}

/// Whether `plan.hardware` is a file, rather than a row of the table.
pub fn is_hardware_file(name: &str) -> bool {
    name.contains('/') || name.ends_with(".yaml") || name.ends_with(".yml")
}

fn hardware(given: Option<String>, folder: &Path) -> Option<String> {
    let name = given?;
    if !is_hardware_file(&name) {
        return Some(name);
    }
    Some(resolve(folder, Path::new(&name)).display().to_string())
}

fn device_memory(given: Option<String>, report: &mut Report) -> Option<Bytes> {
    let given = given?;
    match given.parse() {
        Ok(bytes) => Some(bytes),
        Err(why) => {
            report.add(
                "train.device_memory",
                format!("train.device_memory \"{}\" is not a size", short(&given)),
                why,
            );
            None
        }
    }
}
