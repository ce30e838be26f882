//! Start-up: lock the folder, open the data, reserve memory, load or initialise the state. Each
//! phase succeeds on all ranks or stops all of them.

mod announce;
mod plan;
pub mod probe;

use super::energy::{Energy, EnergyMeter};
use super::file_checks::{check_files, check_run_folder};
use super::gpu_faults::GpuFaults;
use super::loader::{DataShard, Loader};
use super::mirror::{self, Mirror};
use super::node_memory::{self, Found, MemorySaves, NodeMemory};
use super::report::metrics::Metrics;
use super::report::{Report, RunInfo, TokenFlops};
use super::resume::ResumeOptions;
use super::run::{InFlight, Run};
use super::saving::{self, Saver};
use super::spikes::Spikes;
use super::status::{self, LastStep, Status, StatusWriter};
use super::step_parts::StepParts;
use super::stragglers::Stragglers;
use super::time_limit::TimeLimit;
use super::trace::{Trace, TraceOptions};
use super::watch::{Drift, Periodic, Record, RunContext, StopAtLoss, StopFile, Watchers};
use super::{fetch, preflight, replay, resume, tokenizers, watch};
use anyhow::Result;
use base::output::{self, Existing};
use base::{Moment, input};
use checkpoint::{CheckpointFolder, DataId, Progress, State};
use data::eval::Task;
use data::{Datasets, MixturePlan};
use engine::Engine;
use estimate::hardware::Hardware;
use estimate::rates::simple_factor;
use launch::alerts::Alerts;
use launch::console::Form;
use launch::crash_loop;
use launch::messages::Messages;
use launch::rank::{CollectiveError, Rank};
use launch::run_folder::FolderLock;
use launch::signals::Signals;
use launch::storage::Storage;
use launch::{self, Device, LocalRanks};
use manifest::{self, Loaded, LogFormat, Manifest, Model};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Options of `gptrain run` besides the manifest.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Name of the checkpoint to resume from, instead of the newest.
    pub resume_from: Option<PathBuf>,
    /// Whether a resume resets the optimizer's states.
    pub reset_optimizer: bool,
    /// Number of recorded steps to repeat first, which must give the same losses.
    pub verify_resume: Option<u64>,
    /// Steps whose spans are written to a file.
    pub trace: Option<TraceOptions>,
    /// File to which rank 0 writes the ops of a step.
    pub ops: Option<PathBuf>,
    /// Whether nothing is saved, at a signal either: a probe.
    pub keeps_nothing: bool,
    /// Time after which this start has saved and ended.
    pub ends_after: Option<Duration>,
}

/// State shared by the ranks of one process.
pub struct Process<'a> {
    loaded: &'a Loaded,
    options: &'a RunOptions,
    messages: &'a Messages,
    started: Moment,
    pub signals: Signals,
    trace: Option<Trace>,
    /// Opened by the first rank that needs it; Some(None) if that failed.
    data: Mutex<Option<Option<Arc<Datasets>>>>,
    /// Read before the ranks start.
    tasks: Arc<Vec<(String, Task)>>,
    node: String,
    kind: &'static str,
    are_processes: bool,
    threads: usize,
}

impl<'a> Process<'a> {
    pub fn new(
        loaded: &'a Loaded,
        options: &'a RunOptions,
        messages: &'a Messages,
        tasks: Vec<(String, Task)>,
        ranks: &LocalRanks,
    ) -> Result<Process<'a>> {
        let tasks = Arc::new(tasks);
        let says_stop = ranks.has_rank0() && !options.keeps_nothing;
        Ok(Process {
            loaded,
            options,
            messages,
            started: Moment::now(),
            signals: Signals::listen(says_stop.then(|| messages.console().clone()))?,
            trace: options
                .trace
                .as_ref()
                .map(|options| Trace::new(options, messages.spans())),
            data: Mutex::new(None),
            tasks,
            node: ranks.node.clone(),
            kind: ranks.kind,
            are_processes: ranks.are_processes(),
            threads: ranks.threads,
        })
    }

    fn data(&self, mixture: MixturePlan) -> Result<Arc<Datasets>> {
        let m = &self.loaded.manifest;
        let mut data = self.data.lock();
        let open = || {
            let shard = DataShard::whole(m);
            let eval_samples = shard.rounds(m.train.eval_samples) * shard.micro as u64;
            Datasets::open(&m.data, mixture, m.model.seq_len, m.model.vocab, eval_samples)
        };
        match &*data {
            Some(Some(data)) => Ok(data.clone()),
            Some(None) => Err(CollectiveError { code: 1, error: None }.into()),
            None => {
                let opened = open().map(Arc::new);
                *data = Some(opened.as_ref().ok().cloned());
                opened
            }
        }
    }
}

/// Lock of the run's folder, on rank 0.
pub fn lock(rank: &Rank, m: &Manifest) -> Result<Option<FolderLock>> {
    let take = || {
        let lock = FolderLock::take(&m.log.folder)?;
        check_run_folder(&m.log.folder)?;
        StopFile::refuse(&m.log.folder)?;
        Ok(Some(lock))
    };
    rank.agree(if rank.is_first() { take() } else { Ok(None) })
}

/// State for a rank's next step; None if the run has no step left. A collective.
pub fn open<'a>(
    process: &'a Process,
    rank: &'a Rank,
    device: &'a Device,
) -> Result<Option<Run<'a>>> {
    let m = &process.loaded.manifest;
    let options = process.options;
    check_space_and_files(rank, m)?;
    let resume_from = options.resume_from.as_deref();
    let named = fetch::fetch(rank, &process.signals, saving::folder(m), resume_from)?;
    let newest = rank.on_first(|| Ok(saving::newest_on_disk(m)))?;
    let memory = node_memory::find(rank, &process.node, m, named.is_some(), newest)?;
    let origin = rank.run_phase_on_rank0("opening data", || {
        Origin::find(m, named.as_deref(), memory.found.as_ref().map(|found| &found.checkpoint))
    })?;
    let (data, ids) = open_data(process, rank, &origin)?;
    if let Some(found) = &origin.found {
        rank.on_first(|| resume::check_length(found, process.loaded, &ids))?;
    }
    let from = origin.found.as_ref().map_or(0, |found| found.step);
    open_trace(process, rank, device, from)?;
    if is_complete(process, rank, &origin, &ids)? {
        memory.remove(rank, &m.log.folder)?;
        return Ok(None);
    }
    rank.on_first(|| crash_loop::count_start(&m.log.folder, from))?;
    let opened = open_run(process, rank, device, origin, data, ids, &memory);
    if opened.is_err() && rank.is_first() {
        crash_loop::uncount_start(&m.log.folder);
    }
    opened.map(Some)
}

/// Whether the run is complete, and this start has nothing else to do, such as to verify or copy it.
fn is_complete(process: &Process, rank: &Rank, origin: &Origin, ids: &[DataId]) -> Result<bool> {
    let loaded = process.loaded;
    let options = process.options;
    let work = options.verify_resume.is_some() || loaded.manifest.checkpoint.also.is_some();
    let Some(found) = origin.found.as_ref().filter(|_| !work) else { return Ok(false) };
    rank.on_first(|| resume::is_complete(found, loaded, ids))
}

/// Rest of a start, which counts for the crash-loop guard unless it is refused.
fn open_run<'a>(
    process: &'a Process,
    rank: &'a Rank,
    device: &'a Device,
    origin: Origin,
    data: Arc<Datasets>,
    ids: Vec<DataId>,
    memory: &NodeMemory,
) -> Result<Run<'a>> {
    let loaded = process.loaded;
    let options = process.options;
    let m = &loaded.manifest;
    let be = device.backend();
    let from = origin.found.as_ref().map_or(0, |found| found.step);
    let planned_on = announce_plan(process, rank, device, &data, from)?;
    let engine = reserve_engine(process, rank, device)?;
    announce::announce_ranks(process, rank, device, &engine)?;
    if let Some(steps) = options.verify_resume {
        let verified = replay::verify(steps, rank, loaded, &ids, &engine, be, &data.train);
        tracing::info!("{}", rank.agree(verified)?);
    }
    let mut state = load_or_init(process, rank, &origin, ids, &engine, memory)?;
    state.mixture = data.plan.clone();
    let spikes = Spikes::new(&m.divergence, state.spikes.take(), &data.plan);
    let progress = state.progress;
    let data_ids = state.data.clone();
    let stop_at_loss = StopAtLoss::new(&state);
    let storage = Storage::for_run(m);
    let mirror = open_mirror(rank, m, &state)?;
    let in_memory = MemorySaves::open(m, rank, &engine, memory)?;
    let is_saved = progress.step > 0 && memory.found.as_ref().is_none_or(Found::is_on_disk);
    let queue = mirror.as_ref().map(Mirror::queue);
    let saver = rank.run_phase("reserving snapshots", || {
        Saver::open(m, rank.number(), &engine, state, is_saved, &storage, queue, in_memory)
    })?;
    announce::announce_snapshots(rank, &saver)?;
    // Before the lines of repeated steps are dropped: their energy is spent.
    let is_continued = rank.is_first() && progress.step > 0;
    let spent = if is_continued { status::spent_energy(&m.log.folder) } else { Energy::default() };
    let meter = rank.run_phase("reading energy", || EnergyMeter::start(device))?;
    let files = open_report(process, rank, from, progress, &storage)?;
    let steps = m.step_samples();
    let shard = DataShard::for_rank(rank, m);
    let consumed = progress.consumed_samples;
    let loader = rank.run_phase("starting the data loader", || {
        Loader::training(&data.train, steps.clone(), shard, consumed, m.train.samples)
    })?;
    let monitor = device.monitor();
    let limits = time_limits(process, rank, saver.slowest());
    let ops = process.options.ops.clone().filter(|_| rank.is_first());
    // The order is that of `watch::ORDER`.
    let watchers = Watchers::new(vec![
        Box::new(spikes),
        Box::new(Drift::new(StepParts::new(ops), planned_on)),
        Box::new(Stragglers::new(rank, &m.log.folder, device.processor())),
        Box::new(GpuFaults::new(rank, m, device, monitor.as_deref())),
        Box::new(limits),
        Box::new(rank.is_first().then(|| StopFile::new(&m.log.folder))),
        Box::new(stop_at_loss),
        Box::new(Periodic("replicas", m.train.audit_interval, watch::compare)),
        Box::new(Periodic("evaluation", m.train.eval_interval, watch::evaluate)),
        Box::new(saver),
        Box::new(Record::new(files, meter, spent)),
        Box::new(mirror),
        Box::new(process.trace.as_ref()),
    ]);
    Ok(Run {
        cx: RunContext {
            loaded,
            manifest: m,
            rank,
            shard,
            steps,
            be,
            data,
            data_ids,
            tasks: process.tasks.clone(),
            signals: &process.signals,
            monitor,
        },
        engine,
        loader,
        progress,
        in_flight: InFlight::default(),
        watchers,
    })
}

/// Limits of the Slurm job and of this start, on rank 0.
fn time_limits(process: &Process, rank: &Rank, save: Rc<Cell<f64>>) -> Vec<TimeLimit> {
    if !rank.is_first() {
        return Vec::new();
    }
    let of_start = process
        .options
        .ends_after
        .map(|limit| TimeLimit::from_start(process.started, limit, save.clone()));
    let of_job = TimeLimit::watch(&process.loaded.manifest.slurm, save);
    of_job.into_iter().chain(of_start).collect()
}

/// Prints the run, its data and its plan from step `from` on. Returns the machine of the plan.
fn announce_plan(
    process: &Process,
    rank: &Rank,
    device: &Device,
    data: &Datasets,
    from: u64,
) -> Result<Option<&'static Hardware>> {
    announce::announce_run(process, rank, data)?;
    plan::announce(process, rank, device, from)
}

/// Loads the run's checkpoint, or initialises a new run. Returns the state.
fn load_or_init(
    process: &Process,
    rank: &Rank,
    origin: &Origin,
    ids: Vec<DataId>,
    engine: &Engine,
    memory: &NodeMemory,
) -> Result<State> {
    let loaded = process.loaded;
    let options = process.options;
    let resume = ResumeOptions {
        is_named: options.resume_from.is_some(),
        reset_optimizer: options.reset_optimizer,
    };
    let state = match &origin.found {
        None => init_new_run(rank, loaded, ids, engine),
        Some(found) => {
            let in_memory = memory.found.as_ref();
            // The folder of rank 0; it has the same path on every node.
            let remote = in_memory.map(|found| found.remote.clone());
            resume::resume(rank, found, resume, loaded, &ids, engine, remote)
        }
    }?;
    if let Some(found) = memory.found.as_ref().filter(|_| rank.is_first()) {
        tracing::info!("{}", found.describe());
    }
    announce::warn_of_schedule(rank, &loaded.manifest, &state);
    Ok(state)
}

/// Report and status of a run that continues from a step, on rank 0.
fn open_report(
    process: &Process,
    rank: &Rank,
    from: u64,
    progress: Progress,
    storage: &Arc<Storage>,
) -> Result<Option<(Report, StatusWriter)>> {
    rank.run_phase("opening the report", || {
        if !rank.is_first() {
            return Ok(None);
        }
        let last = status::last_start(&process.loaded.manifest.log.folder);
        let report = open_metrics(process, progress.step, storage)?;
        Ok(Some((report, open_status(process, rank, progress, last, from)?)))
    })
}

/// Starts the trace, if one is requested.
fn open_trace(process: &Process, rank: &Rank, device: &Device, from: u64) -> Result<()> {
    let Some(trace) = &process.trace else { return Ok(()) };
    let m = &process.loaded.manifest;
    trace.open(rank, device.gpu().is_some(), from, m.batch.ramp().steps(m.train.samples))
}

/// Fails if the files of the manifest cannot be used, or the disk has no space for a checkpoint. A
/// collective.
fn check_space_and_files(rank: &Rank, m: &Manifest) -> Result<()> {
    rank.run_phase_on_rank0("looking at files", || {
        let files = check_files(m)?;
        for note in &files.notes {
            tracing::info!("{note}");
        }
        files.into_result()?;
        checkpoint::space(&m.log.folder, engine::saved_bytes(m))
    })
}

/// Starting point of a run.
#[derive(Serialize, Deserialize)]
struct Origin {
    /// Checkpoint; None for a new run.
    found: Option<CheckpointFolder>,
    mixture: MixturePlan,
    /// Training datasets; None if one cannot be read, which is reported when it is opened.
    ids: Option<Vec<DataId>>,
    digest_seed: u64,
}

impl Origin {
    /// Starting point: `in_memory`, or the checkpoint on disk that is named, or the newest.
    fn find(
        m: &Manifest,
        named: Option<&Path>,
        in_memory: Option<&CheckpointFolder>,
    ) -> Result<Origin> {
        let on_disk = resume::find(m, named)?;
        let found = in_memory.cloned().or(on_disk);
        let digest_seed = resume::digest_seed(found.as_ref(), m);
        let ids = resume::data_ids(m, digest_seed).ok();
        let mixture =
            resume::continue_mixture(found.as_ref(), m, ids.as_deref().unwrap_or_default())?;
        Ok(Origin { found, mixture, ids, digest_seed })
    }
}

/// Datasets, the same on all nodes, and their identities.
fn open_data(
    process: &Process,
    rank: &Rank,
    origin: &Origin,
) -> Result<(Arc<Datasets>, Vec<DataId>)> {
    let m = &process.loaded.manifest;
    let open = || process.data(origin.mixture.clone());
    // Rank 0 builds the sample order, which may take long; the others find it in the cache.
    rank.on_first(|| open().map(drop))?;
    let data = rank.run_phase("opening data", open)?;
    let ids = match &origin.ids {
        Some(ids) => ids.clone(),
        None => rank.on_first(|| resume::data_ids(m, origin.digest_seed))?,
    };
    let read = || resume::data_ids(m, origin.digest_seed);
    preflight::compare_datasets(rank, &process.node, &ids, read)?;
    Ok((data, ids))
}

/// Reserves the memory of the engine.
fn reserve_engine<'a>(process: &Process, rank: &Rank, device: &'a Device) -> Result<Engine<'a>> {
    let loaded = process.loaded;
    let node = &process.node;
    let be = device.backend();
    let m = &loaded.manifest;
    rank.on_first(|| Ok(engine::check_micro_batch(be, m)?))?;
    let groups = rank.run_phase("creating process groups", || {
        device
            .groups(rank.world(), m)
            .map_err(|problems| launch::name_rank(rank, node, problems).into())
    })?;
    let memory = preflight::measure_gpu(rank, device, node)?;
    let m = &preflight::place_gradients(rank, be, &groups, m, memory.as_ref());
    let (needed, _) = Engine::plan(be, &groups, m, m.data.causal());
    preflight::check_memory(rank, be, node, &needed)?;
    rank.run_phase("reserving memory", || {
        let engine = preflight::check_headroom(&needed, memory.as_ref())
            .and_then(|()| Engine::new(be, groups, m, m.data.causal()));
        engine.map_err(|error| preflight::out_of_memory(rank, loaded, node, memory, error))
    })
}

/// Initialises the weights of a new run.
fn init_new_run(rank: &Rank, loaded: &Loaded, ids: Vec<DataId>, engine: &Engine) -> Result<State> {
    rank.set_phase("setting initial weights");
    if rank.is_first() {
        announce_folder(loaded);
    }
    engine.init();
    rank.on_first(|| {
        let mut state = saving::initial_state(loaded, ids);
        if loaded.manifest.checkpoint.also.is_some() {
            state.run = mirror::run_id(&loaded.manifest.log.folder, state.run)?;
        }
        Ok(state)
    })
}

/// Prints the folder of a new run, and of another run that may be the intended one: log.folder starts
/// at the working folder, but a manifest's other paths start at the manifest.
fn announce_folder(loaded: &Loaded) {
    let folder = &loaded.manifest.log.folder;
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    tracing::info!("new run in {}", whole(folder).display());
    let manifest_folder = loaded.source.parent().unwrap_or(Path::new("."));
    let other = manifest_folder.join(folder);
    if folder.is_relative() && whole(&other) != whole(folder) && other.join("checkpoints").is_dir()
    {
        let path = whole(&other);
        let other = path.display();
        tracing::warn!("{other} holds a run too: `gptrain run {other}` continues that one");
    }
}

/// Mirror of the checkpoints, on rank 0.
fn open_mirror(rank: &Rank, m: &Manifest, state: &State) -> Result<Option<Mirror>> {
    rank.run_phase("opening the place of copies", || {
        if !rank.is_first() {
            return Ok(None);
        }
        Mirror::start(m, &state.run, state.progress.step, &saving::folder(m))
    })
}

/// Writes the manifest that the run starts with, and opens the report.
fn open_metrics(process: &Process, step: u64, storage: &Arc<Storage>) -> Result<Report> {
    let loaded = process.loaded;
    let m = &loaded.manifest;
    let path = m.log.folder.join(manifest::IN_FOLDER);
    let record = loaded.record();
    if input::read(&path, input::SMALL).ok().as_deref() != Some(record.as_bytes()) {
        output::write(&path, Existing::Replaced, record.as_bytes())?;
    }
    tokenizers::keep_copy(m)?;
    let folder = &m.log.folder;
    let every = m.log.interval;
    let events = m.log.tensorboard;
    let console = process.messages.console();
    console.set_form(match m.log.format {
        LogFormat::Auto if std::io::stdout().is_terminal() => Form::Short,
        LogFormat::Auto | LogFormat::Megatron => Form::Megatron,
        LogFormat::MegatronLm => Form::MegatronLm,
        LogFormat::Short => Form::Short,
    });
    Report::open(console, folder, storage, run_info(m), every, events, step)
}

/// Starts the status of the run. Called after `open_metrics`, so that repeated steps do not count.
fn open_status(
    process: &Process,
    rank: &Rank,
    progress: Progress,
    last_start: Option<Status>,
    from_step: u64,
) -> Result<StatusWriter> {
    let m = &process.loaded.manifest;
    let metrics = Metrics::read(&m.log.folder).ok();
    let last = metrics
        .as_ref()
        .and_then(|metrics| metrics.steps.last().copied());
    let status = Status {
        step: progress.step,
        consumed_samples: progress.consumed_samples,
        last: last.map(LastStep).unwrap_or_default(),
        name: m.name.clone(),
        host: process.node.clone(),
        ranks: rank.grid.size(),
        total_steps: m.batch.ramp().steps(m.train.samples),
        total_samples: m.train.samples,
        useful_s: metrics
            .as_ref()
            .map_or(0.0, |metrics| metrics.useful_seconds()),
        ..Status::default()
    };
    let folder = m.log.folder.clone();
    let collector = m.log.prometheus.as_deref();
    let recorder = rank.world().recorder().clone();
    let warnings = process.messages.warnings();
    let alerts = Alerts::start(m)?;
    StatusWriter::open(folder, status, last_start, from_step, collector, recorder, warnings, alerts)
}

fn run_info(m: &Manifest) -> RunInfo {
    let flops = |seq_len| {
        let positions = Some(m.model.context());
        let model = Model { seq_len, positions, ..m.model.clone() };
        let flops = model::flops_per_token(&model);
        TokenFlops { model: flops.model, hardware: flops.hardware(m.topology.recompute) }
    };
    let simple = || {
        let parameters = model::parameters(&m.model) as f64;
        simple_factor(m.topology.recompute) * parameters
    };
    let seq_len = m.model.seq_len;
    let lengths = m
        .schedule()
        .lengths
        .lengths()
        .filter(|length| *length < seq_len);
    RunInfo {
        total_samples: m.train.samples,
        total_steps: m.batch.ramp().steps(m.train.samples),
        schedule: m.schedule(),
        seq_len,
        flops: flops(seq_len),
        shorter: lengths
            .map(|length| (length as u64, flops(length)))
            .collect(),
        simple_flops_per_token: m.log.simple_tflops.then(simple),
        devices: m.topology.ranks(),
        peak_flops: m.log.peak_tflops.map(|peak| peak * 1e12),
    }
}
